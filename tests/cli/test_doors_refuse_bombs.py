"""Every command's files: what unfolds, nests, never ends or never begins is refused in one line, cheaply."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from layoutopt.cli import COMMANDS
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.rows import pack_plan, unpack_plan

DOORS = {
    "solve": ("{f} h100x8", "llama3-8b {f}", "llama3-8b h100@{f}"),
    "evaluate": (
        "llama3-8b h100x8 --layout {f}",
        "h100x8 --from {f}",
        "llama3-8b h100x8 --layout tp=1 --from {f}",
    ),
    "explain": ("llama3-8b h100x8 --layout {f}",),
    "sweep": ("{f} h100x8", "llama3-8b h100x8 --store {f}"),
    "plan": ("{f} h100x8",),
    "pareto": ("{f} h100x8",),
    "simulate": ("{f}",),
    "verify": ("{f}",),
    "validate": ("{f}",),
    "calibrate": ("{f} --cluster h100x8 -o out.yaml",),
    "next-runs": ("{f} h100x8",),
    "diagnose": ("{f} {f}",),
    "import": ("{f}", "{f} --job {f}"),
    "export": ("{f} --to megatron-lm",),
    "topology": ("show {f}",),
    "model": ("show {f}",),
    "cluster": ("show {f}",),
}
"""Arguments by command; ``{f}`` is the bomb."""

WITHOUT_FILES = {"published", "rules", "catalog", "schema"}

_CHILD = """
import sys
from time import process_time
from click.testing import CliRunner
from layoutopt.cli import main
from layoutopt.optimizer.specs import document

document.PIPE_WAIT_S = 0.05
worst = 0.0
for line in sys.stdin:
    start = process_time()
    result = CliRunner().invoke(main, line.split())
    worst = max(worst, process_time() - start)
    said = result.stderr or result.output
    assert result.exit_code == 2 and "Traceback" not in said, (line, result.exit_code, said[-300:])
peaks = [row.split()[1] for row in open("/proc/self/status") if row.startswith("VmHWM:")]
print(peaks[0], worst)
"""


def test_every_command_is_a_door_or_reads_no_file() -> None:
    """A new command is added to the table."""
    assert set(DOORS) | WITHOUT_FILES == set(COMMANDS)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_every_door_refuses_every_bomb(tmp_path: Path) -> None:
    """Below 300 MB for all of them in one process, and none takes five seconds."""
    unfolding = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    unfolding += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    for name, text in {
        "aliases.yaml": unfolding,
        "blank.yaml": "\n" * 10_000,
        "nested.json": '{"layout": ' + "[" * 5_000,
        "number.json": '{"layout": ' + "9" * 100_000 + "}",
        "number.yaml": "architecture: {layers: " + "9" * 100_000 + "}\n",
    }.items():
        (tmp_path / name).write_text(text)
    gzipped = subprocess.run(
        "head -c 300000000 /dev/zero | gzip -1", shell=True, capture_output=True, check=True
    ).stdout
    for name in ("packed.json", "trace.json.gz"):
        (tmp_path / name).write_bytes(gzipped)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.yaml", b" " * 30_000_000)
    os.mkfifo(tmp_path / "pipe.yaml")
    bombs = [*sorted(map(str, tmp_path.iterdir())), "/dev/zero"]
    asked = [f"{name} {door.format(f=f)}" for name, doors in DOORS.items() for door in doors for f in bombs]
    ran = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input="\n".join(asked), capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-800:]
    peak_kib, worst_s = map(float, ran.stdout.split())
    assert peak_kib < 300 * 1024
    assert worst_s < 5.0


def test_a_stored_plan_is_unpacked_up_to_the_length_of_a_plan() -> None:
    """120 MB of blanks in a small row, a plan that is cut, and a nest are a damaged store."""
    for packed in (
        zlib.compress(b'{"a": "' + b" " * 120_000_000 + b'"}', 1),
        pack_plan({"a": 1})[:-4],
        zlib.compress(b"[" * 100_000),
    ):
        with pytest.raises(InputError, match="a stored plan is damaged"):
            unpack_plan(packed, file="s.db")
    assert unpack_plan(pack_plan({"a": 1})) == {"a": 1}
