"""Passes that run as one to hide the exchange of experts: priced, walked and simulated as Megatron-LM runs them."""

from __future__ import annotations

import numpy as np
import pytest
from checks.judge import agrees, judge, makespan_s
from checks.judged_answers import Asked
from checks.pipeline_programs import ChunkWork, Job, megatron_interleaved

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.makespan import Durations, step_graph
from layoutopt.optimizer.cost.orders import HopOverlap, Kind, Pipeline, interleaved_warm_up
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.simulate.engine import StageWork, simulate
from layoutopt.optimizer.simulate.layouts import simulate_priced
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.verify.walk import longest_path
from layoutopt.optimizer.specs.layout_file import read_layout_text
from layoutopt.optimizer.specs.vocabulary import Schedule


def job(times: np.ndarray, m: int, hop_s: float) -> Job:
    """The judge's job of chunks that take ``times`` (3, pp, vp): forward, gradients of inputs and of weights."""
    _, pp, vp = times.shape
    places = [(rank, chunk) for chunk in range(vp) for rank in range(pp)]
    work = {
        place: ChunkWork(forward_s=float(f), dgrad_s=float(d), wgrad_s=float(w))
        for place, (f, d, w) in ((place, times[:, *place]) for place in places)
    }
    return Job(pp=pp, micro_batches=m, work=work, paths=(tuple(places),), hop_s=hop_s, merges=True)


@pytest.mark.parametrize("seed", range(40))
def test_merged_passes_take_what_the_trainer_takes(seed: int) -> None:
    """Chunks of any lengths, two ranks to five: the judge, the priced step, the verifier's walk and the simulation agree."""
    rng = np.random.default_rng(seed)
    pp, vp = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    m, hop_s = pp * int(rng.integers(1, 7)), float(rng.choice([0.0, 0.1, 0.3]))
    times = rng.random((3, pp, vp)) + 0.2
    pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=pp, vp=vp, micro_batches=m, merges=True)
    by_kind = np.zeros((len(Kind), pp, vp))
    by_kind[Kind.FORWARD], by_kind[Kind.BACKWARD] = times[0], times[1] + times[2]
    durations = Durations(by_kind=by_kind[..., None], hop_s=np.array([hop_s]))
    priced = step_graph(pipeline, overlap=HopOverlap.MERGED).makespan_s(durations)[0]
    walked, path = longest_path(pipeline, by_kind, hop_s, HopOverlap.MERGED)
    work = StageWork(
        forward_s=times[0],
        dgrad_s=times[1],
        wgrad_s=times[2],
        hop_s=np.full(pp, hop_s),
        hops_overlap=HopOverlap.MERGED,
    )
    judged = makespan_s(job(times, m, hop_s), megatron_interleaved)
    assert priced == pytest.approx(judged, rel=1e-12)
    assert walked == pytest.approx(judged, rel=1e-12)
    assert path.seconds(durations)[0] == pytest.approx(judged, rel=1e-12)
    assert simulate(pipeline, work).makespan_s == pytest.approx(judged, rel=1e-12)


@pytest.mark.parametrize(("pp", "vp", "m"), [(4, 2, 16), (8, 3, 64), (2, 4, 8)])
def test_equal_chunks_by_hand(pp: int, vp: int, m: int) -> None:
    """Without transfers the pipeline fills and drains as that of passes one after the other: three for each rank but one."""
    times = np.ones((3, pp, vp))
    assert makespan_s(job(times, m, 0.0), megatron_interleaved) == 3 * m * vp + 3 * (pp - 1)
    pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=pp, vp=vp, micro_batches=m, merges=True)
    plain = Pipeline(schedule=Schedule.INTERLEAVED, pp=pp, vp=vp, micro_batches=m)
    assert interleaved_warm_up(pipeline, 0) == interleaved_warm_up(plain, 0) + 1


@pytest.mark.parametrize("merges", [True, False])
def test_a_mixture_is_priced_as_judged(merges: bool) -> None:
    """Qwen3-30B-A3B on two stages of eight chunks: transfers between merged passes show, as nothing stands between them."""
    asked = Asked.named("qwen3-30b-a3b", "h100-256")
    text = f"tp=1,pp=2,vp=8,ep=8,dp=128,mb=1,zero=1,recompute=core_attn,ep_overlap={merges}".lower()
    found = judge_layout(asked.workload, asked.cluster, read_layout_text(text), framework=Framework.MEGATRON)
    assert found.estimate is not None and found.broken == ()
    stated_s = found.estimate.step_time_s
    assert agrees(stated_s, judge(asked.cost, found.layout, Framework.MEGATRON))
    assert agrees(stated_s, simulate_priced(asked.cost, found.layout).simulated_step_s)
    terms = asked.cost.terms(batch_of_one(found.layout))
    assert bool(terms.hops_overlap[0] == HopOverlap.MERGED) is merges
