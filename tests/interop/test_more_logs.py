"""Logs and machines beside the fault corpus: at least two more inputs of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from layoutopt.optimizer.interop.launch.complete import assumptions
from layoutopt.optimizer.interop.machines.nccl_calibration import suggest_calibration
from layoutopt.optimizer.interop.machines.nccl_log import NcclRow, NcclTable
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster


def read(text: str, kind: str, **options: Any) -> Any:
    """Import a text that gives itself away as ``kind``."""
    found = import_text(text, "x", **options)
    assert found.kind == kind
    return found.value


def test_bigscience_counts_seconds() -> None:
    """The fork prints seconds, behind torchrun's prefix."""
    line = "[default7]: iteration {n}/ 100 | consumed samples: 2048 | elapsed time per iteration (s): {s} |"
    line += " global batch size: 2048 | lm loss: 2.1 | samples per second: 19.463 | TFLOPs: {t} |"
    found = read("\n".join(line.format(n=n, s=100 + n, t=149 + n) for n in (1, 2, 3)), "megatron-log").columns
    assert (found["framework"], found["step_time_s"], found["global_batch"]) == (
        "megatron-deepspeed",
        102.5,
        2048,
    )
    assert found["tflops_gpu"] == 151.5


ITERATION = " iteration {n}/ 10 | consumed samples: 1 | elapsed time per iteration (ms): {ms} | global batch size: 64 |\n"


def test_megatron_timers_are_kept() -> None:
    """Least and most over ranks, medians over the blocks, in seconds."""
    block = "(min, max) time across ranks (ms):\n    forward-backward ...............................: ({a}, {b})\n"
    block += "    optimizer ......................................: (10.00, 12.00)\n"
    text = "".join(ITERATION.format(n=n, ms=1000) + block.format(a=800 + n, b=900 + n) for n in (1, 2, 3))
    timers = read(text, "megatron-log").timers_s
    assert timers == {"forward-backward": (0.802, 0.902), "optimizer": (0.01, 0.012)}


def test_megatron_timers_of_one_rank_and_none() -> None:
    """``max time across ranks`` has one number; without timers there are none."""
    text = ITERATION.format(n=1, ms=500) + "max time across ranks (ms):\n    all-grads-sync .....: 31.50\n"
    assert read(text, "megatron-log").timers_s == {"all-grads-sync": (0.0315, 0.0315)}
    assert read(ITERATION.format(n=1, ms=500), "megatron-log").timers_s == {}


def test_deepspeed_timer_with_its_job() -> None:
    """With the configuration samples per second are a step time."""
    line = "epoch=0/micro_step=8/global_step=1, RunningAvgSamplesPerSec=30, CurrSamplesPerSec=32, "
    line += "MemAllocated=2GB, MaxMemAllocated=3GB"
    config = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}'
    job = import_text(config, "ds.json").value
    assert read(line, "deepspeed-log", job=job).columns["step_time_s"] == 2.0


def test_nemo_with_rates_leaves_the_first_step_out() -> None:
    """Three lines: the first compiles."""
    line = "Training epoch 0, iteration {n}/99 | global_batch_size: 256 | train_step_timing in s: {s} "
    line += "| TFLOPS_per_GPU: 400.5"
    found = read(
        "\n".join(line.format(n=n, s=s) for n, s in ((0, 30.0), (1, 5.0), (2, 5.2))), "nemo-log"
    ).columns
    assert (found["step_time_s"], found["tflops_gpu"], found["global_batch"]) == (5.1, 400.5, 256)


def test_trainer_summary_and_bar() -> None:
    """The summary's rate, else the bar, which ends its lines with carriage returns and may count steps a second."""
    end = "{'train_runtime': 100.0, 'train_samples_per_second': 8.0, 'train_steps_per_second': 0.5, 'train_loss': 1.0}"
    assert read(end, "trainer-log").columns["step_time_s"] == 2.0
    bar = "1/9 [00:09<01:12,  9.00s/it]\r2/9 [00:14<00:35,  5.00s/it]\r3/9 [00:19<00:30,  5.20s/it]"
    assert read(bar, "trainer-log").columns["step_time_s"] == pytest.approx(5.1)
    assert read("5/9 [00:14<00:35,  4.00it/s]", "trainer-log").columns["step_time_s"] == 0.25


def test_out_of_memory_of_newer_and_wrapped_messages() -> None:
    """Other processes on the GPU, and a message broken over lines."""
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    text += "79.11 GiB of\nwhich 1.00 GiB is free. "
    text += "Process 12 has 78.00 GiB memory in use. Of the allocated memory 70.00 GiB is "
    text += "allocated by\nPyTorch, and 5.00 GiB is reserved by PyTorch but unallocated."
    (found,) = read(text, "torch-oom")
    assert found.gpu == 3
    assert [round(value / 2**30, 2) for value in (found.in_use_bytes, found.reserved_bytes)] == [78.0, 75.0]
    (hip,) = read(text.replace("CUDA", "HIP").replace("capacity", "capacty"), "torch-oom")
    assert hip == found


TOPO = "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\nGPU0\t X \t{a}\tSYS\tPIX\t0\nGPU1\t{a}\t X \tSYS\tSYS\t0\n"
TOPO += "GPU2\tSYS\tSYS\t X \tSYS\t0\n"


def test_a_gpu_without_nvlink_among_others_is_named() -> None:
    """One GPU of three is outside of NVLink; where none has it there is nothing to tell apart."""
    notes = read(TOPO.format(a="NV4"), "nvidia-topo").notes
    assert "1 of 3 GPUs have no NVLink, unlike the others: GPU2" in notes
    assert not any("NVLink" in note for note in read(TOPO.format(a="PHB"), "nvidia-topo").notes)


@pytest.mark.parametrize("line", ["ROCm System Management Interface", "Weight between two GPUs"])
def test_rocm_smi_is_not_nvidia_smi(line: str) -> None:
    """Its matrix looks alike and means other things."""
    text = f"==== {line} ====\n       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n"
    with pytest.raises(InputError, match="is rocm-smi's, which is not read"):
        import_text(text, "x", "nvidia-topo")


@pytest.mark.parametrize(
    ("ranks", "expected"), [(36, "nvlink_fraction.blackwell"), (144, "network_fraction")]
)
def test_domains_decide_what_a_collective_measures(ranks: int, expected: str) -> None:
    """Half a domain is NVLink's, two domains the network's."""
    bus = 830e9 if ranks <= 72 else 80e9
    rows = tuple(
        NcclRow(
            size_bytes=size, time_s=size / bus * 2, algbw_bytes_per_s=bus / 2, busbw_bytes_per_s=bus, wrong=0
        )
        for size in (2**28, 2**30, 2**32)
    )
    table = NcclTable(collective="all_reduce", rows=rows, ranks=ranks, nodes=ranks // 4, gpu="NVIDIA GB200")
    names = list(suggest_calibration([table], load_cluster("gb200-nvl72-576")).values)
    assert [name.partition(".")[0] for name in names] == [expected.partition(".")[0]]


def test_offloaded_parameters_are_never_dropped() -> None:
    """DeepSpeed and accelerate both say what is not modelled."""
    config = '{"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}'
    assert any("offload_param cpu" in note for note in import_text(config, "ds.json").value.notes)
    fsdp = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config: {fsdp_offload_params: true}\n"
    deep = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 3, offload_param_device: nvme}\n"
    for text in (fsdp, deep):
        assert any("parameters in host memory" in note for note in import_text(text, "a.yaml").value.notes)
    job = import_text(fsdp, "a.yaml").value
    assert job.options.optimizer_offload == 1.0 and not any("optimizer" in text for text in assumptions(job))
    half = replace(job, options=replace(job.options, optimizer_offload=0.5))
    assert any("50% of the optimizer in host memory is not modelled" in text for text in assumptions(half))


@pytest.mark.parametrize(
    ("kept", "which"), [("cluster_default: true", "the cluster's default"), ("", "the first")]
)
def test_which_of_two_topologies_was_read(kept: str, which: str) -> None:
    """By default or by order; the other one is offered by name."""
    block = "- topology: {name}\n  {kept}\n  block: {{block_sizes: [2], blocks: [{{block: b, nodes: 'n[1-2]'}}]}}\n"
    text = block.format(name="a", kept=kept) + block.format(name="b", kept="")
    (note,) = read(text, "slurm-yaml").notes
    assert note == f"topology a was read, {which} of 2; others: b"


MEGATRON_STEP = " iteration {step}/ 10 | elapsed time per iteration (ms): {ms} | global batch size: 128 |\n"


@pytest.mark.parametrize(
    ("times_ms", "step_s", "says"),
    [
        ((20000.0, 5000.0, 5200.0), 5.1, "median of 2 logged steps; the first, which compiles and warms up"),
        ((20000.0, 5000.0), 5.0, "the last of two logged steps: the first may be a warm-up"),
        ((20000.0,), 20.0, "the only one of the logged steps: it may be a warm-up"),
    ],
)
def test_a_log_says_of_which_steps_its_median_is(
    times_ms: tuple[float, ...], step_s: float, says: str
) -> None:
    """The first of three or more is left out and not counted; a short block of arguments is kept."""
    block = "------ arguments ------\n  num_layers ........ 32\n  micro_batch_size ........ 2\n"
    steps = (MEGATRON_STEP.format(step=step, ms=ms) for step, ms in enumerate(times_ms, 1))
    found = read(block + "".join(steps), "megatron-log")
    assert found.columns["step_time_s"] == pytest.approx(step_s)
    assert found.notes[0].startswith(says)
    assert ("left out" in found.notes[0]) == (len(times_ms) > 2)
    assert (found.columns["layers"], found.columns["micro_batch"]) == (32, 2)


@pytest.mark.parametrize("odd", ["1e308", "inf", "5000.0e3", "5000.0.1.2"])
def test_a_time_that_is_not_read_is_said(odd: str) -> None:
    """A number's beginning is no number: such an iteration is left out, and a note counts it."""
    times = (20000.0, 5000.0, odd, 5200.0)
    found = read(
        "".join(MEGATRON_STEP.format(step=step, ms=ms) for step, ms in enumerate(times, 1)), "megatron-log"
    )
    assert found.columns["step_time_s"] == pytest.approx(5.1)
    assert found.notes[1] == "a line of a step is left out: no readable time or rate"


def test_a_long_number_is_read() -> None:
    """Megatron prints memory with all digits of a power of two."""
    memory = "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1.5 | max allocated: 20843.08935546875 | reserved: 3\n"
    steps = "".join(MEGATRON_STEP.format(step=step, ms=5000.0) for step in (1, 2))
    found = read(steps + memory, "megatron-log")
    assert found.columns["mem_gb"] == pytest.approx(20843.08935546875 * 2**20 / 1e9)


@pytest.mark.parametrize(
    "line",
    [
        "step: 2 loss: 1.0 memory: 40.0GiB(50%) tps: 1e308 tflops: 400 mfu: 40%",
        "epoch=0/micro_step=2/global_step=2, RunningAvgSamplesPerSec=3.0, CurrSamplesPerSec=1e308, MemAllocated=1GB",
        "{'train_runtime': 9.0, 'train_steps_per_second': 1e308}",
    ],
)
def test_the_beginning_of_a_number_is_no_rate(line: str) -> None:
    """What is written with a power of ten is not read as its first digits."""
    kind = "torchtitan-log" if "tps" in line else "deepspeed-log" if "micro" in line else "trainer-log"
    with pytest.raises(InputError):
        read(line + "\n", kind)
