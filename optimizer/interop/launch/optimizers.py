"""Optimizers in trainers' words: what exporters write and importers read, from the record of the framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.optimizers import OPTIMIZERS
from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.specs.model import OptimizerSpec
from layoutopt.optimizer.specs.vocabulary import MuonSharing, Optimizer

if TYPE_CHECKING:
    from typing import Any

    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.interop.reading import Fields

LAYER_WISE = "dist_muon"
"""Megatron-LM core 0.16 and 0.17: Muon whose matrices have owners; from 0.18 on the distributed optimizer says so."""


def optimizer_word(framework: Framework, spec: OptimizerSpec) -> str:
    """Return the framework's word for an optimizer that its rules allow."""
    return framework.record.optimizers[spec.kind]


def named_optimizer(framework: Framework, word: str | None, notes: list[str]) -> OptimizerSpec | None:
    """Read the framework's word for an optimizer; one that no record knows is noted."""
    if word is None:
        return None
    for kind, known in framework.record.optimizers.items():
        if word.lower() in (known.lower(), kind.value):
            return OptimizerSpec(kind=kind)
    if word.lower() not in ("adam", "adamw"):
        notes.append(f"optimizer {shorten(word)!r} is not modelled: priced as AdamW")
    return OptimizerSpec()


def has_owners(target: Target) -> bool:
    """Tell whether Muon's matrices have owners: where the optimizer is sharded."""
    return OPTIMIZERS[target.training.optimizer.kind].orthogonal and target.layout.zero >= 1


def megatron_optimizer(target: Target) -> dict[str, Any]:
    """Return Megatron-LM's arguments of the optimizer, by the names of Megatron-Bridge's fields."""
    spec = target.training.optimizer
    if not OPTIMIZERS[spec.kind].orthogonal:
        return {"optimizer": optimizer_word(target.framework, spec)}
    layer_wise = has_owners(target) and target.release < (0, 18)
    split = spec.distribution is MuonSharing.DISTRIBUTED
    return {
        "optimizer": LAYER_WISE if layer_wise else optimizer_word(target.framework, spec),
        "muon_tp_mode": MuonSharing.DISTRIBUTED.value if split else MuonSharing.DUPLICATED.value,
        "muon_num_ns_steps": spec.steps,
    }


def read_megatron_optimizer(fields: Fields, framework: Framework, notes: list[str]) -> OptimizerSpec | None:
    """Read Megatron-LM's arguments of the optimizer."""
    word = fields.data.get("optimizer")
    if word == LAYER_WISE:
        word = framework.record.optimizers[Optimizer.MUON]
    spec = named_optimizer(framework, word if isinstance(word, str) else None, notes)
    if spec is None or spec.kind is not Optimizer.MUON:
        return spec
    mode, steps = fields.text("muon_tp_mode"), fields.integer("muon_num_ns_steps", least=1, most=100)
    if mode == "blockwise":
        notes.append(
            "muon_tp_mode blockwise is not modelled: priced as duplicated, whose multiplications are larger"
        )
    return OptimizerSpec(
        kind=spec.kind,
        distribution=MuonSharing.DISTRIBUTED if mode == MuonSharing.DISTRIBUTED else None,
        steps=steps or OptimizerSpec().steps,
    )
