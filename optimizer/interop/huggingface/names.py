"""Names on the Hugging Face hub: the built-in models of the same shape, and sizes of others that launch files name."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.reading import parse_yaml

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec

CHECKPOINT = r"(-(base|instruct|chat|thinking|hf|it|fp8|bf16|\d{4}|v\d(\.\d)?|hf))*"
"""Words behind a model's name that say which of its checkpoints it is."""

BUILT_IN = (
    (r"(meta-)?llama-3(\.1)?-8b", "llama3-8b"),
    (r"(meta-)?llama-3(\.[13])?-70b", "llama3-70b"),
    (r"(meta-)?llama-3\.1-405b", "llama3-405b"),
    (r"llama-2-7b", "llama2-7b"),
    (r"llama-2-70b", "llama2-70b"),
    (r"qwen3-32b", "qwen3-32b"),
    (r"qwen3-30b-a3b", "qwen3-30b-a3b"),
    (r"qwen3-235b-a22b", "qwen3-235b-a22b"),
    (r"mixtral-8x7b", "mixtral-8x7b"),
    (r"mixtral-8x22b", "mixtral-8x22b"),
    (r"deepseek-(v3(\.1)?|r1)", "deepseek-v3"),
    (r"deepseek-v2", "deepseek-v2"),
    (r"kimi-k2", "kimi-k2"),
    (r"gpt-oss-120b", "gpt-oss-120b"),
    (r"bloom", "bloom-176b"),
    (r"nemotron-4-340b", "nemotron4-340b"),
    (r"grok-1", "grok-1"),
)
"""The last part of a hub name in lower case (regular expression, without words for a checkpoint), and the model's name."""


def built_in_model(name: str) -> str | None:
    """Return the built-in model of a hub name or of the folder that it was loaded to; None where there is none."""
    last = last_part(name)
    return next((model for pattern, model in BUILT_IN if re.fullmatch(pattern + CHECKPOINT, last)), None)


def last_part(name: str) -> str:
    """Return what of a hub name or folder says which model it is."""
    return name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")


@cache
def _table() -> dict[str, Any]:
    folder = resources.files("layoutopt.optimizer.interop.huggingface")
    return parse_yaml(folder.joinpath("hub.yaml").read_text("utf-8"), "hub.yaml")


@cache
def hub_model(name: str) -> ModelSpec | None:
    """Return the model of a hub name or of the folder that it was loaded to; None for one that is not listed."""
    from layoutopt.optimizer.interop.huggingface.config import (
        import_config,
    )  # most names are of built-in models

    last = last_part(name)
    shapes = [shape for shape in _table() if re.fullmatch(f"({shape}){CHECKPOINT}", last)]
    sizes = _table()[shapes[0]] if shapes else None
    return None if sizes is None else import_config(json.dumps(sizes), "hub.yaml", name=last).model
