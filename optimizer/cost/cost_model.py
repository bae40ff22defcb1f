"""The cost model: from a batch of layouts to the terms of their stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.activations import layer_activations
from layoutopt.optimizer.cost.batch import homogeneous, priced_apart
from layoutopt.optimizer.cost.communication import CommContext
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.data_parallel import DpContext, step_exposed_s
from layoutopt.optimizer.cost.ends import embedding_unit, head_unit, mtp_unit
from layoutopt.optimizer.cost.formats import gathered_bytes, weight_bytes
from layoutopt.optimizer.cost.frozen import is_frozen, trained_parts, trained_share
from layoutopt.optimizer.cost.hardware import sustained_rates
from layoutopt.optimizer.cost.launch_switches import row_switches
from layoutopt.optimizer.cost.layer_units import (
    layer_units,
    least_kept_bytes,
    recompute_members,
    with_least_kept,
)
from layoutopt.optimizer.cost.matrices import other_parameters
from layoutopt.optimizer.cost.memory import MemoryContext, memory_parts
from layoutopt.optimizer.cost.offload import Host
from layoutopt.optimizer.cost.optimizer_step import OptimizerStep
from layoutopt.optimizer.cost.optimizers import moment_bytes
from layoutopt.optimizer.cost.parameters import block_parameters
from layoutopt.optimizer.cost.pipeline import (
    MeanStage,
    bubble,
    hops_overlap,
    lone_share,
    paired_rows,
    precision_of,
    savers_of,
    schedule_of,
    switches_of,
    transfers_s,
)
from layoutopt.optimizer.cost.placement import groups_of, inner_axes, order_of
from layoutopt.optimizer.cost.schedules import head_in_flight, in_flight
from layoutopt.optimizer.cost.stage_parameters import (
    holds_copy,
    mean_parameters,
    shared_out,
    table_parameters,
)
from layoutopt.optimizer.cost.states import RankParameters, in_torch_pipeline, on_rank, owned_parameters
from layoutopt.optimizer.cost.synchronization import slowest_share
from layoutopt.optimizer.cost.term_parts import OperationTimes, TermParts, placed, scatter_terms
from layoutopt.optimizer.cost.units import MicroBatchUnits, Units, fsdp_s
from layoutopt.optimizer.cost.work import ComputeContext, make_keys
from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.specs.vocabulary import CudaGraph, FrozenPart, Granularity, Schedule
from layoutopt.optimizer.topology.counting import distinct_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.constants import Constants
    from layoutopt.optimizer.cost.frozen import TrainedParts
    from layoutopt.optimizer.cost.launch_switches import RowSwitches
    from layoutopt.optimizer.cost.term_parts import Times
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.cost.work import Keys
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec
    from layoutopt.optimizer.topology.mesh import MeshGroups
    from layoutopt.optimizer.topology.prices import Topology

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


KEY_COLUMNS = ("tp", "sp", "cp", "micro_batch", "ep", "etp")
"""Columns of a batch that decide the work and the activations of a layer."""

ANY_COVER = 1e3
"""More compute to hide traffic than any launch switches leave, over that of the cheapest ones."""

OFFLOADED = ("kept_bytes", "cover_forward_s", "cover_backward_s")
"""What the time to offload a block's activations depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How optimistic terms are.

    ``closest`` places every axis innermost, whatever the mesh order; without ``data_parallel`` its traffic and buffers
    are left out; ``least`` takes bubbles that any longer communication and recomputation leave at least;
    ``any_set`` keeps of MTP layers only what the leanest selective recomputation keeps. ``any_switches`` prices every
    row as if it had all launch switches of its group of codes at once, each where it is cheapest.
    """

    closest: bool = False
    data_parallel: bool = True
    least: bool = False
    any_set: bool = False
    any_switches: bool = False


EXACT = View()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Prices layouts of one workload on one cluster under one framework preset.

    ``ideal`` is the simple model of a constant share of peak: no shape effects, no memory-bound kernels, no
    latency, no host time, all tensor-parallel traffic exposed, data-parallel traffic hidden up to its cover.
    """

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    preset: FrameworkPreset
    constants: Constants
    topology: Topology
    ideal: bool = False

    @property
    def counts(self) -> IntArray:
        """Blocks of each kind, (K,)."""
        return np.array([run.count for run in self.model.runs], dtype=np.int64)

    def terms(self, batch: LayoutBatch) -> StageTerms:
        """Return the stage terms of every row."""
        return scatter_terms(len(batch), [(rows, parts.terms()) for rows, parts in self.parts(batch)])

    def closest_terms(self, batch: LayoutBatch) -> StageTerms:
        """Return terms with every axis placed innermost and the cheapest switches, whatever the rows have of both."""
        return self.terms_in(batch, View(closest=True, least=True, any_switches=True))

    def terms_in(self, batch: LayoutBatch, view: View) -> StageTerms:
        """Return the stage terms of every row as optimistic as ``view`` says."""
        return scatter_terms(len(batch), [(rows, parts.terms()) for rows, parts in self.parts(batch, view)])

    def parts(self, batch: LayoutBatch, view: View = EXACT) -> Iterator[tuple[IntArray, TermParts]]:
        """Yield (row index, components) for each mesh order, schedule, precision and set of savers in the batch."""
        group = batch.codebook.groups[batch.precision]
        for rows, same in homogeneous(batch, [batch.order, group, paired_rows(batch)]):
            for index, parts in self.saving(same).alike_parts(same, view):
                yield rows[index], parts

    def alike_parts(self, batch: LayoutBatch, view: View) -> Iterator[tuple[IntArray, TermParts]]:
        """Yield the rows (k,) that share all of these and the schedule, with their components; savers are in the preset."""
        order = order_of(batch, closest=view.closest)
        units = self._units(batch, order, view)
        for index, own in homogeneous(batch, [batch.schedule]):
            parts = self._parts(own, order, units.take(index), view)
            yield index, parts.slower(self.constants["time_scale"])

    def saving(self, batch: LayoutBatch) -> CostModel:
        """Return the model with the memory savers of the batch's first row in its preset, and switches priced apart."""
        savers, switches = savers_of(batch), priced_apart(switches_of(batch))
        if not savers and not switches:
            return self
        return replace(self, preset=self.preset.saving(savers).switched(switches))

    def least_kept_bytes(self, batch: LayoutBatch, recomputes: tuple[int, ...]) -> FloatArray:
        """Activation bytes of one block per micro-batch, (n, K), under the leanest of some recompute entries.

        The rows of ``batch`` share precision and memory savers, and stand for all launch switches.
        """
        if self.saving(batch).preset.offload_activations:
            return np.zeros((len(batch), len(self.model.runs)))
        first, inverse = distinct_rows([getattr(batch, name) for name in KEY_COLUMNS])
        rows = batch.take(first)
        keys, ctx = _keys(self.training, rows), self.compute_context(rows, View(any_switches=True))
        members = recompute_members(batch.codebook.recomputes)
        blocks = [
            least_kept_bytes(layer_activations(ctx, keys, run.block[0]), recomputes, members)
            for run in self.model.runs
        ]
        return np.stack(blocks, axis=1)[inverse]

    def _parts(self, batch: LayoutBatch, order: str, units: Units, view: View) -> TermParts:
        """Price rows that share mesh order, schedule and precision."""
        groups = groups_of(order, batch)
        dp = self.dp_context(batch, groups) if view.data_parallel else None
        return self._assemble(batch, units, dp, groups, view)

    def dp_context(self, batch: LayoutBatch, groups: MeshGroups) -> DpContext:
        """Return what data-parallel traffic is priced with."""
        return DpContext(
            batch=batch,
            topology=self.topology,
            groups=groups,
            preset=self.preset,
            weight_bytes=self._gathered_bytes(batch),
            constants=self.constants,
            ideal=self.ideal,
            memory_bytes_per_s=self.compute_context(batch).rates.memory_bytes_per_s,
            trained=trained_share(self.model, self.training),
        )

    def _gathered_bytes(self, batch: LayoutBatch) -> float:
        """Bytes per parameter of a block's weights on the network."""
        if self.ideal:
            return self.preset.weight_bytes
        return gathered_bytes(self.preset, precision_of(batch))

    def weight_bytes(self, batch: LayoutBatch) -> float:
        """Bytes per parameter of whole weights in blocks, at the precision of the batch's first row."""
        if self.ideal:
            return self.preset.weight_bytes
        any_arrangement = self.cluster.gpu.generation.any_arrangement
        return weight_bytes(self.preset, precision_of(batch), any_arrangement=any_arrangement)

    def micro_batch_units(self, batch: LayoutBatch) -> MicroBatchUnits:
        """Return what one micro-batch takes on one block of each kind, at the ends and between stages.

        The rows of ``batch`` share mesh order, schedule, precision and memory savers.
        """
        return self.saving(batch).alike_units(batch)

    def alike_units(self, batch: LayoutBatch) -> MicroBatchUnits:
        """Return ``micro_batch_units`` with the savers already in the preset."""
        order = order_of(batch, closest=False)
        groups, units = groups_of(order, batch), self._units(batch, order, EXACT)
        held = [
            on_rank(self.model, block_parameters(self.model, run), batch, self.preset)
            for run in self.model.runs
        ]
        beside = self._beside(batch, units, self.dp_context(batch, groups), held, EXACT).values()
        return MicroBatchUnits(
            units=units,
            exposed_forward_s=np.sum([forward for forward, _ in beside], axis=0),
            exposed_backward_s=np.sum([backward for _, backward in beside], axis=0),
            hop_s=self._hop_s(batch, groups),
        )

    def _hop_s(self, batch: LayoutBatch, groups: MeshGroups) -> FloatArray:
        """Exposed seconds of one transfer between neighbouring stages."""
        if self.ideal:
            return np.zeros(len(batch))
        return self.topology.p2p_s(self.boundary_bytes(batch), groups.pp) * self.constants["pp_exposed"]

    def compute_context(self, batch: LayoutBatch, view: View = EXACT) -> ComputeContext:
        """Rates at the precision and schedule of the batch's first row, and the rows' launch switches."""
        # Kernels of the expert exchange hold SMs for themselves where they run beside another micro-batch.
        busy = self.model.is_moe and schedule_of(batch).pairs and not self.ideal
        rates = sustained_rates(
            self.cluster.gpu,
            precision_of(batch),
            self.constants,
            self.preset,
            ideal=self.ideal,
            reserved_sm_share=self.preset.reserved_sm_share if busy else 0.0,
        )
        return ComputeContext(
            model=self.model,
            training=self.training,
            preset=self.preset,
            constants=self.constants,
            rates=rates,
            nvlink_domain=self.topology.nvlink_domain,
            host_slower=self._host_slower,
            switches=row_switches(self.preset, batch, cheapest=view.any_switches),
        )

    @property
    def _host_slower(self) -> float:
        """Host time over that of the CPUs that presets' host times are of."""
        return self.constants["host_slower.grace" if self.cluster.gpu.grace else "host_slower.x86"]

    def _host_step_s(self, switches: RowSwitches) -> FloatArray:
        """Host time of a step outside its layers; a graph of the whole iteration replays that too."""
        replayed = np.where(switches.graphs[CudaGraph.FULL], self.constants["host_full_graph"], 1.0)
        return np.asarray(self.preset.host_step_s * self._host_slower * replayed)

    def _units(self, batch: LayoutBatch, order: str, view: View) -> Units:
        """Price one block of each kind and the ends, once per distinct combination of the degrees they depend on."""
        columns = [getattr(batch, name) for name in (*KEY_COLUMNS, "recompute")]
        columns += [getattr(batch, axis) for axis in inner_axes(order, self.model.is_moe)]
        # A precision code stands for launch switches too, which change what a block takes.
        columns += [batch.precision] if batch.codebook.switches and not view.any_switches else []
        first, inverse = distinct_rows(columns)
        rows = batch.take(first)
        comm = self.comm_context(rows, order, view)
        members = recompute_members(batch.codebook.recomputes)
        shapes, shape = [run.block[0] for run in self.model.runs], self.model.last_shape
        layers = layer_units(
            comm, [*shapes, shape] if self.model.mtp_layers else shapes, rows.recompute, members
        )
        mtp = None
        if self.model.mtp_layers:
            layer = layers[shape]
            if view.any_set:
                layer = with_least_kept(comm, shape, layer, members)
            mtp = mtp_unit(comm, layer)
        head = head_unit(comm, passes=1 + self.model.mtp_layers)
        blocks = [layers[block] for block in shapes]
        return Units(blocks=blocks, embedding=embedding_unit(comm), head=head, mtp=mtp, inverse=inverse)

    def comm_context(self, rows: LayoutBatch, order: str, view: View = EXACT) -> CommContext:
        """Return what communication inside layers is priced with, of rows that share order, schedule and precision."""
        return CommContext(
            compute=self.compute_context(rows, view),
            keys=_keys(self.training, rows),
            topology=self.topology,
            groups=groups_of(order, rows),
            paired=schedule_of(rows).pairs,
        )

    def _assemble(
        self, batch: LayoutBatch, units: Units, dp: DpContext | None, groups: MeshGroups, view: View
    ) -> TermParts:
        """Add what depends on the whole row: data parallelism (unless ``dp`` is None), pipeline, optimizer, states."""
        schedule = schedule_of(batch)
        switches = row_switches(self.preset, batch, cheapest=view.any_switches)
        held = [
            on_rank(self.model, block_parameters(self.model, run), batch, self.preset)
            for run in self.model.runs
        ]
        exposed = self._beside(batch, units, dp, held, view, cheapest=switches.cheapest)
        if self.model.is_moe and switches.overlap[EpOverlap.BATCH].any():
            exposed = {Component.EP: self._alone_s(batch, units, view)} | exposed
        layer_s = units.parts_of("parts_s")
        for part, both in exposed.items():
            layer_s[part] = layer_s.get(part, 0.0) + np.add(*both)
        left = self._left_bytes(batch, units, held, whole=not view.any_set)
        memory = memory_parts(
            self._memory_context(batch, units, held, left, switches, any_set=view.any_set),
            working_set=dp is not None,
        )
        stage = units.mean_stage(self.counts / batch.pp[:, None])
        weight, lone_s = bubble(batch, stage, least=view.least or view.any_switches)
        embedding = {part: value[units.inverse] for part, value in units.embedding.parts_s.items()}
        # Of a stage with copies, each rank works through its share of the micro-batches.
        share = 1.0 / schedule.parameter_copies
        first_s, last_s = placed(embedding, self._last_parts(units), folded=schedule.folded)
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
            fixed_s=self._fixed(batch, dp, groups, held, stage, switches) | {Component.BUBBLE: lone_s},
            bubble_weight=weight,
            may_recompute=full[batch.recompute],
            operations=self._operations(batch, units, list(exposed.values()), groups, switches),
            **memory,
        )
        return parts if view.any_set else parts.grouped()

    def _beside(
        self,
        batch: LayoutBatch,
        units: Units,
        dp: DpContext | None,
        held: list[RankParameters],
        view: View,
        *,
        cheapest: bool = False,
    ) -> dict[Component, tuple[FloatArray, FloatArray]]:
        """Return what a block takes beside its own units: of each component the seconds in forward and backward, (n, K).

        The one place for a component per block: breakdown, order of operations and simulation read it. What another mesh
        order, other switches or another recomputation would shorten has to be left out, or be least, where ``view`` says so;
        ``cheapest``: the rows stand for all launch switches.
        """
        found = {}
        if dp is not None:
            found[Component.FSDP] = fsdp_s(dp, units, held, ANY_COVER if cheapest else 1.0)
        # other switches may leave more compute to hide the copies of what is offloaded
        if self.preset.offload_activations and not (view.any_set or cheapest):
            found[Component.OFFLOAD] = self._host.block_s(*map(units.blocks_of, OFFLOADED))
        return found

    def _alone_s(self, batch: LayoutBatch, units: Units, view: View) -> tuple[FloatArray, FloatArray]:
        """Exposed expert traffic of a block, forward and backward (n, K), of micro-batches that run beside no other.

        A pass that fills or drains the pipeline has none to run beside.
        """
        forward, backward = units.blocks_of("hidden_forward_s"), units.blocks_of("hidden_backward_s")
        if schedule_of(batch).pairs or view.least or view.any_switches:
            return 0.0 * forward, 0.0 * backward
        share = lone_share(batch)[:, None]
        return share * forward, share * backward

    def _operations(
        self,
        batch: LayoutBatch,
        units: Units,
        exposed: list[tuple[FloatArray, FloatArray]],
        groups: MeshGroups,
        switches: RowSwitches,
    ) -> OperationTimes:
        """Split the times of blocks and ends into a schedule's operations; ``exposed`` adds to forward and backward."""
        schedule = schedule_of(batch)
        forward, backward = units.blocks_of("forward_s"), units.blocks_of("backward_s")
        for before, behind in exposed:
            forward, backward = forward + before, backward + behind
        hidden = [units.blocks_of(f"hidden_{name}_s") * schedule.pairs for name in ("forward", "backward")]
        merges = switches.overlap[EpOverlap.BATCH] & (self.model.is_moe and not switches.cheapest)
        head = units.head.operations_s
        if units.mtp is not None:
            head = head + self.model.mtp_layers * units.mtp.operations_s
        return OperationTimes(
            schedule=schedule.schedule,
            hops_overlap=hops_overlap(batch, self.preset, merges),
            forward_s=forward,
            backward_s=backward,
            wgrad_s=units.blocks_of("wgrad_s"),
            hidden_forward_s=hidden[0],
            hidden_backward_s=hidden[1],
            embedding_s=units.embedding.operations_s[units.inverse],
            head_s=head[units.inverse],
            hop_s=self._hop_s(batch, groups),
        )

    def _last_parts(self, units: Units) -> dict[Component, FloatArray]:
        """Seconds of the head and the MTP layers by part."""
        parts = dict(units.head.parts_s)
        for part, value in (units.mtp.parts_s if units.mtp else {}).items():
            parts[part] = parts.get(part, 0.0) + self.model.mtp_layers * value
        return {part: value[units.inverse] for part, value in parts.items()}

    @property
    def _host(self) -> Host:
        return Host(
            cluster=self.cluster,
            constants=self.constants,
            preset=self.preset,
            moment_bytes=moment_bytes(self.preset, self.model).matrix,
        )

    def _left_bytes(
        self, batch: LayoutBatch, units: Units, held: list[RankParameters], *, whole: bool
    ) -> FloatArray:
        """Bytes that memory savers leave on the GPU; ``whole`` False counts no activations."""
        offloads = self.preset.offload_activations
        if not (offloads or self.preset.offload_optimizer):
            return np.zeros(len(batch))
        fullest = mean_parameters(self.model, self.preset, batch, held).fullest
        owned = owned_parameters(batch, fullest, schedule_of(batch).parameter_copies)
        kept = units.blocks_of("kept_bytes") * (whole and offloads)
        return self._host.left_bytes(batch, owned, kept, self.counts)

    def _memory_context(
        self,
        batch: LayoutBatch,
        units: Units,
        held: list[RankParameters],
        left: FloatArray,
        switches: RowSwitches,
        *,
        any_set: bool,
    ) -> MemoryContext:
        schedule = schedule_of(batch)
        copies, name = schedule.parameter_copies, schedule.schedule
        ahead = self.model.is_moe and name is Schedule.INTERLEAVED and not switches.cheapest
        # Two micro-batches side by side need one chunk's forward more in hand before the first backward.
        extra = np.asarray(switches.overlap[EpOverlap.BATCH] & ahead, dtype=np.int64)
        flight = in_flight(name, batch.pp, batch.vp, batch.micro_batches, extra_chunks=extra)
        torch = in_torch_pipeline(self.preset, batch)[:, None]
        # Ranks with the same stages are one distinct rank.
        ranks = -(-flight.shape[1] // copies)
        mtp = np.zeros(len(batch))
        if units.mtp:
            each = units.mtp.activation_bytes[units.inverse]
            mtp = self.model.mtp_layers * each * head_in_flight(name, batch.pp, batch.micro_batches)
        return MemoryContext(
            model=self.model,
            cluster=self.cluster,
            preset=self.preset,
            batch=batch,
            weight_bytes=self.weight_bytes(batch),
            held=held,
            others=self._others(batch),
            kept=units.blocks_of("kept_bytes") * (not self.preset.offload_activations),
            left=left,
            checkpoint=units.blocks_of("checkpoint_bytes"),
            transient=units.blocks_of("transient_bytes").max(axis=1),
            # A chunk's weight gradients run when its whole backward pass for inputs has.
            delayed=units.blocks_of("delayed_bytes") * (schedule.splits_backward & torch),
            head_activation=units.head.activation_bytes[units.inverse],
            head_waiting=units.head.waiting_bytes[units.inverse],
            head_in_flight=head_in_flight(name, batch.pp, batch.micro_batches),
            mtp_activation=mtp,
            in_flight=np.where(
                np.arange(ranks) < batch.pp[:, None] // copies, flight[:, :ranks] / copies, 0.0
            ),
            copies=copies,
            folded=schedule.folded,
            boundary_bytes=self.boundary_bytes(batch),
            graphs=self._graph_bytes(batch, switches),
            ideal=self.ideal,
            any_set=any_set,
            trained=self._trained(batch, held),
        )

    def _graph_bytes(self, batch: LayoutBatch, switches: RowSwitches) -> FloatArray:
        """Memory of CUDA graphs on every rank."""
        # Rows that stand for every switch may do without graphs: optimistic in memory.
        kinds = () if switches.cheapest else (CudaGraph.PARTIAL, CudaGraph.FULL)
        held = (switches.graphs[kind] * self.constants[f"graph_bytes.{kind.value}"] for kind in kinds)
        return np.asarray(sum(held, np.zeros(len(batch))))

    def boundary_bytes(self, batch: LayoutBatch) -> FloatArray:
        """Bytes (n,) of one stage boundary's tensor on a rank: its share where sequences are sharded or sends are."""
        tokens = batch.micro_batch * self.training.sequence_length / batch.cp
        shared = (batch.sp > 0) | self.preset.partitioned_sends
        return np.asarray(2.0 * tokens * self.model.hidden / np.where(shared, batch.tp, 1))

    def _fixed(
        self,
        batch: LayoutBatch,
        dp: DpContext | None,
        groups: MeshGroups,
        held: list[RankParameters],
        stage: MeanStage,
        switches: RowSwitches,
    ) -> dict[Component, FloatArray]:
        """Seconds per step outside the stages: pipeline transfers, data parallelism, optimizer, host."""
        mean = mean_parameters(self.model, self.preset, batch, held)
        zero = np.zeros(len(batch))
        parts = {
            Component.PP: transfers_s(batch, self._hop_s(batch, groups), overlap=self.preset.pp_overlap),
            Component.OPTIMIZER: zero if self.ideal else self._optimizer_s(batch, groups, held, mean.fullest),
            Component.STEP: zero if self.ideal else zero + self._host_step_s(switches),
            Component.SYNC: zero if self.ideal else self._sync_s(batch, stage),
        }
        if dp is not None:
            blocks = float(self.counts.sum())
            exposed = step_exposed_s(
                dp,
                mean.blocks + mean.first,
                mean.first,
                held[-1],
                # the cheapest switches leave the least compute to hide traffic, others more
                stage.cover_forward_s * (ANY_COVER if switches.cheapest else 1.0),
                stage.cover_backward_s * (ANY_COVER if switches.cheapest else 1.0),
                blocks,
            )
            parts[Component.DP] = exposed + self._between_ranks_s(batch, groups, mean.blocks)
        return parts

    def _sync_s(self, batch: LayoutBatch, stage: MeanStage) -> FloatArray:
        """Seconds per step that all ranks wait for the slowest GPU's share of the compute."""
        gpus = batch.tp * batch.cp * batch.pp * batch.dp
        share = slowest_share(gpus, self.cluster.gpus_per_node, self.constants["gpu_speed_spread"])
        return share * batch.micro_batches * (stage.cover_forward_s + stage.cover_backward_s)

    def _others(self, batch: LayoutBatch) -> list[RankParameters]:
        """Parameters of one block of each kind on a rank that are in no matrix."""
        return [
            on_rank(self.model, other_parameters(self.model, run), batch, self.preset)
            for run in self.model.runs
        ]

    def _optimizer_s(
        self, batch: LayoutBatch, groups: MeshGroups, held: list[RankParameters], fullest: RankParameters
    ) -> FloatArray:
        """Seconds of the optimizer step on the rank with the most parameters."""
        step = OptimizerStep(
            model=self.model,
            preset=self.preset,
            rates=self.compute_context(batch).rates,
            topology=self.topology,
            host=self._host,
        )
        trained = self._trained(batch, held)
        if trained is None:
            others = mean_parameters(self.model, self.preset, batch, self._others(batch), other=True)
        else:
            fullest = shared_out(self.model, batch, trained.blocks, trained.ends).fullest
            others = shared_out(self.model, batch, trained.others, trained.end_others)
        return step.seconds(batch, groups, fullest, others.fullest)

    def _trained(self, batch: LayoutBatch, held: list[RankParameters]) -> TrainedParts | None:
        """Return what of the parameters on a rank is trained; None where all of it is."""
        folded = schedule_of(batch).folded
        return trained_parts(self.model, self.training, self.preset, batch, held, folded=folded)

    def _between_ranks_s(self, batch: LayoutBatch, groups: MeshGroups, held: RankParameters) -> FloatArray:
        """Gradients of weights that two ranks of a pipeline hold, added up after the flush.

        Ends that hold a copy of the embedding each, tied or for prediction layers, exchange all of it, padded and beside the
        data-parallel reduction (NVIDIA/Megatron-LM finalize_model_grads.py, _allreduce_word_embedding_grads); ranks that
        hold the same stages exchange what is left after that reduction: the shards, or all of it without sharding.
        """
        zero = np.zeros(len(batch))
        if self.ideal:
            return zero
        return np.where(batch.pp > 1, self.topology.p2p_s(self.shared_bytes(batch, held), groups.pp), 0.0)

    def shared_bytes(self, batch: LayoutBatch, held: RankParameters) -> FloatArray:
        """Bytes (n,) of the gradients of weights that two ranks of a pipeline hold; ``held`` are a rank's blocks."""
        schedule, size = schedule_of(batch), np.zeros(len(batch))
        if schedule.parameter_copies > 1:
            size = owned_parameters(batch, held)
        elif holds_copy(self.model, folded=schedule.folded) and not is_frozen(
            self.training, FrozenPart.EMBEDDING
        ):
            copy, _ = table_parameters(self.model, self.preset, batch, folded=schedule.folded)
            size = copy.dense
        return self.preset.grad_bytes * size


def _scaled(parts: Times, factor: float) -> Times:
    return parts if factor == 1.0 else {name: factor * value for name, value in parts.items()}


def _keys(training: TrainingSpec, rows: LayoutBatch) -> Keys:
    """Return the degree combinations of a batch."""
    return make_keys(training, **{name: getattr(rows, name).astype(np.float64) for name in KEY_COLUMNS})
