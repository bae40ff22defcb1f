"""Context parallelism by method: how attention is divided, what it moves and holds, windows and chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from layoutopt.optimizer.cost.activations import layer_activations
from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.compute import core_attention_work
from layoutopt.optimizer.cost.context_parallel import (
    attended_keys,
    division,
    heads_divide,
    held_bytes,
    method_of,
    ring_steps,
)
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.flops import attended_tokens
from layoutopt.optimizer.cost.work import make_keys
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import LayerShape
from layoutopt.optimizer.specs.vocabulary import CpComm

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.work import Keys

FULL = LayerShape(ffn=14336)
WINDOW = LayerShape(ffn=14336, window=4096)
METHODS = list(CpComm)


def cost_of(method: CpComm, *, length: int = 131072, model: str = "llama3-8b") -> CostModel:
    """A model on H100 nodes at a sequence length, under one method."""
    workload = override_training(load_workload(model), sequence_length=length, global_batch=64)
    preset = replace(load_preset(Framework.MEGATRON), cp_comm=method)
    return build_cost_model(workload.model, workload.training, load_cluster("h100-256"), preset=preset)


def keys_of(cost: CostModel, cp: int, tp: int = 2) -> Keys:
    """Degrees of one row."""
    degrees = {"tp": tp, "sp": 1, "cp": cp, "micro_batch": 1, "ep": 1, "etp": 1}
    return make_keys(cost.training, **{name: np.array([float(value)]) for name, value in degrees.items()})


def layout(cp: int, tp: int = 2) -> Layout:
    """A layout of 256 GPUs without a pipeline."""
    stages = (VirtualStage(rank=0, chunk=0, layers=32, kinds={"dense": 32}, embedding=True, head=True),)
    dp = 256 // cp // tp
    return Layout(
        tp=tp, sp=tp > 1, cp=cp, dp=dp, zero=1, micro_batch=1, micro_batches=max(64 // dp, 1), stages=stages
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("cp", "tp"), [(1, 1), (2, 4), (8, 1), (16, 2), (32, 8)])
def test_methods_divide_the_whole_group(method: CpComm, cp: int, tp: int) -> None:
    """Heads exchanged times steps of the ring are cp, or nothing is divided because all keys are gathered."""
    cost = cost_of(method)
    ctx, keys = cost.compute_context(batch_of_one(layout(1))), keys_of(cost, cp, tp)
    parts = division(ctx, keys, FULL, method)
    assert parts.gathered is (method is CpComm.ALL_GATHER)
    assert float(parts.heads[0] * parts.ring[0]) == (1 if parts.gathered else cp)
    if method is CpComm.A2A_P2P:
        assert parts.heads[0] * tp <= 8  # within the NVLink domain
        assert 8 // tp % parts.heads[0] == 0  # 8 key-value heads


@pytest.mark.parametrize("method", METHODS)
def test_balanced_work(method: CpComm) -> None:
    """The pieces from front and back leave each rank 1/cp of the causal attention, whatever the method."""
    cost = cost_of(method)
    ctx = cost.compute_context(batch_of_one(layout(1)))
    one, many = (core_attention_work(ctx, keys_of(cost, cp), FULL).forward_s[0] for cp in (1, 8))
    assert one / 8 <= many <= one / 8 * 1.2  # shorter steps and rescaling cost a little


def test_windows_rule_out_the_ring() -> None:
    """A ring has no sliding window: such layers gather keys and values, other layers keep the ring."""
    assert method_of(CpComm.P2P, WINDOW) is CpComm.ALL_GATHER
    assert method_of(CpComm.P2P, FULL) is CpComm.P2P
    assert method_of(CpComm.A2A, WINDOW) is CpComm.A2A


def test_what_one_kernel_call_sees() -> None:
    """A ring step sees the keys of one rank, gathered and exchanged attention all of them, a window its own."""
    seen = {}
    for method in METHODS:
        cost = cost_of(method)
        ctx, keys = cost.compute_context(batch_of_one(layout(1))), keys_of(cost, 16)
        seen[method] = attended_keys(ctx, FULL, ring_steps(ctx, keys, FULL))[0]
        assert attended_keys(ctx, WINDOW, ring_steps(ctx, keys, WINDOW))[0] == 4096
    assert seen[CpComm.P2P] == 131072 / 16
    assert seen[CpComm.A2A] == seen[CpComm.ALL_GATHER] == 131072
    assert seen[CpComm.A2A_P2P] == 131072 / 4  # four ranks of a node exchange heads


def test_buffers() -> None:
    """Two remote pieces in a ring, all others twice when gathered, the output once more after an exchange."""
    tokens, piece = 131072 / 16, 2 * 131072 / 16 * 2 * 4 * 128
    kept, meanwhile = {}, {}
    for method in METHODS:
        cost = cost_of(method)
        ctx = cost.compute_context(batch_of_one(layout(1)))
        kept[method], meanwhile[method] = (a[0] for a in held_bytes(ctx, keys_of(cost, 16), FULL))
    assert meanwhile[CpComm.P2P] == meanwhile[CpComm.A2A_P2P] == 2 * piece
    assert meanwhile[CpComm.ALL_GATHER] == 2 * 15 * piece
    assert kept[CpComm.A2A] == 2 * tokens * 16 * 128
    assert kept[CpComm.P2P] == kept[CpComm.ALL_GATHER] == 0


def test_gathered_keys_are_held_once_not_per_layer() -> None:
    """Buffers are transient: what a layer keeps for its backward does not grow with the others' keys."""
    rings, gathers = (
        layer_activations(cost.compute_context(batch_of_one(layout(1))), keys_of(cost, 16), FULL)
        for cost in (cost_of(CpComm.P2P), cost_of(CpComm.ALL_GATHER))
    )
    assert rings.kept_bytes == gathers.kept_bytes
    assert gathers.transient_bytes > rings.transient_bytes


def test_ring_hides_under_long_sequences_only() -> None:
    """Attention grows with the square of the length, its traffic with the length."""
    exposed = [
        estimate(cost_of(CpComm.P2P, length=length), layout(32)).breakdown_s[Component.CP]
        for length in (8192, 262144)
    ]
    assert exposed[0] > 0.0
    assert exposed[1] == 0.0


def test_hierarchical_spares_the_network() -> None:
    """With cp beyond the node, exchanging heads inside it and passing keys around beats exchanging everywhere."""
    flat, both = (
        estimate(cost_of(method, length=65536), layout(32)).breakdown_s[Component.CP]
        for method in (CpComm.A2A, CpComm.A2A_P2P)
    )
    assert both < flat


@pytest.mark.parametrize(
    ("cp", "tp", "split", "repeated"),
    [
        (8, 1, True, True),
        (16, 1, False, True),
        (4, 4, False, True),
        (3, 1, False, False),
        (64, 1, False, False),
    ],
)
def test_heads_that_can_be_scattered(cp: int, tp: int, split: bool, repeated: bool) -> None:
    """32 heads and 8 key-value heads: cp divides both of a tensor rank, or key-value heads are repeated."""
    model = load_workload("llama3-8b").model
    assert bool(heads_divide(model, cp, tp, repeats=False)) is split
    assert bool(heads_divide(model, cp, tp, repeats=True)) is repeated


def test_chunks_attend_less_than_windows() -> None:
    """In chunks of w tokens a query sees w/2 keys on average, in a sliding window nearly w."""
    assert attended_tokens(65536, 8192, causal=True, chunked=True) == 4096
    assert attended_tokens(65536, 8192, causal=True) == 8192 * (1 - 8192 / 131072)
    assert attended_tokens(4096, 8192, causal=True, chunked=True) == 2048
