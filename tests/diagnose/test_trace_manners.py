"""One step written by hand, in the manners of other releases, devices and trainers: what comes out is what a hand counts.

Every release writes the same 2,000 microseconds in its own words; each must give the same terms, to the nanosecond.
"""

from __future__ import annotations

import copy
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from checks.traced_faults import planned

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.diagnosis import diagnose
from layoutopt.optimizer.diagnose.parts import Activity, Label
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.interop.profiles.read import read_profiles
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Trace = dict[str, Any]
    Change = Callable[[Trace], None]

MAIN, ENGINE = 11, 12
GEMM, ATTENTION, NORM, ADAM = (
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopB_TNT",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>(Flash_fwd_params)",
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<X>(Params)",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int)",
)
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = (
    (GEMM, MAIN, 10, 12, 20, 120, 7), (GATHER, MAIN, 14, 16, 120, 150, 20), (ATTENTION, MAIN, 18, 20, 150, 200, 7),
    (GEMM, ENGINE, 210, 215, 230, 330, 7), (NORM, ENGINE, 222, 224, 330, 350, 7), (REDUCE, ENGINE, 240, 242, 300, 380, 21),
    (ADAM, MAIN, 385, 390, 400, 450, 7),
)  # fmt: skip
"""Name, thread, launch from and to, on the device from and to, stream; microseconds of a step of a thousand."""

TERMS = {
    Label(Component.FORWARD, Activity.GEMM): 200,
    Label(Component.FORWARD, Activity.ATTENTION): 100,
    Label(Component.BACKWARD, Activity.GEMM): 200,
    Label(Component.RECOMPUTE, Activity.NORM): 40,
    Label(Component.OPTIMIZER, Activity.OPTIMIZER): 100,
    Label(Component.TP, Activity.TRANSFER): 60,
    Label(Component.DP, Activity.TRANSFER): 60,
    Label(Component.FORWARD, Activity.GAP): 16,
    Label(Component.BACKWARD, Activity.GAP): 30,
    Label(Component.OPTIMIZER, Activity.GAP): 20,
    Label(Component.HOST, Activity.LAUNCH): 50,
    Label(Component.STEP, Activity.LAUNCH): 1124,
}
"""What two of the steps are, microseconds."""

CALLS = {
    GATHER: {"Collective name": "_allgather_base", "In msg nelems": 1024, "Out msg nelems": 2048, "Group size": 2,
             "dtype": "BFloat16", "Process Group Name": "1", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP",
             "Process Group Ranks": "[0, 1]"},
    REDUCE: {"Collective name": "_reduce_scatter_base", "In msg nelems": 4096, "Out msg nelems": 1024, "Group size": 4,
             "dtype": "BFloat16", "Process Group Name": "2", "Process Group Description": "DATA_PARALLEL_GROUP_WITH_CP",
             "Process Group Ranks": "[0, 2, 4, 6]"},
}  # fmt: skip


def event(cat: str, name: str, tid: int, start: float, end: float, **args: Any) -> dict[str, Any]:
    """Write one complete event of a host of process 900, or of GPU 0."""
    pid = 0 if cat in ("kernel", "gpu_memcpy", "gpu_memset") else 900
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def one_step(begin: float, number: int) -> list[dict[str, Any]]:
    """Write the events of one step."""
    found = [
        event("user_annotation", f"ProfilerStep#{number}", MAIN, begin, begin + 1000),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", ENGINE, begin + 205, begin + 300),
        event(
            "cpu_op",
            "aten::rms_norm",
            ENGINE,
            begin + 220,
            begin + 228,
            **{"Sequence number": 7, "Fwd thread id": 0},
        ),
        event("user_annotation", "Optimizer.step#AdamW.step", MAIN, begin + 380, begin + 395),
    ]
    for place, (name, thread, asked, launched, start, end, stream) in enumerate(KERNELS):
        link = {"correlation": 100 * number + place, "External id": 500 * number + place}
        runtime = "cudaLaunchKernel" if place % 2 else "cuLaunchKernelEx"
        category = "cuda_runtime" if place % 2 else "cuda_driver"
        found.append(event(category, runtime, thread, begin + asked, begin + launched, **link))
        args = {"stream": stream, "device": 0, **link, **CALLS.get(name, {})}
        found.append(event("kernel", name, stream, begin + start, begin + end, **args))
    return found


def written() -> Trace:
    """Return two steps as torch 2.9 writes them, the first of a job whose warm-up went before."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [*one_step(100, 10), *one_step(1100, 11)],
    }


def terms_of(file: Path, **options: Any) -> dict[Label, float]:
    """Return the microseconds of each label that a file's only rank has, having seen that they sum to its steps."""
    (rank,) = diagnose(read_profiles([file], ProfileOptions(**options))).ranks
    assert rank.steps == 2 and rank.steps_ns == sum(rank.labels_ns.values()) == 2_000_000
    return {label: ns / 1000 for label, ns in rank.labels_ns.items()}


def saved(plain: Any, folder: Path, name: str = "trace.json") -> Path:
    """Write a trace."""
    file = folder / name
    file.write_text(json.dumps(plain), encoding="utf-8")
    return file


def kernels_of(plain: Trace) -> list[dict[str, Any]]:
    """Return the kernels."""
    return [one for one in plain["traceEvents"] if one["cat"] == "kernel"]


def renamed(plain: Trace, names: dict[str, str]) -> None:
    """Give events other names."""
    for one in plain["traceEvents"]:
        one["name"] = names.get(one["name"], one["name"])


def with_warm_up(plain: Trace) -> None:
    """Put kernels of a warm-up before the first step, and of the steps that follow behind the last."""
    early, late = (
        event("kernel", GEMM, 7, start, start + 30, stream=7, correlation=9000 + start)
        for start in (20, 2150)
    )
    plain["traceEvents"] += [early, late]


def in_any_order(plain: Trace) -> None:
    """List device events before the host's, and ranges last, as some releases do."""
    plain["traceEvents"].sort(key=lambda one: (one["cat"] != "kernel", one["cat"], -one["ts"]))


def with_all_that_traces_hold(plain: Trace) -> None:
    """Add spans, flows, counters, marks, memory and Python frames, none of which takes time on the device."""
    plain["traceEvents"] += [
        {"ph": "X", "cat": "Trace", "ts": 0, "dur": 5000, "pid": "Spans", "tid": "Profiler", "name": "Profiler (0)"},
        {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace", "ts": 0},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": "stream 7"}},
        {"ph": "s", "id": 5, "pid": 900, "tid": 11, "ts": 110, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 120, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 900, "tid": 11, "ts": 130},
        {"ph": "C", "cat": "hardware_counters", "name": "dram", "pid": "GPU 0 Counters", "tid": 7, "ts": 130},
        event("python_function", "train.py(12): step", MAIN, 100, 1100),
        event("gpu_user_annotation", "ProfilerStep#10", 7, 120, 550, stream=7),
        event("gpu_user_annotation", "nccl:_all_gather_base", 20, 220, 250, stream=20),
        event("user_annotation", "nccl:_all_gather_base", MAIN, 112, 113),
        event("cuda_sync", "Stream Sync", 7, 100, 2100, stream=7),
        event("cuda_runtime", "cudaStreamSynchronize", MAIN, 500, 1050),
        event("overhead", "CUPTI buffer flush", -1, 600, 700),
        event("ac2g", "ac2g", 7, 100, 2100),
    ]  # fmt: skip


def of_torch_2_0(plain: Trace) -> None:
    """Say nothing of collectives beside their kernels' names, and write ``external id`` small."""
    del plain["baseTimeNanoseconds"]
    plain["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 8}
    for one in kernels_of(plain):
        args = {
            key: value
            for key, value in one["args"].items()
            if key in ("stream", "device", "correlation", "External id")
        }
        args["external id"] = args.pop("External id")
        one["args"] = {"queued": 0, "context": 1, **args}
    renamed(plain, {
        GATHER: "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        REDUCE: "ncclKernel_ReduceScatter_RING_LL_Sum___nv_bfloat16(ncclDevComm*, unsigned long, ncclWork*)",
    })  # fmt: skip


def of_torch_2_2(plain: Trace) -> None:
    """Say what a collective is at the operator that asked for it alone, which the kernel's external id names."""
    for one in kernels_of(plain):
        call = CALLS.get(one["name"])
        if call:
            stated = {key: value for key, value in call.items() if not key.endswith("Ranks")}
            said = {"External id": one["args"]["External id"], **stated}
            plain["traceEvents"].append(
                event("cpu_op", "record_param_comms", MAIN, one["ts"] - 90, one["ts"] - 89, **said)
            )
            one["args"] = {key: value for key, value in one["args"].items() if key not in call}
            one["args"]["external id"] = one["args"].pop("External id")


def of_rocm(plain: Trace) -> None:
    """Launch by HIP, with the kernels of hipBLASLt, AOTriton and RCCL, whose one kernel says nothing of its collective."""
    renamed(plain, {
        GEMM: "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0", ATTENTION: "attn_fwd.kd",
        GATHER: "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        REDUCE: "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "cudaLaunchKernel": "hipLaunchKernel", "cuLaunchKernelEx": "hipExtModuleLaunchKernel",
    })  # fmt: skip
    for one in plain["traceEvents"]:
        one["cat"] = one["cat"].replace("cuda_driver", "cuda_runtime")


def compiled(plain: Trace) -> None:
    """Run TorchInductor's kernels, launched from its own wrapper within compiled functions."""
    renamed(plain, {
        GEMM: "triton_tem_fused_mm_t_view_4", ATTENTION: "triton_tem_fused_flex_attention_2",
        NORM: "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", ADAM: "triton_for_fused_add_addcdiv_lerp_0",
        "autograd::engine::evaluate_function: MmBackward0": "autograd::engine::evaluate_function: CompiledFunctionBackward",
    })  # fmt: skip


def words_for_streams(plain: Trace) -> None:
    """Name streams and threads of the device."""
    for one in kernels_of(plain):
        one["tid"], one["args"]["stream"] = f"stream {one['tid']}", f"stream {one['tid']} (default)"


def without_a_rank(plain: Trace) -> None:
    """Say nothing of the job."""
    del plain["distributedInfo"], plain["deviceProperties"], plain["schemaVersion"]


def listed_groups(plain: Trace) -> None:
    """List the groups beside the events, their ranks cut short in the calls as torch does for more than thirty."""
    plain["distributedInfo"]["pg_config"] = [
        {"pg_name": one["Process Group Name"], "pg_desc": one["Process Group Description"], "pg_size": one["Group size"],
         "backend_config": "cuda:nccl", "ranks": one["Process Group Ranks"]} for one in CALLS.values()
    ]  # fmt: skip
    for one in kernels_of(plain):
        if "Process Group Ranks" in one["args"]:
            one["args"]["Process Group Ranks"] = "[0, 1, ..., 31, ...]"


MANNERS: dict[str, Change] = {
    "torch 2.9": lambda _: None,
    "a warm-up before, a step cut behind": with_warm_up,
    "any order": in_any_order,
    "all that traces hold": with_all_that_traces_hold,
    "torch 2.2": of_torch_2_2,
    "ROCm": of_rocm,
    "compiled": compiled,
    "streams by words": words_for_streams,
    "nothing of the job": without_a_rank,
    "groups beside the events": listed_groups,
}


@pytest.mark.parametrize("name", MANNERS)
def test_the_same_step_in_other_words(name: str, tmp_path: Path) -> None:
    """Each manner of writing the step gives the terms that a hand counts."""
    plain = written()
    MANNERS[name](plain)
    assert terms_of(saved(plain, tmp_path)) == TERMS


def test_names_alone_and_whose_traffic_they_are(tmp_path: Path) -> None:
    """Before torch 2.2 the kernels' names are all: an option says whose they are, and without it a note asks."""
    plain = written()
    of_torch_2_0(plain)
    file = saved(plain, tmp_path)
    assert terms_of(file, axes={"all_gather": Axis.TP, "reduce_scatter": Axis.DP}) == TERMS
    found = diagnose(read_profiles([file]))
    assert found.ranks[0].seconds(Component.STEP, Activity.TRANSFER) == pytest.approx(60e-6)
    assert [note.split("?")[0] for note in found.notes] == [
        "whose traffic is group 'all_gather'",
        "whose traffic is group 'reduce_scatter'",
    ]


def test_files_in_other_forms(tmp_path: Path) -> None:
    """A bare array, an archive of several members, one event a line, and no spaces at all."""
    plain = written()
    bare = saved(plain["traceEvents"], tmp_path, "bare.json")
    dense = tmp_path / "dense.json"
    dense.write_text(json.dumps(plain, separators=(",", ":")))
    lines = tmp_path / "lines.json"
    lines.write_text(json.dumps(plain).replace("}, {", "},\r\n  {"))
    text = json.dumps(plain).encode()
    members = tmp_path / "members.json.gz"
    members.write_bytes(
        b"".join(gzip.compress(text[place : place + 999]) for place in range(0, len(text), 999))
    )
    for file in (bare, dense, lines, members):
        assert terms_of(file) == TERMS, file.name


def test_steps_by_optimizer_calls(tmp_path: Path) -> None:
    """Without a schedule's marks a step is from one optimizer call to the next: another cut of the same time."""
    plain = written()
    plain["traceEvents"] += one_step(2100, 12)
    plain["traceEvents"] = [
        one for one in plain["traceEvents"] if not one["name"].startswith("ProfilerStep#")
    ]
    found = terms_of(saved(plain, tmp_path))
    for label in (label for label in TERMS if label.component is not Component.STEP):
        assert found[label] == TERMS[label], label.words


def test_a_graph_of_the_whole_step(tmp_path: Path) -> None:
    """Kernels that one launch replays have their phase by their names: the backward pass is not the forward one's."""
    plain = written()
    backward = "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<X>(Flash_bwd_params)"
    kept = []
    for one in plain["traceEvents"]:
        if one["cat"].startswith("cuda_"):
            first = one["args"]["correlation"] % 100 == 0
            kept += [{**one, "name": "cudaGraphLaunch"}] if first else []
        else:
            kept.append(one)
    for one in kernels_of(plain):
        one["name"] = backward if one["name"] == NORM else one["name"]
        one["args"]["correlation"] -= one["args"]["correlation"] % 100
    plain["traceEvents"] = kept
    found = terms_of(saved(plain, tmp_path))
    assert found[Label(Component.BACKWARD, Activity.ATTENTION)] == 40
    assert found[Label(Component.FORWARD, Activity.ATTENTION)] == 100
    assert found[Label(Component.OPTIMIZER, Activity.OPTIMIZER)] == 100


def test_kernels_without_a_launch(tmp_path: Path) -> None:
    """A kernel whose launch is not in the file has its phase by name, not that of any other launch."""
    plain = written()
    lost = {one["args"]["correlation"] for one in kernels_of(plain) if one["name"] == ATTENTION}
    plain["traceEvents"] = [
        one
        for one in plain["traceEvents"]
        if not (one["cat"].startswith("cuda_") and one["args"]["correlation"] in lost)
    ]
    assert terms_of(saved(plain, tmp_path)) == TERMS


def test_clipping_is_the_optimizers(tmp_path: Path) -> None:
    """Norms of gradients that a trainer takes before it calls the optimizer are the optimizer's kernels all the same."""
    plain = written()
    plain["traceEvents"] = [
        one for one in plain["traceEvents"] if not one["name"].startswith("Optimizer.step#")
    ]
    assert terms_of(saved(plain, tmp_path)) == TERMS


def rank_of(number: int, late_us: float, clock_us: float, *, host: str) -> Trace:
    """Return a rank's trace whose gather begins ``late_us`` later than it could, and whose clock is off."""
    plain = copy.deepcopy(written())
    plain["distributedInfo"]["rank"], plain["host_name"] = number, host
    for one in plain["traceEvents"]:
        if one["name"] == GATHER:
            one["ts"], one["dur"] = one["ts"] + late_us, one["dur"] - late_us
        one["ts"] += clock_us
    return plain


@pytest.mark.parametrize("clock_us", [0, -3_000_000, 777.125])
def test_waiting_for_a_late_rank(clock_us: float, tmp_path: Path) -> None:
    """Of a gather of 30 microseconds that the other rank enters 20 late, 20 are waiting, whatever its clock."""
    files = [
        saved(rank_of(0, 0, 0, host="node0"), tmp_path, "rank0.json"),
        saved(rank_of(1, 20, clock_us, host="node1"), tmp_path, "rank1.json"),
    ]
    first, second = diagnose(read_profiles(files)).ranks
    assert first.labels_ns[Label(Component.SYNC, Activity.PEER)] == 2 * 20_000
    for rank in (first, second):
        assert sum(rank.labels_ns.values()) == rank.steps_ns == 2_000_000
        assert rank.labels_ns[Label(Component.TP, Activity.TRANSFER)] == 2 * 10_000
        (gather,) = (one for one in rank.traffic if one.axis is Axis.TP)
        assert gather.whole and gather.calls == 2 and gather.bytes == 2 * 2048 * 2
    assert second.late > first.late


DATA_PARALLEL = ("llama3-8b", "zero=3,micro_batch=1", 16, 8192)
PLANS = {
    "tp=2": ("llama3-8b", "tp=2,zero=1,micro_batch=1", 8, 8192),
    "everybody": DATA_PARALLEL,
    "experts": ("qwen3-30b-a3b", "ep=4,zero=1,micro_batch=1", 16, 4096),
}


def regrouped(plain: Trace, groups: dict[str, dict[str, Any]]) -> None:
    """Say other things of the calls' groups; None takes out what is said."""
    for one in kernels_of(plain):
        changes = groups.get(one["name"], {})
        one["args"] |= changes
        one["args"] = {key: value for key, value in one["args"].items() if value is not None}


def axes_of(plain: Trace, plan: str, folder: Path) -> list[Axis | None]:
    """Return whose traffic gather and reduction are under a plan."""
    found = diagnose(read_profiles([saved(plain, folder)]), *planned(PLANS[plan]))
    assert not [note for note in found.notes if "whose traffic" in note]
    kinds = {one.kind: one.axis for one in found.ranks[0].traffic}
    return [kinds.get("all_gather", kinds.get("all_to_all")), kinds["reduce_scatter"]]


def undescribed(ranks: str, size: int, name: str = "7") -> dict[str, Any]:
    """Return what a call says of a group that nobody described, as nanotron's and DeepSpeed's."""
    return {
        "Process Group Name": name,
        "Process Group Description": "undefined",
        "Process Group Ranks": ranks,
        "Group size": size,
    }


def test_groups_without_a_description_are_the_plans(tmp_path: Path) -> None:
    """The plan's tensor-parallel group is ranks 0 and 1, its data-parallel one every other rank: their lists tell them."""
    plain = written()
    regrouped(plain, {GATHER: undescribed("[0, 1]", 2, "3"), REDUCE: undescribed("[0, 2, 4, 6]", 4, "4")})
    assert axes_of(plain, "tp=2", tmp_path) == [Axis.TP, Axis.DP]


def test_groups_that_are_cut_short_have_the_plans_ranks(tmp_path: Path) -> None:
    """Of a list that torch cut only the size is known: the plan's group of that size."""
    plain = written()
    regrouped(plain, {GATHER: undescribed("[0, ...", 2, "3"), REDUCE: undescribed("[0, ...", 4, "4")})
    found = diagnose(read_profiles([saved(plain, tmp_path)]), *planned(PLANS["tp=2"]))
    used = {found.profiles[0].groups[number].ranks for number in found.profiles[0].calls.group.tolist()}
    assert used == {(0, 1), (0, 2, 4, 6)} and found.matched[0].missing == (1, 2, 4, 6)


def test_everybody_is_data_parallel_where_nothing_else_is(tmp_path: Path) -> None:
    """DDP, FSDP and ZeRO over torch's own group of all ranks."""
    plain = written()
    everybody = undescribed("[0, 1, 2, 3, 4, 5, 6, 7]", 8, "0") | {"Process Group Description": "default_pg"}
    regrouped(plain, {GATHER: everybody, REDUCE: everybody})
    assert axes_of(plain, "everybody", tmp_path) == [Axis.DP, Axis.DP]


def test_names_alone_are_the_plans_only_axis(tmp_path: Path) -> None:
    """Kernels' names of old releases, in a job that communicates over one axis."""
    plain = written()
    of_torch_2_0(plain)
    assert axes_of(plain, "everybody", tmp_path) == [Axis.DP, Axis.DP]


def test_the_same_ranks_of_two_axes_are_told_by_the_kind(tmp_path: Path) -> None:
    """Experts' exchanges and the sums of gradients over the same ranks, as DeepSpeed has them."""
    plain = written()
    exchange = {"Collective name": "all_to_allv", **undescribed("[0, 1, 2, 3]", 4, "5")}
    regrouped(plain, {GATHER: exchange, REDUCE: undescribed("[0, 1, 2, 3, 4, 5, 6, 7]", 8, "6")})
    assert axes_of(plain, "experts", tmp_path) == [Axis.EP, Axis.DP]


def test_a_group_of_several_axes_is_of_none(tmp_path: Path) -> None:
    """A norm of gradients over all ranks of a job that names its groups stays apart."""
    plain = written()
    regrouped(
        plain,
        {
            REDUCE: undescribed("[0, 1, 2, 3, 4, 5, 6, 7]", 8, "0")
            | {"Process Group Description": "default_pg"}
        },
    )
    assert axes_of(plain, "tp=2", tmp_path) == [Axis.TP, None]


SHAPES = {
    "aten::mm": ([[8192, 4096], [4096, 1024]], (1, 8192, 1024, 4096)),
    "aten::addmm": ([[1024], [8192, 4096], [4096, 1024], [], []], (1, 8192, 1024, 4096)),
    "aten::linear": ([[4, 2048, 4096], [1024, 4096], []], (1, 8192, 1024, 4096)),
    "aten::bmm": ([[8, 1024, 4096], [8, 4096, 1024]], (8, 1024, 1024, 4096)),
    "aten::matmul": ([[2, 8, 512, 4096], [2, 8, 4096, 512]], (16, 512, 512, 4096)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_multiplications_by_shape(name: str, tmp_path: Path) -> None:
    """The operator that launched a multiplication tells its shape: kernels of one name stand apart, each with its rate."""
    plain, (dims, shape) = written(), SHAPES[name]
    for one in kernels_of(plain):
        if one["name"] == GEMM and one["dur"] == 100 and one["ts"] % 1000 < 200:
            said = {"External id": one["args"]["External id"], "Input Dims": dims}
            plain["traceEvents"].append(event("cpu_op", name, MAIN, one["ts"] - 9, one["ts"] - 8, **said))
    file = saved(plain, tmp_path)
    assert terms_of(file) == TERMS
    known, unknown = (one for one in diagnose(read_profiles([file])).operations if one.name == GEMM)
    known, unknown = (known, unknown) if known.product else (unknown, known)
    assert known.product is not None and unknown.product is None
    assert (known.product.batch, known.product.m, known.product.n, known.product.k) == shape
    assert known.flops_per_s == pytest.approx(2 * shape[0] * shape[1] * shape[2] * shape[3] / 100e-6)
    assert known.calls == unknown.calls == 1


@pytest.mark.parametrize(
    "dims", [None, [], "8192", [[8192], [4096]], [[2, 3], [4, 5]], [[0, 3], [3, 5]], [[], [3, 5]]]
)
def test_shapes_that_are_none(dims: Any, tmp_path: Path) -> None:
    """Sizes that do not fit tell nothing, and change nothing."""
    plain = written()
    for one in kernels_of(plain):
        said = {"External id": one["args"]["External id"], "Input Dims": dims}
        plain["traceEvents"].append(event("cpu_op", "aten::mm", MAIN, one["ts"] - 9, one["ts"] - 8, **said))
    file = saved(plain, tmp_path)
    assert terms_of(file) == TERMS and not any(
        one.product for one in diagnose(read_profiles([file])).operations
    )
