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
import torch.distributed._functional_collectives as funcol
from live_bytes import peak_bytes  # type: ignore[import-not-found]  # beside this script where it runs
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    schedules,
)
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental._context_parallel._cp_custom_ops import (
    flex_cp_allgather,
    flex_cp_allgather_backward,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

KINDS = {
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "alltoall_base_": "all_to_all",
}
SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb-v": ScheduleZBVZeroBubble,
}


class Gathered(torch.autograd.Function):
    """Keys and values of all context-parallel ranks: the bodies of torch's operators, whose calls are seen one by one."""

    @staticmethod
    def forward(ctx: Any, k: torch.Tensor, v: torch.Tensor, group: str) -> Any:
        """Gather along the sequence."""
        ctx.group = group
        return tuple(flex_cp_allgather._init_fn(k, v, 2, group))  # noqa: SLF001

    @staticmethod
    def backward(ctx: Any, grad_k: torch.Tensor, grad_v: torch.Tensor) -> Any:
        """Scatter what the ranks' gradients add up to."""
        return *flex_cp_allgather_backward._init_fn(grad_k, grad_v, 2, ctx.group), None  # noqa: SLF001


class Attention(nn.Module):
    """Grouped-query attention without position embedding, which holds no parameters."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.head_dim = job["hidden"] // job["heads"]
        self.wq = nn.Linear(job["hidden"], job["hidden"], bias=False)
        self.wk = nn.Linear(job["hidden"], job["kv_heads"] * self.head_dim, bias=False)
        self.wv = nn.Linear(job["hidden"], job["kv_heads"] * self.head_dim, bias=False)
        self.wo = nn.Linear(job["hidden"], job["hidden"], bias=False)
        self.cp: str | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend within each sequence."""
        parts = [
            matrix(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for matrix in (self.wq, self.wk, self.wv)
        ]
        if self.cp is not None:  # as torchtitan's flex attention
            parts[1:] = Gathered.apply(parts[1].contiguous(), parts[2].contiguous(), self.cp)
        grouped = parts[0].shape[1] > parts[1].shape[1]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=grouped)
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


class Experts(nn.Module):
    """Gated MLPs of this rank's experts, each for as many rows as the others."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        count, width = job["experts"] // job["ep"], job["expert_ffn"]
        self.w1 = nn.Parameter(torch.randn(count, job["hidden"], width) * 0.02)
        self.w2 = nn.Parameter(torch.randn(count, width, job["hidden"]) * 0.02)
        self.w3 = nn.Parameter(torch.randn(count, job["hidden"], width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply rows that are sorted by expert."""
        rows = x.unflatten(0, (self.w1.shape[0], -1))
        return ((functional.silu(rows @ self.w1) * (rows @ self.w3)) @ self.w2).flatten(0, 1)


class MoE(nn.Module):
    """Experts over expert-parallel ranks as torchtitan's all-to-all dispatcher shares them; tokens go round."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.gate = nn.Linear(job["hidden"], job["experts"], bias=False)
        self.experts = Experts(job)
        self.top_k = job["top_k"]
        self.ep: dist.ProcessGroup | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Send every token to its experts and add what comes back, weighted."""
        flat = x.flatten(0, 1)
        scores = functional.softmax(self.gate(flat).float(), dim=-1)
        chosen = torch.arange(len(flat) * self.top_k).reshape(-1, self.top_k) % scores.shape[1]
        order = torch.argsort(chosen.flatten(), stable=True)
        token = order // self.top_k
        rows, weights = flat[token], scores.gather(1, chosen).flatten()[order]
        done = self.exchange(self.experts(self.sorted(self.exchange(rows))), back=True)
        done = (done * weights[:, None]).to(flat.dtype)
        # as torchtitan's deterministic_scatter_add
        out = torch.zeros_like(flat).scatter_add(0, token[:, None].expand_as(done), done)
        return out.view_as(x)

    def exchange(self, rows: torch.Tensor, *, back: bool = False) -> torch.Tensor:
        """One all-to-all of equal shares; ``back``: of rows that are sorted by expert."""
        if self.ep is None:
            return rows
        ranks = self.ep.size()
        if back:
            rows = rows.unflatten(0, (self.experts.w1.shape[0], ranks, -1)).transpose(0, 1).flatten(0, 2)
        shares = [len(rows) // ranks] * ranks
        return funcol.all_to_all_single_autograd(rows.contiguous(), shares, shares, self.ep)

    def sorted(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of all ranks by expert."""
        if self.ep is None:
            return rows
        return rows.unflatten(0, (self.ep.size(), self.experts.w1.shape[0], -1)).transpose(0, 1).flatten(0, 2)


class Block(nn.Module):
    """Norm, attention, norm, MLP or experts."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(job["hidden"])
        self.attention = Attention(job)
        self.mlp_norm = nn.RMSNorm(job["hidden"])
        self.mlp = MoE(job) if job["experts"] else Mlp(job)

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


def shard(part: Part, mesh: DeviceMesh, experts: DeviceMesh | None, job: dict[str, Any]) -> None:
    """FSDP2 as torchtitan applies it: embedding, every block and its experts, final norm with the head, and the rest."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    again = job["zero"] == 3 and job["pp"] == 1
    if part.embedding is not None:
        fully_shard(part.embedding, **options, reshard_after_forward=again)
    for block in part.blocks:
        if experts is not None:
            fully_shard(block.mlp.experts, mesh=experts, mp_policy=policy, reshard_after_forward=again)
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
        """Count one call; groups of the same ranks are one to torch, but only experts exchange all to all."""
        axis, ranks = self.axes[group]
        self.found[("ep" if kind == "all_to_all" else axis, ranks, kind, size_bytes)] += 1

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
    """Build this rank's parts, train two steps, and count the second's collectives; the most bytes alive in a third."""
    torch.manual_seed(0)
    mesh, sparse = meshes(job)
    both = (mesh, sparse) if job["experts"] else (mesh,)
    groups = {name: one.get_group(name) for one in both for name in one.mesh_dim_names}
    axes = {group.group_name: (name, group.size()) for name, group in groups.items() if group.size() > 1}
    rank, vp = mesh.get_local_rank("pp"), job["vp"]
    stages = job["pp"] * vp
    parts = {}
    for chunk in range(vp):
        entry = chunk * job["pp"] + rank
        stage = stages - 1 - rank if chunk and job["schedule"] == "zb-v" else entry
        parts[stage] = Part(job, job["layers"][entry], stage == 0, stage == stages - 1)
        if job["tp"] > 1:
            tensor_parallel(parts[stage], mesh["tp"])
        for module in parts[stage].modules():
            if isinstance(module, Attention) and job["cp"] > 1:
                module.cp = groups["cp"].group_name
            if isinstance(module, MoE) and job["ep"] > 1:
                module.ep = groups["ep"]
        if job["dp"] * job["cp"] > 1:
            whole = job["dp"] == job["shard"]
            dense = mesh["shard", "cp"]._flatten("fsdp") if job["cp"] > 1 else mesh["shard"]  # noqa: SLF001
            axes[dense.get_group().group_name] = ("shard", dense.size())
            grid = dense if whole else mesh["replicas", "shard"]
            shard(parts[stage], grid, sparse["edp"] if job["experts"] else None, job)
        else:
            parts[stage].to(torch.bfloat16)
    optimizer = torch.optim.AdamW([p for part in parts.values() for p in part.parameters()], foreach=False)
    step, built = pipeline(job, parts, mesh) if job["pp"] > 1 else (accumulate(job, parts[0]), [])
    for counted in (False, True):
        calls = Calls(axes)
        with calls if counted else nullcontext(), loss_parallel():
            step()
        if counted:
            state = state_bytes(optimizer)
        optimizer.step()
        optimizer.zero_grad()
    if job["backend"] == "gloo":
        with loss_parallel():
            state["peak"] = peak_bytes(step, list(parts.values()), optimizer, buffers(built))
    listed = [
        dict(zip(("axis", "ranks", "kind", "bytes"), key, strict=True), count=n)
        for key, n in calls.found.items()
    ]
    return {"calls": sorted(listed, key=str), "state": state, "rank": dist.get_rank()}


def meshes(job: dict[str, Any]) -> tuple[DeviceMesh, DeviceMesh]:
    """Ranks by what they share, and those of a stage once more by what experts share."""
    degrees = (job["pp"], job["dp"] // job["shard"], job["shard"], job["cp"], job["tp"])
    mesh = init_device_mesh("cpu", degrees, mesh_dim_names=("pp", "replicas", "shard", "cp", "tp"))
    ranks = job["world"] // job["pp"]
    sparse = (job["pp"], ranks // job["ep"], job["ep"])
    return mesh, init_device_mesh("cpu", sparse, mesh_dim_names=("stage", "edp", "ep"))


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
    return torch.randint(0, job["vocab"], (sequences, job["sequence"] // job["cp"]))


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
    length = job["sequence"] // job["cp"]
    hidden = torch.zeros(job["micro_batch"], length, job["hidden"], **here)
    logits = torch.zeros(job["micro_batch"], length, job["vocab"], **here)
    first = tokens(job, job["micro_batch"])
    inputs, outputs = first if part.embedding else hidden, logits if part.head else hidden
    return {"input_args": inputs, "output_args": outputs}


def sent(ops: list[dist.P2POp], desc: str | None = None, *, batch: Any = schedules._batch_p2p) -> Any:  # noqa: SLF001
    """Send copies that nobody counts: gloo keeps what it sends until its work is waited for, NCCL until it is sent."""
    with _disable_current_modes():
        copies = [
            dist.P2POp(op.op, op.tensor.clone(), group=op.group, tag=op.tag, group_peer=op.group_peer)
            if op.op is dist.isend
            else op
            for op in ops
        ]
    return batch(copies, desc)


def buffers(built: list[PipelineStage]) -> list[torch.Tensor]:
    """What stages receive in: inputs and gradients of every micro-batch."""
    infos = [
        info
        for stage in built
        for each in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
        for info in each
    ]
    return [info.buffer for info in infos if info.buffer is not None]


def pipeline(
    job: dict[str, Any], parts: dict[int, Part], mesh: DeviceMesh
) -> tuple[Any, list[PipelineStage]]:
    """One of torch's own schedules, and its stages."""
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
        schedule.step(*inputs, target=target, return_outputs=False)

    return step, built


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
    schedules._batch_p2p = sent  # noqa: SLF001
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
