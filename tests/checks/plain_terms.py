"""Terms of which everything is one or nothing, for values that are worked out on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checks.operations import with_operations

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import StageTerms


def terms_of(
    pp: list[int], vp: list[int], folded: list[int] | None = None, kinds: int = 1, **more: Any
) -> StageTerms:
    """Plain terms of some shapes: a block takes a second and a byte, and nothing else does."""
    n, depth = len(pp), max(pp)
    each, none = np.ones((n, kinds)), np.zeros(n)
    fields: dict[str, Any] = {
        "pp": np.array(pp), "vp": np.array(vp), "folded": np.array(folded or [0] * n, dtype=bool),
        "micro_batches": np.full(n, 8), "layer_s": each, "recompute_s": 0.25 * each, "first_s": none, "last_s": none,
        "bubble_weight": np.ones(n), "fixed_s": none, "layer_state_bytes": each, "layer_activation_bytes": 4.0 * each,
        "recomputed_activation_bytes": each, "first_bytes": none, "last_bytes": none, "common_bytes": none,
        "flight_bytes": none, "recompute_transient_bytes": none, "capacity_bytes": np.full(n, 1e3),
        "in_flight": np.where(np.arange(depth) < np.array(pp)[:, None], 1.0, 0.0),
        "may_recompute": np.ones(n, dtype=bool),
    }  # fmt: skip
    return with_operations(**(fields | more))
