"""What to buy, for people: one row per machine and number format, and what the machines are taken to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.ask.describe import describe_cluster, describe_model
from layoutopt.optimizer.report.tables.console import bullets, grid, section
from layoutopt.optimizer.report.tables.header import network_words, size_words
from layoutopt.optimizer.specs.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.purchase import Offer

DEFINITION = (
    "cost: all GPUs for the expected days, failures and checkpoints included, at the price of a GPU-hour, and the energy "
    "at its own price where one is given"
)


def purchase_tables(
    workload: Workload, found: Sequence[Offer], best: Offer | None, days: float
) -> RenderableType:
    """Show the offers, the cheapest marked, and the networks that they rest on."""
    model = describe_model(workload)
    tokens = format_count(workload.training.total_tokens or 0.0)
    head = Text(_headline(best, days), style="bold")
    asked = f"{model.name}: {size_words(model)}; {tokens} tokens"
    priced = any(one.cost is not None for one in found)
    columns = ["GPU", "network", "format", "GPUs", "batch", "days", "80%", "MFU", "MWh", "cost", "layout"]
    rows = [_row(one, best is one) for one in found]
    lines = [
        f"{one.gpus:,} {one.gpu}: {network_words(describe_cluster(one.cluster))}"
        for one in found
        if one.cluster
    ]
    notes = [*dict.fromkeys(lines), *([DEFINITION] if priced else [])]
    notes.append(
        "sizes of 1, 3, 5, 9 and 15 times a power of two nodes are tried; a larger one may leave GPUs idle"
    )
    return Group(
        head,
        Text(asked),
        section("Offers", grid(columns, rows, left=(0, 10))),
        section("Taken", bullets(notes)),
    )


def _rough(value: float) -> float:
    """Round to three digits: the error of a prediction is percents."""
    return float(f"{value:.3g}")


def _headline(best: Offer | None, days: float) -> str:
    if best is None:
        return f"no size of these machines is done in {days:g} days"
    cost = "" if best.cost is None else f", cost {format_count(_rough(best.cost))}"
    return (
        f"{best.gpus:,} {best.gpu} with {best.network_gbit_per_s:g} Gbit/s in {best.precision}: {best.days:.3g} days"
        f"{cost}, the {'cheapest' if cost else 'fewest GPU-days'} that is done in {days:g} days"
    )


def _row(one: Offer, best: bool) -> list[str]:
    name = f"{one.gpu}{' <' if best else ''}"
    start = [name, f"{one.network_gbit_per_s:g}", one.precision.value]
    if one.layout is None or one.days is None or one.days_80 is None:
        return [*start, "none", *[""] * 7]
    layout = one.layout
    degrees = {
        "tp": layout.tp,
        "cp": layout.cp,
        "pp": layout.pp,
        "vp": layout.vp,
        "ep": layout.ep,
        "dp": layout.dp,
    }
    words = [f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1]
    return [
        *start,
        f"{one.gpus:,}",
        f"{one.global_batch:,}",
        f"{one.days:.3g}",
        f"{one.days_80[0]:.3g} to {one.days_80[1]:.3g}",
        f"{one.mfu_causal or 0:.0%}",
        f"{_rough((one.energy_kwh or 0) / 1e3):,.10g}",
        "-" if one.cost is None else format_count(_rough(one.cost)),
        " ".join(words),
    ]
