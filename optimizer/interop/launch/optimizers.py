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

HF_OPTIMIZERS = {
    **dict.fromkeys(
        (
            "adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_apex_fused",
            "adamw_hf", "adamw_anyprecision", "paged_adamw", "paged_adamw_32bit",
        ),
        Optimizer.ADAMW,
    ),
    **dict.fromkeys(
        ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit"), Optimizer.ADAM_8BIT
    ),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit"), Optimizer.LION),
    "sgd": Optimizer.SGD,
    "adafactor": Optimizer.ADAFACTOR,
    "muon": Optimizer.MUON,
}  # fmt: skip
"""What ``optim`` of Hugging Face's trainer (transformers 5.24.0 ``OptimizerNames``), and axolotl's ``optimizer``, mean."""

HF_SWITCHES = ("use_badam", "use_galore", "use_apollo", "use_muon", "use_adam_mini", "lisa_activated_layers")
"""Switches of LLaMA-Factory and ms-swift that put another optimizer in place of ``optim``."""


def hf_optimizer(
    fields: Fields, framework: Framework, notes: list[str], key: str = "optim"
) -> OptimizerSpec | None:
    """Read the optimizer of a launcher of Hugging Face's trainer; one that is not priced is named.

    ``framework`` is what the job is judged as: an optimizer that it has no word for is priced as AdamW.
    """
    notes += [f"{switch} is not modelled: priced without it" for switch in HF_SWITCHES if fields.raw(switch)]
    word = fields.raw(key)
    if not isinstance(word, str):
        return None
    kind = HF_OPTIMIZERS.get(word.lower().removeprefix("optimizernames."))
    if kind is None or kind not in framework.record.optimizers:
        judged = "" if kind is None else f" where the job is judged as {framework}'s"
        notes.append(f"{key} {shorten(word)!r} is not modelled{judged}: priced as AdamW")
        return OptimizerSpec()
    if word.lower().startswith("paged"):
        notes.append(f"{key} {word}: pages that move to the host count as memory of the GPU")
    return OptimizerSpec(kind=kind)


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
