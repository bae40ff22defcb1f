"""Verification accepts what exhaustive enumeration finds, and nothing that was changed afterwards."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import CODES, DEGREES, Codebook, LayoutBatch
from layoutopt.optimizer.cost.terms import StageTerms, price_stages
from layoutopt.optimizer.solve import verify_exclusion
from layoutopt.optimizer.solve.certificate import build_certificate, inputs_digest, table_digest
from layoutopt.optimizer.solve.exact_stages import solve_stages
from layoutopt.optimizer.solve.space_size import space_size
from layoutopt.optimizer.solve.verify import Rebuilt, verify_plan
from layoutopt.optimizer.solve.verify_exclusion import even_split, exclude_tuples, unsound_terms
from layoutopt.optimizer.solve.verify_layout import PricedLayout, Refuted, check_sizes, read_stages
from layoutopt.optimizer.solve.verify_plan import StatedLayout, StatedStage
from layoutopt.optimizer.solve.verify_room import may_be_below
from layoutopt.optimizer.space.stage_rule import (
    FREE,
    MEGATRON,
    TORCHTITAN,
    Recomputation,
    Split,
    StageRule,
)
from layoutopt.optimizer.space.stages import virtual_stages
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.model import LayerShape, ModelSpec, Run
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray

    Plan = dict[str, Any]

BOOK = Codebook(
    recomputes=(Recompute(), Recompute(granularity=Granularity.FULL)),
    orders=("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    schedules=(Schedule.ONE_F_ONE_B,),
    precisions=(Precision.BF16,),
)
COST_MODEL = "0123456789abcdef"
INPUTS = {"model": {"name": "tiny", "layers": 6}, "cluster": {"gpus": 8}, "options": {"framework": "any"}}
OPTIMISTIC_UP = ("capacity_bytes", "may_recompute")


@dataclass
class RandomSpace:
    """Degree rows of eight tuples each, with terms that are a pseudo-random function of the columns."""

    runs: tuple[Run, ...]
    rule: StageRule
    seed: int = 0
    tight: float = 1.0
    rows: int = 6

    @cached_property
    def counts(self) -> IntArray:
        """Blocks of each run."""
        return np.array([run.count for run in self.runs])

    @cached_property
    def degrees(self) -> LayoutBatch:
        """Rows of up to three ranks and two chunks."""
        shapes = np.resize([(1, 1), (2, 1), (2, 2), (3, 1), (2, 1), (1, 1)], (self.rows, 2))
        columns = {name: np.ones(self.rows, dtype=np.int64) for name in DEGREES}
        columns |= {name: np.zeros(self.rows, dtype=np.int64) for name in CODES}
        columns |= {"pp": shapes[:, 0], "vp": shapes[:, 1], "tp": np.arange(1, self.rows + 1)}
        columns |= {"micro_batches": np.full(self.rows, 8), "dp": np.full(self.rows, 2)}
        return LayoutBatch(codebook=BOOK, **columns)

    def expand(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """ZeRO 0 or 1, without or with full recomputation, in two orders."""
        codes = np.array(list(product((0, 1), repeat=3)))
        index, which = np.repeat(np.arange(len(rows)), 8), np.tile(np.arange(8), len(rows))
        names = ("zero", "recompute", "order")
        return replace(rows.take(index), **{name: codes[which, i] for i, name in enumerate(names)}), index

    def terms(self, batch: LayoutBatch) -> StageTerms:
        """Times about 1 s, memory scarce enough that some tuples recompute and some don't fit."""
        kinds, depth = len(self.runs), int(batch.pp.max())
        flight = np.maximum(batch.pp[:, None] - np.arange(depth), 0) * (1 + 0.25 * (batch.vp[:, None] - 1))

        def each(low: float, high: float, salt: int) -> FloatArray:
            return np.stack([self._random(batch, low, high, salt + k) for k in range(kinds)], axis=1)

        activation = each(1.0, 2.0, 30)
        return StageTerms(
            pp=batch.pp,
            vp=batch.vp,
            micro_batches=batch.micro_batches,
            layer_s=each(0.5, 1.5, 0),
            recompute_s=each(0.1, 0.4, 10),
            first_s=self._random(batch, 0.0, 0.8, 1000),
            last_s=self._random(batch, 0.0, 1.6, 1001),
            bubble_weight=1.0 / batch.vp,
            fixed_s=self._random(batch, 0.5, 1.5, 1002),
            layer_state_bytes=each(1.0, 3.0, 20),
            layer_activation_bytes=activation,
            recomputed_activation_bytes=activation * 0.2,
            first_bytes=self._random(batch, 0.0, 2.0, 1003),
            last_bytes=self._random(batch, 0.0, 2.0, 1004),
            common_bytes=self._random(batch, 0.0, 1.0, 1005),
            recompute_transient_bytes=self._random(batch, 0.0, 0.5, 1006),
            capacity_bytes=self._random(batch, 8.0, 24.0, 1007) * self.tight,
            in_flight=flight.astype(float),
            may_recompute=batch.recompute == 1,
        )

    def relaxed(self, rows: LayoutBatch) -> StageTerms:
        """The most optimistic value of each term over the tuples of a row."""
        batch, index = self.expand(rows)
        terms = self.terms(batch)
        first = np.searchsorted(index, np.arange(len(rows)))
        best = {
            f.name: (np.maximum if f.name in OPTIMISTIC_UP else np.minimum).reduceat(
                getattr(terms, f.name), first, axis=0
            )
            for f in fields(terms)
        }
        return StageTerms(**best)

    def _random(self, batch: LayoutBatch, low: float, high: float, salt: int) -> FloatArray:
        mixed: FloatArray = np.full(len(batch), 12.9898 * (self.seed + 1) + salt)
        for place, name in enumerate(DEGREES + CODES[:5]):
            mixed = np.sin(mixed * 78.233 + getattr(batch, name) * (place + 1.7)) * 43.7585
        spread: FloatArray = low + (high - low) * (mixed - np.floor(mixed))
        return spread


def make_space(rule: StageRule = FREE, counts: tuple[int, ...] = (5,), **changes: Any) -> RandomSpace:
    """A random space with one run for each count; blocks of the second run have two layers."""
    runs = tuple(
        Run(name=f"kind{k}", block=(LayerShape(ffn=1),) * (1 + k % 2), count=count)
        for k, count in enumerate(counts)
    )
    return RandomSpace(runs=runs, rule=rule, **changes)


@dataclass
class Choice:
    """A layout of the enumeration: the tuple as a batch of one, and its virtual stages."""

    step_time_s: float
    layout: LayoutBatch
    sizes: tuple[int, ...]
    recomputed: IntArray
    blocks: IntArray


def enumerate_layouts(space: RandomSpace) -> list[Choice]:
    """Price every tuple with every allowed split and recomputation; return those that fit, fastest first."""
    batch, _ = space.expand(space.degrees)
    terms = space.terms(batch)
    found = []
    for row in range(len(batch)):
        ranks, chunks = int(batch.pp[row]), int(batch.vp[row])
        stages = list(enumerate_stages(space, ranks, chunks, bool(terms.may_recompute[row])))
        if not stages:
            continue
        one = terms.take(np.full(len(stages), row))
        padded = np.zeros((2, len(stages), terms.in_flight.shape[1], len(space.runs)), dtype=np.int64)
        for i, (_, blocks, recomputed) in enumerate(stages):
            padded[0, i, :ranks] = by_rank(blocks, ranks)
            padded[1, i, :ranks] = by_rank(recomputed, ranks)
        costs = price_stages(one, padded[0], padded[1])
        found += [
            Choice(float(costs.step_time_s[i]), batch.take(np.array([row])), *stages[i][::2], stages[i][1])
            for i in np.flatnonzero(costs.fits)
        ]
    return sorted(found, key=lambda choice: choice.step_time_s)


def by_rank(stages: IntArray, ranks: int) -> IntArray:
    """Sum virtual stages (chunk-major) over the chunks of each rank."""
    summed: IntArray = stages.reshape(-1, ranks, stages.shape[1]).sum(axis=0)
    return summed


def enumerate_stages(
    space: RandomSpace, ranks: int, chunks: int, may_recompute: bool
) -> Iterator[tuple[tuple[int, ...], IntArray, IntArray]]:
    """Yield sizes, blocks and recomputed blocks of virtual stages (J, K), straight from the stage rule."""
    kinds = np.repeat(np.arange(len(space.runs)), space.counts)
    for sizes in product(range(len(kinds) + 1), repeat=ranks * chunks):
        if sum(sizes) != len(kinds) or not obeys(space.rule.split, sizes, ranks):
            continue
        pieces = np.split(kinds, np.cumsum(sizes)[:-1])
        blocks = np.stack([np.bincount(piece, minlength=len(space.runs)) for piece in pieces])
        if not may_recompute:
            yield sizes, blocks, np.zeros_like(blocks)
        elif space.rule.recomputation is Recomputation.PER_RANK:
            for flat in product(*(range(n + 1) for n in blocks.ravel())):
                yield sizes, blocks, np.array(flat).reshape(blocks.shape)
        else:
            whole = space.rule.recomputation is Recomputation.ALL_OR_NONE
            for count in (0, len(kinds)) if whole else range(max(sizes) + 1):
                first = [np.bincount(piece[:count], minlength=len(space.runs)) for piece in pieces]
                yield sizes, blocks, np.stack(first)


def obeys(split: Split, sizes: tuple[int, ...], ranks: int) -> bool:
    """Chunks equal to within one block and in order, only ends empty, near-equal where the rule says so."""
    inner = sizes[1:-1] if ranks > 1 else sizes
    if min(inner, default=1) < 1:
        return False
    for rank in range(ranks):
        own = sizes[rank::ranks]
        if max(own) - min(own) > 1 or list(own) != sorted(own, reverse=rank == ranks - 1):
            return False
    if split is Split.FREE or max(sizes) - min(sizes) <= 1:
        return True
    near = bool(sizes[1:-1]) and max(inner) - min(inner) <= 1
    return near and all(abs(end - min(inner)) <= 1 for end in (sizes[0], sizes[-1]))


def layout_plain(space: RandomSpace, choice: Choice) -> Plan:
    """A layout as the JSON of a plan."""
    batch, ranks = choice.layout, int(choice.layout.pp[0])
    stages = []
    for j in range(len(choice.sizes)):
        layers = [len(run.block) for run in space.runs]
        kinds = {run.name: int(n) * w for run, n, w in zip(space.runs, choice.blocks[j], layers, strict=True)}
        again = {
            run.name: int(n) * w for run, n, w in zip(space.runs, choice.recomputed[j], layers, strict=True)
        }
        stages.append(
            {
                "rank": j % ranks,
                "chunk": j // ranks,
                "layers": sum(kinds.values()),
                "kinds": {name: n for name, n in kinds.items() if n},
                "recomputed": sum(again.values()),
                "recomputed_kinds": {name: n for name, n in again.items() if n},
                "embedding": j == 0,
                "head": j == len(choice.sizes) - 1,
                "mtp": 0,
            }
        )
    recompute = BOOK.recomputes[int(batch.recompute[0])]
    return {
        **{name: int(getattr(batch, name)[0]) for name in DEGREES},
        "sp": bool(batch.sp[0]),
        "zero": int(batch.zero[0]),
        "hsdp_shard": None,
        "recompute": {"granularity": str(recompute.granularity), "modules": []},
        "schedule": "1f1b",
        "mesh_order": BOOK.orders[int(batch.order[0])],
        "precision": "bf16",
        "stages": stages,
    }


def make_plan(space: RandomSpace, choices: list[Choice], *, bound_s: float | None = None) -> Plan:
    """The plan that answers with the first of ``choices`` and lists the next three."""
    best = choices[0]
    bound_s = best.step_time_s if bound_s is None else bound_s
    proven = bound_s >= best.step_time_s
    terms = space.terms(best.layout)
    ranks = int(best.layout.pp[0])
    costs = price_stages(terms, by_rank(best.blocks, ranks)[None], by_rank(best.recomputed, ranks)[None])
    size = space_size(space)
    certificate = build_certificate(
        space,
        size,
        inputs=INPUTS,
        cost_model=COST_MODEL,
        solver_status="OPTIMAL" if proven else "FEASIBLE",
        step_time_s=best.step_time_s,
        bound_s=bound_s,
        removed_by_memory=3,
        solved=4,
        removed_by_rule={"pp divides nothing": 2},
    )
    parts = breakdown(space, by_rank(best.blocks, ranks), best.layout, best.step_time_s)
    plan = {
        "status": "optimal" if proven else "stopped",
        "objective": {"step_time_s": best.step_time_s, "bound_s": bound_s, "gap": certificate.gap},
        "layout": layout_plain(space, best),
        "estimate": {
            "step_time_s": best.step_time_s,
            "memory": {
                "peak_bytes": float(costs.peak_bytes[0]),
                "capacity_bytes": float(terms.capacity_bytes[0]),
                "stages": [],
            },
            "breakdown_s": parts,
        },
        "certificate": certificate.to_plain(),
        "alternatives": [
            {"layout": layout_plain(space, other), "step_time_s": other.step_time_s} for other in choices[1:4]
        ],
        "verdict": "fits",
        "reasons": [],
        "inputs": INPUTS,
    }
    return json.loads(json.dumps(plan))  # type: ignore[no-any-return]


def breakdown(
    space: RandomSpace, blocks: IntArray, layout: LayoutBatch, step_time_s: float
) -> dict[str, float]:
    """Parts of the step time."""
    terms = space.terms(layout)
    compute = float((blocks @ terms.layer_s[0]).sum())
    return {
        "compute": compute,
        "fixed": float(terms.fixed_s[0]),
        "rest": step_time_s - compute - terms.fixed_s[0],
    }


def rebuilt(space: RandomSpace, **changes: Any) -> Rebuilt:
    """What the command line rebuilds from a plan's inputs."""

    def price(priced: PricedLayout) -> dict[str, float]:
        return breakdown(space, priced.blocks, priced.batch, priced.step_time_s)

    values: dict[str, Any] = {
        "space": space,
        "runs": space.runs,
        "cost_model": COST_MODEL,
        "inputs": INPUTS,
        "removed_by_rule": {"pp divides nothing": 2},
        "breakdown": price,
    }
    return Rebuilt(**values | changes)


SPACES = {
    "free": make_space(FREE),
    "megatron": make_space(MEGATRON, seed=1),
    "torchtitan": make_space(TORCHTITAN, seed=2, tight=1.3),
    "two kinds, free": make_space(FREE, (2, 3), seed=3),
    "two kinds, megatron": make_space(MEGATRON, (2, 3), seed=4),
    "three kinds, torchtitan": make_space(TORCHTITAN, (1, 3, 2), seed=5, tight=1.5),
}


@pytest.fixture(scope="module", params=SPACES)
def solved(request: pytest.FixtureRequest) -> tuple[RandomSpace, list[Choice]]:
    """A space and all its layouts that fit, fastest first."""
    space = SPACES[request.param]
    return space, enumerate_layouts(space)


@pytest.fixture(scope="module")
def free() -> tuple[RandomSpace, list[Choice]]:
    """The first space."""
    return SPACES["free"], enumerate_layouts(SPACES["free"])


def test_accepts_the_enumerated_optimum(solved: tuple[RandomSpace, list[Choice]]) -> None:
    """The fastest of all layouts is accepted, after every tuple was priced."""
    space, choices = solved
    report = verify_plan(make_plan(space, choices), rebuilt(space))
    assert report.accepted, str(report)
    assert (report.degree_rows, report.tuples) == (6, 48)
    assert report.even_layouts > 40
    assert len(report.checks) == 11
    assert json.dumps(report.to_plain())


def test_rejects_the_second_best(solved: tuple[RandomSpace, list[Choice]]) -> None:
    """A consistent plan that answers with a slower layout is refuted by the faster one."""
    space, choices = solved
    slower = next(
        i for i, choice in enumerate(choices) if choice.step_time_s > choices[0].step_time_s * 1.00001
    )
    report = verify_plan(make_plan(space, choices[slower:]), rebuilt(space))
    assert [check.name for check in report.failures] == ["no faster layout"]
    assert "takes" in report.failures[0].reason


def test_accepts_less_than_optimal_with_its_gap(solved: tuple[RandomSpace, list[Choice]]) -> None:
    """A stopped plan with a slower layout is accepted with the true optimum as bound, not a higher one."""
    space, choices = solved
    best_s = choices[0].step_time_s
    slower = next(i for i, choice in enumerate(choices) if choice.step_time_s > best_s * 1.01)
    assert verify_plan(make_plan(space, choices[slower:], bound_s=best_s), rebuilt(space)).accepted
    report = verify_plan(make_plan(space, choices[slower:], bound_s=best_s * 1.001), rebuilt(space))
    assert [check.name for check in report.failures] == ["no faster layout"]


def test_optimistic_terms_give_the_same_verdict(solved: tuple[RandomSpace, list[Choice]]) -> None:
    """Excluding whole degree rows first accepts and rejects the same plans with fewer tuples priced."""
    space, choices = solved
    few = verify_plan(make_plan(space, choices), rebuilt(space), max_tuples=1, audit_rows=0)
    assert few.accepted, str(few)
    assert few.tuples == 8 * (6 - few.rows_by_optimistic_terms)
    slower = next(
        i for i, choice in enumerate(choices) if choice.step_time_s > choices[0].step_time_s * 1.00001
    )
    assert not verify_plan(make_plan(space, choices[slower:]), rebuilt(space), max_tuples=1).accepted


def test_portions_do_not_matter(
    solved: tuple[RandomSpace, list[Choice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tuple at a time or all at once: the same numbers."""
    space, choices = solved
    below_s = choices[0].step_time_s * (1 - 1e-9)
    whole = exclude_tuples(space, below_s)
    monkeypatch.setattr(verify_exclusion, "CELLS", 1)
    seen: list[tuple[int, int]] = []
    single = exclude_tuples(space, below_s, progress=lambda done, total: seen.append((done, total)))
    assert single == whole
    assert seen[-1] == (6, 6)


@pytest.mark.parametrize("cells", [1, 40, 300, 300_000])
def test_every_tuple_is_priced_once(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """Whatever the portions, all tuples of all rows are priced, and again through the audit of every row."""
    space = make_space(rows=50)
    monkeypatch.setattr(verify_exclusion, "CELLS", cells)
    assert exclude_tuples(space, 1e-3).tuples == 400
    by_rows = exclude_tuples(space, 1e-3, every_tuple=False, audit_rows=50)
    assert (by_rows.tuples, by_rows.rows_at_sight, by_rows.rows_audited) == (400, 50, 50)
    assert exclude_tuples(space, 1e-3, every_tuple=False, audit_rows=0).tuples == 0


def test_audit_finds_terms_that_are_not_optimistic(free: tuple[RandomSpace, list[Choice]]) -> None:
    """Degree rows excluded by wrong terms are refuted by the tuples of the sample."""
    space, choices = free
    wrong = replace(space)
    slow = space.relaxed
    wrong.relaxed = lambda rows: replace(slow(rows), fixed_s=np.full(len(rows), 1e6))  # type: ignore[method-assign]
    below_s = choices[0].step_time_s * 1.01
    assert exclude_tuples(wrong, below_s, every_tuple=False, audit_rows=6).witness is not None
    assert exclude_tuples(wrong, below_s, every_tuple=False, audit_rows=0).holds


def test_room_leaves_ends_empty() -> None:
    """A first rank without room for any block doesn't exclude a tuple, a middle rank without room does."""
    space = make_space(rows=4)
    terms = space.terms(space.expand(space.degrees)[0])
    deep = terms.take(np.flatnonzero(terms.pp == 3)[:1])
    deep = replace(deep, capacity_bytes=np.array([1e3]), first_bytes=np.array([1e3 - 2.0]))
    assert solve_stages(deep, space.counts, FREE) is not None
    assert may_be_below(deep, space.counts, np.inf)[0]
    flight = np.array([[1.0, 1e6, 1.0]])
    assert not may_be_below(replace(deep, in_flight=flight), space.counts, np.inf)[0]


def test_infeasible() -> None:
    """That nothing fits is accepted where it is so, and refuted with a layout that fits where it isn't."""
    space = make_space(tight=0.1)
    assert enumerate_layouts(space) == []
    report = verify_plan(infeasible_plan(space), rebuilt(space))
    assert report.accepted, str(report)
    roomy = make_space()
    report = verify_plan(infeasible_plan(roomy), rebuilt(roomy))
    assert [check.name for check in report.failures] == ["no faster layout"]


def infeasible_plan(space: RandomSpace) -> Plan:
    """A plan that says nothing fits."""
    certificate = build_certificate(
        space,
        space_size(space),
        inputs=INPUTS,
        cost_model=COST_MODEL,
        solver_status="INFEASIBLE",
        step_time_s=None,
        bound_s=None,
        removed_by_memory=48,
        solved=0,
        removed_by_rule={"pp divides nothing": 2},
    )
    return {
        "status": "infeasible",
        "objective": {"step_time_s": None, "bound_s": None, "gap": None},
        "layout": None,
        "certificate": certificate.to_plain(),
        "alternatives": [],
        "inputs": INPUTS,
    }


def put(path: str, value: object) -> Callable[[Plan], None]:
    """A change of one value; a callable makes the new value from the old one."""

    def change(plan: Plan) -> None:
        *parents, last = path.split("/")
        target: Any = plan
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        key = int(last) if isinstance(target, list) else last
        target[key] = value(target[key]) if callable(value) else value

    return change


def both(*changes: Callable[[Plan], None]) -> Callable[[Plan], None]:
    """Several changes at once, as someone would who knows what is compared."""

    def change(plan: Plan) -> None:
        for each in changes:
            each(plan)

    return change


def faster(time: float) -> float:
    """One part in a thousand less."""
    return time * 0.999


def lower_bound(plan: Plan) -> None:
    """A bound 10% lower, with the gap that follows, everywhere."""
    bound_s = plan["objective"]["step_time_s"] * 0.9
    plan["objective"] |= {"bound_s": bound_s, "gap": 0.1}
    plan["certificate"] |= {"bound_s": bound_s, "gap": 0.1}


def raise_bound(plan: Plan) -> None:
    """A bound above the answer."""
    bound_s = plan["objective"]["step_time_s"] * 1.01
    plan["objective"]["bound_s"] = plan["certificate"]["bound_s"] = bound_s


def move_block(plan: Plan) -> None:
    """One layer from the first stage to the second, or swapped ends where there is one stage."""
    stages = plan["layout"]["stages"]
    for stage, step in ((stages[0], -1), (stages[1], 1)):
        stage["layers"] += step
        stage["kinds"] = {"kind0": stage["layers"]}


def cancel_in_breakdown(plan: Plan) -> None:
    """Two parts changed so that the sum stays."""
    parts = plan["estimate"]["breakdown_s"]
    parts["compute"] += 0.25
    parts["rest"] -= 0.25


TAMPERED: dict[str, tuple[Callable[[Plan], None], str]] = {
    "step time": (put("objective/step_time_s", faster), "step time"),
    "step time everywhere": (
        both(
            put("objective/step_time_s", faster),
            put("objective/bound_s", faster),
            put("certificate/bound_s", faster),
            put("estimate/step_time_s", faster),
        ),
        "step time",
    ),
    "estimate": (put("estimate/step_time_s", faster), "step time"),
    "dropped tuple: rows": (put("certificate/degree_tuples", lambda n: n - 1), "tuple table"),
    "dropped tuple: hash": (put("certificate/table_sha256", "0" * 64), "tuple table"),
    "dropped tuple: count": (
        both(
            put("certificate/tuples", lambda n: n - 1),
            put("certificate/removed_by_bound", lambda n: n - 1),
        ),
        "counts",
    ),
    "smaller joint space": (put("certificate/joint_assignments", lambda n: n - 1), "counts"),
    "parts of the tuples": (put("certificate/solved", lambda n: n + 1), "counts"),
    "rules": (put("certificate/removed_by_rule", {}), "counts"),
    "inputs": (put("inputs/cluster/gpus", 16), "inputs"),
    "inputs and their digest": (
        both(
            put("inputs/cluster/gpus", 16),
            put("certificate/inputs_sha256", inputs_digest({**INPUTS, "cluster": {"gpus": 16}})),
        ),
        "inputs",
    ),
    "cost model": (put("certificate/versions/cost_model", "fedcba"), "cost model"),
    "zero": (put("layout/zero", lambda z: 1 - z), "step time"),
    "unknown degree": (put("layout/tp", 17), "layout"),
    "unknown order": (put("layout/mesh_order", "pp-dp-ep-cp-tp"), "layout"),
    "stage too many": (put("layout/stages", lambda s: [*s, s[-1]]), "layout"),
    "stage missing": (put("layout/stages", lambda s: s[:-1]), "layout"),
    "layer missing": (put("layout/stages/0/layers", lambda n: n - 1), "layout"),
    "rank": (put("layout/stages/0/rank", 5), "layout"),
    "embedding": (put("layout/stages/0/embedding", False), "layout"),
    "recomputed too much": (put("layout/stages/0/recomputed", 99), "layout"),
    "bound lowered": (lower_bound, "claim"),
    "bound raised": (raise_bound, "claim"),
    "bound of the objective": (put("objective/bound_s", faster), "claim"),
    "gap": (put("objective/gap", 0.01), "claim"),
    "status stopped": (put("status", "stopped"), "claim"),
    "status infeasible": (put("status", "infeasible"), "claim"),
    "status unknown": (put("status", "perfect"), "claim"),
    "solver status": (put("certificate/solver_status", "FEASIBLE"), "claim"),
    "rounding": (put("certificate/rounding_s", 0.5), "claim"),
    "breakdown": (put("estimate/breakdown_s/compute", lambda s: s * 1.01), "breakdown"),
    "breakdown that cancels": (cancel_in_breakdown, "breakdown"),
    "peak memory": (put("estimate/memory/peak_bytes", lambda b: b * 0.9), "memory"),
    "capacity": (put("estimate/memory/capacity_bytes", lambda b: b * 2), "memory"),
    "alternative's time": (put("alternatives/0/step_time_s", lambda s: s * 1.01), "alternatives"),
    "alternative's layout": (put("alternatives/1/layout/tp", 17), "alternatives"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_rejects_tampering(free: tuple[RandomSpace, list[Choice]], name: str) -> None:
    """Each change is rejected by the check that is meant for it, and the search is not run in vain."""
    space, choices = free
    plan = copy.deepcopy(make_plan(space, choices))
    change, check = TAMPERED[name]
    change(plan)
    report = verify_plan(plan, rebuilt(space))
    assert not report.accepted
    assert check in [failure.name for failure in report.failures], str(report)
    assert report.tuples == 0


def test_rejects_moved_block() -> None:
    """Stages of another split are priced as what they are."""
    space = make_space(seed=7)
    choices = [choice for choice in enumerate_layouts(space) if len(choice.sizes) > 1 and choice.sizes[0] > 1]
    choices = [choice for choice in choices if not choice.recomputed.any()]
    plan = make_plan(space, choices, bound_s=0.5)
    assert verify_plan(plan, rebuilt(space)).accepted
    move_block(plan)
    assert verify_plan(plan, rebuilt(space)).failures[0].name in ("step time", "memory")


def test_rejects_faster_alternative(free: tuple[RandomSpace, list[Choice]]) -> None:
    """A plan whose own alternative is faster contradicts itself."""
    space, choices = free
    slower = next(i for i, choice in enumerate(choices) if choice.step_time_s > choices[0].step_time_s * 1.01)
    plan = make_plan(space, [choices[slower], *choices[:2]], bound_s=choices[0].step_time_s)
    report = verify_plan(plan, rebuilt(space))
    assert "alternatives" in [failure.name for failure in report.failures]


def test_rejects_layout_that_does_not_fit(free: tuple[RandomSpace, list[Choice]]) -> None:
    """A consistent plan for a smaller memory than the cluster's is rejected."""
    space, choices = free
    smaller = replace(space, tight=0.2)
    report = verify_plan(make_plan(space, choices), rebuilt(smaller))
    assert "memory" in [failure.name for failure in report.failures]


def test_rejects_dropped_row(free: tuple[RandomSpace, list[Choice]]) -> None:
    """A plan made from a table without one row has another digest, also if that row is the best one."""
    space, choices = free
    kept = space.degrees.take(np.flatnonzero(space.degrees.tp != choices[0].layout.tp[0]))
    thinner = replace(space)
    thinner.__dict__["degrees"] = kept
    plan = make_plan(thinner, enumerate_layouts(thinner))
    assert verify_plan(plan, rebuilt(thinner)).accepted
    report = verify_plan(plan, rebuilt(space))
    assert "tuple table" in [failure.name for failure in report.failures]
    plan["certificate"] |= {"table_sha256": table_digest(space), "degree_tuples": 6}
    assert "counts" in [failure.name for failure in verify_plan(plan, rebuilt(space)).failures]
    plan["certificate"] |= make_plan(space, choices)["certificate"] | {
        key: plan["certificate"][key] for key in ("bound_s", "gap")
    }
    assert [failure.name for failure in verify_plan(plan, rebuilt(space)).failures] == ["no faster layout"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.pop("status"), "status: missing"),
        (lambda plan: plan.pop("objective"), "objective.step_time_s: missing"),
        (lambda plan: plan.pop("certificate"), "certificate: missing"),
        (lambda plan: plan.pop("inputs"), "inputs: missing"),
        (lambda plan: plan.pop("alternatives"), "alternatives: missing"),
        (
            put("objective/step_time_s", "fast"),
            "objective.step_time_s: 'fast' is not valid (a finite number)",
        ),
        (put("layout/tp", 2.5), "layout.tp: 2.5 is not valid"),
        (put("layout/recompute/granularity", "some"), "layout.recompute.granularity: 'some' is not valid"),
        (put("layout/recompute/modules", [1]), "layout.recompute.modules: [1] is not valid"),
        (put("layout/stages/0", 3), "layout.stages[0]: not a JSON object"),
        (put("layout/stages/0/kinds", {"kind0": "x"}), "layout.stages[0].kinds.kind0: 'x' is not valid"),
        (put("layout/sp", 1), "layout.sp: 1 is not valid (true or false)"),
        (put("estimate/breakdown_s", {"compute": None}), "estimate.breakdown_s.compute: None is not valid"),
        (put("alternatives/0/layout", None), "alternatives[0].layout: None is not valid (an object)"),
    ],
)
def test_malformed_plan(
    free: tuple[RandomSpace, list[Choice]], change: Callable[[Plan], object], message: str
) -> None:
    """A plan that can't be read raises one line per problem with file and key."""
    space, choices = free
    plan = make_plan(space, choices)
    change(plan)
    with pytest.raises(InputError) as error:
        verify_plan(plan, rebuilt(space), file="plan.json")
    assert f"plan.json: {message}" in str(error.value)


@pytest.mark.parametrize("plan", [None, [], "plan", 3])
def test_not_a_plan(plan: object, free: tuple[RandomSpace, list[Choice]]) -> None:
    """Anything but an object is bad input."""
    with pytest.raises(InputError, match="not a JSON object"):
        verify_plan(plan, rebuilt(free[0]))


@pytest.mark.parametrize("rule", [FREE, MEGATRON, TORCHTITAN])
@pytest.mark.parametrize("counts", [(6,), (2, 5), (1, 3, 2)])
def test_room_excludes_nothing_that_exists(rule: StageRule, counts: tuple[int, ...]) -> None:
    """A tuple excluded at sight has no stages below the limit, around its optimum and without any limit."""
    excluded = kept = 0
    for seed in range(6):
        space = make_space(rule, counts, seed=seed, tight=0.6 + 0.2 * seed)
        batch, _ = space.expand(space.degrees)
        terms = space.terms(batch)
        for row in range(0, len(batch), 3):
            one = terms.take(np.array([row]))
            best = solve_stages(one, space.counts, rule)
            if best is None:
                excluded += not may_be_below(one, space.counts, np.inf)[0]
                continue
            assert may_be_below(one, space.counts, np.inf)[0]
            assert may_be_below(one, space.counts, best.step_time_s * (1 + 1e-9))[0]
            excluded += not may_be_below(one, space.counts, best.step_time_s * 0.9)[0]
            kept += 1
    assert excluded > 30
    assert kept > 30


def test_even_split() -> None:
    """Ranks are within one block of each other, chunks in the order of the rule, the ends lighter."""
    for ranks, chunks, first in product((1, 2, 3, 5), (1, 2, 3), (0, 1, 4)):
        for total in range(max(ranks * chunks - 2 * (ranks > 1), 1), 24):
            counts = (min(first, total), total - min(first, total))
            blocks = even_split(ranks, chunks, counts)
            held = blocks.sum(axis=1)
            assert tuple(blocks.sum(axis=0)) == counts
            assert held.max() - held.min() <= 1
    assert even_split(2, 2, (3, 3)).tolist() == [[1, 2], [2, 1]]
    assert even_split(4, 1, (2, 8)).tolist() == [[2, 0], [0, 3], [0, 3], [0, 2]]


@pytest.mark.parametrize(
    ("sizes", "ranks", "split", "allowed"),
    [
        ([1, 3, 3, 1], 4, Split.FREE, True),
        ([0, 3, 3, 0], 4, Split.FREE, True),
        ([1, 0, 3, 1], 4, Split.FREE, False),  # an empty middle stage
        ([0], 1, Split.FREE, False),  # a single stage holds the model
        ([1, 2, 2, 1], 2, Split.FREE, True),  # smaller chunk first, on the last rank last
        ([2, 2, 1, 1], 2, Split.FREE, False),
        ([1, 1, 2, 2], 2, Split.FREE, False),
        ([1, 2, 2, 1], 4, Split.NEAR_EQUAL, True),
        ([1, 2, 3, 1], 4, Split.NEAR_EQUAL, True),
        ([1, 3, 3, 1], 4, Split.NEAR_EQUAL, False),  # ends two below the middle
        ([3, 1, 1, 2], 4, Split.NEAR_EQUAL, False),
        ([0, 2], 2, Split.NEAR_EQUAL, False),
        ([1, 2], 2, Split.NEAR_EQUAL, True),
    ],
)
def test_sizes(sizes: list[int], ranks: int, split: Split, allowed: bool) -> None:
    """The stage rule for the stages that a plan states."""
    if allowed:
        check_sizes(np.array(sizes), ranks, split)
    else:
        with pytest.raises(Refuted):
            check_sizes(np.array(sizes), ranks, split)


def two_stages(*recomputed: tuple[int, dict[str, int]], layers: tuple[int, int] = (4, 4)) -> StatedLayout:
    """Two blocks of one layer, then three of two layers, on two ranks: 1 + 1 + 2 and 2 + 2 layers."""
    kinds = ({"kind0": 2, "kind1": layers[0] - 2}, {"kind1": layers[1], "kind0": 0})
    again = recomputed or ((0, {}), (0, {}))
    stages = tuple(
        StatedStage(
            rank=rank,
            chunk=0,
            layers=layers[rank],
            kinds=kinds[rank],
            recomputed=again[rank][0],
            recomputed_kinds=again[rank][1],
            embedding=rank == 0,
            head=rank == 1,
        )
        for rank in range(2)
    )
    return StatedLayout(
        degrees=dict.fromkeys(DEGREES, 1) | {"pp": 2},
        sp=False,
        zero=0,
        hsdp_shard=0,
        recompute=Recompute(),
        schedule="1f1b",
        mesh_order=BOOK.orders[0],
        precision=None,
        stages=stages,
    )


def test_stages_of_two_kinds() -> None:
    """Layers become blocks of each kind; recomputed ones are the first unless their kinds are stated."""
    runs = make_space(counts=(2, 3)).runs
    blocks, none = read_stages(two_stages(), runs, FREE, may_recompute=False)
    assert blocks.tolist() == [[2, 1], [0, 2]]
    assert not none.any()
    first = two_stages((2, {}), (2, {}))
    assert read_stages(first, runs, FREE, may_recompute=True)[1].tolist() == [[2, 0], [0, 1]]
    chosen = two_stages((3, {"kind0": 1, "kind1": 2}), (0, {}))
    assert read_stages(chosen, runs, FREE, may_recompute=True)[1].tolist() == [[1, 1], [0, 0]]
    uniform = two_stages((4, {}), (4, {}))
    with pytest.raises(Refuted, match="first 3 blocks"):
        read_stages(two_stages((4, {}), (2, {})), runs, MEGATRON, may_recompute=True)
    assert read_stages(uniform, runs, TORCHTITAN, may_recompute=True)[1].tolist() == [[2, 1], [0, 2]]


@pytest.mark.parametrize(
    ("layout", "rule", "message"),
    [
        (two_stages(layers=(4, 2)), FREE, "hold 4 blocks of 5"),
        (two_stages(layers=(3, 4)), FREE, "not a whole number"),
        (two_stages(layers=(4, 6)), FREE, "not a whole number"),
        (two_stages((3, {}), (0, {})), FREE, "recomputed: 3 layers are not a whole number"),
        (two_stages((3, {"kind0": 3}), (0, {})), FREE, "cannot recompute 3 layers of kind0"),
        (two_stages((1, {"kind1": 1}), (0, {})), FREE, "cannot recompute 1 layers of kind1"),
        (two_stages((2, {"kind0": 1}), (0, {})), FREE, "don't add up to 2"),
        (two_stages((1, {"other": 1}), (0, {})), FREE, "don't add up to 1"),
        (two_stages((1, {}), (0, {})), MEGATRON, "first 1 blocks of every stage"),
        (two_stages((2, {"kind1": 2}), (2, {})), MEGATRON, "first 1 blocks of every stage"),
        (two_stages((1, {}), (2, {})), TORCHTITAN, "all blocks or none"),
    ],
)
def test_stages_that_break_the_rule(layout: StatedLayout, rule: StageRule, message: str) -> None:
    """Each statement that isn't possible is named."""
    with pytest.raises(Refuted, match=message):
        read_stages(layout, make_space(counts=(2, 3)).runs, rule, may_recompute=True)


@pytest.mark.parametrize("rule", [FREE, MEGATRON, TORCHTITAN])
@pytest.mark.parametrize("counts", [(7,), (2, 5), (1, 3, 3)])
def test_reads_what_the_space_writes(rule: StageRule, counts: tuple[int, ...]) -> None:
    """Optimal stages written as a layout's stage list are read as the same blocks and recomputed blocks."""
    space = make_space(rule, counts, tight=1.2, seed=11)
    model = ModelSpec(name="tiny", hidden=8, heads=1, kv_heads=1, head_dim=8, vocab=8, runs=space.runs)
    batch, _ = space.expand(space.degrees)
    terms = space.terms(batch)
    written = 0
    for row in range(len(batch)):
        best = solve_stages(terms.take(np.array([row])), space.counts, rule)
        if best is None:
            continue
        pp, vp = int(batch.pp[row]), int(batch.vp[row])
        listed = virtual_stages(model, pp, vp, best.blocks, best.recomputed)
        stages = tuple(
            StatedStage(**{f.name: getattr(stage, f.name) for f in fields(StatedStage)}) for stage in listed
        )
        degrees = dict.fromkeys(DEGREES, 1) | {"pp": pp, "vp": vp}
        layout = replace(two_stages(), degrees=degrees, stages=stages)
        blocks, recomputed = read_stages(layout, space.runs, rule, may_recompute=True)
        assert blocks.tolist() == best.blocks.tolist()
        assert recomputed.tolist() == best.recomputed.tolist()
        written += bool(best.recomputed.any())
    assert written > 1


def test_no_recomputation_where_the_layout_has_none() -> None:
    """Recomputed layers need a layout with full recomputation."""
    with pytest.raises(Refuted, match="no full recomputation"):
        read_stages(two_stages((2, {}), (2, {})), make_space(counts=(2, 3)).runs, FREE, may_recompute=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_s": -1.0}, "layer_s"),
        ({"fixed_s": np.nan}, "fixed_s"),
        ({"bubble_weight": 8.0}, "bubble_weight"),
        ({"recomputed_activation_bytes": 9.0}, "increases its activations"),
    ],
)
def test_cost_model_out_of_range(changes: dict[str, float], message: str) -> None:
    """Terms for which no bound would hold are named, and end the verification."""
    space = make_space()
    terms = space.terms(space.expand(space.degrees)[0])
    assert unsound_terms(terms) == ""
    broken = replace(
        terms, **{name: np.full_like(getattr(terms, name), value) for name, value in changes.items()}
    )
    assert message in unsound_terms(broken)
    space.terms = lambda batch: broken.take(np.arange(len(batch)))  # type: ignore[method-assign]
    assert message in exclude_tuples(space, 1.0).unsound
