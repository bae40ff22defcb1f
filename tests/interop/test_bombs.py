"""Small files that unfold, streams without end and folders with a built-in's name: refused, cheaply, in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from layoutopt.optimizer.ask.load import is_foreign_model, load_model
from layoutopt.optimizer.interop.reading import parse_yaml_value
from layoutopt.optimizer.interop.shell.scripts import read_commands
from layoutopt.optimizer.interop.sources import KINDS, detect_kind, import_text, read_text
from layoutopt.optimizer.specs.document import MAX_BYTES
from layoutopt.optimizer.specs.errors import InputError

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
"""Nine levels of nine: under 500 bytes, 430 million values."""

BOMBS = {
    "aliases": LAUGHS,
    "merge": "base: &b {k: 1}\n" + "".join(f"m{n}: {{<<: *b}}\n" for n in range(100)) + LAUGHS,
    "blank": "\n" * 10_000,
    "blanks": " " * 10_000 + "\n" + " \n" * 10_000 + "x",
    "nested": "[" * 5_000,
    "braces": "{" * 2_000,
    "json": '{"model_type": ' + "[" * 2_000,
    "own": "a: &a [*a]\n",
    "number": "num_layers: " + "9" * 100_000,
}
_CHILD = """
import json, resource, sys
from layoutopt.optimizer.interop.files import imported_to_plain
from layoutopt.optimizer.interop.sources import KINDS, import_text
from layoutopt.optimizer.specs.errors import InputError
bombs = json.load(sys.stdin)
worst = 0.0

def peak_kib():
    # A forked child's ru_maxrss starts at its parent's size; VmHWM is that of the program run since.
    try:
        stated = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
    except OSError:
        stated = []
    return int(stated[0]) if stated else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

for name, text in bombs.items():
    for kind in (None, *KINDS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        try:
            str(imported_to_plain(import_text(text, "x", kind)))
        except InputError as error:
            assert "\\n" not in str(error)
        worst = max(worst, resource.getrusage(resource.RUSAGE_SELF).ru_utime - before)
print(peak_kib(), worst)
"""
MOST_KIB = 300 * 1024
MOST_CPU_S = 5.0


def test_every_importer_survives_every_bomb() -> None:
    """Under 300 MB for all of them in one process, and none takes five seconds."""
    ran = subprocess.run(
        [sys.executable, "-c", _CHILD], input=json.dumps(BOMBS), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-800:]
    peak, worst = map(float, ran.stdout.split())
    assert peak < MOST_KIB
    assert worst < MOST_CPU_S


def test_aliases_are_counted_without_unfolding() -> None:
    """The line of the node that unfolds is named; what holds itself is refused as well; honest anchors are read."""
    with pytest.raises(InputError, match=r"x:6: unfolds to more than 200,000 values"):
        parse_yaml_value(LAUGHS, "x")
    with pytest.raises(InputError, match="unfolds"):
        parse_yaml_value(BOMBS["own"], "x")
    assert parse_yaml_value("a: &a [1, 2]\nb: *a\nc: {<<: {d: 3}}\n") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": 3},
    }


def test_detection_is_linear_in_blank_lines() -> None:
    """Twenty times as many lines cost at most some sixty times as much, not four hundred."""
    from time import process_time

    def seconds(lines: int) -> float:
        start = process_time()
        for _ in range(3):
            with pytest.raises(InputError):
                detect_kind("\n" * lines)
        return process_time() - start

    seconds(1_000)
    assert seconds(40_000) < 60 * max(seconds(2_000), 1e-3)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_endless_streams_are_read_to_the_limit() -> None:
    """As MODEL, and as a file to import."""
    with pytest.raises(InputError, match="larger than 4 MB"):
        load_model("/dev/zero")
    with pytest.raises(InputError, match="larger than 67 MB"):
        read_text("/dev/zero")
    endless = subprocess.run(
        f"head -c {4 * MAX_BYTES} /dev/zero | {sys.executable} -m layoutopt evaluate - h100x8 --layout tp=1",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (endless.returncode, endless.stderr.strip()) == (2, "-: is larger than 4 MB")


def test_a_folder_does_not_replace_a_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is the built-in's; a path asks for the folder."""
    folder = tmp_path / "llama3-8b"
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert load_model("llama3-8b").value.model.layers == 32
    assert not is_foreign_model("llama3-8b")
    assert is_foreign_model("./llama3-8b")


def test_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """What editors on Windows put in front of a file is left out."""
    file = tmp_path / "train.sh"
    file.write_bytes(
        b"\xef\xbb\xbf" + b"python pretrain_gpt.py --micro-batch-size 2 --tensor-model-parallel-size 4\n"
    )
    assert import_text(read_text(file)).value.layout.tp == 4


def test_kinds_are_all_tried() -> None:
    """The list that the bombs go through is that of the product."""
    assert {"hf-config", "verl", "accelerate-yaml", "slurm-yaml", "trainer-log"} <= set(KINDS)


DEEP = {
    "arithmetic": "python pretrain_gpt.py --num-layers " + "$((" * 3_000 + "1" + "))" * 3_000,
    "braces": "python pretrain_gpt.py --num-layers " + "{a," * 3_000 + "b" + "}" * 3_000,
    "groups": "{ " * 20_000 + "python pretrain_gpt.py --num-layers 3;" + " }" * 20_000,
    "tests": "if " + "[[ " * 5_000 + "; then\npython pretrain_gpt.py --num-layers 3\nfi",
    "substitutions": "X="
    + "$(" * 10_000
    + "echo 1"
    + ")" * 10_000
    + "\npython pretrain_gpt.py --num-layers $X",
    "defaults": "X=" + "${A:-" * 10_000 + "1" + "}" * 10_000 + "\npython pretrain_gpt.py --num-layers $X",
    "array": "A=(1 2 3 4 5 6 7 8)\n"
    + "A=(${A[@]} ${A[@]} ${A[@]})\n" * 30
    + "python pretrain_gpt.py --num-layers 3",
    "eval": 'X=\'eval "$X$X"\'\neval "$X"\npython pretrain_gpt.py --num-layers 3',
    "line": "python pretrain_gpt.py --num-layers 3 " + "--a b " * 300_000,
    "open": "".join(f'if [ "$A{n}" = 1 ]; then B{n}=1; fi\n' for n in range(400))
    + "python pretrain_gpt.py --num-layers 3 "
    + " ".join(f"$B{n}" for n in range(400)),
    "keys": json.dumps({f"num_layers_{n}": n for n in range(10_000)} | {"model_type": "llama"}),
    "json": '{"model_type": "llama", "rope_scaling": ' + '{"a": ' * 5_000 + "1" + "}" * 5_001,
    "digits": '{"model_type": "llama", "hidden_size": ' + "9" * 400_000 + "}",
    "log": " iteration 1/ 2 | elapsed time per iteration (ms): 1.0 |\n" * 20_000,
    "topology": "\tGPU0\tGPU1\n" + "GPU0\t X \tNV18\n" * 20_000,
    "hosts": "SLURM_JOB_NODELIST=" + "n[1-9]" * 60,
}
"""Deep, wide and long files, of shells above all."""

_OPEN = {
    name: mark * (400_000 // len(mark)) for name, mark in {
        "ends": "x )) ", "pipes": "a |\n|", "expressions": "[[ a =~ ", "brackets": "[$",
        "branches": "if x; then ", "cases": "case x in a) ", "documents": "<<E\n"
    }.items()
} | {"a pipe without end": "x|" * 10_000, "evaluated": "".join(
    f"eval '{'a )) ' * 2_000}{n}'\n" for n in range(40)
)}  # fmt: skip
"""Scripts whose errors the grammar takes time and memory with their square to pass over."""

_STOPPED = """
import json, os, sys
from contextlib import suppress
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
for name, text in json.load(sys.stdin).items():
    child = os.fork()
    if not child:
        with suppress(InputError):
            import_text(text, "x", "megatron-args")
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    print(name, used.ru_utime + used.ru_stime, used.ru_maxrss, status, sep=",", flush=True)
"""

_PARSED = """
import faulthandler, sys
faulthandler.enable()
from layoutopt.optimizer.interop.shell.syntax import parse, text_of
high = [chr(point) for point in (*range(0x80, 0xD800, 4_001), 0xFFFF, *range(0xE000, 0x10FFFF, 4_001), 0x10FFFF)]
for start in ("echo {", "echo {1..", "echo {1..2", "a=", "$", "${a", "[[ a =~ ", "<<", "case "):
    for char in high:
        text = f"x\\n{start}{char}}} y"
        assert f"{char}}} y" in text_of(parse(text)), text
        assert parse(text).text.isascii()
"""


def test_shells_and_importers_survive_depth() -> None:
    """Each kind that recognises such a file reads it or says one line, within the same bounds."""
    ran = subprocess.run(
        [sys.executable, "-c", _CHILD.replace("(None, *KINDS)", '(None, "megatron-args", "hf-config")')],
        input=json.dumps(DEEP), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-800:]
    peak, worst = map(float, ran.stdout.split())
    assert peak < MOST_KIB
    assert worst < MOST_CPU_S


def test_a_parse_has_an_end() -> None:
    """Errors whose passing over grows with the square of the script: the same bounds for each, in a process of its own.

    (A parse that is stopped leaves its stack behind, which one command does once.)
    """
    ran = subprocess.run(
        [sys.executable, "-c", _STOPPED], input=json.dumps(_OPEN), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-800:]
    for line in ran.stdout.splitlines():
        name, seconds, kib, status = line.split(",")
        assert int(status) == 0, name
        assert float(seconds) < MOST_CPU_S, name
        assert int(kib) < MOST_KIB, name
    assert len(ran.stdout.splitlines()) == len(_OPEN)


def test_no_character_ends_the_process() -> None:
    """The grammar looks up digits in a table that ends at 256: it is shown ASCII only, and the text comes back whole.

    In a process of its own, for what goes wrong here ends it.
    """
    ran = subprocess.run([sys.executable, "-c", _PARSED], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-800:]


def test_foreign_blanks_and_letters_are_of_the_word(tmp_path: Path) -> None:
    """As in bash: an ideographic or hard space parts no words, an accent ends a variable's name."""
    wide, hard = "\u3000", "\u00a0"
    script = tmp_path / "run.sh"
    script.write_text(
        f"A=a{wide}b\nB=4\nN=é{hard}\U0010ffff\n"
        "python pretrain_gpt.py --num-layers $B --run-name $A$Bé{\U0010ffff,x} --other $N --micro-batch-size 2\n"
    )
    commands, _ = read_commands(script.read_text(), lambda script: script.commands[-1])
    words = commands[0][1]
    assert words[2:] == (
        "--num-layers", "4", "--run-name", f"a{wide}b4é\U0010ffff", f"a{wide}b4éx", "--other", f"é{hard}\U0010ffff",
        "--micro-batch-size", "2",
    )  # fmt: skip
