"""Public reports of memory, speed and choice of layout, and how many of all reports the tool agrees with.

``DISAGREES`` lists the reports whose expectation the tool does not meet, with the reason; the tests of the others are in
this folder.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.explain.api import explain_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.check import advise_layout
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, parse_layout
from layoutopt.optimizer.specs.vocabulary import Verdict

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.explain.records import Explanation, MemoryPart
    from layoutopt.optimizer.solve.plan import Judgement
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

GB, GIB = 1e9, 2.0**30
OUT_OF_MEMORY = (Verdict.DOES_NOT_FIT, Verdict.BORDERLINE)
RUNS = (Verdict.FITS, Verdict.BORDERLINE)
LEAST_SHARE = 0.95

DISAGREES = {
    "ti708-8b-32h100": (
        "throughput agrees; memory is predicted as 31 GiB against 26.5 stated (+17%, tolerance 15%). torchtitan's own "
        "published runs of this model lie 14-31% above the prediction, so lowering it for this report is no option"
    ),
}
"""Reports that the tool contradicts, and why."""

MISSED_FIGURES = {
    "swift-q30-zero3-vs-ep": (
        "the step is predicted as 3.7 s against 9.6 stated; the network between the two nodes is not stated, and the report "
        "itself says that the ranking is the test, which agrees"
    ),
}
"""Figures of agreeing reports that lie outside their tolerance."""


def explain(report: Any, workload: Workload, cluster: ClusterSpec, layout: str) -> Explanation:
    """Explain a layout under the report's framework."""
    options = SolveOptions(framework=report.framework, space=SpaceOptions(software=report.software))
    return explain_layout(workload, cluster, parse_layout(layout), options, compare=False)


def part(found: Explanation, name: str) -> MemoryPart:
    """Return one line of the memory breakdown."""
    assert found.fullest is not None
    return next(line for line in found.fullest.parts if line.name == name)


def states_bytes(judged: Judgement) -> float:
    """Weights, gradients and optimizer state of the fullest rank."""
    assert judged.estimate is not None
    fullest = max(judged.estimate.memory.stages, key=lambda stage: stage.total_bytes)
    return sum(fullest.components_bytes[name] for name in ("weights", "gradients", "optimizer"))


@pytest.mark.report("cai5068-70b-tp4-dp8")
def test_states_alone_do_not_fit(report: Any) -> None:
    """TP4 with ZeRO-1 holds 95 GB of states in fp16 (16-bit gradients); TP8 PP2 fits."""
    workload = report.workload(batch=16, grad_dtype="fp16")
    judged = report.judge(workload, report.cluster(), report.layout(recompute="full"))
    assert judged.verdict in OUT_OF_MEMORY
    assert report.near(states_bytes(judged) / GB, "states_gb")
    other = report.judge(workload, report.cluster(), "tp=8,pp=2,dp=2,zero=1,mb=2,recompute=full")
    assert other.verdict is Verdict.FITS


@pytest.mark.report("neox409-13b-8xa100-40")
def test_thirteen_billion_on_one_node(report: Any) -> None:
    """Borderline on 40 GB with unfused attention scores."""
    workload = report.workload(batch=1, flash=False, precision="fp16")
    assert report.judge(workload, report.cluster()).verdict is Verdict.BORDERLINE


@pytest.mark.report("speech14712-gptoss20-16k")
def test_unfused_attention_is_named_as_the_cause(report: Any) -> None:
    """Scores of 34 GB per layer: out of memory without fused attention, fits with it, and the explanation says so."""
    workload = report.workload(batch=report.case["layout"]["gbs"], flash=False)
    found = explain(report, workload, report.cluster(), report.layout())
    assert found.judgement.verdict in OUT_OF_MEMORY
    assert any("fused attention" in remedy.changes for remedy in found.remedies)
    fused = replace(workload, training=replace(workload.training, flash=True))
    other = explain(report, fused, report.cluster(), report.layout())
    assert other.judgement.verdict in RUNS
    more = part(found, "activations in flight").size_bytes - part(other, "activations in flight").size_bytes
    in_flight = (
        workload.model.layers // 2 * 2
    )  # half the layers on each of two stages, two micro-batches on the first
    assert report.near(more / in_flight / GB, "scores_gb_per_layer")


@pytest.mark.report("slime2253-fp32-logits")
def test_logits_have_a_line_of_their_own(report: Any) -> None:
    """The 32-bit copy of the logits of one micro-batch is 10.7 GiB at tp 1."""
    workload = report.workload(batch=8, layers=36, hidden=2560, heads=32, ffn=9728)
    found = explain(report, workload, report.cluster(gpu="h200"), report.layout())
    assert report.near(part(found, "logits, 32-bit copy").size_bytes / GIB, "logits_gib")


@pytest.mark.report("verl7826-fused-ce")
def test_what_a_fused_head_and_loss_saves(report: Any) -> None:
    """A kernel that never writes the logits saves their 16-bit tensor, which is a line of its own."""
    known: dict[str, Any] = {"hidden": 2048, "heads": 16, "kv_heads": 2, "head_dim": 256}
    known |= {"moe": {"experts": 256, "top_k": 8, "ffn": 512, "shared_ffn": 512}}
    workload = report.workload(batch=32, **known)
    found = explain(report, workload, report.cluster(), report.layout(zero=1))
    assert report.near(part(found, "logits, 16-bit").size_bytes / GIB, "delta_gib")


@pytest.mark.report("ti1993-dsv3-16b-b200")
def test_how_many_tokens_fit(report: Any) -> None:
    """24,576 tokens per GPU fit, 32,768 don't, whether as more or as longer sequences, with and without experts spread."""
    fits, dies = report.check["fits_tokens"], report.check["oom_tokens"]
    for sequences, length in ((4, 4096), (6, 4096), (4, 6144), (8, 4096), (4, 8192)):
        workload = report.workload(batch=8 * sequences, seq=length)
        for ep in (1, 8):
            judged = report.judge(workload, report.cluster(), f"tp=1,pp=1,zero=3,ep={ep},mb={sequences}")
            expected = RUNS if sequences * length <= fits else OUT_OF_MEMORY
            assert sequences * length <= fits or sequences * length >= dies
            assert judged.verdict in expected, (sequences, length, ep)


@pytest.mark.report("mlm2762-q30-one-node")
def test_experts_without_replicas_are_not_sharded(report: Any) -> None:
    """Experts on eight ranks of eight keep their whole optimizer state: 77 GB of states; 16 GPUs with pp 2 fit."""
    workload = report.workload(batch=16)
    judged = report.judge(workload, report.cluster())
    assert judged.verdict in OUT_OF_MEMORY
    assert report.near(states_bytes(judged) / GB, "states_gb")
    other = report.judge(workload, report.cluster(16), "tp=1,pp=2,ep=8,dp=8,mb=1,zero=1")
    assert other.verdict in RUNS


@pytest.mark.report("ti770-70b-how-many")
def test_how_many_gpus_a_model_needs(report: Any) -> None:
    """Fewer than 16 GPUs hold no layout, and the answer names the fewest; 32 and 64 do."""
    workload = report.workload(batch=64, loss_chunks=1)  # as in 2024
    options = SolveOptions(
        framework=report.framework, top=1, space=SpaceOptions(fix={"zero": (3,)}, max={"tp": 8})
    )
    least = report.check["min_gpus_ge"]
    plan = solve_layout(workload, report.cluster(8), options)
    assert plan.layout is None and plan.infeasibility is not None
    assert plan.infeasibility.fewest_gpus is not None and plan.infeasibility.fewest_gpus >= least
    for gpus in report.check["fits_at"]:
        for tp in (1, 8):
            judged = report.judge(workload, report.cluster(gpus), f"tp={tp},zero=3,mb=1,recompute=full")
            assert judged.verdict in RUNS, (gpus, tp)


@pytest.mark.report("mds158-7b-16gpu")
def test_gpus_of_a_layout_and_a_faster_one(report: Any) -> None:
    """TP2 x PP8 takes multiples of 16 GPUs and 7.9 GB of states; a 7B model is faster with fewer stages."""
    known = {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000}
    workload = report.workload(batch=64, seq=2048, **known)
    gpus = report.check["n_gpus"]
    judged = report.judge(workload, report.cluster(gpus, "a100-80g"), "tp=2,pp=8,mb=1")
    assert judged.verdict in RUNS and judged.layout.gpus == gpus
    assert states_bytes(judged) / GB == pytest.approx(7.9, rel=report.check["tol"])
    assert report.judge(workload, report.cluster(24, "a100-80g"), "tp=2,pp=8,mb=1").verdict is Verdict.INVALID
    best = solve_layout(
        workload, report.cluster(gpus, "a100-80g"), SolveOptions(framework=report.framework, top=1)
    )
    assert best.layout is not None and best.layout.pp < 8


@pytest.mark.report("bloom-final")
def test_the_bloom_run(report: Any) -> None:
    """Step time and memory as nvidia-smi shows it; the even split is 5, 6 x 10, 5 layers.

    Its bf16 optimizer adds up gradients in 32 bits beside the 16-bit ones (deepspeedai/DeepSpeed runtime/bf16_optimizer.py).
    """
    workload = report.workload(batch=report.case["layout"]["gbs"])
    workload = replace(workload, training=replace(workload.training, grad_bytes=6))
    judged = report.judge(
        workload, load_cluster("a100-384-opa"), report.layout(recompute="full"), software="2022"
    )
    assert judged.estimate is not None
    assert [stage.layers for stage in judged.layout.stages] == [5, *[6] * 10, 5]
    assert report.near(judged.estimate.step_time_s, "step_s")
    assert report.near(judged.estimate.memory.device_bytes / GB, "mem_gb")


@pytest.mark.report("bs-uneven-78-12")
def test_uneven_stages_are_a_warning(report: Any) -> None:
    """78 layers on 12 stages run, with the fullest stage 8% above the mean."""
    cluster = load_cluster("a100-384-opa")
    workload = report.workload(batch=2048, precision="fp16", heads=96, ffn=4 * 13824)
    judged = report.judge(workload, cluster)
    assert judged.verdict is not Verdict.INVALID
    model, training = workload.model, workload.training
    advice = advise_layout(judged.layout, model, training, cluster, report.framework)
    found = {rule.rule: rule.message for rule in advice}
    assert "the fullest rank has 7, mean 6.5" in found[report.check["rule"]]
    assert "+8%" in found[report.check["rule"]]


def q30(report: Any) -> dict[str, Judgement]:
    """The three layouts of the report: experts spread, ZeRO-2, ZeRO-3."""
    workload, cluster = report.workload(batch=report.case["layout"]["gbs"]), report.cluster()
    zero = {
        stage: report.judge(
            workload,
            cluster,
            f"tp=1,ep=1,dp=16,mb=1,zero={stage},recompute=full",
            framework=Framework.DEEPSPEED,
        )
        for stage in (2, 3)
    }
    spread = report.judge(workload, cluster, report.layout(recompute="full"))
    return {"tp2ep8": spread, "zero2": zero[2], "zero3": zero[3]}


@pytest.mark.report("swift-q30-zero3-vs-ep")
def test_spread_experts_beat_gathered_ones(report: Any) -> None:
    """TP2 EP8 fits and is faster than ZeRO-3, which fits; ZeRO-2 does not."""
    judged = q30(report)
    assert judged["tp2ep8"].verdict in RUNS and judged["zero3"].verdict in RUNS
    assert judged["zero2"].verdict in OUT_OF_MEMORY
    times = {name: one.estimate.step_time_s for name, one in judged.items() if one.estimate is not None}
    assert sorted(report.check["order"], key=times.__getitem__) == report.check["order"]


@pytest.mark.report("swift-q30-zero3-vs-ep")
@pytest.mark.xfail(strict=True, reason=MISSED_FIGURES["swift-q30-zero3-vs-ep"])
def test_step_of_spread_experts(report: Any) -> None:
    """9.6 s within 40%."""
    judged = q30(report)["tp2ep8"]
    assert judged.estimate is not None
    assert report.near(judged.estimate.step_time_s, "step_s")


def titan_8b(report: Any) -> Judgement:
    """The report's layout with torchtitan's selective checkpointing, on a healthy network; whole logits, as in 2024."""
    workload = report.workload(batch=report.case["layout"]["gbs"], loss_chunks=1)
    judged: Judgement = report.judge(workload, report.cluster(), report.layout(recompute="op"))
    assert judged.verdict in RUNS
    return judged


@pytest.mark.report("ti708-8b-32h100")
def test_what_a_healthy_network_gives(report: Any) -> None:
    """At least 5,500 tokens/s per GPU where the report had 1,786 on a network at a fifth of its rate."""
    judged = titan_8b(report)
    assert judged.estimate is not None
    assert judged.estimate.tokens_per_s_per_gpu >= report.check["tok_s_gpu_ge"]


@pytest.mark.report("ti708-8b-32h100")
@pytest.mark.xfail(strict=True, reason=DISAGREES["ti708-8b-32h100"])
def test_memory_of_sharded_eight_billion(report: Any) -> None:
    """26.5 GiB within 15%."""
    judged = titan_8b(report)
    assert judged.estimate is not None
    assert report.near(judged.estimate.memory.peak_bytes / GIB, "mem_gib")


def test_at_least_95_percent_agree(cases: dict[str, dict[str, Any]]) -> None:
    """Every report that can be computed has a test, and those that disagree are few and named."""
    computable = {name for name, case in cases.items() if case["computable"] in ("yes", "rule-only")}
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_cases*.py")]
    tested = {name for text in sources for name in re.findall(r'@pytest\.mark\.report\("([^"]+)"\)', text)}
    assert computable <= tested
    assert set(DISAGREES) <= computable
    assert 1 - len(DISAGREES) / len(computable) >= LEAST_SHARE
