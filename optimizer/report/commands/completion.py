"""What shells offer after TAB for models and clusters: built-in names first, then files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click
    from click.shell_completion import CompletionItem


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the built-in models, and files."""
    from layoutopt.optimizer.specs.loading import model_names

    return _offers(model_names(), incomplete)


def complete_cluster(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the built-in clusters, and files."""
    from layoutopt.optimizer.specs.loading import cluster_names

    return _offers(cluster_names(), incomplete)


def complete_source(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer models and clusters, where both may stand, and files."""
    from layoutopt.optimizer.specs.loading import cluster_names, model_names

    return _offers((*model_names(), *cluster_names()), incomplete)


def _offers(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    found = [CompletionItem(name) for name in names if name.startswith(incomplete.lower())]
    return found or [CompletionItem(incomplete, type="file")]
