"""The model's ends, and tensor- and expert-parallel traffic, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.wire import Wire

from layoutopt.optimizer.cost import work
from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.communication import (
    context_parallel,
    split_heads_bytes,
    tensor_parallel,
    tp_pairs,
)
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.ends import embedding_unit, head_unit, mtp_unit, vocabulary_rows
from layoutopt.optimizer.cost.expert_exchange import (
    HOPPER_SMS,
    all_to_all_bytes,
    counts_awaited_s,
    expert_parallel,
    routed_bytes,
)
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.work import Work
from layoutopt.optimizer.frameworks.preset import EpOverlap, load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp
from layoutopt.optimizer.specs.vocabulary import CpComm, Dispatcher, Fp8Recipe, FrozenPart, Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.communication import CommContext

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x64")
EXPERTS = load_workload("deepseek-v3").model
H, TOKENS = 4096, 2 * 2048
DENSE = LayerShape(ffn=14336)
SENT = 2 * TOKENS * H
"""Hidden states of a micro-batch of two sequences on one of two context ranks."""


def comm_of(
    *, tp: int = 4, sp: bool = True, ep: int = 1, etp: int = 1, model: Any = WORKLOAD.model,
    training: dict[str, Any] | None = None, rates: dict[str, Any] | None = None, paired: bool = False, **switches: Any,
) -> CommContext:  # fmt: skip
    """The context of layers on 64 GPUs, over a network that counts."""
    preset = replace(load_preset(Framework.MEGATRON), **switches)
    cost = build_cost_model(model, replace(WORKLOAD.training, **training or {}), CLUSTER, preset=preset)
    layout = Layout(tp=tp, sp=sp, cp=2, dp=32 // tp, ep=ep, etp=etp, micro_batch=2, micro_batches=8)
    comm = cost.comm_context(batch_of_one(layout), layout.mesh_order)
    changed: dict[str, Any] = {"topology": Wire(), "paired": paired}
    return replace(
        comm, compute=replace(comm.compute, rates=replace(comm.compute.rates, **rates or {})), **changed
    )


def one(value: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One row."""
    return np.array([float(value)])


def numbers(*arrays: Any) -> list[float]:
    """The values of the one row."""
    return [float(np.ravel(array)[0]) for array in arrays]


@pytest.mark.parametrize(("vocab", "tp", "padded", "rows"), [
    (128_256, 4, True, 32_128), (100_001, 2, True, 50_048), (100_001, 2, False, 50_000.5), (128, 1, True, 128),
])  # fmt: skip
def test_rows_of_the_vocabulary(vocab: int, tp: int, padded: bool, rows: float) -> None:
    """Every rank has a multiple of 128."""
    comm = comm_of(tp=tp, model=replace(WORKLOAD.model, vocab=vocab), pad_vocab=padded)
    assert numbers(vocabulary_rows(comm)) == [rows]


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that count bytes alone."""
    monkeypatch.setattr(work, "gemm_s", lambda _, rows, *__, **___: 0.0 * np.asarray(rows))
    monkeypatch.setattr(work, "memory_bound_s", lambda _, moved: np.asarray(moved))


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that count products alone."""
    monkeypatch.setattr(work, "gemm_s", lambda _, rows, columns, inner, **__: rows * columns * inner)
    monkeypatch.setattr(work, "memory_bound_s", lambda _, moved: 0.0 * np.asarray(moved))


@pytest.mark.usefixtures("traffic")
@pytest.mark.parametrize(("sp", "frozen", "backward"), [
    (True, (), 8), (False, (), 8), (True, (FrozenPart.EMBEDDING,), 0), (True, (FrozenPart.OUTPUT,), 8),
])  # fmt: skip
def test_the_embeddings_bytes(sp: bool, frozen: tuple[FrozenPart, ...], backward: float) -> None:
    """4 an element forward, 8 for its gradient where it has one; a scatter there and a gather back, or a sum."""
    unit = embedding_unit(comm_of(sp=sp, training={"frozen": frozen}))
    wire = (1100 if sp else 10_000) * SENT
    assert numbers(*(unit.parts_s[part] for part in (Component.FORWARD, Component.BACKWARD, Component.TP))) == [
        4 * TOKENS * H, backward * TOKENS * H, wire,
    ]  # fmt: skip
    assert numbers(unit.forward_s, unit.wgrad_s, unit.activation_bytes) == [4 * TOKENS * H + wire / 2, 0, 0]
    total = (4 + backward) * TOKENS * H + wire
    assert unit.operations_s.tolist() == [[4 * TOKENS * H + wire / 2, total - 4 * TOKENS * H - wire / 2, 0]]


def test_the_simple_model_multiplies_the_embedding() -> None:
    """2 FLOPs a weight and token forward, twice that backward, no traffic."""
    comm = comm_of(rates={"ideal": True, "wide_flops_per_s": 2.0})
    unit = embedding_unit(comm)
    weights = H * 32_128
    assert numbers(*(unit.parts_s[part] for part in (Component.FORWARD, Component.BACKWARD, Component.TP))) == [
        TOKENS * weights, 2 * TOKENS * weights, 0,
    ]  # fmt: skip
    head = head_unit(comm)
    assert numbers(head.parts_s[Component.FORWARD], head.parts_s[Component.TP]) == [TOKENS * weights, 0]
    assert numbers(head.activation_bytes, head.waiting_bytes) == [0, 0]


ROWS = 32_128


@pytest.mark.usefixtures("traffic")
@pytest.mark.parametrize(("splits", "fused", "passes"), [(True, True, 1), (True, False, 2), (False, True, 1)])
def test_the_heads_bytes(splits: bool, fused: bool, passes: int) -> None:
    """Norm and loss, half of the loss each way; three sums of 4 bytes a token, or a gather of all logits in 16 bits."""
    comm = comm_of(splits_loss=splits, fused_loss=fused, adds_gradients=False, fused_norm=True)
    unit = head_unit(comm, passes)
    lost = TOKENS * (ROWS if splits else 4 * ROWS)
    logit = comm.compute.constants["loss_traffic_fused" if fused else "loss_traffic_unfused"]
    wire = 1100 * SENT + (3 * 10_000 * 4 * TOKENS if splits else 100 * 2 * lost)
    forward = lost * logit / 2 + TOKENS / 4 * H * 10
    backward = lost * logit / 2 + TOKENS / 4 * H * 14
    found = numbers(*(unit.parts_s[part] for part in (Component.FORWARD, Component.BACKWARD, Component.TP)))
    assert found == pytest.approx([passes * forward, passes * backward, passes * wire], rel=1e-12)
    assert numbers(unit.forward_s, unit.wgrad_s) == pytest.approx(
        [passes * (forward + wire / 2), 0], rel=1e-12
    )


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize(
    ("frozen", "passes"), [((), 1), ((), 3), ((FrozenPart.OUTPUT,), 1), ((FrozenPart.EMBEDDING,), 2)]
)
def test_the_heads_products(frozen: tuple[FrozenPart, ...], passes: int) -> None:
    """Tokens times a rank's words; no gradient of a frozen matrix."""
    unit = head_unit(comm_of(training={"frozen": frozen}), passes)
    product, trained = TOKENS * ROWS * H, FrozenPart.OUTPUT not in frozen
    assert numbers(unit.parts_s[Component.FORWARD]) == [passes * product]
    assert numbers(unit.parts_s[Component.BACKWARD]) == [passes * product * (2 if trained else 1)]
    assert numbers(unit.wgrad_s) == [passes * product * trained]


@pytest.mark.parametrize(("switches", "logit", "waiting"), [
    ({"fused_loss": True}, 2, 2), ({"fused_loss": False, "logit_bytes": 10, "keep_gathered_with_pp": False}, 10, 4),
    ({"fused_loss": False, "logit_bytes": 10, "keep_gathered_with_pp": True}, 10, 6),
    ({"fused_loss": True, "splits_loss": False}, 2 + 2, 2), ({"fused_loss": True, "loss_chunks": 8}, 2, 0),
])  # fmt: skip
def test_what_the_head_keeps(switches: dict[str, Any], logit: float, waiting: float) -> None:
    """Logits, gathered ones beside their parts; in chunks one chunk's and the gradient of the input; norm and input."""
    comm = comm_of(**switches | {"keeps_gathered_inputs": True, "norm_bytes": 2.0})
    unit = head_unit(comm)
    lost = TOKENS * (ROWS if switches.get("splits_loss", True) else 4 * ROWS)
    chunks = switches.get("loss_chunks", 1)
    gradient = SENT if chunks > 1 else 0
    inputs = (2 * TOKENS / 4 + 2 * TOKENS) * H
    assert numbers(unit.activation_bytes) == [logit * lost / chunks + gradient + inputs]
    assert numbers(unit.waiting_bytes) == [waiting * lost + gradient + inputs]


@pytest.mark.usefixtures("products")
def test_a_prediction_layer() -> None:
    """A block, and a projection of twice the width on sharded tokens, which keeps 8 bytes an element."""
    block = SimpleNamespace(
        parts_s={Component.FORWARD: one(7), Component.BACKWARD: one(11), Component.TP: one(13)},
        forward_s=one(8), wgrad_s=one(3), kept_bytes=one(5),
    )  # fmt: skip
    unit = mtp_unit(comm_of(), block)  # type: ignore[arg-type]
    product = TOKENS / 4 * H * 2 * H
    assert numbers(unit.parts_s[Component.FORWARD], unit.parts_s[Component.BACKWARD]) == [
        7 + product,
        11 + 2 * product,
    ]
    assert numbers(unit.forward_s, unit.wgrad_s, unit.total_s) == [8 + product, 3 + product, 31 + 3 * product]
    assert numbers(unit.activation_bytes, unit.waiting_bytes) == [5 + 8 * TOKENS / 4 * H] * 2


GATHER, SCATTER, SUM = 100 * SENT, 1000 * SENT, 10_000 * SENT


def named(**seconds: tuple[float, float, float]) -> dict[str, Work]:
    """Parts of a layer's work."""
    return {name: Work(*(one(part) for part in parts)) for name, parts in seconds.items()}


@pytest.mark.parametrize(("sp", "switches", "parts", "forward", "backward", "again"), [
    (True, {}, {}, 2 * (GATHER + SCATTER), 2 * (2 * GATHER + SCATTER), 2 * GATHER + SCATTER),
    (True, {"tp_async_backward": False}, {}, 2 * (GATHER + SCATTER), 2 * (GATHER + SCATTER), 2 * GATHER + SCATTER),
    (False, {}, {}, 2 * SUM, 2 * SUM, SUM),
    (False, {"tp_async_backward": False}, {"qkv": (0, 0, SUM)}, 2 * SUM, 2 * SUM, SUM),
    (True, {}, {"qkv": (1, GATHER, SCATTER)}, 2 * (GATHER + SCATTER), 2 * (GATHER + GATHER / 2 + SCATTER / 2),
     2 * GATHER + SCATTER),
    (True, {}, {"qkv": (1, GATHER, 0), "mlp": (1, GATHER, 3 * SCATTER), "norm": (9, 9, 9)}, 2 * (GATHER + SCATTER),
     2 * GATHER, 2 * GATHER + SCATTER),
    (False, {}, {"proj": (0, SUM, SUM)}, 2 * SUM, SUM, SUM),
    (True, {"gathers_once": False}, {}, 2 * (GATHER + SCATTER) + 3 * SCATTER, 2 * (2 * GATHER + SCATTER) + 3 * SCATTER,
     2 * GATHER + SCATTER + 3 * SCATTER),
])  # fmt: skip
def test_tensor_parallel_traffic(
    sp: bool, switches: dict[str, Any], parts: dict[str, Any], forward: float, backward: float, again: float
) -> None:
    """Two pairs: a gather and a scatter each, both again backward with the input's, under the matrices' own passes."""
    found = tensor_parallel(comm_of(sp=sp, **{"gathers_once": True} | switches), DENSE, named(**parts))
    assert numbers(found.forward_s, found.backward_s, found.recompute_s) == [forward, backward, again]
    further = 3 * SCATTER * (not switches.get("gathers_once", True))
    assert numbers(found.gathers_s) == [2 * GATHER * sp + further]


def test_half_of_the_traffic_hides_where_multiplications_overlap_it() -> None:
    """A share of the blocking collectives is left, with sequence parallelism alone."""
    comm = comm_of(tp_overlap=True, tp_async_backward=False)
    share = comm.compute.constants["tp_exposed_overlapped"]
    found = tensor_parallel(comm, DENSE, {})
    assert share < 1
    assert numbers(found.forward_s, found.backward_s) == [2 * share * (GATHER + SCATTER)] * 2
    assert numbers(found.gathers_s) == [2 * share * GATHER]
    assert numbers(comm_of(sp=False, tp_overlap=True).tp_share) == [1.0]


def test_eight_bits_gather_less() -> None:
    """With one scale half the bytes; ranks agree on it by a sum of four bytes in front of every gather."""
    comm = comm_of(
        rates={"eight_bit": True, "precision": Precision.FP8}, training={"fp8_recipe": Fp8Recipe.CURRENT}
    )
    found = tensor_parallel(comm, DENSE, {})
    gather = GATHER / 2 + 10_000 * 4
    assert numbers(found.forward_s, found.gathers_s) == [2 * (gather + SCATTER), 2 * gather]
    assert numbers(found.backward_s) == [2 * (2 * gather + SCATTER)]


@pytest.mark.parametrize(("tp", "gate", "repeats", "heads"), [
    (16, False, False, 32 + 2 * 8), (16, True, False, 64 + 2 * 8), (16, False, True, 0), (8, False, False, 0),
])  # fmt: skip
def test_ranks_that_outnumber_heads(tp: int, gate: bool, repeats: bool, heads: int) -> None:
    """They gather queries, keys and values whole, unless keys are repeated."""
    model = replace(WORKLOAD.model, attention_gate=gate)
    comm = comm_of(tp=tp, model=model, repeats_keys=repeats, gathers_once=True)
    assert numbers(split_heads_bytes(comm, DENSE)) == [2 * TOKENS * heads * 128]
    assert numbers(split_heads_bytes(comm, LayerShape(mixer=Mixer.NONE))) == [0]
    more = tensor_parallel(comm, DENSE, {})
    assert numbers(more.forward_s) == [2 * (GATHER + SCATTER) + 100 * 2 * TOKENS * heads * 128]


def test_pairs_of_a_layer() -> None:
    """Mixer, and dense MLP or shared experts; routed experts alone have none."""
    comm = comm_of()
    assert [tp_pairs(comm, shape) for shape in (
        DENSE, LayerShape(mixer=Mixer.NONE, ffn=8), LayerShape(mlp=Mlp.NONE), LayerShape(mixer=Mixer.NONE, mlp=Mlp.NONE),
    )] == [2, 1, 1, 0]  # fmt: skip
    assert EXPERTS.moe is not None
    routed = LayerShape(mlp=Mlp.MOE)
    assert tp_pairs(comm_of(model=EXPERTS), routed) == 2
    alone = replace(EXPERTS, moe=replace(EXPERTS.moe, shared_ffn=0))
    assert tp_pairs(comm_of(model=alone), routed) == 1


def test_context_parallel_traffic_runs_again() -> None:
    """A recomputed layer fetches keys and values again; a layer without a mixer none."""
    comm = comm_of(cp_comm=CpComm.A2A)
    core = Work(one(0), one(0), one(0))
    found = context_parallel(comm, DENSE, core)
    sent = 10 * 2 * TOKENS * (8 + 2) * 256
    assert numbers(found.forward_s, found.backward_s, found.recompute_s) == [sent] * 3
    for nothing in (
        context_parallel(comm, LayerShape(mixer=Mixer.NONE), core),
        context_parallel(comm, DENSE, None),
    ):
        assert numbers(nothing.forward_s, nothing.backward_s, nothing.recompute_s) == [0, 0, 0]


ROUTED = LayerShape(mlp=Mlp.MOE)
COPIES = 7168 * TOKENS / 4 * 8 * 1.5
"""Elements that a rank sends to experts: of its share of the tokens, eight copies, at an imbalance of 1.5."""


def experts(**changes: Any) -> CommContext:
    """DeepSeek-V3 on 64 GPUs, whose fullest rank has half as many tokens more than the mean."""
    settings: dict[str, Any] = {
        "ep": 4,
        "dispatcher": Dispatcher.ALLTOALL,
        "ep_overlap": EpOverlap.NONE,
        "dispatch_fp8": False,
    }
    return comm_of(model=EXPERTS, training={"moe_imbalance": 1.5}, **settings | changes)


def test_bytes_of_dispatch_and_combine() -> None:
    """16 bits both, of 8 bits with a scale for 128 of them there; a capacity pads all-to-alls alone."""
    assert numbers(*all_to_all_bytes(experts())) == [2 * COPIES] * 2
    eight = {"eight_bit": True, "precision": Precision.FP8}
    assert numbers(*all_to_all_bytes(experts(dispatch_fp8=True, rates=eight))) == [
        (1 + 4 / 128) * COPIES,
        2 * COPIES,
    ]
    assert EXPERTS.moe is not None
    padded = replace(EXPERTS, moe=replace(EXPERTS.moe, capacity_factor=3.0))
    comm = comm_of(model=padded, ep=4, training={"moe_imbalance": 1.5}, dispatcher=Dispatcher.ALLTOALL)
    assert numbers(all_to_all_bytes(comm)[0]) == [4 * COPIES]
    deep = comm_of(model=padded, ep=4, training={"moe_imbalance": 1.5}, dispatcher=Dispatcher.DEEPEP)
    assert numbers(all_to_all_bytes(deep)[0]) == [2 * COPIES]


@pytest.mark.parametrize(("gathers", "copies"), [(True, 1), (False, 8 * 1.5)])
def test_rows_of_an_expert_tensor_group(gathers: bool, copies: float) -> None:
    """Each token once, or each of its copies, of both ranks; gathered before experts and scattered after."""
    comm = experts(etp=2, gathers_tokens=gathers)
    rows = 2 * TOKENS / 4 * copies * 2 * 7168
    assert numbers(routed_bytes(comm)) == [rows]
    found = expert_parallel(comm, ROUTED, {})
    sent = 10 * 2 * COPIES
    assert numbers(found.forward_s, found.backward_s, found.recompute_s) == pytest.approx(
        [2 * sent + 1100 * rows] * 3
    )


def test_a_gather_moves_every_token_once() -> None:
    """Of all four ranks of the group, however many experts each chose."""
    found = expert_parallel(experts(dispatcher=Dispatcher.ALLGATHER), ROUTED, {})
    assert numbers(found.forward_s) == pytest.approx([2 * 100 * 2 * COPIES / 8 * 4])
    assert numbers(expert_parallel(experts(), DENSE, {}).forward_s) == [0]


PARTS = {
    "qkv": (2e8, 3e8, 5e8), "core_attn": (7e8, 11e8, 0), "experts": (13e8, 17e8, 19e8), "shared_experts": (2e9, 3e9, 1e9),
}  # fmt: skip
"""Seconds of an expert layer forward, for gradients of inputs and of weights: attention's and the experts' side."""
ONE_WAY = 10 * 2 * COPIES
ATTENTION, REST = (9e8, 14e8, 5e8), (33e8, 47e8, 29e8)


def test_a_shared_expert_hides_traffic() -> None:
    """Its forward under the forward's, both its gradients under the backward's."""
    found = expert_parallel(experts(ep_overlap=EpOverlap.SHARED), ROUTED, named(**PARTS))
    assert numbers(found.forward_s, found.backward_s, found.recompute_s) == [
        2 * ONE_WAY - min(2 * ONE_WAY, 2e9), 2 * ONE_WAY - min(2 * ONE_WAY, 4e9), 2 * ONE_WAY,
    ]  # fmt: skip
    assert numbers(found.hidden_forward_s, found.hidden_backward_s) == [0, 0]


@pytest.mark.parametrize("late", [False, True])
def test_another_micro_batch_hides_traffic(late: bool) -> None:
    """Dispatch under the experts' backward, combine under attention's; backward under both forwards; a share of it."""
    comm = experts(ep_overlap=EpOverlap.BATCH, delay_wgrad=late)
    found = expert_parallel(comm, ROUTED, named(**PARTS))
    constants = comm.compute.constants

    def lost(dispatcher: Dispatcher, count: int) -> float:
        held = min(constants[f"exchange_sms.{dispatcher.value}"] / count, 0.5)
        return held / (1 - held)

    share = (
        constants["ep_hidden"]
        * (1 - lost(Dispatcher.ALLTOALL, 132))
        / (1 - lost(Dispatcher.DEEPEP, HOPPER_SMS))
    )
    before, behind = (0, REST[2]) if late else (REST[2], 0)
    forward = min(ONE_WAY, REST[1] + before) + min(ONE_WAY, ATTENTION[1] + ATTENTION[2])
    backward = min(ONE_WAY, ATTENTION[0]) + min(ONE_WAY, REST[0] + behind)
    assert numbers(found.hidden_forward_s, found.hidden_backward_s) == pytest.approx(
        [share * forward, share * backward]
    )
    assert numbers(found.forward_s, found.backward_s) == pytest.approx([
        2 * ONE_WAY - share * forward, 2 * ONE_WAY - share * backward,
    ])  # fmt: skip


def test_paired_passes_hide_traffic() -> None:
    """Both ways under all compute of both passes, as much of each."""
    comm = experts(paired=True)
    found = expert_parallel(comm, ROUTED, named(qkv=(1e9, 2e9, 3e9)))
    share = comm.compute.constants["dp_hidden"] * 6e9 / (4 * ONE_WAY)
    assert share < 1
    assert numbers(found.hidden_forward_s, found.hidden_backward_s) == pytest.approx(
        [share * 2 * ONE_WAY] * 2
    )
    assert numbers(found.forward_s, found.backward_s) == pytest.approx([(1 - share) * 2 * ONE_WAY] * 2)
    whole = expert_parallel(comm, ROUTED, named(qkv=(1e12, 0, 0)))
    assert numbers(whole.forward_s, whole.recompute_s) == [0, 2 * ONE_WAY]


def test_only_one_dispatcher_asks_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of small messages, of experts alone."""
    monkeypatch.setattr(Wire, "all_to_all_s", lambda *_: one(3), raising=False)
    rounds = experts().compute.constants["dispatch_rounds"]
    for dispatcher, shape, expected in (
        (Dispatcher.DEEPEP, ROUTED, 3 * rounds), (Dispatcher.DEEPEP, DENSE, 0), (Dispatcher.ALLTOALL, ROUTED, 0),
    ):  # fmt: skip
        assert numbers(counts_awaited_s(experts(dispatcher=dispatcher), shape)) == [expected]
    assert numbers(
        counts_awaited_s(experts(dispatcher=Dispatcher.DEEPEP, rates={"ideal": True}), ROUTED)
    ) == [0]
