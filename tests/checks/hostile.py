"""Bad inputs by seed: every command with one thing wrong, in its options, arguments, files, standard streams or sizes."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checks.forked import Streams, run_forked

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[1]
SAMPLES = DATA / "interop" / "samples"
MODEL = """name: tiny
architecture: {layers: 4, hidden: 1024, heads: 8, kv_heads: 4, ffn: 2816, gated: true, vocab: 32000}
training: {sequence_length: 2048, global_batch: 32, total_tokens: 1B, precision: bf16}
"""
CLUSTER = """name: small
gpu: h100
nodes: 2
gpus_per_node: 8
nic_bandwidth: 400 Gbit/s
levels: [{name: leaf, nodes: 2, latency: 1 us}]
failures: {gpu_hours_per_failure: 40000, restart: 10 min}
"""
TAKEN = {
    "hf_llama.json": "config.json", "megatron_train.sh": "train.sh", "megatron_moe.sh": "moe.sh",
    "torchtitan_era_a.toml": "titan.toml", "accelerate.yaml": "accelerate.yaml", "nanotron.yaml": "nanotron.yaml",
    "deepspeed_zero2.json": "ds.json", "nccl_all_reduce.txt": "nccl.txt", "topology.conf": "topology.conf",
    "torchtitan.log": "titan.log", "oom.txt": "oom.txt", "slurm_env.txt": "slurm.txt", "fabric.graphml": "fabric.graphml",
}  # fmt: skip
ASK = "model.yaml cluster.yaml -q"
COMMANDS = (
    f"solve {ASK} -o old.json",
    f"solve {ASK} --fix tp=2 --max pp=2 --require tp*cp<=8 --json",
    f"solve {ASK} --space",
    f"solve {ASK} --minimize days --mtbf 40000",
    f"solve {ASK} --then memory --within 1%",
    f"solve {ASK} --report old.html",
    f"evaluate {ASK} --layout layout.yaml",
    f"evaluate {ASK} --layout tp=2,pp=2,mb=1",
    "evaluate --from train.sh --cluster cluster.yaml --gpus 16 -q",
    f"explain {ASK} --layout plan.json --why-not tp=8",
    f"sweep {ASK} --batch 32,64 -j 1 --store s.db",
    "sweep export --store s.db --where model=tiny -o old.csv",
    f"plan {ASK} --gpu-hour-cost 2.5",
    f"plan {ASK} --report old.html",
    f"pareto {ASK} --of time,memory --points 3",
    "simulate plan.json -q --trace old.json",
    "verify plan.json -q",
    "validate runs.csv -q",
    "calibrate runs.csv --cluster a100-40gx16 -q -o old.yaml",
    f"next-runs {ASK} --budget 10",
    "diagnose plan.json titan.log -q",
    "diagnose model.yaml --gpu h100 --gpus 16 --tokens-per-s 100k -q",
    "export plan.json --to megatron-lm -q -o job",
    "export plan.json --to torchtitan -q",
    "published --no-search -q",
    "topology show cluster.yaml -q --graph old.graphml",
    "topology cost cluster.yaml --collective all-reduce --bytes 1GB --ranks 8 -q",
    "model show model.yaml -q",
    "cluster show cluster.yaml --yaml",
    "rules heads -q",
    "catalog gpus h100",
    "schema model",
    *(f"import {name}" for name in TAKEN.values()),
    "solve config.json cluster.yaml --batch 32 --seq 2048 -q",
    "explain model.yaml cluster.yaml --from oom.txt -q",
)
"""Lines that work, or are refused with a word, as they stand; one thing in one of them is made wrong."""

VALUES = (
    "", " ", "²", "-1", "0", "1e400", "nan", "-inf", "9" * 400, "a" * 5000, "\udcff\udcfe", "tp=²", "tp=8,tp", "=", "a=b=c",
    "--", "-", "/dev/null", "/", "/dev/full", "no/such/file", "€", "1,5", "1:2:x0", "10:1:+1", "1:9:x1", "1:9:-1", "\u202e",
    "%s{}", "[1", "1/0", "__import__('os')", "(" * 3000, "9**9**9", "tp<=8<=9", "tp" * 900 + "<=1", "1 parsec", "1e-400 s",
    "1_0", "٣", "0x10", "\x1b[31m", "a\nb", "true", "~", "{}", ",,,", "tp=1e3", "200%", "-5%", "1e18", "💥", "megatron ",
    "2024-13", "core 0.", "layers[9999]<=1", "layers[-1]<=0", "peak_gb<=nan", "tp%0==1", "max(tp)", "not tp",
    "tp if tp else 1",
)  # fmt: skip
SCALARS = (
    "", "0", "-1", "1e400", ".nan", ".inf", "-.inf", "~", "true", "[]", "{}", "[[[]]]", "{a: 1}", "'", '"', "9" * 40,
    "1e308", "x", "0x1F", "1:30:00", "2024-01-01", "!!python/object:os.system x", "*x", "&x 1", "<<: *x",
    "80 GB", "1 Gbit/s", "²", "\t", "5e-324", "0.5", "3.7", "100000000", "\u2028", "\x85", "null", "NaN",
    "Infinity", "1" * 5000,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bad input: the words, what is done to the folder, and the streams."""

    kind: str
    words: tuple[str, ...]
    streams: Streams = field(default_factory=Streams)
    files: tuple[tuple[str, bytes], ...] = ()
    places: tuple[tuple[str, str], ...] = ()
    """Names that become a folder, a link to nothing, a link to itself or are taken away."""


def make_folder(folder: Path) -> None:
    """Write every file that the commands name, valid all of them."""
    (folder / "model.yaml").write_text(MODEL, encoding="utf-8")
    (folder / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    (folder / "layout.yaml").write_text("tp: 2\npp: 2\nmicro_batch: 1\n", encoding="utf-8")
    for source, name in TAKEN.items():
        shutil.copy(SAMPLES / source, folder / name)
    rows = (DATA / "data" / "evidence" / "runs_a100.csv").read_bytes().splitlines(keepends=True)[:13]
    (folder / "runs.csv").write_bytes(b"".join(rows))
    for line in (f"solve {ASK} -o plan.json", f"sweep {ASK} --batch 32,64 -j 1 --store s.db"):
        done = run_forked(line.split(), folder, Streams())
        assert done.code == 0, done.stderr


def case_of(seed: int, folder: Path) -> Case:
    """Draw a case; the same seed gives the same one in a folder of the same files."""
    draw = random.Random(seed)
    words = draw.choice(COMMANDS).split()
    kinds: tuple[tuple[Callable[[random.Random, list[str], Path], Case], int], ...] = (
        (_option, 30), (_argument, 12), (_file, 34), (_stdin, 6), (_streams, 10), (_place, 8),
    )  # fmt: skip
    make = draw.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    return make(draw, words, folder)


@cache
def options_of(name: str, inner: str) -> tuple[tuple[str, bool], ...]:
    """Return the options of a command, each with whether it takes a value."""
    from layoutopt.cli import main

    command = main.get_command(click.Context(main), name)
    if isinstance(command, click.Group):
        command = command.get_command(click.Context(command), inner if inner in command.commands else "")
    assert command is not None
    options = [param for param in command.params if isinstance(param, click.Option)]
    return tuple((option.opts[-1], not option.is_flag) for option in options)


def _option(draw: random.Random, words: list[str], folder: Path) -> Case:
    """Give any option of the command a value that it may not be ready for."""
    name, valued = draw.choice(options_of(words[0], words[1] if len(words) > 1 else ""))
    value = draw.choice(VALUES)
    added = [f"{name}={value}"] if valued and draw.random() < 0.5 else [name, value] if valued else [name]
    return Case(kind="option", words=(*words, *added))


def _argument(draw: random.Random, words: list[str], folder: Path) -> Case:
    """Replace, drop or repeat a word."""
    at = draw.randrange(1, len(words)) if len(words) > 1 else 0
    change = draw.choice(("replace", "replace", "replace", "drop", "repeat"))
    changed = {
        "replace": [*words[:at], draw.choice(VALUES), *words[at + 1 :]],
        "drop": [*words[:at], *words[at + 1 :]],
        "repeat": [*words, words[at]],
    }[change]
    return Case(kind="argument", words=tuple(changed))


def _read(words: list[str], folder: Path) -> list[str]:
    """Name the files of the folder that the words name and that are read."""
    return [word for word in words if (folder / word).is_file() and not word.startswith("old.")]


def _file(draw: random.Random, words: list[str], folder: Path) -> Case:
    """Damage a file that the command reads."""
    read = _read(words, folder) or ["model.yaml"]
    name = draw.choice(read)
    content = damaged(draw, (folder / name).read_bytes())
    words = words if name in words else ["model", "show", name, "-q"]
    return Case(kind=f"file {name}", words=tuple(words), files=((name, content),))


def _stdin(draw: random.Random, words: list[str], folder: Path) -> Case:
    """Give a file by standard input, whole, damaged, or nothing at all."""
    read = _read(words, folder)
    name = draw.choice(read or ["model.yaml"])
    whole = (folder / name).read_bytes()
    content = draw.choice((whole, damaged(draw, whole), b"", b"\0" * 5000, b"\xff\xfe"))
    replaced = tuple("-" if word == name else word for word in words) if read else (*words, "-")
    return Case(kind="stdin", words=replaced, streams=Streams(stdin=content))


def _streams(draw: random.Random, words: list[str], folder: Path) -> Case:
    """Close streams, fill the disk behind stdout, or speak an encoding that holds few characters."""
    name, files = "Größe 模型 \udcff", tuple[tuple[str, bytes], ...]()
    if "model.yaml" in words:
        model = MODEL.replace("tiny", "größe-模型-💥").encode()
        words = [name if word == "model.yaml" else word for word in words]
        files = ((name, model),)
    streams = draw.choice((
        Streams(encoding="ascii"), Streams(encoding="latin-1"), Streams(encoding="cp1252"), Streams(encoding="utf-16"),
        Streams(closed=(0,)), Streams(closed=(1,)), Streams(closed=(2,)), Streams(closed=(0, 1, 2)), Streams(full=True),
    ))  # fmt: skip
    return Case(kind="streams", words=tuple(words), streams=streams, files=files)


def _place(draw: random.Random, words: list[str], folder: Path) -> Case:
    """Put something else where a file is read or written."""
    names = [word for word in words if (folder / word).is_file()] or ["model.yaml"]
    return Case(
        kind="place",
        words=tuple(words),
        places=((draw.choice(names), draw.choice(("folder", "lost", "circle", "gone"))),),
    )


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Damage a file: bytes, lines, values, size or encoding."""
    lines = content.splitlines(keepends=True) or [b"\n"]
    at, position = draw.randrange(len(lines)), draw.randrange(len(content) + 1)
    text = content.decode("utf-8", "replace")
    scalar = draw.choice(SCALARS)

    def value() -> bytes:
        """Put another value behind a colon, an equals sign, a comma or a space."""
        places = [spot for spot, letter in enumerate(text) if letter in ":=, "]
        if not places:
            return scalar.encode()
        spot = draw.choice(places) + 1
        end = next((i for i in range(spot + 1, len(text)) if text[i] in ",}]\n "), len(text))
        return f"{text[:spot]} {scalar}{text[end:]}".encode()

    changes: tuple[Callable[[], bytes], ...] = (
        value, value, value, value,
        lambda: content[:position],
        lambda: content[:position] + bytes([draw.randrange(256)]) + content[position + 1 :],
        lambda: bytes(draw.randrange(256) if draw.random() < 0.02 else byte for byte in content),
        lambda: b"".join(lines[:at] + lines[at + 1 :]),
        lambda: b"".join(lines[: at + 1] + lines[at:]),
        lambda: b"".join([*lines[:at], f"{scalar}: {scalar}\n".encode(), *lines[at:]]),
        lambda: b"".join(draw.sample(lines, len(lines))),
        lambda: text.encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: b"",
        lambda: b"\0" * 4096,
        lambda: content * 40,
        lambda: b"[" * 50_000,
        lambda: b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" * 5 + content,
        lambda: b"\x1f\x8b" + content,
        lambda: b"SQLite format 3\0" + content[16:],
    )  # fmt: skip
    return draw.choice(changes)()
