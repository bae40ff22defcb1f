"""What a model and a cluster are, in the few numbers by which people recognise them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.parameter_counts import count_parameters

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.parameter_counts import ParameterCounts
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model with its training run: sizes, and how many layers there are of each kind, in the order of the stack."""

    name: str
    parameters: ParameterCounts
    layers: int
    layers_by_kind: dict[str, int]
    mtp_layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    experts: int | None
    experts_per_token: int | None
    sequence_length: int
    global_batch: int
    total_tokens: float | None
    precision: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster in numbers; ``nic_bytes_per_s`` is one NIC, one way.

    ``oversubscription`` is the largest of its levels, 1 for full bisection, and ``oversubscribed`` that level's name.
    """

    name: str
    gpu: str
    gpus: int
    nodes: int
    gpus_per_node: int
    nvlink_domain: int
    nics_per_node: int
    nic_bytes_per_s: float
    fabric: str
    levels: tuple[str, ...]
    oversubscription: float
    oversubscribed: str
    memory_bytes: float


def describe_model(workload: Workload) -> ModelFacts:
    """Count a model."""
    model, training = workload.model, workload.training
    return ModelFacts(
        name=model.name,
        parameters=count_parameters(model),
        layers=model.layers,
        layers_by_kind=_kinds(model),
        mtp_layers=model.mtp_layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        vocab=model.vocab,
        experts=model.moe.experts if model.moe else None,
        experts_per_token=model.moe.top_k if model.moe else None,
        sequence_length=training.sequence_length,
        global_batch=training.global_batch,
        total_tokens=training.total_tokens,
        precision=training.precision.value,
        left_out=model.left_out,
    )


def _kinds(model: ModelSpec) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in model.runs:
        for shape in run.block:
            kind = _kind(model, shape)
            counts[kind] = counts.get(kind, 0) + run.count
    return counts


def _kind(model: ModelSpec, shape: LayerShape) -> str:
    """Name a layer by what makes it cost what it costs: its mixer with the keys that it sees, and its MLP."""
    if shape.compression:
        chosen = f"{model.indexer.top_k:,} chosen ones" if shape.sparse and model.indexer else "all"
        mixer = f"attention window {shape.window:,} and {chosen} of one key per {shape.compression} tokens"
        return f"{mixer} + {_mlp_words(shape)}"
    if shape.sparse and model.indexer is not None:
        own = "" if shape.indexes else " of the layer before"
        mixer = f"attention to {model.indexer.top_k:,} chosen keys{own}"
        return mixer if shape.mlp.value == "none" else f"{mixer} + {_mlp_words(shape)}"
    span = f" {'chunks' if shape.chunked else 'window'} {shape.window:,}" if shape.window else ""
    if shape.window and model.window_kv_heads:
        span += f", {model.window_kv_heads} KV heads"
    parts = [
        f"{shape.mixer.value}{span}",
        _mlp_words(shape),
    ]
    return " + ".join(part for part in parts if part != "none")


def _mlp_words(shape: LayerShape) -> str:
    return f"{shape.mlp.value} MLP" if shape.mlp.value == "dense" else shape.mlp.value


def describe_cluster(cluster: ClusterSpec) -> ClusterFacts:
    """Count a cluster."""
    worst = max(cluster.levels, key=lambda level: level.oversubscription, default=None)
    ratio = worst.oversubscription if worst else 1.0
    return ClusterFacts(
        name=cluster.name,
        gpu=cluster.gpu.name,
        gpus=cluster.gpu_count,
        # The last node may be used in part.
        nodes=-(-cluster.gpu_count // cluster.gpus_per_node),
        gpus_per_node=cluster.gpus_per_node,
        nvlink_domain=cluster.nvlink_domain,
        nics_per_node=cluster.nics_per_node,
        nic_bytes_per_s=cluster.nic_bytes_per_s,
        fabric=cluster.fabric.value,
        levels=tuple(level.name for level in cluster.levels),
        oversubscription=ratio,
        oversubscribed=worst.name if worst and ratio > 1 else "",
        memory_bytes=cluster.gpu.nominal_memory_bytes,
    )
