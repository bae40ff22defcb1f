"""Megatron-LM: a launch script for ``pretrain_gpt.py`` with every degree written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.abilities import PP_BEFORE_DP
from layoutopt.optimizer.frameworks.preset import NarrowWeights
from layoutopt.optimizer.interop.launch.optimizers import has_owners, megatron_optimizer
from layoutopt.optimizer.interop.launch.text import command_text, flag_words, header, torchrun_words
from layoutopt.optimizer.interop.megatron.write_model import as_flags, cp_kinds, cp_sizes, model_flags
from layoutopt.optimizer.interop.records import ExportedJob
from layoutopt.optimizer.interop.stages import counted_ends, full_recomputation, is_even_split, uneven_ends
from layoutopt.optimizer.specs.layout_string import StageItems, write_layout_string
from layoutopt.optimizer.specs.model import Mlp
from layoutopt.optimizer.specs.vocabulary import (
    CpComm,
    CudaGraph,
    Dispatcher,
    Fp8Recipe,
    Granularity,
    Optimizer,
    Precision,
    Saver,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.specs.layout import Layout

Flags = list[tuple[str, Any]]

STRATEGY = {2: "optim_grads", 3: "optim_grads_params"}
OFFLOAD_MODULES = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
)  # fmt: skip
"""What a block keeps, by Megatron-LM's names (core/transformer/transformer_config.py)."""
INSIDE_MOE = frozenset({"expert_fc1", "moe_act"})
"""Those that recomputation of whole expert layers doesn't keep; core 0.19 refuses their names beside it."""


def export(target: Target) -> ExportedJob:
    """Write ``launch.sh``."""
    notes: list[str] = []
    sections = [
        model_flags(target, notes),
        batch_flags(target),
        layout_flags(target, notes),
        optimizer_flags(target, notes),
        overlap_flags(target),
        precision_flags(target, notes),
        checkpoint_flags(target),
    ]
    words = [flag_words(section) for section in sections]
    start = [*torchrun_words(target), "pretrain_gpt.py"]
    env = environment(target, notes)
    if Saver.OFFLOAD_ACTIVATIONS in target.layout.savers:
        env += "export NVTE_CPU_OFFLOAD_V1=1  # Transformer Engine 2.10 and later offload by another path otherwise\n"
    script = "#!/bin/bash\n" + header(target, f"Megatron-LM {target.version}") + env
    script += command_text(start, words)
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"launch.sh": script},
        command="bash launch.sh",
        memory_check=memory_check(target, words),
        layout=target.layout,
        notes=tuple(notes),
    )


def environment(target: Target, notes: list[str]) -> str:
    """The CUDA_DEVICE_MAX_CONNECTIONS line: 1 where tp or cp overlap needs it, never 1 under FSDP."""
    layout = target.layout
    if layout.zero >= 2:
        notes.append("CUDA_DEVICE_MAX_CONNECTIONS is not 1: FSDP prefetching needs several connections")
        return "unset CUDA_DEVICE_MAX_CONNECTIONS  # FSDP refuses 1\n"
    # Asynchronous all-reduces of tensor parallelism are on by default before core 0.12, at tp 1 too.
    if target.release < (0, 12):
        return "export CUDA_DEVICE_MAX_CONNECTIONS=1  # mandatory before core 0.12\n"
    if target.preset.ep_overlap.value == "batch" and layout.ep > 1:
        return "export CUDA_DEVICE_MAX_CONNECTIONS=32  # merged passes need several connections\n"
    old = not target.cluster.gpu.generation.ordered_streams
    if old and (layout.tp > 1 or layout.cp > 1):
        return "export CUDA_DEVICE_MAX_CONNECTIONS=1  # mandatory below Blackwell when tp > 1 or cp > 1\n"
    return "export CUDA_DEVICE_MAX_CONNECTIONS=32\n"


def batch_flags(target: Target) -> Flags:
    """Micro-batch, global batch, lengths and steps."""
    length = target.training.sequence_length
    return [
        ("--seq-length", length),
        # Longer sequences than positions are refused, whatever kind of positions the model has (arguments.py).
        ("--max-position-embeddings", max(length, target.model.learned_positions)),
        ("--micro-batch-size", target.layout.micro_batch),
        ("--global-batch-size", target.global_batch),
        ("--train-iters", target.steps or 1000),
    ]


def layout_flags(target: Target, notes: list[str]) -> Flags:
    """Every parallel degree, the stages, and recomputation."""
    layout = target.layout
    flags: Flags = [
        ("--tensor-model-parallel-size", layout.tp),
        ("--sequence-parallel", layout.sp),
        ("--context-parallel-size", layout.cp),
        ("--pipeline-model-parallel-size", layout.pp),
        *stage_flags(layout, target),
        ("--use-tp-pp-dp-mapping", layout.mesh_order == PP_BEFORE_DP),
    ]
    if layout.cp > 1:
        flags += cp_flags(target, notes)
    if target.model.is_moe:
        flags.append(("--expert-model-parallel-size", layout.ep))
        flags.append(("--expert-tensor-parallel-size", layout.etp if target.release >= (0, 10) else None))
        flags += dispatch_flags(target)
    return flags + recompute_flags(target)


def cp_flags(target: Target, notes: list[str]) -> Flags:
    """How context parallelism communicates; hierarchical groups split where NVLink, or the heads, end."""
    if target.release < (0, 10):
        return []
    kinds = cp_kinds(target)
    if CpComm.A2A_P2P.value not in kinds:
        return [("--cp-comm-type", kinds)]
    sizes = cp_sizes(target)
    ranks = f"{sizes[0]} ranks by all-to-all over NVLink, the rest in a ring"
    notes.append(f"hierarchical context parallelism: {ranks}")
    return [("--cp-comm-type", kinds), ("--hierarchical-context-parallel-sizes", sizes)]


def layout_string(layout: Layout) -> str:
    """The stages as a layout string."""
    items = [
        StageItems(layers=stage.layers, mtp=stage.mtp, embedding=stage.embedding, loss=stage.head)
        for stage in layout.stages
    ]
    return write_layout_string(items)


def stage_flags(layout: Layout, target: Target) -> Flags:
    """Even stages by layers per chunk, others by a layout string, or by their ends before there were such strings."""
    if not is_even_split(layout, target.model):
        if takes_string(target):
            return [("--pipeline-model-parallel-layout", layout_string(layout))]
        return [
            *end_flags(layout),
            ("--num-virtual-stages-per-pipeline-rank", layout.vp if layout.vp > 1 else None),
        ]
    if layout.vp == 1:
        return []
    return [("--num-layers-per-virtual-pipeline-stage", target.model.layers // (layout.pp * layout.vp))]


def takes_string(target: Target) -> bool:
    """Whether the release has layout strings, core 0.13, and for MTP layers too, core 0.14."""
    return target.release >= ((0, 14) if target.model.mtp_layers else (0, 13))


def end_flags(layout: Layout) -> Flags:
    """Layers of the first and the last rank, or the ends counted as a layer each."""
    ends = uneven_ends(layout)
    if ends is not None:
        # of two ranks the second has the rest: core 0.11 and 0.12 divide by the ranks between
        return [
            ("--decoder-first-pipeline-num-layers", ends[0]),
            ("--decoder-last-pipeline-num-layers", ends[1] if layout.pp > 2 else None),
        ]
    first, last = counted_ends(layout) or (False, False)
    return [
        ("--account-for-embedding-in-pipeline-split", first),
        ("--account-for-loss-in-pipeline-split", last),
    ]


def recompute_flags(target: Target) -> Flags:
    """Recomputation: modules, or the first N layers of every chunk."""
    layout = target.layout
    chosen = layout.recompute
    if chosen.granularity is Granularity.NONE:
        return []
    if chosen.granularity is Granularity.SELECTIVE:
        modules = list(chosen.modules) if target.release >= (0, 12) else None
        return [("--recompute-granularity", "selective"), ("--recompute-modules", modules)]
    method, depth = full_recomputation(layout)
    return [
        ("--recompute-granularity", "full"),
        ("--recompute-method", method),
        ("--recompute-num-layers", depth),
    ]


def dispatch_flags(target: Target) -> Flags:
    """Expert kernels and the token dispatcher."""
    flags: Flags = [("--moe-grouped-gemm", True)]
    dispatcher = target.preset.dispatcher
    # DeepEP refuses groups of one rank (core/transformer/moe/token_dispatcher.py).
    if not dispatcher.deduplicates or target.layout.ep == 1:
        kind = Dispatcher.ALLTOALL if dispatcher.deduplicates else dispatcher
        return [*flags, ("--moe-token-dispatcher-type", kind.value)]
    flags += [("--moe-token-dispatcher-type", "flex")]
    named = target.release >= (0, 16)
    backend = ("--moe-flex-dispatcher-backend", dispatcher.value)
    return [*flags, backend if named else ("--moe-enable-deepep", True)]


def optimizer_flags(target: Target, notes: list[str]) -> Flags:
    """Optimizer sharding and state dtypes."""
    layout, training = target.layout, target.training
    # Instances of the distributed optimizer are replicas of shard groups, which span context parallelism too.
    replicas = layout.dp * layout.cp // layout.hsdp_shard if layout.hsdp_shard else None
    flags: Flags = [
        *as_flags((name, str(value)) for name, value in megatron_optimizer(target).items()),
        ("--lr", "1.5e-4"),
        ("--min-lr", "1.5e-5"),
        ("--lr-decay-style", "cosine"),
    ]
    if layout.zero >= 2:
        switch = "--use-megatron-fsdp" if target.release >= (0, 14) else "--use-custom-fsdp"
        flags += [(switch, True), ("--data-parallel-sharding-strategy", STRATEGY[layout.zero])]
        flags.append(("--no-gradient-accumulation-fusion", target.release < (0, 14)))
        if layout.pp > 1:
            said = "Megatron-FSDP with a pipeline is accepted but not covered by Megatron-LM's own tests"
            notes.append(said)
    # Up to core 0.17 Muon whose matrices have owners shards by itself, without the distributed optimizer.
    layer_wise = has_owners(target) and target.release < (0, 18)
    flags.append(("--use-distributed-optimizer", layout.zero >= 1 and not layer_wise))
    flags.append(("--num-distributed-optimizer-instances", replicas))
    if training.grad_bytes == 2 and target.release >= (0, 12):
        flags.append(("--grad-reduce-in-bf16", True))
    elif training.grad_bytes == 2:
        notes.append("gradients are summed in fp32: --grad-reduce-in-bf16 came with core 0.12")
    return flags + saver_flags(target, notes)


def saver_flags(target: Target, notes: list[str]) -> Flags:
    """Moments in 16 bits, optimizer and activations in host memory."""
    savers, sharded = target.layout.savers, target.layout.zero >= 1
    adam = target.training.optimizer.kind is Optimizer.ADAMW
    short = Saver.BF16_MOMENTS in savers or (target.training.moment_bytes == 2 and sharded and adam)
    if short and target.release < (0, 13):
        notes.append("moments stay in fp32: --exp-avg-dtype bf16 came with core 0.13")
        short = False
    offloaded = Saver.OFFLOAD_OPTIMIZER in savers
    flags: Flags = []
    if short or offloaded:
        # the precision-aware optimizer is a distributed one, on one replica too
        flags += [("--use-distributed-optimizer", not sharded), ("--use-precision-aware-optimizer", True)]
    if short:
        flags += [("--main-grads-dtype", "fp32"), ("--exp-avg-dtype", "bf16"), ("--exp-avg-sq-dtype", "bf16")]
    if offloaded:
        flags += [("--optimizer-cpu-offload", True), ("--optimizer-offload-fraction", "1.0")]
    if Saver.OFFLOAD_ACTIVATIONS in savers:
        flags += [
            ("--fine-grained-activation-offloading", True),
            ("--offload-modules", offload_modules(target.layout)),
        ]
    return flags


def offload_modules(layout: Layout) -> list[str]:
    """Name what offloading moves of a layout's blocks."""
    recomputed = INSIDE_MOE if "moe" in layout.recompute.modules else frozenset()
    return [name for name in OFFLOAD_MODULES if name not in recomputed]


def overlap_flags(target: Target) -> Flags:
    """What the preset, and so the predicted step time, assumes to run side by side."""
    preset, layout = target.preset, target.layout
    batch_overlap = preset.ep_overlap.value == "batch" and layout.ep > 1
    shared = target.model.moe is not None and target.model.moe.shared_ffn > 0
    return [
        ("--overlap-grad-reduce", preset.dp_overlap and layout.dp * layout.cp > 1),
        # Refused without the distributed optimizer and without --overlap-grad-reduce (arguments.py).
        ("--overlap-param-gather", preset.param_overlap and preset.dp_overlap and layout.zero >= 1),
        ("--tp-comm-overlap", preset.tp_overlap and layout.sp),
        ("--no-overlap-p2p-communication", layout.vp > 1 and not preset.pp_overlap),
        ("--overlap-moe-expert-parallel-comm", batch_overlap and (layout.pp == 1 or layout.vp > 1)),
        ("--delay-wgrad-compute", preset.delay_wgrad and batch_overlap),
        ("--moe-shared-expert-overlap", preset.ep_overlap.value == "shared" and shared),
        *graph_flags(target),
    ]


def graph_flags(target: Target) -> Flags:
    """CUDA graphs: of a whole iteration, or of the parts of a layer in front of what the router decides."""
    kind, release = target.preset.cuda_graph, target.release
    if kind is CudaGraph.NONE:
        return []
    scope = "--cuda-graph-modules" if release >= (0, 18) else "--cuda-graph-scope"
    if kind is CudaGraph.PARTIAL:
        return [
            ("--cuda-graph-impl", "transformer_engine"),
            (scope, list(graph_modules(target))),
            ("--te-rng-tracker", True),
        ]
    own: Flags = [("--cuda-graph-impl", "full_iteration")]
    # Core 0.16 and 0.17 ask for it wherever graphs meet expert parallelism; routers read it in decoding alone.
    padded = release >= (0, 16) and target.layout.ep > 1
    older: Flags = [
        ("--cuda-graph-impl", "local"),
        (scope, "full_iteration"),
        ("--moe-pad-experts-for-cuda-graph-inference", padded),
    ]
    return [
        *(own if release >= (0, 18) else older),
        # A check asks the host in the middle of what the graph holds: arguments.py wants it off.
        ("--no-check-for-nan-in-loss-and-grad", True),
        ("--te-rng-tracker", True),
    ]


def graph_modules(target: Target) -> tuple[str, ...]:
    """Modules that partial CUDA graphs capture."""
    dense = ("mlp",) if any(shape.mlp is Mlp.DENSE for shape in target.model.shapes) else ()
    if not target.model.is_moe:
        return ("attn", *dense)
    # A graph holds what has the same sizes at every step: experts do where their capacity is limited, and what prepares
    # their exchange where the dispatcher leaves the counts of tokens on the device.
    sized = () if target.preset.dispatcher is Dispatcher.ALLTOALL else ("moe_preprocess",)
    batch = target.preset.ep_overlap.value == "batch"
    if target.model.moe is not None and target.model.moe.capacity_factor is not None and not batch:
        return ("attn", *dense, "moe")
    return ("attn", *(() if batch else dense), "moe_router", *sized)


def precision_flags(target: Target, notes: list[str]) -> Flags:
    """Number formats; 8- and 4-bit formats come on top of bf16."""
    precision = target.layout.precision
    if precision is Precision.FP16:
        return [("--fp16", True)]
    flags: Flags = [("--bf16", True)]
    if precision is Precision.NVFP4:
        flags.append(("--fp4-format", "e2m1"))
    elif precision in (Precision.FP8, Precision.MXFP8):
        recipe = target.framework.record.fp8_recipes[fp8_recipe(target, notes)]
        # One scale a tensor leaves gradients too narrow for e4m3, which is why hybrid has e5m2 for them; blocks do not.
        flags.append(("--fp8-format", "e4m3" if recipe in {"blockwise", "mxfp8"} else "hybrid"))
        if target.release >= (0, 12):
            flags.append(("--fp8-recipe", recipe))
        flags.append(("--fp8-param-gather", target.preset.narrow_weights is NarrowWeights.ALONE))
    return flags


def fp8_recipe(target: Target, notes: list[str]) -> Fp8Recipe:
    """The stated recipe, or the framework's default with a note."""
    if target.layout.precision is Precision.MXFP8:
        return Fp8Recipe.MX
    stated = target.training.fp8_recipe
    if stated is None:
        notes.append("fp8 recipe delayed: Megatron-LM's default, the training spec states none")
        return Fp8Recipe.DELAYED
    return stated if stated in target.framework.record.fp8_recipes else Fp8Recipe.CURRENT


def checkpoint_flags(target: Target) -> Flags:
    """Tokenizer, data, and the sharded asynchronous checkpoint."""
    ckpt = target.checkpoint
    kind = "fsdp_dtensor" if target.layout.zero >= 2 and target.release >= (0, 14) else "torch_dist"
    asynchronous = ckpt is not None and ckpt.asynchronous and target.release >= (0, 7)
    return [
        # Needs no files, so that the launch runs as it is; the vocabulary is the model's, which decides the price.
        ("--tokenizer-type", "NullTokenizer"),
        ("--vocab-size", target.model.vocab),
        ("--mock-data", True),
        ("--ckpt-format", kind),
        ("--save", "checkpoints" if ckpt else None),
        ("--save-interval", ckpt.interval_steps if ckpt else None),
        ("--async-save", asynchronous),
        ("--use-persistent-ckpt-worker", asynchronous and target.release >= (0, 16)),
    ]


def memory_check(target: Target, words: list[list[list[str]]]) -> str:
    """One rank on one GPU: Megatron-LM skips all communication with ``--fake-process-group``."""
    if target.release < (0, 16):
        return "none: --fake-process-group came with core 0.16"
    env = f"WORLD_SIZE={target.layout.gpus} RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=29500"
    # One rank's checkpoint of a job that never ran is of no use, and would stand where the real one is saved.
    saving = {"--save", "--save-interval", "--async-save", "--use-persistent-ckpt-worker"}
    flags = [group for section in words for group in section if group[0] not in saving]
    flags = [["--train-iters", "2"] if group[0] == "--train-iters" else group for group in flags]
    return command_text([env, "python", "pretrain_gpt.py", "--fake-process-group"], [flags]).strip()
