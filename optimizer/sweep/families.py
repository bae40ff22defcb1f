"""One cluster at other sizes and network rates, and when a smaller size lies inside a larger one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.parameters import check_calibration
from layoutopt.optimizer.specs.canonical import digest, to_plain
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.loading import load_cluster, reference_cluster
from layoutopt.optimizer.specs.reference_fabric import resized
from layoutopt.optimizer.topology.graph import cluster_tiers, network_bytes_per_s

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec

BYTES_PER_S_PER_GBIT = 1e9 / 8
SIZE_FIELDS = ("name", "gpu_count", "levels", "storage")
"""What differs between the sizes of one family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFamily:
    """Clusters of one kind at every size: a catalog GPU's reference fabric, or a stated cluster resized.

    ``gpu`` is the catalog name of a reference family, ``base`` the stated cluster of any other.
    """

    name: str
    gpu: str = ""
    base: ClusterSpec | None = None

    def stated(self) -> ClusterSpec:
        """Return the cluster as its file or name states it, of a bare GPU name one GPU."""
        return self.at(self.base.gpu_count if self.base else 1)

    def at(self, gpus: int | None = None) -> ClusterSpec:
        """Return the cluster with ``gpus`` GPUs (None: as stated); raises ``InputError`` if it can't be."""
        base = self.base
        if self.gpu and gpus is not None:
            return reference_cluster(self.gpu, gpus)
        if base is None:
            what = f"{self.name!r} names a GPU, not a cluster"
            raise input_error(what, f"{self.name}x1024, or --gpus", key="cluster")
        if gpus is None or gpus == base.gpu_count:
            return base
        if base.graph is not None:
            what = f"{base.name} is an explicit graph of {base.gpu_count} GPUs"
            raise input_error(
                what, "a cluster described by levels, or GPUNAMExN, to vary its size", key="gpus"
            )
        return resized(base, gpus)


def load_family(source: str) -> ClusterFamily:
    """Load a cluster by file or name; ``NAMExN`` and a bare GPU name stand for the GPU's reference fabric.

    A file of such a name is asked for by a path. Raises ``InputError`` as ``load_cluster`` does.
    """
    from layoutopt.optimizer.specs.gpu_catalog import find_gpu, is_gpu, split_reference

    if is_gpu(source):
        return ClusterFamily(name=source, gpu=find_gpu(source).gpu.name)
    base = load_cluster(source)
    check_calibration(base.calibration, file=source)
    # h100-1024 has the form of a reference too, and is a cluster of its own with another fabric: the name tells.
    if split_reference(source) is not None and base.name == f"{base.gpu.name}x{base.gpu_count}":
        return ClusterFamily(name=base.gpu.name, gpu=base.gpu.name, base=base)
    return ClusterFamily(name=base.name, base=base)


def with_network(cluster: ClusterSpec, gbit_per_s: float | None) -> ClusterSpec:
    """Return the cluster with another network rate per GPU, Gbit/s one way (None: as it is).

    Raises ``InputError`` for an explicit graph, whose links state their own.
    """
    if gbit_per_s is None:
        return cluster
    if cluster.graph is not None:
        what = f"{cluster.name} is an explicit graph, whose links state their own rates"
        raise input_error(what, "a cluster described by levels to vary its network", key="network")
    nic = gbit_per_s * BYTES_PER_S_PER_GBIT * cluster.gpus_per_node / cluster.nics_per_node
    return replace(cluster, nic_bytes_per_s=nic)


def network_gbit_per_s(cluster: ClusterSpec) -> float:
    """Return one GPU's share of its node's NICs, Gbit/s one way."""
    return network_bytes_per_s(cluster) / BYTES_PER_S_PER_GBIT


def kind_digest(cluster: ClusterSpec) -> str:
    """Return a digest of everything but a cluster's size."""
    plain = to_plain(cluster)
    return digest({name: value for name, value in plain.items() if name not in SIZE_FIELDS})


def tier_rows(cluster: ClusterSpec) -> list[list[float | str]]:
    """Write the tiers above the NVLink domain: name, inside, outside, bytes/s, way in seconds."""
    tiers = () if cluster.graph is not None else cluster_tiers(cluster)
    return [[tier.name, tier.inside, tier.outside, tier.bytes_per_s, tier.latency_s] for tier in tiers]


def tiers_nest(small: list[list[float | str]], large: list[list[float | str]], small_gpus: int) -> bool:
    """Tell whether the first GPUs of a larger cluster are linked exactly as a smaller cluster of its kind.

    Both are ``tier_rows``. Tiers that the smaller size fills must be equal; its outermost may join more GPUs
    in the larger cluster.
    """
    if len(small) > len(large):
        return False
    for index, (ours, theirs) in enumerate(zip(small, large, strict=False)):
        outermost = index == len(small) - 1
        reaches = float(theirs[2]) >= small_gpus if outermost else ours[2] == theirs[2]
        if not reaches or [*ours[:2], *ours[3:]] != [*theirs[:2], *theirs[3:]]:
            return False
    return bool(small) or not large or float(large[0][1]) >= small_gpus
