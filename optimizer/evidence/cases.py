"""Turn measured runs into cases that the cost model can price, or into skips with a reason."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.cost.hardware import EIGHT_BIT, HOPPER
from layoutopt.optimizer.evidence.assumptions import assume
from layoutopt.optimizer.evidence.case import Case, RunFamily, Skip, SkipRow
from layoutopt.optimizer.evidence.case_layout import check_degrees, layout_of
from layoutopt.optimizer.evidence.case_model import model_of, training_of
from layoutopt.optimizer.evidence.nearest import (
    SINGLE_STATES,
    framework_of,
    in_half_bytes,
    settings_of,
    wide_precisions,
)
from layoutopt.optimizer.evidence.notes import read_notes
from layoutopt.optimizer.evidence.recipes import with_recipe
from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.reference_fabric import reference_levels
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Dispatcher, NetworkFabric, Precision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.evidence.assumptions import Assumption
    from layoutopt.optimizer.evidence.notes import NoteFacts
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec


UNSIZED = {"A100-SXM": "A100-80G-SXM"}
"""Names without a memory size, with the part whose figures are taken: peak and NVLink are the same."""

_GBIT_BYTES = 1e9 / 8


def gpu_of(run: MeasuredRun) -> GpuSpec:
    """Return the catalog's GPU of a row, or raise SkipRow for a name that it does not know."""
    try:
        return _gpu(UNSIZED.get(run.gpu or "", run.gpu or ""))
    except InputError:
        raise SkipRow(f"GPU {run.gpu!r} is not in the catalog") from None


def memory_size_stated(run: MeasuredRun) -> bool:
    """Whether the GPU's name says how much memory it has."""
    return run.gpu not in UNSIZED


def cluster_of(run: MeasuredRun) -> ClusterSpec:
    """Build the reference fabric of the row's GPU with the row's node size and network.

    The stated network of a node is shared equally by its GPUs. An NVLink domain larger than a node is cut to
    the largest number of GPUs that the run fills evenly, as a job takes equal parts of every rack.
    """
    gpu = gpu_of(run)
    count = run.n_gpus or 1
    network, crossing_s, calibration = _published(run)
    per_node = run.gpus_per_node or min(gpu.gpus_per_node, count)
    fabric = _reference(gpu.name, count)
    domain = _domain(gpu, per_node, count)
    levels = reference_levels(replace(gpu, nvlink_domain=domain, gpus_per_node=per_node), count)
    nic = fabric.nic_bytes_per_s
    # Sources state a node's network, not its NICs: one for each GPU is the usual reading, and sums are right in any case.
    if run.internode_gbps is not None:
        nic = run.internode_gbps * _GBIT_BYTES / per_node
    return replace(
        fabric,
        name=f"{gpu.name} x {count}",
        gpus_per_node=per_node,
        nics_per_node=per_node,
        nic_bytes_per_s=nic,
        nvlink_domain=domain,
        fabric=network or fabric.fabric,
        calibration={**fabric.calibration, **calibration},
        levels=tuple(replace(level, latency_s=level.latency_s + crossing_s) for level in levels),
    )


def _domain(gpu: GpuSpec, per_node: int, count: int) -> int:
    # Cards bridged in pairs, or not at all, stay so, whatever the node; NVLink of a node grows and shrinks with the node.
    if gpu.nvlink_domain < gpu.gpus_per_node:
        return gpu.nvlink_domain
    if gpu.nvlink_domain == gpu.gpus_per_node:
        return per_node
    limit = min(gpu.nvlink_domain, count)
    fitting = [size for size in range(per_node, limit + 1, per_node) if count % size == 0]
    return max(fitting, default=per_node)


def _published(run: MeasuredRun) -> tuple[NetworkFabric | None, float, dict[str, float]]:
    """Return the fabric that the source names, what a crossing of its nodes takes beside its latency, and host constants."""
    entries = [entry for entry in _fabrics() if entry["phrase"] in (run.source or "")]
    fabric = next((NetworkFabric(entry["fabric"]) for entry in entries if "fabric" in entry), None)
    own = {name: value for entry in entries for name, value in entry.get("calibration", {}).items()}
    return fabric, sum(float(entry.get("crossing_latency", 0.0)) for entry in entries), own


def _fabrics() -> tuple[Mapping[str, Any], ...]:
    return tuple(packaged("evidence", "fabrics"))


@lru_cache(maxsize=256)
def _gpu(name: str) -> GpuSpec:
    from layoutopt.optimizer.specs.loading import load_gpu

    return load_gpu(name)


@lru_cache(maxsize=1024)
def _reference(name: str, count: int) -> ClusterSpec:
    from layoutopt.optimizer.specs.loading import reference_cluster

    return reference_cluster(name, count)


DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes per parameter of a gradient buffer or a moment."""

ACCUMULATED_GRAD_BYTES = 6
"""16-bit gradients and their fp32 accumulation buffer (deepspeedai/DeepSpeed runtime/bf16_optimizer.py)."""

CUDA_GRAPHS = {"none": CudaGraph.NONE, "partial": CudaGraph.PARTIAL, "full_iteration": CudaGraph.FULL}
_GRAPH_WORDS = (*CUDA_GRAPHS, "maybe_full_iteration")
METHODS = ("pretrain", "sft", "lora")
OFFLOADS = {"activations": "offload_activations", "optimizer": "offload_optimizer"}
"""What a row may keep on the host, by the preset's switch. How much of it a source leaves open, so that is assumed: all."""

_FACTS = ("compiled", "fp8_attention", "fused_loss", "fused_norm", "flash_attention_2", "loss_chunks")
"""Facts in the notes that are switches of the preset under the same name."""


def check_method(run: MeasuredRun) -> None:
    """Raise SkipRow for runs that train in another way, or offload what the model can't."""
    if run.method and run.method not in METHODS:
        raise SkipRow(f"{run.method} training is not modelled")
    if run.offload and run.offload not in OFFLOADS:
        raise SkipRow(
            f"offload of {'unnamed state' if run.offload == 'yes' else run.offload} is not modelled"
        )


def switches_of(run: MeasuredRun, facts: NoteFacts, framework: Framework) -> dict[str, Any]:
    """Return the preset fields that the row states."""
    return {
        **_overlaps(run),
        **_graphs(run),
        **_dtypes(run, facts, framework),
        **({OFFLOADS[run.offload]: True} if run.offload else {}),
        **{name: value for name in _FACTS if (value := getattr(facts, name)) is not None},
        **_dispatcher(run, facts),
    }


def _overlaps(run: MeasuredRun) -> dict[str, Any]:
    switches: dict[str, Any] = {}
    if run.tp_overlap is not None:
        switches["tp_overlap"] = run.tp_overlap
    if run.dp_overlap is not None:
        switches |= {"dp_overlap": run.dp_overlap, "param_overlap": run.dp_overlap}
    # DualPipe overlaps expert traffic by its order of operations, which the schedule prices.
    if run.ep_overlap is not None and run.schedule != "dualpipe":
        switches["ep_overlap"] = EpOverlap.BATCH if run.ep_overlap else EpOverlap.NONE
    return switches


def _graphs(run: MeasuredRun) -> dict[str, Any]:
    """CUDA graphs; ``maybe_full_iteration`` leaves the preset's setting."""
    if run.cuda_graph is None:
        return {}
    if run.cuda_graph not in _GRAPH_WORDS:
        raise SkipRow(f"CUDA graphs {run.cuda_graph!r} is none of {', '.join(_GRAPH_WORDS)}")
    return {"cuda_graph": CUDA_GRAPHS[run.cuda_graph]} if run.cuda_graph in CUDA_GRAPHS else {}


def _dispatcher(run: MeasuredRun, facts: NoteFacts) -> dict[str, Any]:
    """The stated dispatcher; tokens are dropped with all-to-alls (NVIDIA-NeMo/Megatron-Bridge utils/moe_token_drop.py)."""
    dropping = Dispatcher.ALLTOALL if run.routing == "dropped" else None
    chosen = facts.dispatcher or dropping
    return {} if chosen is None else {"dispatcher": chosen}


def _dtypes(run: MeasuredRun, facts: NoteFacts, framework: Framework) -> dict[str, Any]:
    switches: dict[str, Any] = {}
    if run.grad_dtype is not None:
        size = _bytes(run.grad_dtype, "gradient")
        switches |= {"grad_bytes": size, "grad_comm_bytes": size}
        # It accumulates in 32 bits beside 16-bit gradients, where others hold one buffer of the stated format.
        if size == 4 and framework is Framework.MEGATRON_DEEPSPEED:
            switches["grad_bytes"] = ACCUMULATED_GRAD_BYTES
    if facts.fp32_reduction:
        switches["grad_comm_bytes"] = 4
    if run.moment_dtype is not None:
        switches["moment_bytes"] = _bytes(run.moment_dtype, "moment")
    return switches


def _bytes(dtype: str, what: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise SkipRow(f"{what} format {dtype!r} is none of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def release_of(run: MeasuredRun) -> str | None:
    """Return the release that the row states or that its source is known to have run, else None."""
    if run.software is not None:
        return run.software
    return next((release for phrase, release in _releases() if phrase in (run.source or "")), None)


@cache
def _releases() -> tuple[tuple[str, str], ...]:
    return tuple((entry["phrase"], entry["software"]) for entry in packaged("evidence", "releases"))


GIB_PER_GB = 2**30 / 1e9

DECIDING = ("tp", "pp", "dp", "zero", "micro_batch", "global_batch", "recompute", "precision")
"""Columns without which a row counts as incomplete, beside vp where pp > 1."""


def build_cases(
    runs: Sequence[MeasuredRun],
    assumptions: Sequence[Assumption] = (),
    stand_ins: Mapping[str, Framework] | None = None,
) -> tuple[list[Case], list[Skip]]:
    """Build a case for every row that can be priced, and a skip for every other."""
    results = [build_case(run, assumptions, stand_ins) for run in runs]
    cases = [result for result in results if isinstance(result, Case)]
    return cases, [result for result in results if isinstance(result, Skip)]


def build_case(
    run: MeasuredRun,
    assumptions: Sequence[Assumption] = (),
    stand_ins: Mapping[str, Framework] | None = None,
) -> Case | Skip:
    """Build the case of one row, or say why it has none.

    ``stand_ins`` are the presets by which trainers without one are priced, over the package's own.
    """
    try:
        return _case(run, assumptions, stand_ins)
    except SkipRow as reason:
        return Skip(run=run, reason=str(reason))
    except InputError as error:
        return Skip(run=run, reason=str(error.problems[0]))


def _case(
    run: MeasuredRun, assumptions: Sequence[Assumption], stand_ins: Mapping[str, Framework] | None
) -> Case:
    # In order of trust: the row's cells and notes, the degrees that follow from them, the publication's recipe, and then
    # what somebody assumes.
    noted, noticed = read_notes(run)
    read, facts = with_recipe(with_derived_dp(noted), noticed)
    stated, assumed = assume(read, assumptions)
    check_method(stated)
    if stated.step_s is None and stated.mem_gb is None and not stated.oom:
        raise SkipRow("neither step time nor memory nor out of memory reported")
    framework, stands_in = framework_of(stated, stand_ins)
    check_degrees(stated)
    filled, unstated = _defaults(stated, framework)
    # 32 bits are priced as 16 on a machine of half the rates: one set of formulas, and the row is marked.
    wide = wide_precisions().get((filled.precision or "").lower())
    if wide is not None:
        filled = replace(filled, precision=Precision.BF16.value)
    model = model_of(filled, facts)
    training = training_of(filled, facts, dropout=framework.record.unstated.dropout)
    cluster = cluster_of(filled) if wide is None else in_half_bytes(cluster_of(filled), wide.speed)
    zero = filled.zero.stage if filled.zero else framework.record.unstated.zero
    layout = layout_of(filled, framework, model, training.precision, zero=zero)
    _check_experts(filled, layout)
    stated_switches = switches_of(filled, facts, framework)
    switches = {**settings_of(filled), **stated_switches, **(SINGLE_STATES if wide else {})}
    guessed = (
        *assumed,
        *stands_in,
        *(["precision"] if wide else []),
        *(["offload"] if stated.offload else []),
    )
    return Case(
        run=recounted(run, model, training.sequence_length),
        framework=framework,
        software=release_of(filled),
        model=model,
        training=training,
        cluster=cluster,
        layout=layout,
        family=family_of(model, cluster.gpu, training.precision, framework),
        switches=switches,
        unstated=unstated,
        assumed=guessed,
        # By what the source says: cells that were assumed make no row complete.
        complete=_complete(read),
        memory_gb=_memory_gb(stated, facts),
        memory_known=_memory_known(stated) and wide is None,
    )


def with_derived_dp(run: MeasuredRun) -> MeasuredRun:
    """Fill an empty dp: the GPUs over the other degrees, where these are stated and divide."""
    if run.dp is not None or run.tp is None or run.pp is None or run.n_gpus is None:
        return run
    dp, rest = divmod(run.n_gpus, run.tp * run.pp * (run.cp or 1))
    return run if rest else replace(run, dp=dp)


def _defaults(run: MeasuredRun, framework: Framework) -> tuple[MeasuredRun, tuple[str, ...]]:
    """Fill what the framework decides where a source says nothing, and name those columns."""
    unstated = [name for name in ("zero", "recompute", "tied", "flash") if getattr(run, name) is None]
    if run.sp is None and run.tp != 1:
        unstated.append("sp")
    if run.is_moe and run.etp is None and run.tp != 1:
        unstated.append("etp")
    if not memory_size_stated(run):
        unstated.append("gpu memory")
    tied = run.tied if run.tied is not None else framework.record.unstated.tied
    return replace(run, tied=tied), tuple(unstated)


def _complete(run: MeasuredRun) -> bool:
    return all(getattr(run, name) is not None for name in DECIDING) and (run.pp == 1 or run.vp is not None)


def _memory_known(run: MeasuredRun) -> bool:
    """Whether a row states what decides memory.

    Selective recomputation alone says little of models with experts or latent attention, whose recipes recompute
    more than attention.
    """
    modules = run.recompute != "selective" or run.recompute_modules or not (run.is_moe or run.mla)
    return memory_size_stated(run) and None not in (run.zero, run.recompute) and bool(modules)


def _check_experts(run: MeasuredRun, layout: Layout) -> None:
    if not run.is_moe:
        if layout.ep > 1:
            raise SkipRow(f"ep {layout.ep} without experts")
        return
    ranks = layout.tp * layout.cp * layout.dp
    if ranks % (layout.ep * layout.etp):
        raise SkipRow(f"ep {layout.ep} x etp {layout.etp} does not divide the stage's {ranks} ranks")
    if (run.moe_experts or 1) % layout.ep:
        raise SkipRow(f"ep {layout.ep} does not divide {run.moe_experts} experts")


def _memory_gb(run: MeasuredRun, facts: NoteFacts) -> float | None:
    """Measured peak in 1e9 bytes. nvidia-smi counts in MiB, so that what is read off it as GB is GiB."""
    if run.mem_gb is None:
        return None
    binary = facts.memory_gib or run.mem_kind == "nvidia-smi"
    return run.mem_gb * GIB_PER_GB if binary else run.mem_gb


DERIVED = "tflops_gpu"
"""``measured_from`` of rows whose seconds are their model's FLOPs over stated TFLOP/s."""


def is_recounted(run: MeasuredRun) -> bool:
    """Whether a row's seconds were derived by the whole attention square where its publication counts half of it."""
    # Seconds that the source states itself are right by any count.
    derived = run.measured_from == DERIVED and run.measured_step_s is not None
    return derived and any(
        entry["phrase"] in (run.source or "") for entry in packaged("evidence", "flop_counts")
    )


def recounted(run: MeasuredRun, model: ModelSpec, sequence_length: float) -> MeasuredRun:
    """Return the row with the seconds that its TFLOP/s mean by its publication's own count."""
    if run.measured_step_s is None or not is_recounted(run):
        return run
    half, whole = (model_flops_per_token(model, sequence_length, causal=causal) for causal in (True, False))
    return replace(run, measured_step_s=run.measured_step_s * half / whole)


def family_of(model: ModelSpec, gpu: GpuSpec, precision: Precision, framework: Framework) -> RunFamily:
    """Return the family of a row: MoE on any GPU, dense by GPU generation and precision, nanotron apart."""
    # One publication's, and more than any other's: in a family of others they would be its figure.
    if framework is Framework.NANOTRON:
        return RunFamily.NANOTRON
    if model.is_moe:
        return RunFamily.MOE
    if gpu.generation.name == HOPPER:
        return RunFamily.DENSE_HOPPER_8 if precision in EIGHT_BIT else RunFamily.DENSE_HOPPER_16
    return _DENSE.get(gpu.generation.name, RunFamily.DENSE_OTHER)


_DENSE = {
    "ampere": RunFamily.DENSE_A100,
    "volta": RunFamily.DENSE_V100,
    "blackwell": RunFamily.DENSE_BLACKWELL,
}
