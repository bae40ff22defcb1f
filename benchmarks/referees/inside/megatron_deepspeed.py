"""Runs in the referee's environment: Megatron-DeepSpeed's own parser, validation and process groups, without a GPU.

python megatron_deepspeed.py megatron-deepspeed TREE < launches.jsonl > findings.jsonl

A launch is ``{"argv": [...], "env": {...}, "files": {name: text}, "world": N}``, a finding ``{"error": text or null,
"derived": {...}}``. Process groups are made of ranks alone; the imports of data sets and models, which the parser does not
ask, are left out.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import json
import logging
import os
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any
from unittest import mock

from config_files import Absent, deepspeed, judge  # type: ignore[import-not-found]  # beside this script where it runs

if TYPE_CHECKING:
    from pathlib import Path


def load(tree: str) -> Any:
    """Megatron-DeepSpeed's arguments module."""
    import torch

    sys.path.insert(0, tree)
    sys.meta_path.append(Absent())
    for name in ("megatron.global_vars", "tools.retro.utils", "tools", "tools.retro"):
        sys.modules[name] = mock.MagicMock(__path__=[], __spec__=None)
    package = types.ModuleType("megatron")
    package.__path__ = [f"{tree}/megatron"]
    for name in (
        "get_args",
        "get_timers",
        "get_num_microbatches",
        "print_rank_0",
        "get_current_global_batch_size",
    ):
        setattr(package, name, lambda *_: None)
    sys.modules["megatron"] = package
    torch.distributed.new_group = lambda *_, **__: object()
    torch.distributed.is_initialized = lambda: True
    torch.distributed.get_rank = lambda *_: 0
    import megatron.arguments as arguments

    return arguments


def megatron_deepspeed(launch: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Parse and validate the launch, make its process groups, and read its configuration of DeepSpeed."""
    import torch
    from megatron.core import parallel_state

    arguments, world = sys.modules["megatron.arguments"], launch["world"]
    file = folder / "ds_config.json"
    file.write_text(launch["files"]["ds_config.json"])
    words = [str(file) if word == "ds_config.json" else word for word in launch["argv"]]
    own = {"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0", **launch["env"]}
    with mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words]), mock.patch.dict(os.environ, own):
        args = arguments.parse_args()
        arguments.validate_args(args)
    torch.distributed.get_world_size = lambda *_: world
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.ds_sequence_parallel_size
    )
    shares = deepspeed(launch, folder)
    groups = args.data_parallel_size * args.micro_batch_size
    return {
        "dp": args.data_parallel_size,
        "tp": args.tensor_model_parallel_size,
        "cp": args.ds_sequence_parallel_size,
        "pp": args.pipeline_model_parallel_size,
        "micro_batches": args.global_batch_size / groups,
        "global_batch": args.global_batch_size,
        "zero": args.zero_stage,
        **({"zero": shares["zero"]} if shares["zero"] != args.zero_stage else {}),
    }


def main() -> None:
    """Judge launches line by line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    load(sys.argv[2])
    for line in sys.stdin.read().splitlines():
        print(json.dumps(judge(megatron_deepspeed, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
