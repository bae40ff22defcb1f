"""Requirements as text: what is read, what is refused with which line, and what they say of layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.budget import gpu_power_w
from layoutopt.optimizer.cost.interruptions import job_slowdown
from layoutopt.optimizer.cost.run_facts import RunFacts
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.space.requirement import RequirementView, parse_requirement
from layoutopt.optimizer.space.rows import row_of, rows_of
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout
from layoutopt.optimizer.specs.vocabulary import Verdict

EXAMPLES = "(tp*cp <= 8, layers[0] <= 5 or peak_gb <= 70)"
ALL = (
    "one of tp, cp, pp, vp, dp, ep, etp, micro_batch, micro_batches, sp, zero, hsdp_shard, step_s, days, cost, "
    "energy_kwh, gpus, peak_gb, power_mw, layers, recomputed"
)
REFUSED = {
    "": f"require: is empty {EXAMPLES}",
    "tp": f"require: 'tp' compares nothing {EXAMPLES}",
    "tp=8": "require: 'tp=8' can't be read (tp == 8: == compares)",
    "tp <= ": f"require: 'tp <=' can't be read {EXAMPLES}",
    "tpp*cp<=8": "require: 'tpp*cp<=8' has no axis or quantity 'tpp' at character 1 (did you mean tp?)",
    "qqqq<=8": f"require: 'qqqq<=8' has no axis or quantity 'qqqq' at character 1 ({ALL})",
    "layers<=5": (
        "require: 'layers<=5' has layers without a rank at character 1 "
        "(layers[0] is the first rank, layers[-1] the last)"
    ),
    "layers[tp]<=5": (
        "require: 'layers[tp]<=5' has a rank of layers that is no whole number at character 1 (layers[0] or layers[-1])"
    ),
    "layers[0.5]<=5": (
        "require: 'layers[0.5]<=5' has a rank of layers that is no whole number at character 1 "
        "(layers[0] or layers[-1])"
    ),
    "layer[0]<=5": (
        "require: 'layer[0]<=5' counts something that is not counted by rank at character 1 "
        "(did you mean layers[0]?)"
    ),
    "tp[0]<=5": (
        "require: 'tp[0]<=5' counts something that is not counted by rank at character 1 (layers[0] or recomputed[0])"
    ),
    "layers[0][1]<=2": (
        "require: 'layers[0][1]<=2' counts something that is not counted by rank at character 1 "
        "(layers[0] or recomputed[0])"
    ),
    "tp**2<=8": "require: 'tp**2<=8' has a power at character 1 (tp*tp)",
    "tp<<2<=8": "require: 'tp<<2<=8' has an operator that is no arithmetic at character 1 (+ - * // % and /)",
    "max(tp,cp)<=8": (
        "require: 'max(tp,cp)<=8' has a call at character 1 (numbers, axes, quantities, + - * // % and ( ))"
    ),
    "tp.real<=8": (
        "require: 'tp.real<=8' has an attribute at character 1 (numbers, axes, quantities, + - * // % and ( ))"
    ),
    "__import__('os')<=8": (
        "require: \"__import__('os')<=8\" has a call at character 1 (numbers, axes, quantities, + - * // % and ( ))"
    ),
    "[tp]<=8": (
        "require: '[tp]<=8' has something that is no arithmetic at character 1 "
        "(numbers, axes, quantities, + - * // % and ( ))"
    ),
    "(tp<=8)==1": (
        "require: '(tp<=8)==1' has a comparison inside a number at character 2 "
        "(numbers, axes, quantities, + - * // % and ( ))"
    ),
    "tp<=8 and cp<=2": "require: 'tp<=8 and cp<=2' joins with 'and' (one --require for each part)",
    "tp<=8 or cp<=2": (
        "require: 'tp<=8 or cp<=2' joins with 'or' (comparisons alone; every requirement has to hold)"
    ),
    "not tp<=8": "require: 'not tp<=8' negates with 'not' (the opposite comparison: >, <, != ...)",
    "tp in (1,2)": (
        "require: 'tp in (1,2)' has something that is no arithmetic at character 7 "
        "(numbers, axes, quantities, + - * // % and ( ))"
    ),
    "tp is 8": "require: 'tp is 8' compares in another way than by size at character 1 (<=, <, >=, >, == or !=)",
    "zero<='8'": "require: \"zero<='8'\" compares with the word '8' at character 7 (numbers; --fix takes words)",
    "recompute==1": (
        "require: 'recompute==1' has recompute, whose values are words at character 1 "
        "(--fix recompute=... or --forbid recompute=...)"
    ),
    "tp<=True": "require: 'tp<=True' has 'True', which is no number at character 5 (numbers, e.g. 8 or 7.5e6)",
    "tp<=1e400": "require: 'tp<=1e400' has a number out of range at character 5 (up to 1e+15)",
    f"tp<={10**100}": f"require: 'tp<=1{'0' * 52}...' has a number out of range at character 5 (up to 1e+15)",
    "tp//0<=1": "require: 'tp//0<=1' divides by zero at character 1 (another divisor)",
    "1<=2": f"require: '1<=2' names no axis and no quantity at character 1 {EXAMPLES}",
    "tp<=8; cp<=2": f"require: 'tp<=8; cp<=2' can't be read at character 6 {EXAMPLES}",
    "lambda: 0": f"require: 'lambda: 0' compares nothing {EXAMPLES}",
    "layers[0]*layers[1]<=9": (
        "require: 'layers[0]*layers[1]<=9' multiplies two numbers that depend on stages (at most one of them)"
    ),
    "layers[0]//2<=3": (
        "require: 'layers[0]//2<=3' // needs numbers of the layout's axes, layers is none (+, - and * work)"
    ),
    "tp/step_s<=3": (
        "require: 'tp/step_s<=3' / needs numbers of the layout's axes, step_s is none (+, - and * work)"
    ),
    "peak_gb>=50": "require: 'peak_gb>=50' peak_gb can only be limited from above (peak_gb <= ...)",
    "step_s==5": "require: 'step_s==5' step_s can only be limited from above (step_s <= ...)",
    "(" * 400 + "tp<=8": f"require: is longer than 300 characters {EXAMPLES}",
    "(" * 250 + "tp<=8": f"require: '{'(' * 57}...' can't be read at character 201 {EXAMPLES}",
    "tp\x00<=8": f"require: 'tp\\x00<=8' can't be read {EXAMPLES}",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:30]))
def test_refused_with_one_line(text: str) -> None:
    """What is wrong, where, and what would be valid; nothing is ever run."""
    with pytest.raises(InputError) as caught:
        SpaceOptions(require=(text,))
    assert str(caught.value) == REFUSED[text]


def test_corpus_is_large() -> None:
    """At least 25 bad requirements."""
    assert len(REFUSED) >= 25


@pytest.mark.parametrize(
    "text",
    [
        "tp <= 8",
        "TP*mbs <= 8",
        "2 <= pp < 9",
        "layers[-1] - layers[0] >= -(+2)",
        "peak_gb ≤ 70",
        "days/2 < 5",
    ],
)
def test_read(text: str) -> None:
    """Short spellings, chains, signs and typeset comparisons are read."""
    assert parse_requirement(text).names


@settings(deadline=None)
@given(st.text(alphabet="tpc*+-/%()<>=! 0123456789[]lyers.,'", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text ends in anything but a requirement or one line."""
    try:
        parse_requirement(text)
    except InputError as error:
        assert len(error.problems) == 1
        assert "\n" not in str(error)


@settings(deadline=None)
def _facts() -> RunFacts:
    workload = load_workload("llama3-8b")
    return RunFacts(model=workload.model, training=workload.training, cluster=load_cluster("h100x8"))


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 3, 8]),
    zero=st.integers(0, 3),
    text=st.sampled_from(
        [
            "tp*pp <= 8",
            "tp % pp == 0",
            "tp // pp != 1",
            "zero < tp - pp",
            "-tp + 2*pp > zero",
            "1 < tp / pp <= 2",
            "gpus == 8",
        ]
    ),
)
def test_axes_are_judged_as_python_does(tp: int, pp: int, zero: int, text: str) -> None:
    """Arithmetic and comparison of axes are Python's own."""
    layout = Layout(tp=tp, pp=pp, zero=zero)
    facts = _facts()
    view = RequirementView(row_of(layout), facts)
    held = parse_requirement(text).holds(view, lambda atom: np.zeros(1))
    names = {"tp": tp, "pp": pp, "zero": zero, "gpus": tp * pp}
    assert bool(np.all(held)) is bool(eval(text, {}, names))


def test_division_by_zero_meets_nothing() -> None:
    """A divisor that some layouts make zero rules these out, whatever the comparison."""
    facts = _facts()
    view = RequirementView(row_of(Layout(tp=1)), facts)
    for text in ("8 // (tp - 1) != 3", "8 % (tp - 1) <= 3", "8 / (tp - 1) >= 0"):
        assert not parse_requirement(text).holds(view, lambda atom: np.zeros(1)).any()


def test_evaluate_judges_requirements() -> None:
    """A layout that misses one is invalid, with both sides in the reason; one that meets all is not touched."""
    workload, cluster = load_workload("llama3-70b"), load_cluster("h100x64")
    layout = parse_layout("tp=8,pp=4")
    free = judge_layout(workload, cluster, layout)
    assert free.verdict is Verdict.FITS and free.estimate is not None
    slower = job_slowdown(workload.model, cluster, 64)
    days = free.estimate.step_time_s * 15e12 / (512 * 8192) / 86_400 * slower
    met = (
        "tp*pp <= 32",
        "layers[0] == layers[3]",
        "layers[9] == 0",
        "recomputed[-1] < 1",
        f"days <= {days * 1.001}",
    )
    assert judge_layout(workload, cluster, layout, require=met) == free
    missed = judge_layout(
        workload, cluster, layout, gpu_hour_cost=2.0,
        require=(
            "tp*pp <= 16", "layers[0] > 20", "peak_gb < 10", f"days <= {days * 0.999}", "cost <= 1e6", "power_mw < 0.05",
        ),
    )  # fmt: skip
    assert missed.verdict is Verdict.INVALID
    assert missed.reasons == (
        "require tp*pp <= 16: 32 <= 16 does not hold",
        "require layers[0] > 20: 20 > 20 does not hold",
        f"require peak_gb < 10: {free.estimate.memory.peak_bytes / 1e9:.6g} < 10 does not hold",
        f"require days <= {days * 0.999}: {days:.6g} <= {days * 0.999:.6g} does not hold",
        f"require cost <= 1e6: {days * 24 * 64 * 2:.6g} <= 1e+06 does not hold",
        f"require power_mw < 0.05: {64 * gpu_power_w(cluster) / 1e6:.6g} < 0.05 does not hold",
    )


def test_what_quantities_need_is_asked_for() -> None:
    """Cost needs a price, days need a number of tokens."""
    with pytest.raises(InputError, match=r"^gpu_hour_cost: is not given, and cost rests on it \(e.g. 2.5\)$"):
        SolveOptions(space=SpaceOptions(require=("cost <= 1e6",)))
    with pytest.raises(InputError, match="gpu_hour_cost: is not given"):
        SolveOptions(then="cost")
    with pytest.raises(InputError, match=r"^then: no objective 'memoy' \(did you mean memory\?\)$"):
        SolveOptions(then="memoy")
    workload = load_workload("llama3-8b")
    endless = replace(workload, training=replace(workload.training, total_tokens=None))
    with pytest.raises(InputError, match=r"needs the number of tokens \(training.total_tokens"):
        judge_layout(endless, load_cluster("h100x8"), parse_layout("tp=2"), require=("days <= 60",))


@pytest.mark.parametrize(
    ("text", "met"),
    [("tp<=1<=2", [True, False]), ("1<=tp<=2<=3", [True, True]), ("tp<=2<=1", [False, False])],
)
def test_constants_side_by_side_hold_for_all_layouts(text: str, met: list[bool]) -> None:
    """A comparison that names nothing has one value, beside those of every layout."""
    batch = row_of(Layout()).take(np.array([0, 0]))
    view = RequirementView(replace(batch, tp=np.array([1, 2])), _facts())

    assert parse_requirement(text).holds(view, lambda _: np.zeros(1)).tolist() == met


def test_sides_are_told_of_the_first_of_several_layouts() -> None:
    """Columns, constants, and what stages decide, all for the first row."""
    workload = load_workload("llama3-8b")
    facts = RunFacts(model=workload.model, training=workload.training, cluster=load_cluster("h100x8"))
    view = RequirementView(rows_of([Layout(tp=2, dp=4), Layout(tp=8), Layout(tp=4, dp=2)]), facts)
    decided = np.array([3.0, 5.0, 7.0])
    for text, words in (
        ("tp >= 3", "2 >= 3 does not hold"), ("3 <= 1 + tp * dp < 8", "3 <= 9 < 8 does not hold"),
        ("2 * layers[0] + tp <= 7", "8 <= 7 does not hold"),
    ):  # fmt: skip
        assert parse_requirement(text).explain(view, lambda _: decided) == words
