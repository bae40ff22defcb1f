"""Every kind of log and machine file that was misread once: at least two more inputs each, in the words of its tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.interop.machines.nccl_calibration import suggest_calibration
from layoutopt.optimizer.interop.sources import import_path, import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster

if TYPE_CHECKING:
    from pathlib import Path


def read(text: str, kind: str, **options: Any) -> Any:
    """Import a text that gives itself away as ``kind``."""
    found = import_text(text, "x", **options)
    assert found.kind == kind
    return found.value


OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 6; 10.92 GiB total capacity; {rest})"
)
NEW = "Tried to allocate 1.00 GiB. GPU 6 has a total {capacity} of 64.00 GiB{free}. {process}{allowed}"
NEW += "Of the allocated memory 34.00 GiB is allocated by PyTorch, "
NEW += "{private}and 2.00 GiB is reserved by PyTorch but unallocated."
MESSAGES = {
    "torch 1.1": OLD.format(rest="9.50 GiB already allocated; 0.50 GiB free; 0.25 GiB cached"),
    "torch 1.4": OLD.format(
        rest="9.50 GiB already allocated; 0.50 GiB free; 9.75 GiB reserved in total by PyTorch"
    ),
    "torch 2.1 on AMD": "torch.cuda.OutOfMemoryError: HIP out of memory. "
    + NEW.format(capacity="capacty", free=" of which 0 bytes is free", process="", allowed="", private=""),
    "torch 2.3 on Intel": "torch.OutOfMemoryError: XPU out of memory. "
    + NEW.format(capacity="capacity", free="", process="", allowed="", private=""),
    "torch 2.8, others on the GPU, a limit and graphs": "[rank6]: torch.OutOfMemoryError: CUDA out of memory. "
    + NEW.format(
        capacity="capacity",
        free=" of which 2.00 GiB is free",
        process="Process 7 has 24.00 GiB memory in use. Including non-PyTorch memory, "
        "this process has 38.00 GiB memory in use. ",
        allowed="60.00 GiB allowed; ",
        private="with 64.00 MiB allocated in private pools (e.g., CUDA Graphs), ",
    ),
}
SIZES = {
    "torch 1.1": (10.92, 0.5, None, 9.5, 9.75),
    "torch 1.4": (10.92, 0.5, None, 9.5, 9.75),
    "torch 2.1 on AMD": (64, 0, None, 34, 36),
    "torch 2.3 on Intel": (64, None, None, 34, 36),
    "torch 2.8, others on the GPU, a limit and graphs": (64, 2, 38, 34, 36),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_out_of_memory_of_every_generation(name: str) -> None:
    """Capacity, free, in use by this process, allocated and reserved; what is not said stays unknown."""
    expected = SIZES[name]
    (found,) = read(MESSAGES[name], "torch-oom")
    sizes = (
        found.capacity_bytes,
        found.free_bytes,
        found.in_use_bytes,
        found.allocated_bytes,
        found.reserved_bytes,
    )
    assert found.gpu == 6
    assert [None if size is None else round(size / 2**30, 2) for size in sizes] == list(expected)


def test_out_of_memory_of_two_ranks() -> None:
    """Two messages in one log are two; neither takes sizes of the other."""
    first, second = read("\n".join((MESSAGES["torch 1.4"], MESSAGES["torch 2.1 on AMD"])), "torch-oom")
    assert (first.capacity_bytes < second.capacity_bytes, first.in_use_bytes) == (True, None)


STEP = " iteration {n}/ 10 | consumed samples: 1 | elapsed time per iteration (ms): 1000.0 | global batch size: 64 |\n"
HEADERS = {
    "Megatron-LM of 2021": "using world size: 16, data-parallel-size: 4, tensor-model-parallel size: 2, "
    "pipeline-model-parallel size: 2 \n",
    "core 0.9": "using world size: 16, data-parallel size: 4, context-parallel size: 1 tensor-model-parallel size: 2, "
    "encoder-tensor-model-parallel size: 0, pipeline-model-parallel size: 2, encoder-pipeline-model-parallel size: 0\n",
    "BigScience": "[default0]:using world size: 16, data-parallel-size: 4, tensor-model-parallel size: 2, "
    "pipeline-model-parallel size: 2 \n",
}


@pytest.mark.parametrize("name", HEADERS)
def test_megatron_headers_of_every_release(name: str) -> None:
    """Old ones join the words by hyphens, some lose a comma, launchers put their own in front."""
    found = read(HEADERS[name] + STEP.format(n=1) + STEP.format(n=2), "megatron-log").columns
    assert [found[axis] for axis in ("n_gpus", "dp", "tp", "pp")] == [16, 4, 2, 2]


def test_bigscience_with_memory() -> None:
    """Seconds, the most of all ranks' memory, and the batch as it grows."""
    memory = (
        "[default{r}]:[Rank {r}] (after 1 iterations) memory (MB) | allocated: 5.0 | max allocated: {mb} |\n"
    )
    line = "[default7]: iteration {n}/ 9 | elapsed time per iteration (s): 10.5 | global batch size: {b} |\n"
    text = "".join(memory.format(r=r, mb=1000.5 + r) for r in (0, 7)) + "".join(
        line.format(n=n, b=n * 192) for n in (1, 2)
    )
    found = read(text, "megatron-log").columns
    assert (found["framework"], found["step_time_s"], found["global_batch"]) == (
        "megatron-deepspeed",
        10.5,
        384,
    )
    assert found["mem_gb"] == pytest.approx(1007.5 * 2**20 / 1e9)


def test_deepspeed_timers_of_every_release() -> None:
    """Release 0.3 says EPOCH/STEP and memory later; the newest has a running average and micro-steps."""
    old = "[INFO] [timer.py:154:stop] 0/{n}, SamplesPerSec={rate}{memory}\n"
    found = read(
        old.format(n=20, rate=33.2, memory="")
        + old.format(n=40, rate=35.2, memory=", MemAllocated=5.0GB, MaxMemAllocated=8.0GB"),
        "deepspeed-log",
    )
    assert (found.samples_per_s, found.steps, found.columns["mem_gb"]) == (
        35.2,
        2,
        pytest.approx(8 * 2**30 / 1e9),
    )
    new = "epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=4.2, CurrSamplesPerSec=4.3, MemAllocated=20.1GB, "
    new += "MaxMemAllocated=30.5GB\n[Rank 0] time (ms) | fwd_microstep: 100.50 | bwd_microstep: 200.10\n"
    found = read(new, "deepspeed-log")
    assert (found.samples_per_s, found.timers_s["bwd_microstep"]) == (4.3, (0.2001, 0.2001))


def test_nemo_progress_of_both_generations() -> None:
    """NeMo 1's bar ends lines by carriage returns and writes ``=``; NeMo 2 may add memory and rates."""
    bar = (
        "Epoch 0: :   1%| | {n}/99 [01:02<1:00:00, v_num=, global_step={n}.000, train_step_timing in s={s}]\r"
    )
    text = "".join(bar.format(n=n, s=s) for n, s in ((8, 30.0), (9, 6.2), (10, 6.4)))
    assert read(text, "nemo-log").columns["step_time_s"] == pytest.approx(6.3)
    line = "Training epoch 0, iteration {n}/99 | lr: 1e-07 | global_batch_size: 512 | global_step: {n} | "
    line += "peak_memory_usage: 65000000000 | train_step_timing in s: {s} | TFLOPS_per_GPU: 5.2e+02\n"
    found = read(
        "".join(line.format(n=n, s=s) for n, s in ((0, 40.0), (1, 11.0), (2, 11.2))), "nemo-log"
    ).columns
    assert (found["step_time_s"], found["tflops_gpu"], found["global_batch"]) == (
        pytest.approx(11.1),
        520,
        512,
    )


def test_trainer_with_its_head_and_as_a_table() -> None:
    """The head states batches; examples of transformers print a table; version 5 writes numbers as texts."""
    head = (
        "***** Running training *****\n  Num examples = 52,002\n  Instantaneous batch size per device = 2\n"
    )
    head += "  Total train batch size (w. parallel, distributed & accumulation) = 1,024\n"
    end = "{'train_runtime': '4872.0', 'train_samples_per_second': '32.0', 'train_steps_per_second': '0.5', 'epoch': '3.0'}"
    found = read(head + end, "trainer-log").columns
    assert (found["step_time_s"], found["global_batch"], found["micro_batch"]) == (2.0, 1024, 2)
    table = "***** train metrics *****\n  train_runtime            = 0:33:20.10\n  train_steps_per_second   =       0.25\n"
    assert read(table, "trainer-log").columns["step_time_s"] == 4.0


NCCL = """# nThread 1 nGpus 1 minBytes 134217728 maxBytes 8589934592 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
{ranks}#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{rows}# Out of bounds values : 0 OK
"""


@pytest.mark.parametrize(
    ("gpus", "per_node", "bus", "level"),
    [(72, 4, 880, "nvlink"), (36, 4, 850, "nvlink"), (144, 4, 90, "network")],
)
def test_logs_of_racks(gpus: int, per_node: int, bus: float, level: str) -> None:
    """A whole NVL72 and half of one calibrate NVLink, two of them the network, whatever the number of hosts."""
    ranks = "".join(
        f"#  Rank {rank:2} Group  0 Pid {9000 + rank} on rack-n{rank // per_node:02} "
        f"device {rank % per_node} [0x1{rank % per_node}] NVIDIA GB200\n"
        for rank in range(gpus)
    )
    rows = ""
    for size in (2**27, 2**29, 2**31, 2**33):
        alg = bus / (2 * (gpus - 1) / gpus)
        time = size / (alg * 1e9) * 1e6 + 40
        cells = f"{time:.1f} {size / time / 1e3:.2f} {size / time / 1e3 * 2 * (gpus - 1) / gpus:.2f} 0"
        rows += f"{size} {size // 4} float sum -1 {cells} {cells}\n"
    tables = read(NCCL.format(ranks=ranks, rows=rows), "nccl-tests")
    found = suggest_calibration(tables, load_cluster("gb200-nvl72-576"))
    (name,) = found.values
    assert name.startswith(level)
    assert 0.4 < found.values[name].value < 1


ALONE = "\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
ALONE += "GPU0\t X \tNV4\tSYS\t{c}\tPIX\t0\t0\tN/A\nGPU1\tNV4\t X \tSYS\t{c}\tPXB\t0\t0\tN/A\n"
ALONE += "GPU2\tSYS\tSYS\t X \tPHB\tSYS\t32\t1\tN/A\n"
ALONE += "GPU3\t{c}\t{c}\tPHB\t X \tSYS\t32\t1\tN/A\nmlx5_0\tPIX\tPXB\tSYS\tSYS\t X\n"


@pytest.mark.parametrize(
    ("cell", "alone"),
    [
        ("SYS", "2 of 4 GPUs have no NVLink, unlike the others: GPU2, GPU3"),
        ("NV4", "1 of 4 GPUs have no NVLink, unlike the others: GPU2"),
    ],
)
def test_gpus_without_nvlink_among_others(cell: str, alone: str) -> None:
    """One or two of four, in a matrix with underlined headers and a NIC's own name."""
    text = (
        ALONE.format(c=cell)
        .replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1", 1)
        .replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m")
    )
    assert alone in read(text, "nvidia-topo").notes


AMD = {
    "rocm-smi --showtopo": "======== ROCm System Management Interface ========\n===== Link Type between two GPUs =====\n"
    "       GPU0         GPU1\nGPU0   0            PCIE\nGPU1   PCIE         0\n",
    "amd-smi topology": "LINK TYPE TABLE:\n             0000:05:00.0 0000:26:00.0\n0000:05:00.0 SELF         XGMI\n"
    "0000:26:00.0 XGMI         SELF\n",
    "weights alone": "       GPU0         GPU1\nGPU0   0            15\nGPU1   15           0\n",
}


@pytest.mark.parametrize("tool", AMD)
def test_tables_of_amd_are_not_those_of_nvidia(tool: str) -> None:
    """Refused in one line, with or without the kind."""
    for kind in (None, "nvidia-topo"):
        with pytest.raises(InputError, match=r"rocm-smi's|does not match the header") as caught:
            import_text(AMD[tool], "x", kind)
        assert "\n" not in str(caught.value)


TREE = "- topology: a\n  cluster_default: false\n"
TREE += "  tree: {switches: [{switch: s0, nodes: 'n[1-2]'}, {switch: s1, children: s0}]}\n"
BLOCK = "- topology: b\n  cluster_default: true\n  block: {block_sizes: [2], blocks: [{block: k1, nodes: 'n[1-2]'}]}\n"
RING = "- topology: c\n  ring: {rings: [{ring: r1, nodes: 'n[1-4]'}]}\n"


def test_several_topologies_of_slurm() -> None:
    """The default is read wherever it stands, else the first; any is chosen by name; a single one needs no note."""
    assert read(TREE + BLOCK + RING, "slurm-yaml").notes == (
        "topology b was read, the cluster's default of 3; others: a, c",
    )
    assert read(RING + TREE, "slurm-yaml").notes == ("topology c was read, the first of 2; others: a",)
    assert read(TREE + BLOCK + RING, "slurm-yaml", name="c").kind == "ring"
    assert read(TREE, "slurm-yaml").notes == ()
    with pytest.raises(InputError, match="no topology 'z' \\(a, b\\)"):
        import_text(TREE + BLOCK, "x", name="z")
    with pytest.raises(InputError, match="mixes block and switch"):
        import_text("SwitchName=s0 Nodes=n[1-2]\nBlockName=b1 Nodes=n[1-2]\n", "x")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ALONE.format(c="SYS"), "nvidia-topo"),
        (TREE, "slurm-yaml"),
        (MESSAGES["torch 1.4"], "torch-oom"),
        ('{"train_batch_size": 8}', "deepspeed-json"),
    ],
)
def test_byte_order_marks(text: str, kind: str, encoding: str, tmp_path: Path) -> None:
    """Editors and consoles of Windows write them in front of UTF-8 and of UTF-16."""
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "x").write_bytes((mark + text).encode(encoding))
    assert import_path(tmp_path / "x").kind == kind
