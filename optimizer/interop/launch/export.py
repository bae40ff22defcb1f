"""Export a layout: one function for all frameworks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.launch.expressible import require_expressible
from layoutopt.optimizer.interop.launch.limits import Context
from layoutopt.optimizer.interop.launch.target import make_target
from layoutopt.optimizer.interop.megatron.write_model import require_gpt
from layoutopt.optimizer.specs.vocabulary import Framework

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Workload
    from layoutopt.optimizer.interop.records import CheckpointSchedule, ExportedJob
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout

_WRITERS = {
    Framework.MEGATRON: ("megatron", "export_megatron"),
    Framework.MEGATRON_BRIDGE: ("bridge", "export_bridge"),
    Framework.TORCHTITAN: ("torchtitan", "export_torchtitan"),
    Framework.DEEPSPEED: ("deepspeed", "export_deepspeed"),
    Framework.MEGATRON_DEEPSPEED: ("megatron_deepspeed", "export_megatron_deepspeed"),
    Framework.NANOTRON: ("nanotron", "export_nanotron"),
    Framework.ACCELERATE: ("accelerate", "export_accelerate"),
}
"""Module and writer of each framework; ``require_model`` in a module refuses what it cannot build."""


def export(
    layout: Layout,
    workload: Workload,
    cluster: ClusterSpec,
    to: str,
    *,
    version: str | None = None,
    plan: CheckpointSchedule | None = None,
) -> ExportedJob:
    """Write the launch configuration of a layout.

    Parameters
    ----------
    layout
        The layout; without stages it is split evenly.
    workload
        Its ``model`` and ``training``; the global batch must be dp * micro-batch * micro-batches.
    cluster
        Decides nodes and processes per node, and settings that depend on the GPU generation.
    to
        A framework's name or alias: megatron-lm, megatron-bridge, torchtitan, deepspeed,
        megatron-deepspeed, nanotron, accelerate.
    version
        The release to write for, e.g. ``core 0.16``; for torchtitan the era (``A``: TOML, ``C``: Python).
        None is the newest.
    plan
        Checkpoint interval in steps; None writes no checkpoint settings.

    Raises
    ------
    NotExpressible
        The framework cannot launch it: one line per axis, with the nearest layout that it can.
    InputError
        No such exporter, or a batch that the layout does not produce.
    """
    target = make_target(layout, workload, cluster, to, version=version, checkpoint=plan)
    framework = _deepspeed_kind(target.framework, target.layout)
    module_name, write_name = _WRITERS[framework]
    module = importlib.import_module(f"layoutopt.optimizer.interop.{module_name}.write")
    getattr(module, "require_model", require_gpt)(target.model)
    require_expressible(target.layout, Context(model=target.model, release=target.release), framework)
    job: ExportedJob = getattr(module, write_name)(target)
    return job


def _deepspeed_kind(framework: Framework, layout: Layout) -> Framework:
    """Pipelines and sequence parallelism need Megatron-DeepSpeed, the rest is DeepSpeed's own JSON."""
    if framework is Framework.DEEPSPEED and (layout.pp > 1 or layout.sp):
        return Framework.MEGATRON_DEEPSPEED
    return framework
