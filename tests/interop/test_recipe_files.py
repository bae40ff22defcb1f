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
