"""Export a layout: one function for all frameworks.

The writer of a framework is ``export`` in ``interop/FOLDER/write.py``; ``require_model`` there refuses what it cannot build.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.expressible import require_expressible
from layoutopt.optimizer.interop.launch.limits import Context
from layoutopt.optimizer.interop.launch.target import make_target
from layoutopt.optimizer.interop.megatron.write_model import require_gpt

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import CheckpointInterval, ExportedJob
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload


def export(
    layout: Layout,
    workload: Workload,
    cluster: ClusterSpec,
    to: str,
    *,
    version: str | None = None,
    plan: CheckpointInterval | None = None,
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
    module = importlib.import_module(f"layoutopt.optimizer.interop.{framework.record.folder}.write")
    getattr(module, "require_model", require_gpt)(target.model)
    require_expressible(target.layout, Context(model=target.model, release=target.release), framework)
    job: ExportedJob = module.export(target)
    return job


def _deepspeed_kind(framework: Framework, layout: Layout) -> Framework:
    """Pipelines and sequence parallelism need Megatron-DeepSpeed, the rest is DeepSpeed's own JSON."""
    if framework is Framework.DEEPSPEED and (layout.pp > 1 or layout.sp):
        return Framework.MEGATRON_DEEPSPEED
    return framework
