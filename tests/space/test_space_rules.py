"""Every validity rule accepts one layout and rejects another that differs in what the rule is about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.rule_cases import CASES, FLAGS, OTHER_QUESTION, PIPE, REJECTED_QUESTION, rules_of

from layoutopt.optimizer.cost.batch import CODES, DEGREES
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.check import check_layout
from layoutopt.optimizer.space.modifiers import MODIFIER_COLUMNS
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.space.rules import RULES
from layoutopt.optimizer.specs.layout import Layout

if TYPE_CHECKING:
    from checks.rule_cases import Case, Workbench


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule_accepts_and_rejects(case: Case, bench: Workbench) -> None:
    """The predicate accepts the one layout and rejects the other, and the message names the rule."""
    asked = bench.context(case, OTHER_QUESTION.get(str(case), {}))
    rejecting = bench.context(case, REJECTED_QUESTION.get(str(case), {}))
    good, bad = Layout(**case.good), Layout(**case.bad)
    if str(case) == "kv_heads_mod_tp-megatron-newest":
        good, bad = Layout(tp=6), Layout(tp=4)  # 3 heads on 6 ranks repeat, on 4 they can't
    rules = rules_of(case, asked)
    assert rules, "the case doesn't reach its rule"
    assert all(rule.holds(row_of(good), asked)[0] for rule in rules)
    broken = [rule for rule in rules_of(case, rejecting) if not rule.holds(row_of(bad), rejecting)[0]]
    assert broken
    reason = broken[0].explain(bad, rejecting)
    assert reason.rule == case.rule
    assert reason.message
    assert reason.formula
    for axis, values in reason.valid.items():
        assert all(isinstance(value, int) for value in values), axis


@pytest.mark.parametrize("case", CASES, ids=str)
def test_offered_values_satisfy_the_rule(case: Case, bench: Workbench) -> None:
    """Whatever an explanation offers for one axis, with all else unchanged, is accepted by the rule."""
    ctx = bench.context(case, REJECTED_QUESTION.get(str(case), {}))
    layout = Layout(**case.bad)
    for rule in rules_of(case, ctx):
        if rule.holds(row_of(layout), ctx)[0]:
            continue
        for axis, values in rule.explain(layout, ctx).valid.items():
            for value in values:
                change: dict[str, Any] = {axis: value}
                offered = replace(layout, **change)
                if axis == "dp":
                    assert offered.gpus == ctx.gpus
                elif axis == "micro_batch" and rule.name == "gbs_mod_mbs_dp":
                    share = ctx.training.global_batch // layout.dp
                    assert share % value == 0
                else:
                    assert rule.holds(row_of(offered), ctx)[0], (axis, value)


def test_every_rule_has_a_case(bench: Workbench) -> None:
    """No rule is without an accepted and a rejected example."""
    covered = {id(rule) for case in CASES for rule in rules_of(case, bench.context(case, {}))}
    missing = [f"{rule.name} {sorted(rule.frameworks)}" for rule in RULES if id(rule) not in covered]
    assert not missing


def test_every_rule_is_documented() -> None:
    """A rule has a slug, a formula, a reason and a source."""
    for rule in RULES:
        assert rule.name == rule.name.lower()
        assert " " not in rule.name
        assert rule.formula
        assert rule.reason
        assert rule.source, rule.name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rules_read_only_what_they_declare(case: Case, bench: Workbench) -> None:
    """Scrambling the columns that a rule doesn't declare leaves its verdict unchanged."""
    ctx = bench.context(case, {})
    generator = np.random.default_rng(0)
    for rule in rules_of(case, ctx):
        for layout in (Layout(**case.good), Layout(**case.bad)):
            rows = row_of(layout).take(np.zeros(32, dtype=np.int64))
            unread = [name for name in DEGREES + CODES if name not in rule.reads]
            coded = {"recompute", "order", "schedule", "precision"}
            noise: dict[str, Any] = {
                name: np.zeros(32, dtype=np.int64) if name in coded else generator.integers(1, 64, 32)
                for name in unread
            }
            assert (rule.holds(replace(rows, **noise), ctx) == rule.holds(rows, ctx)).all(), rule.name


def test_search_rules_can_be_applied_apart() -> None:
    """Search rules read one modifier at most, so that masks of different modifiers multiply."""
    for rule in RULES:
        if rule.launch_only:
            continue
        modifiers = rule.reads & MODIFIER_COLUMNS
        if "recompute" in modifiers:
            assert rule.reads <= {"recompute", "precision", "switches"}, rule.name
        elif modifiers & {"zero", "hsdp_shard"}:
            assert modifiers <= {"zero", "hsdp_shard"}, rule.name
        else:
            assert len(modifiers) <= 1, rule.name
        if modifiers & {"zero", "hsdp_shard", "order"}:
            assert not rule.reads & {"vp", "micro_batch", "micro_batches"}, rule.name


def test_unstated_flags_never_reject(bench: Workbench) -> None:
    """Without stated flags the rules on flags don't apply at all."""
    for case in (*FLAGS, *(case for case in CASES if case.options)):
        ctx = bench.context(case, {"options": {}})
        assert all(not rule.flag for rule in rules_of(case, ctx))


def test_search_rules_never_reject_a_layout(bench: Workbench) -> None:
    """A rule that only shapes the search doesn't make a user's layout invalid: m < pp runs at one chunk."""
    ctx = bench.context(CASES[0], {})
    layout = Layout(**(PIPE | {"micro_batches": 2, "micro_batch": 4}))
    assert check_layout(layout, ctx.model, ctx.training, ctx.cluster, Framework.MEGATRON) == ()
