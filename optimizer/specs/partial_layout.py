"""A layout as far as a user states it, and its completion from the workload and the cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches, VirtualStage
from layoutopt.optimizer.specs.stage_split import build_stages, even_layers, running_schedule
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Granularity, Precision, Saver, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout_string import StageItems
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLayout:
    """What is stated of a layout; None is left open.

    Fields mean what they mean in ``Layout``. ``recompute_layers`` is the number of layers that every virtual
    stage recomputes under full recomputation, None for all. ``idle_gpus`` of the cluster are left out. ``split``
    lists the content of the virtual stages, ``stages`` the stages themselves; at most one of the two is given.
    """

    tp: int | None = None
    sp: bool | None = None
    cp: int | None = None
    pp: int | None = None
    vp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    zero: int | None = None
    hsdp_shard: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    recompute: Recompute | None = None
    recompute_layers: int | None = None
    schedule: Schedule | None = None
    mesh_order: str | None = None
    precision: Precision | None = None
    savers: tuple[Saver, ...] | None = None
    switches: Switches | None = None
    idle_gpus: int | None = None
    split: tuple[StageItems, ...] | None = None
    stages: tuple[VirtualStage, ...] | None = None

    def complete(self, workload: Workload, cluster: ClusterSpec, *, strict: bool = True) -> Layout:
        """Fill in what is open.

        ``dp`` from the GPUs, ``micro_batches`` from the global batch, ``sp`` on when tp > 1, the schedule
        from pp and vp, the most even stages (none if the layers can't fill them), other degrees 1, no ZeRO,
        the workload's precision. ``strict`` False accepts products that miss the GPUs or the batch and rounds
        what is derived down, for validity rules to judge.

        Raises
        ------
        InputError
            If products don't match; prints every factor with its value. If a stage list doesn't fit the
            model.
        """
        tp, cp, pp = self.tp or 1, self.cp or 1, self.pp or 1
        schedule, vp = self._schedule(pp)
        inner, gpus = tp * cp * pp, cluster.gpu_count - (self.idle_gpus or 0)
        # Rounded down to 1 at least even where nothing divides: a rule can say what is wrong only of a whole layout.
        dp = self.dp or max(gpus // inner, 1)
        micro_batch = self.micro_batch or 1
        batch = workload.training.global_batch
        micro_batches = self.micro_batches or max(batch // (dp * micro_batch), 1)
        if strict:
            degrees = {"tp": tp, "cp": cp, "pp": pp} | ({"dp": dp} if self.dp else {})
            _check_gpus(degrees, gpus)
            factors = {"dp": dp, "micro_batch": micro_batch}
            _check_batch(factors | ({"micro_batches": micro_batches} if self.micro_batches else {}), batch)
        return Layout(
            tp=tp,
            sp=tp > 1 if self.sp is None else self.sp,
            cp=cp,
            pp=pp,
            vp=vp,
            ep=self.ep or 1,
            etp=self.etp or 1,
            dp=dp,
            zero=self.zero or 0,
            hsdp_shard=self.hsdp_shard,
            micro_batch=micro_batch,
            micro_batches=micro_batches,
            recompute=self.recompute or Recompute(),
            schedule=schedule,
            mesh_order=self.mesh_order or DEFAULT_MESH_ORDER,
            precision=self.precision or workload.training.precision,
            savers=self.savers or (),
            switches=self.switches or Switches(),
            stages=self.staged(workload.model, pp, vp, schedule),
        )

    def _schedule(self, pp: int) -> tuple[Schedule, int]:
        """Return the schedule and the virtual stages per rank; V-shaped schedules have two chunks."""
        named = self.schedule or Schedule.NONE
        # A single stage runs no schedule: the name alone does not make it two chunks.
        vp = self.vp or (2 if pp > 1 and named.v_shape else self._chunks(pp))
        return running_schedule(named, pp, vp), vp

    def _chunks(self, pp: int) -> int:
        """Return the chunks per rank that a stage list implies."""
        # A list that does not divide is left at one chunk; ``_check_stages`` says how long it should be.
        slots = len(self.split or self.stages or ())
        return slots // pp if slots and slots % pp == 0 else 1

    def staged(self, model: ModelSpec, pp: int, vp: int, schedule: Schedule) -> tuple[VirtualStage, ...]:
        """Return the stages that are stated, else the most even ones; none where the layers can't fill them."""
        limit = 0
        if self.recompute is not None and self.recompute.granularity is Granularity.FULL:
            limit = model.layers if self.recompute_layers is None else self.recompute_layers
        listed = self.split or self.stages
        if not listed:
            even = even_layers(model, pp, vp, schedule)
            return () if even is None else build_stages(model, even, pp, schedule, limit)
        layers, mtp = [stage.layers for stage in listed], [stage.mtp for stage in listed]
        _check_stages(model, layers, mtp, pp, vp)
        built = build_stages(model, layers, pp, schedule, limit, mtp if any(mtp) else None)
        if self.stages is None:
            return built
        return tuple(
            stage if stage.kinds else replace(stage, kinds=full.kinds)
            for stage, full in zip(self.stages, built, strict=True)
        )


def _check_gpus(degrees: dict[str, int], gpus: int) -> None:
    """Check the product of the degrees against the cluster, as a divisor while dp is open."""
    product = prod(degrees.values())
    if product == gpus or ("dp" not in degrees and gpus % product == 0):
        return
    text = " x ".join(f"{name} {value}" for name, value in degrees.items())
    if "dp" in degrees:
        raise InputError(Problem(what=f"{text} = {product}, cluster has {gpus} GPUs", key="layout"))
    what = f"{text} = {product} does not divide the cluster's {gpus} GPUs"
    allowed = "a product that divides them; dp is the quotient"
    raise InputError(Problem(what=what, key="layout", allowed=allowed))


def _check_batch(factors: dict[str, int], batch: int) -> None:
    """Check the product of the batch's factors, as a divisor while micro_batches is open."""
    product = prod(factors.values())
    if product == batch or ("micro_batches" not in factors and batch % product == 0):
        return
    text = " x ".join(f"{name} {value}" for name, value in factors.items())
    if "micro_batches" in factors:
        what = f"{text} = {product}, the global batch is {batch} sequences"
        raise InputError(Problem(what=what, key="layout"))
    below = batch // product * product
    near = f"nearest batches {below} and {below + product}" if below else f"nearest batch {product}"
    what = f"{text} = {product} does not divide the global batch of {batch} sequences"
    raise InputError(Problem(what=what, key="layout", allowed=near))


def _check_stages(model: ModelSpec, layers: list[int], mtp: list[int], pp: int, vp: int) -> None:
    """Check a stage list against the degrees and the model."""
    if len(layers) != pp * vp:
        what = f"lists {len(layers)} virtual stages"
        raise InputError(Problem(what=what, key="stages", allowed=f"pp {pp} x vp {vp} = {pp * vp}"))
    if sum(layers) != model.layers:
        what = f"hold {sum(layers)} layers, {model.name} has {model.layers}"
        raise InputError(Problem(what=what, key="stages", allowed=f"{model.layers} layers in all"))
    if any(mtp) and sum(mtp) != model.mtp_layers:
        what = f"hold {sum(mtp)} MTP layers, {model.name} has {model.mtp_layers}"
        raise InputError(Problem(what=what, key="stages", allowed=f"{model.mtp_layers} MTP layers in all"))
