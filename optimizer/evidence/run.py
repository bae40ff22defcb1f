"""One measured run: a row of the measured-runs table, typed; None where the source does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import MlaSpec


@dataclass(frozen=True, slots=True)
class Sharding:
    """The ``zero`` cell: stage 0 to 3, and the ranks of one shard group where the cell says ``hsdp:N``."""

    stage: int
    shard: int | None = None

    def __str__(self) -> str:
        return str(self.stage) if self.shard is None else f"hsdp:{self.shard}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A row of the table; a field is a column, and None is an empty cell.

    ``line`` is the row's first line in its file. Degrees, batches and widths are counts, ``internode_gbps``
    is the network of one node in Gbit/s, times are seconds, ``mem_gb`` is 1e9 bytes.
    """

    id: str
    file: str = ""
    line: int = 0
    source: str | None = None
    framework: str | None = None
    model: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    seq: int | None = None
    gated: bool | None = None
    tied: bool | None = None
    moe_experts: int | None = None
    moe_topk: int | None = None
    moe_ffn: int | None = None
    moe_shared_ffn: int | None = None
    moe_dense_layers: int | None = None
    mla: MlaSpec | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    n_gpus: int | None = None
    internode_gbps: float | None = None
    tp: int | None = None
    sp: bool | None = None
    cp: int | None = None
    pp: int | None = None
    vp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    zero: Sharding | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    recompute: str | None = None
    precision: str | None = None
    flash: bool | None = None
    schedule: str | None = None
    step_time_s: float | None = None
    tflops_gpu: float | None = None
    tokens_s_gpu: float | None = None
    mfu_pct: float | None = None
    mem_gb: float | None = None
    oom: bool | None = None
    flops_note: str | None = None
    group: str | None = None
    notes: str | None = None
    software: str | None = None
    method: str | None = None
    recompute_modules: str | None = None
    tp_overlap: bool | None = None
    dp_overlap: bool | None = None
    ep_overlap: bool | None = None
    cuda_graph: str | None = None
    fp8_recipe: str | None = None
    grad_dtype: str | None = None
    moment_dtype: str | None = None
    offload: str | None = None
    mtp_depth: int | None = None
    routing: str | None = None
    stage_split: str | None = None
    mem_kind: str | None = None
    measured_step_s: float | None = None
    measured_from: str | None = None

    @property
    def step_s(self) -> float | None:
        """Seconds per optimizer step: the target column, else the stated time, else from tokens per second.

        TFLOP/s and MFU are no target: sources count FLOPs differently.
        """
        if self.measured_step_s is not None:
            return self.measured_step_s
        if self.step_time_s is not None:
            return self.step_time_s
        if self.tokens_s_gpu and self.global_batch and self.seq and self.n_gpus:
            return self.global_batch * self.seq / (self.tokens_s_gpu * self.n_gpus)
        return None

    @property
    def is_moe(self) -> bool:
        """Whether the row describes a mixture of experts."""
        return bool(self.moe_experts)
