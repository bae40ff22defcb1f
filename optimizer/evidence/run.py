"""One measured run: a row of the measured-runs table, typed, with how each cell is read and what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.model import MlaSpec

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_COUNT = 10**12
"""Above any count in a training run: a larger number in a cell is a typing error."""

LARGEST_NUMBER = 1e15
# No signs, separators or units: a cell says one number, or is refused.
_INTEGER = re.compile(r"\d{1,13}")
_NUMBER = re.compile(r"\d{1,15}(\.\d{0,20})?([eE][+-]?\d{1,2})?|\.\d{1,20}")
_MLA_KEYS = {
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "qk_nope": "qk_nope_head_dim",
    "qk_rope": "qk_rope_head_dim",
    "v": "v_head_dim",
}


@dataclass(frozen=True, slots=True)
class Sharding:
    """The ``zero`` cell: stage 0 to 3, and the ranks of one shard group where the cell says ``hsdp:N``."""

    stage: int
    shard: int | None = None

    def __str__(self) -> str:
        return str(self.stage) if self.shard is None else f"hsdp:{self.shard}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: ``read`` turns a cell that isn't empty into a value or raises ValueError."""

    name: str
    read: Callable[[str], object]
    allowed: str
    meaning: str
    required: bool = False


def read_text(cell: str) -> str:
    """Return the cell as it is."""
    return cell


def read_count(cell: str) -> int:
    """Read a whole number of at least 1. Raises ``ValueError`` for anything else."""
    value = read_natural(cell)
    if value < 1:
        raise ValueError(cell)
    return value


def read_natural(cell: str) -> int:
    """Read a whole number of at least 0. Raises ``ValueError`` for anything else, and beyond ``LARGEST_COUNT``."""
    if not _INTEGER.fullmatch(cell) or int(cell) > LARGEST_COUNT:
        raise ValueError(cell)
    return int(cell)


def read_positive(cell: str) -> float:
    """Read a number above 0. Raises ``ValueError`` for anything else, and beyond ``LARGEST_NUMBER``."""
    if not _NUMBER.fullmatch(cell) or not 0 < float(cell) <= LARGEST_NUMBER:
        raise ValueError(cell)
    return float(cell)


def read_flag(cell: str) -> bool:
    """Read 0 or 1. Raises ``ValueError`` for anything else."""
    if cell not in ("0", "1"):
        raise ValueError(cell)
    return cell == "1"


def read_sharding(cell: str) -> Sharding:
    """Read a ZeRO stage, or ``hsdp:N`` for ZeRO-3 inside groups of N ranks.

    Raises ``ValueError`` for anything else.
    """
    if cell.startswith("hsdp:"):
        return Sharding(3, read_count(cell.removeprefix("hsdp:")))
    if cell not in ("0", "1", "2", "3"):
        raise ValueError(cell)
    return Sharding(int(cell))


def read_mla(cell: str) -> MlaSpec:
    """Read ``q_lora=..;kv_lora=..;qk_nope=..;qk_rope=..;v=..``; no ``q_lora``: a full query projection.

    Raises ``ValueError`` for anything else.
    """
    pairs = [part.split("=") for part in cell.rstrip(";").split(";")]
    if any(len(pair) != 2 for pair in pairs) or len({pair[0] for pair in pairs}) != len(pairs):
        raise ValueError(cell)
    values = {name.strip(): read_natural(text.strip()) for name, text in pairs}
    if not set(_MLA_KEYS) - {"q_lora"} <= set(values) <= set(_MLA_KEYS) or not all(
        value or name == "q_lora" for name, value in values.items()
    ):
        raise ValueError(cell)
    return MlaSpec(**{field: values.get(name, 0) for name, field in _MLA_KEYS.items()})


_COUNT, _NATURAL = "a whole number of at least 1", "a whole number of at least 0"
_POSITIVE, _FLAG, _TEXT = "a number above 0", "0 or 1", "text"
_MLA = "q_lora=N;kv_lora=N;qk_nope=N;qk_rope=N;v=N, q_lora may be absent"
_KINDS: dict[str, tuple[Callable[[str], object], str]] = {
    "text": (read_text, _TEXT),
    "count": (read_count, _COUNT),
    "natural": (read_natural, _NATURAL),
    "number": (read_positive, _POSITIVE),
    "flag": (read_flag, _FLAG),
    "zero": (read_sharding, "0, 1, 2, 3 or hsdp:N"),
    "mla": (read_mla, _MLA),
}


def cell(kind: str, meaning: str, *, required: bool = False) -> Any:
    """Declare a column of the table as a field: what its cells hold, what they mean, whether every table needs it."""
    read, allowed = _KINDS[kind]
    said = {"read": read, "allowed": allowed, "meaning": meaning, "required": required}
    return field(default=None, metadata=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A row of the table; a field is a column, and None is an empty cell.

    ``line`` is the row's first line in its file. Degrees, batches and widths are counts, ``internode_gbps``
    is the network of one node in Gbit/s, times are seconds, ``mem_gb`` is 1e9 bytes.
    """

    id: str = cell("text", "unique name of the run", required=True)
    file: str = ""
    line: int = 0
    source: str | None = cell("text", "where the figures were published")
    framework: str | None = cell("text", "trainer", required=True)
    model: str | None = cell("text", "name of the model")
    layers: int | None = cell("count", "decoder layers", required=True)
    hidden: int | None = cell("count", "hidden width", required=True)
    heads: int | None = cell("count", "attention heads")
    kv_heads: int | None = cell("count", "key-value heads; empty: as many as heads")
    head_dim: int | None = cell("count", "width of one head; empty: hidden / heads")
    ffn: int | None = cell("natural", "width of one matrix of a dense MLP")
    vocab: int | None = cell("count", "vocabulary", required=True)
    seq: int | None = cell("count", "sequence length in tokens", required=True)
    gated: bool | None = cell("flag", "1: gated MLP, three matrices")
    tied: bool | None = cell("flag", "1: embedding and output share their weights")
    moe_experts: int | None = cell("natural", "routed experts per layer; empty or 0: a dense model")
    moe_topk: int | None = cell("natural", "experts per token")
    moe_ffn: int | None = cell("natural", "width of one expert")
    moe_shared_ffn: int | None = cell("natural", "total width of the shared experts")
    moe_dense_layers: int | None = cell("natural", "leading layers with a dense MLP")
    mla: MlaSpec | None = cell("mla", "multi-head latent attention")  # noqa: RUF009  (a field)
    gpu: str | None = cell("text", "GPU, a catalog name", required=True)
    gpus_per_node: int | None = cell("count", "GPUs in one host")
    n_gpus: int | None = cell("count", "GPUs of the run", required=True)
    internode_gbps: float | None = cell("number", "network of one node in Gbit/s; empty: the catalog's")
    tp: int | None = cell("count", "tensor parallel degree")
    sp: bool | None = cell("flag", "1: sequence parallel")
    cp: int | None = cell("count", "context parallel degree; empty: 1")
    pp: int | None = cell("count", "pipeline parallel degree")
    vp: int | None = cell("count", "model chunks per pipeline rank, 1: no interleaving")
    ep: int | None = cell("count", "expert parallel degree; empty: 1")
    etp: int | None = cell("count", "expert tensor parallel degree")
    dp: int | None = cell("count", "data parallel degree, n_gpus / (tp*cp*pp)")
    zero: Sharding | None = cell(  # noqa: RUF009  (a field)
        "zero", "0 DDP; sharded: 1 optimizer, 2 gradients too, 3 weights too (FSDP), hsdp:N in groups"
    )
    micro_batch: int | None = cell("count", "sequences per micro-batch")
    global_batch: int | None = cell("count", "sequences per optimizer step")
    recompute: str | None = cell("text", "none, selective, full or other:WORDS")
    precision: str | None = cell("text", "bf16, fp16, fp8, mxfp8 or nvfp4")
    flash: bool | None = cell("flag", "1: fused attention")
    schedule: str | None = cell("text", "none, gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe or dualpipe-v")
    step_time_s: float | None = cell("number", "seconds per optimizer step as the source states it")
    tflops_gpu: float | None = cell("number", "TFLOP/s per GPU as the source states it")
    tokens_s_gpu: float | None = cell("number", "tokens per second and GPU as the source states it")
    mfu_pct: float | None = cell("number", "MFU in percent as the source states it")
    mem_gb: float | None = cell("number", "peak memory per GPU, 1e9 bytes; GiB with mem_kind nvidia-smi")
    oom: bool | None = cell("flag", "1: the run ran out of memory")
    flops_note: str | None = cell("text", "how the source counts FLOPs")
    group: str | None = cell(
        "text", "rows that differ in layout alone and are ranked together; xrel-...: never ranked"
    )
    notes: str | None = cell("text", "anything else")
    software: str | None = cell("text", "release of the trainer")
    method: str | None = cell("text", "pretrain, sft or lora; empty: pretrain")
    recompute_modules: str | None = cell("text", "modules of selective recomputation, separated by spaces")
    tp_overlap: bool | None = cell("flag", "1: tensor-parallel traffic overlaps")
    dp_overlap: bool | None = cell("flag", "1: data-parallel traffic overlaps")
    ep_overlap: bool | None = cell("flag", "1: expert all-to-all overlaps")
    cuda_graph: str | None = cell("text", "none, partial, full_iteration or maybe_full_iteration")
    fp8_recipe: str | None = cell("text", "delayed, current, tensorwise, blockwise, mx or rowwise")
    grad_dtype: str | None = cell("text", "bf16, fp16 or fp32: gradient buffer")
    moment_dtype: str | None = cell("text", "bf16, fp16 or fp32: Adam moments")
    offload: str | None = cell("text", "what is offloaded to the host")
    mtp_depth: int | None = cell("natural", "multi-token-prediction layers")
    routing: str | None = cell("text", "balanced, natural or dropped")
    stage_split: str | None = cell("text", 'a Megatron layout string, or "embedding+loss as layers"')
    mem_kind: str | None = cell("text", "allocated, reserved or nvidia-smi: what mem_gb counts")
    measured_step_s: float | None = cell("number", "the target: seconds per optimizer step")
    measured_from: str | None = cell("text", "the column that the target was derived from")

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


COLUMNS: dict[str, Column] = {
    item.name: Column(name=item.name, **item.metadata) for item in fields(MeasuredRun) if item.metadata
}
"""Every column by name, in the order of the file."""
