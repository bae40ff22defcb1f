"""The cost model: from a batch of layouts to the terms of their stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.activations import layer_activations
from layoutopt.optimizer.cost.assembly import Assembly, held_parameters
from layoutopt.optimizer.cost.batch import homogeneous, priced_apart
from layoutopt.optimizer.cost.communication import CommContext
from layoutopt.optimizer.cost.data_parallel import DpContext
from layoutopt.optimizer.cost.ends import embedding_unit, head_unit, mtp_unit
from layoutopt.optimizer.cost.formats import gathered_bytes, weight_bytes
from layoutopt.optimizer.cost.frozen import is_frozen, trained_share
from layoutopt.optimizer.cost.hardware import sustained_rates
from layoutopt.optimizer.cost.launch_switches import row_switches
from layoutopt.optimizer.cost.layer_units import (
    layer_units,
    least_kept_bytes,
    recompute_members,
    with_least_kept,
)
from layoutopt.optimizer.cost.offload import Host
from layoutopt.optimizer.cost.optimizers import moment_bytes
from layoutopt.optimizer.cost.pipeline import (
    paired_rows,
    precision_of,
    savers_of,
    schedule_of,
    switches_of,
)
from layoutopt.optimizer.cost.placement import groups_of, inner_axes, order_of
from layoutopt.optimizer.cost.stage_parameters import (
    holds_copy,
    table_parameters,
)
from layoutopt.optimizer.cost.states import RankParameters, owned_parameters
from layoutopt.optimizer.cost.term_parts import TermParts, scatter_terms
from layoutopt.optimizer.cost.units import MicroBatchUnits, Units
from layoutopt.optimizer.cost.work import ComputeContext, make_keys
from layoutopt.optimizer.specs.vocabulary import FrozenPart
from layoutopt.optimizer.topology.counting import distinct_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.constants import Constants
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
        return self._assembly(batch, units, dp, groups, view).parts()

    def _assembly(
        self, batch: LayoutBatch, units: Units, dp: DpContext | None, groups: MeshGroups, view: View
    ) -> Assembly:
        return Assembly(
            cost=self,
            batch=batch,
            units=units,
            dp=dp,
            groups=groups,
            view=view,
            held=held_parameters(self, batch),
            switches=row_switches(self.preset, batch, cheapest=view.any_switches),
        )

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
        dp = self.dp_context(batch, groups)
        beside = self._assembly(batch, units, dp, groups, EXACT).beside().values()
        return MicroBatchUnits(
            units=units,
            exposed_forward_s=np.sum([forward for forward, _ in beside], axis=0),
            exposed_backward_s=np.sum([backward for _, backward in beside], axis=0),
            hop_s=self.hop_s(batch, groups),
        )

    def hop_s(self, batch: LayoutBatch, groups: MeshGroups) -> FloatArray:
        """Exposed seconds (n,) of one transfer between neighbouring stages."""
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
            host_slower=self.host_slower,
            switches=row_switches(self.preset, batch, cheapest=view.any_switches),
        )

    @property
    def host_slower(self) -> float:
        """Host time over that of the CPUs that presets' host times are of."""
        return self.constants["host_slower.grace" if self.cluster.gpu.grace else "host_slower.x86"]

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

    @property
    def host(self) -> Host:
        """Copies to and from host memory."""
        return Host(
            cluster=self.cluster,
            constants=self.constants,
            preset=self.preset,
            moment_bytes=moment_bytes(self.preset, self.model).matrix,
        )

    def boundary_bytes(self, batch: LayoutBatch) -> FloatArray:
        """Bytes (n,) of one stage boundary's tensor on a rank: its share where sequences are sharded or sends are.

        The mean of activations and their gradients, of which every micro-batch sends one each.
        """
        ways = (self.preset.partitioned_sends, self.preset.partitioned_gradients)
        return np.asarray(sum(self._share_bytes(batch, parted=parted) for parted in ways) / len(ways))

    def received_bytes(self, batch: LayoutBatch) -> FloatArray:
        """Bytes (n,) of memory that one stage boundary's tensor takes on a rank that received it."""
        return self._share_bytes(
            batch, parted=self.preset.partitioned_sends and not self.preset.gathers_received
        )

    def _share_bytes(self, batch: LayoutBatch, *, parted: bool) -> FloatArray:
        """Bytes (n,) of a stage boundary's tensor, ``parted`` among tensor-parallel ranks also without sharded sequences."""
        tokens = batch.micro_batch * self.training.sequence_length / batch.cp
        return np.asarray(2.0 * tokens * self.model.hidden / np.where((batch.sp > 0) | parted, batch.tp, 1))

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


def _keys(training: TrainingSpec, rows: LayoutBatch) -> Keys:
    """Return the degree combinations of a batch."""
    return make_keys(training, **{name: getattr(rows, name).astype(np.float64) for name in KEY_COLUMNS})
