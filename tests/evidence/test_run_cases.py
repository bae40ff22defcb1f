"""Rows as cases: what is priced and how, and the reason for every row that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.evidence.case import Case, RunFamily, Skip
from layoutopt.optimizer.evidence.cases import build_case
from layoutopt.optimizer.evidence.run import MeasuredRun, Sharding
from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.model import MlaSpec, Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import (
    CudaGraph,
    Dispatcher,
    Fp8Recipe,
    Granularity,
    Precision,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def case_of(run: MeasuredRun) -> Case:
    """Build a case that must exist."""
    case = build_case(run)
    assert isinstance(case, Case), case
    return case


def test_a_complete_dense_row(make_run: Callable[..., MeasuredRun]) -> None:
    """Every stated cell arrives where the cost model reads it."""
    case = case_of(make_run(software="core_v0.15", group="g"))
    layout, model, training = case.layout, case.model, case.training
    assert (layout.tp, layout.sp, layout.pp, layout.vp, layout.dp) == (2, True, 2, 1, 8)
    assert (layout.zero, layout.micro_batch, layout.micro_batches) == (1, 1, 16)
    assert layout.schedule is Schedule.ONE_F_ONE_B
    assert [stage.layers for stage in layout.stages] == [16, 16]
    assert (layout.stages[0].embedding, layout.stages[-1].head) == (True, True)
    assert (model.kv_heads, model.head_dim, model.norm) == (8, 128, Norm.RMS)
    assert (training.sequence_length, training.global_batch, training.precision) == (
        4096,
        128,
        Precision.BF16,
    )
    assert (case.framework, case.software) == (Framework.MEGATRON, "core_v0.15")
    assert (case.family, case.complete, case.unstated, case.assumed) == (
        RunFamily.DENSE_HOPPER_16,
        True,
        (),
        (),
    )
    assert case.measured_s == 4.0


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"vp": None}, "vp not stated, and pp > 1"),
        ({"micro_batch": None}, "micro-batch not stated"),
        ({"global_batch": None}, "global batch not stated"),
        ({"tp": None}, "tp not stated"),
        ({"pp": None}, "pp not stated"),
        ({"dp": None, "tp": 3}, "dp not stated"),
        ({"precision": None}, "precision not stated"),
        ({"gated": None}, "gated or plain MLP not stated"),
        ({"heads": None}, "number of attention heads not stated"),
        ({"heads": 30, "head_dim": None}, "head width not stated, and 30 heads do not divide hidden 4096"),
        ({"ffn": None}, "width of the dense MLP not stated"),
        ({"global_batch": 4}, "global batch 4 below dp x micro-batch = 8"),
        ({"global_batch": 100}, "global batch 100 is no multiple of dp x micro-batch = 8"),
        ({"n_gpus": 64}, "tp 2 x cp 1 x pp 2 x dp 8 = 32 GPUs, not 64"),
        ({"method": "distillation"}, "distillation training is not modelled"),
        ({"offload": "yes"}, "offload of unnamed state is not modelled"),
        ({"recompute": "other:guesswork"}, "recomputation 'guesswork' is not modelled"),
        ({"recompute": "some"}, "recomputation 'some' is none of none, selective, full"),
        (
            {"recompute": "selective", "recompute_modules": "rotary"},
            "recomputed module 'rotary' is not modelled",
        ),
        ({"precision": "int8"}, "precision 'int8' is none of fp16, bf16, fp8, mxfp8, nvfp4"),
        ({"gpu": "H900"}, "GPU 'H900' is not in the catalog"),
        ({"framework": "homegrown"}, "framework 'homegrown' has no preset, and none is assumed for it"),
        ({"schedule": "wave"}, "schedule 'wave' is not known"),
        ({"schedule": "interleaved"}, "schedule interleaved does not run pp 2 with vp 1"),
        ({"pp": 1, "dp": 16, "vp": 2}, "vp 2 without pipeline stages"),
        ({"layers": 33}, "split of 33 layers over 2 virtual stages not stated"),
        ({"cuda_graph": "half"}, "CUDA graphs 'half' is none of none, partial"),
        ({"grad_dtype": "fp24"}, "gradient format 'fp24' is none of bf16, fp16, fp32"),
        ({"ep": 2}, "ep 2 without experts"),
        ({"measured_step_s": None}, "neither step time nor memory nor out of memory reported"),
    ],
)
def test_why_a_row_is_skipped(
    make_run: Callable[..., MeasuredRun], cells: dict[str, Any], reason: str
) -> None:
    """A row that can't be priced is a skip whose reason names the cell; it never raises."""
    skip = build_case(make_run(**cells))
    assert isinstance(skip, Skip)
    assert skip.reason.startswith(reason)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"moe_topk": None}, "experts per token or expert width not stated"),
        ({"moe_topk": 9}, "9 experts per token of 8 experts"),
        ({"ep": 16}, "ep 16 does not divide 8 experts"),
        (
            {"ep": 8, "n_gpus": 4, "dp": 4, "global_batch": 4},
            "ep 8 x etp 1 does not divide the stage's 4 ranks",
        ),
    ],
)
def test_why_a_row_of_experts_is_skipped(
    make_moe_run: Callable[..., MeasuredRun], cells: dict[str, Any], reason: str
) -> None:
    """Experts bring cells of their own that have to be stated and to fit."""
    skip = build_case(make_moe_run(**cells))
    assert isinstance(skip, Skip)
    assert skip.reason == reason


@pytest.mark.parametrize(
    ("cells", "unstated", "complete"),
    [
        ({"zero": None}, ("zero",), False),
        ({"recompute": None}, ("recompute",), False),
        ({"tied": None}, ("tied",), True),
        ({"flash": None}, ("flash",), True),
        ({"sp": None}, ("sp",), True),
        ({"sp": None, "tp": 1, "dp": 16}, (), True),
        ({"gpu": "A100-SXM"}, ("gpu memory",), True),
        ({"pp": 1, "vp": None, "dp": 16}, (), True),
    ],
)
def test_defaults_are_reported(
    make_run: Callable[..., MeasuredRun], cells: dict[str, Any], unstated: tuple[str, ...], complete: bool
) -> None:
    """A cell that the framework decides is named when its default is taken; some make a row incomplete."""
    case = case_of(make_run(**cells))
    assert (case.unstated, case.complete) == (unstated, complete)


def test_fsdp_frameworks_shard_weights_by_default(make_run: Callable[..., MeasuredRun]) -> None:
    """An unstated ZeRO stage is the framework's own: sharded weights in FSDP trainers, else the optimizer."""
    alone = {"tp": 1, "pp": 1, "dp": 32, "zero": None}
    assert case_of(make_run(framework="torchtitan", **alone)).layout.zero == 3
    assert case_of(make_run(**alone)).layout.zero == 1


def test_experts_and_their_routing(make_moe_run: Callable[..., MeasuredRun]) -> None:
    """Leading dense layers are a run of their own; dropped routing has a capacity, balanced no imbalance."""
    mla = MlaSpec(q_lora_rank=0, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    case = case_of(make_moe_run(moe_dense_layers=2, routing="balanced", mla=mla, head_dim=None))
    assert [(run.name, run.count, run.block[0].mlp) for run in case.model.runs] == [
        ("dense", 2, Mlp.DENSE),
        ("moe", 30, Mlp.MOE),
    ]
    assert case.layout.stages[0].kinds == {"dense": 2, "moe": 30}
    assert (case.model.head_dim, case.training.moe_imbalance, case.family) == (192, 1.0, RunFamily.MOE)
    dropping = case_of(make_moe_run(routing="dropped", framework="megatron-bridge"))
    dropped = dropping.model.moe
    assert dropped is not None and dropped.capacity_factor == 1.0
    assert (
        dropping.switches["dispatcher"] is Dispatcher.ALLTOALL
    )  # DeepEP, the recipes' default, pads nothing
    written = case_of(make_moe_run(notes="token drop with capacity factor 1.25")).model.moe
    assert written is not None and written.capacity_factor == 1.25


def test_expert_tensor_default_differs_by_framework(make_moe_run: Callable[..., MeasuredRun]) -> None:
    """Megatron-LM's unset expert tensor degree is tp, that of Megatron-Bridge recipes 1."""
    cells = {"tp": 2, "dp": 16, "etp": None, "ep": 4}
    assert case_of(make_moe_run(**cells)).layout.etp == 2
    assert case_of(make_moe_run(framework="megatron-bridge", **cells)).layout.etp == 1


def test_recomputation(make_run: Callable[..., MeasuredRun]) -> None:
    """Full recomputation repeats every layer; selective alone means core attention in Megatron."""
    full = case_of(make_run(recompute="full")).layout
    assert [stage.recomputed for stage in full.stages] == [16, 16]
    plain = case_of(make_run(recompute="selective")).layout.recompute
    assert (plain.granularity, plain.modules) == (Granularity.SELECTIVE, ("core_attn",))
    named = case_of(make_run(recompute="selective", recompute_modules="moe_act layernorm")).layout.recompute
    assert named.modules == ("layernorm", "moe_act")


def test_switches_of_the_preset(make_run: Callable[..., MeasuredRun]) -> None:
    """Overlaps, graphs and formats that a row states replace the preset's."""
    case = case_of(
        make_run(
            tp_overlap=True,
            dp_overlap=False,
            ep_overlap=True,
            cuda_graph="partial",
            grad_dtype="bf16",
            moment_dtype="bf16",
        )
    )
    assert case.switches == {
        "tp_overlap": True,
        "dp_overlap": False,
        "param_overlap": False,
        "ep_overlap": EpOverlap.BATCH,
        "cuda_graph": CudaGraph.PARTIAL,
        "grad_bytes": 2,
        "grad_comm_bytes": 2,
        "moment_bytes": 2,
    }
    assert "cuda_graph" not in case_of(make_run(cuda_graph="maybe_full_iteration")).switches


@pytest.mark.parametrize(
    ("precision", "recipe", "expected"),
    [
        ("mxfp8", "delayed", Fp8Recipe.MX),
        ("fp8", "tensorwise", Fp8Recipe.CURRENT),
        ("fp8", "blockwise", Fp8Recipe.BLOCKWISE),
        ("fp8", None, None),
        ("bf16", "delayed", None),
    ],
)
def test_fp8_recipes(
    make_run: Callable[..., MeasuredRun], precision: str, recipe: str | None, expected: Fp8Recipe | None
) -> None:
    """The recipe follows the precision where they contradict: MXFP8 has one, 16 bits have none."""
    case = case_of(make_run(gpu="B200-180G", precision=precision, fp8_recipe=recipe))
    assert case.training.fp8_recipe is expected


@pytest.mark.parametrize(
    ("cells", "family"),
    [
        ({"gpu": "A100-80G-SXM"}, RunFamily.DENSE_A100),
        ({"gpu": "H200-141G"}, RunFamily.DENSE_HOPPER_16),
        ({"gpu": "H800-80G", "precision": "fp8"}, RunFamily.DENSE_HOPPER_8),
        ({"gpu": "GB200-NVL72", "precision": "nvfp4", "gpus_per_node": 4}, RunFamily.DENSE_BLACKWELL),
        ({"gpu": "V100-32G-SXM", "precision": "fp16"}, RunFamily.DENSE_V100),
        ({"gpu": "MI300X"}, RunFamily.DENSE_OTHER),
        ({"framework": "nanotron"}, RunFamily.NANOTRON),
    ],
)
def test_families(make_run: Callable[..., MeasuredRun], cells: dict[str, Any], family: RunFamily) -> None:
    """Families go by GPU generation and width of the number format, nanotron apart."""
    assert case_of(make_run(**cells)).family is family


def test_network_and_nodes(make_run: Callable[..., MeasuredRun]) -> None:
    """A node's stated network is shared by its GPUs; otherwise the catalog's NIC counts."""
    stated = case_of(make_run(internode_gbps=800.0)).cluster
    assert stated.nic_bytes_per_s * stated.nics_per_node == pytest.approx(100e9)
    assert stated.gpu_count == 32
    catalog = case_of(make_run()).cluster
    assert catalog.nic_bytes_per_s == pytest.approx(50e9)


@pytest.mark.parametrize(
    ("count", "per_node", "gpu", "domain"),
    [
        (256, 4, "GB200-NVL72", 64),  # 64 of 72 in each of four racks
        (72, 4, "GB200-NVL72", 72),
        (8, 4, "GB200-NVL72", 8),  # a job does not reach beyond its own GPUs
        (32, 16, "V100-32G-SXM", 16),  # DGX-2: one domain of 16
        (32, 8, "H100-80G-SXM", 8),
        (32, 8, "H100-80G-PCIe", 2),  # bridged pairs, whatever the node's size
    ],
)
def test_nvlink_domains(
    make_run: Callable[..., MeasuredRun], count: int, per_node: int, gpu: str, domain: int
) -> None:
    """The domain is what the GPU's system wires, cut to equal parts of the job."""
    precision = "fp16" if gpu.startswith("V100") else "bf16"
    cells = {"n_gpus": count, "gpus_per_node": per_node, "gpu": gpu, "precision": precision}
    case = case_of(make_run(tp=1, pp=1, dp=count, global_batch=4 * count, **cells))
    assert case.cluster.nvlink_domain == domain


def test_memory_figures(make_run: Callable[..., MeasuredRun]) -> None:
    """Memory is 1e9 bytes unless notes or nvidia-smi mean GiB; it is compared where all of it is stated."""
    case = case_of(make_run(mem_gb=60.0))
    assert (case.memory_gb, case.memory_known) == (60.0, True)
    assert case_of(make_run(mem_gb=60.0, notes="mem = max in GiB")).memory_gb == pytest.approx(
        64.4245, abs=1e-4
    )
    assert case_of(make_run(mem_gb=60.0, mem_kind="nvidia-smi")).memory_gb == pytest.approx(64.4245, abs=1e-4)
    assert not case_of(make_run(mem_gb=60.0, zero=None)).memory_known
    assert not case_of(make_run(mem_gb=60.0, gpu="A100-SXM")).memory_known


def test_a_run_that_died_is_kept_for_its_verdict(make_run: Callable[..., MeasuredRun]) -> None:
    """An out-of-memory run has no time but is priced for memory."""
    case = case_of(make_run(measured_step_s=None, oom=True))
    assert case.measured_s is None


def test_llama3_order_of_axes(make_run: Callable[..., MeasuredRun]) -> None:
    """Llama 3 puts the pipeline inside data parallelism; Megatron's order is the default."""
    assert case_of(make_run(framework="meta-internal")).layout.mesh_order == "tp-cp-ep-pp-dp"
    assert case_of(make_run()).layout.mesh_order == "tp-cp-ep-dp-pp"


def test_shard_groups(make_run: Callable[..., MeasuredRun]) -> None:
    """``hsdp:N`` is ZeRO-3 in groups of N ranks."""
    layout = case_of(make_run(zero=Sharding(3, 8))).layout
    assert (layout.zero, layout.hsdp_shard) == (3, 8)


def test_published_fabrics_belong_to_their_source(make_run: Callable[..., MeasuredRun]) -> None:
    """A slow network that a publication reports is its own, not everyone's who runs the framework."""
    own = case_of(make_run(framework="nanotron")).cluster.levels[0].latency_s
    published = make_run(framework="nanotron", source="Ultra-Scale Playbook, interactive benchmarks")
    assert case_of(published).cluster.levels[0].latency_s == pytest.approx(own + 3.7e-4)
