"""Low-rank adapters as Megatron-Bridge writes them: a recipe of its own, and fields of ``peft`` (peft/lora.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.adapters import AdapterKeys, read_adapter
from layoutopt.optimizer.specs.vocabulary import AdapterTarget

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.record import Release
    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.interop.reading import Fields
    from layoutopt.optimizer.specs.model import AdapterSpec

SINCE: Release = (0, 17)
"""Megatron-core of Bridge 0.4, whose ``run_recipe.py`` takes ``--peft_scheme``."""

MODULES = {
    AdapterTarget.ATTENTION: ("linear_qkv", "linear_proj"),
    AdapterTarget.MLP: ("linear_fc1", "linear_fc2"),
    AdapterTarget.EXPERTS: ("linear_fc1", "linear_fc2"),
}
FULL, ADAPTED = "_pretrain_config", "_peft_config"
RECIPES = (
    "llama31_405b", "llama3_70b", "llama3_8b", "qwen3_235b_a22b", "qwen3_30b_a3b", "qwen3_32b", "gpt_oss_120b",
    "qwen3_next_80b_a3b",
)  # fmt: skip
"""Stems of recipes that train adapters (megatron.bridge.recipes at v0.4.2 and v0.6.0)."""

KEYS = AdapterKeys(
    rank_keys=("dim",),
    target_keys=("target_modules",),
    four_bits=(),
    rank=32,
    targets=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
)


def writes_adapter(target: Target) -> bool:
    """Whether the release has a recipe that trains adapters of the model, on weights that it keeps in 16 bits."""
    spec, model = target.training.adapter, target.model
    # Experts' matrices have the names of a dense MLP's: target_modules cannot name the one without the other.
    both = {AdapterTarget.MLP, AdapterTarget.EXPERTS}
    partly = model.moe is not None and spec is not None and len(both & {*spec.targets}) == 1
    plain = model.mla is None and model.indexer is None and not partly
    return spec is not None and plain and target.release >= SINCE


def adapter_recipe(recipe: str) -> str:
    """Return the recipe that trains adapters in place of one that trains everything; sizes are overridden anyway."""
    stem = recipe.removesuffix(FULL)
    return (stem if stem in RECIPES else "llama3_8b") + ADAPTED


def adapter_overrides(target: Target) -> list[tuple[str, Any]]:
    """Fields of the adapter; one adapter per expert, as it is priced."""
    spec = target.training.adapter
    if spec is None or not writes_adapter(target):
        return []
    modules = dict.fromkeys(name for part in spec.targets for name in MODULES[part])
    apart = [("peft.share_expert_adapters", False)] if target.model.moe and target.release >= (0, 18) else []
    return [("peft.dim", spec.rank), ("peft.target_modules", list(modules)), *apart]


def read_peft(fields: Fields, recipe: str | None, notes: list[str]) -> AdapterSpec | None:
    """Read the adapter that a command or a configuration trains, None where it trains everything."""
    if not (recipe or "").endswith(ADAPTED) and fields.raw("dim") is None:
        return None
    return read_adapter(fields, "lora", KEYS, notes)
