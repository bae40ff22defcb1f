"""Where it is trained: GPUs, their NVLink domains, the network above them, and the machine room's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.printable import require_name
from layoutopt.optimizer.specs.vocabulary import NetworkFabric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.specs.vocabulary import Precision


FASTEST_PCIE_BYTES_PER_S = 128e9
"""PCIe 6.0 x16, one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A generation of GPUs: what of it software must know beside rates.

    ``any_arrangement``: 8-bit operands multiply transposed or not, so that one copy of a weight serves both passes.
    ``sized_experts``: one kernel over all local experts takes their token counts from the device.
    ``ordered_streams``: kernels of several streams start in order without ``CUDA_DEVICE_MAX_CONNECTIONS=1``.
    ``deepep``, ``hybridep``: the dispatchers of these names have kernels for it; plans of before they were recorded say
    neither.
    """

    name: str
    any_arrangement: bool
    sized_experts: bool
    ordered_streams: bool
    deepep: bool = False
    hybridep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU model.

    ``dense_flops`` maps each supported precision to dense FLOP/s (no sparsity). ``memory_bytes`` is what
    the driver shows, ``nominal_memory_bytes`` what the datasheet says. Bandwidths are bytes/s, one way.
    ``nvlink_domain`` is the number of GPUs that reach each other over NVLink in the reference system (1 without NVLink),
    ``gpus_per_node`` the number in one host, ``fabric`` what joins its nodes. ``architecture`` names the family
    of calibrated constants, which belongs to a ``generation``. ``tdp_w`` is the power limit, ``nominal_tdp_w`` the part's
    rated one (None: the same); a limit below it is a cap that slows the GPU.
    """

    name: str
    architecture: str
    generation: Generation
    dense_flops: Mapping[Precision, float]
    memory_bytes: float
    nominal_memory_bytes: float
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    nvlink_domain: int
    gpus_per_node: int
    nic_bytes_per_s: float
    sm_count: int
    tdp_w: float
    host_link_bytes_per_s: float
    source: str
    nominal_tdp_w: float | None = None
    fabric: NetworkFabric = NetworkFabric.INFINIBAND

    @property
    def grace(self) -> bool:
        """Whether its host is a Grace CPU: the link to it is NVLink-C2C, faster than any PCIe."""
        # By the link and not by name: a GPU of somebody's own file with such a link has such a host too.
        return self.host_link_bytes_per_s > FASTEST_PCIE_BYTES_PER_S

    @property
    def rated_w(self) -> float:
        """The part's rated power limit, at which it reaches ``dense_flops``."""
        return self.nominal_tdp_w or self.tdp_w

    def __post_init__(self) -> None:
        """Refuse what may not be a name, whichever way it came in."""
        require_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """One switching level above the node, named from the node outward (leaf or rail, pod, spine).

    ``gpus`` is the number of GPUs under one switch group of this level; the outermost level covers the
    cluster. ``oversubscription`` is downlink over uplink capacity towards this level: traffic that crosses
    this level gets NIC bandwidth / oversubscription. ``latency_s`` is one hop through it.
    """

    name: str
    gpus: int
    oversubscription: float = 1.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """Checkpoint storage: sustained write bandwidth of the whole cluster and of one GPU's share, bytes/s."""

    write_bytes_per_s: float
    per_gpu_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSpec:
    """Hardware failures: mean GPU-hours between job interruptions, and the time to restart, seconds.

    ``hot_restart_s``: time in which one replica of the training state takes it from another one while the others train
    on; None: every interruption restarts the whole job. ``repair_s``: how long a failed node is away; None: another one
    always stands ready. ``spare_nodes`` stand ready beside the cluster's own, as do those that a layout leaves idle.
    """

    # 419 unexpected interruptions in 54 days on 16,384 GPUs (Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.4).
    gpu_hours_per_failure: float = 50_700.0
    restart_s: float = 600.0
    hot_restart_s: float | None = None
    repair_s: float | None = None
    spare_nodes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was read on a cluster, for what is believed of constants that it does not tell one by one.

    ``ratio`` is measured over predicted with the cluster's own constants, ``spread`` the standard deviation of its log,
    ``slopes`` by how much the logarithm of the prediction grows with that of a constant. Of a run ``predicted_s`` are its
    seconds and ``shares`` the parts of the step by component; without them a constant was read by itself.
    """

    name: str
    ratio: float
    spread: float
    predicted_s: float | None = None
    slopes: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster of equal nodes.

    ``nvlink_domain`` may exceed ``gpus_per_node`` (NVL72: 4 and 72). ``nic_bytes_per_s`` is one NIC, one
    way; ``nics_per_node`` may be less or more than ``gpus_per_node``. ``levels`` go from the node outward.
    ``fabric`` joins the nodes. ``rail_optimized``: GPUs of the same index in their node share a leaf.
    ``in_switch_reduction``: NVLink switches add up all-reduces (NVLS); ``network_reduction``: so do network
    switches (SHARP). ``reserve_bytes`` is kept free on
    every GPU beside the modelled overhead. ``host_memory_bytes`` is RAM per node.
    ``host_power_w``: of a node beside its GPUs and NICs (None: a share of its GPUs' rated power),
    ``nic_power_w`` of a NIC (NVIDIA ConnectX-7), ``switch_power_w`` of a switch port (1.7 to 2 kW per 64 of 400 Gbit/s).
    ``graph`` is an explicit node-link graph, None to build one from the levels. ``calibration`` overrides constants by name,
    ``observations`` are what it was read from.
    """

    name: str
    gpu: GpuSpec
    gpu_count: int
    gpus_per_node: int
    nvlink_domain: int
    nics_per_node: int
    nic_bytes_per_s: float
    levels: tuple[NetworkLevel, ...]
    fabric: NetworkFabric = NetworkFabric.INFINIBAND
    rail_optimized: bool = True
    in_switch_reduction: bool = False
    network_reduction: bool = False
    reserve_bytes: float = 0.0
    host_memory_bytes: float | None = None
    pue: float = 1.2
    host_power_w: float | None = None
    nic_power_w: float = 25.0
    switch_power_w: float = 29.0
    storage: StorageSpec | None = None
    failures: FailureSpec = field(default_factory=FailureSpec)
    graph: Mapping[str, Any] | None = None
    calibration: Mapping[str, float] = field(default_factory=dict)
    observations: tuple[Observation, ...] = ()

    @property
    def tensor_domain(self) -> int:
        """GPUs close enough for tensor parallelism: those of an NVLink domain, of a node where there is no NVLink."""
        return self.nvlink_domain if self.nvlink_domain > 1 else self.gpus_per_node

    def __post_init__(self) -> None:
        """Refuse what may not be a name, whichever way it came in."""
        require_name(self.name)
