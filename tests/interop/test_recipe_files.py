"""Megatron-Bridge recipes from a checkout: read as text, never run; what is not decided in them stays open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.interop.sources import Around, import_text
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.interop.records import ImportedJob

COMMON = """
import os
LONG: int = 4 * 2048

def _common():
    os.system("touch CANARY")
    cfg = ConfigContainer(
        model=None,
        train=TrainingConfig(global_batch_size=32, micro_batch_size=2),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True),
        dataset=GPTDatasetConfig(seq_length=4096),
        mixed_precision="bf16_mixed",
    )
    return cfg

def _precision(kind):
    if kind == "bf16":
        made = bf16_mixed()
    elif kind in ("fp8_mx", "mx"):
        made = bf16_with_mxfp8_mixed()
    else:
        raise ValueError(kind)
    made.grad_reduce_in_fp32 = False
    return made
"""
RECIPES = """
from megatron.bridge.recipes.common import LONG, _common, _precision
from megatron.bridge.elsewhere import tune

def _sizes(cfg, tp, pp=1, **more):
    cfg.model.tensor_model_parallel_size = tp
    cfg.model.pipeline_model_parallel_size = pp
    cfg.model.sequence_parallel = tp > 1 if False else True

def llama3_8b_pretrain_config():
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    _sizes(cfg, 2)
    cfg.model.seq_length = LONG
    cfg.dataset.seq_length = LONG
    return cfg

def llama3_8b_fp8_config():
    cfg = llama3_8b_pretrain_config()
    cfg.mixed_precision = _precision("fp8_mx")
    cfg.train.global_batch_size = 128
    if isinstance(cfg.mixed_precision, str):
        cfg.train.global_batch_size = 7
    return cfg

def llama3_8b_open_config(wide=None):
    cfg = llama3_8b_pretrain_config()
    if os.environ.get("WIDE"):
        cfg.model.tensor_model_parallel_size = 8
    tune(cfg)
    return cfg

def llama3_8b_circle_config():
    return llama3_8b_circle_config()
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with recipes of its own."""
    folder = tmp_path / "src" / "megatron" / "bridge" / "recipes"
    folder.mkdir(parents=True)
    (folder / "common.py").write_text(COMMON)
    (folder / "llama.py").write_text(RECIPES)
    return folder / "llama.py"


def read(recipe: str, checkout: Path, more: str = "") -> ImportedJob:
    """Read a command that launches a recipe."""
    text = f"torchrun --nnodes 2 --nproc-per-node 8 scripts/training/run_recipe.py --recipe {recipe} {more}"
    job: ImportedJob = import_text(text, "run.sh", around=Around(recipe_file=checkout)).value
    return job


def facts(job: ImportedJob, *axes: str) -> tuple[Any, ...]:
    """Return axes of a layout."""
    return tuple(getattr(job.layout, axis) for axis in axes)


def test_a_recipe_is_followed_through_its_files(checkout: Path) -> None:
    """Imported functions, helpers that are given the configuration, constants of other files; nothing is missing."""
    job = read("llama3_8b_pretrain_config", checkout)
    assert facts(job, "tp", "pp", "zero", "micro_batch", "dp") == (2, 1, 1, 2, 8)
    assert (job.training.global_batch, job.training.sequence_length, job.training.precision) == (
        32,
        8192,
        "bf16",
    )
    assert (job.model_name, job.missing) == ("llama3-8b", ())


def test_branches_on_what_is_known_are_decided(checkout: Path) -> None:
    """A precision by name, and a condition that does not hold."""
    job = read("llama3_8b_fp8_config", checkout)
    assert (job.training.precision, job.training.global_batch) == ("mxfp8", 128)


def test_the_command_wins_over_the_recipe(checkout: Path) -> None:
    """Short flags and overrides come after it."""
    job = read("llama3_8b_pretrain_config", checkout, "-tp 4 train.global_batch_size=64")
    assert facts(job, "tp", "dp") == (4, 4)
    assert job.training.global_batch == 64


def test_what_is_not_decided_stays_open(checkout: Path) -> None:
    """The branch's key is named with its line; a helper that was not found is named as an assumption."""
    job = read("llama3_8b_open_config", checkout)
    assert facts(job, "tp", "dp") == (None, None)
    assert any("tensor_model_parallel_size: is open in the recipe" in text for text in job.missing)
    assert any(text.startswith("assumed: tune of the recipe") for text in job.notes)


def test_nothing_is_run(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in the recipe's code leaves no trace."""
    monkeypatch.chdir(checkout.parent)
    read("llama3_8b_pretrain_config", checkout)
    assert not (checkout.parent / "CANARY").exists()


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (
            "llama3_70b_pretrain_config",
            "no recipe 'llama3_70b_pretrain_config'.*one of _sizes, llama3_8b_pretrain",
        ),
        ("llama3_8b_circle_config", "starts from itself"),
    ],
)
def test_wrong_recipes_are_one_line(recipe: str, says: str, checkout: Path) -> None:
    """Each says what is wrong."""
    with pytest.raises(InputError, match=says) as caught:
        read(recipe, checkout)
    assert "\n" not in str(caught.value)


def test_the_option_of_the_command_line(checkout: Path, tmp_path: Path) -> None:
    """Without it the degrees are open, with it they are the recipe's; an absent file is one line."""
    launch = tmp_path / "run.sh"
    launch.write_text("torchrun --nproc-per-node 8 run_recipe.py --recipe llama3_8b_pretrain_config -gb 32\n")
    plain = CliRunner().invoke(main, ["import", str(launch)])
    assert "tp, sp" in plain.output
    given = CliRunner().invoke(main, ["import", str(launch), "--recipe-file", str(checkout)])
    assert "tp: 2" in given.output
    absent = CliRunner().invoke(main, ["import", str(launch), "--recipe-file", "nowhere.py"])
    assert absent.exit_code == 2
    assert "no such recipe file" in absent.output


NEMO_PARTS = """
import nemo_run as run

def distributed_fused_adam(max_lr=1e-4):
    return run.Config(MegatronOptimizerModule, config=run.Config(OptimizerConfig, use_distributed_optimizer=True))

def bf16_mixed():
    return run.Config(MegatronMixedPrecision, precision="bf16-mixed", grad_reduce_in_fp32=True)

def bf16_with_fp8_mixed():
    cfg = bf16_mixed()
    cfg.fp8 = 'hybrid'
    cfg.fp8_recipe = "delayed"
    return cfg
"""
NEMO_RECIPE = """
import nemo_run as run
from nemo import lightning as nl
from nemo.collections.llm.recipes.parts import bf16_mixed, bf16_with_fp8_mixed, distributed_fused_adam

def trainer(tensor_parallelism=4, num_nodes=2, num_gpus_per_node=8, callbacks=None):
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=tensor_parallelism,
        pipeline_model_parallel_size=2, context_parallel_size=1, sequence_parallel=True,
        ddp=run.Config(DistributedDataParallelConfig, overlap_grad_reduce=True))
    return run.Config(nl.Trainer, devices=num_gpus_per_node, num_nodes=num_nodes, plugins=bf16_mixed(),
        strategy=strategy, callbacks=callbacks)

@run.cli.factory(name="llama3_8b")
def pretrain_recipe(dir=None, name="default", num_nodes=2, num_gpus_per_node=8, performance_mode=False, fn=pretrain):
    recipe = run.Partial(fn, model=run.Config(LlamaModel, config=run.Config(Llama3Config8B)),
        trainer=trainer(num_nodes=num_nodes, num_gpus_per_node=num_gpus_per_node, callbacks=[]),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=512, micro_batch_size=1),
        optim=distributed_fused_adam(max_lr=3e-4))
    if performance_mode:
        recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True))
        recipe.trainer.plugins = bf16_with_fp8_mixed()
    return recipe

def finetune_recipe(dir=None, name="default", num_nodes=1, num_gpus_per_node=8, peft_scheme='lora'):
    recipe = pretrain_recipe(dir, name, num_nodes, num_gpus_per_node)
    if not hasattr(recipe.trainer, "callbacks"):
        recipe.trainer.strategy.tensor_model_parallel_size = 77
    if peft_scheme is None or peft_scheme.lower() == 'none':
        recipe.trainer.strategy.tensor_model_parallel_size = 2
    elif peft_scheme.lower() in ['lora', 'dora']:
        recipe.peft = run.Config(PEFT_STR2CLS[peft_scheme.lower()])
        recipe.peft.dim = 8
    return recipe
"""
NEMO_LONGER = """
from nemo.collections.llm.recipes import llama3_8b

def pretrain_recipe(dir=None, name="default", num_nodes=4, num_gpus_per_node=8):
    recipe = llama3_8b.pretrain_recipe(name=name, dir=dir, num_nodes=num_nodes, num_gpus_per_node=num_gpus_per_node)
    recipe.trainer.strategy.context_parallel_size = 2
    recipe.data.seq_length = 16384
    return recipe
"""


@pytest.fixture
def nemo(tmp_path: Path) -> Path:
    """A checkout of NeMo 2 in a folder of the same name."""
    folder = tmp_path / "nemo" / "nemo" / "collections" / "llm" / "recipes"
    folder.mkdir(parents=True)
    for name, text in (("parts", NEMO_PARTS), ("llama3_8b", NEMO_RECIPE), ("llama3_8b_16k", NEMO_LONGER)):
        (folder / f"{name}.py").write_text(text)
    return folder / "llama3_8b.py"


def read_nemo(text: str, file: Path) -> ImportedJob:
    """Read a script or command around a recipe of NeMo 2."""
    job: ImportedJob = import_text(text, "x", "nemo", around=Around(recipe_file=file)).value
    return job


def test_a_recipe_of_nemo_is_followed(nemo: Path) -> None:
    """Its arguments and what the script sets afterwards win; nothing is missing, the optimizer's states are sharded."""
    script = "from nemo.collections import llm\nN = 4\nr = llm.llama3_8b.pretrain_recipe('/x', num_nodes=N)\n"
    job = read_nemo(script + "r.data.global_batch_size = 64\n", nemo)
    assert facts(job, "tp", "pp", "cp", "dp", "zero", "micro_batch") == (4, 2, 1, 4, 1, 1)
    assert (job.gpus, job.model_name, job.missing) == (32, "llama3-8b", ())
    assert (job.training.global_batch, job.training.sequence_length, job.training.precision) == (
        64,
        8192,
        "bf16",
    )
    assert job.training.grad_bytes == 4
    fast = read_nemo(script.replace("num_nodes", "performance_mode=True, num_nodes"), nemo)
    assert (fast.training.precision, fast.training.fp8_recipe) == ("fp8", "delayed")
    assert fast.options.tp_overlap
    computed = read_nemo(script + "r.data.micro_batch_size = pick()\n", nemo)
    assert computed.layout is not None and computed.layout.micro_batch is None
    assert any("micro_batch_size: is open" in text for text in computed.missing)


def test_a_factory_of_nemo_takes_arguments(nemo: Path) -> None:
    """``--factory "NAME(...)"``, words behind it, adapters, and a recipe that starts from another module's."""
    adapted = read_nemo(
        "nemo llm finetune --factory llama3_8b trainer.num_nodes=2 data.global_batch_size=32", nemo
    )
    assert adapted.training.adapter is not None and adapted.training.adapter.rank == 8
    assert facts(adapted, "tp", "dp") == (4, 2)
    whole = read_nemo('nemo llm finetune --factory "llama3_8b(num_nodes=4, peft_scheme=None)"', nemo)
    assert whole.training.adapter is None
    assert (whole.gpus, *facts(whole, "tp", "dp")) == (32, 2, 8)
    longer = read_nemo("nemo llm pretrain --factory llama3_8b_16k", nemo.with_name("llama3_8b_16k.py"))
    assert (longer.gpus, longer.training.sequence_length, *facts(longer, "tp", "cp")) == (32, 16384, 4, 2)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("nemo llm pretrain --factory 'os.system(\"touch CANARY\")'", "cannot read 'os.system"),
        ("nemo llm pretrain --factory 'x for'", "Python"),
        ("nemo llm finetune --factory grows", "no recipe 'finetune_recipe'"),
        ("nemo llm pretrain --factory grows", "a list is extended by what is not read"),
    ],
)
def test_wrong_recipes_of_nemo_are_one_line(command: str, says: str, nemo: Path) -> None:
    """Calls that are no recipe, text that is no Python, an absent function, a list that grows without end."""
    file = nemo.with_name("grows.py")
    file.write_text("def pretrain_recipe():\n    x = [1, 2]\n" + "    x.extend(x)\n" * 60 + "    return x\n")
    with pytest.raises(InputError, match=says) as caught:
        read_nemo(command, file)
    assert "\n" not in str(caught.value)
