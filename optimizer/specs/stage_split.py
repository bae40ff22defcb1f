"""Layers on virtual stages: their order, the most even split, and the kinds on each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.layer_runs import by_layer
from layoutopt.optimizer.specs.layout import VirtualStage
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.model import ModelSpec


def running_schedule(named: Schedule, pp: int, vp: int) -> Schedule:
    """Return the schedule that runs: none without a pipeline, the default one where a pipeline names none."""
    if pp == 1:
        return Schedule.NONE
    # What Megatron-LM runs by default with one chunk, and with several.
    usual = Schedule.ONE_F_ONE_B if vp == 1 else Schedule.INTERLEAVED
    return usual if named is Schedule.NONE else named


def model_order(pp: int, vp: int, schedule: Schedule) -> list[int]:
    """Return the stage list's entries (``chunk*pp + rank``) in the order in which a token passes them."""
    entries = list(range(pp * vp))
    return entries[:pp] + entries[pp:][::-1] if vp == 2 and schedule.v_shape else entries


def even_layers(model: ModelSpec, pp: int, vp: int, schedule: Schedule) -> tuple[int, ...] | None:
    """Return the layers of every virtual stage under the most even split, or None if there is none.

    Ranks differ by at most one layer: the last rank and then
    the first get fewer, since they also hold the head and the embedding, then early ranks, which hold more
    micro-batches at once. Where a V shape puts both ends on the first rank, that one gets fewer, and what is
    missing when the others need a layer for each chunk. The chunks of a rank differ by at most one layer,
    smaller ones first; on a last
    rank that holds the head alone the last chunk is one of the smaller. Only the first and the last virtual stage may be
    empty.
    """
    counts = _even_blocks(model.layers, pp, vp, together=vp == 2 and schedule.v_shape)
    return None if counts is None else tuple(counts)


def _even_blocks(blocks: int, pp: int, vp: int, *, together: bool) -> list[int] | None:
    """Return the blocks of every entry of the stage list; ``together``: the first rank holds both ends."""
    # Two virtual stages may be empty, as they hold the embedding and the head; those of a single rank may not.
    if blocks < max(pp * vp - 2, 1) or (pp == 1 and blocks < vp):
        return None
    small, larger = divmod(blocks, pp)
    totals = [small + 1] * pp
    fewer_first = [pp - 1, 0, *range(1, pp - 1)] if pp > 1 and not together else [*range(pp)]
    for rank in fewer_first[: pp - larger]:
        totals[rank] -= 1
    # With both ends on one rank only that rank may have an empty chunk: the others take a layer for each of theirs.
    if together and small < vp:
        totals = [blocks - vp * (pp - 1)] + [vp] * (pp - 1)
    return [
        _chunk_blocks(totals[rank], chunk, vp, rank == pp - 1 > 0 and not together)
        for chunk in range(vp)
        for rank in range(pp)
    ]


def _chunk_blocks(total: int, chunk: int, vp: int, last_rank: bool) -> int:
    small, larger = divmod(total, vp)
    return small + (vp - 1 - larger <= chunk < vp - 1 if last_rank else chunk >= vp - larger)


def build_stages(
    model: ModelSpec,
    layers: Sequence[int],
    pp: int,
    schedule: Schedule,
    recompute_limit: int,
    mtp: Sequence[int] | None = None,
) -> tuple[VirtualStage, ...]:
    """Build the stage list from the layers of every entry.

    Each stage recomputes its first ``recompute_limit`` layers. ``mtp`` are the MTP layers of every
    entry; None puts all on the stage with the head.
    """
    vp = len(layers) // pp
    order = model_order(pp, vp, schedule)
    stages, start = {}, 0
    for position, entry in enumerate(order):
        head = position == len(order) - 1
        stages[entry] = VirtualStage(
            rank=entry % pp,
            chunk=entry // pp,
            layers=layers[entry],
            kinds=kinds_of(model, start, layers[entry]),
            recomputed=min(recompute_limit, layers[entry]),
            embedding=position == 0,
            head=head,
            mtp=mtp[entry] if mtp is not None else model.mtp_layers if head else 0,
        )
        start += layers[entry]
    return tuple(stages[entry] for entry in range(len(layers)))


def kinds_of(model: ModelSpec, start: int, count: int) -> dict[str, int]:
    """Count the layers of each kind among ``count`` layers from layer ``start`` on."""
    model = by_layer(model)
    # Alternating kinds have to be counted one by one; runs one after another are overlaps of two intervals.
    if model.order:
        held = Counter(model.order[start : start + count])
        return {run.name: held[kind] for kind, run in enumerate(model.runs) if held[kind]}
    kinds: dict[str, int] = {}
    begin = 0
    for run in model.runs:
        overlap = min(start + count, begin + run.layers) - max(start, begin)
        if overlap > 0:
            kinds[run.name] = overlap
        begin += run.layers
    return kinds
