"""What else grows, loops or is no text: scripts with inputs and patterns, links, folders, pipes and other encodings."""

from __future__ import annotations

import gzip
import os
import threading
from contextlib import suppress
from time import process_time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.ask.load import load_cluster, load_model
from layoutopt.optimizer.interop.sources import KINDS, import_path, import_text, read_text
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

RUN = "\npython pretrain_gpt.py --num-layers 4 --micro-batch-size 1 $X"
MOST_CPU_S = 5.0

SCRIPTS = {
    "loop over a document": "while read -r a; do X=$X$a; done <<E\n" + "aaaaaaaaaa\n" * 20_000 + "E" + RUN,
    "file of itself": "echo aaaa > f\n" + "cat f f f f > g; cat g g g g > f\n" * 30 + "X=$(cat f)" + RUN,
    "replacement of itself": "X=aaaaaaaa\n" + "X=${X//?/$X$X}\n" * 30 + RUN,
    "stars": "X=" + "a" * 1_900 + "\n[[ $X == *a*a*a*a*a*a*a*b ]] && X=1" + RUN,
    "expression": "X=" + "a" * 1_900 + "\n[[ $X =~ a*a*a*a*a*a*b ]] && X=1" + RUN,
    "groups": "X=" + "a" * 90 + "b\ncase $X in +(a|aa|a)) X=1;; *(a|b)*(a|b)*(a|b)*(a|b)c) X=2;; esac" + RUN,
    "trim": "X=" + "a" * 900 + "\nX=${X##*a*a*a*b}; X=${X%%*(a|b)*(a|b)c}" + RUN,
    "references": "declare -n a=b; declare -n b=a; a=1; X=$a" + RUN,
    "options": "while getopts 'a' o; do X=$X$o; OPTIND=1; done" + RUN,
    "width": "printf -v X '%999d%999d%999d' 1 2 3; printf -v X '%*d' 99999999 1" + RUN,
    "braces": "X=$(echo {a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b})"
    + RUN,
    "open braces": "X=" + "{" * 20_000 + "a,b" + RUN,
    "index": "A[999999999999]=1; A[0]=2; X=${A[@]}" + RUN,
    "numbers": "X=$(seq 1 9999); for a in $X; do for b in $X; do Y=$a$b; done; done" + RUN,
    "pipes": "echo a" + " | cat" * 3_000 + RUN,
    "shells": 'X=\'bash -c "$X$X"\'; export X; bash -c "$X"' + RUN,
    "here-documents": "".join(f"cat <<E{n}\n$(cat <<F{n}\n" for n in range(300)) + RUN,
    "quotes": "X=" + '"$(echo ' * 2_000 + RUN,
    "keys": "declare -A A; " + "".join(f"A[k{n}]=v{n};" for n in range(5_000)) + "X=${!A[@]}" + RUN,
    "mapfile": "mapfile -t A < <(printf 'x%.0s\\n' {1..5000}); X=${A[@]}" + RUN,
    "set": 'set -- $(seq 1 9999); while (($#)); do shift; set -- "$@"; done' + RUN,
    "trap": "trap 'trap \"$X\" EXIT; X=$X$X' EXIT" + RUN,
    "sort": "X=$(seq 1 9999 | sort -rn | head -5000 | tail -3000 | grep -v 5 | wc -l)" + RUN,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_that_grow_are_read_or_refused(name: str) -> None:
    """Within five seconds of CPU, and with nothing but ``InputError``."""
    start = process_time()
    with suppress(InputError):
        import_text(SCRIPTS[name], "run.sh", "megatron-args")
    assert process_time() - start < MOST_CPU_S


TEXTS = {
    "NULs": "\0" * 50_000,
    "NUL in a key": "num_layers\0: 4\nmodel:\n  a: \0\n",
    "surrogate": "model_type: \ud800",
    "merge keys": "a: &a {x: 1}\n"
    + "".join(f"k{n}: &k{n} {{<<: [*{f'k{n - 1}' if n else 'a'}, *a], y{n}: 1}}\n" for n in range(300)),
    "merge of itself": "a: &a\n  <<: *a\n",
    "huge exponent": '{"model_type": "llama", "hidden_size": 1e999999, "train_batch_size": 1e400}',
    "deep JSON": '{"model_type": "llama", "text_config": ' * 900 + "1" + "}" * 900,
    "huge indent": "a:\n" + "".join(" " * n + f"k{n}:\n" for n in range(1, 900)),
    "tags": "!!python/object/apply:os.system [echo]\n",
    "binary": "a: !!binary " + "A" * 100_000,
    "set": "!!set {" + ", ".join(f"k{n}" for n in range(20_000)) + "}",
    "timestamps": "a: 9999-99-99T99:99:99Z\nmodel_type: 2001-02-30",
    "sexagesimal": "a: " + ":".join(["59"] * 5_000),
    "long line": "nodes: '" + "n[0-9]," * 100_000 + "'",
    "dollar lines": "$" * 200_000,
    "signs": "trainer:\n" * 20_000 + "  mcore_gpt: true\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_no_files_of_anybody(name: str) -> None:
    """Through every importer: read or refused in lines, each within five seconds."""
    for kind in (None, *KINDS):
        start = process_time()
        try:
            import_text(TEXTS[name], "x", kind)
        except InputError as error:
            assert "\n" not in str(error.problems[0])
        assert process_time() - start < MOST_CPU_S, kind


def test_links_folders_and_encodings(tmp_path: Path) -> None:
    """Links in a circle, a folder in a file's place, other encodings and packed files: one line each, as any source."""
    circle, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    circle.symlink_to(other)
    other.symlink_to(circle)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "wide.sh").write_bytes("python pretrain_gpt.py --num-layers 4".encode("utf-16-be"))
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(b" " * 50_000_000))
    for name in ("a.yaml", "folder.yaml", "wide.sh", "latin.yaml", "packed.json.gz"):
        place = tmp_path / name
        for read in (read_text, import_path, load_model):
            with pytest.raises(InputError) as caught:
                read(place)
            assert "\n" not in str(caught.value)
        with pytest.raises(InputError):
            load_cluster(str(place))
        done = CliRunner().invoke(main, ["import", str(place)])
        assert done.exit_code == 2 and "Traceback" not in done.stderr


def test_a_pipe_without_end_is_read_to_the_limit(tmp_path: Path) -> None:
    """The writer is left alone at 64 MB; the message names the pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with suppress(BrokenPipeError), pipe.open("wb") as file:
            while True:
                file.write(b"x" * 2**20)

    threading.Thread(target=write, daemon=True).start()
    with pytest.raises(InputError, match="larger than"):
        load_model(pipe)


def test_sourced_files_may_be_links_and_folders(tmp_path: Path) -> None:
    """A script that sources itself, a circle of two, a folder or a device reads what there is and ends."""
    for name, text in {
        "self.sh": "source ./self.sh",
        "one.sh": "source ./two.sh",
        "two.sh": "source ./one.sh",
        "dir.sh": "source ./folder.env; source /dev/zero; source ./loop.env",
    }.items():
        (tmp_path / name).write_text(text + RUN)
    (tmp_path / "folder.env").mkdir()
    (tmp_path / "loop.env").symlink_to(tmp_path / "loop.env")
    for name in ("self.sh", "one.sh", "dir.sh"):
        start = process_time()
        with suppress(InputError):
            import_path(tmp_path / name)
        assert process_time() - start < MOST_CPU_S
