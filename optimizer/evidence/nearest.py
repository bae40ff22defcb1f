"""What stands in for trainers and precisions that have no preset: stated as data, and counted apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.case import SkipRow
from layoutopt.optimizer.frameworks.registry import find_framework, framework_named
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec

PREFIX = "framework."
"""How a user states a stand-in: ``framework.NAME=PRESET``."""

SINGLE_STATES: Mapping[str, Any] = MappingProxyType(
    {
        "weight_bytes": 2, "fsdp_weight_bytes": 2, "grad_bytes": 2, "grad_comm_bytes": 2, "master_bytes": 0,
        "moment_bytes": 2, "bucket_bytes": 0, "fused_softmax": False,
    }
)  # fmt: skip
"""Bytes of 32-bit training's state per parameter in units of ``in_half_bytes``: weights, gradients, two moments; the fused
softmax takes 16-bit scores alone (NVIDIA/Megatron-LM fused_softmax.py, ``input_in_float16``)."""

NO_TENSOR_CORES_FOR_TF32 = ("volta",)


@dataclass(frozen=True, slots=True, kw_only=True)
class WidePrecision:
    """A 32-bit precision: ``speed`` of its matrix multiplication over bf16."""

    speed: float
    source: str


def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = packaged("evidence", "nearest")
    return table


@cache
def nearest_frameworks() -> Mapping[str, Framework]:
    """Return the package's stand-ins by the trainer's name in lower case."""
    return {name: framework_named(entry["as"]) for name, entry in _table()["frameworks"].items()}


@cache
def wide_precisions() -> Mapping[str, WidePrecision]:
    """Return the 32-bit precisions by name."""
    return {name: WidePrecision(**entry) for name, entry in _table()["precisions"].items()}


def settings_of(run: MeasuredRun) -> dict[str, Any]:
    """Return in which switches of the preset a row's trainer is known to differ from what it is priced as."""
    named = _table()["frameworks"].get((run.framework or "").lower(), {})
    found: dict[str, Any] = dict(named.get("set", {}))
    # A publication says more of its runs than the name of its trainer does: what it sets wins.
    for entry in _table()["publications"]:
        if entry["phrase"] in (run.source or "") and (run.n_gpus or 0) >= entry.get("from_gpus", 0):
            found |= entry["set"]
    return found


def is_stand_in(text: str) -> bool:
    """Tell whether what a user assumes is a stand-in and no file."""
    return text.startswith(PREFIX) and "=" in text


def parse_stand_ins(texts: Iterable[str]) -> dict[str, Framework]:
    """Read ``framework.NAME=PRESET``; raises ``InputError`` for a preset that is not known, or none named."""
    found: dict[str, Framework] = {}
    for text in texts:
        name, preset = text.removeprefix(PREFIX).split("=", 1)
        # A trainer with a preset is priced by it: a stand-in would silently win over what is known.
        if not name.strip() or find_framework(name.strip()):
            what = "names no trainer" if not name.strip() else f"{name.strip()!r} has a preset of its own"
            raise input_error(
                what, "framework.NAME=PRESET, e.g. framework.prime-rl=torchtitan", key="--assume"
            )
        try:
            found[name.strip().lower()] = framework_named(preset.strip())
        except InputError as error:
            raise InputError(*(replace(one, key="--assume") for one in error.problems)) from None
    return found


def framework_of(
    run: MeasuredRun, stand_ins: Mapping[str, Framework] | None = None
) -> tuple[Framework, tuple[str, ...]]:
    """Return the framework of a row and what had to be assumed for it; raises SkipRow where nothing stands in."""
    name = (run.framework or "").lower()
    known = find_framework(name)
    if known is not None:
        return known, ()
    nearest = {**nearest_frameworks(), **(stand_ins or {})}.get(name)
    if nearest is None:
        raise SkipRow(f"framework {run.framework!r} has no preset, and none is assumed for it")
    return nearest, (f"framework as {nearest.value}",)


def in_half_bytes(cluster: ClusterSpec, speed: float) -> ClusterSpec:
    """Return the cluster as 32-bit training sees it, counted in elements of two bytes: half of every byte rate.

    Raises SkipRow for a GPU whose tensor cores don't take 32-bit operands.
    """
    gpu = cluster.gpu
    if gpu.generation.name in NO_TENSOR_CORES_FOR_TF32:
        raise SkipRow(f"{gpu.name} has no TF32 arithmetic")
    return replace(cluster, gpu=_halved(gpu, speed), nic_bytes_per_s=cluster.nic_bytes_per_s / 2)


def _halved(gpu: GpuSpec, speed: float) -> GpuSpec:
    return replace(
        # All rates of bytes, and all that holds bytes: an element takes four where the formulas count two.
        gpu,
        dense_flops={Precision.BF16: gpu.dense_flops[Precision.BF16] * speed},
        memory_bytes=gpu.memory_bytes / 2,
        nominal_memory_bytes=gpu.nominal_memory_bytes / 2,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s / 2,
        nvlink_bytes_per_s=gpu.nvlink_bytes_per_s / 2,
        nic_bytes_per_s=gpu.nic_bytes_per_s / 2,
        host_link_bytes_per_s=gpu.host_link_bytes_per_s / 2,
    )
