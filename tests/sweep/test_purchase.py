"""Which machine to buy: the smallest size in time, its batch, and a cost that adds up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from layoutopt.cli import main
from layoutopt.optimizer.cost.budget import gpu_power_w
from layoutopt.optimizer.plan.options import PlanOptions
from layoutopt.optimizer.report.commands.buyer import asks_what_to_buy
from layoutopt.optimizer.report.tables.training import _cost_words
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import Precision
from layoutopt.optimizer.sweep.families import load_family
from layoutopt.optimizer.sweep.inverse import least_for_deadline, size_answer
from layoutopt.optimizer.sweep.purchase import (
    Machine,
    Offer,
    _batches,
    _smallest,
    cheapest_offer,
    offers,
    sizes_between,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

OPTIONS = PlanOptions(solve=SolveOptions(top=1), simulated_runs=1)
WORKLOAD = override_training(load_workload("llama3-8b"), total_tokens=1e12)
SMALL = (
    "plan",
    "llama3-8b",
    "h100,a100",
    "--days",
    "45",
    "--tokens",
    "1T",
    "--gpu-hour-cost",
    "h100=2.5,a100=1.2",
)


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner(env={"COLUMNS": "120"}).invoke(main, arguments)


@pytest.fixture(scope="module")
def found() -> tuple[Offer, ...]:
    """Two machines in one format each, with both prices."""
    machines = [
        Machine(
            family=load_family(name), gpu_hour_cost=price, kwh_cost=0.1, gpu_hours_per_failure=2e4, pue=1.3
        )
        for name, price in (("h100", 2.5), ("a100", 1.2))
    ]
    return offers(WORKLOAD, machines, [Precision.BF16], OPTIONS, days=45, batches=(512, 768))


def test_offers_add_up_by_hand(found: tuple[Offer, ...]) -> None:
    """Days times GPUs times price, energy at the wall times its price, and their sum; steps times length are the days."""
    for one, price in zip(found, (2.5, 1.2), strict=True):
        assert one.gpus and one.days and one.cluster and one.global_batch and one.step_time_s and one.cost
        assert one.gpu_cost == pytest.approx(one.days * 24 * one.gpus * price)
        assert one.energy_kwh == pytest.approx(one.days * 24 * one.gpus * gpu_power_w(one.cluster) / 1e3)
        assert one.energy_cost == pytest.approx(0.1 * (one.energy_kwh or 0.0))
        assert one.cost == pytest.approx((one.gpu_cost or 0.0) + (one.energy_cost or 0.0))
        steps = 1e12 / (one.global_batch * WORKLOAD.training.sequence_length)
        own = next(answer for answer in one.tried if answer.gpus == one.gpus)
        assert own.days == pytest.approx(steps * one.step_time_s / 86_400)
        assert own.days is not None and own.days < one.days == own.expected_days
        assert one.days <= 45
        assert one.days_80 is not None and one.days_80[0] < one.days < one.days_80[1]
        assert one.cluster.failures.gpu_hours_per_failure == 2e4 and one.cluster.pue == 1.3


def test_no_smaller_size_that_was_tried_is_in_time(found: tuple[Offer, ...]) -> None:
    """The size is the smallest: the one below it was solved and misses the deadline."""
    for one in found:
        below = [answer for answer in one.tried if answer.gpus < (one.gpus or 0)]
        assert below and all((answer.expected_days or 99) > 45 for answer in below)
        assert (one.gpus or 0) / max(answer.gpus for answer in below) <= 4 / 3 + 1e-9


@pytest.mark.parametrize("needed", [1, 7, 16, 23, 100, 1000])
def test_the_search_finds_the_smallest(needed: int) -> None:
    """With perfect scaling and with scaling that flattens, whatever is asked first; none where none is in time."""
    sizes = [8 * count for count in range(1, 129)]
    for share in (1.0, 0.5):

        def days_at(gpus: int, share: float = share) -> float:
            return share * needed * 10 / gpus + (1 - share) * 10

        right = next((gpus for gpus in sizes if days_at(gpus) <= 10), None)
        assert _smallest(sizes, 1, 10, days_at) == right
    assert _smallest(sizes, 1, 10, lambda gpus: None) is None


@pytest.mark.parametrize("odd", [40, 72, 80, 144])
def test_a_size_that_divides_badly_hides_no_smaller_one(odd: int) -> None:
    """One that takes half as long again misses the deadline, the smaller one beside it is found all the same."""
    sizes = [8 * count for count in range(1, 129)]
    for days in (5.0, 7.0, 10.0, 14.0, 20.0):

        def days_at(gpus: int) -> float:
            return 1000 / gpus * (1.5 if gpus % odd == 0 else 1.0)

        right = next(gpus for gpus in sizes if days_at(gpus) <= days)
        assert _smallest(sizes, 8, days, days_at) == right


@pytest.mark.parametrize("gain", [1.1, 1.5, 2.5])
def test_a_much_smaller_size_that_scales_better_is_found(gain: float) -> None:
    """Every smaller size is tried down to the bound, however much faster its GPUs would have to be than those tried."""
    sizes = [8 * count for count in range(1, 129)]

    def days_at(gpus: int) -> float:
        return 1000 / gpus / (gain if gpus == 48 else 1.0)

    right = 48 if 1000 / 48 / gain <= 10 else 104
    assert _smallest(sizes, 8, 10, days_at) == right
    assert _smallest(sizes, 56, 10, days_at) == 104


def test_sizes_between_usual_ones() -> None:
    """All of few; of many the six that divide best; none below the bound, none of what may be bought side by side."""
    usual = [node * 8 for node in (16, 18, 20, 24, 30, 32, 768, 960)]
    assert sizes_between(usual, 240, 1, 8) == [200, 208, 216, 224, 232]
    assert sizes_between(usual, 240, 217, 8) == [224, 232]
    assert sizes_between(usual, 256, 1, 8) == [248]
    many = [784, 800, 832, 864, 896, 928]
    assert sizes_between(usual, 960 * 8, 1, 8) == [8 * nodes for nodes in many]
    assert sizes_between([8], 8, 1, 8) == []


@cache
def _eight_nodes() -> Plan:
    """Return the answer of eight nodes, whose time is scaled to other sizes."""
    return solve_layout(WORKLOAD, load_family("h100").at(64), OPTIONS.solve)


@pytest.mark.parametrize(("needed", "right"), [(28, 224), (25, 200), (30, 240), (24, 192)])
def test_no_smaller_node_count_beside_the_usual_ones_is_in_time(needed: int, right: int) -> None:
    """28 nodes in time are found though 24 and 30 are the usual ones; named sizes alone are tried where they are named."""
    machine, base = Machine(family=load_family("h100"), gpu_hour_cost=2.5), _eight_nodes()

    def solve(workload: Workload, cluster: ClusterSpec, options: SolveOptions) -> Plan:
        assert base.estimate is not None
        step_s = base.estimate.step_time_s * 64 / cluster.gpu_count
        return replace(base, estimate=replace(base.estimate, step_time_s=step_s))

    took = size_answer(WORKLOAD, machine.at(needed * 8), OPTIONS, solve=solve).expected_days
    assert took is not None
    asked = {"days": took * 1.0001, "batches": (512, 512), "solve": solve}
    (one,) = offers(WORKLOAD, [machine], [Precision.BF16], OPTIONS, **asked)  # type: ignore[arg-type]
    assert one.gpus == right
    assert not [size for size in one.tried if size.gpus < right and (size.expected_days or 0) <= took]
    named = offers(WORKLOAD, [machine], [Precision.BF16], OPTIONS, sizes=[192, 240], **asked)  # type: ignore[arg-type]
    assert named[0].gpus == (192 if needed == 24 else 240)


def test_costs_of_one_column_have_one_form() -> None:
    """Digits alone, three of them counting, on both sides of a million."""
    assert [_cost_words(cost) for cost in (840_123.0, 1_304_000.0, 2.34)] == ["840,000", "1,300,000", "2.34"]


def test_the_bound_on_sizes_is_that_of_the_fastest_multiplication() -> None:
    """In 8 bits about half as many GPUs may do; a size that takes so many days is never below their bound."""
    h100 = load_family("h100").at(64)
    least = {
        precision: least_for_deadline(
            override_training(WORKLOAD, precision=precision), h100, 10, OPTIONS.solve
        )
        for precision in (Precision.BF16, Precision.FP8)
    }
    assert 0.5 < least[Precision.FP8] / least[Precision.BF16] < 0.8
    took = size_answer(WORKLOAD, h100, OPTIONS).expected_days
    assert took is not None and least_for_deadline(WORKLOAD, h100, took, OPTIONS.solve) <= 64


def test_sizes_that_may_be_bought() -> None:
    """Only those of a range are tried, odd ones among them; where none is in time the row says how many were allowed."""
    told = run(
        "plan", "llama3-8b", "h100,a100", "--days", "45", "--tokens", "1T", "--sizes", "24:56:+8", "--json"
    )
    assert told.exit_code == 0
    offers_ = json.loads(told.stdout)["offers"]
    assert offers_[0]["gpus"] in range(24, 57, 8)
    assert {answer["gpus"] for one in offers_ for answer in one["tried"]} <= set(range(24, 57, 8))
    assert offers_[1]["gpus"] is None and "at most 56 are tried" in offers_[1]["reason"]
    told = run("plan", "llama3-8b", "h100,a100", "--days", "1", "--tokens", "1T", "--sizes", "24,32")
    assert told.exit_code == 3 and "at most 32 are tried" in " ".join(told.stdout.split())
    assert run(*SMALL, "--sizes", "8:4:+8").exit_code == 2


def test_why_no_size_is_in_time() -> None:
    """More GPUs than are tried, a machine that lacks the format, and sizes that all take longer: each row says it."""
    told = run("plan", "llama3-8b", "h100,v100-32g", "--days", "0.001", "--tokens", "1T")
    assert told.exit_code == 3 and "GPUs that did nothing but multiply would take as long" in " ".join(
        told.stdout.split()
    )
    told = run(*SMALL[:2], "v100-32g,h100", "--days", "60", "--tokens", "100B", "--precision", "fp8")
    assert told.exit_code == 0 and "no v100-32g in fp8: " in " ".join(told.stdout.split())
    told = run(*SMALL[:2], "h100,a100", "--days", "45", "--tokens", "1T", "--gpu-hour-cost", "h100=2.5")
    words = " ".join(told.stdout.split())
    assert "no price of a100 is stated" in words and "the fewest GPU-days of those done" in words


def test_batches_divide_over_the_gpus() -> None:
    """3,072 GPUs take 768 sequences of up to 1,024, a power of two the largest power, and nothing outside the range."""
    assert _batches(3072, (512, 1024)) == [512, 768]
    assert _batches(4096, (512, 1024)) == [512, 1024]
    assert _batches(2560, (512, 600)) == [512]
    assert _batches(8, (512, 512)) == [512]


def test_a_free_batch_buys_fewer_gpus() -> None:
    """A size whose odd part does not divide the batch is worth less; with the batch free it is used."""
    machine, sizes = Machine(family=load_family("h100")), {}

    def solve(workload: Workload, cluster: ClusterSpec, options: SolveOptions) -> Plan:
        plan = solve_layout(workload, load_family("h100").at(64), options)
        assert plan.estimate is not None
        batch, gpus = workload.training.global_batch, cluster.gpu_count
        useful = gpus if batch % (gpus // (gpus & -gpus)) == 0 else 1 << (gpus.bit_length() - 1)
        step_s = plan.estimate.step_time_s * 64 / useful
        return replace(plan, estimate=replace(plan.estimate, step_time_s=step_s))

    for name, batches in {"fixed": (512, 512), "free": (512, 1024)}.items():
        (one,) = offers(WORKLOAD, [machine], [Precision.BF16], OPTIONS, days=15, batches=batches, solve=solve)
        sizes[name] = one.gpus or 0
    assert sizes["free"] < sizes["fixed"]


def test_the_cheapest(found: tuple[Offer, ...]) -> None:
    """By cost where all are priced, else by GPU-days; none of none."""
    costs = [one.cost or 0.0 for one in found]
    assert cheapest_offer(found) is found[costs.index(min(costs))]
    bare = [replace(one, gpu_cost=None, energy_cost=None) for one in found]
    days = [(one.days or 0.0) * (one.gpus or 0) for one in bare]
    assert cheapest_offer(bare) is bare[days.index(min(days))]
    assert cheapest_offer([]) is None


def test_bad_questions() -> None:
    """A deadline of nothing, batches that end below their start, a run without tokens."""
    machine, timeless = Machine(family=load_family("h100")), override_training(load_workload("gpt3-175b"))
    bare = replace(timeless, training=replace(timeless.training, total_tokens=None))
    for workload, days, batches in ((WORKLOAD, 0.0, (1, 2)), (WORKLOAD, 9.0, (4, 2)), (bare, 9.0, (1, 2))):
        with pytest.raises(InputError):
            offers(workload, [machine], [Precision.BF16], OPTIONS, days=days, batches=batches)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("m h100,b200 --days 60", True),
        ("m h100 --days 60 --network 400,800", True),
        ("m h100 --precision bf16,fp8 --days 3", True),
        ("m h100 --batch=512:1024 --days 3", True),
        ("m h100 --days 60", True),
        ("m h100x8 --days 60", False),
        ("m h100x8 --days 60 --batch 512 --gpu-hour-cost 2", False),
        ("m h100x8 --sizes 256,512", False),
    ],
)
def test_which_plans_ask_what_to_buy(words: str, asked: bool) -> None:
    """Several machines, formats, networks or a range of batches; one of each is a plan as ever."""
    assert asks_what_to_buy(words.split()) is asked


def test_the_command() -> None:
    """The table marks the cheapest and states the networks; JSON holds the same figures; bad words get a line."""
    told = run(*SMALL)
    assert told.exit_code == 0, told.output
    table = " ".join(told.stdout.split())  # however wide the terminal is
    assert "infiniband, full bisection" in table and " < " in table
    plain = json.loads(run(*SMALL, "--json").stdout)
    best = plain["offers"][plain["cheapest"]]
    assert best["cost"] == min(one["cost"] for one in plain["offers"])
    assert f"{best['gpus']:,} {best['gpu']}" in table
    wrong = {
        ("--gpu-hour-cost", "x"): "no price",
        ("--gpu-hour-cost", "v100=2"): "none of the machines",
        ("--gpu-hour-cost", "h100=2,h100=3"): "given twice",
        ("--pue", "0.5"): "1 or more",
        ("--mtbf", "0"): "above 0",
        ("--gpu-hour-cost", "1e10"): "no price",
        ("--batch", "within 1..2x"): "--batch",
        ("--batch", "1:1e30"): "out of range",
        ("--pue", "1e308"): "up to 10",
        ("--precision", "bf17"): "no number format",
        ("--batch", "9:3"): "--batch",
        ("--batch", "0:3"): "above 0",
        ("--batch", "within 0.5x"): "a factor of 1 or more",
        ("--network", "0"): "network",
    }
    for words, said in wrong.items():
        refused = run(*SMALL, *words)
        assert refused.exit_code == 2 and said in refused.stderr, refused.output


def _rows(table: str) -> list[dict[str, str]]:
    """Read the printed offers: columns stand two spaces apart at least."""
    lines = table.split("Offers\n")[1].splitlines()
    columns = re.split(r"\s{2,}", lines[0].strip())
    rows = []
    for line in lines[2:]:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) != len(columns):
            break
        rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def _number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize(
    ("words", "offered", "prices", "kwh"),
    [
        ("llama3-8b h100,a100 --days 45 --tokens 1T --gpu-hour-cost h100=2.5,a100=1.2", 2, (2.5, 1.2), 0.0),
        (
            "llama3-8b h100 --days 60 --tokens 500B --precision bf16,fp8 --gpu-hour-cost 2 --price-kwh 0.12 --pue 1.3 "
            "--mtbf 20000",
            2,
            (2.0, 2.0),
            0.12,
        ),
        (
            "llama3-8b h100 --days 20 --tokens 500B --network 100,400 --batch 512:768 --gpu-hour-cost 3 --price-kwh 0.2",
            2,
            (3.0, 3.0),
            0.2,
        ),
    ],
)
def test_printed_tables_add_up_by_hand(
    words: str, offered: int, prices: tuple[float, ...], kwh: float
) -> None:
    """GPUs times days times 24 times the price, and MWh at theirs, are the cost; nothing cheaper is left unmarked."""
    told = run("plan", *words.split())
    assert told.exit_code == 0, told.output
    rows = _rows(told.stdout)
    assert len(rows) == offered
    for row, price in zip(rows, prices, strict=True):
        gpu_hours = _number(row["GPUs"]) * _number(row["days"]) * 24
        cost = gpu_hours * price + 1e3 * _number(row["MWh"]) * kwh
        assert _number(row["cost"]) == pytest.approx(cost, rel=0.012)  # three figures are printed of each
        low, high = map(_number, row["80%"].split(" to "))
        assert low < _number(row["days"]) < high
    cheapest = min(rows, key=lambda row: _number(row["cost"]))
    assert [row["GPU"].endswith(" <") for row in rows].count(True) == 1 and cheapest["GPU"].endswith(" <")
    assert f"cost {cheapest['cost']}, the cheapest" in told.stdout
    assert "Gbit/s" in told.stdout.split("Taken")[1] or "one node" in told.stdout.split("Taken")[1]
    assert "publications that the fit had not seen" in " ".join(told.stdout.split("How sure")[1].split())
