"""``nvidia-smi topo -m``: NVLink domain, NICs, and which NIC each GPU reaches without crossing the CPU."""

from __future__ import annotations

import re
from itertools import permutations
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.interop.records import GpuTopology
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping

_KNOWN = r"GPU\d+|NIC\d+|mlx\d+_[0-9a-z]+|bnxt_re\d+|rdma[0-9a-z_]+"
_BETWEEN = r"(?:\b|(?<=\d))(?:{names})(?=\b|GPU|NIC|mlx|bnxt|rdma)"
"""A device; nvidia-smi writes columns as wide as NIC10, so that longer names touch: ``NIC11NIC12``."""

_ROCM = re.compile(r"ROCm System Management|Weight between two GPUs|Link Type between two GPUs|XGMI")
MOST_DEVICES, MOST_LINES, LONGEST_LINE = 512, 5_000, 20_000
"""Devices of a matrix, lines within which it stands, and characters of its header; far above those of any node."""

_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
_NAMES = re.compile(r"^\s*(NIC\d+):\s*(\S+)", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
LISTING = r"^=+NVSMI LOG=+|^\| NVIDIA-SMI \d"
"""What ``nvidia-smi`` and ``nvidia-smi -q`` begin with."""

GPU_DIRECT = ("PIX", "PXB")
"""Paths that stay below the host bridge: at most PCIe switches between GPU and NIC."""

Links = dict[tuple[str, str], str]


@importer
def import_topo(text: str, file: str = "") -> GpuTopology:
    """Read the matrix, tab-separated or pasted with blanks. Raises ``InputError`` for rocm-smi's."""
    plain = _ANSI.sub("", text)
    if _ROCM.search(plain):
        raise input_error("is rocm-smi's, which is not read", "the output of nvidia-smi topo -m", file=file)
    if re.search(LISTING, plain, re.MULTILINE):
        what = "lists GPUs, not how they are joined"
        raise input_error(what, "the output of nvidia-smi topo -m", file=file)
    devices, links = _matrix(plain, file)
    gpus = [device for device in devices if device.startswith("GPU")]
    nics = [device for device in devices if not device.startswith("GPU")]
    domain = _largest_island(gpus, links)
    names = dict(_NAMES.findall(plain))
    affine = [tuple(nic for nic in nics if links.get((gpu, nic)) in GPU_DIRECT) for gpu in gpus]
    # NICs that are reached through the CPU are named, and not counted as the GPUs' own.
    used = {nic for near in affine for nic in near}
    return GpuTopology(
        gpus=len(gpus),
        nvlink_domain=len(domain),
        nvlinks=_fewest_links(domain, links),
        nics=len(used),
        gpu_nics=tuple(tuple(names.get(nic, nic) for nic in near) for near in affine),
        other_nics=tuple(names.get(nic, nic) for nic in nics if nic not in used),
        notes=_notes(gpus, nics, domain, used, links),
    )


def _devices(lines: list[str]) -> re.Pattern[str]:
    """Return what finds devices in the header: the usual names, and those of the matrix's own rows."""
    rows = [line.split(maxsplit=3) for line in lines[:MOST_LINES]]
    own = {row[0] for row in rows if len(row) > 2 and all(_LINK.fullmatch(cell) for cell in row[1:3])}
    # The longest first: a name may begin another one, and columns may touch.
    named = [name for name in own if re.fullmatch(r"[A-Za-z][\w.-]{1,40}", name)]
    names = sorted(named, key=len, reverse=True)
    return re.compile(_BETWEEN.format(names="|".join((*map(re.escape, names[:MOST_DEVICES]), _KNOWN))))


def _matrix(text: str, file: str) -> tuple[list[str], Links]:
    lines = text.splitlines()
    device = _devices(lines)
    short = [(index, line) for index, line in enumerate(lines[:MOST_LINES]) if len(line) <= LONGEST_LINE]
    heads = (index for index, line in short if len(device.findall(line)) > 1 or _only_gpu(line))
    header = next(heads, None)
    if header is None:
        raise input_error("no topology matrix", "the output of nvidia-smi topo -m", file=file)
    devices = device.findall(lines[header])
    links: Links = {}
    for number, line in enumerate(lines[header + 1 :], start=header + 2):
        # cells hold no blanks up to the affinity columns, so tabs or blanks make no difference
        cells = line.split()
        if not cells or cells[0] not in devices:
            continue
        row = cells[1 : 1 + len(devices)]
        if len(row) < len(devices) or not all(_LINK.fullmatch(cell) for cell in row):
            what = f"row {cells[0]} does not match the header"
            raise input_error(what, "one cell per device", file=file, line=number)
        links |= {(cells[0], other): cell for other, cell in zip(devices, row, strict=True)}
    gpus = [device for device in devices if device.startswith("GPU")]
    missing = [gpu for gpu in gpus if (gpu, gpu) not in links]
    if not gpus or missing:
        what = f"no row for {missing[0]}" if missing else "no GPU in the header"
        raise input_error(what, "one row per GPU", file=file)
    return devices, links


def _only_gpu(line: str) -> bool:
    # With one GPU the header names one device, as many another line does; its affinity columns tell.
    return "GPU0" in line and "Affinity" in line


def _is_nvlink(link: str | None) -> bool:
    return link is not None and link.startswith("NV")


def _largest_island(gpus: list[str], links: Mapping[tuple[str, str], str]) -> list[str]:
    """GPUs connected over NVLink, directly or through others; a single GPU when there is none."""
    left, best = set(gpus), gpus[:1]
    while left:
        island, near = set[str](), {min(left, key=gpus.index)}
        while near:
            island |= near
            rest = left - island
            near = {gpu for gpu in rest if any(_is_nvlink(links.get((gpu, one))) for one in island)}
        left -= island
        if len(island) > len(best):
            best = [gpu for gpu in gpus if gpu in island]
    return best


def _fewest_links(domain: list[str], links: Mapping[tuple[str, str], str]) -> int:
    # The fewest: a ring is as fast as its slowest pair.
    pairs = map(links.get, permutations(domain, 2))
    counts = [int(link[2:]) for link in pairs if link is not None and _is_nvlink(link)]
    return min(counts, default=0)


def _notes(
    gpus: list[str], nics: list[str], domain: list[str], used: set[str], links: Mapping[tuple[str, str], str]
) -> tuple[str, ...]:
    notes = []
    if any(not _is_nvlink(links.get(pair)) for pair in permutations(domain, 2)):
        notes.append("NVLink is not all-to-all: some pairs reach each other only through others")
    if 1 < len(domain) < len(gpus):
        alone = [gpu for gpu in gpus if not any(_is_nvlink(links.get((gpu, other))) for other in gpus)]
        if alone:
            shown = ", ".join(alone)
            notes.append(f"{len(alone)} of {len(gpus)} GPUs have no NVLink, unlike the others: {shown}")
    if nics and not used:
        why = "traffic crosses the CPU, or a virtual machine hides the paths"
        notes.append(f"no NIC is GPU-direct (PIX or PXB): {why}")
    without = [gpu for gpu in gpus if not any(links.get((gpu, nic)) in GPU_DIRECT for nic in nics)]
    if used and without:
        notes.append(f"{len(without)} of {len(gpus)} GPUs have no NIC of their own: {', '.join(without)}")
    return tuple(notes)
