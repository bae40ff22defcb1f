"""Build a cost model: the full one, or the simple one that a reader can follow by hand."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.cost_model import CostModel
from layoutopt.optimizer.frameworks.preset import calibrated, load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.switches import BY_NAME
from layoutopt.optimizer.specs.layer_runs import by_layer
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.constants import Constants
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


class CostKind(StrEnum):
    """Which preset of the one cost model."""

    FULL = "full"
    SIMPLE = "simple"


SIMPLE_SHARE_OF_PEAK = 0.55
"""Share of dense peak that multiplications reach in the simple model (rule of thumb for large dense training)."""


def build_cost_model(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    *,
    framework: Framework = Framework.MEGATRON,
    software: str | None = None,
    preset: FrameworkPreset | None = None,
    constants: Constants | None = None,
    kind: CostKind = CostKind.FULL,
) -> CostModel:
    """Combine a workload, a cluster and a framework preset into a cost model.

    ``preset`` and ``constants`` replace the package's own; what the training spec states wins over the preset.
    """
    preset = preset or calibrated(load_preset(framework, software), framework, cluster.calibration)
    preset = pricing_preset(preset, model, training, kind)
    constants = constants or load_constants(cluster.calibration)
    links = load_links(cluster.calibration)
    if kind is CostKind.SIMPLE:
        # The rule of thumb knows nominal bandwidths alone: no latency, no share of a link's peak.
        constants, links = _simple_constants(constants), links.ideal()
    return CostModel(
        model=by_layer(model),
        training=preset.runs(training),
        cluster=cluster,
        preset=preset,
        constants=constants,
        topology=Topology(cluster, links),
        ideal=kind is CostKind.SIMPLE,
    )


def pricing_preset(
    preset: FrameworkPreset, model: ModelSpec, training: TrainingSpec, kind: CostKind
) -> FrameworkPreset:
    """Return a preset as a kind of the cost model uses it for a training run."""
    stated = preset.with_training(training)
    # What a trainer does unasked, it does where it can; what a run states was said of its model.
    if training.loss_chunks is None and not BY_NAME["loss_chunks"].of(model):
        stated = replace(stated, loss_chunks=1)
    return _simple_preset(stated) if kind is CostKind.SIMPLE else stated


def _simple_constants(constants: Constants) -> Constants:
    """Give every GPU the same share of peak."""
    caps = {name: SIMPLE_SHARE_OF_PEAK for name in constants.values if name.startswith("gemm_cap.")}
    return constants.with_values(caps)


def _simple_preset(preset: FrameworkPreset) -> FrameworkPreset:
    """16 bytes per parameter (2 weights, 2 gradients, 12 optimizer), no padding, one reduction per step."""
    return replace(
        preset,
        weight_bytes=2,
        grad_bytes=2,
        master_bytes=4,
        moment_bytes=4,
        fsdp_weight_bytes=2,
        grad_comm_bytes=2,
        pad_vocab=False,
        dummy_wgrad=False,
        dp_overlap=True,
        param_overlap=True,
        reduce_each_micro_batch=False,
        keep_gathered_with_pp=False,
        torch_pipeline=False,
    )
