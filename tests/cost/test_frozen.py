"""Frozen parts of a model: what is trained, its FLOPs, states and traffic, against counts by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import Estimate, estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.cost.frozen import trained_flops_per_token, trained_parameters
from layoutopt.optimizer.cost.parameters import block_parameters, layer_parts, norm_width
from layoutopt.optimizer.evidence.band import error_band
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import FrozenPart, Precision

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.specs.workload import Workload

DENSE, MOE = "llama3-8b", "mixtral-8x7b"
IN_BLOCKS = (FrozenPart.ATTENTION, FrozenPart.MLP, FrozenPart.EXPERTS, FrozenPart.ROUTER)


def asked(name: str, *frozen: FrozenPart) -> Workload:
    """Return a built-in model's training with frozen parts."""
    workload = load_workload(name)
    return replace(workload, training=replace(workload.training, frozen=frozen, global_batch=64))


def priced(
    name: str, *frozen: FrozenPart, framework: Framework = Framework.MEGATRON, **degrees: Any
) -> Estimate:
    """Price it on eight H100 of one node."""
    workload, machine = asked(name, *frozen), load_cluster("h100x8")
    cost = build_cost_model(workload.model, workload.training, machine, framework=framework)
    return estimate(cost, PartialLayout(micro_batch=1, **degrees).complete(workload, machine))


@pytest.mark.parametrize("name", [DENSE, MOE, "deepseek-v3", "qwen3-next-80b-a3b"])
def test_all_parts_frozen_leave_the_norms(name: str) -> None:
    """The parts of every layer and its norms are the layer: frozen together they leave the norms alone."""
    workload = asked(name, *IN_BLOCKS)
    model = workload.model
    for run in model.runs:
        norms = block_parameters(model, run).total - sum(
            part.total for shape in run.block for part in layer_parts(model, shape).values()
        )
        assert trained_parameters(model, workload.training, run).total == pytest.approx(norms)
        assert norms % (norm_width(model) * model.hidden) == 0 and norms > 0


def test_parameters_by_hand() -> None:
    """Mixtral: 8 experts of three matrices a layer, a router, and attention with 8 of 32 key-value heads."""
    model = load_workload(MOE).model
    (run,) = model.runs
    h, key = model.hidden, model.kv_heads * model.head_dim
    by_hand = {
        FrozenPart.EXPERTS: 8 * 3 * h * 14336,
        FrozenPart.ROUTER: 8 * h,
        FrozenPart.ATTENTION: 2 * h * h + 2 * h * key,
    }
    whole = block_parameters(model, run).total
    for part, count in by_hand.items():
        left = trained_parameters(model, asked(MOE, part).training, run)
        assert whole - left.total == count, part


@pytest.mark.parametrize("part", FrozenPart)
def test_flops_are_two_fewer_per_frozen_parameter(part: FrozenPart) -> None:
    """Of 6 per parameter and token 2 go, of 2 of 8 experts alone; the embedding is looked up, not multiplied."""
    model, length = load_workload(MOE).model, 4096
    h, ffn, key, layers = model.hidden, 14336, model.kv_heads * model.head_dim, model.layers
    multiplied = {
        FrozenPart.EMBEDDING: 0,
        FrozenPart.OUTPUT: model.vocab * h,
        FrozenPart.ATTENTION: layers * (2 * h * h + 2 * h * key),
        FrozenPart.MLP: 0,
        FrozenPart.EXPERTS: layers * 2 * 3 * h * ffn,
        FrozenPart.ROUTER: layers * 8 * h,
    }
    whole = model_flops_per_token(model, length, causal=True)
    found = trained_flops_per_token(model, asked(MOE, part).training, length, causal=True)
    assert whole - found == pytest.approx(2 * multiplied[part], rel=1e-12)


def test_states_by_hand() -> None:
    """Without sharding a frozen weight takes 2 bytes and a trained one 18: 2 + 4 of the gradient + 12 of the optimizer."""
    model = load_workload(DENSE).model
    (run,) = model.runs
    mlp = run.count * 3 * model.hidden * run.block[0].ffn
    table = model.vocab * model.hidden
    whole = priced(DENSE, zero=0).memory.stages[0].components_bytes
    for parts, count in (
        ((FrozenPart.MLP,), mlp),
        ((FrozenPart.EMBEDDING, FrozenPart.OUTPUT), 2 * table),
        ((FrozenPart.EMBEDDING,), table),
        ((FrozenPart.OUTPUT,), table),
    ):
        left = priced(DENSE, *parts, zero=0).memory.stages[0].components_bytes
        assert left["weights"] == pytest.approx(whole["weights"], rel=1e-12)
        assert whole["gradients"] - left["gradients"] == pytest.approx(4 * count, rel=1e-12)
        assert whole["optimizer"] - left["optimizer"] == pytest.approx(12 * count, rel=1e-12)


@pytest.mark.parametrize("framework", [Framework.MEGATRON, Framework.TORCHTITAN])
@pytest.mark.parametrize("part", FrozenPart)
def test_freezing_takes_no_time_and_no_memory(framework: Framework, part: FrozenPart) -> None:
    """Whatever is frozen, no component of the step grows, and peak memory does not."""
    zero = 1 if framework is Framework.MEGATRON else 3
    whole = priced(MOE, framework=framework, zero=zero, ep=8)
    left = priced(MOE, part, framework=framework, zero=zero, ep=8)
    assert left.memory.peak_bytes <= whole.memory.peak_bytes
    assert left.step_time_s <= whole.step_time_s
    for component in Component:
        if component is not Component.DP:  # less compute may cover less traffic
            assert left.breakdown_s[component] <= whole.breakdown_s[component] + 1e-12, component
    backward = whole.breakdown_s[Component.BACKWARD] - left.breakdown_s[Component.BACKWARD]
    assert (backward > 0) is (part is not FrozenPart.MLP)  # Mixtral has neither dense MLPs nor shared experts


def test_gradients_of_frozen_experts_are_not_reduced() -> None:
    """Experts are 96% of Mixtral's blocks: frozen, their gradients stay, and the rest's traffic is what it was."""
    many: dict[str, Any] = {"zero": 1, "tp": 1, "ep": 4}
    whole, left = priced(MOE, **many), priced(MOE, FrozenPart.EXPERTS, **many)
    assert left.breakdown_s[Component.OPTIMIZER] < 0.2 * whole.breakdown_s[Component.OPTIMIZER]


def test_the_proven_layout_of_a_partly_frozen_model_needs_less() -> None:
    """Llama 3 70B does not train on eight H100; with frozen MLPs, attention and ends it fits, and the plan is proven."""
    cluster, options = load_cluster("h100x8"), SolveOptions(framework=Framework.MEGATRON)
    everything = asked("llama3-70b")
    parts = (FrozenPart.EMBEDDING, FrozenPart.ATTENTION, FrozenPart.MLP, FrozenPart.OUTPUT)
    assert solve_layout(everything, cluster, options).layout is None
    plan = solve_layout(asked("llama3-70b", *parts), cluster, options)
    assert plan.layout is not None and plan.status == "optimal"


def test_no_measured_run_is_claimed() -> None:
    """No run of the tables freezes parts: the band is the wider of its family's and that of all kinds, and says so."""
    cluster = load_cluster("h100x8")
    bands = [error_band(asked(DENSE, *frozen), cluster, Precision.BF16) for frozen in ((), (FrozenPart.MLP,))]
    assert bands[0].rows > 0 and bands[1].rows == 0
    assert bands[1].outside == "models with frozen parts"


@pytest.mark.parametrize(
    ("frozen", "extra", "said"),
    [
        ("[mlps]", "", "mlps"),
        ("[]", "", "no list of parts"),
        ("[experts]", "", "the model has no experts"),
        ("[embedding]", "", "embedding alone, of tied embeddings"),
        ("[mlp]", "\n  optimizer: muon", "muon's work is of all matrices"),
        ("[mlp]", "\n  adapter: {rank: 8}", "adapters freeze every part"),
        ("", "\n  adapter: {rank: 8}\n  optimizer: muon", "which adapters freeze"),
        ("", "\n  adapter: {rank: 8, targets: [experts]}", "no experts to adapt"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, frozen: str, extra: str, said: str) -> None:
    """Parts that are not there, one of a matrix that is two, and what another key says already."""
    path = tmp_path / "m.yaml"
    path.write_text(
        "architecture: {layers: 4, hidden: 512, heads: 8, ffn: 2048, vocab: 32000, tied_embeddings: true}\n"
        "training:\n  sequence_length: 2048\n  global_batch: 8\n  precision: bf16"
        + (f"\n  frozen: {frozen}" if frozen else "")
        + f"{extra}\n"
    )
    with pytest.raises(InputError) as refused:
        load_workload(str(path))
    assert said in str(refused.value)
