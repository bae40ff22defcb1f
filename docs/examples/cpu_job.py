"""A small training job on CPUs with the profiler on: pipeline stages of data-parallel replicas, over gloo.

Start one process per rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun does. Every rank writes its
trace (``rank0_trace.json.gz``) and what it measured itself (``rank0_record.json``) into the folder that is given.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, SEQUENCE, BATCH = 256, 4, 128, 2
WAIT, WARMUP, ACTIVE = 1, 2, 2


@dataclass
class Meter:
    """What a rank measures of a step: seconds in calls that wait for others, and bytes of tensors by kind of call."""

    waited_s: float = 0.0
    bytes: dict[str, int] = field(default_factory=dict)

    def call(self, kind: str, tensor: torch.Tensor, function, *args, **kwargs) -> None:
        """Time a collective and count its bytes."""
        begun = time.perf_counter()
        function(tensor, *args, **kwargs)
        self.waited_s += time.perf_counter() - begun
        self.bytes[kind] = self.bytes.get(kind, 0) + tensor.numel() * tensor.element_size()


class Stage:
    """One rank's part of the model with its neighbours in the pipeline and its replicas."""

    def __init__(self, pp: int, layers: int, micro_batches: int, recompute: bool) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.dp = world // pp
        self.place, self.replica = divmod(rank, self.dp)
        lines = [list(range(r, world, self.dp)) for r in range(self.dp)]
        rows = [list(range(s * self.dp, (s + 1) * self.dp)) for s in range(pp)]
        pipes = [dist.new_group(ranks, group_desc="PIPELINE_MODEL_PARALLEL_GROUP") for ranks in lines]
        replicas = [dist.new_group(ranks, group_desc="DATA_PARALLEL_GROUP") for ranks in rows]
        self.pipe, self.replicas, self.line = pipes[self.replica], replicas[self.place], lines[self.replica]
        self.first, self.last = self.place == 0, self.place == pp - 1
        self.micro_batches, self.recompute = micro_batches, recompute
        block = [
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        ]
        self.layers = nn.Sequential(*block)
        self.optimizer = torch.optim.AdamW(self.layers.parameters())

    def step(self, meter: Meter) -> None:
        """Run one step: all micro-batches forward, then backward, then the sum of gradients and the optimizer."""
        with record_function("data loading"):
            data = [torch.randn(BATCH, SEQUENCE, WIDTH) for _ in range(self.micro_batches)]
        kept = []
        for one in data:
            given = one
            if not self.first:
                given = torch.empty_like(one)
                meter.call("recv", given, dist.recv, src=self.line[self.place - 1], group=self.pipe)
                given.requires_grad_()
            made = (
                checkpoint(self.layers, given, use_reentrant=False) if self.recompute else self.layers(given)
            )
            if not self.last:
                meter.call("send", made.detach(), dist.send, dst=self.line[self.place + 1], group=self.pipe)
            kept.append((given, made))
        for given, made in kept:
            if self.last:
                made.square().mean().backward()
            else:
                gradient = torch.empty_like(made)
                meter.call("recv", gradient, dist.recv, src=self.line[self.place + 1], group=self.pipe)
                made.backward(gradient)
            if not self.first:
                meter.call("send", given.grad, dist.send, dst=self.line[self.place - 1], group=self.pipe)
        if self.dp > 1:
            flat = torch.cat([parameter.grad.flatten() for parameter in self.layers.parameters()])
            meter.call("all_reduce", flat, dist.all_reduce, group=self.replicas)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--recompute", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, record = dist.get_rank(), []
    stage = Stage(asked.pp, asked.layers, asked.micro_batches, asked.recompute)

    def done(profiler: profile) -> None:
        """Write the rank's trace where diagnose looks for it."""
        profiler.export_chrome_trace(str(asked.folder / f"rank{rank}_trace.json.gz"))

    plan = schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True, on_trace_ready=done
    ) as profiler:
        for _ in range(WAIT + WARMUP + ACTIVE):
            meter, begun = Meter(), time.perf_counter()
            stage.step(meter)
            step_s = time.perf_counter() - begun
            record.append({"step_s": step_s, "busy_s": step_s - meter.waited_s, "bytes": meter.bytes})
            profiler.step()
    (asked.folder / f"rank{rank}_record.json").write_text(json.dumps(record[-ACTIVE:], indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
