"""One GPU as a catalog entry or an inline mapping of a cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from layoutopt.optimizer.specs.cluster import GpuSpec
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.file_model import FileModel
from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.specs.kinds import NAME, SOURCE, FieldKind, quantity, unknown_word, whole, word
from layoutopt.optimizer.specs.units import BANDWIDTH, BYTES, FLOP_RATE, POWER, parse_quantity, shown
from layoutopt.optimizer.specs.vocabulary import NetworkFabric, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.specs.file_model import Finding, PartialFields

MAX_GPUS = 100_000_000
GENERATIONS = generations()
ARCHITECTURES = list(GENERATIONS)
"""Families of calibrated constants."""


def _read_architecture(value: object) -> str:
    if isinstance(value, str) and value in ARCHITECTURES:
        return value
    raise unknown_word(value, ARCHITECTURES)


def _read_flops(value: object) -> dict[Precision, float]:
    if not isinstance(value, dict) or not value:
        raise input_error(f"{shown(value)} is not a mapping", 'FLOP/s by precision: {bf16: "989.4 TFLOP/s"}')
    rates = {}
    for name, rate in value.items():
        if name not in list(Precision):
            raise unknown_word(name, list(Precision))
        rates[Precision(name)] = number = parse_quantity(rate, FLOP_RATE)
        # A precision that the GPU lacks is left out: a rate of 0 would be divided by.
        if number <= 0:
            raise input_error(f"{name}: {shown(rate)} is not above 0", FLOP_RATE.examples)
    return rates


ARCHITECTURE = FieldKind(read=_read_architecture, schema={"enum": list(ARCHITECTURES)})
FLOPS = FieldKind(
    read=_read_flops,
    schema={
        "type": "object",
        "properties": {item.value: {"type": ["number", "string"]} for item in Precision},
        "additionalProperties": False,
    },
)
Gpus = Annotated[int, whole(most=MAX_GPUS)]
Bandwidth = Annotated[float, quantity(BANDWIDTH)]
Fabric = Annotated[NetworkFabric, word(NetworkFabric)]
OptionalFabric = Annotated[NetworkFabric | None, word(NetworkFabric)]

MOST_MEMORY_BYTES = 1e15
"""Far above any GPU's memory, and low enough that the solver's whole numbers hold it."""


LEAST_CAP = 200 / 700
"""Power limit over the rated one down to which GPUs in training are known: limits of 200 to 700 W were set on H100 and H200
of 700 W (arXiv 2604.11391). Below it the power law rests on no run."""


class GpuFile(FileModel):
    """One GPU model."""

    name: Annotated[str, NAME] = Field(description="name in reports")
    architecture: Annotated[str, ARCHITECTURE] = Field(description="family of calibrated constants")
    dense_flops: Annotated[dict[Precision, float], FLOPS] = Field(
        description="FLOP/s without sparsity by precision; a missing precision is not supported"
    )
    memory: Annotated[float, quantity(BYTES, most=MOST_MEMORY_BYTES)] = Field(
        description="memory that the driver shows, bytes"
    )
    nominal_memory: Annotated[float | None, quantity(BYTES)] = Field(
        default=None, description="the datasheet's memory; default memory"
    )
    memory_bandwidth: Bandwidth = Field(description="HBM bandwidth")
    nvlink_bandwidth: Annotated[float | None, quantity(BANDWIDTH)] = Field(
        default=None, description="bandwidth to the GPUs of the NVLink domain, one way; none without NVLink"
    )
    nvlink_domain: Annotated[int | None, whole(most=MAX_GPUS)] = Field(
        default=None, description="GPUs that reach each other over NVLink; 1 without NVLink"
    )
    gpus_per_node: Gpus = Field(description="GPUs in one host")
    nic_bandwidth: Bandwidth = Field(description="one NIC, one way")
    fabric: Fabric = Field(
        default=NetworkFabric.INFINIBAND, description="what joins nodes in the reference system"
    )
    sm_count: Annotated[int, whole(most=100_000)] = Field(
        description="streaming multiprocessors or compute units"
    )
    tdp: Annotated[float, quantity(POWER)] = Field(description="power limit, watts")
    nominal_tdp: Annotated[float | None, quantity(POWER)] = Field(
        default=None,
        description="the part's rated limit, at which it reaches dense_flops; default tdp, or the base's",
    )
    host_link_bandwidth: Bandwidth = Field(description="PCIe or C2C bandwidth to the host, one way")
    node_memory: Annotated[float | None, quantity(BYTES)] = Field(
        default=None, description="RAM of one reference node"
    )
    aliases: Annotated[tuple[str, ...], SOURCE] = Field(
        default=(), description="further names in the catalog"
    )
    source: Annotated[tuple[str, ...], SOURCE] = Field(default=(), description="where the numbers come from")

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that NVLink has a size and a bandwidth, or neither, and that runs were made under such a power limit."""
        if (given.nvlink_domain or 1) > 1 and "nvlink_bandwidth" not in given.stated:
            yield ("nvlink_bandwidth",), "missing", "bandwidth of one GPU's NVLink, one way"
        if given.nvlink_bandwidth and "nvlink_domain" not in given.stated:
            yield ("nvlink_domain",), "missing", "GPUs that reach each other over NVLink"
        if given.tdp and given.nominal_tdp and given.tdp / given.nominal_tdp < LEAST_CAP:
            what = f"{given.tdp:g} W of {given.nominal_tdp:g} W is below every limit that GPUs were measured under"
            yield ("tdp",), what, f"at least {LEAST_CAP * given.nominal_tdp:.4g} W"

    def spec(self) -> GpuSpec:
        """Convert to the form that the other rooms use."""
        return GpuSpec(
            name=self.name,
            architecture=self.architecture,
            generation=GENERATIONS[self.architecture],
            dense_flops=self.dense_flops,
            memory_bytes=self.memory,
            # A layout has what the driver shows, which is another number: 79.2 GiB, 85 GB, of an H100 of 80 GB.
            nominal_memory_bytes=self.nominal_memory or self.memory,
            hbm_bytes_per_s=self.memory_bandwidth,
            nvlink_bytes_per_s=self.nvlink_bandwidth or 0.0,
            nvlink_domain=self.nvlink_domain or 1,
            gpus_per_node=self.gpus_per_node,
            nic_bytes_per_s=self.nic_bandwidth,
            sm_count=self.sm_count,
            tdp_w=self.tdp,
            nominal_tdp_w=self.nominal_tdp,
            host_link_bytes_per_s=self.host_link_bandwidth,
            source="; ".join(self.source),
            fabric=self.fabric,
        )
