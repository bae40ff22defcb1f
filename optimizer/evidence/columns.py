"""The columns of the measured-runs table: how each cell is read, and what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.run import Sharding
from layoutopt.optimizer.specs.model import MlaSpec

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_COUNT = 10**12
"""Above any count in a training run: a larger number in a cell is a typing error."""

LARGEST_NUMBER = 1e15
_INTEGER = re.compile(r"\d{1,13}")
_NUMBER = re.compile(r"\d{1,15}(\.\d{0,20})?([eE][+-]?\d{1,2})?|\.\d{1,20}")
_MLA_KEYS = {
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "qk_nope": "qk_nope_head_dim",
    "qk_rope": "qk_rope_head_dim",
    "v": "v_head_dim",
}


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
    """Read a whole number of at least 1."""
    value = read_natural(cell)
    if value < 1:
        raise ValueError(cell)
    return value


def read_natural(cell: str) -> int:
    """Read a whole number of at least 0."""
    if not _INTEGER.fullmatch(cell) or int(cell) > LARGEST_COUNT:
        raise ValueError(cell)
    return int(cell)


def read_positive(cell: str) -> float:
    """Read a number above 0."""
    if not _NUMBER.fullmatch(cell) or not 0 < float(cell) <= LARGEST_NUMBER:
        raise ValueError(cell)
    return float(cell)


def read_flag(cell: str) -> bool:
    """Read 0 or 1."""
    if cell not in ("0", "1"):
        raise ValueError(cell)
    return cell == "1"


def read_sharding(cell: str) -> Sharding:
    """Read a ZeRO stage, or ``hsdp:N`` for ZeRO-3 inside groups of N ranks."""
    if cell.startswith("hsdp:"):
        return Sharding(3, read_count(cell.removeprefix("hsdp:")))
    if cell not in ("0", "1", "2", "3"):
        raise ValueError(cell)
    return Sharding(int(cell))


def read_mla(cell: str) -> MlaSpec:
    """Read ``q_lora=..;kv_lora=..;qk_nope=..;qk_rope=..;v=..``; no ``q_lora``: a full query projection."""
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

_TABLE = """
id!             text     unique name of the run
source          text     where the figures were published
framework!      text     trainer
model           text     name of the model
layers!         count    decoder layers
hidden!         count    hidden width
heads           count    attention heads
kv_heads        count    key-value heads; empty: as many as heads
head_dim        count    width of one head; empty: hidden / heads
ffn             natural  width of one matrix of a dense MLP
vocab!          count    vocabulary
seq!            count    sequence length in tokens
gated           flag     1: gated MLP, three matrices
tied            flag     1: embedding and output share their weights
moe_experts     natural  routed experts per layer; empty or 0: a dense model
moe_topk        natural  experts per token
moe_ffn         natural  width of one expert
moe_shared_ffn  natural  total width of the shared experts
moe_dense_layers natural leading layers with a dense MLP
mla             mla      multi-head latent attention
gpu!            text     GPU, a catalog name
gpus_per_node   count    GPUs in one host
n_gpus!         count    GPUs of the run
internode_gbps  number   network of one node in Gbit/s; empty: the catalog's
tp              count    tensor parallel degree
sp              flag     1: sequence parallel
cp              count    context parallel degree; empty: 1
pp              count    pipeline parallel degree
vp              count    model chunks per pipeline rank, 1: no interleaving
ep              count    expert parallel degree; empty: 1
etp             count    expert tensor parallel degree
dp              count    data parallel degree, n_gpus / (tp*cp*pp)
zero            zero     0 DDP; sharded: 1 optimizer, 2 gradients too, 3 weights too (FSDP), hsdp:N in groups
micro_batch     count    sequences per micro-batch
global_batch    count    sequences per optimizer step
recompute       text     none, selective, full or other:WORDS
precision       text     bf16, fp16, fp8, mxfp8 or nvfp4
flash           flag     1: fused attention
schedule        text     none, gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe or dualpipe-v
step_time_s     number   seconds per optimizer step as the source states it
tflops_gpu      number   TFLOP/s per GPU as the source states it
tokens_s_gpu    number   tokens per second and GPU as the source states it
mfu_pct         number   MFU in percent as the source states it
mem_gb          number   peak memory per GPU, 1e9 bytes; GiB with mem_kind nvidia-smi
oom             flag     1: the run ran out of memory
flops_note      text     how the source counts FLOPs
group           text     rows that differ in layout alone and are ranked together; xrel-...: never ranked
notes           text     anything else
software        text     release of the trainer
method          text     pretrain, sft or lora; empty: pretrain
recompute_modules text   modules of selective recomputation, separated by spaces
tp_overlap      flag     1: tensor-parallel traffic overlaps
dp_overlap      flag     1: data-parallel traffic overlaps
ep_overlap      flag     1: expert all-to-all overlaps
cuda_graph      text     none, partial, full_iteration or maybe_full_iteration
fp8_recipe      text     delayed, current, tensorwise, blockwise, mx or rowwise
grad_dtype      text     bf16, fp16 or fp32: gradient buffer
moment_dtype    text     bf16, fp16 or fp32: Adam moments
offload         text     what is offloaded to the host
mtp_depth       natural  multi-token-prediction layers
routing         text     balanced, natural or dropped
stage_split     text     a Megatron layout string, or "embedding+loss as layers"
mem_kind        text     allocated, reserved or nvidia-smi: what mem_gb counts
measured_step_s number   the target: seconds per optimizer step
measured_from   text     the column that the target was derived from
"""


def _column(line: str) -> Column:
    name, kind, meaning = line.split(None, 2)
    read, allowed = _KINDS[kind]
    return Column(
        name=name.rstrip("!"), read=read, allowed=allowed, meaning=meaning, required=name.endswith("!")
    )


COLUMNS: dict[str, Column] = {column.name: column for column in map(_column, _TABLE.strip().splitlines())}
"""Every column by name, in the order of the file."""
