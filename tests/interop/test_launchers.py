"""Launchers of other trainers: what their files mean in the words of the trainer that they drive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.interop.huggingface.names import BUILT_IN, built_in_model, hub_model
from layoutopt.optimizer.interop.shell.record import Outside
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import model_names

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

VERL = "python3 -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=8 "
A = "actor_rollout_ref.actor."


def read(text: str, kind: str, file: str = "x", **options: Any) -> ImportedJob:
    """Import a text that gives itself away as ``kind``."""
    found = import_text(text, file, **options)
    assert found.kind == kind
    job: ImportedJob = found.value
    return job


def degrees(job: ImportedJob, *names: str) -> tuple[Any, ...]:
    """Return some axes of a job's layout."""
    return tuple(getattr(job.layout, name) for name in names)


def test_every_name_of_a_hub_is_a_built_in_model() -> None:
    """The table names models that there are, and neighbours of another shape are none of them."""
    assert {model for _, model in BUILT_IN} <= set(model_names())
    assert built_in_model("Qwen/Qwen3-30B-A3B-Instruct-2507") == "qwen3-30b-a3b"
    assert built_in_model("/models/Meta-Llama-3.1-8B-Instruct/") == "llama3-8b"
    for other in (
        "Qwen/Qwen3-8B",
        "deepseek-ai/DeepSeek-V2-Lite",
        "deepseek-ai/DeepSeek-V3.2-Exp",
        "Llama-3.2-1B",
    ):
        assert built_in_model(other) is None, other


@pytest.mark.parametrize(
    ("name", "billions", "left_out"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7.616, ()),
        ("/models/Qwen2.5-0.5B", 0.494, ()),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.022, ()),
        ("Qwen/Qwen3-14B-FP8", 14.768, ()),
        ("meta-llama/Llama-3.2-1B-Instruct", 1.236, ()),
        ("openai-community/gpt2-xl", 1.558, ()),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 7.616, ("vision",)),
        ("Qwen/Qwen3.5-35B-A3B", 34.661, ("vision",)),
    ],
)
def test_models_that_launch_files_name_most_have_their_published_sizes(
    name: str, billions: float, left_out: tuple[str, ...]
) -> None:
    """Totals of the model cards; a name with further words is another model and stays open."""
    model = hub_model(name)
    assert model is not None and model.left_out == left_out
    assert round(model_parameters(model) / 1e9, 3) == billions
    assert hub_model(f"{name}-reranker-v") is None


@pytest.mark.parametrize(
    ("words", "vocab"),
    [
        ("--vocab-file /d/gpt2-vocab.json --merge-file /d/gpt2-merges.txt", 50257),
        ("--vocab-file $DATA/gpt2-vocab.json --merge-file $DATA/gpt2-merges.txt", 50257),
        ("--tokenizer-type Llama3Tokenizer --tokenizer-model /m/tokenizer.model", 128256),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B", 128256),
        ("--tokenizer-type PretrainedFromHF --tokenizer-name-or-path mistralai/Mixtral-8x7B-v0.1", 32000),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B", None),
        ("--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model /m/llama-3.model", None),
        ("--vocab-file /d/own-vocab.json --merge-file /d/own-merges.txt", None),
    ],
)
def test_a_tokenizer_that_is_known_by_name_says_its_words(words: str, vocab: int | None) -> None:
    """Any other leaves the vocabulary open."""
    base = (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --bf16 --micro-batch-size 1"
    )
    job = import_text(
        f"torchrun --nproc-per-node 8 pretrain_gpt.py {base} {words}", "a.sh", "megatron-args"
    ).value
    assert (job.model.vocab if job.model else None) == vocab
    assert any("--vocab-size" in text for text in job.missing) == (vocab is None)


def test_verl_megatron_with_overrides() -> None:
    """The actor's layout, not the inference engine's; the step is a mini-batch times samples."""
    job = read(
        VERL
        + f"{A}strategy=megatron {A}megatron.tensor_model_parallel_size=2 {A}megatron.context_parallel_size=2 "
        + "actor_rollout_ref.rollout.tensor_model_parallel_size=8 actor_rollout_ref.rollout.n=8 "
        + f"{A}ppo_mini_batch_size=64 {A}ppo_micro_batch_size_per_gpu=2 data.max_prompt_length=1024 "
        + f"data.max_response_length=3072 +{A}megatron.override_transformer_config.recompute_granularity=full "
        + f"+{A}megatron.override_transformer_config.recompute_method=uniform "
        + "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        "verl",
    )
    assert degrees(job, "tp", "cp", "pp", "dp", "micro_batch", "micro_batches") == (2, 2, 1, 4, 2, 64)
    assert (job.training.global_batch, job.training.sequence_length) == (512, 4096)
    assert job.layout.recompute is not None
    assert job.layout.recompute.granularity == "full"
    assert job.model is not None and job.model.name == "qwen3-8b"
    assert "the model is qwen3-8b with its published sizes" in job.notes


def test_verl_stages_follow_from_the_named_model() -> None:
    """Megatron's own keys for the first and the last stage, over the layers of a built-in model."""
    override = f"+{A}megatron.override_transformer_config."
    text = VERL + f"{A}strategy=megatron {A}megatron.pipeline_model_parallel_size=4 "
    text += "actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B "
    last = f"{override}num_layers_in_last_pipeline_stage=5 "
    both = last + f"{override}num_layers_in_first_pipeline_stage=7 "
    for stated, wanted in (("", [8, 8, 8, 8]), (last, [9, 9, 9, 5]), (both, [7, 10, 10, 5])):
        job = read(text + stated, "verl")
        assert [stage.layers for stage in job.layout.split or ()] == wanted
        assert not any(note.startswith("not read") for note in job.notes)


def test_verl_fsdp_with_dynamic_batches() -> None:
    """Ulysses counts as context parallelism, groups of 8 as HSDP; a micro-batch of tokens is left open."""
    job = read(
        VERL
        + f"{A}strategy=fsdp2 {A}ulysses_sequence_parallel_size=2 {A}fsdp_config.fsdp_size=4 {A}use_dynamic_bsz=True "
        + f"{A}fsdp_config.param_offload=True actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B",
        "verl",
    )
    assert (job.framework, job.model_name) == ("accelerate", "llama3-8b")
    assert degrees(job, "cp", "zero", "dp", "hsdp_shard", "micro_batch") == (2, 3, 8, 4, None)
    said = " ".join((*job.notes, *job.missing))
    assert "up to 16384 tokens" in said
    assert "param_offload" in said


@pytest.mark.parametrize(
    ("size", "zero", "shard"), [(8, 3, 8), (4, 3, 4), (1, 0, None), (16, 3, None), (-1, 3, None)]
)
def test_verl_fsdp_size_counts_ranks_of_the_world(size: int, zero: int, shard: int | None) -> None:
    """The mesh is cut from all ranks, those of Ulysses among them (fsdp_workers.py create_device_mesh)."""
    job = read(
        VERL + f"{A}strategy=fsdp2 {A}ulysses_sequence_parallel_size=2 {A}fsdp_config.fsdp_size={size} ",
        "verl",
    )  # fmt: skip
    assert degrees(job, "cp", "dp", "zero", "hsdp_shard") == (2, 8, zero, shard)


def test_verl_values_from_outside_are_asked_for() -> None:
    """A hydra value that the script does not set is open and named with the way to give it."""
    text = VERL + f"{A}strategy=megatron {A}megatron.tensor_model_parallel_size=$TP data.train_batch_size=64"
    job = read(text, "verl")
    assert (job.layout.tp, job.layout.dp) == (None, None)
    assert any("comes from $TP" in said and "--set TP=" in said for said in job.missing)
    assert read(text, "verl", outside=Outside(variables={"TP": "4"})).layout.tp == 4


SLIME = """
MODEL_ARGS=(--num-layers 48 --hidden-size 2048 --num-attention-heads 32 --vocab-size 151936)
PERF_ARGS=(--tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 8
  --expert-tensor-parallel-size 1 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 {batch})
ray job submit --address=http://127.0.0.1:8265 -- python3 train.py --actor-num-nodes 2 --colocate \\
  --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 2 --rollout-num-gpus-per-engine 8 \\
  --rollout-max-response-len 8192 --hf-checkpoint /root/Qwen3-30B-A3B ${{MODEL_ARGS[@]}} ${{PERF_ARGS[@]}}
"""


def test_slime_batch_follows_from_the_rollout() -> None:
    """Nodes of 8 unless told otherwise, samples over steps, ZeRO-1 that slime sets itself."""
    job = read(SLIME.format(batch="--micro-batch-size 2"), "slime")
    assert degrees(job, "tp", "ep", "etp", "dp", "zero", "micro_batch") == (4, 8, 1, 4, 1, 2)
    assert (job.gpus, job.training.global_batch, job.training.sequence_length) == (16, 128, 8192)


def test_slime_dynamic_batches_and_contradictions() -> None:
    """A batch of tokens leaves the micro-batch open; a batch that is not the rollout's is refused."""
    job = read(SLIME.format(batch="--use-dynamic-batch-size --max-tokens-per-gpu 20480"), "slime")
    assert job.layout.micro_batch is None
    assert any("20480 tokens" in text for text in job.notes)
    with pytest.raises(InputError, match="--global-batch-size: 256 is not the 128 samples"):
        import_text(SLIME.format(batch="--global-batch-size 256"), "x.sh")


SWIFT = """PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\
NPROC_PER_NODE=8 \\
megatron sft --model Qwen/Qwen3-30B-A3B --tensor_model_parallel_size 2 --expert_model_parallel_size 4 \\
  --sequence_parallel true --micro_batch_size 2 --global_batch_size 32 --max_length 8192 {more}
"""


def test_swift_defaults_differ_from_megatrons() -> None:
    """ZeRO-1 on, experts unsharded, attention recomputed: what Megatron-LM itself would not do."""
    job = read(SWIFT.format(more=""), "ms-swift")
    assert degrees(job, "tp", "sp", "ep", "etp", "zero", "dp") == (2, True, 4, 1, 1, 4)
    assert job.layout.recompute is not None
    assert job.layout.recompute.modules == ("core_attn",)
    assert (job.gpus, job.training.global_batch, job.training.sequence_length) == (8, 32, 8192)
    assert "assumed: one node, NNODES is not set" in job.notes


TRAINER = """CUDA_VISIBLE_DEVICES=0,1,2,3 \\
NPROC_PER_NODE=4 \\
swift sft --model meta-llama/Meta-Llama-3-8B --train_type full --torch_dtype bfloat16 --per_device_train_batch_size 2 \\
  --gradient_accumulation_steps $(expr 32 / 4) --max_length 4096 {more}
"""


def test_swift_of_the_trainer() -> None:
    """Flags of the Hugging Face trainer; the stage is DeepSpeed's word, its absence is said."""
    job = read(TRAINER.format(more="--deepspeed zero3_offload"), "ms-swift")
    assert (job.framework, job.model_name, job.gpus) == ("deepspeed", "llama3-8b", 4)
    assert degrees(job, "zero", "micro_batch", "dp") == (3, 2, 4)
    assert (job.training.global_batch, job.options.optimizer_offload) == (64, 1.0)
    plain = read(TRAINER.format(more=""), "ms-swift")
    assert (plain.framework, plain.layout.zero) == ("accelerate", 0)
    assert any("no sharding" in note for note in plain.notes)


def test_swift_stage_from_outside_is_open() -> None:
    """The variable is named, and no stage is made up."""
    job = read(TRAINER.format(more="--deepspeed $STAGE --max_length $LENGTH"), "ms-swift")
    assert (job.layout.zero, job.training.sequence_length) == (None, None)
    assert any("--set STAGE=" in text for text in job.missing)


def test_swift_says_false_and_none() -> None:
    """Words that switch off do so."""
    more = "--use_distributed_optimizer false --recompute_granularity none --train_type lora --moe_router_parallel_x 1"
    job = read(SWIFT.format(more=more), "ms-swift")
    assert job.layout.zero == 0
    assert job.layout.recompute is not None
    assert job.layout.recompute.granularity == "none"
    said = " ".join(job.notes)
    assert "assumed: lora_rank 8" in said
    assert "not read, though it may change the layout: moe_router_parallel_x" in said


def test_axolotl_deepspeed() -> None:
    """The stage is in the file's name; without a number of shards the GPUs are open, and so is the batch."""
    text = "base_model: Qwen/Qwen3-32B\nsequence_len: 4096\nmicro_batch_size: 2\nbf16: auto\nadapter: lora\n"
    job = read(text + "deepspeed: deepspeed_configs/zero2.json\n", "axolotl")
    assert (job.framework, job.model_name, job.gpus) == ("deepspeed", "qwen3-32b", None)
    assert degrees(job, "zero", "micro_batch") == (2, 2)
    assert {"number of GPUs", "global batch"} <= set(job.missing)
    assert any("lora_r 8" in text for text in job.notes)


def test_axolotl_hybrid_and_offload() -> None:
    """Replicas of shards are HSDP; parameters in host memory are named, not dropped."""
    text = "base_model: x/y\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\ndp_shard_size: 8\n"
    text += "dp_replicate_size: 4\nfsdp_version: 2\nfsdp_config:\n  offload_params: true\n"
    job = read(text, "axolotl")
    assert degrees(job, "dp", "zero", "hsdp_shard") == (32, 3, 8)
    assert job.gpus == 32
    assert any("offload_params" in text for text in job.notes)


def test_llama_factory_deepspeed() -> None:
    """Gradient checkpointing is on unless disabled; a file's name states stage and offload."""
    text = "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\n"
    text += "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true\n"
    text += "deepspeed: examples/deepspeed/ds_z3_offload_config.json\n"
    job = read(text, "llama-factory")
    assert (job.framework, job.model_name) == ("deepspeed", "llama3-8b")
    assert degrees(job, "zero", "micro_batch") == (3, 1)
    assert job.options.optimizer_offload == 1.0
    assert job.layout.recompute is not None
    assert job.layout.recompute.granularity == "full"
    assert any("parameters in host memory" in text for text in job.notes)


@pytest.mark.parametrize(
    ("trainer", "name", "first"),
    [
        ("llama-factory", "x.yaml", "model_name_or_path: x/y\nfinetuning_type: full\ncutoff_len: 2048\n"),
        ("axolotl", "x.yml", "base_model: x/y\nsequence_len: 2048\nmicro_batch_size: 1\nadapter: lora\n"),
        ("ms-swift", "x.sh", ""),
        ("hf-trainer", "x.sh", ""),
    ],
)
def test_a_named_deepspeed_file_states_the_stage_before_its_name(trainer: str, name: str, first: str) -> None:
    """Whoever names a file: its own stage and precision hold, and without it the stage of its name is assumed."""
    text = f"{first}per_device_train_batch_size: 1\ndeepspeed: conf/ds_zero3_offload.json\n"
    if trainer == "axolotl":
        text = text.replace("per_device_train_batch_size: 1\n", "")
    if not first:
        flags = "--model x/y --per_device_train_batch_size 1 --deepspeed conf/ds_zero3_offload.json"
        text = f"NPROC_PER_NODE=8 swift sft --tuner_type full {flags}"
        if trainer == "hf-trainer":
            text = f"torchrun --nproc_per_node=8 train.py {flags.replace('--model', '--model_name_or_path')}"
    near = {"conf/ds_zero3_offload.json": '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}'}
    stated = import_text(text, name, trainer, outside=Outside(beside=near.get)).value
    assert (stated.framework, stated.layout.zero, stated.options.optimizer_offload) == ("deepspeed", 1, None)
    assert stated.training.precision == "bf16"
    assert not any("is called" in note for note in stated.notes)
    assumed = import_text(text, name, trainer).value
    assert (assumed.framework, assumed.layout.zero, assumed.options.optimizer_offload) == (
        "deepspeed",
        3,
        1.0,
    )
    assert any(note.startswith("assumed: zero=3: so conf/ds_zero3_offload.json") for note in assumed.notes)


def test_llama_factory_megatron_and_lora() -> None:
    """Degrees mean its Megatron path; lora, its default, is said to be priced as full training."""
    text = "model_name_or_path: Qwen/Qwen3-30B-A3B\ncutoff_len: 4096\nper_device_train_batch_size: 1\nbf16: true\n"
    text += "tensor_model_parallel_size: 1\npipeline_model_parallel_size: 4\nexpert_model_parallel_size: 2\n"
    job = read(text, "llama-factory")
    assert (job.framework, job.model_name) == ("megatron", "qwen3-30b-a3b")
    assert degrees(job, "tp", "pp", "ep", "micro_batch") == (1, 4, 2, 1)
    assert any("lora" in text for text in job.notes)


def test_model_args_lists_and_empty_values() -> None:
    """Brackets hold words, an empty value drops its flag, and a world is the tests' node."""
    text = "MODEL_ARGS:\n  --num-layers: 8\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --seq-length: 1024\n"
    text += "  --vocab-size: 50304\n  --micro-batch-size: 1\n  --global-batch-size: 16\n  --bf16: true\n"
    text += "  --context-parallel-size:\n  --tensor-model-parallel-size: 2\n  --sequence-parallel: true\n"
    text += "  --recompute-granularity: selective\n  --recompute-modules: '[mlp layernorm]'\n"
    job = read(text, "megatron-test")
    assert degrees(job, "tp", "cp", "sp", "dp") == (2, 1, True, 4)
    assert job.layout.recompute is not None
    assert job.layout.recompute.modules == ("layernorm", "mlp")


def test_model_args_without_flags_are_refused() -> None:
    """A file of NeMo's tests has keys of its own."""
    with pytest.raises(InputError, match=r"MODEL_ARGS: no MODEL_ARGS"):
        import_text("MODEL_ARGS:\nTEST_TYPE: regular\n", "model_config.yaml")


REGISTRY = """
from torchtitan.models.llama3 import model_registry
STEPS = 8 * 2048

def _section(tp):
    return ParallelismConfig(tensor_parallel_degree=tp, data_parallel_shard_degree=16)

def llama3_70b():
    spec = model_registry("70B")
    parallelism = _section(8)
    return Trainer.Config(model_spec=spec, parallelism=parallelism,
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=STEPS, max_context_length=8192),
        activation_checkpoint=FullAC.Config())

def llama3_70b_long():
    config = llama3_70b()
    config.training.max_context_length = 16384
    config.parallelism.context_parallel_degree = 2
    return config
"""


def test_torchtitan_registry_offers_its_functions() -> None:
    """Several functions are named with the option that chooses; an unknown one is answered by the list."""
    with pytest.raises(InputError, match=r"llama3_70b, llama3_70b_long.*--function llama3_70b"):
        import_text(REGISTRY, "config_registry.py")
    with pytest.raises(InputError, match=r"no configuration function 'llama3_7b'.*llama3_70b"):
        import_text(REGISTRY, "config_registry.py", function="llama3_7b")


def test_torchtitan_function_starts_from_another() -> None:
    """Attribute writes change what the other function returns, and leave that one alone."""
    first = read(REGISTRY, "torchtitan-python", function="llama3_70b")
    second = read(REGISTRY, "torchtitan-python", function="llama3_70b_long")
    assert degrees(first, "tp", "cp", "dp", "micro_batch") == (8, 1, 16, 2)
    assert degrees(second, "tp", "cp", "dp", "micro_batch") == (8, 2, 16, 1)
    assert first.model_name == second.model_name == "llama3-70b"


def test_torchtitan_flavor_of_another_family_is_not_guessed() -> None:
    """8B under a registry of qwen3 is not Llama's; without any family the guess is said."""
    text = "from torchtitan.models.qwen3 import model_registry\n"
    text += "def sft():\n    return Trainer.Config(model_spec=model_registry('8B'))\n"
    assert read(text, "torchtitan-python").model_name is None
    bare = text.partition("\n")[2]
    job = import_text("from torchtitan.config import TrainingConfig\n" + bare, "x.py").value
    assert job.model_name == "llama3-8b"
    assert any("flavor 8B is llama3's" in note for note in job.notes)


def test_torchtitan_branches_are_not_followed() -> None:
    """What an if sets is unknown, and reading it says which line."""
    text = REGISTRY.partition("def llama3_70b_long")[0].replace(
        "    return Trainer", "    if big:\n        parallelism = ParallelismConfig()\n    return Trainer"
    )
    with pytest.raises(InputError, match="parallelism"):
        import_text(text, "x.py")


DICTIONARIES = """
from torchtitan.models.llama3 import model_registry
SHARED = dict(tensor_parallel_degree=4, pipeline_parallel_degree=2)
MORE = {"local_batch_size": 2, **{"seq_len": 4096}}

def _base(flavor):
    return Trainer.Config(model_spec=model_registry(flavor), training=TrainingConfig(steps=100, **MORE))

def llama3_8b():
    config = _base("8B")
    config.parallelism = ParallelismConfig(data_parallel_shard_degree=4, **SHARED)
    return config

def llama3_70b():
    config = llama3_8b()
    config.model_spec = model_registry("70B")
    config.parallelism.tensor_parallel_degree = 8
    return config

def llama3_405b():
    return Trainer.Config(model_spec=model_registry("405B"), parallelism=ParallelismConfig(**read_degrees()))
"""


@pytest.mark.parametrize(
    ("function", "model", "wanted"),
    [("llama3_8b", "llama3-8b", (4, 2, 4, 1)), ("llama3_70b", "llama3-70b", (8, 2, 4, 1))],
)
def test_torchtitan_settings_held_in_dictionaries(function: str, model: str, wanted: tuple[int, ...]) -> None:
    """``**`` of a dictionary in the file sets what it holds."""
    job = read(DICTIONARIES, "torchtitan-python", function=function)
    assert degrees(job, "tp", "pp", "dp", "micro_batch") == wanted
    assert (job.model_name, job.training.sequence_length) == (model, 4096)


def test_torchtitan_settings_of_unknown_dictionaries_are_refused() -> None:
    """They may set any degree: none is taken for its default."""
    with pytest.raises(
        InputError, match=r"parallelism: is computed by ParallelismConfig\(\*\*read_degrees\(\)\)"
    ):
        read(DICTIONARIES, "torchtitan-python", function="llama3_405b")
