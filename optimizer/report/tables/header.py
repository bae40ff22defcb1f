"""What was asked, on two lines: the model with its run, and the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.ask.describe import ClusterFacts, ModelFacts, describe_cluster, describe_model
from layoutopt.optimizer.report.tables.console import facts
from layoutopt.optimizer.specs.model import ADAMW
from layoutopt.optimizer.specs.units import (
    format_count,
    format_oversubscription,
    format_rate,
    rough,
)

if TYPE_CHECKING:
    from rich.table import Table

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


def header_pairs(workload: Workload, cluster: ClusterSpec, framework: str) -> list[tuple[str, str]]:
    """Return the model with its run and the cluster, each as a name and its words."""
    model, machine = describe_model(workload), describe_cluster(cluster)
    return [
        ("model", f"{model.name}: {size_words(model)}; {run_words(workload, framework)}"),
        ("cluster", f"{machine.name}: {network_words(machine)}"),
    ]


def run_words(workload: Workload, framework: str) -> str:
    """Say in which batches of what length, in which precision and by what a model is trained."""
    training = workload.training
    batch = f"batch {training.global_batch:,} x {training.sequence_length:,} tokens"
    optimizer = "" if training.optimizer == ADAMW else f"{training.optimizer.kind}, "
    adapter = (
        "" if training.adapter is None else f"{training.adapter.method} of rank {training.adapter.rank}, "
    )
    frozen = f"frozen {', '.join(training.frozen)}, " if training.frozen else ""
    return f"{batch}, {training.precision}, {optimizer}{adapter}{frozen}{framework}"


def header_table(workload: Workload, cluster: ClusterSpec, framework: str) -> Table:
    """Show both lines."""
    return facts(header_pairs(workload, cluster, framework))


def size_words(model: ModelFacts) -> str:
    """Say how large a model is and what its layers are: ``8.03B parameters (7.5B in matrices), 32 layers``."""
    counts = model.parameters
    # A dense model's counts differ by next to nothing, and one of them is enough.
    moe = counts.active < 0.99 * counts.total
    active = f"{format_count(rough(counts.active))} active, " if moe else ""
    size = f"{format_count(rough(counts.total))} parameters ({active}{format_count(rough(counts.matrices))} in matrices)"
    kinds = model.layers_by_kind
    if len(kinds) == 1:
        layers = f"{model.layers} x ({next(iter(kinds))})"
    else:
        layers = " + ".join(f"{count} x ({kind})" for kind, count in kinds.items())
    layers += f", {model.mtp_layers} MTP" if model.mtp_layers else ""
    return f"{size}, {layers}{without(model.left_out)}"


def without(left_out: tuple[str, ...]) -> str:
    """Say behind a model which of its parts are left out, if any."""
    return f", without its {', '.join(left_out)}" if left_out else ""


def network_words(cluster: ClusterFacts) -> str:
    """Say how many GPUs are joined by what: NVLink, NICs, fabric, oversubscription."""
    alone = cluster.gpus <= cluster.gpus_per_node
    nodes = "one node" if alone else f"{cluster.nodes:,} nodes of {cluster.gpus_per_node}"
    words = [f"{cluster.gpus:,} {cluster.gpu} in {nodes}"]
    if cluster.nvlink_domain > 1:
        words.append(f"NVLink {min(cluster.nvlink_domain, cluster.gpus)}")
    if not alone:
        rate = format_rate(8 * cluster.nic_bytes_per_s, "bit/s")
        words.append(f"{cluster.nics_per_node} x {rate} {cluster.fabric}")
        saved = format_oversubscription(cluster.oversubscription)
        words.append(f"{saved} at the {cluster.oversubscribed}" if cluster.oversubscribed else saved)
    return ", ".join(words)
