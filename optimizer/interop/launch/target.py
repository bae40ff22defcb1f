"""What an exporter works on: the layout with every default resolved, the model, the run and the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.preset import FrameworkPreset, load_preset
from layoutopt.optimizer.frameworks.registry import EXPORTED, Framework, find_framework
from layoutopt.optimizer.space.context import Context, RunOptions, make_context
from layoutopt.optimizer.space.effective import effective, with_stages
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.record import Release
    from layoutopt.optimizer.interop.records import CheckpointInterval
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One export: ``layout`` has its stages and no meaningless settings; ``version`` as asked for."""

    framework: Framework
    version: str
    release: Release
    layout: Layout
    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    preset: FrameworkPreset
    checkpoint: CheckpointInterval | None = None

    @property
    def global_batch(self) -> int:
        """Sequences per step."""
        return self.layout.dp * self.layout.micro_batch * self.layout.micro_batches

    @property
    def nodes(self) -> int:
        """Hosts that the layout occupies."""
        return self.layout.gpus // self.gpus_per_node

    @property
    def gpus_per_node(self) -> int:
        """Processes per host: as many as fit such that every host has the same number."""
        # torchrun starts as many processes on every node.
        sizes = range(min(self.cluster.gpus_per_node, self.layout.gpus), 0, -1)
        return next(size for size in sizes if self.layout.gpus % size == 0)

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the run, None if its tokens are not stated."""
        tokens, per_step = self.training.total_tokens, self.training.sequence_length * self.global_batch
        return None if tokens is None else max(1, round(tokens / per_step))


def framework_named(name: str) -> Framework:
    """Return the framework of a name or alias that can be exported to. Raises ``InputError`` for others."""
    framework = find_framework(name)
    if framework not in EXPORTED:
        raise input_error(f"no exporter for {name!r}", f"one of {', '.join(EXPORTED)}", key="--to")
    return framework


def version_text(framework: Framework, version: str | None) -> str:
    """Return the release as asked for, the newest where none is; torchtitan's eras may be one letter."""
    stated = version or framework.record.exports or ""
    letter = framework is Framework.TORCHTITAN and stated.upper() in {"A", "B", "C"}
    return f"era {stated.upper()}" if letter else stated


def release_for(to: str, framework: Framework, software: str | None) -> str | None:
    """Return the release to write for where none is asked for: a plan's own, ``software``, if it goes to its trainer.

    Names of releases mean nothing to another trainer: there it is the newest, None.
    """
    return software if framework_named(to) is framework else None


def context_of(
    layout: Layout, workload: Workload, cluster: ClusterSpec, framework: Framework, version: str
) -> Context:
    """Return the question that a launch of a layout is: as many processes as it has ranks."""
    options = RunOptions(processes=layout.gpus)
    return make_context(workload.model, workload.training, cluster, framework, version, options)


def make_target(
    layout: Layout,
    workload: Workload,
    cluster: ClusterSpec,
    to: str,
    *,
    version: str | None = None,
    checkpoint: CheckpointInterval | None = None,
) -> Target:
    """Resolve an export's inputs. Raises ``InputError`` for a batch that the layout does not produce."""
    framework = framework_named(to)
    model, training = workload.model, workload.training
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    if batch != training.global_batch:
        factors = f"{layout.dp} * {layout.micro_batch} * {layout.micro_batches} = {batch}"
        raise input_error(
            f"dp * micro-batch * micro-batches = {factors} is not the global batch {training.global_batch}",
            key="global_batch",
        )
    stated = version_text(framework, version)
    ctx = context_of(layout, workload, cluster, framework, stated)
    # Stages are built from what the layout really does, and once they are there more of it may mean nothing.
    whole = effective(with_stages(effective(layout, ctx), ctx), ctx)
    return Target(
        framework=framework,
        version=stated,
        release=ctx.release,
        layout=whole,
        model=model,
        training=training,
        cluster=cluster,
        preset=load_preset(framework, stated).with_training(training).switched(layout.switches),
        checkpoint=checkpoint,
    )
