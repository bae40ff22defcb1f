"""What scales with what: times with the factor on all of them, optimizer traffic with parameters, scores with heads."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.formats import weight_copies
from layoutopt.optimizer.cost.optimizer_step import optimizer_bytes
from layoutopt.optimizer.cost.run_facts import RunFacts
from layoutopt.optimizer.cost.terms import StageTerms
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Precision

LAYOUT = Layout(tp=2, sp=True, pp=2, dp=4, ep=2, micro_batches=8, zero=1)


def terms_of(model: str = "mixtral-8x7b", **calibration: float) -> StageTerms:
    """Terms of a layout under changed constants."""
    workload, cluster = load_workload(model), replace(load_cluster("h100x16"), calibration=calibration)
    cost = build_cost_model(workload.model, workload.training, cluster, framework=Framework.MEGATRON)
    return cost.terms(batch_of_one(LAYOUT))


def test_the_factor_on_all_times_is_on_every_time_and_on_nothing_else() -> None:
    """Twice as slow: seconds double in every term, bytes and counts stay."""
    once, twice = terms_of(), terms_of(time_scale=2.0)
    seconds = [field.name for field in fields(StageTerms) if field.name.endswith("_s")]
    assert len(seconds) >= 12
    for field in fields(StageTerms):
        before, after = getattr(once, field.name), getattr(twice, field.name)
        assert np.allclose(after, 2.0 * before if field.name in seconds else before), field.name
    assert all(
        (getattr(once, name) > 0).any() for name in ("forward_s", "backward_s", "wgrad_s", "hop_s", "head_s")
    )


def test_the_optimizers_traffic_is_38_bytes_per_owned_parameter() -> None:
    """With two 32-bit moments, and 4 for each that the rank holds; moments of 16 bits save a read and a write of half."""
    held, owned = np.array([10.0, 10.0]), np.array([10.0, 2.0])
    assert optimizer_bytes(held, owned, 8.0).tolist() == [420.0, 116.0]
    assert optimizer_bytes(held, owned, 4.0).tolist() == [340.0, 100.0]


def test_a_price_that_nobody_gave_is_asked_for() -> None:
    """Cost rests on it; a price of zero is one."""
    workload, cluster = load_workload("llama3-8b"), load_cluster("h100x16")
    facts = RunFacts(model=workload.model, training=workload.training, cluster=cluster, gpu_hour_cost=None)
    with pytest.raises(InputError) as raised:
        _ = facts.price
    assert raised.value.problems[0].key == "gpu_hour_cost"
    for price in (0.0, 2.5):
        assert replace(facts, gpu_hour_cost=price).price == price


def test_what_latent_attention_keeps_of_a_head() -> None:
    """In 16 bits queries, keys with their part that has no position, values, the output; softmax statistics in 32."""
    workload, cluster = load_workload("deepseek-v3"), load_cluster("h100x16")
    mla, kept = workload.model.mla, []
    assert mla is not None
    for heads in (64, 128):
        model = replace(workload.model, heads=heads, kv_heads=heads)
        cost = build_cost_model(model, workload.training, cluster, framework=Framework.MEGATRON)
        kept.append(cost.terms(batch_of_one(replace(LAYOUT, tp=1, sp=False, dp=8))).layer_activation_bytes[0])
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    # Beside the values, where those are a view of what was projected with them.
    beside = 0 if load_preset(Framework.MEGATRON).copies_values else mla.qk_nope_head_dim
    each = 2.0 * (2 * query + mla.v_head_dim + beside) + 2.0 * mla.v_head_dim + 4.0
    assert np.allclose((kept[1] - kept[0]) / (64 * workload.training.sequence_length), each)


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.MXFP8, Precision.NVFP4])
def test_a_narrow_weight_is_there_once_where_the_gpu_multiplies_any_arrangement(precision: Precision) -> None:
    """Scales along one axis need a copy for the other; so does a GPU that multiplies one arrangement only."""
    assert weight_copies(precision, any_arrangement=False) == 2
    assert weight_copies(precision, any_arrangement=True) == (1 if precision is Precision.FP8 else 2)
