"""The cluster of a measured run: its GPU, its nodes, and the network as far as it is stated."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.case import SkipRow
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.reference_fabric import reference_levels

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec

UNSIZED = {"A100-SXM": "A100-80G-SXM"}
"""Names without a memory size, with the part whose figures are taken: peak and NVLink are the same."""

_GBIT_BYTES = 1e9 / 8


def gpu_of(run: MeasuredRun) -> GpuSpec:
    """Return the catalog's GPU of a row, or raise SkipRow for a name that it does not know."""
    try:
        return _gpu(UNSIZED.get(run.gpu or "", run.gpu or ""))
    except InputError:
        raise SkipRow(f"GPU {run.gpu!r} is not in the catalog") from None


def memory_size_stated(run: MeasuredRun) -> bool:
    """Whether the GPU's name says how much memory it has."""
    return run.gpu not in UNSIZED


def cluster_of(run: MeasuredRun) -> ClusterSpec:
    """Build the reference fabric of the row's GPU with the row's node size and network.

    The stated network of a node is shared equally by its GPUs. An NVLink domain larger than a node is cut to
    the largest number of GPUs that the run fills evenly, as a job takes equal parts of every rack.
    """
    gpu = gpu_of(run)
    count = run.n_gpus or 1
    crossing_s = _crossing_s(run)
    per_node = run.gpus_per_node or min(gpu.gpus_per_node, count)
    fabric = _reference(gpu.name, count)
    domain = _domain(gpu, per_node, count)
    levels = reference_levels(replace(gpu, nvlink_domain=domain, gpus_per_node=per_node), count)
    nic = fabric.nic_bytes_per_s
    if run.internode_gbps is not None:
        nic = run.internode_gbps * _GBIT_BYTES / per_node
    return replace(
        fabric,
        name=f"{gpu.name} x {count}",
        gpus_per_node=per_node,
        nics_per_node=per_node,
        nic_bytes_per_s=nic,
        nvlink_domain=domain,
        levels=tuple(replace(level, latency_s=level.latency_s + crossing_s) for level in levels),
    )


def _domain(gpu: GpuSpec, per_node: int, count: int) -> int:
    if gpu.nvlink_domain < gpu.gpus_per_node:
        return gpu.nvlink_domain
    if gpu.nvlink_domain == gpu.gpus_per_node:
        return per_node
    limit = min(gpu.nvlink_domain, count)
    fitting = [size for size in range(per_node, limit + 1, per_node) if count % size == 0]
    return max(fitting, default=per_node)


def _crossing_s(run: MeasuredRun) -> float:
    """Return the latency that the source's fabric adds to the reference fabric's, seconds per crossing."""
    return sum((latency for phrase, latency in _fabrics() if phrase in (run.source or "")), 0.0)


@cache
def _fabrics() -> tuple[tuple[str, float], ...]:
    import yaml

    text = (
        resources.files("layoutopt.optimizer.evidence").joinpath("fabrics.yaml").read_text(encoding="utf-8")
    )
    return tuple((entry["phrase"], float(entry["crossing_latency"])) for entry in yaml.safe_load(text))


@lru_cache(maxsize=256)
def _gpu(name: str) -> GpuSpec:
    from layoutopt.optimizer.specs.loading import load_gpu

    return load_gpu(name)


@lru_cache(maxsize=1024)
def _reference(name: str, count: int) -> ClusterSpec:
    from layoutopt.optimizer.specs.loading import reference_cluster

    return reference_cluster(name, count)
