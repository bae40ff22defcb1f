"""A layout on the terminal: its degrees on a line that ``--layout`` reads again, its stages in groups of equal ranks."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.switches import switch_text
from layoutopt.optimizer.report.tables.console import grid
from layoutopt.optimizer.space.recompute_sets import recompute_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

    from layoutopt.optimizer.specs.layout import Layout, VirtualStage

RankRow = tuple[str, ...]


def layout_text(layout: Layout) -> str:
    """Write every choice as ``axis=value``; what has no effect (experts of a dense model, no groups) is left out."""
    words = {"tp": layout.tp, "sp": int(layout.sp), "cp": layout.cp, "pp": layout.pp, "vp": layout.vp}
    words |= {"ep": layout.ep, "etp": layout.etp} if layout.ep * layout.etp > 1 else {}
    words |= {"dp": layout.dp, "zero": layout.zero}
    words |= {"hsdp_shard": layout.hsdp_shard} if layout.hsdp_shard else {}
    words |= {"micro_batch": layout.micro_batch, "micro_batches": layout.micro_batches}
    named = {
        "recompute": recompute_text(layout.recompute),
        "schedule": layout.schedule.value,
        "mesh_order": layout.mesh_order,
        "precision": layout.precision.value,
    }
    named |= {"savers": "+".join(layout.savers)} if layout.savers else {}
    named |= {name: switch_text(value) for name, value in layout.switches.stated().items()}
    return " ".join(f"{name}={value}" for name, value in (words | named).items())


def short_text(layout: Layout) -> str:
    """Write the degrees that are not 1 and the micro-batch alone: ``tp8 pp4 dp2 zero1 mb1``."""
    words = [
        f"{name}{getattr(layout, name)}"
        for name in ("tp", "cp", "pp", "vp", "ep", "etp", "dp", "zero")
        if getattr(layout, name) > (name != "zero")
    ]
    return " ".join([*words, f"mb{layout.micro_batch}"])


def rank_ranges(ranks: Sequence[int]) -> str:
    """Write consecutive ranks as ranges: ``0``, ``1-14``."""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def grouped_ranks(rows: Iterable[RankRow]) -> list[RankRow]:
    """Join consecutive ranks with the same row; the first column becomes their range."""
    numbered = list(enumerate(rows))
    return [
        (rank_ranges([rank for rank, _ in group]), *row)
        for row, group in (
            (row, list(members)) for row, members in groupby(numbered, key=lambda item: item[1])
        )
    ]


def stage_table(layout: Layout) -> Table | None:
    """Show layers and recomputed layers of every pipeline rank, equal neighbours together; None without stages."""
    if not layout.stages:
        return None
    columns, body, left = stage_rows(layout)
    return grid(columns, body, left=left)


def stage_rows(layout: Layout) -> tuple[list[str], list[list[str]], list[int]]:
    """Return columns, rows and the columns that hold words of the table of stages."""
    # The kinds of a stack of one kind would be said at every rank.
    mixed = len({name for stage in layout.stages for name, count in stage.kinds.items() if count}) > 1
    rows = [_rank_row([s for s in layout.stages if s.rank == rank], mixed=mixed) for rank in range(layout.pp)]
    names = ["ranks", "layers", "recomputed", "chunks", "holds"]
    # Columns that would be empty are left out: the answer has to stand on one screen.
    used = [0, 1, 2] + ([3] if layout.vp > 1 else []) + ([4] if any(row[3] for row in rows) else [])
    body = [[row[column] for column in used] for row in grouped_ranks(rows)]
    return [names[column] for column in used], body, [used.index(c) for c in used if c in (0, 3, 4)]


def _rank_row(chunks: list[VirtualStage], *, mixed: bool) -> RankRow:
    """Describe one rank: layers, recomputed layers, layers of each chunk, its kinds in a mixed stack and its ends."""
    layers = sum(stage.layers for stage in chunks)
    recomputed = sum(stage.recomputed for stage in chunks)
    return (str(layers), str(recomputed), _chunk_sizes(chunks), _holds(chunks, mixed=mixed))


def _chunk_sizes(chunks: list[VirtualStage]) -> str:
    """Write the layers of the chunks in order, with what each recomputes: ``4 x 2``, ``3+2+2``, ``4 x 2 (1 again)``."""
    parts = []
    for (layers, again), members in groupby(chunks, key=lambda stage: (stage.layers, stage.recomputed)):
        count = len(list(members))
        size = f"{count} x {layers}" if count > 1 else str(layers)
        parts.append(f"{size} ({again} recomputed)" if again else size)
    return " + ".join(parts)


def _holds(chunks: list[VirtualStage], *, mixed: bool) -> str:
    kinds: dict[str, int] = {}
    for stage in chunks if mixed else ():
        for name, count in stage.kinds.items():
            kinds[name] = kinds.get(name, 0) + count
    mtp = sum(stage.mtp for stage in chunks)
    words = [
        *(f"{count} {name}" for name, count in kinds.items() if count),
        "embedding" if any(stage.embedding for stage in chunks) else "",
        "head" if any(stage.head for stage in chunks) else "",
        f"{mtp} MTP" if mtp else "",
    ]
    return ", ".join(word for word in words if word)
