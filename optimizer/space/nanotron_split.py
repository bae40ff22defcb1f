"""nanotron's pipeline split, which no setting changes: blocks go to ranks by their share of the compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec


def nanotron_counts(model: ModelSpec, pp: int) -> list[int]:
    """Layers of each rank.

    huggingface/nanotron src/nanotron/models/base.py (build_model): walking over layers and LM head with the
    costs of ``get_block_compute_costs`` (4*heads*head_dim*hidden + 3*ffn*hidden, vocab*hidden), the next
    rank begins after the block at which the running cost exceeds the rank's equal share.
    """
    ffn = next((shape.ffn for run in model.runs for shape in run.block if shape.ffn), 0)
    layer = 4 * model.heads * model.head_dim * model.hidden + 3 * ffn * model.hidden
    total = layer * model.layers + model.vocab * model.hidden
    counts = [0] * pp
    rank, spent = 0, 0
    for _ in range(model.layers):
        counts[rank] += 1
        spent += layer
        if rank < pp - 1 and spent * pp > total * (rank + 1):
            rank += 1
    return counts
