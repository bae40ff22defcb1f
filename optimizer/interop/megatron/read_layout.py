"""The layout, batch and switches in Megatron-LM's arguments (or Megatron-Bridge's keys of the same names)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.abilities import PP_BEFORE_DP
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.common import looped_schedule, megatron_precision, selective
from layoutopt.optimizer.interop.launch.optimizers import LAYER_WISE, read_megatron_optimizer
from layoutopt.optimizer.interop.megatron.read_model import layer_windows
from layoutopt.optimizer.interop.reading import MAX_DEGREE, shorten
from layoutopt.optimizer.interop.records import JobOptions, JobTraining
from layoutopt.optimizer.interop.stages import stage_items
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.layout_string import StageItems, parse_layout_string, stages_from_lists
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, CpComm, CudaGraph, Granularity

if TYPE_CHECKING:
    from typing import Any

    from layoutopt.optimizer.interop.reading import Fields
    from layoutopt.optimizer.specs.model import ModelSpec

LAYOUT_KEY = "pipeline_model_parallel_layout"
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
CP_NAMES = {kind.value: kind for kind in CpComm} | {"allgather": CpComm.ALL_GATHER}


def megatron_layout(
    fields: Fields,
    model: ModelSpec | None,
    gpus: int | None,
    notes: list[str],
    *,
    etp_default: str = "tp",
    layers: int | None = None,
) -> PartialLayout:
    """Read every axis; ``etp_default`` is what an unset expert tensor parallelism means: ``tp`` or ``1``.

    ``layers`` are those of a model that is only named, for arguments that do not state them.
    """
    _refuse_other_axes(fields, notes)
    tp = fields.count("tensor_model_parallel_size")
    cp = fields.count("context_parallel_size")
    pp = fields.count("pipeline_model_parallel_size")
    items = _layout_items(fields)
    layers = model.layers if model else fields.integer("num_layers", least=1) or layers
    vp = _virtual(fields, pp, layers, items)
    dp = gpus // (tp * cp * pp) if gpus and gpus % (tp * cp * pp) == 0 else None
    recompute, per_chunk = _recompute(fields)
    counts = _counts(fields, pp, vp, layers, model, items, notes)
    zero, hsdp = _zero(fields, notes, None if dp is None else dp * cp)
    micro_batch = fields.integer("micro_batch_size", least=1, most=MAX_DEGREE)
    schedule = looped_schedule(pp, vp)
    return PartialLayout(
        tp=tp,
        sp=fields.on("sequence_parallel") and tp > 1,
        cp=cp,
        pp=pp,
        vp=vp,
        ep=fields.count("expert_model_parallel_size", "moe_expert_parallel_size"),
        etp=1 if model is not None and not model.is_moe else _etp(fields, tp, etp_default, notes),
        dp=dp,
        zero=zero,
        hsdp_shard=hsdp,
        micro_batch=micro_batch,
        micro_batches=_micro_batches(fields, micro_batch, dp),
        recompute=recompute,
        recompute_layers=per_chunk,
        schedule=schedule,
        mesh_order=PP_BEFORE_DP if fields.on("use_tp_pp_dp_mapping") else DEFAULT_MESH_ORDER,
        split=items or stage_items(counts, pp),
    )


def _refuse_other_axes(fields: Fields, notes: list[str]) -> None:
    key = "tensor_parallel_num_weight_shards"
    if fields.count(key) > 1:
        raise fields.fail(key, "weight shards beyond tp are not modelled", "1")
    for key in ("rampup_batch_size", "step_batch_size_schedule"):
        if fields.data.get(key) is not None:
            notes.append(f"{fields.path(key)}: the batch grows to its final size, which is what is judged")


def _layout_items(fields: Fields) -> tuple[StageItems, ...]:
    value = fields.raw(LAYOUT_KEY)
    if not value:
        return ()
    if isinstance(value, list):
        return stages_from_lists(value, key=fields.path(LAYOUT_KEY))
    return parse_layout_string((fields.text(LAYOUT_KEY) or "").strip("\"'"), key=fields.path(LAYOUT_KEY))


def _virtual(fields: Fields, pp: int, layers: int | None, items: tuple[StageItems, ...]) -> int:
    # A layout string decides by itself, as in arguments.py; the flags beside it are alternatives to it.
    if items:
        if len(items) % pp:
            raise fields.fail(LAYOUT_KEY, f"{len(items)} stages are not a multiple of pp={pp}")
        return len(items) // pp
    stated = fields.integer(
        "virtual_pipeline_model_parallel_size",
        "num_virtual_stages_per_pipeline_rank",
        least=1,
        most=MAX_DEGREE,
    )
    per_chunk = fields.integer("num_layers_per_virtual_pipeline_stage", least=1)
    if stated is not None or per_chunk is None:
        return stated or 1
    uneven = next((key for key in (*FIRST_LAYERS, *LAST_LAYERS) if fields.data.get(key) is not None), None)
    if uneven is not None and pp > 1:  # arguments.py, validate_args
        what = f"is given with {fields.path(uneven)}, which Megatron-LM refuses"
        allowed = fields.path("num_virtual_stages_per_pipeline_rank")
        raise fields.fail("num_layers_per_virtual_pipeline_stage", what, allowed)
    if layers is None and fields.is_open("num_layers"):
        return 1  # ``left_open`` takes it back
    if layers is None:
        layers = fields.required("num_layers")
    if layers % (pp * per_chunk):
        what = f"{layers} layers are not a multiple of pp*K = {pp}*{per_chunk}"
        raise fields.fail("num_layers_per_virtual_pipeline_stage", what)
    return layers // (pp * per_chunk)


def _etp(fields: Fields, tp: int, default: str, notes: list[str]) -> int:
    stated = fields.integer("expert_tensor_parallel_size", least=1, most=MAX_DEGREE)
    if stated is not None:
        return stated
    # What an unset degree means differs between trainers, and counts for models with experts alone.
    experts = fields.integer("num_experts", "num_moe_experts")
    if not experts and fields.count("expert_model_parallel_size") == 1:
        return 1
    etp = tp if default == "tp" else 1
    notes.append(f"etp={etp}: expert tensor parallelism is unset, which means {default}")
    return etp


def _zero(fields: Fields, notes: list[str], shard_ranks: int | None) -> tuple[int, int | None]:
    """Return the ZeRO stage and, with replicas of the shards, the ranks per shard group."""
    # FSDP2 comes first: it excludes the distributed optimizer
    if fields.on("use_torch_fsdp2"):
        return (2 if fields.on("torch_fsdp2_no_reshard_after_forward") else 3), None
    if fields.on("use_megatron_fsdp", "use_custom_fsdp"):
        strategy = fields.text("data_parallel_sharding_strategy")
        if strategy is None:
            notes.append("zero=3: Megatron-FSDP's default strategy since core 0.18 is optim_grads_params")
        zero = STRATEGIES.get(strategy or "optim_grads_params")
        if zero is None:
            known = "one of " + ", ".join(STRATEGIES)
            raise fields.fail("data_parallel_sharding_strategy", "not known", known)
    else:
        # the layer-wise optimizer shards by owners, without the flag of the distributed one
        layer_wise = fields.data.get("optimizer") == LAYER_WISE
        zero = 1 if fields.on("use_distributed_optimizer") or layer_wise else 0
    replicas = fields.count("num_distributed_optimizer_instances")
    if replicas == 1 or zero == 0:
        return zero, None
    if shard_ranks is None or shard_ranks % replicas:
        notes.append(f"{replicas} optimizer instances: the shard group needs the number of GPUs")
        return zero, None
    return zero, shard_ranks // replicas


def _recompute(fields: Fields) -> tuple[Recompute, int | None]:
    """Return what is recomputed, and for full recomputation the layers per chunk (None: all)."""
    granularity = fields.text("recompute_granularity")
    modules = [str(module) for module in fields.items("recompute_modules") or ["core_attn"]]
    if fields.on("recompute_activations") and granularity is None:
        granularity = "selective"
    if fields.on("moe_layer_recompute") and granularity is None:  # before core 0.12 a switch of its own
        granularity, modules = "selective", ["moe"]
    if granularity is None:
        return Recompute(), None
    if granularity == "selective":
        return selective(modules, key=fields.path("recompute_modules")), None
    if granularity != "full":
        raise fields.fail("recompute_granularity", "not known", "selective or full")
    method = fields.text("recompute_method")
    if method == "block":
        per_chunk = fields.required("recompute_num_layers", least=0)
        if per_chunk == 0:
            return Recompute(), None
        return Recompute(granularity=Granularity.FULL), per_chunk
    group = fields.integer("recompute_num_layers", least=1) if method == "uniform" else None
    return Recompute(granularity=Granularity.FULL, group=group if group and group > 1 else 0), None


def _counts(
    fields: Fields,
    pp: int,
    vp: int,
    layers: int | None,
    model: ModelSpec | None,
    items: tuple[StageItems, ...],
    notes: list[str],
) -> list[int]:
    """Layers per virtual stage, chunk-major; empty when the arguments leave it open."""
    # A list of stages and the model say the same number twice; Megatron-LM refuses a difference at its start too.
    if items:
        counts = [stage.layers for stage in items]
        if layers is not None and sum(counts) != layers:
            raise fields.fail(LAYOUT_KEY, f"layout holds {sum(counts)} layers, the model {layers}")
        held = sum(stage.mtp for stage in items)
        if model is not None and held != model.mtp_layers:
            raise fields.fail(LAYOUT_KEY, f"layout holds {held} MTP layers, the model {model.mtp_layers}")
        return counts
    if layers is None:
        return []
    per_rank = _uneven(fields, layers, pp) or _even(fields, layers, pp, vp)
    if not per_rank or any(count % vp for count in per_rank):
        # no stages: the rules judge the split, an importer does not
        notes.append(f"{layers} layers do not split over pp*vp = {pp}*{vp} stages: the stages are left open")
        return []
    counts = [per_rank[index % pp] // vp for index in range(pp * vp)]
    first, last = _counted_ends(fields)
    counts[0] -= first
    counts[-1] -= last
    return counts


def _even(fields: Fields, layers: int, pp: int, vp: int) -> list[int]:
    slots = layers + _counted_ends(fields)[0] + _counted_ends(fields)[1]
    return [] if slots % (pp * vp) else [slots // pp] * pp


def _counted_ends(fields: Fields) -> tuple[int, int]:
    first = fields.on("account_for_embedding_in_pipeline_split")
    return int(first), int(fields.on("account_for_loss_in_pipeline_split"))


FIRST_LAYERS = ("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage")
LAST_LAYERS = ("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage")


def _uneven(fields: Fields, layers: int, pp: int) -> list[int]:
    """Layers of each rank where those of an end are stated, empty where they are not.

    Raises ``InputError`` for what Megatron refuses (core/transformer/transformer_config.py, uneven stages).
    """
    first, last = fields.integer(*FIRST_LAYERS), fields.integer(*LAST_LAYERS)
    if pp < 2 or (first is None and last is None) or fields.is_open(*FIRST_LAYERS, *LAST_LAYERS):
        return []
    ends = (first is not None) + (last is not None)
    middle, between = layers - (first or 0) - (last or 0), pp - ends
    if middle < 0 or bool(middle) != bool(between) or (between and middle % between):
        stated = next(key for key in (*LAST_LAYERS, *FIRST_LAYERS) if fields.data.get(key) is not None)
        what = f"leaves {middle} of {layers} layers to the {between} stages that state none, which Megatron-LM refuses"
        allowed = f"a multiple of {between} left" if between else "all layers at the ends"
        raise fields.fail(stated, what, allowed)
    front = [] if first is None else [first]
    back = [] if last is None else [last]
    return front + [middle // between if between else 0] * between + back


def _micro_batches(fields: Fields, micro_batch: int | None, dp: int | None) -> int | None:
    batch = fields.integer("global_batch_size", least=1)
    if micro_batch is None or dp is None or (batch is None and fields.is_open("global_batch_size")):
        return None
    if batch is None:
        return 1  # arguments.py: the global batch defaults to micro-batch * dp
    return batch // (micro_batch * dp) if batch % (micro_batch * dp) == 0 else None


def megatron_training(
    fields: Fields, layout: PartialLayout, notes: list[str], *, fp8_key: str, fp4_key: str, command_line: bool
) -> JobTraining:
    """Read the batch and the number formats."""
    precision, recipe = megatron_precision(fields, fp8_key=fp8_key, fp4_key=fp4_key)
    batch = fields.integer("global_batch_size", least=1)
    if batch is None and layout.micro_batch and layout.dp and not fields.is_open("global_batch_size"):
        batch = layout.micro_batch * layout.dp
    return JobTraining(
        sequence_length=fields.integer("seq_length", least=1),
        global_batch=batch,
        train_steps=fields.integer("train_iters", least=1),
        precision=precision,
        fp8_recipe=recipe,
        grad_bytes=_grad_bytes(fields),
        moment_bytes=_moment_bytes(fields),
        optimizer=read_megatron_optimizer(fields, Framework.MEGATRON, notes),
        pad_vocab=fields.flag("pad_vocab_size", "should_pad_vocab"),
        flash=_flash(fields),
        dropout=_dropout(fields, command_line=command_line),
    )


def _dropout(fields: Fields, *, command_line: bool) -> bool | None:
    """Tell whether anything is dropped; on a command line an unstated rate is 0.1 (arguments.py)."""
    rates = [fields.number(name) for name in ("attention_dropout", "hidden_dropout")]
    if command_line and not fields.unsaid:
        rates = [0.1 if rate is None else rate for rate in rates]
    stated = [rate for rate in rates if rate is not None]
    return any(stated) if stated else None


def _flash(fields: Fields) -> bool | None:
    """Tell whether attention keeps no scores, as far as a backend is chosen; Transformer Engine's own choice keeps none."""
    backend = fields.raw("attention_backend")
    if backend is None:
        local = fields.text("transformer_impl") == "local" and fields.flag("use_flash_attn") is not True
        return False if local else None
    return str(backend).removeprefix("AttnBackend.") not in ("unfused", "local")


def _grad_bytes(fields: Fields) -> int | None:
    in_fp32 = fields.flag("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32")
    if fields.on("grad_reduce_in_bf16"):
        return 2
    if in_fp32 is None:
        return 4 if fields.on("bf16") else None  # arguments.py: --bf16 accumulates and reduces in fp32
    return 4 if in_fp32 else 2


def _moment_bytes(fields: Fields) -> int | None:
    if not fields.on("use_precision_aware_optimizer"):
        return None
    kind = str(fields.raw("exp_avg_dtype") or "fp32").removeprefix("torch.")
    return {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1}.get(kind)


def megatron_options(fields: Fields, layout: PartialLayout, *, command_line: bool) -> JobOptions:
    """Read the switches that change speed or memory only. On a command line an absent switch is off."""
    read = fields.on if command_line else fields.flag
    overlap = fields.on("overlap_moe_expert_parallel_comm")
    shared = fields.on("moe_shared_expert_overlap")
    offload = fields.on("optimizer_cpu_offload")
    sends_overlap = fields.flag("overlap_p2p_comm", "overlap_p2p_communication")
    refused = fields.on("no_overlap_p2p_communication") or sends_overlap is False
    cp_comm, cp_windows = _cp_comm(fields)
    return JobOptions(
        tp_overlap=read("tp_comm_overlap"),
        dp_overlap=read("overlap_grad_reduce"),
        param_overlap=read("overlap_param_gather"),
        # forced off without virtual stages, on by default with them (arguments.py)
        pp_overlap=None if layout.vp is None else layout.vp > 1 and not refused,
        ep_overlap="batch" if overlap else "shared" if shared else None,
        cp_comm=cp_comm,
        cp_windows=cp_windows,
        moe_dispatcher=_dispatcher(fields),
        microbatch_group=fields.integer(
            "microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage", least=1
        ),
        optimizer_offload=(fields.number("optimizer_offload_fraction") or 1.0) if offload else None,
        activation_offload=read("fine_grained_activation_offloading", "cpu_offloading"),
        checkpoint_interval=fields.integer("save_interval", least=1),
        checkpoint_async=read("async_save"),
        fp8_param_gather=fields.flag("fp8_param_gather", "fp8_param"),
        delay_wgrad=fields.on("delay_wgrad_compute") or None,
        cuda_graph=_graphs(fields),
    )


def _graphs(fields: Fields) -> CudaGraph | None:
    """Return how much CUDA graphs hold: before core 0.18 the whole iteration was a scope of local graphs."""
    kind = str(fields.raw("cuda_graph_impl") or "none")
    scope = fields.raw("cuda_graph_modules") or fields.raw("cuda_graph_scope") or ()
    words = [scope] if isinstance(scope, str) else list(scope)
    if kind == "full_iteration" or (kind == "local" and "full_iteration" in words):
        return CudaGraph.FULL
    if kind == "none":
        old = fields.on("enable_cuda_graph") or fields.on("external_cuda_graph")
        return CudaGraph.PARTIAL if old else None
    return CudaGraph.PARTIAL


def _cp_comm(fields: Fields) -> tuple[CpComm | None, CpComm | None]:
    """Return the kind of all layers, or of those without a window and of those with one."""
    if fields.count("context_parallel_size") == 1:
        return None, None
    stated = fields.raw("cp_comm_type") or "p2p"
    kinds = list(stated) if isinstance(stated, list | tuple) else [stated]
    found = {CP_NAMES.get(str(kind)) for kind in kinds}
    if None in found:
        raise fields.fail("cp_comm_type", "not known", "one of " + ", ".join(CP_NAMES))
    if len(found) == 1:
        return found.pop(), None
    # Transformer Engine refuses windows in a ring (attention/dot_product_attention/context_parallel.py): kinds that
    # differ by layer are how models with windows run at all.
    pairs = zip(kinds, _windowed(fields, kinds), strict=True)
    windows = {CP_NAMES[str(kind)] for kind, window in pairs if window}
    others = found - windows
    if windows != {CpComm.ALL_GATHER} or len(others) != 1:
        what = "kinds that differ between layers of one sort are not supported"
        allowed = "all_gather for layers with a window, one kind for the others"
        raise fields.fail("cp_comm_type", what, allowed)
    return others.pop(), CpComm.ALL_GATHER


def cp_groups(fields: Fields, method: CpComm | None) -> tuple[str, ...]:
    """Say what the stated sizes of hierarchical groups are and how such groups are priced.

    Raises ``InputError`` for sizes that the trainer refuses: two of them, whose product is the degree.
    """
    key, cp = "hierarchical_context_parallel_sizes", fields.count("context_parallel_size")
    sizes, hierarchical = fields.items(key), method is CpComm.A2A_P2P and cp > 1
    if sizes is None:
        said = f"{fields.path(key)}: missing, which a2a+p2p needs; priced with groups within NVLink"
        return (said,) if hierarchical and not fields.is_open(key) else ()
    if not all(type(size) is int and size > 0 for size in sizes) or prod(sizes) != cp:
        what = f"{' '.join(map(shorten, sizes)) or 'nothing'} do not multiply to context parallelism {cp}"
        raise fields.fail(key, what, f"two sizes, e.g. 2 {cp // 2}" if cp % 2 == 0 else f"1 {cp}")
    if not hierarchical:
        return ()
    ring = cp // sizes[0]
    return (
        f"{fields.path(key)}: {sizes[0]} ranks exchange heads and {ring} pass keys on; priced with as many exchanging "
        "as share an NVLink domain and divide the heads",
    )


def _windowed(fields: Fields, kinds: list[Any]) -> list[bool]:
    layers = fields.integer("num_layers", least=1) or len(kinds)
    if layers != len(kinds):
        raise fields.fail("cp_comm_type", f"{len(kinds)} kinds for {layers} layers", "one, or one per layer")
    return [window is not None for window in layer_windows(fields, layers)]


def _dispatcher(fields: Fields) -> str | None:
    kind = fields.text("moe_token_dispatcher_type")
    backend = fields.text("moe_flex_dispatcher_backend")
    if kind == "flex":
        return backend or "deepep"
    return "deepep" if fields.on("moe_enable_deepep") else kind
