"""Logs and machine descriptions in further manners: what they state of themselves, and what they only look like."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError

STEPS = "".join(
    f"[rank0]: - INFO - [31mstep: {step}  [32mloss: 9.2  [38;2;54;234;195mmemory: 55.20GiB(69.80%)  [34mtps: {tps}  "
    f"[36mtflops: {tflops}  [35mmfu: 42.0%[39m\n"
    for step, tps, tflops in ((1, "310", 18.2), (10, "7,000", 410.0), (20, "7,200", 414.0))
)
ESCAPED = STEPS.replace("[3", "\x1b[3")


@pytest.mark.parametrize("steps", [STEPS, ESCAPED])
@pytest.mark.parametrize(
    ("mesh", "found"),
    [
        ("Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 8, 4]", (2, 1, 4, 8, 64)),
        (
            "Building 5-D device mesh with ['pp', 'dp_shard_mod_ep', 'dp_shard_in_ep', 'cp', 'tp'], [2, 2, 4, 2, 1]",
            (2, 2, 1, 8, 32),
        ),
        (
            "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=8, ep=1",
            (1, 1, 8, 8, 64),
        ),
    ],
)
@pytest.mark.parametrize(
    "batch",
    [
        "Trainer is initialized with local batch size 2, global batch size 64, gradient accumulation steps 4, "
        "sequence length 8192, total steps 1000 (warmup 200)",
        "Trainer is initialized with 65536 tokens per DP rank, 524288 tokens per train step, gradient accumulation "
        "steps 1, maximum context length 8192, total steps 1000 (warmup 2)",
    ],
)
def test_torchtitan_states_mesh_batch_and_length(
    steps: str, mesh: str, found: tuple[int, ...], batch: str
) -> None:
    """In the words of every era, with colours or what a copy leaves of them; the step time follows."""
    run = import_text(f"- INFO - {mesh}\n- INFO - {batch}\n{steps}", "train.log").value
    assert tuple(run.columns[name] for name in ("pp", "cp", "tp", "dp", "n_gpus")) == found
    assert run.columns["tflops_gpu"] == 412.0 and run.columns["seq"] == 8192
    tokens = run.columns["global_batch"] * 8192
    assert run.columns["measured_step_s"] == pytest.approx(tokens / (7100 * found[-1]))


def test_deepspeed_states_its_batch() -> None:
    """The configuration that it prints, in both columns' manners; samples per second then tell the step."""
    log = (
        "[INFO] [config.py:1001:print]   train_batch_size ............. 256\n"
        "[INFO] [config.py:1001:print]   train_micro_batch_size_per_gpu  4\n"
        "[INFO] [config.py:1001:print]   zero_optimization_stage ...... 3\n"
        "[INFO] [timer.py:264:stop] epoch=0/micro_step=20/global_step=20, RunningAvgSamplesPerSec=30.5, "
        "CurrSamplesPerSec=32.0, MemAllocated=20.31GB, MaxMemAllocated=55.12GB\n"
    )
    columns = import_text(log, "ds.log").value.columns
    assert (columns["global_batch"], columns["micro_batch"], columns["zero"]) == (256, 4, 3)
    assert columns["step_time_s"] == 8.0


def test_memory_in_use_of_several_processes_is_nobodys() -> None:
    """A message that does not say which process is its own leaves that open."""
    start = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 7 has a total capacity of "
    end = "Of the allocated memory 38.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    one, two = "Process 1 has 100.00 GiB memory in use. ", "Process 2 has 39.70 GiB memory in use. "
    head = f"{start}139.81 GiB of which 8.69 MiB is free. "
    assert import_text(f"{head}{one}{end}", "oom.txt").value[0].in_use_bytes == 100 * 2**30
    assert import_text(f"{head}{one}{two}{end}", "oom.txt").value[0].in_use_bytes is None


@pytest.mark.parametrize("name", ["mlx5_bond_0", "irdma0", "rocep25s0", "efa_0", "ibp12s0"])
@pytest.mark.parametrize("blank", ["\t", "   "])
def test_network_devices_of_any_name_are_columns(name: str, blank: str) -> None:
    """The matrix's own rows say what its devices are called."""
    rows = [
        ["", "GPU0", "GPU1", "mlx5_0", name, "CPU Affinity"],
        ["GPU0", "X", "NV12", "PXB", "SYS", "0-23"],
        ["GPU1", "NV12", "X", "SYS", "PXB", "24-47"],
        ["mlx5_0", "PXB", "SYS", "X", "SYS"],
        [name, "SYS", "PXB", "SYS", "X"],
    ]
    found = import_text("\n".join(blank.join(row) for row in rows), "topo.txt").value
    assert found.gpu_nics == (("mlx5_0",), (name,)) and found.nics == 2 and not found.notes


@pytest.mark.parametrize(
    "text",
    [
        "==============NVSMI LOG==============\n\nAttached GPUs : 8\nGPU 00000000:19:00.0\n",
        "Mon Mar  2 10:00:00 2026\n| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: 12.8 |\n",
    ],
)
def test_a_list_of_gpus_is_no_topology(text: str) -> None:
    """It says how many there are, not how they are joined."""
    with pytest.raises(
        InputError, match=r"lists GPUs, not how they are joined \(the output of nvidia-smi topo -m\)"
    ):
        import_text(text, "smi.txt")
