"""Context- and data-parallel traffic counted by hand: bytes by method, what hides, buckets, passes and blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.wire import Wire

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.collectives import _Ledger, _sends
from layoutopt.optimizer.cost.context_parallel import (
    attended_keys,
    attended_s,
    exchange_ranks,
    exchanged_bytes,
    gathered_bytes,
    gathered_widths,
    head_widths,
    held_bytes,
    mamba_bytes,
    passed_bytes,
    ring_bytes,
    ring_steps,
    scanned_s,
)
from layoutopt.optimizer.cost.data_parallel import (
    DpContext,
    fsdp_layer_s,
    replica_reduce_s,
    step_exposed_s,
    traffic,
    volumes,
)
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.frozen import TrainedShare
from layoutopt.optimizer.cost.optimizer_step import optimizer_bytes
from layoutopt.optimizer.cost.states import RankParameters
from layoutopt.optimizer.cost.work import Work
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import (
    CompressedSpec,
    IndexerSpec,
    LayerShape,
    LinearSpec,
    MambaSpec,
    Mixer,
    MlaSpec,
)
from layoutopt.optimizer.specs.vocabulary import CpComm, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.communication import CommContext
    from layoutopt.optimizer.topology.groups import GroupBatch

    Array = np.ndarray[Any, np.dtype[np.float64]]

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x64")


def comm_of(
    method: CpComm = CpComm.P2P,
    *,
    tp: int = 2,
    cp: int = 8,
    wire: Wire | None = None,
    keeps: bool = False,
    **changes: Any,
) -> CommContext:
    """The traffic's context of an 8B model on 64 GPUs with micro-batches of 2 sequences of 4096."""
    preset = replace(load_preset(Framework.MEGATRON), cp_comm=method, keeps_gathered_keys=keeps)
    model = replace(WORKLOAD.model, **changes)
    cost = build_cost_model(model, WORKLOAD.training, CLUSTER, preset=preset)
    layout = Layout(tp=tp, cp=cp, sp=tp > 1, dp=64 // tp // cp, micro_batch=2, micro_batches=8)
    comm = cost.comm_context(batch_of_one(layout), layout.mesh_order)
    return comm if wire is None else replace(comm, topology=wire)  # type: ignore[arg-type]


FULL = LayerShape(ffn=14336)
WINDOW = LayerShape(ffn=14336, window=700)
CHOSEN = LayerShape(ffn=14336, sparse=True)
CHOOSING = LayerShape(ffn=14336, sparse=True, indexes=True)
MLA = MlaSpec(q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16)
INDEXER = IndexerSpec(heads=4, head_dim=20, top_k=64)
TOKENS = 2 * 4096 // 8
"""Of two sequences, on one of 8 context ranks."""


@pytest.mark.parametrize(("changes", "tp", "expected"), [
    ({}, 2, (16 * 256, 4 * 256)), ({}, 16, (2 * 256, 256)), ({"v_head_dim": 32}, 1, (32 * 160, 8 * 160)),
    ({"mla": MLA}, 4, (8 * 48, 8 * 48)),
])  # fmt: skip
def test_widths_of_heads(changes: dict[str, Any], tp: int, expected: tuple[int, int]) -> None:
    """Queries with outputs, keys with values: a tensor rank holds one key-value head at least, latents expand for all."""
    comm = comm_of(tp=tp, cp=2, **changes)
    query, key_value = head_widths(comm.compute, comm.keys, FULL)
    assert (query.tolist(), key_value.tolist()) == ([expected[0]], [expected[1]])


@pytest.mark.parametrize(("changes", "shape", "tp", "expected"), [
    ({}, FULL, 2, [4 * 128, 4 * 128]), ({"v_head_dim": 32}, FULL, 16, [128, 32]),
    ({"indexer": INDEXER}, CHOOSING, 2, [512, 512, 20]), ({"indexer": INDEXER}, CHOSEN, 2, [512, 512]),
    ({"mla": MLA}, FULL, 4, [8 * 32, 8 * 16]), ({"mla": MLA, "indexer": INDEXER}, FULL, 4, [8 * 32, 8 * 16]),
    ({"mla": MLA, "indexer": INDEXER}, CHOSEN, 4, [64 + 8]), ({"mla": MLA, "indexer": INDEXER}, CHOOSING, 4, [64 + 8 + 20]),
    ({"compressed": CompressedSpec(query_rank=32, output_groups=2, output_rank=16)}, FULL, 2, [128]),
    ({"compressed": CompressedSpec(query_rank=32, output_groups=2, output_rank=16), "indexer": INDEXER}, CHOSEN, 2, [128]),
    ({"compressed": CompressedSpec(query_rank=32, output_groups=2, output_rank=16), "indexer": INDEXER}, CHOOSING, 2, [148]),
])  # fmt: skip
def test_what_other_ranks_queries_need(
    changes: dict[str, Any], shape: LayerShape, tp: int, expected: list[int]
) -> None:
    """Keys and values apart; latents, or the one key, are whole on every tensor rank; the indexer's key where it chooses."""
    comm = comm_of(CpComm.ALL_GATHER, tp=tp, **changes)
    assert [width.tolist() for width in gathered_widths(comm.compute, comm.keys, shape)] == [
        [w] for w in expected
    ]
    tokens = comm.keys.tokens[0] * comm.keys.cp[0]
    assert [size.tolist() for size in gathered_bytes(comm, shape)] == [[2 * tokens * w] for w in expected]


def test_ranks_that_exchange_heads() -> None:
    """What divides the context ranks, the NVLink domain's rest and a tensor rank's heads; one at least."""
    model = WORKLOAD.model
    degrees = ((16, 2), (4, 1), (16, 1), (12, 2), (8, 8), (8, 16), (6, 1))
    found = exchange_ranks(model, 8, [cp for cp, _ in degrees], [tp for _, tp in degrees])
    assert found.tolist() == [4, 4, 8, 4, 1, 1, 2]
    assert exchange_ranks(replace(model, mla=MLA), 64, [64], [2]).tolist() == [16]
    assert exchange_ranks(model, 64, [64], [2]).tolist() == [4]


PIECE = 2 * TOKENS * 4 * 256
OUTPUT = 2 * TOKENS * 16 * 128


@pytest.mark.parametrize(("method", "shape", "keeps", "expected"), [
    (CpComm.P2P, FULL, False, (0, 2 * PIECE)), (CpComm.A2A, FULL, False, (OUTPUT, 0)),
    (CpComm.A2A_P2P, FULL, False, (OUTPUT, 2 * PIECE)), (CpComm.ALL_GATHER, FULL, False, (0, 14 * PIECE)),
    (CpComm.ALL_GATHER, FULL, True, (7 * PIECE, 7 * PIECE)), (CpComm.P2P, WINDOW, False, (0, 14 * PIECE)),
    (CpComm.P2P, FULL, True, (0, 2 * PIECE)),
])  # fmt: skip
def test_what_a_layer_holds_of_others(
    method: CpComm, shape: LayerShape, keeps: bool, expected: tuple[int, int]
) -> None:
    """Two remote pieces of a ring, seven others' keys and their gradients, the output once more after an exchange."""
    comm = comm_of(method, keeps=keeps)
    kept, meanwhile = held_bytes(comm.compute, comm.keys, shape)
    assert (kept.tolist(), meanwhile.tolist()) == ([expected[0]], [expected[1]])


@pytest.mark.parametrize(("method", "shape", "expected"), [
    (CpComm.P2P, FULL, 512), (CpComm.A2A, FULL, 4096), (CpComm.A2A_P2P, FULL, 2048), (CpComm.P2P, WINDOW, 700),
    (CpComm.A2A, WINDOW, 700), (CpComm.P2P, LayerShape(window=9000), 4096),
])  # fmt: skip
def test_keys_of_one_kernel(method: CpComm, shape: LayerShape, expected: float) -> None:
    """A ring's step sees a rank's own, here with four ranks of a node that exchange heads half of them; windows cut."""
    comm = comm_of(method)
    steps = ring_steps(comm.compute, comm.keys, shape)
    assert attended_keys(comm.compute, shape, steps).tolist() == [expected]


EXCHANGED = 2 * TOKENS * (16 + 4) * 256
GATHERED = 2 * 8 * TOKENS * 4 * 256


@pytest.mark.parametrize(("method", "keeps", "core", "expected", "members"), [
    (CpComm.P2P, False, (0, 0), (7 * PIECE, 14 * PIECE), [8, 8]),
    (CpComm.P2P, False, (4 * PIECE, 4 * PIECE), (3.5 * PIECE, 10.5 * PIECE), [8, 8]),
    (CpComm.P2P, False, (99 * PIECE, 99 * PIECE), (0, 0), [8, 8]),
    (CpComm.A2A, False, (99 * PIECE, 0), (10 * EXCHANGED, 10 * EXCHANGED), [8]),
    (CpComm.A2A_P2P, False, (0, 0), (10 * EXCHANGED + PIECE, 10 * EXCHANGED + 2 * PIECE), [4, 2, 2]),
    (CpComm.A2A_P2P, False, (PIECE, PIECE), (10 * EXCHANGED + PIECE / 2, 10 * EXCHANGED + 1.5 * PIECE), [4, 2, 2]),
    (CpComm.ALL_GATHER, False, (0, 0), (100 * GATHERED, 1100 * GATHERED), [8] * 4),
    (CpComm.ALL_GATHER, True, (0, 0), (100 * GATHERED, 1000 * GATHERED), [8] * 4),
])  # fmt: skip
def test_seconds_of_every_method(
    method: CpComm, keeps: bool, core: tuple[float, float], expected: tuple[float, float], members: list[int]
) -> None:
    """A ring hides step by step, each under its own share of attention; what is exchanged or gathered hides nowhere."""
    wire = Wire()
    comm, one = comm_of(method, keeps=keeps, wire=wire), np.ones(1)
    forward, backward = attended_s(comm, FULL, Work(core[0] * one, core[1] * one, 0.0 * one), method)
    assert (forward.tolist(), backward.tolist()) == ([expected[0]], [expected[1]])
    assert wire.members == members


def test_states_and_streams_that_other_mixers_pass() -> None:
    """Linear attention gathers a state for every sequence; a Mamba mixer exchanges its streams for heads."""
    linear = LinearSpec(key_heads=4, value_heads=8, key_head_dim=16, value_head_dim=32)
    mamba = MambaSpec(heads=24, head_dim=64, state=128, groups=8)
    wire = Wire()
    comm = comm_of(wire=wire, linear=linear, mamba=mamba)
    streams = 2 * TOKENS * (3 * 24 * 64 + 2 * 8 * 128 + 24) / 2
    assert mamba_bytes(comm).tolist() == [streams]
    assert [s.tolist() for s in scanned_s(comm, LayerShape(mixer=Mixer.MAMBA))] == [[10 * streams]] * 2
    states = passed_bytes(comm)
    assert states.tolist() == [4 * 8 * 16 * (32 + 16) * 2 * 8 / 2]
    assert [s.tolist() for s in scanned_s(comm, LayerShape(mixer=Mixer.GATED_DELTA))] == [
        [100 * states[0]]
    ] * 2
    assert passed_bytes(comm_of(tp=4, cp=4, linear=linear, mamba=mamba)).tolist() == [states[0] / 4]
    assert (ring_bytes(comm, FULL).tolist(), exchanged_bytes(comm, FULL).tolist()) == ([PIECE], [EXCHANGED])


def dp_of(
    *, wire: Wire | None = None, ideal: bool = False, trained: TrainedShare | None = None, layout: Layout | None = None,
    weight_bytes: float = 1.0, **switches: Any,
) -> DpContext:  # fmt: skip
    """The data-parallel context of a layout of 8 data ranks with 2 context ranks, hidden to 0.5 and slowed by 0.25."""
    layout = layout or Layout(tp=2, cp=2, pp=2, dp=8, ep=4, zero=1, micro_batch=1, micro_batches=8)
    preset = replace(load_preset(Framework.MEGATRON), **switches)
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER, preset=preset)
    batch = batch_of_one(layout)
    found = cost.dp_context(batch, cost.comm_context(batch, layout.mesh_order).groups)
    changed: dict[str, Any] = {
        "topology": wire or Wire(), "constants": {"dp_hidden": 0.5, "overlap_slowdown": 0.25}, "ideal": ideal,
        "trained": trained or TrainedShare(), "memory_bytes_per_s": 2.0, "weight_bytes": weight_bytes,
    }  # fmt: skip
    return replace(found, preset=preset, **changed)


def one(value: float) -> Array:
    """One row."""
    return np.array([float(value)])


HELD, END = RankParameters(one(800.0), one(320.0)), RankParameters(one(200.0), one(0.0))
BARE: dict[str, Any] = {"bucket_parameters": 0, "rank_bucket_parameters": 0, "broadcast_parameters": 0}


@pytest.mark.parametrize(("seconds", "cover", "ideal", "expected"), [
    (10, 100, False, 2.5), (10, 8, False, 6 + 1), (10, 20, False, 2.5), (10, 8, True, 2), (10, 100, True, 0),
])  # fmt: skip
def test_traffic_beside_compute(seconds: float, cover: float, ideal: bool, expected: float) -> None:
    """Half of the compute covers; a quarter of what is covered is lost to compute."""
    assert dp_of(ideal=ideal).beside(one(seconds), one(cover)).tolist() == [expected]


@pytest.mark.parametrize(("switches", "ideal", "blocks", "expected"), [
    ({}, False, 5, 1), ({"rank_bucket_parameters": 5}, False, 5, 5), ({"rank_bucket_parameters": 50}, False, 20, 1),
    ({"bucket_parameters": 200, "rank_bucket_parameters": 1}, False, 5, 4),
    ({"bucket_parameters": 8, "rank_bucket_parameters": 1}, False, 5, 50),
    ({"bucket_parameters": 4000, "rank_bucket_parameters": 1}, False, 5, 1),
    ({"bucket_parameters": 200, "rank_bucket_parameters": 1}, True, 5, 1),
])  # fmt: skip
def test_calls_that_move_parameters(
    switches: dict[str, int], ideal: bool, blocks: float, expected: float
) -> None:
    """By buckets or by blocks; every one of 16 ranks has its share in a bucket; one call at least."""
    ctx = dp_of(ideal=ideal, **BARE | {"rank_bucket_parameters": 100} | switches)
    assert ctx.calls(one(800), one(blocks)).tolist() == [expected]


@pytest.mark.parametrize(("size", "ideal", "parameters", "expected"), [
    (0, False, 800, 100 * 64), (100, True, 800, 100 * 64), (100, False, 800, 7 * 64), (1, False, 800, 7 * 64),
])  # fmt: skip
def test_weights_come_back(size: int, ideal: bool, parameters: float, expected: float) -> None:
    """Gathered, or broadcast by those that have some."""
    ctx = dp_of(ideal=ideal, **BARE | {"broadcast_parameters": size})
    assert ctx.gather_s(one(64), one(parameters), one(4), ctx.shard_group()).tolist() == [expected]


def test_calls_of_broadcasts() -> None:
    """As many as pieces, never more than ranks, one at least: seen in what each call starts anew."""
    asked: list[float] = []

    class Starts(Wire):
        """Notes the bytes of a broadcast."""

        def broadcast_s(self, size: Array, _: GroupBatch) -> Array:
            """One call."""
            asked.append(float(size[0]))
            return 0 * size + 1

    ctx = dp_of(wire=Starts(), **BARE | {"broadcast_parameters": 100})
    starts = [ctx.gather_s(one(64), one(held), one(4), ctx.shard_group())[0] for held in (800, 8000, 20)]
    assert (starts, asked) == ([8, 16, 1], [8, 4, 64])


@pytest.mark.parametrize(("copies", "ideal", "expected"), [
    (True, False, (2 * 2 * 1120, 2 * 2 * 1120 + 2 * 1120 + 4 * (400 + 80))), (True, True, (0, 0)), (False, False, (0, 0)),
])  # fmt: skip
def test_copies_out_of_and_into_buffers(copies: bool, ideal: bool, expected: tuple[float, float]) -> None:
    """Weights are read and written, gradients only of what is trained, at two bytes a second."""
    share = TrainedShare(dense=0.5, expert=0.25)
    ctx = dp_of(trained=share, ideal=ideal, copies_gathered=copies, weight_bytes=1.0, grad_comm_bytes=4)
    ctx = replace(ctx, preset=replace(ctx.preset, weight_bytes=2))
    forward, backward = ctx.copied_s(HELD)
    assert (2 * forward).tolist() == [expected[0]] and (2 * backward).tolist() == [expected[1]]


@pytest.mark.parametrize(("zero", "end", "expected"), [
    (1, None, (4 * 400, 4 * 80, 800 / 2, 80)), (2, None, (4 * 400, 4 * 80, 800, 320)),
    (2, END, (4 * (400 + 0.25 * 200), 4 * 80, 800 + 200, 320)), (1, END, (4 * 450, 4 * 80, 1000 * 450 / 800, 80)),
])  # fmt: skip
def test_bytes_of_one_pass(zero: int, end: RankParameters | None, expected: tuple[float, ...]) -> None:
    """Gradients of what is trained; weights of all where they are sharded; the ends' weights in 16 bits."""
    layout = Layout(tp=2, cp=2, pp=2, dp=8, ep=4, zero=zero, micro_batch=1, micro_batches=8)
    share = TrainedShare(dense=0.5, expert=0.25, embedding=0.75)
    moved = volumes(dp_of(trained=share, layout=layout, grad_comm_bytes=4, weight_bytes=1.0), HELD, end)
    found = (moved.dense_grad, moved.expert_grad, moved.dense_weight, moved.expert_weight)
    assert tuple(float(part[0]) for part in found) == pytest.approx(expected)


def test_seconds_of_one_pass() -> None:
    """Dense parameters on data and context ranks or their shard group, experts on what their ranks leave."""
    wire = Wire()
    ctx = dp_of(wire=wire, grad_comm_bytes=4, **BARE)
    moved = traffic(ctx, HELD)
    assert moved.reduce_scatter_s.tolist() == [1000 * 4 * 1120]
    assert moved.all_gather_s.tolist() == [100 * 1120]
    assert moved.all_reduce_s.tolist() == [10_000 * 4 * 1120]
    assert wire.members == [16, 16, 16, 8, 8, 8]
    wire.members.clear()
    layout = Layout(tp=2, cp=2, pp=2, dp=8, zero=1, hsdp_shard=4, micro_batch=1, micro_batches=8)
    ctx = dp_of(wire=wire, layout=layout, grad_comm_bytes=4, **BARE)
    assert traffic(ctx, END).all_reduce_s.tolist() == [10_000 * 4 * 200]
    assert replica_reduce_s(ctx, HELD, END).tolist() == [10_000 * 4 * 800 / wire.members[0]]
    assert wire.members == [4, 4, 16, 4]


PLAIN = {
    "param_overlap": False, "dp_overlap": False, "copies_gathered": False, "reduce_each_micro_batch": True,
}  # fmt: skip
"""Nothing hides, nothing is kept, and gradients go out with every micro-batch."""


@pytest.mark.parametrize(("zero", "switches", "expected"), [
    (1, {}, (0, 0)), (3, {}, (100 * 1120, 100 * 1120 + 4000 * 1120)),
    (3, {"reduce_each_micro_batch": False}, (100 * 1120, 100 * 1120)),
    (3, {"param_overlap": True}, (25 * 1120, 100 * 1120 + 4000 * 1120)),
    (3, {"dp_overlap": True}, (100 * 1120, 25 * 1120 + 1000 * 1120)),
])  # fmt: skip
def test_blocks_stream(zero: int, switches: dict[str, bool], expected: tuple[float, float]) -> None:
    """A block's gather under the block before it, and in the backward pass its scatter with it."""
    layout = Layout(tp=2, cp=2, pp=1, dp=8, ep=4, zero=zero, micro_batch=1, micro_batches=8)
    ctx = dp_of(layout=layout, grad_comm_bytes=4, **BARE | PLAIN | switches)
    forward, backward = fsdp_layer_s(ctx, HELD, one(1e12), one(1e12))
    assert (forward.tolist(), backward.tolist()) == ([expected[0]], [expected[1]])


LATE = 1000 * 4 * 1120
ONE = (100 + 4000) * 1120


@pytest.mark.parametrize(("zero", "switches", "cover", "expected"), [
    (0, {}, 0, 10 * LATE), (1, {}, 0, LATE + 100 * 1120), (2, {}, 0, 8 * LATE + 100 * 1120),
    (2, {"reduce_each_micro_batch": False}, 0, LATE + 100 * 1120), (3, {}, 0, ONE),
    (3, {"reduce_each_micro_batch": False}, 0, ONE + LATE), (3, {"ideal": True}, 0, 0),
    (1, {"dp_overlap": True}, 1e12, LATE / 4 + 100 * 1120), (1, {"param_overlap": True}, 1e12, LATE + 100 * 1120 / 4),
    (0, {"dp_overlap": True}, 1e12, 10 * LATE / 4), (0, {"dp_overlap": True, "ideal": True}, 1e12, 0),
    (0, {"dp_overlap": True}, LATE, 9.5 * LATE + 0.125 * LATE),
])  # fmt: skip
def test_a_steps_traffic(zero: int, switches: dict[str, Any], cover: float, expected: float) -> None:
    """By the passes of every ZeRO stage; of what hides, the last bucket of four stays, or a quarter is lost to compute."""
    layout = Layout(tp=2, cp=2, pp=1, dp=8, ep=4, zero=zero, micro_batch=1, micro_batches=8)
    ctx = dp_of(layout=layout, grad_comm_bytes=4, **BARE | PLAIN | switches)
    unit = RankParameters(one(800.0), one(320.0))
    found = step_exposed_s(ctx, HELD, RankParameters(one(0.0), one(0.0)), unit, one(cover), one(cover), 4.0)
    assert found.tolist() == pytest.approx([expected])


def test_the_last_bucket_has_nothing_beside_it() -> None:
    """Of two blocks on each of two stages: half of the traffic, or a quarter of it where compute could cover all."""
    layout = Layout(tp=2, cp=2, pp=2, dp=8, ep=4, zero=1, micro_batch=1, micro_batches=8)
    for blocks, share in ((4.0, 1 / 2), (1.0, 1.0), (16.0, 1 / 4)):
        ctx = dp_of(layout=layout, grad_comm_bytes=4, dp_overlap=True, param_overlap=False, **BARE)
        found = step_exposed_s(ctx, HELD, RankParameters(one(0), one(0)), HELD, one(1e12), one(1e12), blocks)
        assert found.tolist() == [share * LATE + 100 * 1120]


def test_optimizer_traffic() -> None:
    """4 bytes for each local parameter, 22 and its moments twice for each owned one."""
    assert optimizer_bytes(one(10), one(4), 8.0).tolist() == [40 + 38 * 4]
    assert optimizer_bytes(one(10), one(4), 0.0).tolist() == [40 + 22 * 4]


def test_ledgers_count_what_is_traffic() -> None:
    """Groups of one, no bytes and no calls are none; equal calls add up; counts and bytes are whole."""
    ledger = _Ledger()
    for members, size, count in (
        (1, 8.0, 3),
        (2, 0.0, 3),
        (2, 8.0, 0),
        (2, 7.6, 3),
        (2, 8.4, 1.9),
        (2, 1.0, 1),
    ):
        ledger.add("tp", "send", members, np.array([size, 99.0]), count)
    assert dict(ledger.calls) == {("tp", "send", 2, 8): 5, ("tp", "send", 2, 1): 1}


@pytest.mark.parametrize(("pp", "vp", "schedule", "expected"), [
    (1, 1, Schedule.ONE_F_ONE_B, [0]), (3, 1, Schedule.ONE_F_ONE_B, [5, 10, 5]), (2, 2, Schedule.INTERLEAVED, [15, 15]),
    (3, 2, Schedule.ZB_V, [10, 20, 10]),
])  # fmt: skip
def test_sends_of_every_rank(pp: int, vp: int, schedule: Schedule, expected: list[int]) -> None:
    """Outputs on and gradients back, of five micro-batches; at the turn of a V nothing is sent."""
    assert _sends(Layout(pp=pp, vp=vp, schedule=schedule, micro_batches=5)) == expected
