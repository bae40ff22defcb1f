"""A traced job as PyTorch's profiler would write it: a Chrome trace per rank, keys and categories as libkineto has them."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from checks.traced_job import DESCRIPTIONS
from layoutopt.optimizer.diagnose.parts import Activity, Phase

if TYPE_CHECKING:
    from pathlib import Path

    from checks.traced_job import Job
    from checks.traced_run import Event, Rank, Run

BASE_NS = 1_790_000_000_000_000_000
MAIN, ENGINE = 101, 102
NAMES = {
    Activity.GEMM: "nvjet_hsh_128x256_64x4_1x2_h_bz_coopB_TNT",
    Activity.EXPERTS: "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape<>>>",
    Activity.SCORES: "void scaled_upper_triang_masked_softmax_warp_forward<c10::BFloat16>",
    Activity.SCAN: "_chunk_scan_fwd_kernel",
    Activity.DROPOUT: "void at::native::fused_dropout_kernel_vec<c10::BFloat16>",
    Activity.PERMUTE: "_permute_kernel",
    Activity.QUANTIZE: "void transformer_engine::cast_transpose_kernel<>",
    Activity.LOSS: "void cross_entropy_kernel<float>",
    Activity.EMBEDDING: "void at::native::indexSelectLargeIndex<>",
    Activity.OPTIMIZER: "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>",
    Activity.ELEMENTWISE: "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    Activity.OTHER: "some_kernel_of_my_own",
}
OF_PHASE = {
    (Activity.ATTENTION, False): "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
    (Activity.ATTENTION, True): "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>",
    (Activity.NORM, False): "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>",
    (Activity.NORM, True): "void transformer_engine::normalization::rmsnorm_bwd_tuned_kernel<>",
    (Activity.ACTIVATION, False): "void transformer_engine::swiglu_kernel<>",
    (Activity.ACTIVATION, True): "void transformer_engine::dswiglu_kernel<>",
}
COLLECTIVES = {
    "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    "all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    "reduce_scatter": (
        "_reduce_scatter_base",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    "all_to_all": ("all_to_allv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
    "send": ("send", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
    "recv": ("recv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
}


def write_traces(run: Run, folder: Path, *, compress: bool = True) -> list[Path]:
    """Write the traces of all ranks and return their files."""
    found = []
    for rank in run.ranks:
        path = folder / f"rank{rank.number}_trace.json{'.gz' if compress else ''}"
        data = json.dumps(trace_of(run.job, rank)).encode()
        path.write_bytes(gzip.compress(data, 1) if compress else data)
        found.append(path)
    return found


def trace_of(job: Job, rank: Rank) -> dict[str, Any]:
    """Return one rank's trace."""
    host = rank.number // job.gpus_per_node
    skew = job.skew_us[host % len(job.skew_us)]
    events = [*_steps(rank), *_ranges(rank), *_copies(rank)]
    for number, event in enumerate(sorted(rank.events, key=lambda one: one.launch_us)):
        events += _device(job, rank, event, number + 1)
    events.append(
        {
            "ph": "M",
            "name": "process_name",
            "pid": 4000 + rank.number,
            "tid": 0,
            "ts": 0,
            "args": {"name": "python"},
        }
    )
    for written in events:
        written["ts"] = round(written["ts"] + skew, 3)
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000, "numSms": 132}],
        "distributedInfo": {
            "backend": "nccl", "rank": rank.number, "world_size": job.ranks, "pg_count": len(DESCRIPTIONS),
            "pg_config": [_group(job, rank.number, axis) for axis in sorted(DESCRIPTIONS)],
        },
        "host_name": f"node{host}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
        "traceName": f"rank{rank.number}_trace.json",
    }  # fmt: skip


def _group(job: Job, rank: int, axis: str) -> dict[str, Any]:
    members = job.group(rank, axis)
    return {
        "pg_name": str(sorted(DESCRIPTIONS).index(axis)), "pg_desc": DESCRIPTIONS[axis], "backend_config": "cuda:nccl",
        "pg_size": len(members), "ranks": list(members),
    }  # fmt: skip


def _event(
    category: str, name: str, pid: int, tid: int, start: float, dur: float, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": round(dur, 3),
        "args": args,
    }


def _steps(rank: Rank) -> list[dict[str, Any]]:
    """Mark the steps as the profiler's schedule does, and the optimizer's calls."""
    pid, found = 4000 + rank.number, []
    for number, (start, end) in enumerate(zip(rank.begun_us, rank.begun_us[1:], strict=False)):
        found.append(_event("user_annotation", f"ProfilerStep#{number + 5}", pid, MAIN, start, end - start))
    for event in rank.events:
        if event.phase is Phase.OPTIMIZER:
            name = "Optimizer.step#AdamW.step"
            found.append(_event("user_annotation", name, pid, MAIN, event.launch_us - 0.05, 0.1))
    return found


def _ranges(rank: Rank) -> list[dict[str, Any]]:
    pid = 4000 + rank.number
    return [
        _event("user_annotation", name, pid, MAIN, start, end - start) for name, start, end in rank.ranges
    ]


def _copies(rank: Rank) -> list[dict[str, Any]]:
    name = "Memcpy DtoH (Device -> Pageable)"
    return [
        _event(
            "gpu_memcpy",
            name,
            0,
            99,
            start,
            end - start,
            bytes=1 << 30,
            stream=99,
            device=0,
            correlation=10**7,
        )
        for start, end in rank.copies
    ]


def _device(job: Job, rank: Rank, event: Event, number: int) -> list[dict[str, Any]]:
    """Return a kernel, its launch, and the operators around the launch."""
    pid, engine = 4000 + rank.number, event.phase in (Phase.BACKWARD, Phase.RECOMPUTE)
    thread = ENGINE if engine else MAIN
    args: dict[str, Any] = {
        "External id": number,
        "device": 0,
        "context": 1,
        "stream": event.stream,
        "correlation": number,
    }
    if event.part is Activity.TRANSFER:
        collective, name = COLLECTIVES[event.kind]
        args |= _metadata(job, rank, event, collective)
    else:
        name = NAMES.get(event.part) or OF_PHASE[event.part, event.phase is Phase.BACKWARD]
    kernel = _event("kernel", name, 0, event.stream, event.start_us, event.end_us - event.start_us, **args)
    launch = event.launch_us
    graph = job.graphs and event.part is not Activity.TRANSFER and event.phase is not Phase.OPTIMIZER
    call = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
    found = [
        kernel,
        _event(
            "cuda_runtime",
            call,
            pid,
            thread,
            launch - 0.02,
            0.02,
            correlation=number,
            **{"External id": number},
        ),
    ]
    if engine:
        name = "autograd::engine::evaluate_function: MmBackward0"
        found.append(
            _event(
                "cpu_op",
                name,
                pid,
                thread,
                launch - 0.04,
                0.08,
                **{"Fwd thread id": 1, "Sequence number": number},
            )
        )
    if event.phase in (Phase.FORWARD, Phase.RECOMPUTE):
        args = {"External id": number, "Fwd thread id": 0, "Sequence number": number}
        found.append(_event("cpu_op", "aten::mm", pid, thread, launch - 0.03, 0.06, **args))
    return found


def _metadata(job: Job, rank: Rank, event: Event, collective: str) -> dict[str, Any]:
    """Return what record_param_comms says of a collective; a gather's input is a rank's share, a scatter's output too."""
    size, members = event.bytes // 2, len(event.members)
    sent = size // members if event.kind == "all_gather" else size
    received = size // members if event.kind == "reduce_scatter" else size
    found = {
        "Collective name": collective, "In msg nelems": sent, "Out msg nelems": received, "Group size": members,
        "dtype": "BFloat16", "Process Group Name": str(sorted(DESCRIPTIONS).index(event.axis)),
        "Process Group Description": DESCRIPTIONS[event.axis], "Process Group Ranks": str(list(event.members)),
    }  # fmt: skip
    if event.kind in ("send", "recv"):
        found["Dst Rank" if event.kind == "send" else "Src Rank"] = event.peer
    return found
