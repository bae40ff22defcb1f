"""``layoutopt plan`` of several machines: which to buy or rent, how many of them, and what the run costs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import OutputOptions, SpaceCommand, output_options
from layoutopt.optimizer.report.commands.values import Number, QuantityText
from layoutopt.optimizer.report.terminal import print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.gpu_catalog import is_gpu
from layoutopt.optimizer.specs.workload import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.vocabulary import Precision
    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.purchase import Machine

OWN = ("--network", "--price-kwh", "--mtbf", "--pue")
"""Options that only this question has."""

LISTS = ("--precision", "--gpu-hour-cost", "--batch")
"""Options of a plan that take several values here."""

WITHIN = re.compile(r"within ([0-9]{1,9}(?:\.[0-9]{1,9})?)x")


def asks_what_to_buy(words: Sequence[str]) -> bool:
    """Tell whether a plan's words name several machines or leave sizes and batches open."""
    named = [word for word in words if not word.startswith("-")][:2]
    # A GPU without a number of them is a machine whose size is open.
    # Click has not parsed yet: a word further back is the value of some option.
    if len(named) == 2 and ("," in named[1] or is_gpu(named[1])) and words.index(named[1]) < 3:
        return True
    values = {name: value for name, value in zip(words, [*words[1:], ""], strict=True) if name in LISTS}
    # Both spellings: --batch 512:1024 and --batch=512:1024.
    values |= {
        name: rest for name, _, rest in (word.partition("=") for word in words) if name in LISTS and rest
    }
    # A list, a range, prices by GPU, or "within 1.5x".
    several = any(re.search("[,:= ]", value) for value in values.values())
    return several or any(word.partition("=")[0] in OWN for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    """Prices and rates as they were typed."""

    gpu_hour_cost: str | None
    kwh: float | None
    mtbf: float | None
    pue: float | None


@click.command("plan", cls=SpaceCommand)
@click.argument("model", metavar="MODEL")
@click.argument("machines", metavar="CLUSTER[,CLUSTER...]")
@click.option(
    "--days",
    type=Number("DAYS", positive=True),
    required=True,
    help="The run has to be done in so many days.",
)
@click.option("--network", metavar="RATES", help="Gbit/s per GPU, one way: 400 or 400,800.")
@click.option("--precision", metavar="LIST", help="Number formats: bf16 or bf16,fp8.")
@click.option(
    "--batch", metavar="FIRST:LAST", help='Global batches allowed, sequences: 512, 512:1024 or "within 1.5x".'
)
@click.option(
    "--sizes",
    metavar="RANGE",
    help="Numbers of GPUs that may be bought, e.g. 256:1024:+32; default: nodes that divide well.",
)
@click.option(
    "--gpu-hour-cost", metavar="PRICES", help="Price of a GPU-hour: 2.5, or by GPU: h100=2.5,b200=4."
)
@click.option(
    "--price-kwh", type=Number("PRICE", most=1e9), help="Price of energy that the GPU-hour does not include."
)
@click.option(
    "--mtbf", type=Number("GPU-HOURS", positive=True), help="GPU-hours between interruptions of the job."
)
@click.option(
    "--pue",
    type=Number("FACTOR", least=1, most=10),
    help="Power of the machine room over that of the machines.",
)
@click.option("--tokens", type=QuantityText("TOKENS", "TOKENS"), help="Tokens of the run.")
@click.option("--framework", default="megatron", show_default=True, help="Whose launches are searched.")
@output_options
def command(
    model: str,
    machines: str,
    days: float,
    network: str | None,
    precision: str | None,
    batch: str | None,
    sizes: str | None,
    gpu_hour_cost: str | None,
    price_kwh: float | None,
    mtbf: float | None,
    pue: float | None,
    tokens: float | None,
    framework: str,
    output: OutputOptions,
) -> ExitCode:
    """Say which machine trains MODEL in time at the least cost: a row per GPU, network and number format.

    Sizes are free, and so is the batch where a range is given; every row is the smallest size that is done in time.
    """
    from layoutopt.optimizer.frameworks.registry import framework_named
    from layoutopt.optimizer.plan.options import PlanOptions
    from layoutopt.optimizer.report.json_forms import to_plain, with_remarks
    from layoutopt.optimizer.report.tables.training import purchase_tables
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.loading import load_workload, override_training
    from layoutopt.optimizer.sweep.purchase import cheapest_offer, offers
    from layoutopt.optimizer.sweep.ranges import parse_counts

    workload = load_workload(model)
    if tokens is not None:
        workload = override_training(workload, total_tokens=tokens)
    prices = _Prices(gpu_hour_cost=gpu_hour_cost, kwh=price_kwh, mtbf=mtbf, pue=pue)
    found = offers(
        workload,
        _machines(machines, network, prices),
        _precisions(precision, workload),
        # Offers show no near-ties, and expected days alone.
        PlanOptions(solve=SolveOptions(framework=framework_named(framework), top=1), simulated_runs=1),
        days=days,
        batches=_batches(batch, workload),
        sizes=None if sizes is None else parse_counts(sizes, key="--sizes"),
    )
    best = cheapest_offer(found)
    if output.json:
        place = None if best is None else found.index(best)
        plain = {"days": days, "cheapest": place, "offers": to_plain(found)}
        print_json(with_remarks(plain, workload.model))
    else:
        print_tables(purchase_tables(workload, found, best, days, framework_named(framework), sizes))
    return ExitCode.OK if best is not None else ExitCode.REJECTED


def _machines(names: str, network: str | None, prices: _Prices) -> list[Machine]:
    from layoutopt.optimizer.sweep.families import load_family
    from layoutopt.optimizer.sweep.purchase import Machine
    from layoutopt.optimizer.sweep.ranges import parse_rates

    families = [load_family(name) for name in dict.fromkeys(names.split(",")) if name]
    if not families:
        raise input_error(f"{names!r} names no machine", "h100 or h100,b200", key="cluster")
    rates = (None,) if network is None else parse_rates(network, key="--network")
    by_gpu = _prices_by_gpu(prices.gpu_hour_cost, [one.name for one in families])
    return [
        Machine(
            family=family,
            network_gbit_per_s=rate,
            gpu_hour_cost=by_gpu.get(family.name, by_gpu.get("")),
            kwh_cost=prices.kwh,
            gpu_hours_per_failure=prices.mtbf,
            pue=prices.pue,
        )
        for family in families
        for rate in rates
    ]


def _prices_by_gpu(text: str | None, names: Sequence[str]) -> dict[str, float]:
    """Read ``2.5`` or ``h100=2.5,b200=4``; an empty name is the price of all."""
    from layoutopt.optimizer.space.options import HIGHEST_PRICE

    found: dict[str, float] = {}
    for part in (text or "").split(",") if text else ():
        name, equals, price = part.rpartition("=")
        if equals and name.strip() not in names:
            raise input_error(
                f"{name.strip()[:60]!r} is none of the machines", ", ".join(names), key="--gpu-hour-cost"
            )
        try:
            value = float(price)
        except ValueError:
            value = -1.0
        if not 0 <= value <= HIGHEST_PRICE:
            raise input_error(f"{part[:60]!r} is no price", "2.5, or h100=2.5,b200=4", key="--gpu-hour-cost")
        if name.strip() in found:
            raise input_error(f"{part[:60]!r} is given twice", "one price per GPU", key="--gpu-hour-cost")
        found[name.strip()] = value
    return found


def _precisions(text: str | None, workload: Workload) -> list[Precision]:
    from layoutopt.optimizer.specs.vocabulary import Precision

    if text is None:
        return [workload.training.precision]
    known = {one.value: one for one in Precision}
    wrong = [name for name in text.split(",") if name not in known]
    if wrong:
        raise input_error(f"{wrong[0][:60]!r} is no number format", ", ".join(known), key="--precision")
    return list(dict.fromkeys(known[name] for name in text.split(",")))


def _batches(text: str | None, workload: Workload) -> tuple[int, int]:
    """Read ``512``, ``512:1024`` or ``within 1.5x`` of the model file's batch."""
    from layoutopt.optimizer.sweep.ranges import parse_counts

    own = workload.training.global_batch
    if text is None:
        return own, own
    factor = WITHIN.fullmatch(text.strip())
    first, colon, last = text.partition(":")
    if factor is not None and float(factor[1]) < 1:
        raise input_error(
            f"{text[:60]!r} allows no batch", 'a factor of 1 or more: "within 1.5x"', key="--batch"
        )
    if factor is not None:
        low, high = float(own), max(own * float(factor[1]), float(own))
    else:
        low, high = (parse_counts(part, key="--batch")[0] for part in (first, last if colon else first))
    if not 0 < low <= high:
        raise input_error(f"{text[:60]!r} is no range", "FIRST:LAST, first <= last, above 0", key="--batch")
    if high > MAX_COUNT:
        raise input_error(f"{text[:60]!r} is out of range", f"up to {MAX_COUNT:,}", key="--batch")
    return int(low), int(high)
