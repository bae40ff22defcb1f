"""Hugging Face accelerate YAML configurations."""

from __future__ import annotations

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.reading import Fields, importer, parse_yaml, shorten
from layoutopt.optimizer.interop.records import ImportedJob, JobOptions, JobTraining
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, CpComm, Granularity, Precision, Schedule

PREFIX = "parallelism_config_"
STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
PRECISIONS = {"bf16": Precision.BF16, "fp16": Precision.FP16, "fp8": Precision.FP8}
SUPPORTED = ("FSDP", "MULTI_GPU", "DEEPSPEED", "NO")


@importer
def import_accelerate(text: str, file: str = "") -> ImportedJob:
    """Read an ``accelerate config`` file; model, batch and sequence length are in the training script."""
    root = Fields(parse_yaml(text, file), file=file)
    kind = root.text("distributed_type")
    if kind is None or kind.upper() not in SUPPORTED:
        what = "missing" if kind is None else f"{shorten(kind)!r} is not supported"
        raise root.fail("distributed_type", what, "one of " + ", ".join(SUPPORTED))
    notes: list[str] = []
    gpus = root.integer("num_processes", least=1)
    parallel, fsdp = root.section("parallelism_config"), root.section("fsdp_config")
    deepspeed = root.section("deepspeed_config")
    zero = _zero(kind.upper(), fsdp, deepspeed)
    layout = _layout(parallel, fsdp, zero, gpus, root)
    words = root.text("mixed_precision")
    return ImportedJob(
        framework=Framework.ACCELERATE,
        layout=layout,
        training=JobTraining(precision=PRECISIONS.get(words or ""), pad_vocab=False),
        options=_options(parallel, fsdp, deepspeed, notes),
        gpus=gpus,
        notes=tuple(notes),
        missing=_missing(gpus, words, layout),
    )


def _zero(kind: str, fsdp: Fields, deepspeed: Fields) -> int:
    if kind == "DEEPSPEED":
        return deepspeed.integer("zero_stage", most=3) or 0
    if kind != "FSDP":
        return 0
    strategy = fsdp.text("fsdp_sharding_strategy")
    version = fsdp.integer("fsdp_version", least=1, most=2) or 1
    if version == 1 and strategy is not None:
        names = list(STRATEGIES)
        name = names[int(strategy) - 1] if strategy in {"1", "2", "3", "4", "5"} else strategy
        if name not in STRATEGIES:
            raise fsdp.fail("fsdp_sharding_strategy", f"{shorten(strategy)!r} is not known", ", ".join(names))
        return STRATEGIES[name]
    return 2 if fsdp.flag("fsdp_reshard_after_forward") is False else 3


def _layout(parallel: Fields, fsdp: Fields, zero: int, gpus: int | None, root: Fields) -> PartialLayout:
    sizes = {
        name: parallel.count(f"{PREFIX}{name}_size")
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    # without a parallelism configuration all processes shard, or all replicate
    if not parallel.data:
        sizes["dp_shard" if zero else "dp_replicate"] = gpus or 1
    product = 1
    for size in sizes.values():
        product *= size
    if gpus is not None and product != gpus:
        shown = " * ".join(f"{name}={size}" for name, size in sizes.items())
        fix = f"set dp_replicate_size to {gpus // product}" if gpus % product == 0 else f"a divisor of {gpus}"
        raise root.fail("parallelism_config", f"{shown} = {product} does not match num_processes {gpus}", fix)
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        raise parallel.fail(f"{PREFIX}sp_size", "context and Ulysses parallelism exclude each other")
    context = sizes["cp"] * sizes["sp"]
    hybrid = sizes["dp_replicate"] > 1 and sizes["dp_shard"] > 1
    full = fsdp.on("fsdp_activation_checkpointing")
    return PartialLayout(
        tp=sizes["tp"],
        sp=False,
        cp=context,
        pp=1,
        vp=1,
        ep=1,
        etp=1,
        dp=sizes["dp_replicate"] * sizes["dp_shard"] if gpus is not None or parallel.data else None,
        zero=zero if sizes["dp_shard"] * context > 1 else 0,
        hsdp_shard=sizes["dp_shard"] * context if hybrid and zero else None,
        recompute=Recompute(granularity=Granularity.FULL) if full else Recompute(),
        schedule=Schedule.NONE,
        mesh_order=DEFAULT_MESH_ORDER,
    )


def _options(parallel: Fields, fsdp: Fields, deepspeed: Fields, notes: list[str]) -> JobOptions:
    comm = None
    if parallel.count(f"{PREFIX}sp_size") > 1:
        comm = CpComm.A2A
    elif parallel.count(f"{PREFIX}cp_size") > 1:
        rotation = parallel.choice(f"{PREFIX}cp_comm_strategy", ("allgather", "alltoall")) or "allgather"
        comm = CpComm.ALL_GATHER if rotation == "allgather" else CpComm.P2P
        if rotation == "alltoall":
            notes.append("cp_comm_strategy alltoall passes keys and values around a ring: priced as p2p")
    if fsdp.on("fsdp_offload_params") or deepspeed.text("offload_param_device") in {"cpu", "nvme"}:
        notes.append("parameters in host memory are not modelled; memory is overestimated")
    offload = fsdp.on("fsdp_offload_params") or deepspeed.text("offload_optimizer_device") in {"cpu", "nvme"}
    return JobOptions(cp_comm=comm, optimizer_offload=1.0 if offload else None)


def _missing(gpus: int | None, words: str | None, layout: PartialLayout) -> tuple[str, ...]:
    missing = ["the model", "sequence length", "micro-batch and global batch (in the training script)"]
    if gpus is None and layout.dp is None:
        missing.append("num_processes")
    if words not in PRECISIONS:
        missing.append("mixed_precision")
    return tuple(missing)
