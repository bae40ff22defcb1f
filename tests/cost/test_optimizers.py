"""Optimizers: state bytes and FLOPs by hand, Muon's three ways in order, what trainers launch, and round trips."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.cost import optimizer_step
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.estimate import Estimate, estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.matrices import (
    block_matrices,
    model_matrices,
    mtp_matrices,
    other_parameters,
)
from layoutopt.optimizer.cost.parameters import block_parameters
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import (
    load_cluster,
    load_workload,
    model_names,
    parse_layout,
    parse_workload,
)
from layoutopt.optimizer.specs.model import OptimizerSpec
from layoutopt.optimizer.specs.vocabulary import MuonSharing, Optimizer

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.matrices import Matrix
    from layoutopt.optimizer.specs.workload import Workload

CLUSTER = load_cluster("h100x16")
GB = 1e9


def with_optimizer(kind: Optimizer, name: str = "llama3-8b", **fields: Any) -> Workload:
    """A built-in model with another optimizer."""
    workload = load_workload(name)
    spec = replace(OptimizerSpec(kind=kind), **fields)
    return replace(workload, training=replace(workload.training, optimizer=spec, global_batch=64))


def priced(
    workload: Workload, layout: str, cluster: str = "h100x16", framework: Framework = Framework.MEGATRON
) -> Estimate:
    """Price a layout."""
    machine = load_cluster(cluster)
    model = build_cost_model(workload.model, workload.training, machine, framework=framework)
    return estimate(model, parse_layout(layout).complete(workload, machine))


@pytest.mark.parametrize("name", model_names())
def test_matrices_and_the_rest_make_up_a_block(name: str) -> None:
    """What is in no matrix are norms, biases, routers and other vectors: little, and never negative."""
    model = load_workload(name).model
    for run in model.runs:
        whole, other = block_parameters(model, run), other_parameters(model, run)
        parts = sum(one.count * one.elements for one in block_matrices(model, run))
        assert parts + other.total == pytest.approx(whole.total, rel=1e-12)
        assert min(other.sharded, other.replicated, other.expert, other.key_value) >= 0
        assert other.total < 0.02 * whole.total


def newton_schulz_flops(matrix: Matrix, steps: int) -> float:
    """FLOPs of the whole iteration on one matrix: 4 m^2 n + 2 m^3 a step."""
    m, n = float(matrix.short), float(matrix.long)
    return steps * (4 * m * m * n + 2 * m**3)


def counted_flops(monkeypatch: pytest.MonkeyPatch, name: str, way: MuonSharing, layout: str) -> float:
    """FLOPs that a rank's optimizer step multiplies: each multiplication takes a second a PFLOP, the rest is taken off."""
    spent = []
    for rate in (1e-15, 0.0):
        monkeypatch.setattr(optimizer_step, "gemm_s", lambda _, m, n, k, wide, s=rate: 2.0 * m * n * k * s)
        whole = priced(with_optimizer(Optimizer.MUON, name, distribution=way), layout, "gb300x32")
        spent.append(whole.breakdown_s[Component.OPTIMIZER])
    return (spent[0] - spent[1]) * 1e15


@pytest.mark.parametrize(
    ("name", "peta"), [("llama3-8b", 0.67), ("llama3-70b", 13.2), ("llama3-405b", 158), ("deepseek-v3", 32)]
)
def test_newton_schulz_flops_of_whole_models(monkeypatch: pytest.MonkeyPatch, name: str, peta: float) -> None:
    """Five steps over all matrices, in PFLOP; a rank multiplies them all, and those that predict further tokens."""
    model = load_workload(name).model
    matrices = model_matrices(model)
    by_hand = sum(one.count * newton_schulz_flops(one, 5) for one in matrices)
    assert by_hand == pytest.approx(peta * 1e15, rel=0.01)
    further = sum(one.count * newton_schulz_flops(one, 5) for one in mtp_matrices(model))
    by_hand += model.mtp_layers * further
    found = counted_flops(monkeypatch, name, MuonSharing.DUPLICATED, "tp=1,dp=32,mb=1,zero=0")
    assert found == pytest.approx(by_hand, rel=1e-9)


def test_newton_schulz_flops_by_the_way_they_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3 70B: tp 4 divides the long side of m^2 n but not m^3; 16 owners of whole matrices a sixteenth each."""
    h, kv, f = 8192, 1024, 28_672
    square, narrow, wide = (6.0 * h**3, 4.0 * kv * kv * h + 2.0 * kv**3, 4.0 * h * h * f + 2.0 * h**3)
    whole = 80 * 5 * (2 * square + 2 * narrow + 3 * wide)
    parted = 80 * 5 * (2 * (h**3 + 2 * h**3) + 2 * (kv * kv * h + 2 * kv**3) + 3 * (h * h * f + 2 * h**3))
    for way, layout, by_hand in (
        (MuonSharing.DUPLICATED, "tp=4,dp=8,mb=1,zero=0", whole),
        (MuonSharing.DISTRIBUTED, "tp=4,dp=8,mb=1,zero=0", parted),
        (MuonSharing.OWNER, "tp=2,dp=16,mb=1,zero=1", whole / 16),
    ):
        found = counted_flops(monkeypatch, "llama3-70b", way, layout)
        assert found == pytest.approx(by_hand, rel=1e-9), way


H, F, L, KV, V = 4096, 14336, 32, 1024, 128_256
MATRICES = L * (2 * H * H + 2 * KV * H + 3 * H * F)
OTHERS = L * 2 * H + 2 * V * H + H
STATE = {  # bytes per parameter beside 4 of the master weight: of matrices, of everything else
    Optimizer.ADAMW: (8.0, 8.0),
    Optimizer.ADAM_8BIT: (2 * (1 + 4 / 256), 8.0),
    Optimizer.LION: (4.0, 4.0),
    Optimizer.SGD: (4.0, 4.0),
    Optimizer.ADAFACTOR: (  # every tensor of two dimensions is factored, embedding and output matrix too
        4.0 * L * (2 * (H + H) + 2 * (KV + H) + 3 * (H + F)) / MATRICES,
        4.0 * (L * 2 * H + H + 2 * (V + H)) / OTHERS,
    ),
    Optimizer.MUON: (4.0, 8.0),
}


@pytest.mark.parametrize("kind", Optimizer)
def test_state_bytes_by_hand(kind: Optimizer) -> None:
    """Llama 3 8B on one rank: master weights and the optimizer's own, embedding, output matrix and norms apart."""
    whole = priced(with_optimizer(kind), "tp=1,dp=16,mb=1,zero=0", framework=Framework.ANY)
    (stage,) = whole.memory.stages
    matrix, other = STATE[kind]
    by_hand = (4 + matrix) * MATRICES + (4 + other) * (OTHERS + _padded_rows())
    assert stage.components_bytes["optimizer"] == pytest.approx(by_hand, rel=1e-9)
    parted = priced(with_optimizer(kind), "tp=1,dp=16,mb=1,zero=1", framework=Framework.ANY)
    assert parted.memory.stages[0].components_bytes["optimizer"] == pytest.approx(by_hand / 16, rel=1e-9)


def _padded_rows() -> int:
    """Rows that padding adds to both vocabulary matrices: 128,256 is a multiple of 128."""
    return 2 * H * (-V % 128)


def step_s(way: MuonSharing, zero: int, name: str = "llama3-70b") -> float:
    """Seconds of the optimizer step of Muon."""
    workload = with_optimizer(Optimizer.MUON, name, distribution=way)
    layout = f"tp=4,pp=2,dp=4,mb=1,zero={zero}"
    return priced(workload, layout, "gb300x32").breakdown_s[Component.OPTIMIZER]


def test_the_three_ways_of_muon_are_in_their_order() -> None:
    """As measured on 32 GB300 (632, 356, 157 ms): duplicated, then multiplications divided by tp, then owners."""
    duplicated, distributed, owner = (
        step_s(MuonSharing.DUPLICATED, 0), step_s(MuonSharing.DISTRIBUTED, 0), step_s(MuonSharing.OWNER, 1),
    )  # fmt: skip
    assert duplicated > 1.2 * distributed > 1.2 * 1.2 * owner
    adam = priced(with_optimizer(Optimizer.ADAMW, "llama3-70b"), "tp=4,pp=2,dp=4,mb=1,zero=1", "gb300x32")
    assert owner > adam.breakdown_s[Component.OPTIMIZER]


def test_a_matrix_list_by_hand() -> None:
    """Duplicated on one rank: every matrix whole, at the rate of its multiplications, within what shapes leave of it."""
    one = step_s(MuonSharing.DUPLICATED, 0, "llama3-8b")
    model = load_workload("llama3-8b").model
    flops = sum(m.count * newton_schulz_flops(m, 5) for m in model_matrices(model)) / 2  # two stages
    rate = flops / (one - 0.02)
    assert 0.2 * 2.5e15 < rate < load_constants()["gemm_cap.blackwell-gb300"] * 2.5e15


def test_owners_share_by_matrices() -> None:
    """Twice the owners halve the time, until one matrix is all that an owner has."""
    times = []
    for gpus in (16, 32, 64, 4096):
        workload = with_optimizer(Optimizer.MUON)
        workload = replace(workload, training=replace(workload.training, global_batch=gpus))
        times.append(
            priced(workload, f"tp=1,dp={gpus},mb=1,zero=1", f"h100x{gpus}").breakdown_s[Component.OPTIMIZER]
        )
    assert times[0] > times[1] > times[2] > times[3]
    rank_s = (times[0] - times[1]) / (times[1] - times[2])
    assert rank_s == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("framework", "software", "kind", "way", "zero", "rule"),
    [
        (Framework.MEGATRON, None, Optimizer.MUON, None, 1, None),
        (Framework.MEGATRON, None, Optimizer.MUON, MuonSharing.DISTRIBUTED, 0, None),
        (Framework.MEGATRON, None, Optimizer.LION, None, 1, None),
        (Framework.MEGATRON, "core 0.16", Optimizer.LION, None, 1, "optimizer_supported"),
        (Framework.MEGATRON, "core 0.15", Optimizer.MUON, None, 1, "optimizer_supported"),
        (Framework.MEGATRON, None, Optimizer.ADAFACTOR, None, 1, "optimizer_supported"),
        (Framework.MEGATRON, None, Optimizer.MUON, None, 3, "optimizer_sharding"),
        (Framework.MEGATRON, None, Optimizer.SGD, None, 3, None),
        (Framework.MEGATRON, None, Optimizer.MUON, MuonSharing.OWNER, 0, "muon_owner_needs_zero"),
        (Framework.MEGATRON, None, Optimizer.MUON, MuonSharing.DUPLICATED, 1, "muon_without_owner"),
        (Framework.ANY, None, Optimizer.MUON, MuonSharing.DUPLICATED, 1, None),
        (Framework.ACCELERATE, None, Optimizer.ADAM_8BIT, None, 3, None),
        (Framework.TORCHTITAN, None, Optimizer.MUON, None, 3, "optimizer_supported"),
        (Framework.DEEPSPEED, None, Optimizer.MUON, None, 1, None),
    ],
)  # fmt: skip
def test_what_trainers_launch(
    framework: Framework,
    software: str | None,
    kind: Optimizer,
    way: MuonSharing | None,
    zero: int,
    rule: str | None,
) -> None:
    """Releases, sharding and the ways of Muon are rules."""
    workload = with_optimizer(kind, distribution=way)
    layout = parse_layout(f"tp=1,dp=16,mb=1,zero={zero}").complete(workload, CLUSTER)
    judged = judge_layout(workload, CLUSTER, layout, framework=framework, software=software)
    broken = {rule.rule for rule in judged.broken}
    assert (
        (rule in broken) if rule else not {name for name in broken if "optimizer" in name or "muon" in name}
    )


@pytest.mark.parametrize(
    ("framework", "version", "kind", "fields"),
    [
        (Framework.MEGATRON, "core 0.19", Optimizer.MUON, {}),
        (
            Framework.MEGATRON,
            "core 0.19",
            Optimizer.MUON,
            {"distribution": MuonSharing.DISTRIBUTED, "steps": 6},
        ),
        (Framework.MEGATRON, "core 0.17", Optimizer.MUON, {}),
        (Framework.MEGATRON, "core 0.19", Optimizer.LION, {}),
        (Framework.MEGATRON, "core 0.19", Optimizer.SGD, {}),
        (Framework.DEEPSPEED, "0.19.6", Optimizer.LION, {}),
        (Framework.DEEPSPEED, "0.19.6", Optimizer.MUON, {}),
    ],
)
def test_what_is_exported_is_read_back(
    framework: Framework, version: str, kind: Optimizer, fields: dict[str, Any]
) -> None:
    """Kind, distribution and steps survive; so does the sharding that they come with."""
    workload = with_optimizer(kind, **fields)
    zero = 0 if "distribution" in fields else 1
    layout = parse_layout(f"tp=1,dp=16,mb=1,zero={zero}").complete(workload, CLUSTER)
    job = export(layout, workload, CLUSTER, framework, version=version)
    name, text = next((n, t) for n, t in job.files.items() if n.endswith((".sh", ".json")))
    found = import_text(text, name).value
    assert found.training.optimizer == workload.training.optimizer
    assert found.layout.zero == zero


def test_model_files_state_the_optimizer() -> None:
    """A word or a mapping; keys of Muon come with Muon; unknown words are named."""
    text = """\
architecture: {layers: 2, hidden: 128, heads: 4, ffn: 512, vocab: 1000}
training: {sequence_length: 128, global_batch: 8, precision: bf16, optimizer: %s}
"""
    assert parse_workload(text % "lion", "m.yaml").training.optimizer == OptimizerSpec(kind=Optimizer.LION)
    muon = parse_workload(text % "{kind: muon, distribution: owner, steps: 6}", "m.yaml").training.optimizer
    assert muon == OptimizerSpec(kind=Optimizer.MUON, distribution=MuonSharing.OWNER, steps=6)
    with pytest.raises(InputError, match=r"training.optimizer.steps: kind is lion \(only with kind muon\)"):
        parse_workload(text % "{kind: lion, steps: 6}", "m.yaml")
    with pytest.raises(InputError, match="did you mean lion"):
        parse_workload(text % "lionn", "m.yaml")
