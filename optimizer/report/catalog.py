"""What is built in: one record for each model, cluster and GPU, found by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KINDS = ("models", "clusters", "gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One built-in model. ``parameters`` counts all, ``active_parameters`` those that a token passes."""

    name: str
    parameters: float
    active_parameters: float
    layers: int
    hidden: int
    sequence_length: int
    global_batch: int
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRow:
    """One built-in cluster; ``nic_bytes_per_s`` is one NIC, one way, ``oversubscription`` of the outermost level."""

    name: str
    gpus: int
    gpu: str
    gpus_per_node: int
    nvlink_domain: int
    nics_per_node: int
    nic_bytes_per_s: float
    levels: tuple[str, ...]
    oversubscription: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU of the catalog; ``dense_flops`` is its peak by precision, without sparsity."""

    name: str
    aliases: tuple[str, ...]
    memory_bytes: float
    dense_flops: dict[str, float]
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    nvlink_domain: int
    gpus_per_node: int
    nic_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The rows of each kind that was asked for."""

    listed: dict[str, tuple[ModelRow | ClusterRow | GpuRow, ...]]

    @property
    def count(self) -> int:
        """Number of rows of all kinds."""
        return sum(len(rows) for rows in self.listed.values())


def find_catalog(kinds: Iterable[str], search: str = "") -> Catalog:
    """Return the rows whose name holds ``search``, case ignored; raises ``InputError`` when there is none."""
    kinds = tuple(kinds)
    found = Catalog(listed={kind: _FIND[kind](search.lower()) for kind in kinds})
    if search and not found.count:
        # Aliases too: people know a GPU by several names.
        names = [name for kind in kinds for name in _names(kind)]
        raise input_error(f"no name holds {search[:60]!r}", _nearest(search, names), key="catalog")
    return found


def _names(kind: str) -> list[str]:
    """Return names, and aliases of GPUs."""
    from layoutopt.optimizer.specs.gpu_catalog import catalog
    from layoutopt.optimizer.specs.loading import cluster_names, model_names

    if kind == "gpus":
        return [name for gpu, entry in catalog().items() for name in (gpu, *entry.get("aliases", ()))]
    return list(model_names() if kind == "models" else cluster_names())


def _nearest(search: str, names: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(search.lower(), names, n=3)
    return f"nearest: {', '.join(near)}" if near else "layoutopt catalog lists them all"


def _models(search: str) -> tuple[ModelRow, ...]:
    from layoutopt.optimizer.cost.parameters import active_parameters, model_parameters
    from layoutopt.optimizer.specs.loading import load_workload

    rows = []
    for name in _names("models"):
        if search in name:
            workload = load_workload(name)
            model, training = workload.model, workload.training
            rows.append(
                ModelRow(
                    name=name,
                    parameters=model_parameters(model),
                    active_parameters=active_parameters(model, with_input_embedding=True),
                    layers=model.layers,
                    hidden=model.hidden,
                    sequence_length=training.sequence_length,
                    global_batch=training.global_batch,
                    precision=training.precision.value,
                )
            )
    return tuple(rows)


def _clusters(search: str) -> tuple[ClusterRow, ...]:
    from layoutopt.optimizer.specs.loading import load_cluster

    rows = []
    for name in _names("clusters"):
        if search in name:
            cluster = load_cluster(name)
            rows.append(
                ClusterRow(
                    name=name,
                    gpus=cluster.gpu_count,
                    gpu=cluster.gpu.name,
                    gpus_per_node=cluster.gpus_per_node,
                    nvlink_domain=cluster.nvlink_domain,
                    nics_per_node=cluster.nics_per_node,
                    nic_bytes_per_s=cluster.nic_bytes_per_s,
                    levels=tuple(level.name for level in cluster.levels),
                    oversubscription=cluster.levels[-1].oversubscription if cluster.levels else 1.0,
                )
            )
    return tuple(rows)


def _gpus(search: str) -> tuple[GpuRow, ...]:
    from layoutopt.optimizer.specs.gpu_catalog import find_gpu
    from layoutopt.optimizer.specs.loading import gpu_names

    rows = []
    for name in gpu_names():
        entry = find_gpu(name)
        if any(search in known for known in (name, *entry.aliases)):
            gpu = entry.gpu
            rows.append(
                GpuRow(
                    name=name,
                    aliases=tuple(entry.aliases),
                    memory_bytes=gpu.nominal_memory_bytes,
                    dense_flops={precision.value: flops for precision, flops in gpu.dense_flops.items()},
                    hbm_bytes_per_s=gpu.hbm_bytes_per_s,
                    nvlink_bytes_per_s=gpu.nvlink_bytes_per_s,
                    nvlink_domain=gpu.nvlink_domain,
                    gpus_per_node=gpu.gpus_per_node,
                    nic_bytes_per_s=gpu.nic_bytes_per_s,
                )
            )
    return tuple(rows)


_FIND: dict[str, Callable[[str], tuple[ModelRow | ClusterRow | GpuRow, ...]]] = {
    "models": _models,
    "clusters": _clusters,
    "gpus": _gpus,
}
