"""nanotron YAML configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.config_command import after, is_script, read_config_launch
from layoutopt.optimizer.interop.reading import MAX_LAYERS, Fields, importer, parse_yaml, shorten
from layoutopt.optimizer.interop.records import ImportedJob, JobOptions, JobTraining
from layoutopt.optimizer.interop.stages import stage_items
from layoutopt.optimizer.space.stage_splits import nanotron_counts
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.layer_runs import runs_of
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.model import LayerShape, ModelSpec, Norm
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, CpComm, Granularity, Precision, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.shell.record import Outside

CONFIG_FILE = "--config-file"
ENGINES = {"1f1b": Schedule.ONE_F_ONE_B, "afab": Schedule.GPIPE}
DTYPES = {"bfloat16": Precision.BF16, "float16": Precision.FP16}


@importer
def import_nanotron(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a nanotron configuration, or a script that starts one: model, layout and batch are all in it.

    Raises ``InputError`` without these sections, for unknown dtypes, and where a script names a file that is not there.
    """
    if not is_script(text, file):
        return _job(text, file)

    def named(command: LaunchCommand) -> tuple[str, Sequence[str]] | None:
        """Return the configuration that a command names."""
        return after(command.words, CONFIG_FILE, "--config_file")

    signs = ("run_train.py", CONFIG_FILE)
    return read_config_launch(
        text, signs, named, lambda launch: _job(launch.text, launch.name), file, outside
    )


def _job(text: str, file: str) -> ImportedJob:
    root = Fields(parse_yaml(text, file), file=file)
    if "parallelism" not in root or "tokens" not in root:
        raise input_error("no nanotron settings", "sections parallelism, tokens and model", file=file)
    notes: list[str] = []
    tokens, parallelism, optimizer = map(root.section, ("tokens", "parallelism", "optimizer"))
    model = _model(root.section("model"), notes)
    layout = _layout(parallelism, optimizer, tokens, model, notes)
    dp, pp, tp, cp = (layout.dp or 1), (layout.pp or 1), (layout.tp or 1), (layout.cp or 1)
    batch = dp * (layout.micro_batch or 1) * (layout.micro_batches or 1)
    kind = root.section("model").text("dtype")
    if kind is not None and kind not in DTYPES:
        raise root.section("model").fail("dtype", f"{shorten(kind)!r} is not modelled", "bfloat16 or float16")
    job = ImportedJob(
        framework=Framework.NANOTRON,
        layout=layout,
        training=JobTraining(
            sequence_length=tokens.required("sequence_length"),
            global_batch=batch,
            train_steps=tokens.integer("train_steps", least=1),
            precision=DTYPES[kind] if kind else Precision.BF16,
            grad_bytes=4 if optimizer.on("accumulate_grad_in_fp32") else 2,  # of bf16 weights bf16 gradients
            pad_vocab=(root.section("model").integer("make_vocab_size_divisible_by") or 1) > 1,
        ),
        options=JobOptions(
            tp_overlap=parallelism.on("tp_linear_async_communication"),
            cp_comm=CpComm.P2P if cp > 1 else None,
            checkpoint_interval=root.section("checkpoints").integer("checkpoint_interval", least=1),
            checkpoint_async=False,
        ),
        model=model,
        gpus=dp * pp * tp * cp,
        notes=tuple(notes),
        missing=() if model else ("the model (no model.model_config)",),
    )
    root.name_unread(notes)
    return replace(job, notes=tuple(notes))


def _model(section: Fields, notes: list[str]) -> ModelSpec | None:
    config = section.section("model_config")
    if not config.data:
        return None
    if config.data.get("moe_config"):
        what = "mixture-of-experts models of nanotron are not supported"
        raise config.fail("moe_config", what, "a dense model")
    kinds = {"is_llama_config": "llama", "is_qwen2_config": "qwen2", "is_starcoder2_config": "starcoder2"}
    kind = next((name for key, name in kinds.items() if config.on(key)), None)
    if kind is None:
        raise config.fail("is_llama_config", "model class is not known", "one of " + ", ".join(kinds))
    hidden, heads = config.required("hidden_size"), config.required("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", least=1) or heads
    if hidden % heads or heads % kv_heads:
        what = f"hidden {hidden}, heads {heads}, kv heads {kv_heads} do not divide"
        raise config.fail("num_attention_heads", what)
    layers = config.required("num_hidden_layers", most=MAX_LAYERS)
    divisor = section.integer("make_vocab_size_divisible_by", least=1) or 1
    if divisor > 1:
        notes.append(f"the vocabulary is padded to a multiple of {divisor} * tp; priced as one of 128 * tp")
    starcoder = kind == "starcoder2"
    biased = config.on("use_bias", "attention_bias") or starcoder
    return ModelSpec(
        name=f"nanotron-{kind}",
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab=config.required("vocab_size"),
        runs=runs_of([LayerShape(ffn=config.required("intermediate_size"))] * layers),
        gated=not starcoder,
        tied_embeddings=config.on("tie_word_embeddings"),
        norm=Norm.LAYER if starcoder else Norm.RMS,
        attention_bias=biased and kind != "qwen2",
        qkv_bias=biased or kind == "qwen2",
        mlp_bias=starcoder,
        rope_base=config.fact("rope_theta"),
        norm_epsilon=config.fact("rms_norm_eps", "norm_epsilon"),
    )


def _layout(
    parallelism: Fields, optimizer: Fields, tokens: Fields, model: ModelSpec | None, notes: list[str]
) -> PartialLayout:
    tp, cp, pp = (parallelism.count(key) for key in ("tp", "context_parallel_size", "pp"))
    if parallelism.count("expert_parallel_size") > 1:
        what = "expert parallelism above 1 is broken in nanotron"
        raise parallelism.fail("expert_parallel_size", what, "1")
    engine = parallelism.choice("pp_engine", tuple(ENGINES)) or "afab"
    if pp > 1 and "pp_engine" not in parallelism:
        notes.append("pp_engine afab (all forward, all backward): nanotron's default")
    # unset it is ALL_REDUCE, without sequence parallelism (nanotron/config/parallelism_config.py)
    mode = parallelism.choice("tp_mode", ("REDUCE_SCATTER", "ALL_REDUCE")) or "ALL_REDUCE"
    recompute = Recompute(granularity=Granularity.FULL) if parallelism.on("recompute_layer") else Recompute()
    schedule = ENGINES[engine] if pp > 1 else Schedule.NONE
    counts = nanotron_counts(model, pp) if model and pp <= model.layers else []
    return PartialLayout(
        tp=tp,
        sp=mode == "REDUCE_SCATTER" and tp > 1,
        cp=cp,
        pp=pp,
        vp=1,
        ep=1,
        etp=1,
        dp=parallelism.count("dp"),
        # Any stage shards the optimizer alone (ZeroDistributedOptimizer of nanotron/optim/zero.py).
        zero=1 if (optimizer.integer("zero_stage") or 0) > 0 else 0,
        micro_batch=tokens.count("micro_batch_size"),
        micro_batches=tokens.count("batch_accumulation_per_replica"),
        recompute=recompute,
        schedule=schedule,
        mesh_order=DEFAULT_MESH_ORDER,
        # Its split weighs layers against the head and is seldom the most even one: ``nanotron_counts``.
        split=stage_items(counts, pp),
    )
