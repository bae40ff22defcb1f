"""Low-rank adapters as trainers of Hugging Face models write them: rank, adapted modules, bits of the frozen weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.specs.model import AdapterSpec
from layoutopt.optimizer.specs.vocabulary import AdapterMethod, AdapterTarget

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.reading import Fields

ALL = ("all", "all-linear", "all_linear")
MODULES = {
    AdapterTarget.ATTENTION: (
        "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "query_key_value", "Wqkv", "c_attn", "W_pack", "out_proj",
        "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "linear_qkv", "linear_proj", "dense", "wq", "wk", "wv",
        "wo",
    ),
    AdapterTarget.MLP: (
        "gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "c_fc", "linear_fc1", "linear_fc2", "w1", "w2",
        "w3", "dense_h_to_4h", "dense_4h_to_h", "shared_expert", "shared_experts",
    ),
    AdapterTarget.EXPERTS: ("experts", "grouped_mm", "gate_proj", "up_proj", "down_proj", "linear_fc1", "linear_fc2"),
}  # fmt: skip
"""Names of modules by what they belong to; routed experts' modules have the names of an MLP's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterKeys:
    """What a trainer calls an adapter's settings. ``rank`` and ``targets`` are what it takes where they are not stated."""

    rank_keys: tuple[str, ...]
    target_keys: tuple[str, ...]
    every_linear: tuple[str, ...] = ()
    four_bits: tuple[str, ...] = ("load_in_4bit",)
    bits: tuple[str, ...] = ()
    rank: int = 8
    targets: tuple[str, ...] = ("all-linear",)

    @property
    def known(self) -> tuple[str, ...]:
        """All keys that are read."""
        return (*self.rank_keys, *self.target_keys, *self.every_linear, *self.four_bits, *self.bits)


PEFT = AdapterKeys(
    rank_keys=("lora_r", "lora_rank", "lora_dim"),
    target_keys=("lora_target_modules", "lora_target"),
    targets=("q_proj", "v_proj"),
)
"""huggingface/trl ModelConfig, and scripts after it; peft tuners/lora/config.py has rank 8, its table two modules."""

AXOLOTL = AdapterKeys(
    rank_keys=("lora_r",),
    target_keys=("lora_target_modules",),
    every_linear=("lora_target_linear",),
    targets=("q_proj", "v_proj"),
)
LLAMA_FACTORY = AdapterKeys(
    rank_keys=("lora_rank",), target_keys=("lora_target",), bits=("quantization_bit",)
)
"""hiyouga/LLaMA-Factory hparams/finetuning_args.py."""

SWIFT = AdapterKeys(rank_keys=("lora_rank",), target_keys=("target_modules",), bits=("quant_bits",))
"""modelscope/ms-swift docs, command-line parameters."""


def read_adapter(fields: Fields, kind: str, keys: AdapterKeys, notes: list[str]) -> AdapterSpec | None:
    """Read the adapter of a run whose trainer calls its method ``kind``; None, and a note, where it is none of low rank."""
    method = kind.lower()
    if method not in ("lora", "qlora", "peft", "true"):
        notes.append(f"{shorten(kind)}: not read; priced as training of all parameters")
        return None
    rank = fields.integer(*keys.rank_keys, least=1, most=4096)
    if rank is None:
        rank = keys.rank
        notes.append(f"assumed: {keys.rank_keys[0]} {rank}, the trainer's default")
    # Trainers say QLoRA as a method, or as LoRA with weights loaded in 4 bits: what is priced is the weights.
    bits = fields.integer(*keys.bits) if keys.bits else None
    narrow = method == "qlora" or bits == 4 or any(_on(fields, key) for key in keys.four_bits)
    if bits == 8 or _on(fields, "load_in_8bit"):
        notes.append("frozen weights in 8 bits are priced in 16; memory is overestimated")
    return AdapterSpec(
        method=AdapterMethod.QLORA if narrow else AdapterMethod.LORA,
        rank=rank,
        targets=_targets(fields, keys, notes),
    )


def _on(fields: Fields, key: str) -> bool:
    return str(fields.raw(key) or False).lower() in ("true", "1", "yes")


def _targets(fields: Fields, keys: AdapterKeys, notes: list[str]) -> tuple[AdapterTarget, ...]:
    """Return which parts of a layer have adapters, and say where a part has them on some of its matrices alone."""
    stated = next((fields.raw(key) for key in keys.target_keys if fields.raw(key) is not None), None)
    every = any(_on(fields, key) for key in keys.every_linear)
    if stated is None and not every:
        notes.append(f"assumed: {keys.target_keys[0]} {','.join(keys.targets)}, the trainer's default")
    words = ("all-linear",) if every else _words(keys.targets if stated is None else stated)
    # Experts among them: a model without any has no such matrices, which the price looks at.
    if set(words) & set(ALL):
        return tuple(AdapterTarget)
    # ``self_attn.q_proj`` and ``q_proj`` name the same modules: peft compares the ends of names.
    leaves = {word.rpartition(".")[2] for word in words}
    found = tuple(target for target, names in MODULES.items() if leaves & set(names))
    if not found:
        notes.append(f"adapted modules {shorten(', '.join(words))} are unknown; priced as all of a layer's")
        return tuple(AdapterTarget)
    attention = leaves & set(MODULES[AdapterTarget.ATTENTION])
    # Query, key, value and output are four matrices, unless the first three are one.
    if attention and len(attention) < 4 and not attention & {"qkv_proj", "query_key_value", "linear_qkv"}:
        notes.append(f"adapters on {', '.join(sorted(attention))}: priced as on all of attention's matrices")
    return found


def _words(value: object) -> tuple[str, ...]:
    """Read a list, or words between commas or blanks."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[,\s]+", str(value))
    return tuple(str(part) for part in parts if str(part))
