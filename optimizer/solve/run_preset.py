"""The framework preset under stated launch flags: what overlaps and how, where a run departs from the defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.factory import pricing_preset
from layoutopt.optimizer.frameworks.preset import EpOverlap, calibrated, load_preset
from layoutopt.optimizer.specs.vocabulary import Dispatcher

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.space.context import RunOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


def preset_of_run(
    framework: Framework, software: str | None, cluster: ClusterSpec, run: RunOptions | None
) -> FrameworkPreset:
    """Return a framework's preset, calibrated for a cluster, with the flags that a run states on top."""
    preset = calibrated(load_preset(framework, software), framework, cluster.calibration)
    return preset if run is None else replace(preset, **_stated(run))


def preset_of_plan(workload: Workload, cluster: ClusterSpec, options: SolveOptions) -> FrameworkPreset:
    """Return the preset that priced an answer under these options."""
    preset = preset_of_run(options.framework, options.space.software, cluster, None)
    return pricing_preset(preset, workload.model, workload.training, options.cost)


def _stated(run: RunOptions) -> dict[str, Any]:
    """Return the fields of a preset that flags decide."""
    fields: dict[str, Any] = {}
    if run.cp_comm is not None:
        fields["cp_comm"] = run.cp_comm
    if run.tp_comm_overlap is not None:
        fields["tp_overlap"] = run.tp_comm_overlap
    if run.dispatcher is not None:
        fields["dispatcher"] = named_dispatcher(run.dispatcher)
    # One stream hides an exchange: merged passes go first where both are stated, as the rule on both says.
    if run.overlap_moe_expert_parallel_comm:
        fields["ep_overlap"] = EpOverlap.BATCH
    elif run.shared_expert_overlap:
        fields["ep_overlap"] = EpOverlap.SHARED
    elif run.overlap_moe_expert_parallel_comm is False or run.shared_expert_overlap is False:
        fields["ep_overlap"] = EpOverlap.NONE
    return fields


def named_dispatcher(name: str) -> Dispatcher:
    """Return the dispatcher of a trainer's word for it; flex without a backend is DeepEP, NCCL EP sends as it does."""
    if name in ("flex", "ncclep"):
        return Dispatcher.DEEPEP
    # Megatron-LM's default (moe_token_dispatcher_type).
    return Dispatcher(name) if name in tuple(Dispatcher) else Dispatcher.ALLTOALL
