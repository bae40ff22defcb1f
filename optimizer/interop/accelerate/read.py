"""Hugging Face accelerate YAML configurations."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.keys import megatron_job, whole_layers
from layoutopt.optimizer.interop.reading import Fields, importer, parse_yaml, shorten
from layoutopt.optimizer.interop.records import ImportedJob, JobOptions, JobTraining
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, CpComm, Precision, Schedule

PREFIX = "parallelism_config_"
STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
PRECISIONS = {"bf16": Precision.BF16, "fp16": Precision.FP16, "fp8": Precision.FP8}
SETTINGS = "deepspeed_config_file"
DEEPSPEED_STAGE = 2
"""ACCELERATE_DEEPSPEED_ZERO_STAGE where it is not set (accelerate/utils/dataclasses.py)."""

SUPPORTED = ("FSDP", "MULTI_GPU", "DEEPSPEED", "MEGATRON_LM", "NO")
MEGATRON = {
    "tp_degree": "tensor_model_parallel_size",
    "pp_degree": "pipeline_model_parallel_size",
    "sequence_parallelism": "sequence_parallel",
    "use_custom_fsdp": "use_megatron_fsdp",
}
"""Keys of ``megatron_lm_config`` that Megatron-LM has other names for (accelerate/utils/launch.py)."""


@importer
def import_accelerate(text: str, file: str = "") -> ImportedJob:
    """Read an ``accelerate config`` file; model, batch and sequence length are in the training script.

    Raises ``InputError`` for kinds of distribution beyond ``SUPPORTED``.
    """
    root = Fields(parse_yaml(text, file), file=file)
    kind = root.text("distributed_type")
    if kind is None or kind.upper() not in SUPPORTED:
        what = "missing" if kind is None else f"{shorten(kind)!r} is not supported"
        raise root.fail("distributed_type", what, "one of " + ", ".join(SUPPORTED))
    if kind.upper() == "MEGATRON_LM":
        return _megatron(root)
    notes: list[str] = []
    gpus = root.integer("num_processes", least=1)
    parallel, fsdp = root.section("parallelism_config"), root.section("fsdp_config")
    deepspeed = root.section("deepspeed_config")
    zero = _zero(kind.upper(), fsdp, deepspeed, notes)
    layout = _layout(parallel, fsdp, zero, gpus, root)
    words = root.text("mixed_precision")
    job = ImportedJob(
        framework=Framework.ACCELERATE,
        layout=layout,
        training=JobTraining(precision=PRECISIONS.get(words or ""), pad_vocab=False),
        options=_options(parallel, fsdp, deepspeed, notes),
        gpus=gpus,
        notes=tuple(notes),
        missing=_missing(gpus, words, layout, fsdp, deepspeed),
    )
    root.name_unread(notes)
    return replace(job, notes=tuple(notes))


def _megatron(root: Fields) -> ImportedJob:
    """Read the Megatron-LM plugin: its degrees and switches; model and batch are in the training script."""
    stated, prefix = root.section("megatron_lm_config"), "megatron_lm_"
    # Its questionnaire puts the plugin's name in front of every key of Megatron's.
    names = {key: key.removeprefix(prefix) for key in stated.data}
    values = {MEGATRON.get(name, name): stated.data[key] for key, name in names.items()}
    words = root.text("mixed_precision")
    values |= {"bf16": words == "bf16", "fp16": words == "fp16"}
    steps = stated.integer(f"{prefix}num_micro_batches", least=1)
    values.pop("num_micro_batches", None)
    fields = Fields(values, file=root.file)
    job = megatron_job(fields, root.integer("num_processes", least=1), ["accelerate starts Megatron-LM"])
    return replace(job, layout=replace(job.layout, micro_batches=steps))


def _zero(kind: str, fsdp: Fields, deepspeed: Fields, notes: list[str]) -> int | None:
    """Return the ZeRO stage, None where another file states it."""
    if kind == "DEEPSPEED":
        stage = deepspeed.integer("zero_stage", most=3)
        if stage is None and deepspeed.text(SETTINGS) is None:
            notes.append(f"assumed: zero_stage {DEEPSPEED_STAGE}, accelerate's default")
            return DEEPSPEED_STAGE
        return stage
    if kind != "FSDP":
        return 0
    strategy = _strategy(fsdp)
    if strategy is not None:
        return STRATEGIES[strategy]
    return 2 if fsdp.flag("fsdp_reshard_after_forward") is False else 3


def _strategy(fsdp: Fields) -> str | None:
    """Return the sharding strategy of FSDP 1 by name; FSDP 2 has none."""
    _, strategy = fsdp.find("fsdp_sharding_strategy")
    if strategy is None or (fsdp.integer("fsdp_version", least=1, most=2) or 1) > 1:
        return None
    # The questionnaire writes numbers from 1 (FSDP_SHARDING_STRATEGY of accelerate/utils/constants.py).
    names = list(STRATEGIES)
    name = names[int(strategy) - 1] if str(strategy) in {"1", "2", "3", "4", "5"} else str(strategy).upper()
    if name not in STRATEGIES:
        raise fsdp.fail("fsdp_sharding_strategy", f"{shorten(strategy)!r} is not known", ", ".join(names))
    return name


def _layout(
    parallel: Fields, fsdp: Fields, zero: int | None, gpus: int | None, root: Fields
) -> PartialLayout:
    axes = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    sizes = {name: parallel.count(f"{PREFIX}{name}_size") for name in axes}
    # without a parallelism configuration all processes shard, or all replicate
    if not parallel.data:
        sizes["dp_shard" if zero != 0 else "dp_replicate"] = gpus or 1
        _share_out(sizes, fsdp, gpus, root)
    product = prod(sizes.values())
    if gpus is not None and product != gpus:
        shown = " * ".join(f"{name}={size}" for name, size in sizes.items())
        fix = f"set dp_replicate_size to {gpus // product}" if gpus % product == 0 else f"a divisor of {gpus}"
        raise root.fail("parallelism_config", f"{shown} = {product} does not match num_processes {gpus}", fix)
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        raise parallel.fail(f"{PREFIX}sp_size", "context and Ulysses parallelism exclude each other")
    context = sizes["cp"] * sizes["sp"]
    hybrid = sizes["dp_replicate"] > 1 and sizes["dp_shard"] > 1
    full = fsdp.flag("fsdp_activation_checkpointing")
    return PartialLayout(
        tp=sizes["tp"],
        sp=False,
        cp=context,
        pp=1,
        vp=1,
        ep=1,
        etp=1,
        dp=sizes["dp_replicate"] * sizes["dp_shard"] if gpus is not None or parallel.data else None,
        # over one rank nothing is sharded, whatever the strategy is called
        zero=zero if sizes["dp_shard"] * context > 1 or zero is None or gpus is None else 0,
        hsdp_shard=sizes["dp_shard"] * context if hybrid and zero else None,
        # the training script may turn it on as well
        recompute=whole_layers(full),
        schedule=Schedule.NONE,
        mesh_order=DEFAULT_MESH_ORDER,
    )


def _share_out(sizes: dict[str, int], fsdp: Fields, gpus: int | None, root: Fields) -> None:
    """Let FSDP 1's hybrid strategies shard in each machine and replicate over machines."""
    machines = root.integer("num_machines", least=1) or 1
    hybrid = (_strategy(fsdp) or "").startswith("HYBRID")
    # torch's hybrid strategies build their own groups: shards within a host, replicas over hosts.
    if hybrid and gpus is not None and gpus % machines == 0:
        sizes["dp_shard"], sizes["dp_replicate"] = gpus // machines, machines


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


def _missing(
    gpus: int | None, words: str | None, layout: PartialLayout, fsdp: Fields, deepspeed: Fields
) -> tuple[str, ...]:
    missing = ["the model", "sequence length", "micro-batch and global batch (in the training script)"]
    if layout.zero is None:
        missing.append(f"the ZeRO stage (in {shorten(deepspeed.text(SETTINGS))})")
    if layout.recompute is None:
        missing.append("activation checkpointing (fsdp_activation_checkpointing, or in the training script)")
    if gpus is None and layout.dp is None:
        missing.append("num_processes")
    if words not in PRECISIONS:
        single = "a precision: mixed_precision no trains in 32 bits, which is not modelled"
        missing.append(single if words == "no" else "mixed_precision")
    return tuple(missing)
