"""Runs in a referee's environment: a framework's own classes read and validate exported files, without a GPU.

python config_files.py FRAMEWORK [TREE] < launches.jsonl > findings.jsonl

A launch is ``{"files": {name: text}, "world": N, "layout": {...}}``, a finding
``{"error": text or null, "derived": {...}}``.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import linecache
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

VERDICTS = (
    AssertionError,
    ValueError,
    RuntimeError,
    ArithmeticError,
    TypeError,
    KeyError,
    NotImplementedError,
)


def where(error: BaseException) -> str:
    """The line that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    file = trace.tb_frame.f_code.co_filename
    return f"{Path(file).name}:{trace.tb_lineno} {linecache.getline(file, trace.tb_lineno).strip()}"


def accelerate(launch: dict[str, Any], folder: Path) -> dict[str, Any]:
    """``accelerate launch``'s reading of the file, the environment it makes, and the plugins that are built from it."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import launch as launching

    file = folder / "accelerate.yaml"
    file.write_text(launch["files"]["accelerate.yaml"])
    load_config_from_file(str(file))
    parser = launch_command_parser()
    args = parser.parse_args(["--config_file", str(file), "train.py"])
    args, _, _ = _validate_launch_command(args)
    launching.is_fp8_available = lambda: True  # Transformer Engine would be there
    made = launching.prepare_multi_gpu_env(args)
    kept = dict(os.environ)
    os.environ.update({name: str(value) for name, value in made.items()})
    os.environ.update({"WORLD_SIZE": str(launch["world"]), "RANK": "0", "LOCAL_RANK": "0"})
    try:
        return plugins(args)
    finally:
        os.environ.clear()
        os.environ.update(kept)


def plugins(args: Any) -> dict[str, Any]:
    """FSDP's plugin and the parallelism of the environment that the launcher made."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.parallelism_config import ParallelismConfig

    derived: dict[str, Any] = {"world": int(args.num_processes)}
    plugin = FullyShardedDataParallelPlugin() if args.use_fsdp else None
    if plugin is not None:
        derived["reshard"] = bool(plugin.reshard_after_forward) if plugin.fsdp_version == 2 else None
    if os.environ.get("PARALLELISM_CONFIG_DP_SHARD_SIZE") or os.environ.get(
        "ACCELERATE_USE_PARALLELISM_CONFIG"
    ):
        parallel = ParallelismConfig()
        derived["product"] = parallel.total_size
        derived["tp"], derived["cp"] = parallel.tp_size, parallel.cp_size
    return derived


def deepspeed(launch: dict[str, Any], folder: Path) -> dict[str, Any]:
    """DeepSpeed's configuration of the file at the launch's world size."""
    from deepspeed.runtime import config as reading

    layout = launch["layout"]
    ranks = launch["world"] // (layout["tp"] * layout["pp"] * layout["cp"])

    class Mpu:
        """What Megatron-LM's parallel state tells DeepSpeed."""

        def get_data_parallel_world_size(self) -> int:
            """Ranks that share the batch."""
            return int(ranks)

        def get_data_parallel_rank(self) -> int:
            """This one."""
            return 0

    reading.dist.get_rank = lambda *_: 0
    reading.dist.get_world_size = lambda *_: launch["world"]
    config = reading.DeepSpeedConfig(json.loads(launch["files"]["ds_config.json"]), mpu=Mpu())
    return {
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "micro_batches": config.gradient_accumulation_steps,
        "global_batch": config.train_batch_size,
        "zero": config.zero_optimization_stage,
    }


def nanotron(launch: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Nanotron's dataclasses from the file, checked against each other."""
    from nanotron.config import get_config_from_file

    file = folder / "config.yaml"
    file.write_text(launch["files"]["config.yaml"])
    config = get_config_from_file(str(file))
    parallel, tokens = config.parallelism, config.tokens
    return {
        "dp": parallel.dp,
        "pp": parallel.pp,
        "tp": parallel.tp,
        "cp": parallel.context_parallel_size,
        "ep": parallel.expert_parallel_size,
        "micro_batch": tokens.micro_batch_size,
        "micro_batches": tokens.batch_accumulation_per_replica,
        "zero": config.optimizer.zero_stage,
    }


def torchtitan_toml(launch: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Torchtitan's own reading of its TOML file, its mesh, its batch and its pipeline's schedule (``Trainer.__init__``)."""
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims

    file = folder / "torchtitan.toml"
    file.write_text(launch["files"]["torchtitan.toml"])
    config = ConfigManager().parse_args(["--job.config_file", str(file)])
    own, training = config.parallelism, config.training
    dims = ParallelDims(
        dp_replicate=own.data_parallel_replicate_degree,
        dp_shard=own.data_parallel_shard_degree,
        cp=own.context_parallel_degree,
        tp=own.tensor_parallel_degree,
        pp=own.pipeline_parallel_degree,
        ep=own.expert_parallel_degree,
        etp=own.expert_tensor_parallel_degree,
        world_size=launch["world"],
    )
    if training.seq_len % dims.seq_len_divisor:
        raise ValueError(f"seq_len {training.seq_len} % {dims.seq_len_divisor}")
    dp = dims.dp_replicate * dims.dp_shard
    if training.global_batch_size % (training.local_batch_size * dp):
        raise ValueError(f"global batch {training.global_batch_size} % ({training.local_batch_size} * {dp})")
    repeats, parts = training.global_batch_size // (training.local_batch_size * dp), 1
    if dims.pp > 1:
        get_schedule_class(own.pipeline_parallel_schedule)
        parts, rest = divmod(training.local_batch_size, own.pipeline_parallel_microbatch_size)
        if rest:
            raise ValueError("local_batch_size is no multiple of pipeline_parallel_microbatch_size")
    return {
        "dp": dp,
        "tp": dims.tp,
        "cp": dims.cp,
        "pp": dims.pp,
        "ep": dims.ep,
        "micro_batches": repeats * parts,
        "global_batch": training.global_batch_size,
        "world": launch["world"],
    }


def judge(read: Any, launch: dict[str, Any]) -> dict[str, Any]:
    """Read one launch's files."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                return {"error": None, "derived": read(launch, Path(folder))}
        except SystemExit:
            return {"error": f"parser: {(said.getvalue().strip().splitlines() or ['?'])[-1]}", "derived": {}}
        except (
            ImportError,
            AttributeError,
        ) as error:  # a stub that does not reach, which must not count as a verdict
            return {"error": f"referee: {type(error).__name__}: {error} at {where(error)}", "derived": {}}
        except VERDICTS as error:
            return {
                "error": f"{type(error).__name__}: {' '.join(str(error).split()) or where(error)}",
                "derived": {},
            }
        except Exception as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}", "derived": {}}


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Kernels that need a GPU: whatever is imported of these packages is there and runs nothing."""

    packages = ("flash_attn", "grouped_gemm", "functorch", "apex", "transformer_engine", "datatrove")

    def find_spec(self, name: str, *_: Any) -> Any:
        """Answer for the packages that are absent."""
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if name.split(".")[0] in self.packages
            else None
        )

    def create_module(self, spec: Any) -> Any:
        """Return a module that has every name."""
        module = mock.MagicMock()
        module.__spec__, module.__path__, module.__name__, module.__version__ = spec, [], spec.name, "9.9.9"
        return module

    def exec_module(self, module: Any) -> None:
        """Run nothing."""


READERS = {
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "nanotron": nanotron,
    "torchtitan-toml": torchtitan_toml,
}


def main() -> None:
    """Judge launches line by line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if len(sys.argv) > 2:
        sys.path.insert(0, sys.argv[2])
        sys.meta_path.append(Absent())
    for line in sys.stdin.read().splitlines():
        print(json.dumps(judge(READERS[sys.argv[1]], json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
