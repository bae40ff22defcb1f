"""What of a layout's price depends on its whole row: data parallelism, pipeline, optimizer, memory.

Units of one micro-batch (``units``) and this make up the parts of stage terms (``term_parts``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.data_parallel import step_exposed_s
from layoutopt.optimizer.cost.frozen import trained_parts
from layoutopt.optimizer.cost.matrices import other_parameters
from layoutopt.optimizer.cost.memory import MemoryContext, memory_parts
from layoutopt.optimizer.cost.optimizer_step import OptimizerStep
from layoutopt.optimizer.cost.parameters import block_parameters
from layoutopt.optimizer.cost.pipeline import bubble, hops_overlap, lone_share, schedule_of, transfers_s
from layoutopt.optimizer.cost.schedules import head_in_flight, in_flight
from layoutopt.optimizer.cost.stage_parameters import mean_parameters, shared_out
from layoutopt.optimizer.cost.states import in_torch_pipeline, on_rank, owned_parameters
from layoutopt.optimizer.cost.synchronization import slowest_share
from layoutopt.optimizer.cost.term_parts import OperationTimes, TermParts, placed
from layoutopt.optimizer.cost.units import fsdp_s
from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Granularity, Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.cost_model import CostModel, View
    from layoutopt.optimizer.cost.data_parallel import DpContext
    from layoutopt.optimizer.cost.frozen import TrainedParts
    from layoutopt.optimizer.cost.launch_switches import RowSwitches
    from layoutopt.optimizer.cost.pipeline import MeanStage
    from layoutopt.optimizer.cost.schedules import ScheduleModel
    from layoutopt.optimizer.cost.states import RankParameters
    from layoutopt.optimizer.cost.term_parts import Times
    from layoutopt.optimizer.cost.units import Units
    from layoutopt.optimizer.topology.mesh import MeshGroups

    FloatArray = NDArray[np.float64]

ANY_COVER = 1e3
"""More compute to hide traffic than any launch switches leave, over that of the cheapest ones."""

OFFLOADED = ("kept_bytes", "cover_forward_s", "cover_backward_s")
"""What the time to offload a block's activations depends on."""


def held_parameters(cost: CostModel, batch: LayoutBatch) -> list[RankParameters]:
    """Return the parameters of one block of each kind on a rank, (n,) each."""
    return [
        on_rank(cost.model, block_parameters(cost.model, run), batch, cost.preset) for run in cost.model.runs
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Rows (n,) that share mesh order, schedule, precision and memory savers, with what they are put together from.

    ``dp`` None leaves data-parallel traffic and buffers out; ``held`` are a block's parameters on a rank, by kind.
    """

    cost: CostModel
    batch: LayoutBatch
    units: Units
    dp: DpContext | None
    groups: MeshGroups
    view: View
    held: list[RankParameters]
    switches: RowSwitches

    @property
    def schedule(self) -> ScheduleModel:
        """The schedule that all rows share."""
        return schedule_of(self.batch)

    def parts(self) -> TermParts:
        """Return all components of the rows' stage terms."""
        batch, units, view, schedule = self.batch, self.units, self.view, self.schedule
        exposed = self.beside()
        if self.cost.model.is_moe and self.switches.overlap[EpOverlap.BATCH].any():
            exposed = {Component.EP: self._alone_s()} | exposed
        layer_s = units.parts_of("parts_s")
        for part, both in exposed.items():
            layer_s[part] = layer_s.get(part, 0.0) + np.add(*both)
        memory = memory_parts(self._memory_context(), working_set=self.dp is not None)
        stage = units.mean_stage(self.cost.counts / batch.pp[:, None])
        weight, lone_s = bubble(batch, stage, least=view.least or view.any_switches)
        embedding = {part: value[units.inverse] for part, value in units.embedding.parts_s.items()}
        # Of a stage with copies, each rank works through its share of the micro-batches.
        share = 1.0 / schedule.parameter_copies
        first_s, last_s = placed(embedding, self._last_parts(), folded=schedule.folded)
        ranks, chunks = schedule.distinct(batch.pp, batch.vp)
        full = np.array([r.granularity is Granularity.FULL for r in batch.codebook.recomputes])
        parts = TermParts(
            batch=batch,
            ranks=np.asarray(ranks),
            chunks=np.asarray(chunks),
            folded=schedule.folded,
            layer_s=_scaled(layer_s, share),
            recompute_s=_scaled(units.parts_of("recompute_parts_s"), share),
            first_s=_scaled(first_s, share),
            last_s=_scaled(last_s, share),
            fixed_s=self._fixed(stage) | {Component.BUBBLE: lone_s},
            bubble_weight=weight,
            may_recompute=full[batch.recompute],
            operations=self._operations(list(exposed.values())),
            **memory,
        )
        return parts if view.any_set else parts.grouped()

    def beside(self) -> dict[Component, tuple[FloatArray, FloatArray]]:
        """Return what a block takes beside its own units: of each component the seconds in forward and backward, (n, K).

        The one place for a component per block: breakdown, order of operations and simulation read it. What another mesh
        order, other switches or another recomputation would shorten has to be left out, or be least, where ``view`` says so.
        """
        cost, units, cheapest = self.cost, self.units, self.switches.cheapest
        found = {}
        if self.dp is not None:
            found[Component.FSDP] = fsdp_s(self.dp, units, self.held, ANY_COVER if cheapest else 1.0)
        # Other switches may leave more compute to hide the copies of what is offloaded.
        if cost.preset.offload_activations and not (self.view.any_set or cheapest):
            found[Component.OFFLOAD] = cost.host.block_s(*map(units.blocks_of, OFFLOADED))
        return found

    def _alone_s(self) -> tuple[FloatArray, FloatArray]:
        """Exposed expert traffic of a block, forward and backward (n, K), of micro-batches that run beside no other.

        A pass that fills or drains the pipeline has none to run beside.
        """
        forward, backward = (self.units.blocks_of(f"hidden_{way}_s") for way in ("forward", "backward"))
        if self.schedule.pairs or self.view.least or self.view.any_switches:
            return 0.0 * forward, 0.0 * backward
        share = lone_share(self.batch)[:, None]
        return share * forward, share * backward

    def _operations(self, exposed: list[tuple[FloatArray, FloatArray]]) -> OperationTimes:
        """Split the times of blocks and ends into a schedule's operations; ``exposed`` adds to forward and backward."""
        cost, units, schedule, switches = self.cost, self.units, self.schedule, self.switches
        forward, backward = units.blocks_of("forward_s"), units.blocks_of("backward_s")
        for before, behind in exposed:
            forward, backward = forward + before, backward + behind
        hidden = [units.blocks_of(f"hidden_{name}_s") * schedule.pairs for name in ("forward", "backward")]
        merges = switches.overlap[EpOverlap.BATCH] & (cost.model.is_moe and not switches.cheapest)
        head = units.head.operations_s
        if units.mtp is not None:
            head = head + cost.model.mtp_layers * units.mtp.operations_s
        return OperationTimes(
            schedule=schedule.schedule,
            hops_overlap=hops_overlap(self.batch, cost.preset, merges),
            forward_s=forward,
            backward_s=backward,
            wgrad_s=units.blocks_of("wgrad_s"),
            hidden_forward_s=hidden[0],
            hidden_backward_s=hidden[1],
            embedding_s=units.embedding.operations_s[units.inverse],
            head_s=head[units.inverse],
            hop_s=cost.hop_s(self.batch, self.groups),
        )

    def _last_parts(self) -> dict[Component, FloatArray]:
        """Seconds of the head and the MTP layers by part."""
        units, parts = self.units, dict(self.units.head.parts_s)
        for part, value in (units.mtp.parts_s if units.mtp else {}).items():
            parts[part] = parts.get(part, 0.0) + self.cost.model.mtp_layers * value
        return {part: value[units.inverse] for part, value in parts.items()}

    def _left_bytes(self) -> FloatArray:
        """Bytes that memory savers leave on the GPU."""
        cost, batch = self.cost, self.batch
        offloads = cost.preset.offload_activations
        if not (offloads or cost.preset.offload_optimizer):
            return np.zeros(len(batch))
        fullest = mean_parameters(cost.model, cost.preset, batch, self.held).fullest
        owned = owned_parameters(batch, fullest, self.schedule.parameter_copies)
        kept = self.units.blocks_of("kept_bytes") * (offloads and not self.view.any_set)
        return cost.host.left_bytes(batch, owned, kept, cost.counts)

    def _memory_context(self) -> MemoryContext:
        cost, batch, units, schedule = self.cost, self.batch, self.units, self.schedule
        copies, name = schedule.parameter_copies, schedule.schedule
        ahead = cost.model.is_moe and name is Schedule.INTERLEAVED and not self.switches.cheapest
        # Two micro-batches side by side need one chunk's forward more in hand before the first backward.
        extra = np.asarray(self.switches.overlap[EpOverlap.BATCH] & ahead, dtype=np.int64)
        flight = in_flight(name, batch.pp, batch.vp, batch.micro_batches, extra_chunks=extra)
        torch = in_torch_pipeline(cost.preset, batch)[:, None]
        # Ranks with the same stages are one distinct rank.
        ranks = -(-flight.shape[1] // copies)
        heads = head_in_flight(name, batch.pp, batch.micro_batches)
        mtp = np.zeros(len(batch))
        if units.mtp:
            mtp = cost.model.mtp_layers * units.mtp.activation_bytes[units.inverse] * heads
        return MemoryContext(
            model=cost.model,
            cluster=cost.cluster,
            preset=cost.preset,
            batch=batch,
            weight_bytes=cost.weight_bytes(batch),
            held=self.held,
            others=self._others(),
            kept=units.blocks_of("kept_bytes") * (not cost.preset.offload_activations),
            left=self._left_bytes(),
            checkpoint=units.blocks_of("checkpoint_bytes"),
            transient=units.blocks_of("transient_bytes").max(axis=1),
            # A chunk's weight gradients run when its whole backward pass for inputs has.
            delayed=units.blocks_of("delayed_bytes") * (schedule.splits_backward & torch),
            head_activation=units.head.activation_bytes[units.inverse],
            head_waiting=units.head.waiting_bytes[units.inverse],
            head_in_flight=heads,
            mtp_activation=mtp,
            in_flight=np.where(
                np.arange(ranks) < batch.pp[:, None] // copies, flight[:, :ranks] / copies, 0.0
            ),
            copies=copies,
            folded=schedule.folded,
            boundary_bytes=cost.received_bytes(batch),
            graphs=self._graph_bytes(),
            ideal=cost.ideal,
            any_set=self.view.any_set,
            trained=self._trained(),
        )

    def _graph_bytes(self) -> FloatArray:
        """Memory of CUDA graphs on every rank."""
        # Rows that stand for every switch may do without graphs: optimistic in memory.
        kinds = () if self.switches.cheapest else (CudaGraph.PARTIAL, CudaGraph.FULL)
        held = (
            self.switches.graphs[kind] * self.cost.constants[f"graph_bytes.{kind.value}"] for kind in kinds
        )
        return np.asarray(sum(held, np.zeros(len(self.batch))))

    def _fixed(self, stage: MeanStage) -> dict[Component, FloatArray]:
        """Seconds per step outside the stages: pipeline transfers, data parallelism, optimizer, host."""
        cost, batch = self.cost, self.batch
        mean = mean_parameters(cost.model, cost.preset, batch, self.held)
        zero = np.zeros(len(batch))
        parts = {
            Component.PP: transfers_s(batch, cost.hop_s(batch, self.groups), overlap=cost.preset.pp_overlap),
            Component.OPTIMIZER: zero if cost.ideal else self._optimizer_s(mean.fullest),
            Component.STEP: zero if cost.ideal else zero + self._host_step_s(),
            Component.SYNC: zero if cost.ideal else self._sync_s(stage),
        }
        if self.dp is not None:
            # The cheapest switches leave the least compute to hide traffic, others more.
            cover = ANY_COVER if self.switches.cheapest else 1.0
            exposed = step_exposed_s(
                self.dp,
                mean.blocks + mean.first,
                mean.first,
                self.held[-1],
                stage.cover_forward_s * cover,
                stage.cover_backward_s * cover,
                float(cost.counts.sum()),
            )
            parts[Component.DP] = exposed + self._between_ranks_s(mean.blocks)
        return parts

    def _host_step_s(self) -> FloatArray:
        """Host time of a step outside its layers; a graph of the whole iteration replays that too."""
        cost = self.cost
        replayed = np.where(self.switches.graphs[CudaGraph.FULL], cost.constants["host_full_graph"], 1.0)
        return np.asarray(cost.preset.host_step_s * cost.host_slower * replayed)

    def _sync_s(self, stage: MeanStage) -> FloatArray:
        """Seconds per step that all ranks wait for the slowest GPU's share of the compute."""
        cost, batch = self.cost, self.batch
        gpus = batch.tp * batch.cp * batch.pp * batch.dp
        share = slowest_share(gpus, cost.cluster.gpus_per_node, cost.constants["gpu_speed_spread"])
        return share * batch.micro_batches * (stage.cover_forward_s + stage.cover_backward_s)

    def _others(self) -> list[RankParameters]:
        """Parameters of one block of each kind on a rank that are in no matrix."""
        model = self.cost.model
        return [
            on_rank(model, other_parameters(model, run), self.batch, self.cost.preset) for run in model.runs
        ]

    def _optimizer_s(self, fullest: RankParameters) -> FloatArray:
        """Seconds of the optimizer step on the rank with the most parameters."""
        cost, batch = self.cost, self.batch
        step = OptimizerStep(
            model=cost.model,
            preset=cost.preset,
            rates=cost.compute_context(batch).rates,
            topology=cost.topology,
            host=cost.host,
        )
        trained = self._trained()
        if trained is None:
            others = mean_parameters(cost.model, cost.preset, batch, self._others(), other=True)
        else:
            fullest = shared_out(cost.model, batch, trained.blocks, trained.ends).fullest
            others = shared_out(cost.model, batch, trained.others, trained.end_others)
        return step.seconds(batch, self.groups, fullest, others.fullest)

    def _trained(self) -> TrainedParts | None:
        """Return what of the parameters on a rank is trained; None where all of it is."""
        cost = self.cost
        return trained_parts(
            cost.model, cost.training, cost.preset, self.batch, self.held, folded=self.schedule.folded
        )

    def _between_ranks_s(self, held: RankParameters) -> FloatArray:
        """Gradients of weights that two ranks of a pipeline hold, added up after the flush.

        Ends that hold a copy of the embedding each, tied or for prediction layers, exchange all of it, padded and beside the
        data-parallel reduction (NVIDIA/Megatron-LM finalize_model_grads.py, _allreduce_word_embedding_grads); ranks that
        hold the same stages exchange what is left after that reduction: the shards, or all of it without sharding.
        """
        cost, batch = self.cost, self.batch
        if cost.ideal:
            return np.zeros(len(batch))
        shared = cost.topology.p2p_s(cost.shared_bytes(batch, held), self.groups.pp)
        return np.where(batch.pp > 1, shared, 0.0)


def _scaled(parts: Times, factor: float) -> Times:
    return parts if factor == 1.0 else {name: factor * value for name, value in parts.items()}
