"""torchtitan: a TOML file (era A, up to v0.2.2) or a Python function (era C, batches in tokens)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.torchtitan import ERA_B, ERA_C, PLAIN_CONFIGURATIONS
from layoutopt.optimizer.interop.launch.text import WIDTH, header, python_text, toml_text, torchrun_words
from layoutopt.optimizer.interop.records import ExportedJob
from layoutopt.optimizer.interop.stages import stage_counts
from layoutopt.optimizer.interop.torchtitan.read import FLAVORS
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.loading import load_workload
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Granularity, Precision, Saver, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.specs.model import ModelSpec

Settings = dict[str, Any]

SCHEDULE_NAMES = {
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.GPIPE: "GPipe",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.ZB_V: "ZBVZeroBubble",
    Schedule.DUALPIPE_V: "DualPipeV",
}
# Stated: "default" means always without a pipeline and never with one (torchtitan/distributed/fsdp.py).
RESHARD = {2: "never", 3: "always"}


def export(target: Target) -> ExportedJob:
    """Write ``torchtitan.toml`` or ``layoutopt_config.py``, by the era asked for. Raises ``InputError`` for era B."""
    notes: list[str] = []
    family, flavor, known = flavor_of(target.model, notes)
    if target.release < ERA_B:
        return _toml(target, family, flavor, notes)
    if target.release < ERA_C:
        raise input_error(
            "era B (2026-02 to 2026-08) is not written: its batch keys were replaced within six months",
            "era A (TOML) or era C (Python)",
            key="--version",
        )
    return _python(target, family, flavor, known, notes)


def flavor_of(model: ModelSpec, notes: list[str]) -> tuple[str, str, bool]:
    """Return torchtitan's model, flavor, and whether that flavor exists with the model's sizes."""
    for (family, flavor), (name, layers) in FLAVORS.items():
        if layers == model.layers and (name == model.name or _same_sizes(model, name)):
            notes += _other_facts(model, name, flavor)
            return family, flavor if family == "gpt_oss" else flavor.upper(), True
    family = _family_of(model)
    sizes = _sizes(model)
    notes.append(f"torchtitan has no flavor {model.name}: add one to torchtitan/models/{family} with {sizes}")
    return family, model.name, False


def _same_sizes(model: ModelSpec, name: str) -> bool:
    """Tell whether a model is a built-in one under another name."""
    known = load_workload(name).model
    return replace(model, name=known.name, published_parameters=known.published_parameters) == known


def _other_facts(model: ModelSpec, name: str, flavor: str) -> list[str]:
    """Say where a flavor, whose facts no setting changes, is not the model that its file states."""
    known = load_workload(name).model
    facts = {
        "rope base": (model.rope_base, known.rope_base),
        "norm epsilon": (model.norm_epsilon, known.norm_epsilon),
    }
    return [
        f"{what} {own:g} is left out: torchtitan's flavor {flavor} has {theirs:g}, which its configuration does not change"
        for what, (own, theirs) in facts.items()
        if own is not None and theirs is not None and own != theirs
    ]


def _sizes(model: ModelSpec) -> str:
    """Return a model's sizes in torchtitan's words (the arguments of its layer builders)."""
    sizes: dict[str, Any] = {
        "dim": model.hidden, "n_layers": model.layers, "n_heads": model.heads, "n_kv_heads": model.kv_heads,
        "head_dim": model.head_dim, "vocab_size": model.vocab, "enable_weight_tying": model.tied_embeddings,
        "hidden_dim": max((shape.ffn or 0 for run in model.runs for shape in run.block), default=0) or None,
    }  # fmt: skip
    sizes |= {"rope theta": model.rope_base, "norm eps": model.norm_epsilon}
    if model.moe is not None:
        sizes |= {"route_scale": model.moe.router_scaling, "num_expert_groups": model.moe.router_groups}
        sizes |= {"num_limited_groups": model.moe.router_group_limit}
        sizes |= {"num_experts": model.moe.experts, "top_k": model.moe.top_k, "moe hidden_dim": model.moe.ffn}
    return ", ".join(f"{key} {_number(value)}" for key, value in sizes.items() if value is not None)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _family_of(model: ModelSpec) -> str:
    """The family whose classes build a model: experts without MLA or sinks are qwen3's, whose head norms are optional."""
    if model.mla:
        return "deepseek_v3"
    if model.attention_sinks:
        return "gpt_oss"
    return "qwen3" if model.qk_norm or model.is_moe else "llama3"


def base_of(model: ModelSpec, family: str, flavor: str, known: bool) -> str:
    """The configuration to start from: the model's own where it is a plain one, else one of its family."""
    own = f"{family}_{flavor.lower().replace('-', '_')}"
    if known and own in PLAIN_CONFIGURATIONS:
        return own
    if family == "qwen3":
        return "qwen3_30b_a3b" if model.is_moe else "qwen3_32b"
    return next(name for name in PLAIN_CONFIGURATIONS if name.startswith(family))


def parallelism(target: Target, era_a: bool) -> Settings:
    """Section ``parallelism``: every degree, and the stages as lists of modules."""
    layout = target.layout
    shard, replicate = degrees(target)
    settings: Settings = {"data_parallel_replicate_degree": replicate, "data_parallel_shard_degree": shard}
    if layout.zero:
        settings["fsdp_reshard_after_forward"] = RESHARD[layout.zero]
    settings |= {"tensor_parallel_degree": layout.tp, "context_parallel_degree": layout.cp}
    if not era_a:
        settings["enable_sequence_parallel"] = layout.sp
    settings |= {"pipeline_parallel_degree": layout.pp, "expert_parallel_degree": layout.ep}
    if era_a:
        settings["expert_tensor_parallel_degree"] = layout.etp
        settings["enable_async_tensor_parallel"] = target.preset.tp_overlap and layout.tp > 1
    if layout.pp > 1:
        settings["pipeline_parallel_schedule"] = SCHEDULE_NAMES[layout.schedule]
        # A list of modules holds whatever the automatic split would make of the layers, which is not what was priced.
        settings["module_fqns_per_model_part"] = module_lists(target, "output" if era_a else "lm_head")
        if era_a:
            settings["pipeline_parallel_microbatch_size"] = layout.micro_batch
        else:
            settings["num_pp_microbatches"] = layout.micro_batches
    return settings


def offloading(target: Target) -> Settings:
    """FSDP's shards with the optimizer in host memory."""
    return {"enable_cpu_offload": True} if Saver.OFFLOAD_OPTIMIZER in target.layout.savers else {}


def degrees(target: Target) -> tuple[int, int]:
    """Return shard and replicate degree: ZeRO-0 only replicates, groups divide dp, else everything shards."""
    layout = target.layout
    # a shard degree of 1 with replicas is DDP
    if layout.zero == 0:
        return 1, layout.dp
    # FSDP's mesh is the shard degree times cp (torchtitan/distributed/parallel_dims.py): groups here count both.
    shard = layout.hsdp_shard // layout.cp if layout.hsdp_shard else layout.dp
    return shard, layout.dp // shard


def module_lists(target: Target, head: str) -> list[list[str]]:
    """Modules of each stage in stage order."""
    parts: list[list[str]] = []
    first = 0
    for count in stage_counts(target.layout):
        parts.append([f"layers.{index}" for index in range(first, first + count)])
        first += count
    # Modules that stand in no part would be in no stage: the names are those of the model's attributes.
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def _toml(target: Target, family: str, flavor: str, notes: list[str]) -> ExportedJob:
    layout, ckpt = target.layout, target.checkpoint
    # A pipeline cuts the local batch into micro-batches; without one a local batch is one, and gradients are accumulated.
    piped = layout.micro_batches if layout.pp > 1 else 1
    sections: dict[str, Settings] = {
        "job": {"description": f"{target.model.name}, written by layoutopt"},
        "model": {"name": family, "flavor": flavor, **_toml_converters(target)},
        "training": {
            "local_batch_size": layout.micro_batch * piped,
            "global_batch_size": target.global_batch,
            "seq_len": target.training.sequence_length,
            "steps": target.steps or 1000,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
            **offloading(target),
        },
        "parallelism": parallelism(target, era_a=True),
        "compile": {"enable": target.preset.compiled, "components": ["model", "loss"]},
        "activation_checkpoint": _toml_checkpointing(target),
    }
    if ckpt is not None:
        mode = "async" if ckpt.asynchronous else "disabled"
        sections["checkpoint"] = {"enable": True, "interval": ckpt.interval_steps, "async_mode": mode}
    if layout.precision is Precision.FP8:
        recipe = target.training.fp8_recipe
        sections["quantize.linear.float8"] = {"recipe_name": _recipe_name(recipe or Fp8Recipe.CURRENT)}
    text = header(target, f"torchtitan {target.version} (TOML, up to v0.2.2)")
    text += "".join(_toml_section(name, settings) for name, settings in sections.items())
    config = "CONFIG_FILE=./torchtitan.toml"
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"torchtitan.toml": text},
        command=f"{' '.join(torchrun_words(target))} -m torchtitan.train --job.config_file ./torchtitan.toml",
        memory_check=_memory_check(target, config),
        layout=layout,
        notes=tuple(notes),
    )


def _memory_check(target: Target, config: str) -> str:
    # torchtitan docs/debugging.md, communication modes: one process with a fake process group, one step
    return f"NGPU={target.layout.gpus} COMM_MODE=fake_backend {config} ./run_train.sh  # rank 0's memory only"


def _toml_converters(target: Target) -> Settings:
    names = {Precision.FP8: ["quantize.linear.float8"], Precision.MXFP8: ["quantize.linear.mx"]}
    return {"converters": names.get(target.layout.precision, [])}


def _toml_checkpointing(target: Target) -> Settings:
    granularity = target.layout.recompute.granularity
    if granularity is Granularity.SELECTIVE:
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": "full" if granularity is Granularity.FULL else "none"}


def _toml_section(name: str, settings: Settings) -> str:
    lines = [f"{key} = {_toml_value(value)}" for key, value in settings.items()]
    return f"\n[{name}]\n" + "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(f"  {_toml_value(item)},\n" for item in value) + "]"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return toml_text(value) if isinstance(value, str) else str(value)


def _python(target: Target, family: str, flavor: str, known: bool, notes: list[str]) -> ExportedJob:
    layout = target.layout
    base = base_of(target.model, family, flavor, known)
    lines = [
        header(target, "torchtitan era C (2026-08-20 and later)").rstrip(),
        f"from torchtitan.components.loss import {', '.join(_loss_classes(target))}",
        f"from torchtitan.components.quantization import {_converter(target).split('.')[0]}",
        "from torchtitan.config import ParallelismConfig",
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
        f"from torchtitan.models.{family} import model_registry",
        f"from torchtitan.models.{family}.config_registry import {base}",
        "",
        "",
        "def layoutopt_config():",
        f"    cfg = {base}()",
        f"    cfg.model_spec = model_registry({_registry_arguments(target, family, flavor)})",
        "    cfg.parallelism = ParallelismConfig(",
        *[
            f"        {key}={_python_value(value)},"
            for key, value in parallelism(target, era_a=False).items()
        ],
        "    )",
        *[f"    {line}" for line in _python_settings(target)],
        "    return cfg",
    ]
    # What a file imports and does not use reads as if something had been left out.
    lines = [line for line in lines if not _unused_import(line, target)]
    name, launch = "layoutopt_config", " ".join(torchrun_words(target))
    module = f"MODULE={name} CONFIG={name}"
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"layoutopt_config.py": "\n".join(lines) + "\n"},
        command=f"PYTHONPATH=. {launch} -m torchtitan.train --module {name} --config {name}",
        memory_check=_memory_check(target, module),
        layout=layout,
        notes=tuple(notes),
    )


def _unused_import(line: str, target: Target) -> bool:
    sixteen = target.layout.precision is Precision.BF16
    if line.startswith("from torchtitan.components.loss"):
        return not _loss_classes(target)
    return line.startswith("from torchtitan.components.quantization") and sixteen


def _registry_arguments(target: Target, family: str, flavor: str) -> str:
    layout = target.layout
    arguments = [python_text(flavor), 'attn_backend="flex"']
    if target.model.is_moe and family == "deepseek_v3":
        backend = "deepep" if target.preset.dispatcher.deduplicates and layout.ep > 1 else "standard"
        arguments += [f"moe_comm_backend={python_text(backend)}", f"num_mtp_layers={target.model.mtp_layers}"]
    converter = _converter(target)
    return ", ".join([*arguments, *([f"converters=[{converter}]"] if converter else [])])


def _recipe_name(recipe: Fp8Recipe) -> str:
    """The trainer's word for a recipe, that for scales of the moment where it has none."""
    words = Framework.TORCHTITAN.record.fp8_recipes
    return words.get(recipe, words[Fp8Recipe.CURRENT])


def _converter(target: Target) -> str:
    precision, recipe = target.layout.precision, target.training.fp8_recipe
    if precision is Precision.FP8:
        return f"Float8LinearConverter.Config(recipe_name={python_text(_recipe_name(recipe or Fp8Recipe.ROWWISE))})"
    narrow = {Precision.MXFP8: "MXFP8LinearConverter", Precision.NVFP4: "NVFP4LinearConverter"}
    return f"{narrow[precision]}.Config()" if precision in narrow else ""


def _loss_classes(target: Target) -> tuple[str, ...]:
    """Classes of the loss; one with prediction layers stays the base's."""
    if target.model.mtp_layers:
        return ()
    return (*(("ChunkedLossWrapper",) if target.preset.loss_chunks > 1 else ()), "CrossEntropyLoss")


def _loss(target: Target) -> list[str]:
    """Say in how many parts logits are made: base configurations make them in 8."""
    if target.model.mtp_layers:
        return []
    chunks = target.preset.loss_chunks
    whole = f"CrossEntropyLoss.Config(global_vocab_size={target.model.vocab})"
    parts = f"ChunkedLossWrapper.Config(num_chunks={chunks}, loss_fn={whole})"
    return [f"cfg.loss = {parts if chunks > 1 else whole}"]


def _python_settings(target: Target) -> list[str]:
    """Training, recomputation, compilation and checkpoints."""
    layout, training = target.layout, target.training
    policy = {
        Granularity.NONE: "None",
        Granularity.FULL: "FullAC.Config()",
        Granularity.SELECTIVE: "SelectiveAC.Config()",
    }
    length = training.sequence_length
    experts = layout.ep > 1
    # Asynchronous tensor parallelism without a compiled model is refused (torchtitan/config/configs.py).
    asynchronous = target.preset.compiled and target.preset.tp_overlap and layout.tp > 1
    lines = [
        f"cfg.training.num_tokens_per_microbatch_per_dp_rank = {layout.micro_batch} * {length}",
        f"cfg.training.num_tokens_per_train_step = {target.global_batch} * {length}",
        f"cfg.training.max_context_length = {length}",
        f"cfg.training.steps = {target.steps or 1000}",
        # configs.py: graphs of the whole step know no pipelines, and no experts whose dispatch asks the host
        f"cfg.training.disable_cuda_graphs = {layout.pp > 1 or experts}",
        *[f"cfg.training.{key} = {value}" for key, value in offloading(target).items()],
        f"cfg.compile.enable = {target.preset.compiled}",
        f"cfg.compile.enable_async_tensor_parallel = {asynchronous}",
        f"cfg.activation_checkpoint = {policy[layout.recompute.granularity]}",
        *_loss(target),
    ]
    if target.checkpoint is not None:
        mode = "async" if target.checkpoint.asynchronous else "disabled"
        lines += [
            "cfg.checkpoint.enable = True",
            f"cfg.checkpoint.interval = {target.checkpoint.interval_steps}",
            f"cfg.checkpoint.async_mode = {python_text(mode)}",
        ]
    return lines


def _python_value(value: Any) -> str:
    if isinstance(value, str):
        return python_text(value)
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(_python_row(row) for row in value) + "        ]"
    return str(value)


def _python_row(row: list[str]) -> str:
    """One stage, wrapped to the line width."""
    lines = ["            ["]
    for name in row:
        piece = f"{python_text(name)}, "
        if len(lines[-1]) + len(piece) > WIDTH:
            lines[-1] = lines[-1].rstrip()
            lines.append("             ")
        lines[-1] += piece
    return "\n".join(lines).rstrip(" ,") + "],\n"
