"""A random space of layouts, its exhaustive enumeration, and the plan that answers for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.operations import with_operations

from layoutopt.optimizer.cost.batch import CODES, DEGREES, Codebook, LayoutBatch
from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import StageTerms, price_stages
from layoutopt.optimizer.frameworks.stage_rule import (
    FREE,
    MEGATRON,
    NEAR_EQUAL,
    Recomputation,
    Split,
    StageRule,
)
from layoutopt.optimizer.solve.certificate import build_certificate
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.search.demands import NO_DEMANDS, Demands
from layoutopt.optimizer.solve.search.space_size import space_size
from layoutopt.optimizer.solve.verify.rebuilt import Rebuilt
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.model import LayerShape, Run
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray
    from layoutopt.optimizer.solve.verify.layout import PricedLayout
    from layoutopt.optimizer.solve.verify.plan_file import StatedPlan

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
    demands: Demands = NO_DEMANDS
    model: None = None

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

    @property
    def tuples(self) -> IntArray:
        """Number of tuples of each degree row."""
        return np.full(len(self.degrees), 8)

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
        return with_operations(
            pp=batch.pp,
            vp=batch.vp,
            folded=np.zeros(len(batch), dtype=bool),
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
            flight_bytes=self._random(batch, 0.0, 0.2, 1014),
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
    """A random space with one run for each count."""
    runs = tuple(
        Run(name=f"kind{k}", block=(LayerShape(ffn=1 + k),), count=count) for k, count in enumerate(counts)
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
        shape = (len(stages), chunks, ranks, len(space.runs))
        held, again = (np.stack([stage[i] for stage in stages]).reshape(shape) for i in (1, 2))
        exact = step_s(terms, row, held, again)
        found += [
            Choice(float(exact[i]), batch.take(np.array([row])), *stages[i][::2], stages[i][1])
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
    """Chunks equal to within one block and in order but for the ends, which alone may be empty, near-equal if asked."""
    inner = sizes[1:-1] if ranks > 1 else sizes
    if min(inner, default=1) < 1:
        return False
    for rank in range(ranks):
        places = range(rank, len(sizes), ranks)
        ends = [j for j in places if ranks > 1 and j in (0, len(sizes) - 1)]
        own = [sizes[j] for j in places if j not in ends]
        if own and (max(own) - min(own) > 1 or own != sorted(own)):
            return False
        least = 0 if split is Split.FREE else max(own, default=0) - 1
        if own and not all(least <= sizes[j] <= min(own) + 1 for j in ends):
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
        rounding_s=rounding_s(space.counts),
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

    def restate(_: StatedPlan, priced: Sequence[PricedLayout]) -> Plan:
        if not priced:
            return {}
        best = priced[0]
        estimate = {
            "step_time_s": best.step_time_s,
            "memory": {"peak_bytes": float(best.costs.peak_bytes[0]), "capacity_bytes": best.capacity_bytes},
            "breakdown_s": breakdown(space, best.blocks, best.batch, best.step_time_s),
        }
        others = [{"step_time_s": one.step_time_s} for one in priced[1:]]
        return {"estimate": estimate, "alternatives": others, "inputs": INPUTS}

    values: dict[str, Any] = {
        "space": space,
        "runs": space.runs,
        "cost_model": COST_MODEL,
        "inputs": INPUTS,
        "removed_by_rule": {"pp divides nothing": 2},
        "restate": restate,
    }
    return Rebuilt(**values | changes)


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


SPACES: dict[str, dict[str, Any]] = {
    "free": {"rule": FREE},
    "megatron": {"rule": MEGATRON, "seed": 1},
    "torchtitan": {"rule": NEAR_EQUAL, "seed": 2, "tight": 1.3},
    "two kinds, free": {"rule": FREE, "counts": (2, 3), "seed": 3},
    "two kinds, megatron": {"rule": MEGATRON, "counts": (2, 3), "seed": 4},
    "three kinds, torchtitan": {"rule": NEAR_EQUAL, "counts": (1, 3, 2), "seed": 5, "tight": 1.5},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Builders for the tests of the verification."""

    space: Callable[..., RandomSpace] = make_space
    layouts: Callable[[RandomSpace], list[Choice]] = enumerate_layouts
    plan: Callable[..., Plan] = make_plan
    infeasible_plan: Callable[[RandomSpace], Plan] = infeasible_plan
    rebuilt: Callable[..., Rebuilt] = rebuilt


@pytest.fixture(scope="session")
def kit() -> Kit:
    """Builders of spaces, layouts and plans."""
    return Kit()


@pytest.fixture(scope="session", params=SPACES)
def solved(request: pytest.FixtureRequest) -> tuple[RandomSpace, list[Choice]]:
    """A space and all its layouts that fit, fastest first."""
    space = make_space(**SPACES[request.param])
    return space, enumerate_layouts(space)


@pytest.fixture(scope="session")
def free() -> tuple[RandomSpace, list[Choice]]:
    """The first space."""
    space = make_space(**SPACES["free"])
    return space, enumerate_layouts(space)
