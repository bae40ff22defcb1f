"""Models that launch files name by the hub and that are no built-in ones: sizes as their configurations have them."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.huggingface.config import import_config
from layoutopt.optimizer.interop.huggingface.names import CHECKPOINT, last_part
from layoutopt.optimizer.interop.reading import parse_yaml

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec


@cache
def _table() -> dict[str, Any]:
    folder = resources.files("layoutopt.optimizer.interop.huggingface")
    return parse_yaml(folder.joinpath("hub.yaml").read_text("utf-8"), "hub.yaml")


@cache
def hub_model(name: str) -> ModelSpec | None:
    """Return the model of a hub name or of the folder that it was loaded to; None for one that is not listed."""
    last = last_part(name)
    sizes = next(
        (sizes for shape, sizes in _table().items() if re.fullmatch(f"({shape}){CHECKPOINT}", last)), None
    )
    return None if sizes is None else import_config(json.dumps(sizes), "hub.yaml", name=last).model
