"""Measured collectives (tests/data/evidence/nccl.csv) against their prices, each source left out of what tunes constants.

A row's cluster is its GPU in nodes with the row's NICs. Rows that state no NICs between nodes, no NVLink or GPUs that no
constant knows are skipped with the reason. A row without a size is its source's peak: 8 GiB. Constants are tuned one by
one: from a starting value of other origin, by the median over sources of what each source's rows ask for.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.specs.cluster import ClusterSpec, NetworkLevel
from layoutopt.optimizer.specs.gpu_catalog import find_gpu
from layoutopt.optimizer.specs.reference_fabric import LEAF_LATENCY_S
from layoutopt.optimizer.specs.vocabulary import NetworkFabric
from layoutopt.optimizer.topology.groups import Digit, GroupBatch
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.one import Algorithm, Collective, bus_factor, price_one
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutopt.optimizer.topology.links import LinkConstants

TABLE = Path(__file__).resolve().parents[1] / "data" / "evidence" / "nccl.csv"
PEAK_BYTES = 8 * 2.0**30
BULK_BYTES = 256 * 2.0**20
"""Sizes below are bound by latency, from here on by bandwidth."""

GPUS = {
    "A100": "a100-80g", "A100-40": "a100-40g", "A100-80": "a100-80g", "B200": "b200", "B300": "b300", "GB200": "gb200",
    "GB300": "gb300", "GH200": "h100", "H100": "h100", "H20": "h20", "H200": "h200", "H800": "h800", "MI300X": "mi300x",
    "MI325X": "mi300x", "MI355X": "mi300x", "V100": "v100-32g",
}  # fmt: skip
XGMI_BYTES_PER_S = {"MI355X": 7 * 76.8e9}
"""MI355X: seven links of 76.8 GB/s; MI325X has MI300X's."""
NETWORKS = {"nvswitch-nvl72": "roce", "ethernet-tcp": "ethernet"}
"""Racks of these rows are joined by RoCE."""
COLLECTIVES = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "sendrecv": Collective.SEND_RECV,
}
EXPERT_EXCHANGES = ("dispatch", "combine")
HIDDEN, TOP_K, MOST_NODES = 7168, 8, 4
"""DeepEP's measurements: hidden width, experts per token, nodes that a token may go to."""
FP8_BYTES = 1 + 4 / 128
"""An element with its share of a block's scale."""


@dataclass(frozen=True)
class Row:
    """One measured collective, a cluster like its, and what to know of it."""

    id: str
    repository: str
    fabric: str
    collective: str
    bulk: bool
    measured_s: float
    cluster: ClusterSpec
    ranks: int
    per_node: int
    size_bytes: float
    algorithm: Algorithm | None
    setting: str

    @property
    def rccl(self) -> bool:
        """AMD's library instead of NVIDIA's."""
        return self.cluster.gpu.generation.name in load_links().network_start_s

    @property
    def expert(self) -> bool:
        """Dispatch or combine of an expert-parallel library."""
        return self.collective in EXPERT_EXCHANGES


def read_rows() -> tuple[list[Row], dict[str, str]]:
    """Return the healthy rows that can be priced, and why others cannot."""
    rows, skipped = [], {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        for record in csv.DictReader(file):
            reason = _unusable(record)
            if reason:
                skipped[record["id"]] = reason
            else:
                rows.append(_row(record))
    return rows, skipped


def _unusable(record: Mapping[str, str]) -> str:
    if record["healthy"] != "1":
        return "its poster complains"
    if record["gpu"] not in GPUS:
        return f"no constants of {record['gpu']}"
    if "NVLink off" in record["notes"]:
        return "NVLink switched off"
    if int(record["nodes"]) > 1 and not (record["nics_per_node"] and record["nic_gbit_per_s"]):
        return "NICs not stated"
    return ""


def repository(source: str) -> str:
    """A source is a repository, or the page that it is."""
    first = source.partition("#")[0].split()[0]
    return first if "/" in first else source.partition(":")[0]


def _row(record: Mapping[str, str]) -> Row:
    size = float(record["message_bytes"] or PEAK_BYTES)
    row = Row(
        id=record["id"],
        repository=repository(record["source"]),
        fabric=record["fabric"],
        collective=record["collective"],
        bulk=not record["message_bytes"] or size >= BULK_BYTES,
        measured_s=0.0,
        cluster=_cluster(record),
        ranks=int(record["ranks"]),
        per_node=int(record["ranks_per_node"]),
        size_bytes=size,
        algorithm=Algorithm(record["algorithm"])
        if record["algorithm"] in ("ring", "tree", "sharp")
        else None,
        setting=_setting(record),
    )
    if row.expert:
        return replace(row, measured_s=_expert_s(row, record), bulk="low-latency" not in row.setting)
    collective = COLLECTIVES[row.collective]
    algorithm = row.algorithm if collective is Collective.ALL_REDUCE else None
    return replace(row, measured_s=_measured_s(row, record, collective), algorithm=algorithm)


def _setting(record: Mapping[str, str]) -> str:
    """Tokens, kernel and number format of an expert exchange: 4,096 in FP8, back in bf16, unless its notes differ."""
    if record["collective"] not in EXPERT_EXCHANGES:
        return ""
    notes = record["notes"]
    dtype = "bf16" if "bf16" in notes or record["collective"] == "combine" else "fp8"
    low = "low-latency" in notes
    return f"tokens={128 if low else 4096};dtype={dtype}" + low * ";kernel=low-latency"


def _measured_s(row: Row, record: Mapping[str, str], collective: Collective) -> float:
    """From the bus bandwidth, or from the time where that has too few digits."""
    bus = float(record["busbw_gb_s"] or 0.0)
    if bus > 1.0 or not record["time_us"]:
        return row.size_bytes * bus_factor(collective, row.ranks) / (bus * 1e9)
    return float(record["time_us"]) * 1e-6


def _cluster(record: Mapping[str, str]) -> ClusterSpec:
    gpu = find_gpu(GPUS[record["gpu"]]).gpu
    gpu = replace(gpu, nvlink_bytes_per_s=XGMI_BYTES_PER_S.get(record["gpu"], gpu.nvlink_bytes_per_s))
    node, nodes = int(record["gpus_per_node"]), int(record["nodes"])
    node = max(node, int(record["ranks_per_node"]))
    fabric = NETWORKS.get(record["fabric"], record["fabric"])
    between = fabric if fabric in list(NetworkFabric) else NetworkFabric.INFINIBAND
    switched = gpu.generation.name in load_links().nvls_gain
    return ClusterSpec(
        name=record["id"],
        gpu=gpu,
        gpu_count=node * nodes,
        gpus_per_node=node,
        nvlink_domain=node,
        nics_per_node=int(record["nics_per_node"] or node),
        nic_bytes_per_s=float(record["nic_gbit_per_s"] or 400) / 8 * 1e9,
        levels=(NetworkLevel(name="network", gpus=node * nodes, latency_s=LEAF_LATENCY_S),),
        fabric=NetworkFabric(between),
        in_switch_reduction=switched and record["algorithm"] in ("unknown", "nvls", "sharp"),
    )


def _expert_bytes(row: Row) -> tuple[float, float, float]:
    """Bytes of one rank that its library counts, that leave it inside a node, and that leave its node.

    A token goes to ``TOP_K`` random experts, in at most ``MOST_NODES`` nodes; once to each node, and there once to each
    rank. Low-latency kernels send it once per expert.
    """
    nodes, here = row.ranks // row.per_node, row.per_node
    given = dict(item.split("=") for item in row.setting.split(";"))
    one = int(given["tokens"]) * HIDDEN * (FP8_BYTES if given["dtype"] == "fp8" else 2.0)
    if given.get("kernel") == "low-latency":
        return one * TOP_K, one * TOP_K * (here - 1) / row.ranks, one * TOP_K * (row.ranks - here) / row.ranks
    within = min(nodes, MOST_NODES)
    touched = within * (1 - (1 - 1 / within) ** TOP_K)
    reached = within * here * (1 - (1 - 1 / (within * here)) ** TOP_K)
    counted = one * (touched if nodes > 1 else reached)
    return counted, one * reached * (here - 1) / here, one * touched * (nodes - 1) / nodes


def _expert_s(row: Row, record: Mapping[str, str]) -> float:
    if record["time_us"]:
        return float(record["time_us"]) * 1e-6
    return _expert_bytes(row)[0] / (float(record["algbw_gb_s"]) * 1e9)


def predict_s(row: Row, links: LinkConstants) -> float:
    """Price a row as ``topology cost`` does; dispatch and combine as an exchange that sends a token once per node."""
    if not row.expert:
        price = price_one(
            row.cluster,
            links,
            COLLECTIVES[row.collective],
            size_bytes=row.size_bytes,
            ranks=row.ranks,
            per_node=row.per_node,
            algorithm=row.algorithm,
        )
        return price.seconds
    _, near, far = _expert_bytes(row)
    size, one = np.array([row.ranks]), np.array([1])
    group = GroupBatch(digits=(Digit(size, one),), ranks=size)
    return float(Topology(row.cluster, links).all_to_all_split_s(near, far, group)[0])


@dataclass(frozen=True)
class Tuned:
    """A constant that rows tune: its start, where that is from, and the rows that speak of it."""

    name: str
    start: float
    origin: str
    bulk: bool
    collectives: tuple[str, ...]

    def concerns(self, row: Row) -> bool:
        """A fabric's constants are its rows' affair, NVIDIA's start those of NVIDIA's library on fast fabrics."""
        known = row.fabric in ("nvlink", "infiniband", "roce") and not row.rccl
        own = known if self.name == "collective_start_s" else True
        return row.collective in self.collectives and own


_RINGS = ("all_reduce", "all_gather", "reduce_scatter")
_AS_RING = "the ring's bandwidth"
TUNED = (
    *(
        Tuned(f"nvlink_fraction.{family}", 0.78, "the other generations' median", True, _RINGS)
        for family in ("ampere", "hopper", "blackwell", "cdna3")
    ),
    *(
        Tuned(f"nvls_gain.{family}", 1.3, "NVIDIA on NVLS: +30% inside a node", True, ("all_reduce",))
        for family in ("hopper", "blackwell")
    ),
    Tuned("tree_fraction", 0.78, "NVIDIA/nccl tuning.cc: .92 * .85", True, ("all_reduce",)),
    *(
        tuned
        for fabric in ("infiniband", "roce", "efa", "slingshot", "gpudirect-tcp")
        for tuned in (
            Tuned(
                f"network_fraction.{fabric}",
                0.9,
                "payload of RDMA and Ethernet frames",
                True,
                ("all_reduce",),
            ),
            Tuned(f"network_gather.{fabric}", 1.0, _AS_RING, True, ("all_gather", "reduce_scatter")),
            Tuned(f"network_all_to_all.{fabric}", 1.0, _AS_RING, True, ("alltoall",)),
            Tuned(f"network_p2p.{fabric}", 1.0, _AS_RING, True, ("sendrecv",)),
        )
    ),
    Tuned("sharp_fraction", 0.7, "NCCL 2.27: +25% between nodes", True, ("all_reduce",)),
    Tuned("collective_start_s", 24e-6, "MooreThreads/SimuMax: 22-26 us", False, tuple(COLLECTIVES)),
    Tuned(
        "network_start_s.cdna3",
        320e-6,
        "ROCm/rccl tuning.cc: a ring's way over the network",
        False,
        ("all_reduce",),
    ),
    *(
        Tuned(f"network_hop_s.{fabric}", 5e-6, "an added microsecond or so each way", False, ("all_reduce",))
        for fabric in ("efa", "gpudirect-tcp")
    ),
)
RESPONDS = 0.5
"""Least share of a row's time that a constant must move for the row to speak of it."""


@dataclass(frozen=True)
class Tuning:
    """What each source's rows ask of each constant, as log factors on its start."""

    asked: Mapping[str, Mapping[str, float]]

    def values(self, *, without: str = "") -> dict[str, float]:
        """Return the constants as the sources but one ask for them."""
        found = {}
        for tuned in TUNED:
            factors = [factor for source, factor in self.asked[tuned.name].items() if source != without]
            found[tuned.name] = tuned.start * math.exp(float(np.median(factors)) if factors else 0.0)
        return found


def tune(rows: Sequence[Row]) -> Tuning:
    """Ask the rows constant by constant: NVLink and rings first, what is relative to them and latencies then."""
    usable = [row for row in rows if not row.expert]
    values = {tuned.name: tuned.start for tuned in TUNED}
    asked: dict[str, dict[str, float]] = {}
    for tuned in TUNED:
        speaking = [row for row in usable if row.bulk is tuned.bulk and tuned.concerns(row)]
        asked[tuned.name] = _asked(speaking, tuned, values)
        values[tuned.name] = Tuning(asked | {t.name: {} for t in TUNED if t.name not in asked}).values()[
            tuned.name
        ]
    return Tuning(asked)


def _asked(rows: Iterable[Row], tuned: Tuned, values: Mapping[str, float]) -> dict[str, float]:
    now = load_links(values, alone=True)
    more = load_links({**values, tuned.name: values[tuned.name] * 1.05}, alone=True)
    factors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        seconds = predict_s(row, now)
        elasticity = math.log(predict_s(row, more) / seconds) / math.log(1.05)
        if abs(elasticity) >= (RESPONDS if tuned.bulk else RESPONDS / 2):
            factors[row.repository].append(math.log(row.measured_s / seconds) / elasticity)
    return {source: float(np.median(found)) for source, found in factors.items()}


def left_out_errors(rows: Sequence[Row], tuning: Tuning) -> dict[str, float]:
    """Relative error of every row's price with constants that its own source did not tune."""
    errors = {}
    for source in {row.repository for row in rows}:
        links = load_links(tuning.values(without=source), alone=True)
        for row in rows:
            if row.repository == source:
                errors[row.id] = predict_s(row, links) / row.measured_s - 1
    return errors


def sample_errors(rows: Sequence[Row]) -> dict[str, float]:
    """Relative error of every row's price with the constants of the tables."""
    links = load_links(alone=True)
    return {row.id: predict_s(row, links) / row.measured_s - 1 for row in rows}


def summary(rows: Iterable[Row], errors: Mapping[str, float]) -> dict[str, Any]:
    """Rows, and median, 90th percentile and mean of signed errors."""
    found = np.array([errors[row.id] for row in rows])
    size = np.abs(found)
    return {
        "rows": len(found),
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(found.mean()),
    }


CORE = ("infiniband", "roce", "nvlink")
BARS = {"latency": (0.15, 0.35), "bandwidth": (0.15, 0.35), "experts": (0.20, math.inf)}
"""Median and 90th percentile that the left-out errors may have: collectives on InfiniBand, RoCE and NVLink, and DeepEP."""


def barred(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows behind each bar."""
    core = [row for row in rows if row.fabric in CORE]
    plain = [row for row in core if not row.expert]
    return {
        "latency": [row for row in plain if not row.bulk],
        "bandwidth": [row for row in plain if row.bulk],
        "experts": [row for row in core if row.expert],
    }


def cells(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows by fabric, collective and bound."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        bound = "bandwidth" if row.bulk else "latency"
        found[f"{row.fabric} {row.collective} {bound}"].append(row)
    return dict(sorted(found.items()))
