"""Public reports that turn on a validity rule: the verdict, the rule's name, and what is offered instead."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.complete import complete_layout
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.megatron_bridge.read import import_recipe_command
from layoutopt.optimizer.solve.explain.api import explain_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.check import advise_layout
from layoutopt.optimizer.space.context import RunOptions
from layoutopt.optimizer.space.rules.flags import padded_vocabulary
from layoutopt.optimizer.space.rules.layers import uneven_ends
from layoutopt.optimizer.space.rules.products import valid_micro_batches
from layoutopt.optimizer.space.rules.sequence import sequence_multiple
from layoutopt.optimizer.specs.loading import parse_layout
from layoutopt.optimizer.specs.vocabulary import CpComm, Verdict

SMALL = {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 32000}
"""Dimensions of reports whose finding does not depend on them."""
GPT_OSS: dict[str, Any] = {
    "hidden": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64, "vocab": 201088,
    "moe": {"experts": 32, "top_k": 4, "ffn": 2880},
}  # fmt: skip
EXPERTS: dict[str, Any] = {"moe": {"experts": 256, "top_k": 8, "ffn": 2048}}


def fill(report: Any, **known: Any) -> dict[str, Any]:
    """Complete the dimensions that a report leaves out."""
    stated = report.case["model"]
    return {name: value for name, value in SMALL.items() if name not in stated} | known


def broken(
    report: Any, layout: str, gpus: int, *, batch: int = 64, seq: int | None = None, **more: Any
) -> dict[str, Any]:
    """Judge a layout; return its broken rules by name, and check the verdict that follows from them."""
    asked = {name: more.pop(name) for name in ("run", "software", "framework") if name in more}
    gpu = more.pop("gpu", "h100")
    stated = report.case["model"].get("seq")
    length = seq or (stated if isinstance(stated, int) else 4096)
    workload = report.workload(batch=batch, seq=length, **fill(report, **more))
    judged = report.judge(workload, report.cluster(gpus, gpu), layout, **asked)
    assert (judged.verdict is Verdict.INVALID) == bool(judged.broken)
    return {rule.rule: rule for rule in judged.broken}


@pytest.mark.report("ds3634-heads52-tp8")
def test_heads_that_tp_cannot_split_by_release(report: Any) -> None:
    """The release of the report refuses 52 heads on 8 ranks and names what works; uneven shards came later (#4697)."""
    found = broken(report, "tp=8", 8, software="0.9.4")
    assert list(found[report.check["rule"]].valid["tp"]) == report.check["valid_tp"]
    assert report.check["rule"] not in broken(report, "tp=8", 8)


@pytest.mark.report("adapt1-heads28-tp8")
def test_heads_that_tp_cannot_split(report: Any) -> None:
    """28 heads on tp 8; of the degrees on one node 1, 2 and 4 work."""
    found = broken(report, report.layout(), 8, ffn=18944, vocab=152064)
    assert [tp for tp in found[report.check["rule"]].valid["tp"] if tp <= 8] == [1, 2, 4]


@pytest.mark.report("swift8219-kv2-tp8")
def test_key_value_heads_by_release(report: Any) -> None:
    """core 0.15 refuses tp 8 with two key-value heads; core 0.16 repeats them, which is worth a warning."""
    assert report.check["rule"] in broken(report, report.layout(), 16)
    assert broken(report, report.layout(), 16, software="core 0.16") == {}
    workload = report.workload(batch=64, seq=4096, **fill(report))
    layout = parse_layout(report.layout()).complete(workload, report.cluster(16, "h100"))
    advice = advise_layout(
        layout, workload.model, workload.training, report.cluster(16, "h100"), report.framework, "core 0.16"
    )
    assert report.check["rule"] in {rule.rule for rule in advice}


@pytest.mark.report("mlm468-80l-pp16vp2")
def test_layers_are_never_dropped(report: Any) -> None:
    """80 layers in 32 chunks is refused, and 1 and 5 chunks per rank are offered."""
    found = broken(report, report.layout(), 16)
    assert list(found[report.check["rule"]].valid["vp"]) == report.check["suggest_vp"]


@pytest.mark.report("swift5737-46l-pp4")
def test_layers_that_pp_cannot_split(report: Any) -> None:
    """46 layers on 4 stages: pp 2 and 23 divide, uneven ends work, and the stages 11/12/12/11 run when listed."""
    known = {"head_dim": 128, "ffn": 10944, "vocab": 151552}
    found = broken(report, report.layout() + ",recompute=full", 64, batch=16, **known)
    rule = found[report.check["rule"]]
    assert {2, 23} <= set(rule.valid["pp"])
    assert sum(uneven_ends(46, 4, 1)) == 46 and "uneven ends that work: " in rule.message
    listed = broken(
        report, report.layout(stages="Et*11|t*12|t*12|t*11L") + ",recompute=full", 64, batch=16, **known
    )
    assert listed == {}


@pytest.mark.report("bridge5884-60l-pp8")
def test_uneven_ends_are_offered(report: Any) -> None:
    """60 layers on 8 stages of 4 chunks: 4 on the first stage and 8 on the others is what works."""
    found = broken(report, report.layout(), 8)
    assert report.check["rule"] in found
    assert list(uneven_ends(60, 8, 4)) == report.check["suggest"]
    assert "/".join(map(str, report.check["suggest"])) in found[report.check["rule"]].message


@pytest.mark.report("speech14288-pp6-m3")
def test_interleaving_needs_a_micro_batch_per_stage(report: Any) -> None:
    """3 micro-batches on 6 stages; the message shows where the 3 comes from."""
    found = broken(report, "pp=6,vp=2", 6, batch=3, layers=36)
    assert "m = 3 / (micro-batch 1 x dp 1)" in found[report.check["rule"]].message


@pytest.mark.report("ti775-pp8-hang")
def test_torchtitan_needs_a_micro_batch_per_stage(report: Any) -> None:
    """Fewer micro-batches than stages are refused before they hang."""
    found = broken(report, report.layout(), 8, batch=4)
    assert 4 in found[report.check["rule"]].valid["pp"]


@pytest.mark.report("ds823-pp-zero2")
def test_pipeline_engine_excludes_zero_2(report: Any) -> None:
    """With the pipeline engine named, ZeRO-2 and 3 are refused even at pp 1, with ZeRO-1 offered; without it they run."""
    known = {"ffn": 4096, "vocab": 50257, "tied_embeddings": True}
    for zero in (2, 3):
        layout = report.layout(zero=zero)
        found = broken(report, layout, 4, batch=4, run=RunOptions(pipeline_module=True), **known)
        assert found[report.check["rule"]].valid["zero"] == (0, 1)
        assert report.check["rule"] not in broken(report, layout, 4, batch=4, **known)


@pytest.mark.report("speech14838-etp")
def test_every_violation_at_once(report: Any) -> None:
    """The expert product with another etp and the chunks that don't divide are named together; etp 1 mends the product."""
    found = broken(report, "tp=1,pp=2,ep=2,etp=2,vp=24,mb=1", 4, batch=512, **GPT_OSS)
    assert set(report.check["rules"]) <= set(found)
    assert "etp 2 x ep 2 x pp 2 = 8" in found["expert_world_product"].message
    assert "expert_world_product" not in broken(
        report, "tp=1,pp=2,ep=2,etp=1,vp=24,mb=1", 4, batch=512, **GPT_OSS
    )


@pytest.mark.report("bridge546-etp-default")
def test_expert_tensor_degree_is_written_out(report: Any) -> None:
    """ep 4 with etp 1 on 4 GPUs is valid, the older default etp = tp is not, and exports state etp."""
    layout = report.layout(sp=1)
    assert broken(report, layout, 4) == {}
    assert report.check["rule"] in broken(report, report.layout(sp=1, etp=4), 4)
    workload = report.workload(batch=64, seq=4096)
    whole = parse_layout(layout).complete(workload, report.cluster(4, "h100"))
    job = export(whole, workload, report.cluster(4, "h100"), "megatron-bridge")
    written = job.files["launch.sh"]
    assert "-etp 1 " in written
    assert complete_layout(import_recipe_command(written, ""), model=workload.model).etp == 1


@pytest.mark.report("rl3563-seq-factor")
def test_sequence_factor_of_context_and_sequence_parallelism(report: Any) -> None:
    """Multiples of cp * lcm(2, tp) are valid, half of them are not."""
    heads = {"heads": 48, "hidden": 6144, "ffn": 24576, "vocab": 32256}
    for tp, cp, factor in report.check["examples"]:
        assert sequence_multiple(tp, cp, sp=True) == factor
        layout = f"tp={tp},cp={cp},sp=1"
        assert report.check["rule"] not in broken(report, layout, 4 * tp * cp, seq=3 * factor, **heads)
        assert report.check["rule"] in broken(report, layout, 4 * tp * cp, seq=3 * factor // 2, **heads)


@pytest.mark.report("verl1226-ulysses")
def test_degrees_of_head_scattering(report: Any) -> None:
    """Heads must divide and key-value heads divide or be repeated."""
    run, free = RunOptions(cp_comm=CpComm.A2A), Framework.ANY
    degrees = [
        cp
        for cp in range(1, report.case["model"]["heads"] + 1)
        if "ulysses_heads" not in broken(report, f"cp={cp}", cp, run=run, framework=free)
    ]
    assert degrees == report.check["valid"]


@pytest.mark.report("ti1184-cp-dp")
def test_context_and_shards_multiply(report: Any) -> None:
    """dp_shard 8 with cp 8 needs 64 GPUs; on 8 the shard degree is 1."""
    found = broken(report, "dp=8,cp=8,tp=1,pp=1", 8)
    assert found[report.check["rule"]].valid["dp"] == (1,)


@pytest.mark.report("modelopt1302-replicate")
def test_replicas_are_filled_in(report: Any) -> None:
    """4 shards on 8 processes are refused; the export of 2 replicas of 4 shards writes both degrees."""
    assert report.check["rule"] in broken(report, "dp=4", 8)
    workload = report.workload(batch=64, seq=4096, **fill(report))
    layout = parse_layout("dp=8,zero=3,hsdp_shard=4").complete(workload, report.cluster(8, "h100"))
    written = "\n".join(export(layout, workload, report.cluster(8, "h100"), "accelerate").files.values())
    assert "parallelism_config_dp_replicate_size: 2" in written
    assert "parallelism_config_dp_shard_size: 4" in written


@pytest.mark.report("finetrainers408-hsdp42")
def test_replicas_and_shards_multiply(report: Any) -> None:
    """4 replicas of 2 shards on 2 GPUs."""
    assert report.check["rule"] in broken(report, "dp=8,hsdp_shard=2,zero=3", 2)


@pytest.mark.report("speech11480-world1")
def test_launched_processes_are_what_counts(report: Any) -> None:
    """One process for a product of 2 on a node of 8 GPUs; the message shows both numbers."""
    found = broken(report, "tp=2", 8, run=RunOptions(processes=1))
    message = found[report.check["rule"]].message
    assert "1 GPUs are launched" in message and "tp x cp x pp = 2" in message


@pytest.mark.report("mosaic41-gbs")
def test_the_batch_is_never_rounded(report: Any) -> None:
    """65 sequences on 8 replicas are refused, and 64 and 72 are offered."""
    found = broken(report, "dp=8", 8, batch=65)
    assert "nearest global batches: 64, 72" in found[report.check["rule"]].message


@pytest.mark.report("ds8395-mbs-per-dp")
def test_the_batch_divides_by_replicas(report: Any) -> None:
    """64 sequences on 16 GPUs: model parallelism leaves fewer replicas and more for each."""
    layout = report.case["layout"]
    for group, size in report.check["expected_mbs"].items():
        dp = report.case["cluster"]["n_gpus"] // group
        assert max(valid_micro_batches(layout["gbs"], dp, allowed=(4, 8))) == size


@pytest.mark.report("bridge1331-vocab-tp")
def test_vocabulary_is_padded_not_refused(report: Any) -> None:
    """151,669 rows on tp 4 are padded to 152,064 with a warning; a fixed size is refused."""
    assert padded_vocabulary(151669, 4) == report.check["padded"]
    workload = report.workload(batch=64, seq=4096, **fill(report))
    found = explain_layout(
        workload,
        report.cluster(4, "h100"),
        parse_layout("tp=4"),
        SolveOptions(framework=report.framework),
        compare=False,
    )
    assert report.check["rule"] in {rule.rule for rule in found.advice}
    assert broken(report, "tp=4", 4) == {}
    assert report.check["rule"] in broken(report, "tp=4", 4, run=RunOptions(exact_vocab=True))


@pytest.mark.report("bridge6043-ep64-nvl8")
def test_a_dispatcher_that_needs_one_nvlink_domain(report: Any) -> None:
    """ep 64 over nodes of 8 is refused with hybridep alone; in an NVL72 domain, or with another dispatcher, it runs.

    So were containers up to core 0.16 built; later ones exchange between whole domains.
    """
    rule, hybrid = report.check["rule"], RunOptions(dispatcher="hybridep")
    older: dict[str, Any] = {"software": "core 0.16", "run": hybrid} | EXPERTS
    assert rule in broken(report, report.layout(), 64, gpu="b200", **older)
    assert rule not in broken(report, report.layout(), 64, gpu="b200", run=hybrid, **EXPERTS)
    assert rule not in broken(report, report.layout(), 64, gpu="gb200", run=hybrid, **EXPERTS)
    assert rule not in broken(
        report, report.layout(), 64, gpu="b200", run=RunOptions(dispatcher="deepep"), **EXPERTS
    )
