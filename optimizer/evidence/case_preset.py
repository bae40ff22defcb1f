"""Which framework ran a measured run, and what the row says against the framework's preset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.case import SkipRow
from layoutopt.optimizer.frameworks.preset import CudaGraph, EpOverlap
from layoutopt.optimizer.frameworks.registry import Framework, find_framework

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.notes import NoteFacts
    from layoutopt.optimizer.evidence.run import MeasuredRun

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes per parameter of a gradient buffer or a moment."""

ACCUMULATED_GRAD_BYTES = 6
"""16-bit gradients and their fp32 accumulation buffer (deepspeedai/DeepSpeed runtime/bf16_optimizer.py)."""

CUDA_GRAPHS = {"none": CudaGraph.NONE, "partial": CudaGraph.PARTIAL, "full_iteration": CudaGraph.FULL}
_GRAPH_WORDS = (*CUDA_GRAPHS, "maybe_full_iteration")
METHODS = ("pretrain", "sft")
_FACTS = ("compiled", "fp8_attention", "fused_loss")
"""Facts in the notes that are switches of the preset under the same name."""


def framework_of(run: MeasuredRun) -> Framework:
    """Return the framework of a row by name or alias, or raise SkipRow."""
    known = find_framework(run.framework or "")
    if known is None:
        raise SkipRow(f"framework {run.framework!r} has no preset")
    return known


def check_method(run: MeasuredRun) -> None:
    """Raise SkipRow for runs that train only some of the weights, or offload to the host."""
    if run.method and run.method not in METHODS:
        raise SkipRow(f"{run.method} training is not modelled")
    if run.offload:
        raise SkipRow(
            f"offload of {'unnamed state' if run.offload == 'yes' else run.offload} is not modelled"
        )


def switches_of(run: MeasuredRun, facts: NoteFacts, framework: Framework) -> dict[str, Any]:
    """Return the preset fields that the row states."""
    return {
        **_overlaps(run),
        **_graphs(run),
        **_dtypes(run, facts, framework),
        **{name: value for name in _FACTS if (value := getattr(facts, name)) is not None},
        **({} if facts.deduplicates is None else {"dispatch_dedup": facts.deduplicates}),
    }


def _overlaps(run: MeasuredRun) -> dict[str, Any]:
    switches: dict[str, Any] = {}
    if run.tp_overlap is not None:
        switches["tp_overlap"] = run.tp_overlap
    if run.dp_overlap is not None:
        switches |= {"dp_overlap": run.dp_overlap, "param_overlap": run.dp_overlap}
    if run.ep_overlap is not None and run.schedule != "dualpipe":
        switches["ep_overlap"] = EpOverlap.BATCH if run.ep_overlap else EpOverlap.NONE
    return switches


def _graphs(run: MeasuredRun) -> dict[str, Any]:
    """CUDA graphs; ``maybe_full_iteration`` leaves the preset's setting."""
    if run.cuda_graph is None:
        return {}
    if run.cuda_graph not in _GRAPH_WORDS:
        raise SkipRow(f"CUDA graphs {run.cuda_graph!r} is none of {', '.join(_GRAPH_WORDS)}")
    return {"cuda_graph": CUDA_GRAPHS[run.cuda_graph]} if run.cuda_graph in CUDA_GRAPHS else {}


def _dtypes(run: MeasuredRun, facts: NoteFacts, framework: Framework) -> dict[str, Any]:
    switches: dict[str, Any] = {}
    if run.grad_dtype is not None:
        size = _bytes(run.grad_dtype, "gradient")
        switches |= {"grad_bytes": size, "grad_comm_bytes": size}
        if size == 4 and framework is Framework.MEGATRON_DEEPSPEED:
            switches["grad_bytes"] = ACCUMULATED_GRAD_BYTES
    if facts.fp32_reduction:
        switches["grad_comm_bytes"] = 4
    if run.moment_dtype is not None:
        switches["moment_bytes"] = _bytes(run.moment_dtype, "moment")
    return switches


def _bytes(dtype: str, what: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise SkipRow(f"{what} format {dtype!r} is none of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]
