"""The enumerated space equals a naive enumeration, its books balance, and all of it can be launched."""

from __future__ import annotations

import tracemalloc
from itertools import product
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.even_split import even_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.batch import DEGREES
from layoutopt.optimizer.cost.schedules import distinct_rank_of_entry
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.stage_rule import Split
from layoutopt.optimizer.space.check import check_layout
from layoutopt.optimizer.space.enumeration import Space, build_space
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.space.stage_splits import boxes
from layoutopt.optimizer.space.stages import chunk_layers, kinds_of, model_order, virtual_stages
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec

    Question = tuple[ModelSpec, TrainingSpec, ClusterSpec]

FEW = settings(max_examples=30)


def rows_of(batch: LayoutBatch, columns: tuple[str, ...] = DEGREES) -> list[tuple[int, ...]]:
    """List the rows of a batch as tuples of columns."""
    table = np.stack([getattr(batch, name) for name in columns], axis=1)
    return [tuple(row) for row in table.tolist()]


def naive_degrees(question: Question, framework: Framework) -> Iterator[tuple[int, ...]]:
    """Loop over every integer; the rules of `any` and of Megatron are written out by hand."""
    model, training, cluster = question
    gpus, batch, sequence = cluster.gpu_count, training.global_batch, training.sequence_length
    blocks, experts = sum(run.count for run in model.runs), model.moe.experts if model.moe else 0
    dividing = [number for number in range(1, gpus + 1) if gpus % number == 0]
    for tp, cp, pp in product(dividing, repeat=3):
        if gpus % (tp * cp * pp) or tp > cluster.tensor_domain or pp > blocks + 2:
            continue
        dp = gpus // (tp * cp * pp)
        if model.heads % tp or (model.kv_heads % tp and tp % model.kv_heads):
            continue
        step = cp * (2 * tp // gcd(2, tp)) if cp > 1 else tp
        if sequence % step or cp > sequence // 2:
            continue
        if framework is Framework.MEGATRON and any(
            shape.ffn % tp for run in model.runs for shape in run.block
        ):
            continue
        folds = [(1, 1)]
        if experts:
            folds = [
                (ep, etp)
                for ep, etp in product(range(1, experts + 1), range(1, tp + 1))
                if experts % ep == 0 and tp % etp == 0 and tp * cp * dp % (ep * etp) == 0
            ]
        sizes = range(1, 17) if batch % 16 else (1, 2, 4, 8, 16)
        for (ep, etp), size, vp in product(folds, sizes, range(1, blocks + 3)):
            if batch % (dp * size) or (pp == 1 and vp > 1) or (pp > 1 and pp * vp > blocks + 2):
                continue
            m = batch // (dp * size)
            if pp > 1 and m < pp:
                continue
            if framework is Framework.ANY and vp > 1 and m % (m // pp):  # m // pp equal rounds of an order
                continue
            if framework is Framework.MEGATRON:
                if vp > 1 and 0 < m % pp < pp:
                    continue
                if experts and model.moe and model.moe.ffn % etp:
                    continue
            yield (tp, cp, pp, vp, dp, ep, etp, size, m)


@pytest.fixture(scope="session")
def ask(
    make_model: Callable[..., ModelSpec],
    make_cluster: Callable[..., ClusterSpec],
    make_training: Callable[..., TrainingSpec],
) -> Callable[..., Question]:
    """Build a question from model fields, GPUs, batch and sequence."""

    def build(
        gpus: int = 16, batch: int = 32, sequence: int = 1024, domain: int = 8, **model: Any
    ) -> Question:
        return make_model(**model), make_training(batch, sequence), make_cluster(gpus, domain=domain)

    return build


@FEW
@given(
    gpus=st.integers(1, 48),
    batch=st.sampled_from([6, 24, 32, 48, 60]),
    sequence=st.sampled_from([48, 64, 96]),
    layers=st.integers(1, 6),
    heads=st.sampled_from([(6, 2), (8, 8), (12, 4)]),
    experts=st.sampled_from([0, 4, 6]),
    framework=st.sampled_from([Framework.ANY, Framework.MEGATRON]),
)
def test_degrees_equal_naive_loops(
    ask: Callable[..., Question],
    gpus: int,
    batch: int,
    sequence: int,
    layers: int,
    heads: tuple[int, int],
    experts: int,
    framework: Framework,
) -> None:
    """Levels, early rules and index arithmetic give the same set of tuples as plain loops, each once."""
    question = ask(
        gpus, batch, sequence, layers=layers, experts=experts, heads=heads[0], kv_heads=heads[1], head_dim=8
    )
    space = build_space(*question, framework)
    found = rows_of(space.degrees)
    assert len(found) == len(set(found))
    assert set(found) == set(naive_degrees(question, framework))


@FEW
@given(
    gpus=st.integers(1, 64),
    batch=st.sampled_from([1, 7, 24, 64]),
    layers=st.integers(1, 9),
    experts=st.sampled_from([0, 8]),
    framework=st.sampled_from(list(Framework)),
    idle=st.sampled_from([None, 0.0, 0.2]),
)
def test_books_balance(
    ask: Callable[..., Question],
    gpus: int,
    batch: int,
    layers: int,
    experts: int,
    framework: Framework,
    idle: float | None,
) -> None:
    """Declared equals remaining plus removed, for degrees and for tuples; an empty space has a reason."""
    space = build_space(
        *ask(gpus, batch, layers=layers, experts=experts), framework, SpaceOptions(allow_idle=idle)
    )
    counts = space.counts
    assert counts.declared_degrees == counts.remaining_degrees + sum(r.degrees for r in counts.removed)
    assert counts.declared_tuples == counts.remaining_tuples + sum(r.tuples for r in counts.removed)
    assert counts.remaining_degrees == len(space.degrees)
    assert counts.remaining_tuples == space.tuples.sum()
    assert (space.empty is None) == bool(len(space.degrees))
    assert sum(space.tuples_by_shape().values()) == counts.remaining_tuples


@pytest.mark.parametrize("framework", [Framework.ANY, Framework.MEGATRON, Framework.TORCHTITAN])
def test_counts_of_choices_are_those_of_the_expansion(
    ask: Callable[..., Question], framework: Framework
) -> None:
    """Every row counts its valid modifier choices, and those that recompute whole layers."""
    several = SpaceOptions(schedules=(Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED))
    space = build_space(*ask(4, 8, layers=4, experts=4), framework, several)
    rows, owner = space.expand(space.degrees)
    whole = [choice.granularity is Granularity.FULL for choice in rows.codebook.recomputes]
    full = np.array(whole, dtype=bool)[rows.recompute]
    count = len(space.degrees)
    assert np.bincount(owner, minlength=count).tolist() == space.tuples.tolist()
    assert np.bincount(owner, weights=full, minlength=count).tolist() == space.whole_layer_tuples.tolist()
    assert full.any() and not full.all()


def layouts_of(space: Space, limit: int = 100) -> Iterator[Layout]:
    """Write rows of the expanded space as complete layouts with even stages, or the framework's own."""
    model = space.ctx.model
    batch, _ = space.expand(space.degrees)
    chosen = np.unique(np.linspace(0, len(batch) - 1, min(limit, len(batch))).astype(int))
    batch, book = batch.take(chosen), batch.codebook
    for row in range(len(batch)):
        values = {name: int(getattr(batch, name)[row]) for name in (*DEGREES, "zero")}
        pp, vp = values["pp"], values["vp"]
        schedule = book.schedules[batch.schedule[row]]
        recompute = book.recomputes[batch.recompute[row]]
        totals = even_blocks(space.ctx.blocks, pp, vp, schedule)
        if pp > 1 and space.stage_rule.split in (Split.LARGER_FIRST, Split.BY_COST):
            totals, _ = next(boxes(space.stage_rule, pp, vp, space.ctx.blocks))
        counts = chunk_layers(totals, pp, vp, folded=vp == 2 and schedule.v_shape)
        kinds = kinds_of(model, counts, model_order(pp, vp, schedule))
        ranks = distinct_rank_of_entry(schedule, pp, vp)  # DualPipe's s and pp - 1 - s hold the same stages
        blocks = np.zeros((int(ranks.max()) + 1, kinds.shape[1]), dtype=np.int64)
        np.add.at(blocks, ranks, kinds)
        repeated = blocks if recompute.granularity is Granularity.FULL else np.zeros_like(blocks)
        yield Layout(
            **values,  # type: ignore[arg-type]  # degrees by name
            savers=(),
            sp=bool(batch.sp[row]),
            hsdp_shard=int(batch.hsdp_shard[row]) or None,
            recompute=recompute,
            mesh_order=book.orders[batch.order[row]],
            schedule=schedule,
            precision=book.precisions[batch.precision[row]],
            stages=virtual_stages(model, pp, vp, blocks, repeated, schedule),
        )


@pytest.mark.parametrize("framework", list(Framework))
@pytest.mark.parametrize("experts", [0, 8])
def test_everything_enumerated_can_be_launched(
    ask: Callable[..., Question], framework: Framework, experts: int
) -> None:
    """Every layout of the space passes the judgement of a user's layout."""
    question = ask(16, 48, layers=6, experts=experts, kv_heads=4)
    options = SpaceOptions(schedules=tuple(Schedule), precisions=(Precision.BF16, Precision.FP8))
    space = build_space(*question, framework, options)
    assert len(space.degrees) or (experts and framework is Framework.NANOTRON)  # it has no experts
    for layout in layouts_of(space) if len(space.degrees) else ():
        assert check_layout(layout, *question, framework) == (), layout


@pytest.mark.parametrize("software", ["core 0.7", "core 0.9", "core 0.12", "core 0.15", "era A", "era B"])
def test_older_releases_enumerate_what_they_launch(ask: Callable[..., Question], software: str) -> None:
    """Rules and abilities keyed by release agree between search and check."""
    framework = Framework.TORCHTITAN if "era" in software else Framework.MEGATRON
    question = ask(16, 32, layers=8, experts=8, kv_heads=4)
    space = build_space(*question, framework, SpaceOptions(software=software))
    assert len(space.degrees)
    for layout in layouts_of(space):
        assert check_layout(layout, *question, framework, software) == (), layout


@pytest.mark.parametrize("framework", list(Framework))
@pytest.mark.parametrize("experts", [0, 8])
def test_neutral_modifiers_are_valid(
    ask: Callable[..., Question], framework: Framework, experts: int
) -> None:
    """The modifiers that degree rows carry are one of each row's own expansions."""
    space = build_space(*ask(24, 48, layers=4, experts=experts), framework)
    batch, index = space.expand(space.degrees)
    expanded = {(int(i), *row) for i, row in zip(index, batch.table().tolist(), strict=True)}
    for i, row in enumerate(space.degrees.table().tolist()):
        assert (i, *row) in expanded


@pytest.mark.parametrize("framework", [Framework.ANY, Framework.MEGATRON, Framework.TORCHTITAN])
@pytest.mark.parametrize("experts", [0, 8])
def test_expansion_agrees_with_counts_and_has_no_equals(
    ask: Callable[..., Question], framework: Framework, experts: int
) -> None:
    """Expanding every row gives as many tuples as were counted, all different."""
    options = SpaceOptions(
        schedules=(*Schedule,), precisions=(Precision.BF16, Precision.FP8), micro_batches=(2,)
    )
    space = build_space(*ask(8, 8, layers=2, experts=experts and 4, kv_heads=2), framework, options)
    batch, index = space.expand(space.degrees)
    assert len(batch) == space.counts.remaining_tuples
    assert (np.bincount(index, minlength=len(space.degrees)) == space.tuples).all()
    assert len(set(map(tuple, batch.table().tolist()))) == len(batch)
    assert rows_of(batch) == [rows_of(space.degrees)[i] for i in index]


def test_partial_expansion_keeps_the_other_modifiers(ask: Callable[..., Question]) -> None:
    """Expanding over one modifier varies that modifier alone."""
    space = build_space(*ask(16, 32, layers=4), Framework.ANY)
    batch, index = space.modifiers.expand(space.degrees, over=("zero",))
    whole, _ = space.expand(space.degrees)
    assert len(space.degrees) < len(batch) < len(whole)
    assert (batch.order == space.degrees.order[index]).all()
    assert (batch.recompute == space.degrees.recompute[index]).all()
    assert set(map(tuple, batch.table().tolist())) <= set(map(tuple, whole.table().tolist()))


def test_equivalent_choices_are_kept_once(ask: Callable[..., Question]) -> None:
    """One GPU has one sharding and one order, dp alone one order and no shard group of its own size."""
    single = build_space(*ask(1, 8, layers=2), Framework.ANY)
    batch, _ = single.expand(single.degrees)
    assert set(rows_of(batch, ("zero", "hsdp_shard", "order"))) == {(0, 0, 0)}
    data = build_space(*ask(8, 8, layers=2), Framework.ANY, SpaceOptions(max={"tp": 1, "cp": 1, "pp": 1}))
    batch, _ = data.expand(data.degrees)
    assert set(batch.order.tolist()) == {0}
    assert set(batch.hsdp_shard.tolist()) == {0}
    assert any(count.rule == "equivalent" for count in data.counts.removed)


@pytest.mark.parametrize("experts", [0, 8])
def test_sharding_choices_equal_naive_loops(ask: Callable[..., Question], experts: int) -> None:
    """Under `any`: ZeRO-0, and stages 1 to 3 over the whole group or in a node, where these differ."""
    space = build_space(*ask(48, 48, layers=2, experts=experts), Framework.ANY, SpaceOptions(max={"pp": 2}))
    batch, index = space.modifiers.expand(space.degrees, over=("zero",))
    found: dict[int, set[tuple[int, int]]] = {}
    for i, zero, shard in zip(index.tolist(), batch.zero.tolist(), batch.hsdp_shard.tolist(), strict=True):
        found.setdefault(i, set()).add((zero, shard))
    for i, (tp, cp, _, _, dp, ep, etp, _, _) in enumerate(rows_of(space.degrees)):
        group, expert_dp = dp * cp, tp * cp * dp // (ep * etp) if experts else 1
        expected = {(0, 0)}
        if group > 1 or expert_dp > 1:
            expected |= {(stage, 0) for stage in (1, 2, 3)}
        shard = gcd(group, 8 // tp)
        nests = all(shard % inner == 0 or inner % shard == 0 for inner in (cp, dp))
        fits = not experts or expert_dp % (group // shard) == 0
        if 1 < shard < group and nests and fits:
            expected |= {(stage, shard) for stage in (1, 2, 3)}
        assert found[i] == expected, (tp, cp, dp, ep, etp)


def test_order_classes(ask: Callable[..., Question]) -> None:
    """Rows with four, three and two active axes keep 24, 6 and 2 of the 24 orders."""
    space = build_space(*ask(16, 32, layers=4, heads=16, kv_heads=16), Framework.ANY)
    batch, index = space.modifiers.expand(space.degrees, over=("order",))
    active = sum((getattr(space.degrees, axis) > 1).astype(int) for axis in ("tp", "cp", "pp", "dp"))
    orders = np.bincount(index, minlength=len(space.degrees))
    expected = np.array([1, 1, 2, 6, 24])[active]
    assert len(batch) == expected.sum()
    assert (orders == expected).all()


def test_shard_groups_tile_their_level(
    make_model: Callable[..., ModelSpec],
    make_cluster: Callable[..., ClusterSpec],
    make_training: Callable[..., TrainingSpec],
) -> None:
    """With tp 2 a shard group has 4 ranks in a node of 8 and 12 in a pod of 24, or fewer to divide dp*cp."""
    space = build_space(make_model(), make_training(96), make_cluster(96, pod=24), Framework.ANY)
    rows = space.degrees.take(np.flatnonzero(space.degrees.tp == 2))
    batch, _ = space.modifiers.expand(rows, over=("zero",))
    group = batch.dp * batch.cp
    assert set(batch.hsdp_shard.tolist()) <= {0, 2, 3, 4, 6, 12}
    sharded = batch.hsdp_shard > 0
    assert (group[sharded] % batch.hsdp_shard[sharded] == 0).all()
    assert 4 in batch.hsdp_shard
    assert 12 in batch.hsdp_shard


def test_idle_gpus_open_other_counts(ask: Callable[..., Question]) -> None:
    """With one of 7 GPUs idle, layouts of 6 appear beside those of 7."""
    question = ask(7, 8, 64, layers=6, heads=6, kv_heads=6)
    strict, loose = (build_space(*question, Framework.ANY, SpaceOptions(allow_idle=x)) for x in (None, 0.15))
    rows = loose.degrees
    assert set((rows.tp * rows.cp * rows.pp * rows.dp).tolist()) == {6, 7}
    assert set(rows_of(strict.degrees)) <= set(rows_of(loose.degrees))


def test_prime_factor_is_named(ask: Callable[..., Question]) -> None:
    """5,128 = 8 x 641 leaves no layout; the message names 641, the batch and the way out."""
    question = ask(5128, 1920, 2048, layers=105, heads=128, kv_heads=128)
    space = build_space(*question, Framework.MEGATRON)
    assert space.empty is not None
    assert space.empty.blocking_primes == (641,)
    for part in ("5,128 = 8 x 641", "prime factor 641", "1,920", "--allow-idle"):
        assert part in space.empty.message
    idle = build_space(*question, Framework.MEGATRON, SpaceOptions(allow_idle=0.02))
    assert len(idle.degrees)


def test_empty_space_names_the_last_rule(ask: Callable[..., Question]) -> None:
    """Where no prime blocks, the last rule is named with its formula."""
    space = build_space(*ask(4, 1, 3, layers=1, heads=1, kv_heads=1), Framework.ANY)
    assert space.empty is not None
    assert space.empty.rule in {count.rule for count in space.counts.removed}
    assert space.empty.formula
    assert space.empty.rule in space.empty.message
    assert space.joint_assignments_log10 == float("-inf")


def test_restrictions_that_leave_nothing_say_so(ask: Callable[..., Question]) -> None:
    """A fixed degree that doesn't divide the GPUs and a list without values are told apart."""
    question = ask(8, 8)
    wrong = build_space(*question, Framework.ANY, SpaceOptions(fix={"tp": (3,)})).empty
    assert wrong is not None
    assert "tp in [3]" in wrong.message
    none = build_space(*question, Framework.ANY, SpaceOptions(micro_batches=(3,))).empty
    assert none is not None
    assert "micro_batch" in none.message


LLAMA: dict[str, Any] = {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248}


@pytest.mark.parametrize(("framework", "least"), [(Framework.MEGATRON, 150_000), (Framework.ANY, 1_000_000)])
def test_declared_space_is_large(
    make_model: Callable[..., ModelSpec],
    make_cluster: Callable[..., ClusterSpec],
    make_training: Callable[..., TrainingSpec],
    framework: Framework,
    least: int,
) -> None:
    """A Llama-3-405B shape on 16,384 GPUs declares, and keeps, no fewer tuples than promised."""
    question = make_model(**LLAMA), make_training(2048, 8192), make_cluster(16384, pod=3072)
    space = build_space(*question, framework)
    assert space.counts.declared_tuples >= least
    assert space.counts.remaining_tuples >= least
    assert space.joint_assignments_log10 > 30


def test_memory_stays_flat(
    make_model: Callable[..., ModelSpec],
    make_cluster: Callable[..., ClusterSpec],
    make_training: Callable[..., TrainingSpec],
) -> None:
    """61 layers with 256 experts on 131,072 GPUs: hundreds of millions of tuples in less than 300 MB."""
    model = make_model(61, experts=256, dense_layers=3, heads=128, kv_heads=128)
    tracemalloc.start()
    space = build_space(model, make_training(983_040, 4096), make_cluster(131_072, pod=3072), Framework.ANY)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert space.counts.remaining_tuples > 1e8
    assert peak_bytes < 300e6


def test_axes_table_covers_every_axis(ask: Callable[..., Question]) -> None:
    """Each axis is described with its number of values."""
    space = build_space(*ask(16, 32, experts=8), Framework.MEGATRON)
    table = {row.axis: row for row in space.axes_table()}
    assert {"tp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch", "zero", "recompute"} <= set(table)
    assert table["tp"].values == 4
    assert "1, 2, 4, 8" in table["tp"].range_text
    assert all(row.values > 0 for row in table.values())


def test_sp_follows_tp_unless_fixed(ask: Callable[..., Question]) -> None:
    """Sequence parallelism is on exactly with tp > 1, can be turned off, and can be searched both ways."""
    question = ask(8, 8)
    default = build_space(*question, Framework.ANY).degrees
    assert ((default.sp == 1) == (default.tp > 1)).all()
    off = build_space(*question, Framework.ANY, SpaceOptions(fix={"sp": (0,)})).degrees
    assert not off.sp.any()
    both = build_space(*question, Framework.ANY, SpaceOptions(fix={"sp": (0, 1)})).degrees
    assert len(both) == 2 * (default.tp > 1).sum() + (default.tp == 1).sum()
