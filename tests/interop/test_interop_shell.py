"""Scripts are read as bash would run them: each is really run, with programs that only write down their arguments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks.launches import parse_script

from layoutopt.optimizer.interop.shell.record import Outside
from layoutopt.optimizer.interop.shell.scripts import read_commands
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.scripts import Script

SHELL = Path(__file__).parent / "shell"
BASH = shutil.which("bash")

_RECORDER = r"""#!{bash}
{{ printf '%s\0' {name} "$@"; printf '\n\0'; }} >> "$RECORD"
[ {launches} = yes ] || exit 0
for ((place = 1; place <= $#; place++)); do
  case ${{!place}} in sh | bash | python | torchrun | env | */python) exec "${{@:place}}" ;; esac
done
"""
_PROGRAMS = {"python": "no", "torchrun": "no", "srun": "yes", "mpirun": "yes", "nohup": "yes"}
_INNERMOST = ("python", "torchrun")
CORPORA = ("corpus.txt", "manners.txt", "strangers.txt", "units.txt")
_HOLE = re.compile("\ue000[^\ue001]*\ue001")


def scripts(*files: str) -> dict[str, str]:
    """Return the scripts of a corpus by name."""
    parts = [part.partition("\n") for file in files for part in (SHELL / file).read_text().split("### ")[1:]]
    assert len({name for name, _, _ in parts}) == len(parts)
    return {name: text for name, _, text in parts}


def recorded(text: str, folder: Path) -> list[list[str]]:
    """Run a script in an empty folder and return what the innermost programs were given."""
    programs = folder / "bin"
    programs.mkdir()
    for name, launches in _PROGRAMS.items():
        file = programs / name
        file.write_text(_RECORDER.format(bash=BASH, name=name, launches=launches))
        file.chmod(0o755)
    work, record = folder / "work", folder / "record"
    work.mkdir()
    (work / "script.sh").write_text(text)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "RECORD": str(record), "HOME": str(work)}
    assert BASH
    subprocess.run([BASH, "script.sh"], cwd=work, env=env, check=False, timeout=20, capture_output=True)
    calls = record.read_text().split("\n\0")[:-1] if record.exists() else []
    return [words for words in (call.split("\0")[:-1] for call in calls) if words[0] in _INNERMOST]


def started(script: Script) -> list[list[str]]:
    """Return the programs that a script starts as it was read, from the first one's name on."""
    read = []
    for words in script.commands:
        first = next((place for place, word in enumerate(words) if word in _INNERMOST), None)
        if first is not None:
            read.append(list(words[first:]))
    return read


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@pytest.mark.parametrize("name", scripts(*CORPORA))
def test_arguments_are_those_that_bash_passes(name: str, tmp_path: Path) -> None:
    """Word for word, for every program that the script starts, in order."""
    text = scripts(*CORPORA)[name]
    calls = recorded(text, tmp_path)
    assert calls, "the script starts nothing"
    assert started(parse_script(text, outside=Outside())) == calls


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@pytest.mark.parametrize("name", scripts("open.txt"))
def test_what_is_not_known_is_open_and_never_another_word(name: str, tmp_path: Path) -> None:
    """Refused, or one of the ways through the script that are offered is bash's, open words aside."""
    text = scripts("open.txt")[name]
    calls = recorded(text, tmp_path)
    ways: list[list[list[str]]] = []

    def keep(script: Script) -> tuple[str, ...]:
        ways.append(started(script))
        return tuple(str(words) for words in ways[-1])

    try:
        read_commands(text, keep)
    except InputError:
        return
    assert any(_same(way, calls) for way in ways)
    assert len(ways) > 1 or any(_HOLE.search(word) for words in ways[0] for word in words)


def _same(read: list[list[str]], calls: list[list[str]]) -> bool:
    """Compare words; an open part of one may be anything, an open word also none."""
    patterns = [" ".join(".*".join(map(re.escape, _HOLE.split(word))) for word in words) for words in read]
    texts = [" ".join(words) for words in calls]
    return len(patterns) == len(texts) and all(
        re.fullmatch(pattern.replace(" .* ", " (.* )?"), text, re.DOTALL)
        for pattern, text in zip(patterns, texts, strict=True)
    )


BASE = (
    "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 --bf16 "
    "--vocab-size 128256 --micro-batch-size 1 --global-batch-size 128"
)


def job(text: str, **outside: Any) -> ImportedJob:
    """Read a launch script of Megatron-LM."""
    value: ImportedJob = import_text(text, "run.sh", "megatron-args", outside=Outside(**outside)).value
    return value


def test_one_element_may_hold_a_flag_and_its_value() -> None:
    """An unquoted array is split, a quoted one is not."""
    got = job(f'A=("--fp8-format hybrid" "--tensor-model-parallel-size 2")\ntorchrun {BASE} ${{A[@]}}')
    assert got.training.precision is Precision.FP8 and got.layout.tp == 2


def test_an_array_set_elsewhere_leaves_the_axes_open() -> None:
    """It may hold any degree: named, with its line and the option that gives it, and no degree is made up."""
    text = f"source ./parallel.env\ntorchrun --nproc-per-node 8 {BASE} ${{PARALLEL_ARGS[@]}}"
    got = job(text)
    assert (got.layout.tp, got.layout.pp, got.layout.zero) == (None, None, None)
    assert got.layout.micro_batch == 1
    last = got.missing[-1]
    assert "$PARALLEL_ARGS (line 2)" in last and "./parallel.env was not found" in last
    assert "tp" in last and "zero" in last and "--set PARALLEL_ARGS=..." in last
    given = job(
        text, variables={"PARALLEL_ARGS": "--tensor-model-parallel-size 4 --use-distributed-optimizer"}
    )
    assert (given.layout.tp, given.layout.pp, given.layout.zero, given.missing) == (4, 1, 1, ())
    beside = job(text, beside={"./parallel.env": "PARALLEL_ARGS=(--pipeline-model-parallel-size 4)"}.get)
    assert (beside.layout.tp, beside.layout.pp) == (1, 4)


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("mpirun -np 64 --map-by ppr:8:node python", 64),
        ("mpiexec -n 16 python", 16),
        ("torchrun --nproc_per_node 8", 8),
        ("python -m torch.distributed.launch --nproc_per_node=4", 4),
        ("torchrun --nproc_per_node 8 --nnodes=2", 16),
        ("deepspeed --num_gpus 8 --num_nodes 4", 32),
        ("accelerate launch --num_processes 24", 24),
        ("srun -N 2 --ntasks-per-node=8 python", 16),
        ("srun -n48 python -u", 48),
        ("python", None),
    ],
)
def test_launchers_say_how_many_gpus(launcher: str, gpus: int | None) -> None:
    """Each in its own words; torchrun alone means one node."""
    assert job(f"{launcher} {BASE}").gpus == gpus


def test_a_command_in_a_string_run_by_another_shell() -> None:
    """SBATCH lines count the nodes, and what Slurm sets from them is known."""
    head = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"
    got = job(
        f'{head}opts="{BASE} --tensor-model-parallel-size 2"\ncmd="python -u $opts"\nsrun -l sh -c "$cmd"'
    )
    assert (got.gpus, got.layout.tp, got.layout.micro_batch) == (32, 2, 1)
    got = job(f"{head}srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_NTASKS_PER_NODE {BASE}")
    assert got.gpus == 32


def test_branches_that_change_the_job_are_offered_and_not_merged() -> None:
    """The line, the branches and the way to decide; given that, the right one holds."""
    sizes = "case $SIZE in\n 8B) TP=1;;\n 70B) TP=8;;\nesac\n"
    text = f"SIZE=$1\n{sizes}torchrun {BASE} --tensor-model-parallel-size $TP"
    with pytest.raises(InputError) as caught:
        job(text)
    line = str(caught.value)
    assert line.startswith("run.sh:2: TP set in one of several branches ($1 is 8B | $1 is 70B)")
    assert "--arg 1=..." in line and "--set SIZE=..." in line
    assert job(text, arguments={1: "70B"}).layout.tp == 8
    assert job(text, variables={"SIZE": "8B"}).layout.tp == 1


def test_branches_that_change_nothing_are_no_question() -> None:
    """Where a log interval hangs on a variable from outside, the job is the same."""
    text = f'if [ -n "$DEBUG" ]; then EXTRA="--log-interval 1"; fi\ntorchrun --nproc-per-node 8 {BASE} $EXTRA "$@"'
    got = job(text)
    assert got.layout.tp == 1 and not got.missing
    assert any("$@" in note for note in got.notes)


def test_defaults_hold_and_are_said() -> None:
    """``${TP:-4}`` is 4 as long as nothing else is given."""
    text = f"TP=${{TP:-4}}; MBS=${{1:-2}}\ntorchrun {BASE} --micro-batch-size $MBS --tensor-model-parallel-size $TP"
    got = job(text)
    assert (got.layout.tp, got.layout.micro_batch) == (4, 2)
    assert any("TP is not set outside" in note for note in got.notes)
    assert job(text, variables={"TP": "8"}).layout.tp == 8


@pytest.mark.parametrize(
    "text",
    [
        "x=1; while true; do x=$x$x; done",
        "f(){ f; f; }; f",
        "python {1..10000}{1..10000}",
        "x=" + "a" * 5000 + "; y=${x//a*a*a*a*b/c}; z=${x%%*a*a*a*b}",
        "(" * 5000,
        "case x in" * 500,
        "\n" * 100_000,
        "A=(" + "x " * 50_000 + ")",
    ],
)
def test_bombs_end_soon(text: str) -> None:
    """Whatever they hold, reading takes a bounded number of steps and raises nothing but ``InputError``."""
    before = time.process_time()
    with suppress(InputError):
        parse_script(text, "bomb.sh")
    assert time.process_time() - before < 10


@pytest.mark.parametrize("line", ['TP="${TP:?how many}"', "TP=${TP?}", ': "${TP:?}"; TP=$TP'])
def test_a_variable_without_which_the_script_stops_is_open(line: str) -> None:
    """Also where the script sets it to itself; bash starts nothing without it."""
    text = f"{line}\npython train.py --tp $TP\n"
    script = parse_script(text, outside=Outside())
    assert list(script.missing) == ["TP"]
    assert _HOLE.search(script.commands[0][-1])
    given = parse_script(text, outside=Outside(variables={"TP": "4"}))
    assert given.commands == (("python", "train.py", "--tp", "4"),)


def test_the_condition_that_decides_is_named_and_no_other() -> None:
    """A condition before it that changes nothing of the launch is not what has to be decided."""
    script = (
        "#!/bin/bash\n"
        'if [ "$VERBOSE" = "1" ]; then echo hello; LOG=1; fi\n'
        'if [ "$BIG" = "1" ]; then TP=8; else TP=4; fi\n'
        "torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 "
        "--tensor-model-parallel-size $TP\n"
    )
    with pytest.raises(InputError, match=r"^t\.sh:3: TP set in one of several branches .* --set BIG=\.\.\."):
        import_text(script, "t.sh")
