"""A profile against a plan: the measured terms, the three questions of every profile, differences, causes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.cause import CauseKind
from layoutopt.optimizer.diagnose.causes import causes
from layoutopt.optimizer.diagnose.difference import Row, StepDifference, difference
from layoutopt.optimizer.diagnose.group_axes import open_groups, with_axes
from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis, diagnose_log
from layoutopt.optimizer.diagnose.logged import LoggedProfile
from layoutopt.optimizer.diagnose.outliers import over_others
from layoutopt.optimizer.diagnose.peers import match
from layoutopt.optimizer.diagnose.predicted import Expectation, expectation
from layoutopt.optimizer.diagnose.terms import is_sharded, rank_terms
from layoutopt.optimizer.diagnose.utilization import require_possible
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.gpu_catalog import gpu_model
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.diagnose.parts import Activity
    from layoutopt.optimizer.diagnose.peers import Matched
    from layoutopt.optimizer.diagnose.profile import Product, RankProfile
    from layoutopt.optimizer.diagnose.terms import RankTerms
    from layoutopt.optimizer.specs.layout import Layout


UNNAMED = ("", "gpu", "cpu")
"""What profiles say that name no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kernel over all profiled ranks: seconds of a step and calls in it, in the mean of the ranks.

    A multiplication stands apart by its shape, with its rate, where the profile records shapes.
    """

    name: str
    part: Activity
    calls: float
    seconds: float
    share: float
    product: Product | None = None
    flops_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The traffic of an axis and a kind of call, seconds of a step in the mean of the ranks that call it.

    ``bytes`` is what a rank moves in a step, ``bytes_per_s`` over the time of transfer; None where it is not told.
    ``predicted_bytes_per_s`` is the plan's price of the same calls. ``whole``: every member's profile is given; where not,
    waiting for the others is not told from transfer, and there is no rate.
    """

    axis: Axis | None
    kind: str
    ranks: int
    calls: float
    bytes: float | None
    busy_s: float
    exposed_s: float
    waiting_s: float
    bytes_per_s: float | None
    predicted_bytes_per_s: float | None
    whole: bool

    @property
    def hidden_share(self) -> float:
        """What of it kernels run beside."""
        return 1 - self.exposed_s / self.busy_s if self.busy_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpeed:
    """How fast a rank is: its step, its kernels over the middle of its stage's others, the collectives that wait for it."""

    rank: int
    stage: int
    step_s: float
    kernels_s: float
    waiting_s: float
    ratio: float
    late_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was found. ``expected`` is None without a plan, and so are differences and causes.

    ``gpu`` is the name of the plan's GPU, empty without a plan.
    """

    profiles: tuple[RankProfile, ...]
    matched: tuple[Matched, ...]
    ranks: tuple[RankTerms, ...]
    operations: tuple[Operation, ...]
    overlaps: tuple[Overlap, ...]
    speeds: tuple[RankSpeed, ...]
    expected: Expectation | None
    difference: StepDifference[Row] | None
    causes: tuple[Cause, ...]
    gpu: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs that profiles name, each once."""
        named = dict.fromkeys(" ".join(profile.device.split()) for profile in self.profiles)
        return tuple(name for name in named if name not in UNNAMED)

    @property
    def other_gpu(self) -> str:
        """Says that profiles name another GPU than the plan's, by their models; empty where none does."""
        planned = gpu_model(self.gpu)
        others = [name for name in self.devices if gpu_model(name) not in (None, planned)]
        return f"profiles are of {others[0][:60]}, the plan is of {self.gpu}" if planned and others else ""

    @property
    def step_s(self) -> float:
        """The measured step: that of the slowest rank."""
        return max(terms.step_s for terms in self.ranks)

    @property
    def not_told(self) -> str:
        """What profiles that are not given leave open; empty where the members of all calls are given."""
        if all(one.whole for terms in self.ranks for one in terms.traffic):
            return ""
        missing = sorted({rank for calls in self.matched for rank in calls.missing})
        where = (
            f"no profile of {_listed(missing)}: in calls with them"
            if missing
            else "in calls without a counterpart"
        )
        return f"{where} waiting is not told from transfer (the pipeline's counts as bubble), and tells no slow link"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the profiles leave open."""
        said = dict.fromkeys(note for profile in self.profiles for note in profile.notes)
        return (*([self.other_gpu] if self.other_gpu else []), *said, *open_groups(self.profiles))


def diagnose(
    profiles: Sequence[RankProfile], cost: CostModel | None = None, layout: Layout | None = None
) -> Diagnosis:
    """Hold the profiles of one or more ranks of a job against the plan that it ran.

    ``layout`` has explicit stages, ``cost`` prices it; both None only measures. Raises ``InputError`` for profiles that
    cannot be of one job, or of this plan.
    """
    # Files come in any order; ranks are listed by number.
    profiles = tuple(sorted(profiles, key=lambda profile: profile.rank))
    _check(profiles, layout)
    if layout is not None:
        profiles = tuple(with_axes(profile, layout) for profile in profiles)
    staged = any(group.axis == "pp" and group.members > 1 for one in profiles for group in one.groups)
    # Without a plan the profile itself has to say how weights are kept: by gathers in backward.
    sharded = any(map(is_sharded, profiles)) if layout is None else layout.zero == 3
    matched = match(profiles)
    ranks = tuple(
        rank_terms(profile, calls, sharded=sharded, staged=staged or (layout is not None and layout.pp > 1))
        for profile, calls in zip(profiles, matched, strict=True)
    )
    expected = None if cost is None or layout is None else expectation(cost, layout)
    apart = None if expected is None else difference(ranks, expected)
    found = () if expected is None or apart is None else causes(ranks, expected, apart)
    if expected is not None and apart is not None and not _of_other_batch(found):
        require_possible(expected.cost, expected.layout.gpus, apart.measured_s, file=profiles[0].source)
    return Diagnosis(
        profiles=profiles,
        matched=matched,
        ranks=ranks,
        operations=_operations(ranks),
        overlaps=_overlaps(ranks, expected),
        speeds=_speeds(ranks, expected),
        expected=expected,
        difference=apart,
        causes=found,
        gpu="" if cost is None else cost.cluster.gpu.name,
    )


def _of_other_batch(found: Sequence[Cause]) -> bool:
    """Tell whether another number of micro-batches is named, which explains a step of any length."""
    return any(one.kind is CauseKind.MICRO_BATCHES for one in found)


def diagnose_run(
    read: Sequence[RankProfile] | LoggedProfile, cost: CostModel, layout: Layout
) -> Diagnosis | LogDiagnosis:
    """Hold what was read of a run, profiles of ranks or a log, against the plan that it ran."""
    if isinstance(read, LoggedProfile):
        return diagnose_log(read, cost, layout)
    return diagnose(read, cost, layout)


def _check(profiles: Sequence[RankProfile], layout: Layout | None) -> None:
    seen: dict[int, str] = {}
    for profile in profiles:
        if profile.rank in seen:
            what = f"is of rank {profile.rank}, as is {seen[profile.rank]}"
            raise input_error(
                what, "one profile per rank; --rank tells the rank of a single one", file=profile.source
            )
        seen[profile.rank] = profile.source
        if layout is not None and (what := _of_another_job(profile, layout)):
            raise input_error(what, "profiles of the job that ran this plan", file=profile.source)


def _of_another_job(profile: RankProfile, layout: Layout) -> str:
    """Say what shows that a profile is not of a layout's job; empty where nothing does."""
    if profile.rank >= layout.gpus:
        return f"is of rank {profile.rank}, the plan has {layout.gpus:,} GPUs"
    if profile.world not in (0, layout.gpus):
        return f"is of a job of {profile.world:,} GPUs, the plan has {layout.gpus:,}"
    members = [rank for group in profile.groups for rank in group.ranks]
    if beyond := [rank for rank in members if not 0 <= rank < layout.gpus]:
        return f"names rank {beyond[0]} in a group, the plan has {layout.gpus:,} GPUs"
    for axis, degree in ((Axis.TP, layout.tp), (Axis.CP, layout.cp), (Axis.PP, layout.pp)):
        most = max((group.members for group in profile.groups if group.axis is axis), default=degree)
        # over cp and pp trainers have smaller groups too: hierarchical ones, first and last stage
        if most > degree or (axis is Axis.TP and 1 < most < degree):
            return f"is of a job of {axis}={most}, the plan has {axis}={degree}"
    return ""


def _operations(ranks: Sequence[RankTerms]) -> tuple[Operation, ...]:
    """Sum kernels up by name and shape over phases and ranks, the longest first."""
    calls: dict[tuple[str, Activity, Product | None], float] = {}
    seconds: dict[tuple[str, Activity, Product | None], float] = {}
    for terms in ranks:
        for use in terms.kernels:
            key, share = (use.name, use.part, use.product), 1 / (terms.steps * len(ranks))
            calls[key] = calls.get(key, 0.0) + use.calls * share
            seconds[key] = seconds.get(key, 0.0) + use.busy_ns * 1e-9 * share
    step_s = fmean(terms.step_s for terms in ranks)
    listed = [
        Operation(
            name=name,
            part=part,
            calls=calls[name, part, product],
            seconds=own,
            share=own / step_s,
            product=product,
            flops_per_s=product.flop * calls[name, part, product] / own if product and own else None,
        )
        for (name, part, product), own in seconds.items()
    ]
    return tuple(sorted(listed, key=lambda one: -one.seconds))


def _overlaps(ranks: Sequence[RankTerms], expected: Expectation | None) -> tuple[Overlap, ...]:
    """Average traffic by axis, kind and size of group over the ranks that have it; calls of missing members apart."""
    keys = dict.fromkeys(
        (one.axis, one.kind, one.ranks, one.whole) for terms in ranks for one in terms.traffic
    )
    found = []
    for axis, kind, members, whole in keys:
        mine = [
            (one, terms.steps)
            for terms in ranks
            for one in terms.traffic
            if (one.axis, one.kind, one.ranks, one.whole) == (axis, kind, members, whole)
        ]
        steps = sum(count for _, count in mine)
        # One call of unknown size makes the sum unknown, and a rate from the others would be too low.
        total = sum(one.bytes for one, _ in mine) if all(one.bytes >= 0 for one, _ in mine) else None
        moved_s = sum(one.transfer_ns for one, _ in mine) * 1e-9
        calls = sum(one.calls for one, _ in mine)
        price_s = None
        if total and axis is not None and expected is not None:
            price_s = expected.transfer_s(axis, kind, total / calls)
        found.append(
            Overlap(
                axis=axis,
                kind=kind,
                ranks=members,
                calls=calls / steps,
                bytes=None if total is None else total / steps,
                busy_s=sum(one.busy_ns for one, _ in mine) / steps * 1e-9,
                exposed_s=sum(one.exposed_ns for one, _ in mine) / steps * 1e-9,
                waiting_s=sum(one.waiting_ns for one, _ in mine) / steps * 1e-9,
                bytes_per_s=total / moved_s if whole and total and moved_s else None,
                predicted_bytes_per_s=total / calls / price_s if total and price_s else None,
                whole=whole,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.exposed_s))


def _speeds(ranks: Sequence[RankTerms], expected: Expectation | None) -> tuple[RankSpeed, ...]:
    """Compare ranks of one stage; without a plan all ranks are one stage."""
    stages = [0 if expected is None else expected.stage_of(terms.rank) for terms in ranks]
    busy = [terms.computing_s for terms in ranks]
    ratios: dict[int, float] = {}
    for stage in set(stages):
        same = [place for place, other in enumerate(stages) if other == stage]
        ratios |= dict(zip(same, over_others([busy[place] for place in same]), strict=True))
    return tuple(
        RankSpeed(
            rank=terms.rank,
            stage=stage,
            step_s=terms.step_s,
            kernels_s=own,
            waiting_s=terms.seconds(Component.SYNC) + terms.seconds(Component.BUBBLE),
            ratio=ratios[place],
            late_share=terms.late,
        )
        for place, (terms, stage, own) in enumerate(zip(ranks, stages, busy, strict=True))
    )


MOST_PARTS = 4
"""Kinds of kernel that the first answer names."""


def _hidden(found: Diagnosis) -> Iterable[tuple[str, float]]:
    """Yield every axis with what kernels hide of its traffic."""
    for axis in dict.fromkeys(one.axis for one in found.overlaps):
        mine = [one for one in found.overlaps if one.axis is axis]
        busy = sum(one.busy_s for one in mine)
        if busy:
            yield axis.value if axis else "others", 1 - sum(one.exposed_s for one in mine) / busy


def answers(found: Diagnosis) -> Iterable[str]:
    """Answer the three questions of a profile: what takes the most, is traffic overlapped, are all ranks equally fast?"""
    by_part: dict[Activity, float] = {}
    for one in found.operations:
        by_part[one.part] = by_part.get(one.part, 0.0) + one.share
    if by_part:
        first = sorted(by_part, key=lambda part: -by_part[part])[:MOST_PARTS]
        yield f"most time: {', '.join(f'{part.words} {by_part[part]:.0%}' for part in first)}"
    busy, exposed = sum(one.busy_s for one in found.overlaps), sum(one.exposed_s for one in found.overlaps)
    if busy:
        named = ", ".join(f"{axis} {share:.0%}" for axis, share in _hidden(found))
        yield f"traffic: {1 - exposed / busy:.0%} of its time runs beside kernels ({named})"
    else:
        yield "traffic: none in the profile"
    yield f"ranks: {slowest_words(found)}"
    if found.not_told:
        yield f"missing: {found.not_told}"


def slowest_words(found: Diagnosis) -> str:
    """Say which rank's kernels take longest beside the others of its stage, the only ones that compare."""
    stages = Counter(one.stage for one in found.speeds)
    compared = [one for one in found.speeds if stages[one.stage] > 1]
    if not compared:
        given = "one profile" if len(found.speeds) == 1 else "one profile of each stage"
        return f"{given}; those of several ranks of a stage tell whether all are equally fast"
    worst = max(compared, key=lambda one: one.ratio)
    others = [one.rank for one in compared if one.stage == worst.stage and one is not worst]
    whom = f"rank {others[0]}" if len(others) == 1 else "the middle of the others of its stage"
    return f"kernels of rank {worst.rank} take {worst.ratio:.2f} times those of {whom}"


MOST_RANGES = 4
"""Ranges of ranks that a line names."""


def _listed(ranks: Sequence[int]) -> str:
    """Write ranks in order as ranges: ``rank 2``, ``ranks 1-3 and 8``, and how many there are where ranges are many."""
    runs = [
        [rank for _, rank in group]
        for _, group in groupby(enumerate(ranks), key=lambda item: item[1] - item[0])
    ]
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:MOST_RANGES]]
    named = " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])
    more = f", ... ({len(ranks):,} ranks)" if len(runs) > MOST_RANGES else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"
