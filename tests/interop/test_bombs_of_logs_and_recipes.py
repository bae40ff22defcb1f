"""Logs of one endless line and recipes that grow, nest or start from themselves: read or refused, within bounds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import process_time

import pytest

from layoutopt.optimizer.interop.files import imported_to_plain
from layoutopt.optimizer.interop.sources import Around, import_text
from layoutopt.optimizer.specs.errors import InputError

MOST_CPU_S = 5.0
LONG = 400_000
LINES = {
    "megatron-log": (
        "iteration 1/ 2 | ", "iteration 1/ 2 | elapsed time per iteration (ms): 1 ", "[Rank 1] ", "using world size: 1 ",
        "    a: (1, 1)\n", "  a:\n     rank 1: 1\n",
    ),
    "nemo-log": ("iteration 1/2 | ", "global_step=1 ", "iteration 1/2 | train_step_timing in s: 1 TFLOPS_per_GPU: "),
    "deepspeed-log": ("1/1, ", "global_step=1, RunningAvgSamplesPerSec=1, ", "steps: 1 loss: ", "time (ms) | a: 1 "),
    "trainer-log": ("1/1 [", "1/1 [0:0<0:0, ", "train_steps_per_second = ", "Total train batch size (w. parallel"),
    "torchtitan-log": ("step: 1 ", "step: 1 memory: 1GiB ", "\x1b["),
    "nanotron-log": ("iteration: 1 / 1 |", "iteration: 1 / 1 | a: 1"),
    "torch-oom": ("out of memory. Tried to allocate 1 GiB ", "1 GiB ", "out of memory.\n"),
    "nvidia-topo": ("GPU0GPU1", "GPU0 X ", "\tGPU0"),
    "nccl-tests": ("# Rank 0 ", "1 1 float sum -1 1 1 1 0 1 1 1 0\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LINES)
def test_a_mark_of_a_log_without_end(kind: str) -> None:
    """Each beginning of a line that a reader looks for, over and over."""
    for mark in LINES[kind]:
        start = process_time()
        with suppress(InputError):
            imported_to_plain(import_text(mark * (LONG // len(mark)), "x", kind))
        assert process_time() - start < MOST_CPU_S, mark


HEAD = "def pretrain_recipe():\n    x = {'a': 1}\n"
RECIPES = {
    "a long product": HEAD + "    x = " + "1*" * 3_000 + "1\n    return x\n",
    "parentheses": HEAD + "    x = " + "(" * 150 + "1" + ")" * 150 + "\n    return x\n",
    "attributes": HEAD + "    x" + ".a" * 5_000 + " = 1\n    return x\n",
    "calls": "def f(x):\n    return [x, x]\n" + HEAD + "    return {'a': " + "f(" * 60 + "1" + ")" * 60 + "}\n",
    "lists of lists": HEAD + "    x = [x, x, x, x, x, x, x, x]\n" * 200 + "    return {'data': {'a': x}}\n",
    "sections of sections": HEAD + "    x = {'a': x, 'b': x}\n" * 40 + "    return {'data': x}\n",
    "depth": HEAD + "    x = {'a': x}\n" * 3_000 + "    return {'data': x}\n",
    "copies": HEAD + "    x = {'a': x.copy(), 'b': x.copy()}\n" * 40 + "    return x\n",
    "a section of itself": HEAD + "    x['b'] = x\n    return x\n",
    "a list of itself": HEAD + "    y = []\n    y.append(y)\n    return {'trainer': {'callbacks': y}}\n",
    "a circle of imports": "from nemo.r import b as pretrain_recipe\nfrom nemo.r import pretrain_recipe as b\n",
    "branches": HEAD + "    if y == 1:\n        x.a = 1\n"
    + "".join(f"    elif y == {n}:\n        x.a = {n}\n" for n in range(2_000)) + "    return x\n",
    "a large number": HEAD + "    return {'data': {'global_batch_size': " + "9" * 4_000 + "}}\n",
    "no function": "pretrain_recipe = lambda: 1\n",
    "escapes": HEAD + "    return {'data': {'\\x1b[2J': 1, 'global_batch_size': '\\x1b]0;x\\x07'}}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_that_grow(name: str, tmp_path: Path) -> None:
    """Under both trainers: read or one line, nothing that a terminal would obey."""
    file = tmp_path / "nemo" / "r.py"
    file.parent.mkdir()
    for function, command, kind in (
        ("pretrain_recipe", "nemo llm pretrain --factory r", "nemo"),
        ("r_config", "python run_recipe.py --recipe r_config -gb 8", "bridge-command"),
    ):
        file.write_text(RECIPES[name].replace("pretrain_recipe", function))
        start = process_time()
        try:
            shown = str(imported_to_plain(import_text(command, "x", kind, around=Around(recipe_file=file))))
        except InputError as error:
            shown = str(error)
            assert "\n" not in shown
        assert "\x1b" not in shown
        assert process_time() - start < MOST_CPU_S


FACTORIES = (
    "r(" * 200 + ")" * 200, "r" + ".a" * 5_000, "r(a=" + "[" * 90 + "]" * 90 + ")", "r(" + "1," * 50_000 + ")",
    "r(num_nodes=1e999)", "r(num_nodes=-5)", "r(num_nodes='8')", "\x1b[31mr", "r(**x)", "r(num_nodes=10**10)", "",
)  # fmt: skip


@pytest.mark.parametrize("factory", FACTORIES)
def test_factories_that_are_none(factory: str, tmp_path: Path) -> None:
    """Deep, wide, negative, endless: one line, or GPUs that are not known."""
    file = tmp_path / "r.py"
    file.write_text(
        "def pretrain_recipe(num_nodes=1):\n    return {'trainer': {'num_nodes': num_nodes, 'devices': 8}}\n"
    )
    try:
        job = import_text(
            f'nemo llm pretrain --factory "{factory}"', "x", "nemo", around=Around(recipe_file=file)
        ).value
    except InputError as error:
        assert "\n" not in str(error) and "\x1b" not in str(error)
    else:
        assert job.gpus in (None, 8)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    """A stream without end, a folder, a file of another kind: one line each."""
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0")
    for place in ("/dev/zero", "/dev/full", tmp_path, tmp_path / "binary.py", tmp_path / "absent.py"):
        around = Around(recipe_file=tmp_path / place)
        with pytest.raises(InputError) as caught:
            import_text("nemo llm pretrain --factory r", "x", "nemo", around=around)
        assert "\n" not in str(caught.value)
