"""What multiplying in 8 bits moves: casts by recipe, narrow gathers, weights; and matrices multiplied one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.cost.collectives import collectives
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.formats import Operands, gathered_bytes, weight_cast_bytes
from layoutopt.optimizer.frameworks.preset import NarrowWeights, load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.specs.layout import Layout

MX, BLOCK = 1 + 1 / 32, 1 + 4 / 128

HOPPER = {
    # recipe: a tensor of its own, one that a norm writes, one that ranks gather (where it is cast, and gathered)
    Fp8Recipe.DELAYED: (2 + 2, 2, (2 + 1, 2)),
    Fp8Recipe.CURRENT: (2 + 2 + 2, 2 + 2, (2 + 2 + 1, 2)),
    Fp8Recipe.BLOCKWISE: (2 + 2 * BLOCK, 2 + 2 * BLOCK, (2 + 2 * BLOCK, 0)),
}


@pytest.mark.parametrize("recipe", HOPPER, ids=str)
def test_casts_on_hopper_by_recipe(recipe: Fp8Recipe) -> None:
    """One arrangement multiplies: the other is written by the cast, or from what was gathered or a norm wrote."""
    operands = Operands(precision=Precision.FP8, recipe=recipe, any_arrangement=False)
    alone, normed, gathered = HOPPER[recipe]
    assert sum(operands.cast_bytes(normed=False, gathered=False)) == alone
    assert sum(operands.cast_bytes(normed=True, gathered=False)) == normed
    assert operands.cast_bytes(normed=False, gathered=True) == gathered


def test_casts_on_blackwell_by_recipe() -> None:
    """A tensor with one scale has one copy; blocks have one along either axis, and scales put in order."""

    def total(precision: Precision, recipe: Fp8Recipe | None, *, normed: bool = False) -> float:
        operands = Operands(precision=precision, recipe=recipe, any_arrangement=True)
        return sum(operands.cast_bytes(normed=normed, gathered=False))

    assert total(Precision.FP8, Fp8Recipe.DELAYED) == 3
    assert total(Precision.FP8, Fp8Recipe.DELAYED, normed=True) == 0
    assert total(Precision.FP8, Fp8Recipe.CURRENT) == 5
    assert total(Precision.FP8, Fp8Recipe.CURRENT, normed=True) == 3
    assert total(Precision.MXFP8, Fp8Recipe.MX) == total(Precision.MXFP8, Fp8Recipe.MX, normed=True)
    assert total(Precision.MXFP8, Fp8Recipe.MX) == 2 + 2 * (MX + 2 / 32)


def test_weights_scaled_along_an_axis_are_gathered_in_16_bits_and_cast() -> None:
    """Two copies out of the gradients' buffer, which is cleared; one scale for the tensor travels in 8 bits."""
    alone = replace(load_preset(Framework.MEGATRON), narrow_weights=NarrowWeights.ALONE)
    beside = replace(alone, narrow_weights=NarrowWeights.COPIES)
    assert gathered_bytes(alone, Precision.MXFP8) == 2
    assert gathered_bytes(alone, Precision.FP8) == BLOCK
    assert weight_cast_bytes(alone, Precision.MXFP8, any_arrangement=True) == 2 + 2 * MX + 2
    assert weight_cast_bytes(alone, Precision.FP8, any_arrangement=True) == 0
    assert weight_cast_bytes(alone, Precision.FP8, any_arrangement=False) == 2
    assert weight_cast_bytes(beside, Precision.MXFP8, any_arrangement=True) == 2 + 2 * MX
    assert weight_cast_bytes(alone, Precision.BF16, any_arrangement=True) == 0


def priced(text: str, *, cluster: str = "h100x64", **changes: Any) -> tuple[CostModel, Layout]:
    """Return a model of llama3-70b under Megatron's preset with fields of training or preset replaced, and a layout."""
    workload, machines = load_workload("llama3-70b"), load_cluster(cluster)
    named = {"precision", "fp8_recipe"}
    training = replace(workload.training, **{k: v for k, v in changes.items() if k in named})
    preset = replace(load_preset(Framework.MEGATRON), **{k: v for k, v in changes.items() if k not in named})
    cost = build_cost_model(workload.model, training, machines, preset=preset)
    return cost, parse_layout(text).complete(replace(workload, training=training), machines)


TP8 = "tp=8,pp=8,mb=1,zero=1,sp=true"


def gathers(precision: Precision, recipe: Fp8Recipe | None, cluster: str = "h100x64") -> dict[int, int]:
    """Return how often the first stage gathers over tensor-parallel ranks, by bytes."""
    calls = collectives(*priced(TP8, precision=precision, fp8_recipe=recipe, cluster=cluster))
    own = [one for one in calls if one.stage == 1 and one.axis == "tp" and one.kind == "all_gather"]
    return {one.bytes: one.count for one in own}


def test_ranks_gather_what_multiplies_in_8_bits() -> None:
    """Half the bytes with one scale, all three gathers; of blocks, gradients travel in both copies; rows stay wide."""
    whole = 2 * 8192 * 8192
    (wide,) = gathers(Precision.BF16, None).items()
    assert wide[0] == whole
    assert gathers(Precision.FP8, Fp8Recipe.CURRENT) == {whole // 2: wide[1]}
    assert gathers(Precision.FP8, Fp8Recipe.ROWWISE) == {whole: wide[1]}
    blocks = gathers(Precision.MXFP8, Fp8Recipe.MX, "b200x64")
    assert blocks == {round(whole / 2 * MX): wide[1] * 2 // 3, round(whole * MX): wide[1] // 3}


def test_current_scaling_asks_every_rank_for_the_largest_value() -> None:
    """A sum of four bytes in front of each exposed gather: two forward and two backward a layer."""
    both = [
        estimate(*priced(TP8, precision=Precision.FP8, fp8_recipe=recipe)).breakdown_s[Component.TP]
        for recipe in (Fp8Recipe.DELAYED, Fp8Recipe.CURRENT)
    ]
    assert 0.002 < both[1] / both[0] - 1 < 0.2


def test_matrices_multiplied_one_by_one_add_up_their_input_gradients() -> None:
    """Query, key and value read two sums and write one twice, gate and up once: at least nine passes a layer."""
    layout = "tp=8,pp=8,mb=1,zero=1"
    joint, apart = (estimate(*priced(layout, joint_projections=own)).breakdown_s for own in (True, False))
    speed = load_cluster("h100x64").gpu.hbm_bytes_per_s * load_constants().of("hbm_fraction", "hopper")
    batch = load_workload("llama3-70b").training.global_batch
    sums = 10 * 2 * (6 + 3) * batch * 8192 * 8192 / speed
    assert apart[Component.BACKWARD] - joint[Component.BACKWARD] > 0.999 * sums
    assert apart[Component.FORWARD] > joint[Component.FORWARD]
    eager, compiled = (
        estimate(*priced(layout, joint_projections=False, compiled=own)).breakdown_s[Component.BACKWARD]
        for own in (False, True)
    )
    assert compiled < eager


def test_selective_op_recomputation_gathers_again() -> None:
    """Torchtitan saves what scatters give, not what gathers do: two exposed gathers a layer more."""
    plain, again = (
        estimate(*priced(f"{TP8}{more}", tp_async_backward=False)).breakdown_s
        for more in ("", ",recompute=selective:op")
    )
    added = again[Component.RECOMPUTE] - plain[Component.RECOMPUTE]
    assert again[Component.TP] == pytest.approx(plain[Component.TP])
    no_ranks = estimate(*priced("tp=1,pp=8,mb=1,zero=1,recompute=selective:op")).breakdown_s
    assert added > no_ranks[Component.RECOMPUTE] / 8 + 0.9 * plain[Component.TP] / 4
