"""Adapters on frozen weights: parameters, FLOPs, states and traffic against counts by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.adapters import (
    NF4_BYTES,
    adapted_flops_per_token,
    adapted_matrices,
    adapter_parameters,
)
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import Estimate, estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.cost.parameters import block_parameters, model_parameters
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.model import AdapterSpec, Mlp
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import AdapterMethod, AdapterTarget, Granularity

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.specs.workload import Workload

LORA = AdapterSpec(method=AdapterMethod.LORA, rank=16, targets=tuple(AdapterTarget))
QLORA = replace(LORA, method=AdapterMethod.QLORA)


def priced(name: str, adapter: AdapterSpec | None, cluster: str = "h100x8", **degrees: Any) -> Estimate:
    """Price a model's training under Megatron."""
    workload = load_workload(name)
    training = replace(workload.training, adapter=adapter, global_batch=64)
    asked = replace(workload, training=training)
    machine = load_cluster(cluster)
    cost = build_cost_model(asked.model, training, machine, framework=Framework.MEGATRON)
    return estimate(cost, PartialLayout(micro_batch=1, **degrees).complete(asked, machine))


@pytest.mark.parametrize(("name", "trained"), [("llama3-8b", 41.9e6), ("llama3-70b", 207e6)])
def test_trained_parameters(name: str, trained: float) -> None:
    """Rank 16 on all seven matrices of a layer: 41.9 million of Llama 3 8B, 207 million of 70B."""
    model = load_workload(name).model
    (run,) = model.runs
    h, ffn, key = model.hidden, run.block[0].ffn, model.kv_heads * model.head_dim
    by_hand = 16 * (2 * (h + h) + 2 * (h + key) + 3 * (h + ffn)) * run.count
    counted = adapter_parameters(model, LORA, run).total * run.count
    assert counted == by_hand == pytest.approx(trained, rel=2e-3)


@pytest.mark.parametrize("name", ["llama3-8b", "llama2-7b", "mixtral-8x7b", "deepseek-v2"])
def test_outputs_alone_are_row_parallel(name: str) -> None:
    """Ranks share out the input of a mixer's output and of the way down, and the output of every other matrix.

    Keys and values of few groups are narrower than their input and column-parallel all the same; with as many groups as
    heads queries have the shape of the output.
    """
    model = load_workload(name).model
    shape = model.runs[-1].block[0]
    found = list(adapted_matrices(model, LORA, shape))
    widths = {one.columns for one in found if one.row_parallel}
    ffn = model.moe.ffn if shape.mlp is Mlp.MOE and model.moe else shape.ffn
    shared = {model.moe.shared_ffn} - {0} if model.moe else set()
    inner = model.heads * (model.mla.v_head_dim if model.mla else model.value_dim)
    assert widths == {inner, ffn} | shared
    assert {one.rows for one in found if one.row_parallel} == {model.hidden}
    attention = [one for one in found if one.columns == inner and one.rows == model.hidden]
    assert sum(one.count for one in attention if one.row_parallel) == 1


def test_flops_are_four_per_frozen_parameter() -> None:
    """Llama 3 70B: 4 per parameter in matrices, 6 per trained one, attention as in full training."""
    model, length = load_workload("llama3-70b").model, 4096
    matrices = model_parameters(model) - model.vocab * model.hidden
    norms = (2 * model.layers + 1) * model.hidden
    trained = adapter_parameters(model, LORA, model.runs[0]).total * model.layers
    whole = model_flops_per_token(model, length, causal=True)
    attention = whole - 6 * (matrices - norms)
    found = adapted_flops_per_token(model, length, LORA, causal=True)
    assert found == pytest.approx(4 * (matrices - norms) + attention + 6 * trained, rel=1e-12)
    # Megatron-Bridge's logs count 2.79e11 FLOP per token of this model and length, and 4.32e11 in full training.
    assert found == pytest.approx(2.79e11, rel=0.06)
    assert whole == pytest.approx(4.32e11, rel=0.01)


@pytest.mark.parametrize("zero", [1, 3])
def test_states_of_frozen_weights_are_the_weights_alone(zero: int) -> None:
    """Two bytes a frozen parameter, whole on every rank unless sharded; 4-bit blocks take 0.516; adapters are trained."""
    model = load_workload("llama3-8b").model
    shard = 8 if zero == 3 else 1
    blocks = sum(run.count * block_parameters(model, run).total for run in model.runs)
    ends = model_parameters(model) - blocks
    trained = sum(run.count * adapter_parameters(model, LORA, run).total for run in model.runs)
    for adapter, each in ((LORA, 2.0), (QLORA, NF4_BYTES)):
        stage = priced("llama3-8b", adapter, zero=zero).memory.stages[0].components_bytes
        weights = (each * blocks + 2 * ends) / shard
        # adapters are trained with the trainer's own states, which are sharded as any
        assert weights <= stage["weights"] <= weights + 4 * trained
        assert stage["gradients"] <= 4 * trained
        assert stage["optimizer"] <= 12 * trained
    assert pytest.approx(0.516, abs=1e-3) == NF4_BYTES
    assert priced("llama3-8b", None, zero=zero).memory.stages[0].components_bytes["weights"] > 0


def test_time_and_traffic() -> None:
    """No weight gradients, next to no gradient traffic; gathers of sharded weights stay; 4 bits cost time."""
    whole, lora, qlora = (priced("llama3-8b", adapter, tp=2) for adapter in (None, LORA, QLORA))
    backward = {name: one.breakdown_s[Component.BACKWARD] for name, one in (("whole", whole), ("lora", lora))}
    assert 0.5 < backward["lora"] / backward["whole"] < 0.75
    assert lora.step_time_s < whole.step_time_s
    assert lora.breakdown_s[Component.OPTIMIZER] < 0.02 * whole.breakdown_s[Component.OPTIMIZER]
    assert 1.0 < qlora.step_time_s / lora.step_time_s < 1.25
    sharded = [priced("llama3-8b", adapter, "h100x64", zero=3) for adapter in (None, LORA)]
    gathered = [one.breakdown_s[Component.FSDP] for one in sharded]
    assert gathered[1] > 0
    assert np.isfinite(gathered).all()


def test_recomputation_repeats_the_forward() -> None:
    """Full recomputation adds the forward of frozen weights: two FLOPs beside four."""
    full = Recompute(granularity=Granularity.FULL)
    stated: dict[str, Any] = {"recompute": full, "recompute_layers": 32}
    again = priced("llama3-8b", LORA, **stated).breakdown_s
    assert again[Component.RECOMPUTE] == pytest.approx(again[Component.FORWARD], rel=0.15)


def test_model_file(tmp_path: Path) -> None:
    """The key is read, with its words; what is none of them is one line."""
    text = MODEL.replace("ADAPTER", "{method: qlora, rank: 32, targets: [attention]}")
    assert _load(tmp_path, text).training.adapter == AdapterSpec(
        method=AdapterMethod.QLORA, rank=32, targets=(AdapterTarget.ATTENTION,)
    )
    with pytest.raises(InputError, match="targets"):
        _load(tmp_path, MODEL.replace("ADAPTER", "{rank: 8, targets: [heads]}"))
    with pytest.raises(InputError, match="rank"):
        _load(tmp_path, MODEL.replace("ADAPTER", "{method: lora}"))


MODEL = """\
architecture: {layers: 4, hidden: 512, heads: 8, kv_heads: 8, ffn: 2048, vocab: 1000}
training:
  sequence_length: 1024
  global_batch: 8
  precision: bf16
  adapter: ADAPTER
"""


def _load(folder: Path, text: str) -> Workload:
    path = folder / "model.yaml"
    path.write_text(text)
    return load_workload(path)
