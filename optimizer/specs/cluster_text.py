"""A cluster as a file: the whole of it in plain units, so that it can be edited, extended and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.gpu_catalog import find_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec, Observation, StorageSpec

WIDTH = 110
"""Columns of a line of YAML."""


def cluster_text(cluster: ClusterSpec) -> str:
    """Write a cluster as a file that reads back as the same cluster: what ``cluster show --yaml`` gives to edit."""
    data = {"name": cluster.name, **cluster_mapping(cluster)}
    data |= {"calibration": dict(cluster.calibration)} if cluster.calibration else {}
    return dump(data | observations_mapping(cluster.observations))


def observations_mapping(observations: Sequence[Observation]) -> dict[str, Any]:
    """Return the key of a cluster file that holds what was read on it; nothing where nothing was."""
    written = [
        {"name": one.name, "ratio": one.ratio, "spread": one.spread}
        | ({} if one.predicted_s is None else {"predicted": f"{one.predicted_s!r} s"})
        | {key: dict(held) for key, held in (("slopes", one.slopes), ("shares", one.shares)) if held}
        for one in observations
    ]
    return {"observations": written} if written else {}


def dump(data: Mapping[str, Any]) -> str:
    """Write a mapping as YAML in its own order, short lists and mappings on a line."""
    import yaml

    # Not sorted: a reader looks for the GPU and the size at the top, not for the calibration.
    text: str = yaml.safe_dump(dict(data), sort_keys=False, default_flow_style=None, width=WIDTH)
    return text


def cluster_mapping(cluster: ClusterSpec) -> dict[str, Any]:
    """Return the keys of a cluster file in plain units, all stated, without name and calibration."""
    data: dict[str, Any] = {
        "gpu": _gpu(cluster.gpu),
        "gpus": cluster.gpu_count,
        "gpus_per_node": cluster.gpus_per_node,
        "nvlink_domain": cluster.nvlink_domain,
        "nics_per_node": cluster.nics_per_node,
        "nic_bandwidth": _bandwidth(cluster.nic_bytes_per_s),
        "levels": [
            {
                "name": level.name,
                "gpus": level.gpus,
                "oversubscription": level.oversubscription,
                "latency": f"{level.latency_s!r} s",
            }
            for level in cluster.levels
        ],
        "fabric": cluster.fabric.value,
        "rail_optimized": cluster.rail_optimized,
        "in_switch_reduction": cluster.in_switch_reduction,
        "network_reduction": cluster.network_reduction,
        "reserve": _bytes(cluster.reserve_bytes),
        "pue": cluster.pue,
        "nic_power": f"{cluster.nic_power_w!r} W",
        "switch_power": f"{cluster.switch_power_w!r} W",
        "failures": {
            "gpu_hours_per_failure": f"{cluster.failures.gpu_hours_per_failure!r} h",
            "restart": f"{cluster.failures.restart_s!r} s",
        },
    }
    if cluster.failures.hot_restart_s is not None:
        data["failures"]["hot_restart"] = f"{cluster.failures.hot_restart_s!r} s"
    if cluster.failures.repair_s is not None:
        data["failures"]["repair"] = f"{cluster.failures.repair_s!r} s"
    if cluster.failures.spare_nodes:
        data["failures"]["spare_nodes"] = cluster.failures.spare_nodes
    if cluster.host_power_w is not None:
        data["host_power"] = f"{cluster.host_power_w!r} W"
    if cluster.host_memory_bytes is not None:
        data["host_memory"] = _bytes(cluster.host_memory_bytes)
    if cluster.storage is not None:
        data["storage"] = _storage(cluster.storage)
    if cluster.graph is not None:
        data["graph"] = dict(cluster.graph)
    return {key: value for key, value in data.items() if value != []}


def _gpu(gpu: GpuSpec) -> str | dict[str, Any]:
    """Name a GPU that is as the catalog has it; else write all of it."""
    # A GPU that a user changed keeps its name: the name alone would bring the catalog's numbers back.
    try:
        if find_gpu(gpu.name).gpu == gpu:
            return gpu.name
    except InputError:
        pass
    return {
        "name": gpu.name,
        "architecture": gpu.architecture,
        "dense_flops": {precision.value: value for precision, value in gpu.dense_flops.items()},
        "memory": _bytes(gpu.memory_bytes),
        "nominal_memory": _bytes(gpu.nominal_memory_bytes),
        "memory_bandwidth": _bandwidth(gpu.hbm_bytes_per_s),
        **({"nvlink_bandwidth": _bandwidth(gpu.nvlink_bytes_per_s)} if gpu.nvlink_bytes_per_s else {}),
        "nvlink_domain": gpu.nvlink_domain,
        "gpus_per_node": gpu.gpus_per_node,
        "nic_bandwidth": _bandwidth(gpu.nic_bytes_per_s),
        "fabric": gpu.fabric.value,
        "sm_count": gpu.sm_count,
        "tdp": f"{gpu.tdp_w!r} W",
        **({"nominal_tdp": f"{gpu.nominal_tdp_w!r} W"} if gpu.nominal_tdp_w else {}),
        "host_link_bandwidth": _bandwidth(gpu.host_link_bytes_per_s),
        "source": [gpu.source],
    }


def _storage(storage: StorageSpec) -> dict[str, str]:
    return {
        "write_bandwidth": _bandwidth(storage.write_bytes_per_s),
        "per_gpu_bandwidth": _bandwidth(storage.per_gpu_bytes_per_s),
    }


def _bandwidth(bytes_per_s: float) -> str:
    return f"{_in_billions(bytes_per_s)}B/s"


def _bytes(count: float) -> str:
    return f"{_in_billions(count)}B"


def _in_billions(value: float) -> str:
    """Write a number in billions where that is exact, followed by the prefix."""
    # A number that comes back in its last digit only nearly makes another cluster, whose digest and answers are others.
    short = f"{value / 1e9:g}"
    return f"{short} G" if float(short) * 1e9 == value else f"{value!r} "
