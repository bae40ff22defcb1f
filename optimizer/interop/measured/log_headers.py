"""What trainers print of their settings before the first step: batch, length, degrees."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.measured.run_columns import Columns

_MESH = re.compile(r"Building \d-D device mesh with \[([^\]\n]{1,200})\], \[([\d, ]{1,100})\]")
"""torchtitan up to v0.2: names of dimensions and their sizes."""

_DEGREES = re.compile(r"Building device mesh with parallelism: ((?:\w{1,30}=\d{1,9}(?:, )?){1,12})")
_TITAN_BATCH = re.compile(
    r"local batch size (\d{1,9}), global batch size (\d{1,9}), gradient accumulation steps \d{1,9}, "
    r"sequence length (\d{1,9})"
)
_TITAN_TOKENS = re.compile(
    r"\b(\d{1,15}) tokens per train step, gradient accumulation steps \d{1,9}, maximum context length (\d{1,9})"
)
_AXES = ("pp", "cp", "tp")
_SHARES = ("dp_replicate", "dp_shard")
_DEEPSPEED = re.compile(
    r"\b(train_batch_size|train_micro_batch_size_per_gpu|zero_optimization_stage) (?:\.{1,30} )? ?(\d{1,9})[ \t\r]*$",
    re.MULTILINE,
)
_DEEPSPEED_COLUMNS = {
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "zero_optimization_stage": "zero",
}


def torchtitan_header(text: str) -> Columns:
    """Return GPUs, degrees, batch and length that a torchtitan log states."""
    columns: Columns = {}
    # A mesh lists the dimensions that are larger than 1: those that it does not name have one rank.
    if sizes := _mesh(text):
        for axis in _AXES:
            columns[axis] = sizes.get(axis, 1)
        columns |= {"ep": sizes["ep"]} if "ep" in sizes else {}
        columns["dp"] = sizes.get("dp_replicate", 1) * sizes.get("dp_shard", 1)
        columns["n_gpus"] = prod(sizes.get(name, 1) for name in (*_AXES, *_SHARES))
    if batch := _TITAN_BATCH.search(text):
        columns |= {"global_batch": int(batch[2]), "seq": int(batch[3])}
    elif (tokens := _TITAN_TOKENS.search(text)) and int(tokens[1]) % int(tokens[2]) == 0:
        columns |= {"global_batch": int(tokens[1]) // int(tokens[2]), "seq": int(tokens[2])}
    return columns


def _mesh(text: str) -> dict[str, int]:
    if match := _MESH.search(text):
        names = [name.strip(" '\"") for name in match[1].split(",")]
        counts = [int(part) for part in match[2].split(",") if part.strip()]
        sizes = dict(zip(names, counts, strict=False)) if len(names) == len(counts) else {}
    elif match := _DEGREES.search(text):
        pairs = (pair.split("=") for pair in match[1].rstrip(", ").split(", "))
        sizes = {name: int(size) for name, size in pairs}
    else:
        return {}
    # with experts, shards are in two dimensions, one of them, and cp, over the ranks of an expert group
    inner, outer = sizes.pop("dp_shard_in_ep", None), sizes.pop("dp_shard_mod_ep", 1)
    if inner is not None:
        sizes |= {"dp_shard": inner * outer, "ep": inner * sizes.get("cp", 1)}
    sizes["dp_shard"] = sizes.get("dp_shard", sizes.get("dp", 1))
    return sizes if all(size > 0 for size in sizes.values()) and sizes.keys() & {*_AXES, *_SHARES} else {}


def deepspeed_header(text: str) -> Columns:
    """Return batch, micro-batch and ZeRO stage that DeepSpeed prints of its configuration."""
    return {_DEEPSPEED_COLUMNS[name]: int(value) for name, value in _DEEPSPEED.findall(text)}
