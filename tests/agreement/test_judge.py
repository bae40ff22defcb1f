"""The judge of prices: its programs against published counts and tables, its clock against steps drawn by hand."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks import judge as judge_module
from checks import pipeline_programs
from checks.judge import PROGRAMS, agrees, job_of, judge, makespan_s, outside_s
from checks.pipeline_programs import (
    ChunkWork,
    Exchange,
    Job,
    Run,
    dualpipe,
    dualpipe_v,
    gpipe,
    megatron_interleaved,
    one_f_one_b,
    torch_dualpipe_v,
    torch_interleaved,
    zb_h1,
    zb_v,
)

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from checks.pipeline_programs import Instruction

    from layoutopt.optimizer.cost.cost_model import CostModel

    Program = Callable[[Job, int], list[Instruction]]

EVEN = ChunkWork(forward_s=1.0, dgrad_s=1.0, wgrad_s=1.0)
V_SHAPED = (zb_v, dualpipe_v, torch_dualpipe_v)


def even_job(
    program: Program, pp: int, m: int, vp: int = 1, work: ChunkWork = EVEN, hop_s: float = 0.0
) -> Job:
    """A job of equal chunks on the places that a program uses."""
    ranks = range(pp)
    chunks = 2 if program in (*V_SHAPED, dualpipe) else vp
    forth, back = tuple((rank, 0) for rank in ranks), tuple((rank, 1) for rank in reversed(ranks))
    paths: tuple[tuple[tuple[int, int], ...], ...] = (tuple((r, c) for c in range(chunks) for r in ranks),)
    if program in V_SHAPED:
        paths = ((*forth, *back),)
    if program is dualpipe:
        paths, m = (forth, back), m // 2
    works = {(rank, chunk): work for rank in ranks for chunk in range(chunks)}
    return Job(pp=pp, micro_batches=m, work=works, paths=paths, hop_s=hop_s)


@pytest.mark.parametrize(
    ("program", "pp", "vp", "m", "bubble"),
    [
        # Narayanan et al. 2021, sections 2.2.1 and 2.2.2: (p-1)(f+b), and a v-th of it.
        (gpipe, 4, 1, 8, 9.0),
        (one_f_one_b, 4, 1, 8, 9.0),
        (one_f_one_b, 8, 1, 32, 21.0),
        (megatron_interleaved, 4, 2, 16, 9.0),
        (torch_interleaved, 4, 2, 16, 9.0),
        (megatron_interleaved, 8, 4, 32, 21.0),
        # Qi et al. 2024, table 1: (p-1)(F+B-W).
        (zb_h1, 4, 1, 8, 3.0),
        (zb_h1, 8, 1, 24, 7.0),
    ],
)
def test_published_bubbles(program: Program, pp: int, vp: int, m: int, bubble: float) -> None:
    """Equal chunks leave the published bubble beyond the work of a rank."""
    assert makespan_s(even_job(program, pp, m, vp), program) == pytest.approx(m * vp * 3.0 + bubble)


def test_dualpipe_keeps_within_its_published_bubble() -> None:
    """The README of deepseek-ai/DualPipe: (p/2-1)(F&B + B - 3W), and F less as the middle runs its first two apart."""
    job = even_job(dualpipe, 8, 32)
    assert makespan_s(job, dualpipe) == pytest.approx(32 * 3.0 + 3 * (3.0 + 2.0 - 3.0), abs=1.0)


def test_a_step_drawn_by_hand() -> None:
    """Two ranks of 1 and 2 s forward, 2 and 1 s backward, three micro-batches, transfers of 0.5 s.

    Rank 0: F0 0-1, sent till 1.5, F1 1.5-2.5; its transfer ends, and the gradient of 0 comes, at 5.0; B0 5-7, sent and
    received nothing, F2 7-8; gradient of 1 at 9; B1 9-11; gradient of 2 at 12.5; B2 to 14.5.
    Rank 1: F0 1.5-3.5, B0 3.5-4.5, both ways till 5.0, F1 5-7, B1 7-8, F2 there at 8.5 with the gradient gone:
    F2 8.5-10.5, B2 10.5-11.5, sent till 12.
    """
    work = {(0, 0): ChunkWork(forward_s=1.0, dgrad_s=1.0, wgrad_s=1.0)}
    work[1, 0] = ChunkWork(forward_s=2.0, dgrad_s=0.5, wgrad_s=0.5)
    job = Job(pp=2, micro_batches=3, work=work, paths=(((0, 0), (1, 0)),), hop_s=0.5)
    assert makespan_s(job, one_f_one_b) == pytest.approx(14.0)


def test_unequal_chunks_of_a_rank_wait_for_each_other() -> None:
    """Chunks of 1 and 2 s on rank 0 and 2 and 1 s on rank 1 are slower than 1.5 s each, though ranks do as much."""

    def span(sizes: tuple[float, ...]) -> float:
        works = {
            (rank, chunk): ChunkWork(forward_s=sizes[2 * chunk + rank], dgrad_s=0.0, wgrad_s=0.0)
            for rank in range(2)
            for chunk in range(2)
        }
        path = tuple((rank, chunk) for chunk in range(2) for rank in range(2))
        return makespan_s(Job(pp=2, micro_batches=8, work=works, paths=(path,)), megatron_interleaved)

    assert span((1.5, 1.5, 1.5, 1.5)) == pytest.approx(8 * 3.0 + 1.5)
    assert span((1.0, 2.0, 2.0, 1.0)) > 8 * 3.0 + 4.0


TABLES: list[tuple[Program, str, str]] = [
    (
        torch_interleaved,
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3",
    ),
    (
        zb_v,
        "F0.0 F0.1 F0.2 F3.0 D3.0 W3.0 F3.1 D3.1 W3.1 F0.3 D0.0 W0.0 F3.2 D3.2 W3.2 D0.1 W0.1 F3.3 D3.3 W3.3 D0.2 W0.2 "
        "D0.3 W0.3",
        "F1.0 F2.0 F1.1 F2.1 D2.0 W2.0 F1.2 D1.0 W1.0 F2.2 D2.1 W2.1 F1.3 D1.1 W1.1 F2.3 D2.2 W2.2 D1.2 D2.3 D1.3 W1.2 "
        "W2.3 W1.3",
    ),
    (
        torch_dualpipe_v,
        "F0.0 F0.1 F0.2 F3.0 D3.0 W3.0 F3.1 F0.3+B3.1 F3.2+B0.0 B3.2 F3.3+B0.1 B3.3 D0.2 W0.2 D0.3 W0.3",
        "F1.0 F2.0 F1.1 F2.1 F1.2 B2.0 F2.2+B1.0 F1.3+B2.1 F2.3+B1.1 B2.2 B1.2 D2.3 D1.3 W2.3 W1.3",
    ),
]
"""What PyTorch 2.13 makes of two ranks with two chunks and four micro-batches: operation, stage, micro-batch."""


@pytest.mark.parametrize(("program", "first", "second"), TABLES)
def test_orders_are_those_of_pytorchs_own_tables(program: Program, first: str, second: str) -> None:
    """Read out of torch.distributed.pipelining, where 306 tables of 2 to 8 ranks were the same as these programs'."""
    job = even_job(program, 2, 4, 2)
    (path,) = job.paths
    for rank, table in enumerate((first, second)):
        ops = [step.op for step in program(job, rank) if isinstance(step, Run)]
        names = []
        for op in ops:
            beside = f"+B{path.index((rank, op.partner[0]))}.{op.partner[1]}" if op.partner else ""
            names.append(f"{op.kind[0]}{path.index((rank, op.chunk))}.{op.micro_batch}{beside}")
        assert names == table.split()


ALL = [
    (program, vp)
    for runs in PROGRAMS.values()
    for program in runs.values()
    for vp in ((2, 3) if program in (megatron_interleaved, torch_interleaved) else (1,))
    if program is not pipeline_programs.accumulate
]


@pytest.mark.parametrize(("program", "vp"), ALL)
@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (6, 18), (8, 16)])
@pytest.mark.parametrize("overlap", [True, False])
def test_programs_are_whole(program: Program, vp: int, pp: int, m: int, overlap: bool) -> None:
    """Every rank does all its work, and every message that is sent is waited for, once each."""
    job = replace(even_job(program, pp, m, vp, hop_s=0.1), overlap=overlap)
    sent, taken = Counter[object](), Counter[object]()
    for rank in range(pp):
        instructions = program(job, rank)
        length = sum(step.seconds for step in instructions if isinstance(step, Run))
        assert length == pytest.approx(3.0 * job.micro_batches * job.chunks)
        for step in instructions:
            if isinstance(step, Run):
                sent.update(step.ships)
            elif isinstance(step, Exchange):
                sent.update(step.sends)
                taken.update(set(step.receives) - set(taken))
            else:
                taken.update({step.message} - set(taken))
    assert sent == taken
    assert set(sent.values()) == {1}
    assert makespan_s(job, program) > 3.0 * job.micro_batches * job.chunks


def test_counts_that_no_trainer_runs_are_refused() -> None:
    """Megatron-LM wants whole groups, PyTorch whole rounds, DualPipe two micro-batches per rank."""
    for program, pp, m in ((megatron_interleaved, 4, 6), (torch_interleaved, 4, 9), (dualpipe_v, 4, 7)):
        with pytest.raises(ValueError, match="micro-batches"):
            makespan_s(even_job(program, pp, m, 2), program)
    with pytest.raises(ValueError, match="even number of ranks"):
        makespan_s(even_job(dualpipe, 3, 12), dualpipe)


@pytest.fixture(scope="module")
def cost() -> CostModel:
    """Llama 3 8B on H100s, with a vocabulary so small that the ends don't count."""
    workload = load_workload("llama3-8b")
    model = replace(workload.model, vocab=128)
    return build_cost_model(model, workload.training, load_cluster("h100-256"), framework=Framework.ANY)


def even_layout(cost: CostModel, schedule: Schedule, pp: int, vp: int, m: int) -> Layout:
    """A layout whose virtual stages hold equally many layers."""
    size = cost.model.runs[0].count // (pp * vp)
    stages = tuple(
        VirtualStage(
            rank=entry % pp,
            chunk=entry // pp,
            layers=size,
            kinds={cost.model.runs[0].name: size},
            embedding=entry == 0,
            head=entry == pp * vp - 1,
        )
        for entry in range(pp * vp)
    )
    return Layout(
        tp=2, sp=True, pp=pp, vp=vp, dp=1, micro_batches=m, schedule=schedule, stages=stages,
        precision=cost.training.precision,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "vp"), [(Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.INTERLEAVED, 4)]
)
@pytest.mark.parametrize("error", [-0.01, 0.01])
def test_a_planted_chunk_error_of_one_percent_fails(
    cost: CostModel, schedule: Schedule, vp: int, error: float
) -> None:
    """A price that takes the slowest rank's chunks for 1% longer than they are, or all for shorter, does not agree."""
    layout = even_layout(cost, schedule, 4, vp, 64)
    job, program = job_of(cost, layout), next(iter(PROGRAMS[schedule].values()))
    judged = judge(cost, layout, Framework.MEGATRON)
    slowest = max(job.work, key=lambda place: job.work[place].forward_s)[0]
    wrong = [place for place in job.work if error < 0 or place[0] == slowest]
    work = {place: longer(own, 1.0 + error if place in wrong else 1.0) for place, own in job.work.items()}
    mispriced = makespan_s(replace(job, work=work), program) + outside_s(cost, layout)
    assert agrees(judged, judged)
    assert not agrees(mispriced, judged)


def longer(work: ChunkWork, factor: float) -> ChunkWork:
    """A chunk's work with every time multiplied."""
    forward_s, dgrad_s, wgrad_s = (factor * part for part in (work.forward_s, work.dgrad_s, work.wgrad_s))
    return ChunkWork(forward_s=forward_s, dgrad_s=dgrad_s, wgrad_s=wgrad_s)


def test_an_even_step_is_priced_as_judged(cost: CostModel) -> None:
    """Where the closed form is exact, the price is the judged step."""
    layout = even_layout(cost, Schedule.INTERLEAVED, 4, 2, 64)
    assert agrees(estimate(cost, layout).step_time_s, judge(cost, layout))


def test_recomputed_layers_and_ends_are_in_the_work(cost: CostModel) -> None:
    """Recomputation lengthens the backward by a forward; embedding and head lie on their stages."""
    layout = even_layout(cost, Schedule.ONE_F_ONE_B, 4, 1, 8)
    again = replace(layout, stages=tuple(replace(s, recomputed=s.layers) for s in layout.stages))
    plain, repeated = job_of(cost, layout).work[1, 0], job_of(cost, again).work[1, 0]
    assert repeated.forward_s == plain.forward_s
    assert repeated.dgrad_s - plain.dgrad_s == pytest.approx(plain.forward_s, rel=0.05)
    with_ends = job_of(replace(cost, model=replace(cost.model, vocab=128256)), layout).work
    assert with_ends[3, 0].forward_s > 1.2 * with_ends[1, 0].forward_s
    assert np.isclose(with_ends[1, 0].forward_s, with_ends[2, 0].forward_s)


def test_the_judge_shares_no_pricing_with_the_product() -> None:
    """Neither file imports the product's simulation, schedules, bubbles or stages' prices."""
    allowed = {"cost.batch", "cost.components", "cost.cost_model", "cost.ends", "cost.estimate", "cost.units"}
    allowed |= {"frameworks.registry", "specs.layout", "specs.vocabulary"}
    for module in (judge_module, pipeline_programs):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        product = {
            name.removeprefix("layoutopt.optimizer.") for name in named if name and "layoutopt" in name
        }
        assert product <= allowed
