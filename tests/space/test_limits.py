"""Limits hold to the last value: what lies on them is taken, what lies beyond is refused with the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.enumeration import build_space
from layoutopt.optimizer.space.options import HIGHEST_PRICE, MAX_VALUE, SpaceOptions
from layoutopt.optimizer.space.requirement import MOST_NUMBER, MOST_TEXT, parse_requirement
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


@pytest.mark.parametrize("option", ["fix", "forbid", "max", "min"])
def test_the_largest_value_of_an_axis(option: str) -> None:
    """Ten million, whichever option names it."""
    assert MAX_VALUE == 10_000_000
    for value, beyond in ((MAX_VALUE, False), (MAX_VALUE + 1, True)):
        given: Any = {option: {"dp": (value,) if option in ("fix", "forbid") else value}}
        if not beyond:
            SpaceOptions(**given)
            continue
        with pytest.raises(InputError, match="at most 10000000"):
            SpaceOptions(**given)


def test_the_longest_requirement() -> None:
    """Three hundred characters are read, one more is not."""
    room = MOST_TEXT - len("tp <=8")
    assert MOST_TEXT == 300 and parse_requirement("tp " + " " * room + "<=8")
    with pytest.raises(InputError, match="is longer than 300 characters"):
        parse_requirement("tp  " + " " * room + "<=8")


def test_the_largest_number_and_price() -> None:
    """1e15 and a billion for a GPU hour are taken."""
    assert parse_requirement(f"step_s<={MOST_NUMBER:.0f}")
    with pytest.raises(InputError, match="out of range"):
        parse_requirement(f"step_s<={10 * MOST_NUMBER:.0f}")
    SpaceOptions(gpu_hour_cost=HIGHEST_PRICE)
    SpaceOptions(gpu_hour_cost=0.0)
    for price in (-0.01, HIGHEST_PRICE * 1.01):
        with pytest.raises(InputError, match="is no price"):
            SpaceOptions(gpu_hour_cost=price)


def test_an_empty_space_names_the_three_rules_that_removed_most(
    make_model: Callable[..., ModelSpec],
    make_training: Callable[..., TrainingSpec],
    make_cluster: Callable[..., ClusterSpec],
) -> None:
    """With their numbers, the largest first, and the rule that removed the last tuples with its formula."""
    space = build_space(
        make_model(5, heads=6, kv_heads=2, head_dim=8),
        make_training(7, 510),
        make_cluster(96),
        Framework.MEGATRON,
    )
    assert space.empty is not None
    listed = space.empty.message.partition(": ")[2].partition(";")[0].split(", ")
    counts = sorted((one.degrees for one in space.counts.removed if one.degrees), reverse=True)
    assert len(counts) > 3
    assert [int(part.split()[-1].replace(",", "")) for part in listed] == counts[:3]
    assert space.empty.rule == space.counts.last_rule
    assert f"the last were removed by {space.empty.rule} ({space.empty.formula})" in space.empty.message


@pytest.mark.parametrize(
    ("axis", "given"),
    [
        ("sp", {"forbid": {"sp": (0, 1)}}),
        ("sp", {"fix": {"sp": (1,)}, "forbid": {"sp": (1,)}}),
        ("cuda_graph", {"forbid": {"cuda_graph": ("none", "partial", "full_iteration")}}),
        ("cuda_graph", {"fix": {"cuda_graph": ("none",)}, "forbid": {"cuda_graph": ("none",)}}),
        ("savers", {"fix": {"savers": ("none",)}, "forbid": {"savers": ("none",)}}),
        ("schedule", {"fix": {"schedule": ("1f1b",)}, "forbid": {"schedule": ("1f1b",)}}),
        ("precision", {"fix": {"precision": ("bf16",)}, "forbid": {"precision": ("bf16",)}}),
        ("zero", {"fix": {"zero": (1,)}, "forbid": {"zero": (1,)}}),
        ("etp", {"fix": {"etp": (2,)}}),
    ],
)
def test_an_axis_without_a_value_is_infeasible_and_named(axis: str, given: dict[str, Any]) -> None:
    """Whichever options take its values together, and no rule is blamed for it; dense models have no etp."""
    question = load_workload("llama3-8b")
    cluster = load_cluster("h100x8")
    empty = build_space(
        question.model, question.training, cluster, Framework.MEGATRON, SpaceOptions(**given)
    ).empty

    assert empty is not None and not empty.rule
    assert empty.message == f"the restrictions leave no value for {axis}"
