"""Megatron-Bridge: ``run_recipe.py`` with every field of model and layout overridden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.abilities import PP_BEFORE_DP
from layoutopt.optimizer.interop.launch.optimizers import megatron_optimizer
from layoutopt.optimizer.interop.launch.text import command_text, header, quote, torchrun_words
from layoutopt.optimizer.interop.megatron.variants import expert_settings, mla_settings, variant_settings
from layoutopt.optimizer.interop.megatron.write import (
    STRATEGY,
    environment,
    fp8_recipe,
    graph_modules,
    layout_string,
    offload_modules,
    takes_string,
)
from layoutopt.optimizer.interop.megatron.write_model import (
    balances,
    biased_experts,
    cp_kinds,
    cp_sizes,
    dense_width,
    expert_groups,
    rotary_base,
    router_scaling,
    routing_notes,
    sinks,
    unstated_facts,
    window_marks,
)
from layoutopt.optimizer.interop.megatron_bridge.adapters import (
    adapter_overrides,
    adapter_recipe,
    writes_adapter,
)
from layoutopt.optimizer.interop.megatron_bridge.read import PRECISION_NAMES, SHORT_FLAGS
from layoutopt.optimizer.interop.records import ExportedJob
from layoutopt.optimizer.interop.stages import counted_ends, full_recomputation, is_even_split, uneven_ends
from layoutopt.optimizer.specs.model import Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import (
    CpComm,
    CudaGraph,
    Dispatcher,
    Granularity,
    Optimizer,
    Precision,
    Saver,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.specs.model import ModelSpec

Overrides = list[tuple[str, Any]]

RECIPE_OF = {
    "llama3-405b": "llama31_405b_pretrain_config",
    "llama3-70b": "llama3_70b_pretrain_config",
    "llama3-8b": "llama3_8b_pretrain_config",
    "llama2-7b": "llama2_7b_pretrain_config",
    "deepseek-v3": "deepseek_v3_pretrain_config",
    "deepseek-v2": "deepseek_v2_pretrain_config",
    "qwen3-235b-a22b": "qwen3_235b_a22b_pretrain_config",
    "qwen3-30b-a3b": "qwen3_30b_a3b_pretrain_config",
    "qwen3-32b": "qwen3_32b_pretrain_config",
    "gpt-oss-120b": "gpt_oss_120b_pretrain_config",
    "kimi-k2": "kimi_k2_pretrain_config",
    "gpt3-175b": "gpt3_175b_pretrain_config",
    "qwen3-next-80b-a3b": "qwen3_next_80b_a3b_pretrain_config",
    "glm-5": "glm52_pretrain_416gpu_h100_bf16_config",
}
"""Recipes of megatron.bridge.recipes by built-in model; other models override the nearest one's sizes."""

WITH_DATASETS, WITH_OPTIONS = (0, 17), (0, 19)
"""Megatron-core of Bridge 0.4, whose ``run_recipe.py`` knows data sets (and has a recipe of GPT-3), and of 0.6, which has
options for degrees and batch (scripts/training/run_recipe.py at the tags)."""

MIXED_PRECISION = {
    Precision.BF16: "bf16_mixed",
    Precision.FP16: "fp16_mixed",
    Precision.MXFP8: "bf16_with_mxfp8_mixed",
    Precision.NVFP4: "bf16_with_nvfp4_mixed",
}
FP8_MIXED = {settings["fp8_recipe"]: name for name, settings in PRECISION_NAMES.items() if "fp8" in settings}
"""Mixed-precision recipes by their FP8 recipe."""


def export(target: Target) -> ExportedJob:
    """Write ``launch.sh``."""
    notes: list[str] = []
    recipe = recipe_of(target, notes)
    options, sizes = run_words(target, adapter_recipe(recipe) if writes_adapter(target) else recipe)
    notes += [*unstated_facts(target, OPEN_KEYS), *routing_notes(target)]
    sections = [
        sizes,
        model_overrides(target, notes),
        layout_overrides(target),
        state_overrides(target),
        overlap_overrides(target),
        precision_overrides(target, notes),
        checkpoint_overrides(target),
        adapter_overrides(target),
    ]
    words = [options, *([[quote(f"{key}={text(value)}")] for key, value in section] for section in sections)]
    script = "#!/bin/bash\n" + header(target, f"Megatron-Bridge {target.version}")
    script += environment(target, notes)
    script += command_text([*torchrun_words(target), "scripts/training/run_recipe.py"], words)
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"launch.sh": script},
        command="bash launch.sh",
        memory_check="none in Megatron-Bridge; export to megatron-lm for its --fake-process-group",
        layout=target.layout,
        notes=tuple(notes),
    )


def run_words(target: Target, recipe: str) -> tuple[list[list[str]], Overrides]:
    """Options of ``run_recipe.py``, and what they do not say: its options for degrees and batch came with 0.6."""
    layout, length, steps = target.layout, target.training.sequence_length, target.steps or 1000
    numbers = {
        "-tp": layout.tp,
        "-pp": layout.pp,
        "-vp": layout.vp if layout.vp > 1 else None,
        "-cp": layout.cp,
    }
    numbers |= {"-ep": layout.ep, "-etp": layout.etp, "-mb": layout.micro_batch, "-gb": target.global_batch}
    if target.release >= WITH_OPTIONS:
        numbers |= {"-sl": length, "--max_steps": steps}
        mode = ["lora"] if writes_adapter(target) else ["pretrain", "--dataset", "mock"]
        return [
            ["--recipe", recipe, "--mode", *mode],
            [word for option, n in numbers.items() if n is not None for word in (option, str(n))],
        ], []
    mock = ["--dataset", "llm-pretrain-mock"] if target.release >= WITH_DATASETS else ["--mode", "pretrain"]
    if writes_adapter(target):
        mock = ["--peft_scheme", "lora", "--dataset", "llm-finetune"]
    keys: Overrides = [(SHORT_FLAGS[option], n) for option, n in numbers.items() if option != "-vp"]
    keys += [("model.seq_length", length), (SHORT_FLAGS["-sl"], length), ("train.train_iters", steps)]
    return [["--recipe", recipe, *mock]], keys


def text(value: Any) -> str:
    """Write a value as Hydra and YAML read it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ",".join(text(item) for item in value) + "]"
    return str(value)


def recipe_of(target: Target, notes: list[str]) -> str:
    """Return the model's recipe, or the one whose family comes nearest."""
    model = target.model
    if model.name in RECIPE_OF and (model.name != "gpt3-175b" or target.release >= WITH_DATASETS):
        return RECIPE_OF[model.name]
    family = "deepseek-v3" if model.mla else "qwen3-30b-a3b" if model.moe else "llama3-8b"
    # only these recipes build layers of other kinds of attention (transformer_layer_spec)
    family = "glm-5" if model.indexer else "qwen3-next-80b-a3b" if model.linear else family
    said = f"Megatron-Bridge has no recipe for {model.name}: {RECIPE_OF[family]} with all sizes overridden"
    notes.append(said)
    return RECIPE_OF[family]


def model_overrides(target: Target, notes: list[str]) -> Overrides:
    """The architecture, written out so that the recipe's own sizes do not matter."""
    model = target.model
    overrides: Overrides = [
        ("num_layers", model.layers),
        ("hidden_size", model.hidden),
        ("ffn_hidden_size", dense_width(model) or (model.moe.ffn if model.moe else 0)),
        ("num_attention_heads", model.heads),
        ("num_query_groups", model.kv_heads),
        ("kv_channels", model.head_dim if model.mla is None else model.mla.v_head_dim),
        ("vocab_size", model.vocab),
        ("gated_linear_unit", model.gated),
        ("normalization", "RMSNorm" if model.norm is Norm.RMS else "LayerNorm"),
        *facts(target),
        ("share_embeddings_and_output_weights", model.tied_embeddings),
        ("add_bias_linear", model.attention_bias),
        ("add_qkv_bias", model.qkv_bias and not model.attention_bias),
        # Megatron has the norms of MLA's latents under this switch too.
        ("qk_layernorm", model.qk_norm or model.mla is not None),
        ("softmax_type", sinks(target, notes)),
        ("position_embedding_type", "learned_absolute" if model.learned_positions else "rope"),
        ("mtp_num_layers", model.mtp_layers or None),
        ("seq_length", target.training.sequence_length),
        ("attention_dropout", 0.1 if target.training.dropout else 0.0),
        ("hidden_dropout", 0.1 if target.training.dropout else 0.0),
        ("attention_backend", None if target.training.flash else "unfused"),
        *window_overrides(model),
        *moe_overrides(target),
    ]
    overrides += mla_settings(model) + variant_settings(model, target.release)
    return [(f"model.{key}", value) for key, value in overrides]


def facts(target: Target) -> Overrides:
    """What the model is beside its sizes; what its file leaves open is the recipe's own."""
    model = target.model
    stated = {
        "rotary_base": rotary_base(target),
        "layernorm_epsilon": model.norm_epsilon,
        "moe_router_topk_scaling_factor": router_scaling(target),
        # on in most recipes, and refused beside an indexer
        "bias_dropout_fusion": False if biased_experts(target) else None,
        "apply_rope_fusion": False if model.indexer is not None else None,
    }
    return [(key, value) for key, value in stated.items() if value is not None]


OPEN_KEYS = {
    "rope_base": "model.rotary_base",
    "norm_epsilon": "model.layernorm_epsilon",
    "router_scaling": "model.moe_router_topk_scaling_factor",
}


def window_overrides(model: ModelSpec) -> Overrides:
    """Sliding windows; nulls are written too, for a recipe's own."""
    found = window_marks(model)
    if found is None:
        return [("window_size", None), ("window_attn_skip_freq", None)]
    length, marks = found
    return [
        ("window_size", [length - 1, 0]),  # to the left and right of the query, which is not counted itself
        ("window_attn_skip_freq", None if all(marks) else [int(mark) for mark in marks]),
    ]


def moe_overrides(target: Target) -> Overrides:
    """Experts, router and dispatcher."""
    model, moe = target.model, target.model.moe
    # Written, since the nearest recipe may be one of experts.
    if moe is None:
        return [("num_moe_experts", None)]
    sparse = [int(shape.mlp is Mlp.MOE) for shape in model.shapes]
    groups = expert_groups(target) or (None, None)
    chosen = target.preset.dispatcher
    plain = Dispatcher.ALLTOALL if chosen.deduplicates else chosen
    dispatcher = "flex" if chosen.deduplicates and target.layout.ep > 1 else plain.value
    return [
        ("num_moe_experts", moe.experts),
        ("moe_layer_freq", 1 if all(sparse) else sparse),
        ("moe_ffn_hidden_size", moe.ffn),
        ("moe_router_topk", moe.top_k),
        ("moe_router_num_groups", groups[0]),
        ("moe_router_group_topk", groups[1]),
        ("moe_router_enable_expert_bias", balances(target)),
        *expert_settings(moe),
        ("moe_grouped_gemm", True),
        ("moe_token_dispatcher_type", dispatcher),
        ("moe_flex_dispatcher_backend", chosen.value if dispatcher == "flex" else None),
        ("moe_shared_expert_overlap", target.preset.ep_overlap.value == "shared" and moe.shared_ffn > 0),
    ]


def layout_overrides(target: Target) -> Overrides:
    """Sequence parallelism, stages, mesh order and recomputation; degrees are short flags."""
    layout, chosen, kinds = target.layout, target.layout.recompute, cp_kinds(target)
    even, string = is_even_split(layout, target.model), takes_string(target)
    ends = None if even or string else uneven_ends(layout)
    counted = (counted_ends(layout) if not (even or string or ends) else None) or (False, False)
    overrides: Overrides = [
        ("model.virtual_pipeline_model_parallel_size", layout.vp if layout.vp > 1 else None),
        ("model.sequence_parallel", layout.sp),
        (
            "model.pipeline_model_parallel_layout",
            None if even or not string else f'"{layout_string(layout)}"',
        ),
        ("model.account_for_embedding_in_pipeline_split", counted[0]),
        ("model.account_for_loss_in_pipeline_split", counted[1]),
        ("model.num_layers_in_first_pipeline_stage", ends[0] if ends else None),
        ("model.num_layers_in_last_pipeline_stage", ends[1] if ends else None),
        ("dist.use_tp_pp_dp_mapping", layout.mesh_order == PP_BEFORE_DP),
        ("model.cp_comm_type", (kinds[0] if len(kinds) == 1 else kinds) if layout.cp > 1 else None),
    ]
    if layout.cp > 1 and CpComm.A2A_P2P.value in kinds:
        overrides.append(("model.hierarchical_context_parallel_sizes", cp_sizes(target)))
    full = chosen.granularity is Granularity.FULL
    method, depth = full_recomputation(layout) if full else (None, None)
    # nulls are written too: a recipe may have set any of them
    none = chosen.granularity is Granularity.NONE
    return [
        *overrides,
        ("model.recompute_granularity", None if none else chosen.granularity.value),
        ("model.recompute_modules", list(chosen.modules) or None),
        ("model.recompute_method", method),
        ("model.recompute_num_layers", depth),
    ]


def state_overrides(target: Target) -> Overrides:
    """Optimizer sharding and state dtypes."""
    layout = target.layout
    fsdp = layout.zero >= 2
    replicas = layout.dp * layout.cp // layout.hsdp_shard if layout.hsdp_shard else 1
    # the precision-aware optimizer is a distributed one, on one replica too
    aware = {Saver.BF16_MOMENTS, Saver.OFFLOAD_OPTIMIZER} & set(layout.savers)
    distributed = layout.zero >= 1 or bool(aware)
    overrides: Overrides = [
        ("ddp.use_distributed_optimizer", distributed),
        ("optimizer.use_distributed_optimizer", distributed),
        ("ddp.use_megatron_fsdp", fsdp),
        ("dist.use_megatron_fsdp", fsdp),
        ("ddp.data_parallel_sharding_strategy", STRATEGY.get(layout.zero, "no_shard")),
        ("ddp.num_distributed_optimizer_instances", replicas),
        ("ddp.grad_reduce_in_fp32", target.preset.grad_bytes == 4),
    ]
    if target.training.optimizer.kind is not Optimizer.ADAMW:
        own = megatron_optimizer(target)
        overrides += [(f"optimizer.{name}", value) for name, value in own.items()]
    return overrides + saver_overrides(target)


def saver_overrides(target: Target) -> Overrides:
    """Moments in 16 bits, optimizer and activations in host memory."""
    savers, sharded = target.layout.savers, target.layout.zero >= 1
    # The precision-aware optimizer, which knows such moments, is Adam's alone (megatron/training/arguments.py).
    adam = target.training.optimizer.kind is Optimizer.ADAMW
    short = Saver.BF16_MOMENTS in savers or (target.training.moment_bytes == 2 and sharded and adam)
    offloaded = Saver.OFFLOAD_OPTIMIZER in savers
    overrides: Overrides = []
    if short or offloaded:
        overrides.append(("optimizer.use_precision_aware_optimizer", True))
    if short:
        overrides += [("optimizer.exp_avg_dtype", "bfloat16"), ("optimizer.exp_avg_sq_dtype", "bfloat16")]
    if offloaded:
        overrides += [
            ("optimizer.optimizer_cpu_offload", True),
            ("optimizer.optimizer_offload_fraction", 1.0),
        ]
    if Saver.OFFLOAD_ACTIVATIONS in savers:
        overrides += [
            ("model.fine_grained_activation_offloading", True),
            ("model.offload_modules", offload_modules(target.layout)),
        ]
    return overrides


def overlap_overrides(target: Target) -> Overrides:
    """What the preset assumes to run side by side."""
    preset, layout = target.preset, target.layout
    batch = preset.ep_overlap.value == "batch" and layout.ep > 1 and (layout.pp == 1 or layout.vp > 1)
    tensor = preset.tp_overlap and layout.sp
    return [
        ("ddp.overlap_grad_reduce", preset.dp_overlap),
        ("ddp.overlap_param_gather", preset.param_overlap and preset.dp_overlap and layout.zero >= 1),
        ("comm_overlap.tp_comm_overlap", tensor),
        ("comm_overlap.tp_comm_overlap_cfg", None),
        ("comm_overlap.overlap_p2p_comm", preset.pp_overlap and layout.vp > 1),
        ("comm_overlap.overlap_moe_expert_parallel_comm", batch),
        ("comm_overlap.delay_wgrad_compute", True if preset.delay_wgrad and batch else None),
        *graph_overrides(target),
    ]


def graph_overrides(target: Target) -> Overrides:
    """CUDA graphs, as Megatron-LM's flags have them."""
    kind, release = target.preset.cuda_graph, target.release
    if kind is CudaGraph.NONE:  # said, as nulls are: recipes of large models may have turned graphs on
        return [("model.cuda_graph_impl", "none")]
    scope = "model.cuda_graph_modules" if release >= (0, 18) else "model.cuda_graph_scope"
    if kind is CudaGraph.PARTIAL:
        own: Overrides = [
            ("model.cuda_graph_impl", "transformer_engine"),
            (scope, list(graph_modules(target))),
        ]
    elif release >= (0, 18):
        own = [("model.cuda_graph_impl", "full_iteration")]
    else:
        own = [("model.cuda_graph_impl", "local"), (scope, ["full_iteration"])]
    if kind is CudaGraph.FULL:
        # validate() refuses graphs of the iteration that look for NaN, as most recipes do
        own += [("rerun_state_machine.check_for_nan_in_loss", False), ("ddp.check_for_nan_in_grad", False)]
    return [*own, ("rng.te_rng_tracker", True)]


def precision_overrides(target: Target, notes: list[str]) -> Overrides:
    """The mixed-precision recipe by name."""
    precision = target.layout.precision
    if precision is not Precision.FP8:
        return [("mixed_precision", MIXED_PRECISION[precision])]
    recipe = target.framework.record.fp8_recipes[fp8_recipe(target, notes)]
    return [("mixed_precision", FP8_MIXED[recipe])]


def checkpoint_overrides(target: Target) -> Overrides:
    """The sharded asynchronous checkpoint."""
    ckpt = target.checkpoint
    kind = "fsdp_dtensor" if target.layout.zero >= 2 else "torch_dist"
    overrides: Overrides = [("checkpoint.ckpt_format", kind)]
    if ckpt is not None:
        overrides.append(("checkpoint.save_interval", ckpt.interval_steps))
        overrides.append(("checkpoint.async_save", ckpt.asynchronous))
    return overrides
