"""How sure an answer is, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from layoutopt.optimizer.evidence.band import error_band
from layoutopt.optimizer.evidence.claims import FEW_ROWS, ClaimSize, carriers, claim_size
from layoutopt.optimizer.evidence.ties import INDISTINCT
from layoutopt.optimizer.report.tables.console import bullets, section
from layoutopt.optimizer.report.tables.layout import layout_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.band import Band
    from layoutopt.optimizer.evidence.choice import ChoiceRisk, RobustChoice
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.evidence.ties import Tie
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.vocabulary import Precision
    from layoutopt.optimizer.specs.workload import Workload


def honesty_section(honesty: Honesty, *, brief: bool = False) -> RenderableType:
    """Show the error band, in one bullet where ``brief``, and the robust choice where it was asked for."""
    lines = brief_lines(honesty.band) if brief else band_lines(honesty.band)
    if honesty.choice is not None:
        lines.append(choice_line(honesty.choice))
    if honesty.robust is not None:
        lines.append(robust_line(honesty.robust))
    return section("How sure", bullets(lines))


def band_lines(band: Band) -> list[str]:
    """Say how far predictions of the family were off, in and out of the fit, and what cannot be told apart."""
    if band.rows:
        first = (
            f"{band.rows} measured runs of this kind ({band.family}) are predicted {band.median_ape:.1%} off in the "
            f"median, nine of ten within {band.p90_ape:.0%}"
        )
    else:
        kind = f"{band.family}; none on {band.outside}" if band.outside else band.family
        first = f"no measured run of this kind ({kind}): the figures are those of {band.kinds}"
    second = (
        f"runs of a publication that the fit had not seen: {band.unseen_median_ape:.0%} in the median, nine of ten "
        f"within {band.unseen_p90_ape:.0%}; a few own runs remove most of it (layoutopt calibrate)"
    )
    return [first, second, f"layouts predicted less than {band.indistinct:.1%} apart are {INDISTINCT}"]


def brief_lines(band: Band) -> list[str]:
    """Say in one bullet how far predictions of the family were off."""
    seen = (
        f"{band.rows} measured runs of this kind ({band.family}) are {band.median_ape:.0%} off in the median"
        if band.rows
        else f"no measured run of this kind ({band.outside or band.family}), so the error of {band.kinds}"
    )
    # A new cluster is none of those that were fitted: it can expect the error of publications left out.
    off, most = band.unseen_median_ape, band.unseen_p90_ape
    unseen = f"publications that the fit had not seen {off:.0%}, nine of ten within {most:.0%}"
    return [f"{seen}; {unseen}"]


def sure_lines(asked: Iterable[tuple[Workload, ClusterSpec, Precision]], framework: Framework) -> list[str]:
    """Say of many predictions how far those of their kinds were off, each sentence once."""
    lines = [
        line
        for workload, cluster, precision in asked
        for line in brief_lines(error_band(workload, cluster, precision, framework=framework))
    ]
    return list(dict.fromkeys(lines))


def range_section(band: Band, *, calibrated: bool) -> RenderableType:
    """Say where the range of a plan's days comes from."""
    low, high = (band.seen_ratios if calibrated else band.ratios)["80"]
    kind = f"measured runs of {band.kinds}"
    runs = (
        f"{kind} after three own ones" if calibrated else f"{kind} of publications that the fit had not seen"
    )
    words = f"four of five {runs} are expected to take {low:.2f} to {high:.2f} times their predicted steps"
    return section("Where the range comes from", Text(words))


def choice_line(choice: ChoiceRisk) -> str:
    """Say how likely the answer is the best of its near-ties, and what it loses in the mean if it is not."""
    return (
        f"the fastest of its {choice.layouts} near-ties with a chance of {choice.chance_best:.0%} ({choice.draws} sets of "
        f"constants, and errors of components beside them); expected loss {choice.expected_loss:.2%}"
    )


def robust_line(choice: RobustChoice) -> str:
    """Say which layout loses least in the mean."""
    at_worst = f"{choice.worst_regret[choice.chosen]:.1%} at worst over {choice.samples} sets of constants"
    regret = f"{choice.mean_regret[choice.chosen]:.1%} in the mean, {at_worst}"
    if len(choice.layouts) == 1:
        return f"robust choice: no other layout is predicted within the band ({regret})"
    if choice.chosen == 0:
        others = min(choice.mean_regret[1:])
        return f"robust choice: the fastest layout too; it loses {regret}, the next {others:.1%}"
    return (
        f"robust choice: {layout_text(choice.layout)}; it loses {regret}, the fastest "
        f"{choice.mean_regret[0]:.1%}"
    )


def tie_words(tie: Tie | None) -> str:
    """Return what to add to an alternative: nothing where the model can tell."""
    return "" if tie is None or tie.distinguishable else f"; {INDISTINCT}: {tie.measurement} would tell"


def claim_size_words(gain: float, band: Band) -> str:
    """Say whether the cost model can tell a gain, and whether measured runs bear it out so far."""
    size = claim_size(gain, band)
    if size is ClaimSize.INDISTINCT:
        return f"layouts less than {band.indistinct:.1%} apart are {INDISTINCT}"
    if size is ClaimSize.DOUBTFUL:
        return f"a claim above the {band.unseen_p90_ape:.0%} within which nine of ten unseen runs are predicted: doubt it"
    return "more than two predictions of this kind usually differ by in error"


def claim_words(faster: Estimate, slower: Estimate) -> str:
    """Say which components carry the gain of one layout over another, and how many measured runs test each."""
    found = carriers(faster.breakdown_s, slower.breakdown_s)
    parts = [
        f"{one.component.record.words} {one.share:.0%} ({one.rows} measured runs"
        + (": little evidence)" if one.rows < FEW_ROWS else ")")
        for one in found
    ]
    return f"carried by {', '.join(parts)}" if parts else ""
