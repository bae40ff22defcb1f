"""Answers say how sure they are: error band, near-ties, the measurement that would separate them, the robust choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.band import bands

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

QUESTION = ("solve", "llama3-8b", "h100x8", "--batch", "64")


def test_every_answer_prints_its_error_band(run: Callable[..., Result]) -> None:
    """The family, its errors in runs that the fit saw and did not see, and near-ties with a measurement to take."""
    text = " ".join(run(*QUESTION, "--top", "3").stdout.split())
    assert "How sure" in text
    assert "measured runs of this kind (dense 16-bit H100)" in text
    assert "that the fit had not seen" in text
    assert "not distinguishable by this model" in text and "to tell it from the next best" in text


def test_an_explanation_says_how_sure_its_step_is(
    run: Callable[..., Result], ask: Callable[..., dict[str, Any]]
) -> None:
    """Text and JSON hold the interval of the layout's step, as those of evaluate do."""
    asked = ("explain", *QUESTION[1:], "--layout", "tp=8,zero=1", "--no-compare")
    text = " ".join(run(*asked).stdout.split())
    assert "(80% interval " in text and "measured runs of this kind" in text
    priced = ask(*asked)["estimate"]
    low, high = priced["interval_s"]["80"]
    assert low < priced["step_time_s"] < high


def test_a_gap_says_which_measured_runs_bear_it_out(
    run: Callable[..., Result], ask: Callable[..., dict[str, Any]]
) -> None:
    """A large gap and a wish's cost: what carries them, the runs that test each part, and that the size is doubtful."""
    slow = "tp=8,micro_batch=1,recompute=full,zero=1"
    asked = ("explain", *QUESTION[1:], "--layout", slow, "--why-not", "tp=8")
    plain, tested = ask(*asked), bands()["tested"]
    for claim in (plain["gap"], *plain["why_not"]):
        assert claim["slower"] > 0 and claim["carried_by"]
        assert all(part["rows"] == tested.get(part["component"], 0) for part in claim["carried_by"])
    assert plain["gap"]["slower"] > 0.3 and plain["gap"]["claim"] == "doubtful"
    text = " ".join(run(*asked).stdout.split())
    gap, wish = text.split("Why not tp=8")
    for part, claim in ((gap, plain["gap"]), (wish, plain["why_not"][0])):
        assert "carried by" in part and f"({claim['carried_by'][0]['rows']} measured runs" in part
    assert "doubt it" in gap.split("Gap to the optimum")[1]


def test_near_ties_are_marked_by_the_band(ask: Callable[..., dict[str, Any]]) -> None:
    """A runner-up inside the band is not distinguishable and names one measurement; one outside it needs none."""
    plain = ask(*QUESTION, "--top", "4")
    limit = plain["error_band"]["indistinct"]
    assert plain["alternatives"]
    for other in plain["alternatives"]:
        assert other["distinguishable"] is (other["slower"] > limit)
        assert bool(other["measurement"]) is not other["distinguishable"]


def test_the_robust_choice_is_seeded(ask: Callable[..., dict[str, Any]]) -> None:
    """Two runs give the same mean regrets, of which the chosen layout has the smallest."""
    first, second = (ask(*QUESTION, "--robust")["robust"] for _ in range(2))
    assert first == second
    assert first["mean_regret"][first["chosen"]] == min(first["mean_regret"])
    assert len(first["mean_regret"]) == len(first["worst_regret"]) == len(first["step_time_s"])
    assert first["samples"] >= 30
