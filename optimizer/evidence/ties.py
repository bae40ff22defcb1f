"""Near-ties of an answer that the model cannot tell apart, and the one measurement that would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from layoutopt.optimizer.cost.components import Group, in_group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.band import Band
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.layout import Layout

    Priced = tuple[Layout, Estimate]

INDISTINCT = "not distinguishable by this model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """One alternative: how much slower it is predicted, whether the model can tell, and what would tell.

    ``measurement`` is empty for an alternative that is clearly slower.
    """

    slower: float
    distinguishable: bool
    measurement: str


def find_ties(plan: Plan, band: Band) -> tuple[Tie, ...]:
    """Judge every alternative of a plan, in its order."""
    if plan.layout is None or plan.estimate is None:
        return ()
    best = (plan.layout, plan.estimate)
    return tuple(
        _tie(alternative.slower, best, (alternative.layout, alternative.estimate), band)
        for alternative in plan.alternatives
    )


def _tie(slower: float, best: Priced, other: Priced, band: Band) -> Tie:
    clear = slower > band.indistinct
    measurement = "" if clear else separating_measurement(best, other)
    return Tie(slower=slower, distinguishable=clear, measurement=measurement)


def separating_measurement(first: Priced, second: Priced) -> str:
    """Name the one measurement that decides between two layouts: of the part of the step that differs most."""
    shares = [_by_group(estimate) for _, estimate in (first, second)]
    group = max(Group, key=lambda name: abs(shares[0][name] - shares[1][name]))
    return _words(group, (first[0], second[0]))


def _by_group(estimate: Estimate) -> dict[Group, float]:
    return {group: sum(estimate.breakdown_s[part] for part in in_group(group)) for group in Group}


def _words(group: Group, pair: tuple[Layout, Layout]) -> str:
    """Write a measurement that a user can make on the cluster."""
    match group:
        case Group.COMPUTE:
            shapes = _either(f"tp {one.tp}, micro-batch {one.micro_batch}" for one in pair)
            return f"ten steps of one layer on one node with {shapes}"
        case Group.TENSOR:
            return f"all_gather of nccl-tests on {_ranks(one.tp for one in pair)} GPUs of a node"
        case Group.CONTEXT:
            ranks = _ranks(one.cp for one in pair)
            return f"sendrecv of nccl-tests between the {ranks} ranks of a context group"
        case Group.EXPERT:
            return f"alltoall of nccl-tests on {_ranks(one.ep for one in pair)} GPUs"
        case Group.DATA:
            ranks = _ranks(one.dp * one.cp for one in pair)
            return f"reduce_scatter of nccl-tests over {ranks} data-parallel ranks"
        case Group.PIPELINE:
            # The shallower pipeline takes fewer GPUs, and dp 1 leaves out all traffic that is not in question.
            depth = min((one.pp for one in pair if one.pp > 1), default=1)
            return (
                f"ten steps of either layout on {depth} pipeline stages with dp 1 and all its micro-batches"
            )
        case Group.OFFLOAD:
            return "nvbandwidth: copies between a GPU and pinned host memory, all GPUs of a node at once"
        case Group.HOST:
            return "ten steps of one layer of either layout with a profiler: time between kernels"
        case _:
            assert_never(group)


def _ranks(sizes: Iterable[int]) -> str:
    """Join the sizes of both layouts' groups; one rank alone exchanges nothing that could be measured."""
    found = list(sizes)
    return _either([size for size in found if size > 1] or found)


def _either(values: Iterable[object]) -> str:
    """Join one or two different values by "and"."""
    return " and ".join(dict.fromkeys(str(value) for value in values))
