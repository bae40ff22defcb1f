"""Parts of the experts that a token reaches under group-limited routing, against enumeration and between their bounds."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from layoutopt.optimizer.cost.routing import reached_parts
from layoutopt.optimizer.specs.loading import load_workload
from layoutopt.optimizer.specs.model import MoeSpec


def experts(count: int, top_k: int, groups: int | None = None, limit: int | None = None) -> MoeSpec:
    """Experts whose router chooses among groups."""
    return MoeSpec(experts=count, top_k=top_k, ffn=64, router_groups=groups, router_group_limit=limit)


def reached(parts: float, moe: MoeSpec, *, least: bool = False) -> float:
    """The expected number for one count of parts."""
    return float(reached_parts(np.array([float(parts)]), moe, least=least)[0])


def enumerated(parts: int, moe: MoeSpec) -> float:
    """The mean number of distinct parts over every set of groups and every sequence of experts in them."""
    groups, limit = moe.router_groups, moe.router_group_limit
    assert groups is not None and limit is not None
    size = moe.experts // groups
    seen = []
    for chosen in combinations(range(groups), limit):
        allowed = [group * size + place for group in chosen for place in range(size)]
        seen += [
            len({expert * parts // moe.experts for expert in choice})
            for choice in product(allowed, repeat=moe.top_k)
        ]
    return float(np.mean(seen))


@pytest.mark.parametrize(
    ("parts", "count", "groups", "limit"),
    [
        (2, 8, 4, 2),
        (4, 8, 4, 2),
        (8, 8, 4, 3),
        (4, 12, 6, 2),
        (3, 12, 4, 2),
        (6, 12, 4, 2),
        (4, 12, 3, 1),
        (4, 12, 3, 3),
    ],
)
def test_equals_enumeration(parts: int, count: int, groups: int, limit: int) -> None:
    """Parts inside groups, groups inside parts, parts that cut groups, and a limit that leaves none out."""
    moe = experts(count, 3, groups, limit)
    assert reached(parts, moe) == pytest.approx(enumerated(parts, moe), rel=1e-12)


def test_nodes_of_deepseek_v3() -> None:
    """On nodes of 8 GPUs 4 of 8 groups lie on 16 nodes at ep 256, on 4 at ep 64, and two by two on nodes at ep 32."""
    moe = load_workload("deepseek-v3").model.moe
    assert moe is not None and moe.binding_groups == (8, 4)
    assert reached(32, moe) == pytest.approx(16 * (1 - (15 / 16) ** 8))
    assert reached(8, moe) == pytest.approx(4 * (1 - (3 / 4) ** 8))
    # a node holds 0, 1 or 2 of the chosen groups in 15, 40 and 15 of 70 cases
    assert reached(4, moe) == pytest.approx(4 * (1 - (15 + 40 * 0.75**8 + 15 * 0.5**8) / 70))


def test_without_a_limit_every_expert_is_as_likely() -> None:
    """No groups, one group, or all allowed: as many parts as independent choices reach."""
    for moe in (experts(64, 6), experts(64, 6, 1, 1), experts(64, 6, 8, 8)):
        for parts in (1.5, 2.0, 8.0, 64.0):
            assert reached(parts, moe) == pytest.approx(parts * (1 - (1 - 1 / parts) ** 6))


@pytest.mark.parametrize(
    ("top_k", "groups", "limit"), [(8, 8, 4), (6, 8, 3), (2, 4, 1), (8, 16, 2), (4, 6, 5)]
)
def test_the_bound_grows_and_holds(top_k: int, groups: int, limit: int) -> None:
    """Never above what is reached, equal where groups and parts nest, and more parts never reach fewer."""
    moe = experts(48, top_k, groups, limit)
    parts = np.unique([ranks / near for ranks in range(1, 49) for near in range(1, min(ranks, 16) + 1)])
    all_, least = reached_parts(parts, moe), reached_parts(parts, moe, least=True)
    assert (least <= all_ + 1e-9).all() and (all_ <= np.minimum(parts, top_k) + 1e-9).all()
    assert (np.diff(least) >= -1e-12).all() and (np.diff(least * (1 - 1 / parts)) >= 0).all()
    nest = (parts % groups == 0) | (groups % parts == 0)
    assert nest.sum() >= 4 and least[nest] == pytest.approx(all_[nest])


def test_a_million_groups_are_counted() -> None:
    """The largest numbers that a file may state."""
    assert reached(3, experts(10**6, 8, 10**6, 500_000)) == pytest.approx(3 * (1 - (2 / 3) ** 8), rel=1e-4)
