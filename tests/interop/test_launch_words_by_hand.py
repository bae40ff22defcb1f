"""Words of launches that importers read alike: flags, defaults, processes, adapters, optimizers, written words."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.files import assumed_of, notes_of
from layoutopt.optimizer.interop.launch.adapters import AXOLOTL, LLAMA_FACTORY, PEFT, SWIFT, read_adapter
from layoutopt.optimizer.interop.launch.config_command import after, is_script, overrides_in
from layoutopt.optimizer.interop.launch.flags import ArgFields, LeftOpen
from layoutopt.optimizer.interop.launch.keys import (
    fsdp_job,
    hydra_values,
    model_path,
    name_unread,
    with_defaults,
    with_truths,
)
from layoutopt.optimizer.interop.launch.methods import method_of, note_method
from layoutopt.optimizer.interop.launch.optimizers import hf_optimizer, named_optimizer
from layoutopt.optimizer.interop.launch.processes import batch_lines, launched_gpus, slurm_variables
from layoutopt.optimizer.interop.launch.text import _wrapped, flag_words, python_text, toml_text
from layoutopt.optimizer.interop.reading import (
    Fields,
)
from layoutopt.optimizer.interop.shell.values import hole
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.model import OptimizerSpec
from layoutopt.optimizer.specs.vocabulary import (
    AdapterMethod,
    AdapterTarget,
    Granularity,
    Optimizer,
    Precision,
)


def refused(function: Any, *given: Any, **named: Any) -> str:
    """The one line that a refusal says."""
    with pytest.raises(InputError) as raised:
        function(*given, **named)
    return str(raised.value)


def test_flags_whose_value_the_outside_knows_are_open() -> None:
    """They count as absent and are named with how to give them; a list with one such part is open as a whole."""
    fields = ArgFields({"a": hole("X"), "b": [1, hole("Y")], "c": "d", "s": 3, "n": None}, file="f")
    assert fields.find("a") == ("a", None) and fields.items("b") is None and fields.text("c") == "d"
    assert set(fields.left_open) == {"a", "b"}
    assert "$X, which the script does not set" in fields.left_open["a"]
    with pytest.raises(LeftOpen, match="--a: comes from"):
        fields.required("a")
    with pytest.raises(InputError, match="--zz-y: missing"):
        fields.required("zz_y")
    assert (fields.flag("s"), fields.flag("n"), fields.flag("x", "s"), fields.flag("x")) == (
        True,
        None,
        True,
        None,
    )
    assert (fields.items("c"), fields.items("x"), ArgFields({"l": True}).items("l")) == (["d"], None, [])


def test_launchers_names_and_defaults() -> None:
    """0 and 1 of Megatron's switches are truths, defaults are said, unread keys named."""
    assert with_truths({"bf16": 1, "fp16": 0, "overlap_grad_reduce": 2, "num_layers": 1}) == {
        "bf16": True,
        "fp16": False,
        "overlap_grad_reduce": 2,
        "num_layers": 1,
    }
    notes: list[str] = []
    assert with_defaults({"a": None, "b": 2}, {"a": 1, "b": 1}, notes) == {"a": 1, "b": 2}
    assert notes == ["assumed: a 1, the launcher's default"]
    name_unread(["tensor_parallel", "hidden", "zero_stage"], ["zero_stage"], notes)
    name_unread(["hidden"], [], notes)
    assert notes[1:] == ["not read, though it may change the layout: tensor_parallel"]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"model": "meta/llama"}, "meta/llama"),
        ({"model": None, "path": "x/y/"}, "x/y"),
        ({"model": f"{hole('DIR')}/llama"}, "llama"),
        ({"model": f"{hole('DIR')}/llama/"}, "llama"),
        ({"model": f"x/{hole('NAME')}"}, None),
        ({}, None),
    ],
)
def test_models_are_named_by_their_last_part(data: dict[str, Any], path: str | None) -> None:
    """A folder that only the outside knows does not hide the model in it."""
    assert model_path(ArgFields(data), "model", "path") == path


def test_words_of_hydra() -> None:
    """Additions have pluses, deletions are none, and flags are no settings."""
    words = ["+a.b=1", "++c=x", "~d=2", "-e=3", "f", "g h=1", "i=", "j==k"]
    assert hydra_values(words) == {"a.b": 1, "c": "x", "i": "", "j": "=k"}
    assert overrides_in(["a=1", "--b", "2", "--c=3", f"d={hole('X')}"]) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("run --config a.yaml x=1", ("a.yaml", ["x=1"])),
        ("run --config=a.yaml x=1", ("a.yaml", ["x=1"])),
        ("train --fast a.yaml --tp 2", ("a.yaml", ["--fast", "--tp", "2"])),
        ("train --fast", None),
        ("other a.yaml", None),
        ("other=a.yaml", None),
    ],
)
def test_the_word_behind_a_mark(words: str, found: tuple[str, list[str]] | None) -> None:
    """The first that is no option; the others stay."""
    assert after(words.split(), "--config", "train") == found


def test_scripts_are_told_from_configurations() -> None:
    """By the first line, the name, or because no line begins with a key."""
    assert is_script("#!/bin/sh\na: 1\n", "") and is_script("a: 1", "x.SH") and is_script("run it", "x")
    assert not is_script("# c\na_b: 1\n", "x.yaml")


@pytest.mark.parametrize(
    ("asked", "dp", "shard", "steps", "gpus", "missing"),
    [
        ({"gpus": 16, "global_batch": 64}, 16, None, 2, 16, ()),
        ({"gpus": 16, "global_batch": 64, "cp": 2}, 8, None, 4, 16, ()),
        ({"gpus": 16, "global_batch": 64, "cp": 2, "shard": 4}, 8, 4, 4, 16, ()),
        ({"gpus": 16, "global_batch": 64, "shard": 16}, 16, None, 2, 16, ()),
        ({"gpus": 16, "global_batch": 64, "shard": 8, "zero": 0}, 16, None, 2, 16, ()),
        ({"gpus": None, "global_batch": 64, "shard": 4, "replicas": 2, "cp": 2}, 4, 4, 8, 8, ()),
        ({"gpus": None, "global_batch": 64}, None, None, None, None, ("number of GPUs",)),
        ({"gpus": 15, "global_batch": 64, "tp": 2}, None, None, None, 15, ()),
        ({"gpus": 16, "global_batch": 50}, 16, None, None, 16, ()),
        ({"gpus": 16, "global_batch": None}, 16, None, None, 16, ("global batch",)),
        ({"gpus": 8, "global_batch": 8, "micro_batch": None}, 8, None, None, 8, ("micro-batch",)),
        ({"gpus": 8, "global_batch": 16, "zero": None}, 8, None, 1, 8, ("ZeRO stage",)),
    ],
)
def test_fsdp_layouts_follow_from_gpus_and_shards(
    asked: dict[str, Any],
    dp: int | None,
    shard: int | None,
    steps: int | None,
    gpus: int | None,
    missing: tuple[str, ...],
) -> None:
    """Data parallelism is what tensor and context parallelism leave; shards narrower than it are hybrid ones."""
    plain = {"notes": (), "path": "x", "micro_batch": 2, "sequence_length": 8, "recompute": True}
    job = fsdp_job(**{**plain, "precision": Precision.BF16, **asked})
    found = (job.layout.dp, job.layout.hsdp_shard, job.layout.micro_batches, job.gpus)
    assert found == (dp, shard, steps, gpus)
    assert tuple(text for text in job.missing if "model" not in text) == missing
    assert (job.layout.pp, job.layout.vp, job.layout.ep, job.layout.etp) == (1, 1, 1, 1)
    assert job.layout.recompute is not None and job.layout.recompute.granularity is Granularity.FULL
    assert job.replicas == (1 if asked.get("shard") else asked.get("replicas", 1))


def test_fsdp_launches_may_not_say_what_they_recompute() -> None:
    """Open, everything, or nothing; replicas count where no group is stated."""
    plain: dict[str, Any] = {
        "notes": ("a",), "path": None, "gpus": 4, "micro_batch": 1, "global_batch": 4, "sequence_length": 8,
    }  # fmt: skip
    job = fsdp_job(**plain, recompute=None, replicas=2)
    assert job.layout.recompute is None and job.replicas == 2 and job.notes == ("a",)
    assert {"activation checkpointing", "precision"} <= set(job.missing)
    made = fsdp_job(**plain, recompute=False).layout.recompute
    assert made is not None and made.granularity is Granularity.NONE


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("torchrun --nnodes 2 --nproc_per_node gpu train.py", None),
        ("torchrun train.py", None),
        ("torchrun --nnodes $N --nproc_per_node 8 train.py", None),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py", 16),
        ("accelerate launch --num_processes 16 --num_machines 2 train.py", 16),
        ("accelerate launch --num_machines 2 train.py", None),
        ("srun -N 2 -n16 train.py", 16),
        ("srun -N 4 --ntasks-per-node 8 train.py", 32),
        ("srun -N 4 --gpus-per-node h100:8 train.py", 32),
        ("srun -N 4 --gres gpu:a100:4 train.py", 16),
        ("srun --gpus 12 train.py", 12),
        ("srun --gpus 0 train.py", None),
        ("srun --gpus 10000000 train.py", 10**7),
        ("srun --gpus 10000001 train.py", None),
        ("mpirun -n 16 -N 8 train.py", 16),
        ("mpirun -np 64 train.py", 64),
        ("mpirun -H a:8,b:4 train.py", 12),
        ("mpirun -H a:8,b train.py", None),
        ("mpirun -n 3 -H a:8 train.py", 3),
        ("jsrun -n 16 -g 4 train.py", 64),
        ("jsrun --nrs 2 --gpu_per_rs 3 train.py", 6),
        ("jsrun -n 2 -g 0 train.py", None),
        ("jsrun -n 2 train.py", None),
        ("python train.py --nproc_per_node 8", None),
        ("mpirun --npernode 8 --nodes 2 train.py", 16),
        ("srun --nproc_per_node 8 --nodes 2 train.py", 16),
        ("srun --nproc_per_node 8 train.py", None),
    ],
)
def test_processes_that_commands_start(words: str, gpus: int | None) -> None:
    """Launchers, batch systems and MPI each count in their own way; words behind the script are the trainer's."""
    assert launched_gpus(words.split()) == gpus


@pytest.mark.parametrize(
    ("lines", "words", "gpus"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8", "srun train.py", 32),
        ("#SBATCH -N 4\n#SBATCH --ntasks-per-node=8", "srun train.py", 32),
        ("#SBATCH --ntasks=24", "srun train.py", 24),
        ("#SBATCH --gpus=16 # all\n#SBATCH --nodes 2", "torchrun --nnodes 2 train.py", 16),
        ("#SBATCH --gpus=15\n#SBATCH --nodes 2", "torchrun --nnodes 2 train.py", None),
        ("#SBATCH --nodes=4", "torchrun --nnodes 2 --nproc_per_node 8 train.py", 16),
        ("#SBATCH --nodes=4", "torchrun --nproc_per_node 8 train.py", 32),
        ("#SBATCH --nodes 2 --gpus-per-task=2 --ntasks-per-node=4", "torchrun train.py", 16),
    ],
)
def test_batch_lines_say_what_commands_leave_open(lines: str, words: str, gpus: int | None) -> None:
    """The command line comes after them and wins."""
    assert launched_gpus(words.split(), f"#!/bin/bash\n{lines}\n") == gpus


def test_slurm_sets_variables_from_a_scripts_lines() -> None:
    """What Slurm derives of them too."""
    text = (
        "#SBATCH -N 2\n#SBATCH --ntasks-per-node=4 --gpus-per-task 2\n# SBATCH -n 3\n#SBATCH --comment='x\n"
    )
    assert batch_lines(text) == {
        "nodes": 2,
        "tasks_per_node": 4,
        "gpus_per_task": 2,
        "gpus_per_node": 8,
        "tasks": 8,
    }
    assert slurm_variables(text) == {
        "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4", "SLURM_GPUS_PER_NODE": "8",
        "SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS_PER_TASK": "2", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8",
    }  # fmt: skip


ATTENTION, MLP, EXPERTS = AdapterTarget.ATTENTION, AdapterTarget.MLP, AdapterTarget.EXPERTS


@pytest.mark.parametrize(
    ("data", "keys", "method", "rank", "targets", "notes"),
    [
        ({"lora_rank": 16, "lora_target": "all"}, LLAMA_FACTORY, "lora", 16, tuple(AdapterTarget), []),
        (
            {"lora_target": "fc1, fc2"}, LLAMA_FACTORY, "lora", 8, (MLP,),
            ["assumed: lora_rank 8, the trainer's default"],
        ),
        (
            {"lora_r": 4}, PEFT, "lora", 4, (ATTENTION,),
            [
                "assumed: lora_target_modules q_proj,v_proj, the trainer's default",
                "adapters on q_proj, v_proj: priced as on all of attention's matrices",
            ],
        ),
        ({"lora_r": 4, "lora_target_linear": True}, AXOLOTL, "qlora", 4, tuple(AdapterTarget), []),
        ({"lora_rank": 4, "target_modules": ["all-linear"], "quant_bits": 4}, SWIFT, "qlora", 4, tuple(AdapterTarget), []),
        (
            {"lora_rank": 4, "target_modules": ["all-linear"], "quant_bits": 8}, SWIFT, "lora", 4, tuple(AdapterTarget),
            ["frozen weights in 8 bits are priced in 16; memory is overestimated"],
        ),
        (
            {"lora_r": 4096, "lora_target_modules": ["linear_qkv"], "load_in_4bit": "yes"}, PEFT, "qlora", 4096,
            (ATTENTION,), [],
        ),
        (
            {"lora_r": 1, "lora_target_modules": ["m.q_proj", "k_proj", "v_proj", "o_proj", "up_proj"], "load_in_8bit": 1},
            PEFT, "lora", 1, (ATTENTION, MLP, EXPERTS),
            ["frozen weights in 8 bits are priced in 16; memory is overestimated"],
        ),
        (
            {"lora_r": 1, "lora_target_modules": "strange"}, PEFT, "lora", 1, tuple(AdapterTarget),
            ["adapted modules strange are unknown; priced as all of a layer's"],
        ),
    ],
)  # fmt: skip
def test_adapters_by_their_trainers_words(
    data: dict[str, Any],
    keys: Any,
    method: str,
    rank: int,
    targets: tuple[AdapterTarget, ...],
    notes: list[str],
) -> None:
    """Rank, adapted parts and bits, with what was taken for granted."""
    said: list[str] = []
    kind = "qlora" if keys is AXOLOTL else "LoRA"
    spec = read_adapter(Fields(data), kind, keys, said)
    assert spec is not None
    assert (spec.method, spec.rank, spec.targets) == (AdapterMethod(method), rank, targets)
    assert said == notes


def test_adapters_of_no_rank_are_named() -> None:
    """Other methods train all parameters, as priced; ranks have an end."""
    notes: list[str] = []
    assert read_adapter(Fields({}), "dora-x", PEFT, notes) is None
    assert notes == ["dora-x: not read; priced as training of all parameters"]
    assert "4097 is out of range" in refused(read_adapter, Fields({"lora_r": 4097}), "lora", PEFT, notes)
    assert "0 is out of range" in refused(read_adapter, Fields({"lora_r": 0}), "lora", PEFT, notes)


def test_methods_beyond_fine_tuning_by_their_script() -> None:
    """What is not priced of each is said; supervised fine-tuning has nothing to say."""
    assert method_of(["python", "examples/dpo.py"]) == "dpo"
    assert method_of(["/usr/bin/trl", "grpo"]) == "grpo"
    assert method_of(["trl", "sft"]) is None and method_of(["ppo"]) is None
    notes: list[str] = []
    note_method("KTO", notes)
    note_method("sft", notes)
    note_method(None, notes)
    assert [note.partition(":")[0] for note in notes] == ["KTO"]


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        ({}, None, []),
        ({"optim": "adamw_torch"}, Optimizer.ADAMW, []),
        ({"optim": "OptimizerNames.ADAMW_BNB_8BIT"}, Optimizer.ADAM_8BIT, []),
        ({"optim": "paged_adamw_8bit"}, Optimizer.ADAM_8BIT, ["pages that move"]),
        ({"optim": "apollo"}, Optimizer.ADAMW, ["optim 'apollo' is not modelled: priced as AdamW"]),
        ({"optim": "sgd", "use_galore": True}, Optimizer.SGD, ["use_galore is not modelled"]),
    ],
)
def test_optimizers_by_the_trainers_word(
    data: dict[str, Any], kind: Optimizer | None, said: list[str]
) -> None:
    """Those that are priced, and the name of those that are not."""
    notes: list[str] = []
    spec = hf_optimizer(Fields(data), Framework.ACCELERATE, notes)
    assert (spec.kind if spec else None) is kind
    assert len(notes) == len(said) and all(part in note for part, note in zip(said, notes, strict=True))


def test_optimizers_by_the_frameworks_word() -> None:
    """Adam is AdamW to a price; others that no record knows are named."""
    for word, kind, count in (
        ("adam", Optimizer.ADAMW, 0),
        ("MUON", Optimizer.MUON, 0),
        ("x", Optimizer.ADAMW, 1),
    ):
        notes: list[str] = []
        spec = named_optimizer(Framework.MEGATRON, word, notes)
        assert spec is not None and (spec.kind, len(notes)) == (kind, count)
    assert named_optimizer(Framework.MEGATRON, None, []) is None
    assert named_optimizer(Framework.MEGATRON, "adamw", []) == OptimizerSpec()


def test_written_words() -> None:
    """Switches that are off are no words, lists are several, lines end before 110 characters, strings are escaped."""
    flags = [("--a", True), ("--b", False), ("--c", None), ("--d", [1, "x y"]), ("--e", 0), ("--f", (2,))]
    assert flag_words(flags) == [["--a"], ["--d", "1", "'x y'"], ["--e", "0"], ["--f", "2"]]
    assert _wrapped(["a" * 50, "b" * 57, "c"]) == ["  " + "a" * 50 + " " + "b" * 57, "  c"]
    assert _wrapped(["a" * 50, "b" * 58]) == ["  " + "a" * 50, "  " + "b" * 58]
    assert [python_text(one) for one in ("a", 'a"b', "a'b", "a\n")] == ['"a"', "'a\"b'", '"a\'b"', '"a\\n"']
    assert toml_text('a"\x7f') == '"a\\"\\u007f"'


@pytest.mark.parametrize(
    ("kind", "text", "assumed"),
    [
        ("nvidia-topo", "  GPU0 NIC0\nGPU0 X SYS\nNIC0 SYS X\n", 0),
        ("slurm-conf", "SwitchName=s1 Nodes=a\nSwitchName=s2 Nodes=b\n", 0),
        ("pbs-nodefile", "a\na\n", 1),
        ("megatron-args", "pretrain_gpt.py --num-layers 8 --tensor-model-parallel-size 2 --num-query-groups 2 "
        "--num-experts 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 8 --ffn-hidden-size 8 "
        "--position-embedding-type rope --expert-tensor-parallel-size 1", 5),
        ("accelerate-yaml", "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\n"
        "fsdp_config: {fsdp_activation_checkpointing: true}\nparallelism_config: {parallelism_config_cp_size: 2, "
        "parallelism_config_cp_comm_strategy: alltoall}", 3),
    ],
)  # fmt: skip
def test_only_what_is_assumed_or_left_out_is_refused_by_strict(kind: str, text: str, assumed: int) -> None:
    """What the trainer makes of a setting, and what is so of a machine, is information; what is missing is not."""
    found = import_text(text, "f", kind)
    notes = assumed_of(found)
    assert len(notes) == assumed, notes
    assert len(notes) < len(notes_of(found)) or kind == "pbs-nodefile"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            'N=$(basename "$D")',
            'comes from $(basename "$D"), which the script does not set (the value itself in the script)',
        ),
        (
            "for i in {1..5001}; do N=$i; done",
            "comes from {1..5001}, more words than are read, which the script does not set (the value itself in the script)",
        ),
        ("N=$M", "comes from $M, which the script does not set (--set M=...)"),
        ("N=$3", "comes from $3, which the script does not set (--arg 3=...)"),
    ],
)
def test_what_only_the_outside_knows_is_shown_as_the_script_writes_it(line: str, said: str) -> None:
    """With what closes it: an option for a variable or an argument, the value itself for what a program would print."""
    flags = "--num-layers 8 --tensor-model-parallel-size 2 --global-batch-size $N"
    job = import_text(f"#!/bin/bash\n{line}\npython pretrain_gpt.py {flags}\n", "f", "megatron-args").value
    assert f"--global-batch-size: {said}" in job.missing
