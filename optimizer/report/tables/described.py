"""A model, a cluster, and the rules of a trainer on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section
from layoutopt.optimizer.specs.units import format_bytes, format_count, format_oversubscription, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.ask.describe import ClusterFacts, ModelFacts
    from layoutopt.optimizer.space.rule import Rule


def model_table(model: ModelFacts) -> RenderableType:
    """Show parameters, layers by kind, and the run."""
    counts = model.parameters
    experts = (
        [("experts", f"{model.experts:,}, {model.experts_per_token} per token")] if model.experts else []
    )
    tokens = [("tokens", format_count(model.total_tokens))] if model.total_tokens else []
    pairs = [
        ("parameters", f"{format_count(counts.total)} in all"),
        ("", f"{format_count(counts.active)} active: passed by one token"),
        (
            "",
            f"{format_count(counts.matrices)} in matrices: multiplied with one token, the N of 6N FLOP per token",
        ),
        (
            "hidden",
            f"{model.hidden:,}, {model.heads} heads, {model.kv_heads} KV heads, vocabulary {model.vocab:,}",
        ),
        *experts,
        *([("left out", ", ".join(model.left_out))] if model.left_out else []),
        ("batch", f"{model.global_batch:,} x {model.sequence_length:,} tokens, {model.precision}"),
        *tokens,
    ]
    rows = [[kind, str(count)] for kind, count in model.layers_by_kind.items()]
    rows += [["multi-token prediction", str(model.mtp_layers)]] if model.mtp_layers else []
    return Group(
        Text(model.name, style="bold"), facts(pairs), section("Layers", grid(["kind", "layers"], rows))
    )


def cluster_table(cluster: ClusterFacts) -> RenderableType:
    """Show GPUs, nodes and network."""
    rate = format_rate(8 * cluster.nic_bytes_per_s, "bit/s")
    over = format_oversubscription(cluster.oversubscription)
    pairs = [
        ("GPUs", f"{cluster.gpus:,} {cluster.gpu} with {format_bytes(cluster.memory_bytes)}"),
        ("nodes", f"{cluster.nodes:,} of {cluster.gpus_per_node}"),
        ("NVLink", f"joins {cluster.nvlink_domain} GPUs" if cluster.nvlink_domain > 1 else "none"),
        ("network", f"{cluster.nics_per_node} x {rate} {cluster.fabric} per node"),
        ("levels", ", ".join(cluster.levels) or "none: one node or NVLink domain"),
        ("oversubscribed", f"{over} at the {cluster.oversubscribed}" if cluster.oversubscribed else "no"),
    ]
    more = f"layoutopt topology show {cluster.name}: bandwidths and what collectives cost"
    return Group(Text(cluster.name, style="bold"), facts(pairs), section("Next", bullets([more])))


def rules_table(rules: Sequence[Rule], framework: str) -> RenderableType:
    """Show every rule with its formula, why it holds, and the source."""
    parts: list[RenderableType] = [
        Text(
            f"{len(rules)} rules of {framework}: what it can launch; evaluate and explain name those that are broken"
        )
    ]
    for rule in rules:
        pairs = [("formula", rule.formula), ("because", rule.reason), ("source", rule.source)]
        parts.append(section(rule.name, facts(pairs)))
    return Group(*parts)
