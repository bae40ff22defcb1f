"""Tiny training jobs whose collectives torch's own APIs call, beside those that we count for the same layouts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.ask.load import load_cluster
from layoutopt.optimizer.cost.schedules import in_flight
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision, Schedule
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.solve.plan import Judgement

Job = dict[str, Any]
Calls = list[list[Any]]
"""Rows of axis, kind, members, bytes and count, sorted."""

SIZES = {"hidden": 64, "heads": 8, "kv_heads": 4, "ffn": 128, "vocab": 256, "sequence": 48}
SPARSE = {"experts": 8, "top_k": 2, "expert_ffn": 96}
OPEN = {
    "tp": 1,
    "cp": 1,
    "ep": 1,
    "experts": 0,
    "pp": 1,
    "dp": 1,
    "vp": 1,
    "zero": 3,
    "micro_batch": 8,
    "micro_batches": 2,
    "schedule": "none",
}


def job(**own: Any) -> Job:
    """A job; what is open is 1, ZeRO-3 over all data-parallel ranks, two micro-batches."""
    made = {"backend": "gloo", **SIZES, **OPEN, **own}
    made.setdefault("shard", made["dp"] if made["zero"] else 1)
    made.setdefault("layers", [1] * made["pp"] * made["vp"] if made["pp"] > 1 else [3])
    made["world"] = made["tp"] * made["cp"] * made["pp"] * made["dp"]
    return made


JOBS = (
    job(dp=2, micro_batches=1),
    job(dp=4, micro_batches=3),
    job(dp=4, zero=2, micro_batches=3),
    job(dp=4, shard=2, micro_batches=3),
    job(dp=4, shard=2, zero=2),
    job(dp=4, zero=0),
    job(tp=2, dp=2),
    job(tp=2, dp=2, zero=2, micro_batch=2),
    job(tp=2, dp=4, shard=2),
    job(tp=4, dp=2, micro_batches=1),
    job(pp=2, dp=2, schedule="gpipe", layers=[2, 1]),
    job(pp=2, dp=2, schedule="1f1b", micro_batches=4, layers=[1, 2]),
    job(pp=4, dp=2, schedule="1f1b", micro_batches=6, zero=2),
    job(pp=2, dp=4, shard=2, schedule="1f1b", micro_batches=4),
    job(pp=2, vp=2, dp=2, schedule="interleaved", micro_batches=4),
    job(pp=2, vp=2, dp=2, schedule="interleaved", micro_batches=4, zero=0),
    job(tp=2, pp=2, dp=2, schedule="1f1b", micro_batches=4, layers=[2, 1]),
    job(tp=2, pp=2, vp=2, dp=2, schedule="interleaved", micro_batches=4, zero=2),
    job(pp=2, vp=2, dp=2, schedule="zb-v", micro_batches=4),
    job(cp=2, dp=2),
    job(cp=4, dp=2),
    job(cp=2, tp=2, dp=2, micro_batches=1),
    job(cp=2, pp=2, dp=2, schedule="1f1b", micro_batches=4),
    job(**SPARSE, ep=2, dp=2),
    job(**SPARSE, ep=2, dp=4),
    job(**SPARSE, ep=4, dp=8, zero=2),
    job(**SPARSE, ep=4, cp=2, dp=2),
    job(**SPARSE, ep=2, pp=2, dp=4, schedule="1f1b", micro_batches=4),
    job(backend="fake", cp=4, dp=8, hidden=256, heads=16, kv_heads=8, ffn=512),
    job(backend="fake", **{**SPARSE, "experts": 32}, ep=8, cp=2, dp=16, sequence=128),
    job(backend="fake", tp=8, dp=8, hidden=256, heads=16, kv_heads=8, ffn=512),
    job(backend="fake", tp=2, dp=16, shard=4, micro_batches=2),
    job(backend="fake", pp=8, dp=8, schedule="1f1b", micro_batches=8),
    job(backend="fake", pp=4, vp=2, dp=4, schedule="interleaved", micro_batches=8, zero=0),
)
"""Layouts of the process job and, too large for it, of the fake back-end."""


def workload_of(one: Job) -> Workload:
    """The job's model and batch."""
    sparse = bool(one["experts"])
    layer = LayerShape(mlp=Mlp.MOE) if sparse else LayerShape(ffn=one["ffn"])
    moe = MoeSpec(experts=one["experts"], top_k=one["top_k"], ffn=one["expert_ffn"]) if sparse else None
    model = ModelSpec(
        name="tiny",
        hidden=one["hidden"],
        heads=one["heads"],
        kv_heads=one["kv_heads"],
        head_dim=one["hidden"] // one["heads"],
        vocab=one["vocab"],
        moe=moe,
        runs=(Run(name="dense", block=(layer,), count=sum(one["layers"])),),
    )
    batch = one["dp"] * one["micro_batch"] * one["micro_batches"]
    training = TrainingSpec(
        sequence_length=one["sequence"], global_batch=batch, precision=Precision.BF16, moe_imbalance=1.0
    )
    return Workload(model=model, training=training)


def layout_of(one: Job) -> Layout:
    """The job's layout."""
    pp, vp = one["pp"], one["vp"]
    last = pp if one["schedule"] == "zb-v" else pp * vp - 1
    stages = [
        VirtualStage(
            rank=entry % pp, chunk=entry // pp, layers=layers, embedding=entry == 0, head=entry == last
        )
        for entry, layers in enumerate(one["layers"])
    ]
    return Layout(
        tp=one["tp"],
        sp=one["tp"] > 1,
        cp=one["cp"],
        ep=one["ep"],
        pp=pp,
        vp=vp,
        dp=one["dp"],
        zero=one["zero"],
        hsdp_shard=one["shard"] if 1 < one["shard"] < one["dp"] else None,
        micro_batch=one["micro_batch"],
        micro_batches=one["micro_batches"],
        schedule=Schedule(one["schedule"]),
        stages=tuple(stages),
    )


def eager(one: Job) -> FrameworkPreset:
    """What torchtitan keeps where its blocks and its loss are not compiled, as in the jobs.

    ``torch.nn.RMSNorm`` keeps its input and the normalised one in 32 bits, a gated MLP its product's parts. The loss's
    backward pass holds its output, the gradient of it and its own, 32 bits each; over a split vocabulary it takes the
    exponential of the output anew (torch/distributed/tensor/parallel/loss.py); a pipeline stage still has its logits.
    """
    logit_bytes = 12 + 4 * (one["tp"] > 1) + 2 * (one["pp"] > 1)
    plain = load_preset(Framework.TORCHTITAN)
    return replace(
        plain, norm_bytes=8, fused_function=False, logit_bytes=logit_bytes, loss_chunks=1, compiled=False
    )


def judged(one: Job) -> Judgement:
    """The job as torchtitan would train it."""
    cluster = load_cluster(f"h100x{max(one['world'], 8)}")
    options: dict[str, Any] = {"framework": Framework.TORCHTITAN, "preset": eager(one)}
    return judge_layout(workload_of(one), cluster, layout_of(one), **options)


def counted(one: Job) -> list[Calls]:
    """What we count for every pipeline rank of a job."""
    found: list[Counter[tuple[str, str, int, int]]] = [Counter() for _ in range(one["pp"])]
    for call in judged(one).collectives:
        found[call.stage][(call.axis, call.kind, call.ranks, call.bytes)] += call.count
    return [sorted([*key, count] for key, count in calls.items()) for calls in found]


def alive(one: Job) -> list[dict[str, float]]:
    """Bytes that are alive at once on every pipeline rank: in the loss's backward pass, and in a block's.

    Of the parts that a rank needs at most, each as it is priced: logits are gone when a block runs backward, and what
    a block takes while it runs isn't there yet when the loss does. With one micro-batch no gradient exists at either, nor in
    GPipe's first backward pass, which is the fullest.
    """
    priced = judged(one).estimate
    assert priced is not None
    first_of_all = one["micro_batches"] == 1 or one["schedule"] == "gpipe"
    found = []
    for stage, memory in enumerate(priced.memory.stages):
        part = defaultdict(float, memory.components_bytes)
        held = sum(part[name] for name in ("weights", "optimizer", "activations", "receive", "outputs"))
        held += beside(one, stage) + (0.0 if first_of_all else part["gradients"])
        if one["schedule"] == "gpipe" and stage:  # no gradient was sent yet
            held -= 2.0 * stream(one)
        at = {"block": held + part["delayed"] + at_work(one, stage)}
        if one["schedule"] == "zb-v":
            at["block"] += of_v_shape(one, stage, part["logits"])
        if part["logits"]:
            head = 2.0 * one["hidden"] * (one["vocab"] / one["tp"] + 1) * streams(one)
            if one["tp"] > 1:  # positions in the split vocabulary, and the targets
                head += (32.0 + 8.0 * (one["pp"] == 1)) * row_tokens(one)
            losses = one["micro_batches"] if one["schedule"] == "gpipe" else 1
            at["loss"] = held + part["logits"] + head + losses * statistic(one)
        found.append(at)
    return found


def of_v_shape(one: Job, stage: int, logits_bytes: float) -> float:
    """What ranks of ZB-V hold more or less in a block's backward pass for inputs than is priced.

    The last stage's loss lies in it, with the 16-bit gradient of the logits for the gradients 32 bits wide, and its norm's;
    no weight gradients of that head are there in 16 bits yet, nor ever the first stage's, which runs backward whole. At the
    turn what one stage puts out lies in the buffers that the next one receives in.
    """
    if stage:
        return -2.0 * float(one["pp"]) * stream(one) * float(stage == one["pp"] - 1)
    ends = 2.0 * float(one["hidden"] * one["vocab"])
    found = logits_bytes - 6.0 * row_tokens(one) * float(one["vocab"]) + statistic(one) + 6.0 * stream(one)
    return found - 2.0 * (parameters(one) * float(one["layers"][0]) + ends)


def parameters(one: Job) -> float:
    """Matrices of a dense block on a rank."""
    hidden = one["hidden"]
    attention = 2 * hidden * (hidden + one["kv_heads"] * hidden // one["heads"])
    return float(attention + 3 * hidden * one["ffn"]) / float(one["tp"])


def streams(one: Job) -> bool:
    """Whether a unit's weights are gathered for it alone."""
    return bool(one["zero"] == 3 and one["pp"] == 1)


def row_tokens(one: Job) -> float:
    """Tokens of a micro-batch on a rank of the tensor-parallel group."""
    return float(one["micro_batch"] * one["sequence"]) / float(one["cp"])


def stream(one: Job) -> float:
    """Elements between two blocks on a rank."""
    return row_tokens(one) / float(one["tp"]) * float(one["hidden"])


def statistic(one: Job) -> float:
    """What a norm keeps of every token, 32 bits."""
    return 4.0 * row_tokens(one) / float(one["tp"])


def beside(one: Job, stage: int) -> float:
    """Small tensors that no price holds: norms' statistics, a step's tokens on both ends, positions of routed rows.

    Of a routed row two orders and a token, 64 bits each, of which 4 bytes are priced.
    """
    pp, vp, m = one["pp"], one["vp"], one["micro_batches"]
    sizes = (np.array([size]) for size in (pp, vp, m))
    flight = float(in_flight(Schedule(one["schedule"]), *sizes)[0, stage])
    layers = flight * float(sum(one["layers"][stage::pp]))
    rows = row_tokens(one) * float(one["top_k"]) if one["experts"] else 0.0
    ends = (stage == 0) + (pp > 1 and stage == (0 if one["schedule"] == "zb-v" else pp - 1))
    step = float(ends * (m if pp > 1 else 1)) * row_tokens(one)
    return layers * (2 * statistic(one) + 20.0 * rows) + 8.0 * step


def at_work(one: Job, stage: int) -> float:
    """What the fullest moment of an eager block's backward pass takes beside what the block kept.

    Of an MLP: gradients of the product and of both its parts, the product itself gone, and the last matrix's gradient;
    of experts: their output in 32 bits with its gradient and that of the weighted one, which is there in 16 bits too.
    Over tensor parallelism a forward pass may be the fullest: an MLP's output, once more as it is scattered, and the parts
    that are scattered, normed and added up, and the block's input inside of a stage.
    Where weight gradients run apart the first norm is the fullest, behind all: five 32-bit tensors of the stream's size and
    two for the norms' weights, a 16-bit one. Streamed weights are there for two units, and the gradients that the
    unit before, the head's or a block's, is reduced from.
    """
    tokens, hidden, tp = row_tokens(one), float(one["hidden"]), float(one["tp"])
    if one["schedule"] == "zb-v":
        return (4.0 * 7 + 2.0) * stream(one)
    if one["experts"]:
        working = 14.0 * tokens * float(one["top_k"]) * hidden
    else:
        working = (4.0 * tokens + 2.0 * hidden) * float(one["ffn"]) / tp
    if tp > 1:
        inside = max(one["layers"][stage :: one["pp"]]) > 1
        working = max(working, 4.0 * tokens * hidden + (4.0 + 2.0 * inside) * stream(one))
    head = hidden * float(one["vocab"]) / tp
    return working + streams(one) * 4.0 * (parameters(one) + head)


def states(one: Job) -> list[dict[str, int]]:
    """Bytes that every pipeline rank of a job keeps between backward pass and optimizer step.

    Where weights stay gathered over the step, and gradients whole in it, what is kept is the optimizer's share.
    """
    priced = judged(one).estimate
    assert priced is not None
    lasting = one["zero"] == 3 and one["pp"] == 1
    names = ("weights", "gradients", "optimizer") if lasting else ("optimizer",)
    return [{name: round(stage.components_bytes[name]) for name in names} for stage in priced.memory.stages]
