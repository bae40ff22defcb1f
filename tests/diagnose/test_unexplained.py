"""What no fault's rule names: pauses without a range, terms without a cause, faster steps, unknown kernels."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checks.traced_faults import clean
from checks.traced_files import write_traces
from checks.traced_job import Kernel
from checks.traced_plan import mapped, slower
from checks.traced_run import Run
from rich.console import Console

from layoutopt import InputError
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.cause import LEAST_GAP, CauseKind, cause
from layoutopt.optimizer.diagnose.diagnosis import answers, diagnose
from layoutopt.optimizer.diagnose.difference import Row, StepDifference
from layoutopt.optimizer.diagnose.outliers import over_others
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.unexplained import unexplained, without_cause
from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.report.tables.diagnosis import diagnosis_tables

if TYPE_CHECKING:
    from pathlib import Path

    from checks.traced_faults import Case

    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis


def of_case(case: Case, folder: Path, *ranks: int) -> Diagnosis:
    """Run a case's job and diagnose it from the profiles of some ranks, of all where none is named."""
    folder.mkdir(exist_ok=True)
    files = write_traces(Run(case.job), folder, compress=False)
    profiles = [read_kineto(files[rank], ProfileOptions()) for rank in ranks or range(len(files))]
    return diagnose(profiles, case.cost, case.layout)


def printed(found: Diagnosis, width: int) -> str:
    """Return the tables as a pipe of some width gets them."""
    console = Console(width=width, highlight=False, emoji=False, markup=False)
    with console.capture() as caught:
        console.print(diagnosis_tables(found))
    return caught.get()


def apart(**terms: tuple[float, float]) -> StepDifference[Row]:
    """Return a difference of predicted and measured seconds by component."""
    was, now = (sum(pair[place] for pair in terms.values()) for place in (0, 1))
    rows = tuple(
        Row(
            component=Component[name.upper()],
            part=None,
            predicted_s=pair[0],
            measured_s=pair[1],
            gap_share=(pair[1] - pair[0]) / (now - was) if now != was else None,
        )
        for name, pair in terms.items()
    )
    return StepDifference(predicted_s=was, measured_s=now, rows=rows)


def test_a_pause_that_no_range_names(tmp_path: Path) -> None:
    """A host that pauses at each step's start without a range of that name is the cause, with its seconds."""
    case = clean(0)
    pause_us = round(0.2 * 1e6 * case.cost.training.global_batch / 8)
    case = replace(case, job=replace(case.job, host_us=case.job.host_us + pause_us))
    found = of_case(case, tmp_path)
    assert found.causes[0].kind is CauseKind.HOST_PAUSE
    assert found.causes[0].seconds == pytest.approx(pause_us * 1e-6, rel=0.05)
    assert "no range" in found.causes[0].evidence[0] and "nothing stands out" not in printed(found, 100)


@pytest.mark.parametrize("name", ["forward", "dp", "sync", "step", "optimizer"])
@pytest.mark.parametrize("factor", [0.2, 0.7, 1.2, 3.0])
def test_a_gap_beyond_the_noise_is_named(name: str, factor: float) -> None:
    """Whichever term carries it, longer or shorter, with its ratio; what explains most of it leaves no more to say."""
    terms = {
        "forward": (1.0, 1.0),
        "dp": (1.0, 1.0),
        "sync": (1.0, 1.0),
        "step": (1.0, 1.0),
        "optimizer": (1.0, 1.0),
    }
    found = apart(**{**terms, name: (1.0, factor)})
    assert abs(found.gap_s) > LEAST_GAP * found.predicted_s
    (named,) = unexplained(found, [])
    assert named.about == Component[name.upper()].words and f"{factor:.2f} times" in named.words
    assert named.kind is (CauseKind.UNEXPLAINED if factor > 1 else CauseKind.FASTER)
    assert named.seconds == pytest.approx(abs(factor - 1))
    known = cause(CauseKind.SLOW_LINK, "dp", 0.9 * found.gap_s, "known")
    assert len(list(unexplained(found, [known]))) == (factor < 1)
    small = replace(known, seconds=0.1 * found.gap_s)
    assert len(list(unexplained(found, [small]))) == 1


def test_nothing_stands_out_is_said_of_small_terms_alone() -> None:
    """Terms that make up for one another are named; a gap of many small ones names the largest."""
    assert without_cause(apart(forward=(1.0, 1.01), dp=(1.0, 1.01))).startswith("nothing stands out")
    swapped = apart(forward=(1.0, 2.0), dp=(2.0, 1.0))
    assert not list(unexplained(swapped, []))
    assert without_cause(swapped).startswith("the step is near its prediction, its terms are not: forward")
    spread = apart(forward=(1.0, 1.1), dp=(1.0, 1.11), sync=(1.0, 1.1))
    assert [one.about for one in unexplained(spread, [])] == [Component.DP.words]


def test_a_step_above_the_peak_is_refused(tmp_path: Path) -> None:
    """Profiles of a run that its GPUs cannot have done at their peak: another batch, model or GPU."""
    case = clean(2)
    job = slower(slower(case.job, Activity.GEMM, 0.01), Activity.ATTENTION, 0.01)
    job = replace(job, host_us=1, optimizer_us=1, axis_factor={"tp": 0.01}, reduce_us=1, gather_us=1)
    with pytest.raises(InputError, match=r"times the peak of h100 .*its batch, layers and GPUs"):
        of_case(replace(case, job=job), tmp_path)


def test_kernels_that_no_rule_classes(tmp_path: Path) -> None:
    """Their share of the step is said, and the longest of them."""
    case = clean(0)

    def followed(item: Kernel) -> tuple[Kernel, ...]:
        """Follow attention by a kernel of no known kind."""
        if item.part is not Activity.ATTENTION:
            return (item,)
        return item, Kernel(Activity.OTHER, 2 * item.us, item.gap_us)

    found = of_case(replace(case, job=mapped(case.job, followed)), tmp_path)
    (named,) = (one for one in found.causes if one.kind is CauseKind.UNKNOWN_KERNELS)
    assert re.match(r"\d+% of the step runs in kernels of no known kind", named.words)
    longest = next(one for one in found.operations if one.part is Activity.OTHER)
    assert named.evidence[0].startswith(longest.name)


def test_stages_do_not_compare(tmp_path: Path) -> None:
    """Of one rank of each stage none is slow; of two of a stage one is beside the other, not beside their middle."""
    case = clean(0)
    case = replace(case, job=replace(case.job, rank_factor={0: 1.4}))
    found = of_case(case, tmp_path / "apart", 0, 4)
    assert not [one for one in found.causes if one.kind is CauseKind.SLOW_RANK]
    assert "one profile of each stage" in list(answers(found))[2]
    assert over_others([1.41, 1.0]) == [1.41, pytest.approx(1 / 1.41)] and over_others([3.0]) == [1.0]
    found = of_case(case, tmp_path / "pair", 0, 1)
    slow = next(one for one in found.causes if one.kind is CauseKind.SLOW_RANK)
    assert "rank 0 is 4" in slow.words or "rank 0 is 39%" in slow.words
    assert "on rank 1" in slow.evidence[0]
    assert found.speeds[0].ratio == pytest.approx(1.4, rel=0.02)


def test_narrow_tables_keep_numbers_and_units(tmp_path: Path) -> None:
    """At 80 columns the components wrap; every number of the wide table is there whole."""
    found = of_case(clean(0), tmp_path)
    wide, narrow = printed(found, 140), printed(found, 80)
    numbers = re.findall(r"[+-]?\d[\d.,]* (?:ms|us|s|[kMG]?B|[kMG]B/s)\b", wide)
    assert len(numbers) > 60
    assert sorted(re.findall(r"[+-]?\d[\d.,]* (?:ms|us|s|[kMG]?B|[kMG]B/s)\b", narrow)) == sorted(numbers)
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert all(word in narrow for word in ("predicted", "measured", "ratio", "of the gap"))
