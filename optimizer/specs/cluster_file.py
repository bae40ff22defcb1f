"""The cluster file: its keys, their checks, and the conversion to ``ClusterSpec``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from layoutopt.optimizer.specs.cluster import ClusterSpec, FailureSpec, NetworkLevel, Observation, StorageSpec
from layoutopt.optimizer.specs.document import exists
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.file_model import FileModel
from layoutopt.optimizer.specs.gpu_catalog import catalog, entry_name
from layoutopt.optimizer.specs.gpu_file import MAX_GPUS, Bandwidth, GpuFile, OptionalFabric
from layoutopt.optimizer.specs.kinds import NAME, SOURCE, SWITCH, FieldKind, as_kind_error, quantity, whole
from layoutopt.optimizer.specs.printable import as_name
from layoutopt.optimizer.specs.reference_fabric import LEAF_LATENCY_S
from layoutopt.optimizer.specs.units import (
    BANDWIDTH,
    BYTES,
    HOURS,
    NUMBER,
    POWER,
    RATIO,
    TIME,
    parse_quantity,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutopt.optimizer.specs.document import Document
    from layoutopt.optimizer.specs.file_model import Finding, PartialFields

OptionalGpus = Annotated[int | None, whole(most=MAX_GPUS)]


class LevelFile(FileModel):
    """One switching level above the node."""

    name: Annotated[str, NAME] = Field(description="name of the level: leaf, pod, spine")
    gpus: OptionalGpus = Field(default=None, description="GPUs under one switch group of this level")
    nodes: OptionalGpus = Field(default=None, description="nodes under one switch group, instead of gpus")
    oversubscription: Annotated[float, quantity(RATIO, least=1.0, most=1e6)] = Field(
        default=1.0,
        description="downlink over uplink capacity towards this level: 3 or 3:1, 1 for full bisection",
    )
    latency: Annotated[float, quantity(TIME, least=0.0, most=1.0)] = Field(
        default=0.0, description="one hop through this level"
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that the size is given once."""
        if given.gpus and given.nodes:
            yield ("nodes",), "is given beside gpus", "one of the two"


class StorageFile(FileModel):
    """Checkpoint storage."""

    write_bandwidth: Bandwidth = Field(description="sustained write bandwidth of the whole cluster")
    per_gpu_bandwidth: Annotated[float | None, quantity(BANDWIDTH)] = Field(
        default=None, description="most that one GPU can write; default its NIC's bandwidth"
    )


class FailuresFile(FileModel):
    """How often hardware interrupts a job, and what a restart costs."""

    gpu_hours_per_failure: Annotated[float, quantity(HOURS)] = Field(
        default=FailureSpec().gpu_hours_per_failure, description="mean GPU-hours between interruptions"
    )
    restart: Annotated[float, quantity(TIME, least=0.0)] = Field(
        default=FailureSpec().restart_s, description="time from an interruption to training again"
    )
    hot_restart: Annotated[float | None, quantity(TIME, least=0.0)] = Field(
        default=None,
        description="time in which a replica takes its state from another one, the others training on; left out: "
        "every interruption restarts the whole job",
    )
    repair: Annotated[float | None, quantity(TIME, least=0.0)] = Field(
        default=None,
        description="time that a failed node is away; left out: another one always stands ready",
    )
    spare_nodes: Annotated[int, whole(least=0)] = Field(
        default=0, description="nodes beside the cluster's own that stand ready for failed ones"
    )


def _read_numbers(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise input_error(f"{shown(value)} is not a mapping", "numbers by name")
    numbers = {}
    for name, item in value.items():  # each by itself, so that the message names the one that is wrong
        try:
            numbers[str(name)] = parse_quantity(item, NUMBER)
        except InputError:
            raise input_error(f"{shown(name)}: {shown(item)} is not a finite number", "a number") from None
    return numbers


NUMBERS = FieldKind(read=_read_numbers, schema={"type": "object", "additionalProperties": {"type": "number"}})


LEAST_SPREAD = 1e-4
"""Nothing that is read repeats better; a reading without any spread would outweigh all else that is known."""

LARGEST_SLOPE = 10.0
"""A time grows with a constant in proportion, or its inverse: slopes are about 1 at most."""

WHOLE = 0.01
"""Shares of a step are rounded: their sum is 1 but for so much."""


class ObservationFile(FileModel):
    """What was read on the cluster, as calibrate writes it: of a run its whole step, or one constant by itself."""

    name: Annotated[str, NAME] = Field(description="the run, or where the constant was read")
    ratio: Annotated[float, quantity(NUMBER, above=0.0, most=1e3)] = Field(
        description="measured over predicted with the cluster's own constants"
    )
    spread: Annotated[float, quantity(NUMBER, least=LEAST_SPREAD, most=10.0)] = Field(
        description="standard deviation of the logarithm of what was read"
    )
    predicted: Annotated[float | None, quantity(TIME)] = Field(
        default=None, description="predicted time of a step, of a run"
    )
    slopes: Annotated[dict[str, float], NUMBERS] = Field(
        default={}, description="by how much the logarithm of the prediction grows with that of a constant"
    )
    shares: Annotated[dict[str, float], NUMBERS] = Field(
        default={}, description="parts of the step by component, of a run"
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that shares are the parts of one step, and slopes those of a time."""
        shares = given.shares or {}
        if any(share < 0 for share in shares.values()):
            yield ("shares",), "are no parts of a step", "numbers of at least 0 that sum to 1"
        elif shares and abs(sum(shares.values()) - 1) > WHOLE:
            what = f"sum to {sum(shares.values()):.4g}, no parts of one step"
            yield ("shares",), what, "numbers that sum to 1"
        for name, slope in (given.slopes or {}).items():
            if abs(slope) > LARGEST_SLOPE:
                allowed = f"between {-LARGEST_SLOPE:g} and {LARGEST_SLOPE:g}, mostly between -1 and 1"
                yield ("slopes", name), f"{slope:.4g} is no slope of a time", allowed

    def spec(self) -> Observation:
        """Convert to an ``Observation``."""
        return Observation(
            name=self.name,
            ratio=self.ratio,
            spread=self.spread,
            predicted_s=self.predicted,
            slopes=self.slopes,
            shares=self.shares,
        )


MOST_OBSERVATIONS = 200
"""Far more than ten calibrations leave."""


def _read_calibration(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise input_error(f"{shown(value)} is not a mapping", "constants by name: {gemm_cap.hopper: 0.65}")
    # Which names there are is checked where constants are read (evidence/parameters.py): rooms above this one own them.
    return {str(name): _read_constant(str(name), item) for name, item in value.items()}


def _read_constant(name: str, item: object) -> float:
    """Read a number, or a mapping of ``value`` and ``source``."""
    value = item.get("value") if isinstance(item, dict) and item.keys() <= {"value", "source"} else item
    try:
        number = parse_quantity(value, NUMBER)
    except InputError:
        raise input_error(f"{name}: {shown(value)} is not a finite number", "a number above 0") from None
    if number <= 0:
        raise input_error(f"{name}: {shown(value)} is not above 0", "a number above 0")
    return number


CALIBRATION = FieldKind(
    read=_read_calibration,
    schema={
        "type": "object",
        "additionalProperties": {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "object", "properties": {"value": {"type": "number"}, "source": {"type": "string"}}},
            ]
        },
    },
)


def _read_graph(value: object) -> Any:
    if isinstance(value, str | dict):
        return value
    allowed = "a node-link mapping, or a path to node-link JSON or GraphML"
    raise input_error(f"{shown(value)} is not a graph", allowed)


GRAPH = FieldKind(read=_read_graph, schema={"type": ["object", "string"]})


@as_kind_error
def _expand_gpu(value: object) -> object:
    """Turn a catalog name, or a mapping with ``base``, into a whole entry."""
    if isinstance(value, str):
        # An alias becomes the entry's name: h100-sxm and h100 are one GPU to reports and digests.
        return {"name": (name := entry_name(value)), **catalog()[name]}
    if not isinstance(value, dict) or "base" not in value:
        return value
    if not isinstance(value["base"], str):
        raise input_error(f"base {shown(value['base'])} is not a name", ", ".join(catalog()))
    name = entry_name(value["base"])
    base = catalog()[name]
    rated = {"nominal_tdp": base["tdp"], **base}  # a limit below the base's is a cap on the same silicon
    return {"name": name, **rated, **{key: item for key, item in value.items() if key != "base"}}


def _or_name(schema: dict[str, Any]) -> None:
    # Before 2.9 pydantic wrapped a reference that has other keys beside it into ``allOf``.
    reference = schema.pop("$ref", None) or schema.pop("allOf", [{}])[0].get("$ref")
    entry = {"type": "object", "required": ["base"], "properties": {"base": {"enum": list(catalog())}}}
    schema["anyOf"] = [{"type": "string", "examples": list(catalog())}, entry, {"$ref": reference}]


class ClusterFile(FileModel):
    """A cluster of equal nodes."""

    file_kind: ClassVar[str] = "cluster"
    name: Annotated[str | None, NAME] = Field(
        default=None, description="name in reports; the file's if left out"
    )
    base: Annotated[str | None, NAME] = Field(
        default=None,
        description="a built-in cluster, or NAMExN: stands for every key that this file leaves out",
    )
    gpu: Annotated[GpuFile, BeforeValidator(_expand_gpu)] = Field(
        description="catalog name, mapping with base (a catalog name) and changes, or a whole mapping",
        json_schema_extra=_or_name,
    )
    nodes: OptionalGpus = Field(default=None, description="number of nodes (or give gpus)")
    gpus: OptionalGpus = Field(default=None, description="number of GPUs; the last node may be partly used")
    gpus_per_node: OptionalGpus = Field(default=None, description="GPUs in one host; default the GPU's")
    nvlink_domain: OptionalGpus = Field(
        default=None, description="GPUs that reach each other over NVLink; default the GPU's"
    )
    nics_per_node: OptionalGpus = Field(default=None, description="NICs in one host; default one per GPU")
    nic_bandwidth: Annotated[float | None, quantity(BANDWIDTH)] = Field(
        default=None, description="one NIC, one way; default the GPU's"
    )
    levels: list[LevelFile] = Field(
        default=[], description="switching levels from the node outward; default one with full bisection"
    )
    fabric: OptionalFabric = Field(
        default=None, description="what joins nodes; default the GPU's reference system's"
    )
    rail_optimized: Annotated[bool, SWITCH] = Field(
        default=True, description="GPUs of the same index in their node share a leaf"
    )
    in_switch_reduction: Annotated[bool, SWITCH] = Field(
        default=False, description="NVLink switches add up all-reduces (NVLS)"
    )
    network_reduction: Annotated[bool, SWITCH] = Field(
        default=False, description="network switches add up all-reduces (SHARP)"
    )
    graph: Annotated[Any, GRAPH] = Field(
        default=None,
        description="explicit graph: node-link mapping, or a path beside this file (JSON, GraphML)",
    )
    storage: StorageFile | None = Field(
        default=None,
        description="checkpoint storage; left out: 122 MB/s for each GPU, as 16,384 of Llama 3 had",
    )
    failures: FailuresFile = Field(default=FailuresFile(), description="hardware failures")
    reserve: Annotated[float, quantity(BYTES, least=0.0)] = Field(
        default=0.0, description="memory kept free on every GPU"
    )
    host_memory: Annotated[float | None, quantity(BYTES)] = Field(default=None, description="RAM of one node")
    pue: Annotated[float, quantity(NUMBER, least=1.0, most=10.0)] = Field(
        default=1.2, description="power usage effectiveness of the machine room"
    )
    host_power: Annotated[float | None, quantity(POWER, least=0.0)] = Field(
        default=None, description="of a node beside its GPUs and NICs; default 36% of its GPUs' rated power"
    )
    nic_power: Annotated[float, quantity(POWER, least=0.0)] = Field(default=25.0, description="of one NIC")
    switch_power: Annotated[float, quantity(POWER, least=0.0)] = Field(
        default=29.0, description="of one switch port"
    )
    calibration: Annotated[dict[str, float], CALIBRATION] = Field(
        default={}, description="constants of the cost model by name: a number, or {value, source}"
    )
    observations: list[ObservationFile] = Field(
        default=[], description="what was read on the cluster beside its constants: calibrate writes it"
    )
    source: Annotated[tuple[str, ...], SOURCE] = Field(default=(), description="where the numbers come from")

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check numbers of GPUs and the nesting of NVLink domains, nodes and levels."""
        yield from _check_sizes(given)
        yield from _check_levels(given)
        if len(given.observations or ()) > MOST_OBSERVATIONS:
            yield ("observations",), f"{len(given.observations)} of them", f"at most {MOST_OBSERVATIONS}"
        names = [one.name for one in given.observations or ()][:MOST_OBSERVATIONS]
        # A reading that is there twice would count twice, as if it had been repeated.
        for place, name in enumerate(names):
            if name in names[:place]:
                yield ("observations", place, "name"), f"{shown(name)} is there before", "each reading once"

    def cluster(self, default_name: str, document: Document) -> ClusterSpec:
        """Convert to a ``ClusterSpec``; reads the graph if one is named."""
        node, _, gpus = _sizes(self)
        assert node is not None
        assert gpus is not None
        nic_bytes_per_s = self.nic_bandwidth or self.gpu.nic_bandwidth
        return ClusterSpec(
            name=self.name or as_name(default_name),
            gpu=self.gpu.spec(),
            gpu_count=gpus,
            gpus_per_node=node,
            nvlink_domain=self.nvlink_domain or self.gpu.nvlink_domain or 1,
            nics_per_node=self.nics_per_node or node,
            nic_bytes_per_s=nic_bytes_per_s,
            levels=tuple(_levels(self.levels, node, gpus)) or _whole(node, gpus),
            fabric=self.fabric or self.gpu.fabric,
            rail_optimized=self.rail_optimized,
            in_switch_reduction=self.in_switch_reduction,
            network_reduction=self.network_reduction,
            reserve_bytes=self.reserve,
            host_memory_bytes=self.host_memory,
            pue=self.pue,
            host_power_w=self.host_power,
            nic_power_w=self.nic_power,
            switch_power_w=self.switch_power,
            storage=_storage(self.storage, nic_bytes_per_s),
            failures=FailureSpec(
                gpu_hours_per_failure=self.failures.gpu_hours_per_failure,
                restart_s=self.failures.restart,
                hot_restart_s=self.failures.hot_restart,
                repair_s=self.failures.repair,
                spare_nodes=self.failures.spare_nodes,
            ),
            graph=self._graph(document),
            calibration=self.calibration,
            observations=tuple(one.spec() for one in self.observations),
        )

    def _graph(self, document: Document) -> Mapping[str, Any] | None:
        from layoutopt.optimizer.specs.graph_file import check_graph, read_graph

        if self.graph is None:
            return None
        if isinstance(self.graph, str):
            # Beside the cluster file, wherever the command is run: the two are moved together.
            path = Path(document.file).parent / self.graph
            if not exists(path):
                raise InputError(document.problem(("graph",), f"{shown(self.graph)}: no such file", "a path"))
            return read_graph(path)
        return check_graph(self.graph, document, ("graph",))


def _sizes(given: Any) -> tuple[int | None, int | None, int | None]:
    """Return GPUs per node, nodes and GPUs as far as they are known."""
    node = given.gpus_per_node or (given.gpu.gpus_per_node if given.gpu else None)
    gpus = given.gpus or (given.nodes * node if given.nodes and node else None)
    return node, given.nodes, gpus


def _check_sizes(given: PartialFields) -> Iterator[Finding]:
    """Check the number of GPUs and that nodes and NVLink domains nest."""
    node, nodes, gpus = _sizes(given)
    if not given.stated & {"nodes", "gpus"}:
        yield ("gpus",), "missing", "number of GPUs, or nodes"
    if nodes and node and given.gpus and nodes * node != gpus:
        what = f"{gpus}, but nodes {nodes} x gpus_per_node {node} = {nodes * node}"
        yield ("gpus",), what, "one of the two keys"
    if gpus and gpus > MAX_GPUS:
        yield ("nodes",), f"{gpus} GPUs", f"at most {MAX_GPUS}"
    # Process groups are told apart by their stride: a domain that cuts nodes has no stride for what lies within it.
    domain = given.nvlink_domain or (given.gpu.nvlink_domain if given.gpu else None)
    if given.gpu and not given.gpu.nvlink_bandwidth and (given.nvlink_domain or 1) > 1:
        yield ("nvlink_domain",), f"{given.gpu.name} has no NVLink", "1, or a GPU with nvlink_bandwidth"
    if node and domain and max(node, domain) % min(node, domain):
        key = "nvlink_domain" if given.nvlink_domain else "gpus_per_node"
        what = f"NVLink domains of {domain} GPUs and nodes of {node} do not nest"
        yield (key,), what, f"a divisor or a multiple of {node if key == 'nvlink_domain' else domain}"


def _check_levels(given: PartialFields) -> Iterator[Finding]:
    """Check that levels grow, nest, and cover the cluster."""
    node, _, gpus = _sizes(given)
    if not given.levels or not node or not gpus:
        return
    last = len(given.levels) - 1
    below, name = node, "a node"
    for index, level in enumerate(_levels(given.levels, node, gpus)):
        key = ("levels", index, "nodes" if given.levels[index].nodes else "gpus")
        if index < last and not given.levels[index].gpus and not given.levels[index].nodes:
            yield key, "missing", "GPUs under one switch group; only the last level may leave it out"
            return
        # A cluster that is smaller than its outermost level is one that may grow: levels need not be full.
        stated = given.levels[index].gpus or given.levels[index].nodes
        if stated and level.gpus <= below and (index or level.gpus < gpus):
            yield key, f"{level.name} joins {level.gpus} GPUs, {name} {below}", "sizes that grow outward"
        elif level.gpus % below and level.gpus < gpus:
            yield key, f"{level.gpus} GPUs are no multiple of the {below} of {name}", f"a multiple of {below}"
        elif index == last and level.gpus < gpus:
            yield key, f"the outermost level joins {level.gpus} of {gpus} GPUs", f"{gpus}, or leave it out"
        below, name = max(level.gpus, below), level.name


def _levels(levels: list[LevelFile], node: int, gpus: int) -> Iterator[NetworkLevel]:
    for level in levels:
        yield NetworkLevel(
            name=level.name,
            gpus=level.gpus or (level.nodes * node if level.nodes else gpus),
            oversubscription=level.oversubscription,
            latency_s=level.latency,
        )


def _whole(node: int, gpus: int) -> tuple[NetworkLevel, ...]:
    """One level with full bisection over the cluster."""
    return (NetworkLevel(name="network", gpus=gpus, latency_s=LEAF_LATENCY_S),) if gpus > node else ()


def _storage(storage: StorageFile | None, nic_bytes_per_s: float) -> StorageSpec | None:
    if storage is None:
        return None
    return StorageSpec(
        write_bytes_per_s=storage.write_bandwidth,
        per_gpu_bytes_per_s=storage.per_gpu_bandwidth or nic_bytes_per_s,
    )
