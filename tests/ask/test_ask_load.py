"""Models, clusters, layouts and jobs from anything: names, files, pipes, standard input; silent, and named by the asker."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layoutopt import InputError, evaluate, load_cluster, load_job, load_model
from layoutopt.cli import COMMANDS
from layoutopt.optimizer.ask.job import load_job as ask_job
from layoutopt.optimizer.ask.load import load_layout, load_sources
from layoutopt.optimizer.ask.load import load_model as load_noted
from layoutopt.optimizer.ask.records import JobRequest, RunChoices
from layoutopt.optimizer.report.commands.inputs import OPTIONS
from layoutopt.optimizer.specs import document

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "interop" / "samples"
CONFIG, TRAIN = str(SAMPLES / "hf_llama.json"), str(SAMPLES / "megatron_train.sh")

QUIET = f"""
import sys
from layoutopt import load_cluster, load_job, load_model
notes = []
load_model({CONFIG!r}, global_batch=64, notes=notes)
load_job({TRAIN!r}, cluster="h100-256")
load_cluster("h100x16", gpus=8)
assert notes, "a config that names no run has something to say"
print([name for name in ("click", "rich") if name in sys.modules])
"""


def test_the_library_prints_nothing_and_needs_no_click() -> None:
    """Loading in Python says nothing to stderr and imports neither click nor rich; notes are data."""
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("run", "python", "option"),
    [
        (RunChoices(), "global_batch", "--batch"),
        (RunChoices(global_batch=4, batch_tokens=8192.0), "batch_tokens", "--batch-tokens"),
        (RunChoices(batch_tokens=1e30), "batch_tokens", "--batch-tokens"),
        (RunChoices(batch_tokens=93.0), "batch_tokens", "--batch-tokens"),
        (RunChoices(global_batch=4, precision=("fp9",)), "precision", "--precision"),
    ],
)
def test_messages_name_what_was_given(run: RunChoices, python: str, option: str) -> None:
    """In Python the argument, on the command line the option, and never the other's."""
    with pytest.raises(InputError) as argument:
        load_noted(CONFIG, run)
    with pytest.raises(InputError) as on_command_line:
        load_noted(CONFIG, run, names=OPTIONS)
    assert python in str(argument.value) and "--" not in str(argument.value)
    assert option in str(on_command_line.value) and f"{python}:" not in str(on_command_line.value).replace(
        option, ""
    )


def test_problems_inside_files_keep_their_keys(tmp_path: Path) -> None:
    """A model file's own wrong key is not renamed to an option."""
    file = tmp_path / "model.yaml"
    text = (ROOT / "models" / "llama3-8b.yaml").read_text()
    file.write_text(text.replace("precision: bf16", "precision: fp9"))
    with pytest.raises(InputError) as wrong:
        load_noted(str(file), names=OPTIONS)
    assert "training.precision" in str(wrong.value) and "--precision" not in str(wrong.value)


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a text on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` is a model file, another tool's configuration, a cluster file or a layout."""
    stdin(monkeypatch, (ROOT / "models" / "llama3-8b.yaml").read_text())
    assert load_model("-") == load_model(ROOT / "models" / "llama3-8b.yaml")
    stdin(monkeypatch, Path(CONFIG).read_text())
    assert load_model("-", global_batch=64).model.layers == load_model(CONFIG, global_batch=64).model.layers
    stdin(monkeypatch, (ROOT / "topologies" / "h100-1024.yaml").read_text())
    assert load_cluster("-", gpus=64) == load_cluster("h100-1024", gpus=64)
    stdin(monkeypatch, "tp: 8\npp: 2\n")
    assert load_layout("-").tp == 8
    stdin(monkeypatch, "tp: [")
    with pytest.raises(InputError, match=r"^-:2: not valid YAML"):
        load_layout("-")


def test_pipes_are_read_once(tmp_path: Path) -> None:
    """A process substitution gives its text once; telling whose file it is does not use it up."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = (ROOT / "models" / "llama3-8b.yaml").read_text()
    writer = threading.Thread(target=lambda: pipe.write_text(text), daemon=True)
    writer.start()
    assert load_model(pipe) == load_model(ROOT / "models" / "llama3-8b.yaml")
    writer.join(timeout=20)


@pytest.mark.parametrize(
    "ask", [load_model, load_cluster, load_layout, lambda file: load_job(file, cluster="h100x8")]
)
def test_a_pipe_that_nobody_writes_to_is_refused(
    ask: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stated wait, by every door; a writer that is there may take longer than that."""
    monkeypatch.setattr(document, "PIPE_WAIT_S", 0.2)
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"pipe\.yaml: nothing wrote to the pipe for 0\.2 s"):
        ask(str(pipe))


def test_a_slow_writer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is for somebody to open the pipe; the text may come later, in parts."""
    monkeypatch.setattr(document, "PIPE_WAIT_S", 0.2)
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    text = (ROOT / "models" / "llama3-8b.yaml").read_text()

    def write() -> None:
        """Open the pipe at once and write twice, each time after longer than the wait."""
        with pipe.open("w") as file:
            for part in (text[:100], text[100:]):
                time.sleep(0.4)
                file.write(part)
                file.flush()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert load_model(pipe) == load_model(ROOT / "models" / "llama3-8b.yaml")
    writer.join(timeout=20)


def test_commands_read_standard_input() -> None:
    """``layoutopt evaluate - h100x8`` reads a model from a pipe."""
    words = ["evaluate", "-", "h100x8", "--layout", "tp=2,zero=1", "--json", "--batch", "64"]
    script = f"from layoutopt.cli import main; main({words!r})"
    text = (ROOT / "models" / "llama3-8b.yaml").read_text()
    done = subprocess.run(
        [sys.executable, "-c", script], input=text, capture_output=True, text=True, check=False
    )
    named = evaluate(load_model("llama3-8b", global_batch=64), load_cluster("h100x8"), "tp=2,zero=1")
    assert named.estimate is not None
    assert json.loads(done.stdout)["estimate"]["step_time_s"] == named.estimate.step_time_s


def test_a_job_in_python_is_the_job_of_the_command_line(run: Callable[..., str]) -> None:
    """``load_job`` reads what ``evaluate --from`` reads, and its notes are what the command says."""
    job = load_job(TRAIN, cluster="h100-256")
    priced = json.loads(run("evaluate", "--from", TRAIN, "--cluster", "h100-256", "--json"))
    assert priced["layout"]["tp"] == job.layout.tp and priced["layout"]["pp"] == job.layout.pp
    with pytest.raises(InputError, match=r"files: no launch file is among them"):
        load_job(CONFIG, cluster="h100-256")
    with pytest.raises(InputError, match=r"layout: missing \(layout="):
        load_job(cluster="h100-256")


@pytest.fixture
def run() -> Callable[..., str]:
    """Return a function that runs ``layoutopt`` and returns its stdout."""
    from click.testing import CliRunner

    from layoutopt.cli import main

    return lambda *words: CliRunner().invoke(main, list(words)).stdout


def test_no_command_module_is_imported_by_the_library() -> None:
    """The Python interface stands on ``ask``, not on the commands."""
    script = (
        "import sys, layoutopt; layoutopt.load_model('llama3-8b'); layoutopt.evaluate; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not [name for name in loaded.split() if ".report.commands" in name]
    assert COMMANDS


@pytest.mark.parametrize(
    ("run", "key"),
    [
        (RunChoices(settings=(("TP", "4"),)), "settings"),
        (RunChoices(arguments=((1, "8"),)), "arguments"),
        (RunChoices(function="llama3_8b"), "function"),
        (RunChoices(recipe_file="recipe.py"), "recipe_file"),
    ],
)
def test_what_only_other_files_take_is_refused(run: RunChoices, key: str, tmp_path: Path) -> None:
    """A built-in model has no variables, nor has a DeepSpeed file beside it."""
    for ask in (lambda: load_noted("llama3-8b", run), lambda: load_sources(["llama3-8b", "h100x16"], run)):
        with pytest.raises(InputError, match="does not apply to llama3-8b") as caught:
            ask()
        assert caught.value.problems[0].key == key
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 16, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    request = JobRequest(model="llama3-8b", cluster="h100x16", layout="tp=1,pp=1,mb=1", files=(str(file),))
    with pytest.raises(InputError, match="does not apply to deepspeed-json"):
        ask_job(request, run)


def test_a_variable_that_nothing_reads_is_named_with_the_nearest(tmp_path: Path) -> None:
    """``TPP`` for ``TP`` changes nothing and would pass unseen."""
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 "
        "--seq-length 1024 --tensor-model-parallel-size ${TP:-2} --vocab-size 1024 --micro-batch-size 1 "
        "--global-batch-size 8 --bf16\n"
    )
    with pytest.raises(InputError, match=r"nothing reads the variable TPP that is given \(TP\)"):
        load_noted(str(script), RunChoices(settings=(("TPP", "4"),)))
    assert load_noted(str(script), RunChoices(settings=(("TP", "4"),))).value.training.global_batch == 8
