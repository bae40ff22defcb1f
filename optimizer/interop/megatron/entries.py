"""Megatron's entry scripts that train or serve something else than a GPT model, by the names of their files.

NVIDIA/Megatron-LM's and deepspeedai/Megatron-DeepSpeed's own, now and in releases of before: they share GPT's flags.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVED = "serves a model, which trains nothing"
_HYBRID = "trains a stack of Mamba and attention layers by a pattern of its own"
_VISION = "trains a vision model"

OTHER_ENTRIES = {
    "pretrain_bert.py": "trains BERT, which attends both ways and predicts masked words",
    "pretrain_t5.py": "trains T5, an encoder and a decoder",
    "pretrain_ict.py": "trains two encoders of a retriever",
    "pretrain_retro.py": "trains RETRO, which attends to retrieved text as well",
    "pretrain_mamba.py": _HYBRID,
    "pretrain_hybrid.py": _HYBRID,
    "pretrain_hybrid_flex.py": _HYBRID,
    "pretrain_vlm.py": "trains a vision encoder with a language model",
    "pretrain_mimo.py": "trains encoders of several kinds of input with a language model",
    "pretrain_vision_classify.py": _VISION,
    "pretrain_vision_dino.py": _VISION,
    "pretrain_vision_inpaint.py": _VISION,
    "train_rl.py": "trains by reinforcement, where generating takes a part of each step",
    "run_text_generation_server.py": _SERVED,
    "run_dynamic_text_generation_server.py": _SERVED,
    "run_hybrid_text_generation_server.py": _SERVED,
    "run_mamba_text_generation_server.py": _SERVED,
    "run_vlm_text_generation.py": _SERVED,
    "gpt_static_inference.py": _SERVED,
    "gpt_dynamic_inference.py": _SERVED,
    "run_inference_performance_test.py": _SERVED,
}
"""What each does, where reading its flags as those of a GPT job would describe another one."""


def require_gpt_entry(words: Sequence[str], file: str) -> None:
    """Raise ``InputError`` for a command that starts another entry script."""
    for word in words:
        name = PurePosixPath(word).name
        if name in OTHER_ENTRIES:
            what = f"{name} {OTHER_ENTRIES[name]}; it is not modelled"
            raise input_error(what, "pretrain_gpt.py", file=file)
