"""The search's answer equals exhaustive enumeration of the joint space: layouts, stage splits and recomputation."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import LayoutBatch
from layoutopt.optimizer.cost.budget import gpu_power_w
from layoutopt.optimizer.cost.interruptions import job_slowdown
from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import StageCosts, price_stages
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split, StageRule
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.model.slices import tuple_slice
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.search import best_first, one_tuple
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.costed_space import CostedSpace
from layoutopt.optimizer.solve.search.demands import Constrain
from layoutopt.optimizer.solve.search.result import SearchOptions, SearchResult
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.cluster import ClusterSpec, NetworkLevel
from layoutopt.optimizer.specs.loading import load_gpu
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision, Saver, Schedule
from layoutopt.optimizer.specs.workload import Workload

Meets = Callable[[LayoutBatch, int, np.ndarray, np.ndarray, StageCosts], np.ndarray]

FRAMEWORKS = (Framework.MEGATRON, Framework.TORCHTITAN, Framework.ANY)
SPACES = 63
OPEN_SPACES = 40
SAVING_SPACES = 12
MOST_LAYOUTS = 5_000_000
PRICED_AT_ONCE = 20_000


def random_model(rng: np.random.Generator, moe: bool) -> ModelSpec:
    """Build a small decoder: dense, or leading dense layers before mixture-of-experts ones."""
    hidden, heads = int(rng.choice([512, 1024, 2048])), 8
    layers = int(rng.integers(3, 8 if not moe else 6))
    dense = LayerShape(ffn=4 * hidden)
    runs = [Run(name="dense", block=(dense,), count=layers)]
    if moe:
        lead = int(rng.integers(0, 2))
        routed = Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=layers - lead)
        runs = [Run(name="dense", block=(dense,), count=lead), routed] if lead else [routed]
    experts = MoeSpec(experts=8, top_k=2, ffn=hidden, shared_ffn=hidden if rng.random() < 0.5 else 0)
    return ModelSpec(
        name="small", hidden=hidden, heads=heads, kv_heads=int(rng.choice([2, 4, 8])), head_dim=hidden // heads,
        vocab=int(rng.choice([1000, 32000, 128000])), runs=tuple(runs), tied_embeddings=bool(rng.random() < 0.3),
        moe=experts if moe else None,
    )  # fmt: skip


def cluster_of(gpus: int, reserve_bytes: float = 0.0, host_memory_bytes: float | None = None) -> ClusterSpec:
    """Build nodes of 8 H100s with one oversubscribed level."""
    gpu = load_gpu("h100")
    per_node = min(gpus, 8)
    return ClusterSpec(
        name="small", gpu=gpu, gpu_count=gpus, gpus_per_node=per_node, nvlink_domain=per_node, nics_per_node=per_node,
        nic_bytes_per_s=50e9, levels=(NetworkLevel(name="leaf", gpus=gpus, oversubscription=2.0, latency_s=1e-6),),
        reserve_bytes=reserve_bytes, host_memory_bytes=host_memory_bytes,
    )  # fmt: skip


def random_question(seed: int) -> Question:
    """Draw a model, a cluster (odd GPU counts too), a framework and a few open axes."""
    rng = np.random.default_rng(seed)
    framework = FRAMEWORKS[seed % 3]
    gpus = int(rng.choice([4, 6, 7, 8, 12, 16, 24, 32, 64]))
    batch = gpus * int(rng.choice([1, 2, 4]))
    training = TrainingSpec(sequence_length=512, global_batch=batch, precision=Precision.BF16)
    orders = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp") if framework is not Framework.TORCHTITAN else ()
    space = SpaceOptions(
        max={"pp": 4, "vp": 2, "tp": 4, "cp": 2, "ep": 4},
        fix={"mesh_order": orders} if orders else {},
        micro_batches=(1, 2),
    )
    workload = Workload(model=random_model(rng, moe=seed % 2 == 1), training=training)
    return Question(
        workload=workload, cluster=cluster_of(gpus), options=SolveOptions(framework=framework, space=space)
    )


def open_question(seed: int) -> Question:
    """Draw a small mixture of experts with every schedule of its framework and two precisions open."""
    rng = np.random.default_rng(1000 + seed)
    framework = (Framework.ANY, Framework.TORCHTITAN, Framework.MEGATRON, Framework.DEEPSEEK_INTERNAL)[
        seed % 4
    ]
    gpus = int(rng.choice([4, 6, 8, 12, 16]))
    batch = gpus * int(rng.choice([2, 4]))
    training = TrainingSpec(sequence_length=512, global_batch=batch, precision=Precision.BF16)
    space = SpaceOptions(
        max={"pp": 4, "vp": 2, "tp": 2, "cp": 2, "ep": 4},
        fix={"mesh_order": ("tp-cp-ep-dp-pp",)},
        micro_batches=(1, 2),
        schedules=tuple(Schedule),
        precisions=(Precision.BF16, Precision.FP8),
    )
    workload = Workload(model=random_model(rng, moe=True), training=training)
    options = SolveOptions(framework=framework, space=space)
    return Question(workload=workload, cluster=cluster_of(gpus), options=options)


def saving_question(seed: int) -> Question:
    """Draw a small space with every set of memory savers open, on hosts whose memory is scarce, or not stated."""
    question = random_question(seed)
    few = {"pp": 2, "vp": 1, "tp": 2, "cp": 1, "ep": 2}
    space = replace(question.options.space, allow=tuple(Saver), max=few, micro_batches=(1,))
    gpus = question.cluster.gpu_count
    return replace(
        question,
        options=replace(question.options, space=space),
        cluster=cluster_of(gpus, host_memory_bytes=(None, 1e9, 8e9)[(seed + seed // 3) % 3]),
    )


@cache
def stage_choices(
    pp: int, vp: int, folded: bool, counts: tuple[int, ...], rule: StageRule, may_recompute: bool
) -> tuple[np.ndarray, np.ndarray]:
    """List (blocks, recomputed) of every allowed choice of stages, (choices, vp, pp, K), straight from the rule's text.

    ``pp`` are ranks; where the stages are folded, a rank's second chunk comes later in the model the earlier its first.
    """
    order = [*range(pp), *range(2 * pp - 1, pp - 1, -1)] if folded else [*range(pp * vp)]
    kinds = np.repeat(np.arange(len(counts)), counts)
    both: list[tuple[np.ndarray, np.ndarray]] = []
    for in_order in compositions(len(kinds), pp * vp):
        sizes = dict(zip(order, in_order, strict=True))
        ends = {order[0], order[-1]} if pp > 1 or folded else set()
        chunks = [[(place, sizes[place]) for place in range(rank, pp * vp, pp)] for rank in range(pp)]
        if not (
            allowed(list(in_order), rule.split, bool(ends))
            and all(in_turn(own, ends, rule.split) for own in chunks)
        ):
            continue
        parts = dict(zip(order, np.split(kinds, np.cumsum(in_order)[:-1]), strict=True))
        pieces = [parts[place] for place in range(pp * vp)]
        stages = np.stack([np.bincount(piece, minlength=len(counts)) for piece in pieces])
        for again in recomputations(rule.recomputation, pieces, stages, may_recompute):
            both.append((stages.reshape(vp, pp, -1), again.reshape(vp, pp, -1)))
    shape = (0, vp, pp, len(counts))
    if not both:
        return np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    return np.stack([b for b, _ in both]), np.stack([r for _, r in both])


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to give each of ``parts`` stages a number of blocks."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def in_turn(own: list[tuple[int, int]], ends: set[int], split: Split) -> bool:
    """Chunks of a rank rise and differ by at most one; an end holds at most one more, and fewer as the split allows."""
    inner = [size for place, size in own if place not in ends]
    if not inner:
        return True
    if inner != sorted(inner) or inner[-1] - inner[0] > 1:
        return False
    least = 0 if split is Split.FREE else inner[-1] - 1
    return all(least <= size <= inner[0] + 1 for place, size in own if place in ends)


def allowed(sizes: list[int], split: Split, ends: bool) -> bool:
    """Only the first and last virtual stage may be empty; near-equal splits keep the rest within one block."""
    inner = sizes[1:-1] if ends else sizes
    if min(inner, default=1) < 1:
        return False
    if split is Split.FREE or max(sizes) - min(sizes) <= 1:
        return True
    near = bool(inner) and max(inner) - min(inner) <= 1
    return near and all(abs(end - min(inner)) <= 1 for end in (sizes[0], sizes[-1]))


def recomputations(
    rule: Recomputation, pieces: list[np.ndarray], stages: np.ndarray, may: bool
) -> Iterator[np.ndarray]:
    """Yield the recomputed blocks per stage and kind that a rule allows."""
    if not may:
        yield np.zeros_like(stages)
    elif rule is Recomputation.PER_RANK:
        for flat in product(*(range(n + 1) for n in stages.ravel())):
            yield np.array(flat, dtype=np.int64).reshape(stages.shape)
    elif rule is Recomputation.ALL_OR_NONE:
        yield np.zeros_like(stages)
        yield stages
    else:
        for count in range(int(stages.sum(axis=1).max()) + 1):
            yield np.stack([np.bincount(piece[:count], minlength=stages.shape[1]) for piece in pieces])


def fastest_by_enumeration(source: CostedSpace, meets: Meets | None = None) -> tuple[float, int]:
    """Return the least step time of every layout with stages that fits, and how many layouts were priced.

    ``meets`` tells for the choices of stages of one tuple which of them a question accepts.
    """
    best, priced = np.inf, 0
    for row, pp, blocks, again, costs in all_layouts(source):
        good = costs.fits if meets is None else costs.fits & meets(row, pp, blocks, again, costs)
        best = min(best, float(np.min(costs.step_time_s, where=good, initial=np.inf)))
        priced += len(blocks)
    return best, priced


def all_layouts(
    source: CostedSpace,
) -> Iterator[tuple[LayoutBatch, int, np.ndarray, np.ndarray, StageCosts]]:
    """Yield every tuple with its ranks and all its choices of stages: blocks and recomputed blocks, priced."""
    counts = tuple(int(n) for n in source.counts)
    batch, _ = source.expand(source.degrees)
    terms = source.terms(batch)
    for row in range(len(batch)):
        pp, vp, folded = int(terms.pp[row]), int(terms.vp[row]), bool(terms.folded[row])
        blocks, again = stage_choices(pp, vp, folded, counts, source.rule, bool(terms.may_recompute[row]))
        if not len(blocks):
            continue
        for start in range(0, len(blocks), PRICED_AT_ONCE):
            some = slice(start, start + PRICED_AT_ONCE)
            held, repeated = blocks[some], again[some]
            one = terms.take(np.full(len(held), row))
            padding = ((0, 0), (0, one.in_flight.shape[1] - pp), (0, 0))
            by_rank = held.sum(axis=1), repeated.sum(axis=1)
            costs = price_stages(one, *(np.pad(part, padding) for part in by_rank))
            costs = replace(costs, step_time_s=step_s(terms, row, held, repeated))
            yield batch.take(np.array([row])), pp, *by_rank, costs


def tight(question: Question, seed: int) -> Question:
    """Leave so little memory that part of the layouts no longer fits, on two spaces of three of every framework."""
    source = question.costed_space()
    if not len(source.degrees) or seed // 3 % 3 == 0:
        return question
    terms = source.terms(source.expand(source.degrees)[0])
    usage = (terms.layer_state_bytes + terms.in_flight[:, :1] * terms.layer_activation_bytes) @ source.counts
    share = np.quantile(usage / terms.pp, np.random.default_rng(seed).uniform(0.02, 0.6))
    reserve = float(terms.capacity_bytes[0] - share - np.median(terms.first_bytes + terms.common_bytes))
    factor = 1 + source.cost.preset.allocator_reserve
    return replace(question, cluster=replace(question.cluster, reserve_bytes=max(reserve, 0.0) * factor))


def search(source: CostedSpace, **options: object) -> SearchResult:
    """Run the search to its end."""
    return BestFirst(source, SearchOptions(**options)).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(SPACES))
def test_search_equals_enumeration(seed: int) -> None:
    """Dense and mixture-of-experts models on 4 to 64 GPUs under three frameworks."""
    assert_same_optimum(tight(random_question(seed), seed).costed_space())


@pytest.mark.parametrize("seed", range(OPEN_SPACES))
def test_search_equals_enumeration_with_schedules_and_precision_open(seed: int) -> None:
    """Small mixtures of experts: no layout of any schedule in either precision beats the answer."""
    source = tight(open_question(seed), seed).costed_space()
    assert set(source.space.axes.precisions) == {Precision.BF16, Precision.FP8}
    assert len(source.space.axes.schedules) > 2
    assert_same_optimum(source)


@pytest.mark.parametrize("seed", range(SAVING_SPACES))
def test_search_equals_enumeration_with_memory_savers_open(seed: int) -> None:
    """No set of memory savers beats the answer, on hosts with little memory too."""
    assert_same_optimum(tight(saving_question(seed), seed).costed_space())


def test_optima_use_the_open_axes() -> None:
    """The random spaces are worth searching: their optima use other schedules, both precisions, and savers."""
    layouts = [
        result.best.layout
        for seed in range(OPEN_SPACES)
        if (result := search(tight(open_question(seed), seed).costed_space())).best
    ]
    assert len({row.codebook.schedules[int(row.schedule[0])] for row in layouts}) >= 3
    assert len({row.codebook.precisions[int(row.precision[0])] for row in layouts}) == 2
    saved = [search(tight(saving_question(seed), seed).costed_space()).best for seed in range(SAVING_SPACES)]
    sets = {item.layout.codebook.savers_of(int(item.layout.precision[0])) for item in saved if item}
    assert len(sets) >= 2


def assert_same_optimum(source: CostedSpace) -> None:
    """Enumerate a space, search it, and compare."""
    best, priced = fastest_by_enumeration(source)
    assert priced <= MOST_LAYOUTS
    result = search(source)
    assert result.complete
    if np.isinf(best):
        assert result.best is None
    else:
        assert result.best is not None
        assert result.best.step_time_s == pytest.approx(best, rel=1e-9, abs=result.rounding_s)
        assert result.bound_s <= best * (1 + 1e-12)


def test_spaces_are_varied() -> None:
    """The random spaces hold feasible and infeasible ones, pipelines, recomputation and unequal stages."""
    found = [search(tight(random_question(seed), seed).costed_space()).best for seed in range(SPACES)]
    layouts = [item for item in found if item is not None]
    assert len(layouts) > 0.5 * SPACES
    assert sum(int(item.layout.pp[0]) > 1 for item in layouts) >= 5
    assert any(item.recomputed.any() for item in layouts)


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5, 7, 8, 10])
def test_one_model_gives_the_same_optimum(seed: int) -> None:
    """The whole tuple table in a single CP-SAT model agrees with the sliced search."""
    question = random_question(seed)
    few = replace(
        question.options.space, max={"pp": 3, "vp": 1, "tp": 2, "cp": 1, "ep": 2}, micro_batches=(1,)
    )
    source = replace(question, options=replace(question.options, space=few)).costed_space()
    sliced, whole = search(source), search(source, one_model=True)
    assert whole.complete
    assert (whole.best is None) == (sliced.best is None)
    if whole.best and sliced.best:
        assert whole.best.step_time_s == pytest.approx(
            sliced.best.step_time_s, rel=1e-9, abs=whole.rounding_s
        )


AXIS_REQUIREMENTS = (
    "tp*cp <= 2", "pp*vp >= 2", "zero*micro_batch <= 2", "dp // tp >= 1", "1 < pp <= 3", "micro_batches % 4 == 0",
    "sp + ep != 2", "gpus * micro_batch < 20", "(tp - 1)*(cp - 1) == 0", "ep*etp <= 2 + vp", "hsdp_shard*vp <= 2",
)  # fmt: skip
STAGE_REQUIREMENTS = (
    "layers[0] <= 2", "layers[-1] >= 2", "layers[0] < layers[-1]", "layers[0] + 2*layers[1] <= 6", "layers[0] != 1",
    "recomputed[0] <= 0", "recomputed[-1] >= 1", "tp*layers[0] <= 4", "layers[0] == layers[1]", "layers[-2] > 1",
    "recomputed[0] + recomputed[1] <= layers[0]", "1 <= layers[0]*pp <= 6", "3*layers[0] <= 2*micro_batches/pp",
)  # fmt: skip
REQUIRED_SPACES = 32


class _Ranks:
    """Layers of a rank for every choice of stages; ranks that a pipeline lacks hold none."""

    def __init__(self, held: np.ndarray, pp: int) -> None:
        self.held, self.pp = held, pp

    def __getitem__(self, rank: int) -> np.ndarray:
        place = rank if rank >= 0 else self.pp + rank
        if not 0 <= place < self.pp:
            return np.zeros(len(self.held), dtype=np.int64)
        copies = (
            self.pp // self.held.shape[1]
        )  # DualPipe: the second half of the ranks holds the stages again
        return self.held[:, place if copies == 1 or place < self.pp // 2 else self.pp - 1 - place]


def python_meets(texts: tuple[str, ...]) -> Meets:
    """Judge layouts by Python's own arithmetic on the texts, one tuple at a time."""

    def meets(
        row: LayoutBatch, pp: int, blocks: np.ndarray, again: np.ndarray, costs: StageCosts
    ) -> np.ndarray:
        names = (
            "tp",
            "cp",
            "pp",
            "vp",
            "dp",
            "ep",
            "etp",
            "sp",
            "zero",
            "hsdp_shard",
            "micro_batch",
            "micro_batches",
        )
        space = {name: int(getattr(row, name)[0]) for name in names}
        space["gpus"] = space["tp"] * space["cp"] * space["pp"] * space["dp"]
        ranks = {
            "layers": _Ranks(blocks.sum(axis=2), space["pp"]), "recomputed": _Ranks(again.sum(axis=2), space["pp"]),
            "step_s": costs.step_time_s, "peak_gb": costs.peak_bytes / 1e9,
        }  # fmt: skip
        good = np.ones(len(blocks), dtype=bool)
        for text in texts:
            for part in _pairs(text):
                good &= np.asarray(eval(part, {}, {**space, **ranks}))
        return good

    return meets


def _pairs(text: str) -> list[str]:
    """Split a chain such as 1 < pp <= 3, which arrays can't do at once."""
    pieces = re.split(r"(<=|>=|==|!=|<|>)", text)
    return ["".join(pieces[i : i + 3]) for i in range(0, len(pieces) - 2, 2)]


def required_question(seed: int) -> tuple[Question, tuple[str, ...]]:
    """Draw a question and one to three requirements; limits on time and memory lie near the optimum."""
    question = tight(open_question(seed) if seed % 4 == 3 else random_question(seed), seed)
    rng = np.random.default_rng(7000 + seed)
    best = search(question.costed_space()).best
    texts = [str(rng.choice(STAGE_REQUIREMENTS)), str(rng.choice(STAGE_REQUIREMENTS + AXIS_REQUIREMENTS))]
    if best is not None and seed // 3 % 3 == 0:
        texts[1] = f"peak_gb <= {best.peak_bytes / 1e9 * rng.uniform(0.7, 1.0):.9g}"
    if best is not None and seed % 5 == 0:
        texts.append(f"step_s <= {best.step_time_s * rng.uniform(1.0, 1.2):.9g}")
    if best is not None and seed % 7 == 0:
        texts.append(f"step_s + layers[0]*{best.step_time_s / 10:.9g} <= {best.step_time_s * 1.3:.9g}")
    required = tuple(dict.fromkeys(texts[seed // 2 % 2 :]))
    space = replace(question.options.space, require=required)
    return replace(question, options=replace(question.options, space=space)), required


@pytest.mark.parametrize("seed", range(REQUIRED_SPACES))
def test_search_with_requirements_equals_enumeration(seed: int) -> None:
    """Requirements of axes, stages, memory and time: no layout that meets them beats the answer, which meets them."""
    question, required = required_question(seed)
    source, meets = question.costed_space(), python_meets(required)
    best, priced = fastest_by_enumeration(source, meets)
    assert priced <= MOST_LAYOUTS
    result = search(source)
    assert result.complete
    assert (result.best is None) == np.isinf(best)
    if result.best is None:
        return
    assert result.best.step_time_s == pytest.approx(best, rel=1e-9, abs=result.rounding_s)
    assert result.bound_s <= best * (1 + 1e-12)
    row = result.best
    by_rank = row.blocks.sum(axis=0)[None], row.recomputed.sum(axis=0)[None]
    costs = price_stages(source.terms(row.layout), *by_rank)
    costs = replace(costs, step_time_s=np.array([row.step_time_s]))
    assert meets(row.layout, row.blocks.shape[1], *by_rank, costs).all()


def test_requirements_of_the_random_questions_bind() -> None:
    """The random requirements are worth testing: some change the answer, some leave none, some leave it alone."""
    changed = {"none": 0, "slower": 0, "same": 0}
    for seed in range(REQUIRED_SPACES):
        question, _ = required_question(seed)
        free = replace(
            question, options=replace(question.options, space=replace(question.options.space, require=()))
        )
        with_them, without = search(question.costed_space()).best, search(free.costed_space()).best
        if without is None:
            continue
        slower = with_them is not None and with_them.step_time_s > without.step_time_s * (1 + 1e-6)
        changed["none" if with_them is None else "slower" if slower else "same"] += 1
    assert min(changed.values()) >= 3, changed


FUNCTIONS: dict[str, Constrain] = {
    "tp*layers[0] <= 4": lambda model, v: model.add(v.tp * v.layers[0] <= 4),
    "layers[0] < layers[-1]": lambda model, v: model.add(v.layers[0] < v.layers[-1]),
    "pp*vp >= 2": lambda model, v: model.add(v.pp * v.vp >= 2),
    "recomputed[0] <= 0": lambda model, v: model.add(sum(v.variables.recomputed[0]) <= 0),
}


@pytest.mark.parametrize("text", FUNCTIONS)
@pytest.mark.parametrize("seed", [0, 2, 5, 9, 14])
def test_functions_are_requirements(seed: int, text: str) -> None:
    """A function of model and variables, over numbers or over the solver's variables, gives what the text gives."""
    question = tight(random_question(seed), seed)
    by_text = replace(question.options.space, require=(text,))
    asked = replace(question, options=replace(question.options, space=by_text))
    told = replace(question, options=replace(question.options, constrain=FUNCTIONS[text]))
    one, other = search(asked.costed_space()), search(told.costed_space())
    assert one.complete and other.complete
    assert (one.best is None) == (other.best is None)
    if one.best and other.best:
        assert one.best.step_time_s == pytest.approx(other.best.step_time_s, rel=1e-9, abs=one.rounding_s)


SECOND_GOALS = ("memory", "gpus", "cost", "energy", "days", "time")


@pytest.mark.parametrize("seed", range(12))
def test_second_goals_equal_enumeration(seed: int) -> None:
    """Of all layouts near enough to the fastest, none is better in the second goal; both goals count within rounding."""
    goal, within = SECOND_GOALS[seed % len(SECOND_GOALS)], (0.0, 0.05, 0.3)[seed % 3]
    question = tight(random_question(seed), seed)
    space = replace(question.options.space, allow_idle=0.5 if seed % 2 else None, gpu_hour_cost=2.0)
    training = replace(question.workload.training, total_tokens=1e12)
    question = replace(
        question,
        workload=replace(question.workload, training=training),
        options=replace(question.options, space=space, then=goal, within=within, top=1),
    )
    source = question.costed_space()
    fastest, priced = fastest_by_enumeration(source)
    assert priced <= MOST_LAYOUTS
    plan = solve_layout(question.workload, question.cluster, question.options)
    if np.isinf(fastest):
        assert plan.then is None and plan.layout is None
        return
    assert plan.then is not None and plan.then.proven and plan.estimate is not None
    run_h = 1e12 / training.tokens_per_step / 3600
    best = np.inf
    for row, _, _, _, costs in all_layouts(source):
        gpus = float((row.tp * row.cp * row.pp * row.dp)[0])
        hours = run_h * job_slowdown(question.workload.model, question.cluster, int(gpus))
        values: dict[str, np.ndarray | float] = {
            "memory": costs.peak_bytes / 1e9, "gpus": gpus, "time": costs.step_time_s,
            "days": costs.step_time_s * hours / 24,
            "cost": costs.step_time_s * hours * gpus * 2.0,
            "energy": costs.step_time_s * hours * gpus * gpu_power_w(question.cluster) / 1000,
        }  # fmt: skip
        near = costs.fits & (costs.step_time_s <= fastest * (1 + within) + plan.certificate.rounding_s / 2)
        best = min(best, float(np.min(np.broadcast_to(values[goal], near.shape), where=near, initial=np.inf)))
    assert plan.then.value <= best * (1 + 1e-6)
    assert plan.then.value >= best * (1 - 1e-3 * (within == 0))
    assert plan.then.value <= plan.then.first_value * (1 + 1e-9)
    assert plan.estimate.step_time_s <= fastest * (1 + within) + 2 * plan.certificate.rounding_s


@pytest.mark.parametrize("seed", [0, 2, 5, 8])
def test_one_model_gives_the_same_optimum_under_requirements(seed: int) -> None:
    """The whole tuple table in a single model, requirements and all, agrees with the sliced search."""
    question = tight(random_question(seed), seed)
    required = ("layers[0] <= 2 + 0*tp", "recomputed[0] + recomputed[-1] <= 3", "2*layers[-1] - pp >= 1")
    few = replace(
        question.options.space,
        max={"pp": 3, "vp": 1, "tp": 2, "cp": 1, "ep": 2},
        micro_batches=(1,),
        require=required,
    )
    source = replace(question, options=replace(question.options, space=few)).costed_space()
    sliced, whole = search(source), search(source, one_model=True)
    assert whole.complete and sliced.complete
    assert (whole.best is None) == (sliced.best is None)
    if whole.best and sliced.best:
        assert whole.best.step_time_s == pytest.approx(
            sliced.best.step_time_s, rel=1e-9, abs=whole.rounding_s
        )


def test_slices_grow_where_bounds_miss_the_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tuple after tuple has nothing, many are solved as one model, and all of them count as solved."""
    sizes = []

    def counted(batch: LayoutBatch, *rest: object, **named: object) -> object:
        sizes.append(len(batch))
        return tuple_slice(batch, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(one_tuple, "tuple_slice", counted)

    def impossible(model: Any, v: Any) -> None:
        model.add(v.variables.columns["tp"] == 7)

    question = random_question(2)
    source = replace(question, options=replace(question.options, constrain=impossible)).costed_space()
    result = search(source)
    assert result.complete and result.best is None
    assert max(sizes) == best_first.MOST_IN_SLICE > 1
    assert sum(sizes) == result.solved == int(source.tuples.sum()) - result.by_memory
