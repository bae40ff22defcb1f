"""What a rule may look at besides the layout: workload, cluster, release, stated flags."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.record import NEWEST, Release, TrainerFamily
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of, parse_release
from layoutopt.optimizer.frameworks.stage_rule import Split
from layoutopt.optimizer.space.stage_splits import nanotron_costs
from layoutopt.optimizer.specs.layer_runs import by_layer
from layoutopt.optimizer.specs.model import Mixer, Mlp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec, TrainingSpec
    from layoutopt.optimizer.specs.vocabulary import CpComm


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Launch flags that decide validity beside the layout; None means not stated and never rejects.

    ``processes`` is the number of launched processes when it differs from the cluster's GPUs, ``idle_gpus``
    allows a layout to leave GPUs out. ``cp_windows`` is the kind of context parallelism of layers with a window where it
    is stated apart. ``microbatch_group`` is Megatron's group size per virtual stage,
    ``dispatcher`` the MoE token dispatcher (allgather, alltoall, flex, deepep, hybridep). ``exact_vocab``:
    the vocabulary isn't padded. ``pipeline_module``: DeepSpeed's pipeline engine is in use even with one
    stage. ``megatron_fsdp_version`` 1 or 2. ``embedding_as_layer`` and ``loss_as_layer`` count them as one
    layer of the pipeline split.
    """

    processes: int | None = None
    idle_gpus: bool = False
    cp_comm: CpComm | None = None
    cp_windows: CpComm | None = None
    microbatch_group: int | None = None
    overlap_p2p: bool | None = None
    embedding_as_layer: bool | None = None
    loss_as_layer: bool | None = None
    tp_comm_overlap: bool | None = None
    overlap_moe_expert_parallel_comm: bool | None = None
    delay_wgrad: bool | None = None
    shared_expert_overlap: bool | None = None
    dispatcher: str | None = None
    grouped_gemm: bool | None = None
    cuda_graphs: bool | None = None
    exact_vocab: bool | None = None
    pipeline_module: bool | None = None
    torch_fsdp2: bool | None = None
    megatron_fsdp_version: int | None = None
    optimizer_offload: bool | None = None
    precision_aware_optimizer: bool | None = None
    activation_offload: bool | None = None
    distribute_saved_activations: bool | None = None
    cuda_device_max_connections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One question: this workload on this cluster, launched by this release of this framework."""

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    framework: Framework
    release: Release = NEWEST
    options: RunOptions = field(default_factory=RunOptions)

    @property
    def gpus(self) -> int:
        """Number of launched processes, one per GPU."""
        return self.cluster.gpu_count if self.options.processes is None else self.options.processes

    @property
    def stage_rule(self) -> StageRule:
        """Which stage lists are searched, over the blocks of ``model``."""
        return replace(self.launch_rule, order=self.model.order)

    @property
    def launch_rule(self) -> StageRule:
        """Which stage lists can be launched, over layers."""
        rule = abilities_of(self.framework, self.release).stage_rule
        megatron = self.framework.record.family is TrainerFamily.MEGATRON_CORE
        if self.model.mtp_layers and megatron and (0, 13) <= self.release < (0, 14):
            # Layout strings name no prediction layers before core 0.14: what remains is what core 0.12 has.
            rule = abilities_of(self.framework, (0, 12)).stage_rule
        if self.experts and self.framework is Framework.MEGATRON and (0, 11) <= self.release < (0, 12):
            # pretrain_gpt.py of core 0.11 refuses --account-for-*-in-pipeline-split beside a load-balancing loss.
            rule = abilities_of(self.framework, (0, 10)).stage_rule
        return replace(rule, costs=nanotron_costs(self.model)) if rule.split is Split.BY_COST else rule

    @property
    def blocks(self) -> int:
        """Number of blocks that stages are made of: layers."""
        return self.model.layers

    @property
    def experts(self) -> int:
        """Number of routed experts, 0 for a dense model."""
        return self.model.moe.experts if self.model.moe else 0

    @property
    def shapes(self) -> Iterator[LayerShape]:
        """Every distinct layer shape of the stack."""
        yield from {shape: None for run in self.model.runs for shape in run.block}

    @property
    def has_attention(self) -> bool:
        """Whether any layer attends."""
        return any(shape.mixer is Mixer.ATTENTION for shape in self.shapes)

    @property
    def has_windows(self) -> bool:
        """Whether any layer attends over a sliding window."""
        return any(shape.mixer is Mixer.ATTENTION and shape.window is not None for shape in self.shapes)

    @property
    def dense_ffns(self) -> tuple[int, ...]:
        """Widths of the dense MLPs of the stack."""
        return tuple(sorted({shape.ffn for shape in self.shapes if shape.mlp is Mlp.DENSE}))


def make_context(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    framework: Framework,
    software: str | None = None,
    options: RunOptions | None = None,
) -> Context:
    """Bundle a question; ``software`` is read by ``parse_release``."""
    release = parse_release(framework, software)
    return Context(
        model=by_layer(model),
        training=load_preset(framework, software).runs(training),
        cluster=cluster,
        framework=framework,
        release=release,
        options=options or RunOptions(),
    )
