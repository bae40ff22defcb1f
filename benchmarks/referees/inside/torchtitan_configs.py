"""Runs in the referee's environment: torchtitan builds what an exported configuration asks for, on the meta device.

python torchtitan_configs.py torchtitan TREE < launches.jsonl > findings.jsonl

As its trainer starts: the configuration's own checks, the mesh, the model's own checks, the pipeline's split, tensor
parallelism and FSDP on every pipeline rank of a fake world. Of a GPU nothing but its name is asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import sys
import warnings
from typing import Any

from config_files import where  # type: ignore[import-not-found]  # beside this script where it runs


def configuration(text: str) -> Any:
    """The configuration, with the checks that its classes make when they are built."""
    scope: dict[str, Any] = {}
    exec(compile(text, "layoutopt_config.py", "exec"), scope)
    return dataclasses.replace(scope["layoutopt_config"]())


def sizes(config: Any, world: int) -> tuple[Any, dict[str, Any]]:
    """The trainer's mesh, and the sizes that it derives from it (``Trainer.__init__``)."""
    from torchtitan.distributed import ParallelDims

    own = config.parallelism
    names = {field.name for field in dataclasses.fields(ParallelDims)}
    asked = {
        "dp_shard": own.data_parallel_shard_degree,
        "dp_replicate": own.data_parallel_replicate_degree,
        "cp": own.context_parallel_degree,
        "tp": own.tensor_parallel_degree,
        "pp": own.pipeline_parallel_degree,
        "ep": own.expert_parallel_degree,
        "world_size": world,
        "spmd_backend": getattr(own, "spmd_backend", None),
    }
    dims = ParallelDims(**{name: value for name, value in asked.items() if name in names})
    training, dp = config.training, dims.dp_replicate * dims.dp_shard
    m = own.num_pp_microbatches if dims.pp > 1 else 1
    once = training.num_tokens_per_microbatch_per_dp_rank * m * dp
    if training.num_tokens_per_train_step % once:
        raise ValueError(
            f"num_tokens_per_train_step {training.num_tokens_per_train_step} is no multiple of {once}"
        )
    repeats = training.num_tokens_per_train_step // once
    divisor = (dims.tp if own.enable_sequence_parallel else 1) * (2 * dims.cp if dims.cp > 1 else 1)
    if training.num_tokens_per_microbatch_per_dp_rank % divisor:
        raise ValueError(f"tokens of a micro-batch are no multiple of {divisor}")
    return dims, {
        "dp": dp,
        "tp": dims.tp,
        "cp": dims.cp,
        "pp": dims.pp,
        "ep": dims.ep,
        "micro_batches": repeats * m,
        "world": world,
    }


def built(config: Any, dims: Any) -> tuple[int, int]:
    """Parameters of this rank after the model's own checks and all parallelisms: before FSDP shards them, and its shards.

    Routers' biases, which are buffers here, count among the first where they do in checkpoints.
    """
    import torch

    spec = config.model_spec
    spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = spec.model.build()
    common = {
        "parallel_dims": dims,
        "training": config.training,
        "parallelism": config.parallelism,
        "compile_config": config.compile,
        "ac_config": config.activation_checkpoint,
        "dump_folder": "",
    }
    if dims.pp_enabled:
        more = {
            "device": torch.device("cpu"),
            "model_config": spec.model,
            "parallelize_fn": spec.parallelize_fn,
        }
        loss = config.loss.build(compile_config=config.compile)
        _, parts, *_ = spec.pipelining_fn(model, **common, **more, loss_fn=loss)
    else:
        parts = [spec.parallelize_fn(model, **common)]
    every = [p for part in parts for p in part.parameters()]
    held = [
        *every,
        *(b for part in parts for name, b in part.named_buffers() if in_checkpoints(spec.name, name)),
    ]
    return sum(map(unsharded, held)), sum(local(p).numel() for p in every)


def in_checkpoints(family: str, buffer: str) -> bool:
    """DeepSeek-V3 is published with its routers' biases, other models with experts have none of these."""
    return family.startswith("deepseek") and buffer.endswith("expert_bias_E")


def unsharded(value: Any) -> int:
    """Elements of a parameter on the tensor- and expert-parallel ranks that split it, whatever shards its state."""
    if not hasattr(value, "placements"):
        return int(value.numel())
    names = value.device_mesh.mesh_dim_names
    split = 1
    for name, size, placement in zip(names, value.device_mesh.shape, value.placements, strict=True):
        if placement.is_shard() and name in ("tp", "ep", "etp"):
            split *= size
    return int(value.numel()) // split


def local(value: Any) -> Any:
    """The part of a distributed tensor that this rank holds."""
    return value.to_local() if hasattr(value, "to_local") else value


def alone(launch: dict[str, Any], rank: int) -> dict[str, Any]:
    """Play one rank of the launch's world."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.autograd.set_multithreading_enabled(False)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=launch["world"])
    config = configuration(launch["files"]["layoutopt_config.py"])
    dims, derived = sizes(config, launch["world"])
    dims.build_mesh()
    held, shards = built(config, dims)
    return derived | {"parameters": held, "shards": shards}


def judge(launch: dict[str, Any], rank: int) -> dict[str, Any]:
    """Judge a launch on one rank."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return {"error": None, "derived": alone(launch, rank)}
    except (
        ImportError,
        AttributeError,
    ) as error:  # what the export names is not there, or a stub does not reach
        outside = "layoutopt_config" in where(error) or "cannot import name" in str(error)
        return {
            "error": f"{'' if outside else 'referee: '}{type(error).__name__}: {error} at {where(error)}",
            "derived": {},
        }
    except KeyError as error:
        unknown = "referee: not registered: " if "_configs[flavor]" in where(error) else ""
        return {"error": f"{unknown}KeyError: {error} at {where(error)}", "derived": {}}
    except Exception as error:
        return {
            "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]} at {where(error)}",
            "derived": {},
        }


def apart(launch: dict[str, Any], rank: int) -> dict[str, Any]:
    """Judge in a process of its own, which the process groups end with."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(judge(launch, rank)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "referee: the process died", "derived": {}}


def every_stage(launch: dict[str, Any]) -> dict[str, Any]:
    """Judge on a rank of the first, the middle and the last pipeline stage; the parameters of all three."""
    pp = launch["layout"]["pp"]
    found = [apart(launch, stage * launch["world"] // pp) for stage in (0, pp // 2, pp - 1)]
    refused = [one for one in found if one["error"]]
    if refused:
        return refused[0]
    lists = {name: [one["derived"].pop(name) for one in found] for name in ("parameters", "shards")}
    return {"error": None, "derived": found[0]["derived"] | lists}


def main() -> None:
    """Judge launches line by line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, sys.argv[2])
    import torch  # loaded once, before the processes part

    torch._utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001  # what torchtitan asks for its device

    torch.set_num_threads(1)
    for line in sys.stdin.read().splitlines():
        print(json.dumps(every_stage(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
