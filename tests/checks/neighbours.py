"""Layouts that differ from an answer in a few random axes: none that the space holds may be faster."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from checks.agreement import pick
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute, Switches
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import CpComm, CudaGraph, Dispatcher, Granularity, Schedule, Verdict

if TYPE_CHECKING:
    import numpy as np

    from checks.agreement import Question
    from layoutopt.optimizer.solve.plan import Judgement
    from layoutopt.optimizer.specs.layout import Layout

DEGREES = [1, 2, 3, 4, 6, 8, 12, 16, 24]
MODULES = ["core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj"]
AXES: dict[str, list[Any]] = {
    **dict.fromkeys(("tp", "pp", "vp", "cp", "ep", "etp"), DEGREES),
    "zero": [0, 1, 2, 3],
    "hsdp_shard": [None, 2, 4, 8],
    "micro_batch": [1, 2, 4, 8, 16],
    "sp": [True, False],
    "mesh_order": ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"],
    "schedule": [None, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED],
    "recompute": [
        Recompute(),
        Recompute(granularity=Granularity.FULL),
        *(Recompute(granularity=Granularity.SELECTIVE, modules=(name,)) for name in MODULES),
    ],
    "recompute_layers": [None, 1, 2, 3],
}
SWITCHES: dict[str, list[Any]] = {
    **{name: [None, True, False] for name in ("ep_overlap", "delay_wgrad", "shared_expert_overlap")},
    "dispatcher": [None, *Dispatcher],
    **{name: [None, True, False] for name in ("tp_overlap", "dp_overlap", "param_overlap", "compiled")},
    "cp_kind": [None, *CpComm],
    "cuda_graph": [None, *CudaGraph],
    "loss_chunks": [None, 1, 8],
}
"""Every launch switch that changes no numbers."""


def open_form(layout: Layout) -> PartialLayout:
    """State a layout without what follows from the rest: ranks, micro-batches, stages."""
    names = {item.name for item in fields(PartialLayout)} - {"stages", "dp", "micro_batches"}
    stated = {item.name: getattr(layout, item.name) for item in fields(layout) if item.name in names}
    return PartialLayout(**stated)


def neighbour(rng: np.random.Generator, layout: PartialLayout) -> PartialLayout:
    """Change one to four axes or switches."""
    changed: dict[str, Any] = {}
    for _ in range(int(rng.integers(1, 5))):
        name = pick(rng, [*AXES, *SWITCHES])
        if name in AXES:
            changed[name] = pick(rng, AXES[name])
        else:
            switches = changed.get("switches", layout.switches) or Switches()
            changed["switches"] = replace(switches, **{name: pick(rng, SWITCHES[name])})
    return replace(layout, **changed)


def judged_in_space(question: Question, layout: PartialLayout) -> Judgement | None:
    """Judge a layout; None where it doesn't run, doesn't fit, or lies outside of what is searched."""
    trainer = question.trainer
    try:
        judged = judge_layout(
            question.workload,
            question.cluster,
            layout,
            framework=trainer.framework,
            software=trainer.release,
        )
    except InputError:
        return None
    runs = judged.verdict in (Verdict.FITS, Verdict.BORDERLINE)
    # A pipeline that is never full is not searched, nor is tensor parallelism between NVLink domains.
    searched = judged.layout.micro_batches >= judged.layout.pp and judged.layout.tp <= 8
    return judged if runs and searched else None


def faster_neighbour(
    rng: np.random.Generator, question: Question, best: Layout, step_s: float, number: int
) -> Judgement | None:
    """Return the first of random neighbours, and of random layouts, that is faster than the best; None if there is none."""
    for _ in range(number):
        start = open_form(best) if rng.random() < 0.6 else PartialLayout()
        judged = judged_in_space(question, neighbour(rng, start))
        if judged and judged.estimate and judged.estimate.step_time_s < step_s * (1 - 1e-9):
            return judged
    return None
