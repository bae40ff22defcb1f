"""Runs in the referee's environment: one training step of a tiny model through torch's own APIs, its collectives counted.

python torch_job.py < jobs.jsonl > findings.jsonl

A job is ``{"backend": "fake" or "gloo", "world": N, "rank": R, "tp": .., "pp": .., "dp": .., ...}``. With gloo every rank
is a process of its own, with the fake back-end one process plays rank R. A finding lists what rank R called:
``{"calls": [{axis, kind, ranks, bytes, count}], "parameters": N, "state_bytes": {...}, ...}``; bytes are those of the whole
tensor: gathered, before scattering, reduced, sent.
"""

# mypy: disable-error-code="misc,no-any-return"
# torch is not installed where types are checked: its classes are Any there.
from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
}
SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb-v": ScheduleZBVZeroBubble,
}


class Attention(nn.Module):
    """Grouped-query attention without position embedding, which holds no parameters."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.head_dim = job["hidden"] // job["heads"]
        self.wq = nn.Linear(job["hidden"], job["hidden"], bias=False)
        self.wk = nn.Linear(job["hidden"], job["kv_heads"] * self.head_dim, bias=False)
        self.wv = nn.Linear(job["hidden"], job["kv_heads"] * self.head_dim, bias=False)
        self.wo = nn.Linear(job["hidden"], job["hidden"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend within each sequence."""
        parts = [
            matrix(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for matrix in (self.wq, self.wk, self.wv)
        ]
        repeats = parts[0].shape[1] // parts[1].shape[1]
        q, k, v = parts[0], *(part.repeat_interleave(repeats, dim=1) for part in parts[1:])
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    """Gated MLP."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.w1 = nn.Linear(job["hidden"], job["ffn"], bias=False)
        self.w2 = nn.Linear(job["ffn"], job["hidden"], bias=False)
        self.w3 = nn.Linear(job["hidden"], job["ffn"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply the gated inputs down."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Norm, attention, norm, MLP."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(job["hidden"])
        self.attention = Attention(job)
        self.mlp_norm = nn.RMSNorm(job["hidden"])
        self.mlp = Mlp(job)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both branches to the residual."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Part(nn.Module):
    """The blocks of one virtual stage, with the embedding on the first and the head on the last."""

    def __init__(self, job: dict[str, Any], layers: int, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(job["vocab"], job["hidden"]) if first else None
        self.blocks = nn.ModuleList(Block(job) for _ in range(layers))
        self.norm = nn.RMSNorm(job["hidden"]) if last else None
        self.head = nn.Linear(job["hidden"], job["vocab"], bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass tokens or hidden states through."""
        x = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.head is not None else x


def tensor_parallel(part: Part, mesh: DeviceMesh) -> None:
    """Split as torchtitan splits llama: sequence-parallel norms, vocabulary-parallel ends."""
    if part.embedding is not None:
        plan = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        parallelize_module(part, mesh, {"embedding": plan})
    if part.head is not None:
        head = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(part, mesh, {"norm": SequenceParallel(), "head": head})
    column, gather = (
        ColwiseParallel(),
        PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    )
    row = RowwiseParallel(output_layouts=Shard(1))
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": gather,
        "attention.wq": column,
        "attention.wk": column,
        "attention.wv": column,
        "attention.wo": row,
        "mlp_norm": SequenceParallel(),
        "mlp": gather,
        "mlp.w1": column,
        "mlp.w2": row,
        "mlp.w3": column,
    }
    for block in part.blocks:
        parallelize_module(block, mesh, plan)


def shard(part: Part, mesh: DeviceMesh, job: dict[str, Any]) -> None:
    """FSDP2 as torchtitan applies it: embedding, every block, final norm with the head, and the rest."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    again = job["zero"] == 3 and job["pp"] == 1
    if part.embedding is not None:
        fully_shard(part.embedding, **options, reshard_after_forward=again)
    for block in part.blocks:
        fully_shard(block, **options, reshard_after_forward=again)
    if part.head is not None:
        fully_shard([part.norm, part.head], **options, reshard_after_forward=False)
    fully_shard(part, **options)


class Calls(TorchDispatchMode):
    """Counts collectives by group, kind and bytes of the whole tensor."""

    def __init__(self, axes: dict[str, tuple[str, int]]) -> None:
        super().__init__()
        self.axes = axes
        self.found: Counter[tuple[str, int, str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a collective and run it; what runs inside a distributed tensor's operator comes by once more."""
        if any(kind is DTensor for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        space, name = func.name().split("::")
        name = name.split(".")[0]
        if space == "_c10d_functional" and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            self.functional(name, args, result)
        elif space == "c10d":
            self.plain(name, args)
        return result

    def note(self, group: str, kind: str, size_bytes: int) -> None:
        """Count one call."""
        self.found[(*self.axes[group], kind, size_bytes)] += 1

    def functional(self, name: str, args: Any, result: Any) -> None:
        """A functional collective; its group's name is its last argument."""
        kind = KINDS.get(name, name)
        self.note(args[-1], kind, size(result if kind == "all_gather" else args[0]))

    def plain(self, name: str, args: Any) -> None:
        """A collective of a process group, which is its first argument but for those with an output before it."""
        if name not in ("recv_", "barrier"):
            group = next(group for group in map(unboxed, args) if group is not None)
            whole = args[1] if name == "_reduce_scatter_base_" else args[0]
            self.note(group.group_name, KINDS.get(name, name), size(whole))


def unboxed(value: Any) -> Any:
    """A process group that an operator was called with."""
    if isinstance(value, dist.ProcessGroup):
        return value
    return dist.ProcessGroup.unbox(value) if isinstance(value, torch.ScriptObject) else None


def size(value: Any) -> int:
    """Bytes of a tensor or of a list of them."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(size(item) for item in value)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Build this rank's parts, train two steps, and count the second's collectives."""
    torch.manual_seed(0)
    names = ("pp", "replicas", "shard", "tp")
    degrees = (job["pp"], job["dp"] // job["shard"], job["shard"], job["tp"])
    mesh = init_device_mesh("cpu", degrees, mesh_dim_names=names)
    groups = {name: mesh.get_group(name) for name in names}
    axes = {group.group_name: (name, group.size()) for name, group in groups.items()}
    rank, vp = mesh.get_local_rank("pp"), job["vp"]
    stages = job["pp"] * vp
    parts = {}
    for chunk in range(vp):
        entry = chunk * job["pp"] + rank
        stage = stages - 1 - rank if chunk and job["schedule"] == "zb-v" else entry
        parts[stage] = Part(job, job["layers"][entry], stage == 0, stage == stages - 1)
        if job["tp"] > 1:
            tensor_parallel(parts[stage], mesh["tp"])
        if job["dp"] > 1:
            shard(parts[stage], mesh["replicas", "shard"] if job["dp"] > job["shard"] else mesh["shard"], job)
        else:
            parts[stage].to(torch.bfloat16)
    optimizer = torch.optim.AdamW([p for part in parts.values() for p in part.parameters()], foreach=False)
    step = pipeline(job, parts, mesh) if job["pp"] > 1 else accumulate(job, parts[0])
    for counted in (False, True):
        calls = Calls(axes)
        with calls if counted else nullcontext(), loss_parallel():
            step()
        if counted:
            state = state_bytes(optimizer)
        optimizer.step()
        optimizer.zero_grad()
    listed = [
        dict(zip(("axis", "ranks", "kind", "bytes"), key, strict=True), count=n)
        for key, n in calls.found.items()
    ]
    return {"calls": sorted(listed, key=str), "state": state, "rank": dist.get_rank()}


def state_bytes(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of weights, gradients and moments on this rank, between a backward pass and the optimizer's step."""
    held = [local(p) for group in optimizer.param_groups for p in group["params"]]
    grads = [local(p.grad) for group in optimizer.param_groups for p in group["params"]]
    moments = [
        local(value) for state in optimizer.state.values() for name, value in state.items() if name != "step"
    ]
    return {"weights": size(held), "gradients": size(grads), "optimizer": size(moments)}


def local(value: Any) -> torch.Tensor:
    """The part of a distributed tensor that this rank holds."""
    return value.to_local() if hasattr(value, "to_local") else value


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in 32 bits."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))


def tokens(job: dict[str, Any], sequences: int) -> torch.Tensor:
    """Some tokens."""
    return torch.randint(0, job["vocab"], (sequences, job["sequence"]))


def accumulate(job: dict[str, Any], part: Part) -> Any:
    """Micro-batches one after another."""

    def step() -> None:
        for _ in range(job["micro_batches"]):
            loss_of(part(tokens(job, job["micro_batch"])), tokens(job, job["micro_batch"])).backward()

    return step


def boundaries(job: dict[str, Any], part: Part) -> dict[str, Any]:
    """What a part takes and gives, which the fake back-end cannot send for; without tensor parallelism."""
    if job["backend"] != "fake":
        return {}
    here = {"dtype": torch.bfloat16, "requires_grad": True}
    hidden = torch.zeros(job["micro_batch"], job["sequence"], job["hidden"], **here)
    logits = torch.zeros(job["micro_batch"], job["sequence"], job["vocab"], **here)
    first = tokens(job, job["micro_batch"])
    inputs, outputs = first if part.embedding else hidden, logits if part.head else hidden
    return {"input_args": inputs, "output_args": outputs}


def pipeline(job: dict[str, Any], parts: dict[int, Part], mesh: DeviceMesh) -> Any:
    """One of torch's own schedules."""
    count, last = job["pp"] * job["vp"], job["pp"] * job["vp"] - 1
    group = mesh.get_group("pp")
    built = [
        PipelineStage(part, at, count, torch.device("cpu"), group=group, **boundaries(job, part))
        for at, part in parts.items()
    ]
    kind, m = SCHEDULES[job["schedule"]], job["micro_batches"]
    several = job["vp"] > 1
    schedule = kind(built if several else built[0], n_microbatches=m, loss_fn=loss_of)
    whole = job["micro_batch"] * m

    def step() -> None:
        inputs = (tokens(job, whole),) if 0 in parts else ()
        target = tokens(job, whole) if last in parts else None
        schedule.step(*inputs, target=target)

    return step


def alone(job: dict[str, Any], rank: int, store: str) -> dict[str, Any]:
    """Run one rank of a job."""
    if job["backend"] == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=job["world"])
    else:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=job["world"])
    try:
        return run(job)
    finally:
        dist.destroy_process_group()


def worker(rank: int, job: dict[str, Any], folder: str) -> None:
    """One process of a job."""
    torch.set_num_threads(1)
    with open(os.path.join(folder, str(rank)), "w") as out:
        json.dump(alone(job, rank, os.path.join(folder, "store")), out)


def every_rank(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a job, every rank in a process of its own; of the fake back-end the first and the last rank of every stage."""
    context, fake = torch.multiprocessing.get_context("fork"), job["backend"] == "fake"
    each = job["world"] // job["pp"]
    ranks = [rank for rank in range(job["world"]) if not fake or rank % each in (0, each - 1)]
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=worker, args=(rank, job, folder)) for rank in ranks]
        for process in processes:
            process.start()
            if fake:
                process.join()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"a rank of {job} died")
        return [json.load(open(os.path.join(folder, str(rank)))) for rank in ranks]


def main() -> None:
    """Run jobs line by line."""
    warnings.simplefilter("ignore")
    for line in sys.stdin.read().splitlines():
        print(json.dumps(every_rank(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
