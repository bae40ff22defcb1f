"""What makes a layout run: every single change of it, re-solved with the rest held, ranked by predicted slow-down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.estimate import estimate, estimate_row
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.memory import usable_bytes
from layoutopt.optimizer.solve.api import layout_of
from layoutopt.optimizer.solve.explain.changes import AXES, list_changes, pinned
from layoutopt.optimizer.solve.explain.infeasible import LARGEST_CLUSTER
from layoutopt.optimizer.solve.explain.records import Remedy
from layoutopt.optimizer.solve.judge import BORDERLINE
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.space.rule import FREEST, MEGATRONS
from layoutopt.optimizer.specs.reference_fabric import resized
from layoutopt.optimizer.specs.vocabulary import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.specs.layout import Layout


STAGES = "stages"
"""The change that holds every axis and moves only layers and recomputed layers between stages."""

LARGER = 3
"""Larger data-parallel degrees that are tried."""

GRADIENTS = "16-bit gradients"
MOMENTS = "16-bit Adam moments"
NUMERICS = "changes numerics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A layout that does not run: the question it answers, and its price where it has one.

    ``borderline``: it fits, but barely; remedies have to leave room.
    """

    question: Question
    layout: Layout
    estimate: Estimate | None
    borderline: bool = False
    should_stop: Callable[[], bool] | None = None

    def solve(self, free: tuple[str, ...], question: Question) -> tuple[Layout, Estimate] | None:
        """Return the fastest layout with these axes free and the others as given, None if none fits."""
        if self.should_stop is not None and self.should_stop():
            return None
        space = pinned(self.layout, question.options.space, free)
        held = replace(question, options=replace(question.options, space=space))
        if not self.borderline:
            return fastest_layout(held, should_stop=self.should_stop)
        found = fastest_layout(with_room(held), should_stop=self.should_stop)
        return (found[0], estimate(cost_of(held), found[0])) if found else None

    def remedy(
        self, axes: tuple[str, ...], found: tuple[Layout, Estimate], *, change: str = "", note: str = ""
    ) -> Remedy:
        """Describe what was found beside the given layout."""
        layout, estimate = found
        # In GPU-time, so that more GPUs are no gain of speed that nobody pays for.
        before = self.estimate.step_time_s * self.layout.gpus if self.estimate else None
        return Remedy(
            axes=axes,
            changes=(*((change,) if change else ()), *list_changes(self.layout, layout)),
            layout=layout,
            estimate=estimate,
            slower=estimate.step_time_s * layout.gpus / before - 1.0 if before else None,
            gpus=layout.gpus,
            note=note,
        )


def find_remedies(patient: Patient) -> tuple[Remedy, ...]:
    """Return the changes that make a layout run, the least slow first.

    Single changes; where none is enough, pairs of them. Each is the fastest layout with these axes free and all others as
    given, so it is exact for the declared space. More GPUs come last: they cost something else than time.
    """
    found = [*_by_axes(patient, [(STAGES,), *((axis,) for axis in AXES)]), *_by_settings(patient)]
    if not found:
        # Pairs only where nothing simpler helps: they are many searches, and a longer advice.
        found = [*_by_axes(patient, combinations(AXES, 2))]
    ranked = sorted(_distinct(found), key=lambda remedy: remedy.estimate.step_time_s)
    return (*ranked, *_by_gpus(patient))


def _by_axes(patient: Patient, choices: Iterable[tuple[str, ...]]) -> Iterator[Remedy]:
    """Solve once for each set of free axes; those without an answer are no remedy."""
    for axes in choices:
        found = patient.solve(tuple(axis for axis in axes if axis != STAGES), patient.question)
        if found is not None:
            yield patient.remedy(axes, found)


def _by_settings(patient: Patient) -> Iterator[Remedy]:
    """Keep the layout and shrink what the training state or the loss takes."""
    question = patient.question
    for words, note, changed in _settings(question):
        training = replace(question.workload.training, **changed)
        smaller = replace(question, workload=replace(question.workload, training=training))
        found = patient.solve((), smaller)
        if found is not None:
            yield patient.remedy((), found, change=words, note=note)


def _settings(question: Question) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """List (words, note, changed training numbers) that the framework can launch and that would save bytes.

    NVIDIA/Megatron-LM training/arguments.py: gradients are 16-bit without ``--accumulate-allreduce-grads-in-fp32``,
    moments with ``--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16``, and
    ``--cross-entropy-loss-fusion`` keeps one copy of the logits.
    """
    training, framework = question.workload.training, question.options.framework
    preset = cost_of(question).preset
    if not training.flash:
        yield "fused attention", "", {"flash": True}
    if framework not in MEGATRONS | FREEST:
        return
    if not preset.fused_loss:
        yield "fused loss", "", {"fused_loss": True}
    if preset.grad_bytes > 2:
        yield GRADIENTS, NUMERICS, {"grad_bytes": 2}
    if preset.moment_bytes > 2 and training.optimizer.kind is Optimizer.ADAMW:
        yield MOMENTS, NUMERICS, {"moment_bytes": 2}


def cost_of(question: Question) -> CostModel:
    """Build the prices of a question."""
    workload, options = question.workload, question.options
    return build_cost_model(
        workload.model, workload.training, question.cluster,
        framework=options.framework, software=options.space.software, kind=options.cost,
    )  # fmt: skip


def with_room(question: Question) -> Question:
    """Return the question on GPUs with so much less memory that what fits there is not borderline."""
    cost = cost_of(question)
    usable = usable_bytes(cost.cluster, cost.preset, ideal=cost.ideal)
    # Usable bytes are what is left after the allocator's reserve: to take them away, its share goes too.
    held_back = (1.0 - BORDERLINE) * usable * (1.0 if cost.ideal else 1.0 + cost.preset.allocator_reserve)
    cluster = replace(question.cluster, reserve_bytes=question.cluster.reserve_bytes + held_back)
    return replace(question, cluster=cluster)


def _by_gpus(patient: Patient) -> Iterator[Remedy]:
    """Return the fewest GPUs at which more data parallelism alone is enough: sharded state shrinks, the rest does not."""
    layout, question = patient.layout, patient.question
    group = layout.tp * layout.cp * layout.pp
    # Replicas can be no more than the sequences that they share.
    share = question.workload.training.global_batch // max(layout.micro_batch, 1)
    larger = (
        [dp for dp in divisors(share) if dp > layout.dp and group * dp <= LARGEST_CLUSTER] if share else []
    )
    for dp in larger[:LARGER]:
        gpus = group * dp
        # Nobody adds half a node.
        if gpus % question.cluster.gpus_per_node:
            continue
        found = patient.solve((), replace(question, cluster=resized(question.cluster, gpus)))
        if found is not None:
            change = f"GPUs {question.cluster.gpu_count:,} -> {gpus:,}"
            note = "slow-down counts GPU-time" if patient.estimate else ""
            yield patient.remedy(("gpus",), found, change=change, note=note)
            return


def _distinct(remedies: list[Remedy]) -> list[Remedy]:
    """Drop what changes nothing, and changes that came out the same as one listed before."""
    seen: dict[tuple[str, ...], Remedy] = {}
    for remedy in remedies:
        if remedy.changes:
            # The first is the fastest: the list is sorted.
            seen.setdefault(remedy.changes, remedy)
    return list(seen.values())


def fastest_layout(
    question: Question, *, should_stop: Callable[[], bool] | None = None
) -> tuple[Layout, Estimate] | None:
    """Return the fastest layout that fits and its price, None when there is none (or the search was stopped before)."""
    source = question.costed_space()
    if source.space.empty is not None:
        return None
    options = question.options
    search = SearchOptions(
        time_limit_s=options.time_limit_s, workers=options.workers, gap=options.gap, seed=options.seed
    )
    best = BestFirst(source, search, should_stop=should_stop).run().best
    if best is None:
        return None
    layout = layout_of(source, best)
    return layout, estimate_row(source.cost, layout, best.layout, best.blocks, best.recomputed)
