"""Configurations that Python computes: constant expressions are followed, everything else is open and never the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.interop.sources import Around, import_text
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.interop.records import ImportedJob

HEAD = """
import os
from dataclasses import replace
from elsewhere import BS
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
from torchtitan.models.llama3 import model_registry
BIG, X = True, [2, 8]
class K: DEGREE = 8
def _tune(c):
    c.parallelism.tensor_parallel_degree = 8
def _maybe(c):
    if os.environ.get("SMALL"):
        return
    c.parallelism.tensor_parallel_degree = 8
def f(size="8b") -> Trainer.Config:
    cfg = Trainer.Config(model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=2, seq_len=4096))
"""
BRIDGE = """
import os
X = [2, 8]
class K: DEGREE = 8
def _tune(c):
    c.model.tensor_model_parallel_size = 8
def f(size="8b"):
    cfg = ConfigContainer(train=TrainingConfig(global_batch_size=32, micro_batch_size=1),
        dataset=GPTDatasetConfig(seq_length=4096), mixed_precision="bf16_mixed")
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 2
"""
FOLLOWED = {
    "augmented": "AT = 2\n    AT *= 2",
    "shifted": "AT = 1\n    AT <<= 3",
    "power": "AT = 2 ** 3",
    "ternary": "AT = 8 if 4096 > 2048 else 2",
    "subscript": "AT = X[-1]",
    "attribute of a class": "AT = K.DEGREE",
    "alias": "p = SECTION\n    p.NAME = 8",
    "helper": "_tune(cfg)",
    "nested function": "def inner(c, n=8):\n        SECTIONOFC.NAME = n\n    inner(cfg)",
    "if on a constant": "if K.DEGREE == 8:\n        AT = 8\n    else:\n        AT = 4",
    "setattr": "setattr(SECTION, 'NAME', 8)",
    "setattr in a loop": "for k, v in {'NAME': 8}.items():\n        setattr(SECTION, k, v)",
    "loop over a range": "AT = 1\n    for _ in range(3):\n        AT *= 2",
    "tuple": "AT, other = 8, 1",
    "match": "match size:\n        case '8b': AT = 8\n        case _: AT = 4",
    "walrus": "AT = (n := 8)",
    "vars": "vars(SECTION).update(NAME=8)",
    "early return": "AT = 8\n    if True:\n        return cfg\n    AT = 4",
}
OPEN = {
    "environment": "if os.environ.get('BIG'):\n        AT = 8",
    "ternary": "AT = 8 if os.environ.get('BIG') else 2",
    "loop": "for n in read_sizes():\n        AT = n",
    "key of setattr": "for k in read_names():\n        setattr(SECTION, k, 8)",
    "while": "while cond():\n        AT = 8",
    "try": "try:\n        AT = 8\n    except Exception:\n        pass",
    "with": "with opened() as g:\n        AT = 8",
    "call of a helper": "if os.environ.get('BIG'):\n        _tune(cfg)",
    "early return": "if os.environ.get('BIG'):\n        return cfg\n    AT = 8",
    "deleted": "AT = 8\n    del AT",
    "match": "match os.environ['SIZE']:\n        case 'big': AT = 8",
    "imported": "AT = BS",
    "update": "vars(SECTION).update(**read_sizes())",
}


def _written(body: str, section: str, name: str) -> str:
    at = f"cfg.{section}.{name}"
    named = body.replace("AT,", f"{at},").replace("AT ", f"{at} ").replace("del AT", f"del {at}")
    of_c = named.replace("SECTIONOFC", f"c.{section}").replace("SECTION", f"cfg.{section}")
    return "    " + of_c.replace("NAME", name) + "\n    return cfg\n"


def _titan(body: str) -> ImportedJob:
    text = HEAD + _written(body, "parallelism", "tensor_parallel_degree")
    job: ImportedJob = import_text(text, "config_registry.py", function="f").value
    return job


def _bridge(body: str, folder: Path) -> ImportedJob:
    (folder / "r.py").write_text(BRIDGE + _written(body, "model", "tensor_model_parallel_size"))
    text = "torchrun --nnodes 2 --nproc-per-node 8 scripts/training/run_recipe.py --recipe f"
    job: ImportedJob = import_text(text, "run.sh", around=Around(recipe_file=folder / "r.py")).value
    return job


@pytest.mark.parametrize("case", FOLLOWED)
def test_constants_of_torchtitan_are_followed(case: str) -> None:
    """Every way to write a number is read as the one that Python would make."""
    job = _titan(FOLLOWED[case])
    assert job.layout.tp == (4 if case == "augmented" else 8)
    assert not [text for text in job.missing if "tensor" in text]


@pytest.mark.parametrize("case", OPEN)
def test_what_torchtitan_computes_is_open(case: str) -> None:
    """What is not followed has no degree, and is missing under its name; it is not the class default."""
    job = _titan(OPEN[case])
    assert job.layout.tp is None and job.layout.dp is None
    assert any("parallelism.tensor_parallel_degree: is computed by" in text for text in job.missing)


@pytest.mark.parametrize("case", FOLLOWED)
def test_constants_of_bridge_are_followed(case: str, tmp_path: Path) -> None:
    """The same constructs in a recipe; nothing of them is said to change nothing."""
    job = _bridge(FOLLOWED[case], tmp_path)
    assert (job.layout.tp, job.missing) == (4 if case == "augmented" else 8, ())
    assert not [note for note in job.notes if "changes nothing" in note]


@pytest.mark.parametrize("case", OPEN)
def test_what_a_recipe_of_bridge_computes_is_open(case: str, tmp_path: Path) -> None:
    """The same constructs in a recipe have no degree."""
    job = _bridge(OPEN[case], tmp_path)
    assert job.layout.tp is None
    assert any("tensor_model_parallel_size: is open in the recipe" in text for text in job.missing)


def test_constants_of_a_module_are_followed(tmp_path: Path) -> None:
    """An augmented assignment of a module counts as one of a function does."""
    (tmp_path / "r.py").write_text(
        "S = 4\nS *= 2\n" + BRIDGE + "    cfg.model.tensor_model_parallel_size = S\n    return cfg\n"
    )
    text = "torchrun --nnodes 2 --nproc-per-node 8 scripts/training/run_recipe.py --recipe f"
    assert import_text(text, "run.sh", around=Around(recipe_file=tmp_path / "r.py")).value.layout.tp == 8


def test_an_unknown_helper_leaves_all_open_that_is_not_stated_after_it() -> None:
    """A function from elsewhere may set anything of what it is given; assignments behind it count again."""
    job = _titan("apply_overrides(cfg, tp=8)\n    cfg.parallelism.context_parallel_degree = 2")
    assert (job.layout.tp, job.layout.cp, job.layout.micro_batch) == (None, 2, None)
    assert job.training.sequence_length is None
    assert any("apply_overrides(...) of line" in text for text in job.missing)
    with pytest.raises(InputError, match=r"parallelism: is computed by make_par\(\.\.\.\)"):
        _titan("cfg.parallelism = make_par(8)")


def test_an_early_return_of_a_helper_leaves_open_what_follows_it() -> None:
    """A helper that may have ended before it set a degree has not set it for sure."""
    assert _titan("_maybe(cfg)").layout.tp is None


def test_open_sections_of_torchtitan() -> None:
    """Recompute and batch of the class are not taken where the file computes them."""
    job = _titan(
        "cfg.training.seq_len = int(os.environ['S'])\n    cfg.activation_checkpoint.mode = os.environ['AC']"
    )
    assert (job.training.sequence_length, job.layout.recompute) == (None, None)
    assert _titan("ac = cfg.activation_checkpoint\n    ac.mode = 'full'").layout.recompute is not None


def test_helpers_that_unfold_without_end_are_refused() -> None:
    """Helpers that may run and call others twice are followed as far as a configuration goes, not for ever."""
    helpers = "".join(
        f"def f{i}(c):\n    if u():\n        f{i + 1}(c)\n        f{i + 1}(c)\n    if u():\n        return\n"
        for i in range(30)
    )
    last = "def f30(c):\n    c.training.seq_len = 3\n"
    text = HEAD.partition("def f(")[0] + helpers + last + "def f(" + HEAD.partition("def f(")[2]
    with pytest.raises(InputError, match="too long"):
        import_text(text + "    f0(cfg)\n    return cfg\n", "config_registry.py", function="f")
