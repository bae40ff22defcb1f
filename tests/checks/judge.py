"""A second opinion on a layout's step: the trainers' programs, run rank by rank and chunk by chunk.

Of the cost model only what goes in is taken: the seconds of one micro-batch on a layer of each kind and at the two ends,
of a transfer between ranks, and of what a step spends outside its pipeline. How these make a step is worked out here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from checks.pipeline_programs import (
    Await,
    ChunkWork,
    Exchange,
    Job,
    Message,
    Run,
    accumulate,
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
from layoutopt.optimizer.cost.batch import Codebook, LayoutBatch
from layoutopt.optimizer.cost.components import Place as When
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checks.pipeline_programs import Instruction, Place
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.ends import EndUnit
    from layoutopt.optimizer.cost.units import MicroBatchUnits
    from layoutopt.optimizer.specs.layout import Layout, VirtualStage

    Program = Callable[[Job, int], list[Instruction]]

PROGRAMS: dict[Schedule, dict[str, Program]] = {
    Schedule.NONE: {"any": accumulate},
    Schedule.GPIPE: {"torch": gpipe},
    Schedule.ONE_F_ONE_B: {"megatron": one_f_one_b},
    Schedule.INTERLEAVED: {"megatron": megatron_interleaved, "torch": torch_interleaved},
    Schedule.ZB_H1: {"sail": zb_h1},
    Schedule.ZB_V: {"torch": zb_v},
    Schedule.DUALPIPE: {"deepseek": dualpipe},
    Schedule.DUALPIPE_V: {"torch": torch_dualpipe_v, "deepseek": dualpipe_v},
}
"""Who runs a schedule, and how."""

OF_TORCH = (Framework.TORCHTITAN, Framework.NEMO_AUTOMODEL)
OF_MEGATRON = (Framework.MEGATRON, Framework.MEGATRON_BRIDGE, Framework.META_INTERNAL)
TOLERANCE = 0.005
"""Relative difference up to which a price agrees with its judgement."""


def agrees(price_s: float, judged_s: float) -> bool:
    """Tell whether a price is within the tolerance of what was judged."""
    return abs(price_s - judged_s) <= TOLERANCE * judged_s


def judge(cost: CostModel, layout: Layout, framework: Framework = Framework.ANY) -> float:
    """Return the seconds of a layout's step under the trainer that runs it fastest.

    Raises ValueError where none runs it.
    """
    job, programs = (
        job_of(cost, layout),
        _programs(layout.schedule if layout.pp > 1 else Schedule.NONE, framework),
    )
    spans, refusals = list[float](), list[str]()
    for program in programs:
        try:
            spans.append(makespan_s(job, program))
        except ValueError as refusal:
            refusals.append(str(refusal))
    if not spans:
        raise ValueError("; ".join(refusals))
    return min(spans) + outside_s(cost, layout)


def _programs(schedule: Schedule, framework: Framework) -> list[Program]:
    runs = PROGRAMS[schedule]
    family = "torch" if framework in OF_TORCH else "megatron" if framework in OF_MEGATRON else ""
    family = "deepseek" if framework is Framework.DEEPSEEK_INTERNAL else family
    return [runs[family]] if family in runs else list(runs.values())


def makespan_s(job: Job, program: Program) -> float:
    """Return the seconds from the first instruction to the last."""
    ranks = [deque(program(job, rank)) for rank in range(job.pp)]
    clock, wire = [0.0] * job.pp, Wire(hop_s=job.hop_s)
    while any(ranks):
        before = sum(map(len, ranks)), len(wire.arrival_s)
        for rank, instructions in enumerate(ranks):
            while instructions and (end := wire.carry_out(rank, instructions[0], clock[rank])) is not None:
                clock[rank] = end
                instructions.popleft()
        if before == (sum(map(len, ranks)), len(wire.arrival_s)):
            raise RuntimeError("the ranks wait for one another")
    return max(clock)


@dataclass(slots=True, kw_only=True)
class Wire:
    """What is under way between ranks: from each rank to each other one tensor after the other, ``hop_s`` each."""

    hop_s: float
    arrival_s: dict[Message, float] = field(default_factory=dict)
    source: dict[Message, int] = field(default_factory=dict)
    free_s: dict[tuple[int, int], float] = field(default_factory=dict)

    def send(self, source: int, message: Message, now: float) -> float:
        """Put a message on its way, once, and return when it arrives."""
        if message not in self.arrival_s:
            link, self.source[message] = (source, message.rank), source
            self.free_s[link] = self.arrival_s[message] = max(now, self.free_s.get(link, 0.0)) + self.hop_s
        return self.arrival_s[message]

    def carry_out(self, rank: int, instruction: Instruction, now: float) -> float | None:
        """Return when an instruction that a rank begins now ends; None if something is missing yet."""
        match instruction:
            case Run(_, length, ships):
                for message in ships:
                    self.send(rank, message, now + length)
                return now + length
            case Await(message):
                return max(now, self.arrival_s[message]) if message in self.arrival_s else None
            case Exchange(sends, receives):
                through = [self.send(rank, message, now) for message in sends]
                if any(message not in self.arrival_s for message in receives):
                    return None
                return max([now, *through, *self._taken(receives, now)])
        raise TypeError(instruction)

    def _taken(self, receives: tuple[Message, ...], now: float) -> Iterator[float]:
        """Yield when each of a batch of receives is through; none begins before now."""
        taken: dict[int, int] = {}
        for message in receives:
            source = self.source[message]
            taken[source] = taken.get(source, 0) + 1
            yield max(self.arrival_s[message], now + taken[source] * self.hop_s)


def job_of(cost: CostModel, layout: Layout) -> Job:
    """Return the step of a layout with explicit stages."""
    entries = {(stage.rank, stage.chunk): stage for stage in layout.stages}
    ranks, two_way = range(layout.pp), layout.schedule is Schedule.DUALPIPE and layout.pp > 1
    units = cost.micro_batch_units(_row(layout))
    scale = cost.constants["time_scale"]
    work = {place: _chunk_work(cost, units, stage, scale) for place, stage in entries.items()}
    forth, back = [(rank, 0) for rank in ranks], [(rank, 1) for rank in reversed(ranks)]
    paths: tuple[tuple[Place, ...], ...] = (tuple((r, c) for c in range(layout.vp) for r in ranks),)
    if layout.schedule in (Schedule.ZB_V, Schedule.DUALPIPE_V):
        paths = ((*forth, *back),)
    if two_way:
        work |= {(layout.pp - 1 - rank, 1): own for (rank, _), own in work.items()}
        paths = (tuple(forth), tuple(back))
    hides = any(own.hidden_forward_s + own.hidden_backward_s > 0 for own in work.values())
    return Job(
        pp=layout.pp,
        micro_batches=layout.micro_batches // len(paths),
        work=work,
        paths=paths,
        hop_s=float(units.hop_s[0]) * scale if layout.pp > 1 else 0.0,
        overlap=cost.preset.pp_overlap,
        merges=hides and layout.schedule in (Schedule.NONE, Schedule.INTERLEAVED),
    )


def outside_s(cost: CostModel, layout: Layout) -> float:
    """Return the seconds of a step outside its pipeline."""
    ((_, parts),) = cost.parts(_row(layout))
    once = [part for name, part in parts.fixed_s.items() if name.record.place is When.OUTSIDE]
    return sum(float(part[0]) for part in once)


def _row(layout: Layout) -> LayoutBatch:
    """Return a layout as the cost model takes it: columns of one row."""
    codes = {name: np.zeros(1, dtype=np.int64) for name in ("recompute", "order", "schedule", "precision")}
    names = ("tp", "sp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch", "micro_batches", "zero")
    columns = {name: np.array([int(getattr(layout, name))]) for name in names}
    codebook = Codebook(
        recomputes=(layout.recompute,),
        orders=(layout.mesh_order,),
        schedules=(layout.schedule,),
        precisions=(layout.precision,),
        savers=(layout.savers,),
        switches=(layout.switches,),
    )
    return LayoutBatch(codebook=codebook, hsdp_shard=np.array([layout.hsdp_shard or 0]), **codes, **columns)


def _chunk_work(cost: CostModel, priced: MicroBatchUnits, stage: VirtualStage, scale: float) -> ChunkWork:
    """Add up the layers of a stage and the ends on it."""
    forward = dgrad = wgrad = hidden_forward = hidden_backward = 0.0
    own, again = _layers(cost, stage), _recomputed(cost, stage)
    for kind, (run, unit) in enumerate(zip(cost.model.runs, priced.units.blocks, strict=True)):
        row = priced.units.inverse[0]
        blocks, repeated = (layers.get(run.name, 0) for layers in (own, again))
        forward += blocks * (float(unit.forward_s[row]) + float(priced.exposed_forward_s[0, kind]))
        inputs = float(unit.backward_s[row]) - float(unit.wgrad_s[row])
        dgrad += blocks * (inputs + float(priced.exposed_backward_s[0, kind]))
        dgrad += repeated * sum(float(part[row]) for part in unit.recompute_parts_s.values())
        wgrad += blocks * float(unit.wgrad_s[row])
        hidden_forward += blocks * float(unit.hidden_forward_s[row])
        hidden_backward += blocks * float(unit.hidden_backward_s[row])
    for count, end in _ends(cost, priced, stage):
        whole, first, weights = (float(part[row]) for part in (end.total_s, end.forward_s, end.wgrad_s))
        forward, dgrad, wgrad = (
            forward + count * first,
            dgrad + count * (whole - first - weights),
            wgrad + count * weights,
        )
    return ChunkWork(
        forward_s=scale * forward,
        dgrad_s=scale * dgrad,
        wgrad_s=scale * wgrad,
        hidden_forward_s=scale * hidden_forward,
        hidden_backward_s=scale * hidden_backward,
    )


def _layers(cost: CostModel, stage: VirtualStage) -> dict[str, int]:
    """Return the layers of a stage by kind."""
    kinds = stage.kinds or {cost.model.runs[0].name: stage.layers}
    if sum(kinds.values()) != stage.layers or set(kinds) - {run.name for run in cost.model.runs}:
        raise ValueError(f"{stage.layers} layers of kinds {kinds}")
    return kinds


def _recomputed(cost: CostModel, stage: VirtualStage) -> dict[str, int]:
    """Return the recomputed layers of a stage by kind: as stated, else the chunk's first ones."""
    if stage.recomputed_kinds or not stage.recomputed:
        return stage.recomputed_kinds
    left, found = stage.recomputed, dict[str, int]()
    for run in cost.model.runs:
        found[run.name] = min(left, _layers(cost, stage).get(run.name, 0))
        left -= found[run.name]
    return found


def _ends(cost: CostModel, priced: MicroBatchUnits, stage: VirtualStage) -> list[tuple[int, EndUnit]]:
    """Return the ends on a stage, each with its number."""
    units = priced.units
    found: list[tuple[int, EndUnit]] = [(1, units.embedding)] if stage.embedding else []
    found += [(1, units.head)] if stage.head else []
    if units.mtp is not None and stage.head:
        found.append((cost.model.mtp_layers, units.mtp))
    return found
