"""Made-up measured runs for the evidence tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.evidence.run import MeasuredRun, Sharding

if TYPE_CHECKING:
    from collections.abc import Callable

DENSE: dict[str, Any] = {
    "id": "made-up",
    "framework": "megatron-lm",
    "model": "Made-up 7B",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "ffn": 14336,
    "vocab": 128256,
    "seq": 4096,
    "gated": True,
    "tied": False,
    "gpu": "H100-80G-SXM",
    "gpus_per_node": 8,
    "n_gpus": 32,
    "tp": 2,
    "sp": True,
    "cp": 1,
    "pp": 2,
    "vp": 1,
    "dp": 8,
    "zero": Sharding(1),
    "micro_batch": 1,
    "global_batch": 128,
    "recompute": "none",
    "precision": "bf16",
    "flash": True,
    "measured_step_s": 4.0,
}
"""A complete dense row; nothing of it was measured anywhere."""

EXPERTS: dict[str, Any] = {
    "moe_experts": 8,
    "moe_topk": 2,
    "moe_ffn": 14336,
    "moe_dense_layers": 0,
    "ep": 8,
    "etp": 1,
    "tp": 1,
    "pp": 1,
    "dp": 32,
}


@pytest.fixture
def make_run() -> Callable[..., MeasuredRun]:
    """Return a builder of the complete dense row with cells replaced (None empties a cell)."""
    return lambda **cells: MeasuredRun(**{**DENSE, **cells})


@pytest.fixture
def make_moe_run() -> Callable[..., MeasuredRun]:
    """Return a builder of a complete mixture-of-experts row."""
    return lambda **cells: MeasuredRun(**{**DENSE, **EXPERTS, **cells})
