"""Launch switches as axes: what the search chooses is the best of all choices together, and it is proven."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.enumeration import solve_stages

from layoutopt.optimizer.cost.cost_model import View
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.switches import BY_NAME
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.verify.layout import find_tuple
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace

QUESTIONS, OPENED = 64, 12
NOTHING, WHOLE = Recompute(), Recompute(granularity=Granularity.FULL)
ACTIVATION = Recompute(granularity=Granularity.SELECTIVE, modules=("moe_act",))


def small_question(number: int) -> Question:
    """Return a random question of few layers and GPUs with switches open."""
    rng = np.random.default_rng(number)

    def pick(*values: int) -> int:
        return int(rng.choice(values))

    experts, hidden = pick(8, 16), pick(1024, 2048, 4096)
    moe = MoeSpec(experts=experts, top_k=pick(2, 4), ffn=pick(512, 1024), shared_ffn=pick(0, 1024))
    model = ModelSpec(
        name="small",
        runs=(Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=pick(4, 5)),),
        hidden=hidden,
        heads=16,
        kv_heads=8,
        head_dim=hidden // 16,
        vocab=32000,
        moe=moe,
    )
    training = TrainingSpec(
        sequence_length=pick(1024, 4096), global_batch=pick(32, 64), precision=Precision.BF16
    )
    cluster = load_cluster(f"{rng.choice(['h100', 'a100', 'b200', 'h800'])}x16")
    fix = {
        "tp": (pick(1, 2),), "cp": (1, 2) if number % 3 == 0 else (1,), "pp": (1, 2), "vp": (1, 2), "zero": (1,),
        "hsdp_shard": (0,), "etp": (1,), "ep": (1, pick(2, 4, 8)), "micro_batch": (pick(1, 2),),
        "mesh_order": ("tp-cp-ep-dp-pp",),
    }  # fmt: skip
    space = SpaceOptions(fix=fix, recomputes=(WHOLE, (NOTHING, ACTIVATION)[number % 2]))
    options = SolveOptions(space=space, top=1, framework=(Framework.MEGATRON, Framework.ANY)[number % 4 == 3])
    return Question(workload=Workload(model=model, training=training), cluster=cluster, options=options)


def best_of_all(source: CostedSpace) -> float:
    """Price every tuple with every choice of stages."""
    batch, _ = source.expand(source.degrees)
    terms = source.terms(batch)
    best = np.inf
    for row in range(len(batch)):
        found = solve_stages(terms.take(np.array([row])), source.counts, source.rule, below_s=best)
        best = best if found is None else found.step_time_s
    return best


@pytest.mark.parametrize("number", range(QUESTIONS))
def test_search_agrees_with_joint_enumeration(number: int) -> None:
    """The answer with switches open is the fastest of all tuples, all switches and all stages, and says so."""
    question = small_question(number)
    plan = solve_layout(question.workload, question.cluster, question.options)
    best = best_of_all(question.costed_space())
    assert plan.estimate is not None
    assert plan.estimate.step_time_s == pytest.approx(best, rel=1e-9)
    assert plan.status == "optimal"


def opened_question(number: int) -> Question:
    """Return a small question in which what is searched on request is open: torchtitan's switches, kinds of context
    parallelism."""
    question = small_question(number)
    fix: dict[str, tuple[int | str, ...]] = {**question.options.space.fix}
    fix |= {"cp": (1, 2), "cp_kind": ("p2p", "all_gather", "a2a", "a2a+p2p"), "ep_overlap": ("0",)}
    framework = Framework.MEGATRON
    if number % 2:
        for name in ("cp_kind", "ep_overlap"):
            del fix[name]
        fix |= {"cp": (1,), "tp": (2,), "zero": (2, 3), "compiled": ("0", "1"), "tp_overlap": ("0", "1")}
        framework = Framework.TORCHTITAN
    space = replace(question.options.space, fix=fix, recomputes=None if number % 2 else (WHOLE, NOTHING))
    return replace(question, options=replace(question.options, space=space, framework=framework))


@pytest.mark.parametrize("number", range(OPENED))
def test_search_agrees_where_more_is_opened(number: int) -> None:
    """Chunks of the loss, compiled kernels, asynchronous tensor parallelism, kinds of context parallelism: all proven."""
    question = opened_question(number)
    source = question.costed_space()
    assert {
        "loss_chunks",
        "compiled",
        "tp_overlap",
    } <= source.space.axes.switch_values.keys() or not number % 2
    assert "cp_kind" in source.space.axes.switch_values or number % 2
    plan = solve_layout(question.workload, question.cluster, question.options)
    assert plan.estimate is not None
    assert plan.estimate.step_time_s == pytest.approx(best_of_all(source), rel=1e-9)


def test_small_questions_open_switches() -> None:
    """Most of those questions have several sets of switches, and their answers differ in them."""
    sets = [len(small_question(number).costed_space().space.axes.switches) for number in range(8)]
    assert min(sets) > 4


@pytest.mark.parametrize("number", range(8))
def test_terms_of_any_switches_are_a_floor(number: int) -> None:
    """No choice of switches costs less in any term than rows that have all of them at once."""
    source = small_question(number).costed_space()
    batch, _ = source.expand(source.degrees)
    terms, least = source.terms(batch), source.cost.terms_in(batch, View(any_switches=True))
    for field in fields(terms):
        ours, theirs = (np.asarray(getattr(one, field.name), dtype=np.float64) for one in (least, terms))
        sign = -1 if field.name in ("capacity_bytes", "may_recompute") else 1
        assert (sign * ours <= sign * theirs + 1e-12 * np.abs(theirs)).all(), field.name


LONG_QUESTIONS = {
    "heads that don't divide": ("llama3-8b", Framework.MEGATRON, 131072),
    "repeated heads": ("llama3-8b", Framework.ANY, 32768),
    "latent heads beside experts": ("deepseek-v2", Framework.MEGATRON, 32768),
    "windows and experts": ("gpt-oss-120b", Framework.MEGATRON, 16384),
    "linear layers among others": ("qwen3-next-80b-a3b", Framework.ANY, 32768),
}


@pytest.mark.parametrize("name", LONG_QUESTIONS)
def test_terms_of_any_kind_of_context_parallelism_are_a_floor(name: str) -> None:
    """Attention and its traffic together take no less than where every kind that the rules allow is open at once."""
    model, framework, length = LONG_QUESTIONS[name]
    workload = override_training(load_workload(model), sequence_length=length, global_batch=64)
    fix = {
        "tp": (1, 2, 8),
        "cp": (1, 2, 8, 16),
        "pp": (1, 2),
        "vp": (1, 2),
        "zero": (1,),
        "micro_batch": (1,),
        "etp": (1,),
    }
    space = SpaceOptions(
        fix=fix | {"ep": (1, 8), "mesh_order": ("tp-cp-ep-dp-pp",)}, recomputes=(NOTHING, WHOLE)
    )
    options = SolveOptions(space=space, top=1, framework=framework)
    source = Question(workload=workload, cluster=load_cluster("h100x64"), options=options).costed_space()
    batch, _ = source.expand(source.degrees)
    book = source.space.modifiers.codebook
    kinds = np.array([str(book.switches_of(code).cp_kind) for code in range(len(book.precisions))])
    used = set(kinds[batch.precision][batch.cp > 1].tolist())
    assert len(used) > 1
    terms, least = source.terms(batch), source.cost.terms_in(batch, View(any_switches=True))
    relaxed = source.relaxed(batch)
    for field in fields(terms):
        theirs = np.asarray(getattr(terms, field.name), dtype=np.float64)
        sign = -1 if field.name in ("capacity_bytes", "may_recompute") else 1
        for one in (least, relaxed):
            ours = np.asarray(getattr(one, field.name), dtype=np.float64)
            assert (sign * ours <= sign * theirs + 1e-12 * np.abs(theirs)).all(), field.name


def test_undominated_choices_hold_the_best() -> None:
    """What a row's dominated switches reach, another choice of the row reaches too."""
    source = small_question(1).costed_space()
    rows = source.degrees.take(np.arange(min(8, len(source.degrees))))
    for step in source.refinements[:-1]:
        rows, _ = step.expand(rows)
    kept, owner = source.refinements[-1].expand(rows)
    every, all_owners = source.space.modifiers.expand(rows, over=("switches",))
    assert 0 < len(kept) < len(every)
    assert set(owner.tolist()) == set(all_owners.tolist())


@pytest.mark.parametrize(("model", "cluster"), [("qwen3-30b-a3b", "h100x16")])
def test_megatron_chooses_switches(model: str, cluster: str) -> None:
    """A mixture of experts' answer states every declared switch that acts, and stating them keeps its price."""
    workload, machine = load_workload(model), load_cluster(cluster)
    options = SolveOptions(space=SpaceOptions(fix={"tp": (1,), "pp": (1,), "ep": (8, 16)}), top=1)
    plan = solve_layout(workload, machine, options)
    assert plan.layout is not None
    assert plan.estimate is not None
    stated = plan.layout.switches.stated()
    assert {"ep_overlap", "dispatcher", "cuda_graph"} <= stated.keys()
    assert all(BY_NAME[name].acts(plan.layout, workload.model) for name in stated)
    for name, value in stated.items():
        fixed = replace(options, space=replace(options.space, fix={**options.space.fix, name: (str(value),)}))
        if not isinstance(value, bool):
            again = solve_layout(workload, machine, fixed)
            assert again.estimate is not None
            assert again.estimate.step_time_s == pytest.approx(plan.estimate.step_time_s, rel=1e-9)


@pytest.mark.parametrize(("degrees", "acts"), [((1, 0), False), ((2, 1), True)], ids=["tp 1", "tp 2"])
def test_answers_state_only_switches_that_act(degrees: tuple[int, int], acts: bool) -> None:
    """Overlap of tensor-parallel traffic is stated where there is some; either answer is found again and costs the same."""
    workload, machine = load_workload("llama3-8b"), load_cluster("h100x8")
    space = SpaceOptions(fix={"tp": (degrees[0],), "sp": (degrees[1],), "pp": (1,), "tp_overlap": ("1",)})
    options = SolveOptions(space=space, top=1)
    plan = solve_layout(workload, machine, options)
    assert plan.layout is not None
    assert plan.estimate is not None
    assert ("tp_overlap" in plan.layout.switches.stated()) is acts
    said = replace(plan.layout, switches=replace(plan.layout.switches, tp_overlap=True))
    judged = judge_layout(workload, machine, said)
    assert judged.estimate is not None
    assert judged.estimate.step_time_s == plan.estimate.step_time_s
    source = Question(workload=workload, cluster=machine, options=options).costed_space()
    rows = [find_tuple(source, layout).table().tolist() for layout in (plan.layout, said)]
    assert len(rows[0]) == 1
    assert rows[0] == rows[1]
