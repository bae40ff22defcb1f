"""The one writer: links, pipes, devices, modes, failures half way, durability."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.writing import open_for_writing, require_writable, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Return a file with old content; at the end nothing temporary lies beside it."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    yield path
    assert not [item for item in tmp_path.iterdir() if item.name.startswith(".layoutopt")]


def test_a_link_stays_and_its_target_is_written(file: Path, tmp_path: Path) -> None:
    """Through two links, one of them into another folder."""
    folder = tmp_path / "links"
    folder.mkdir()
    first, second = tmp_path / "first", folder / "second"
    first.symlink_to(file.name)
    second.symlink_to("../first")
    write_file(second, b"new")
    assert first.is_symlink() and second.is_symlink() and not file.is_symlink()
    assert file.read_text() == "new"


def test_a_link_to_nothing_makes_its_target(tmp_path: Path) -> None:
    """What the link names appears; the link stays."""
    link = tmp_path / "link"
    link.symlink_to("later.json")
    write_file(link, b"new")
    assert link.is_symlink() and (tmp_path / "later.json").read_text() == "new"


def test_links_in_a_circle_are_bad_input(tmp_path: Path) -> None:
    """One clear line, no traceback."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="cannot be written"):
        write_file(tmp_path / "a", b"new")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_the_mode_stays(file: Path, mode: int) -> None:
    """A private file stays private, a script stays a script."""
    file.chmod(mode)
    write_file(file, b"new")
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_new_files_follow_the_mask(tmp_path: Path) -> None:
    """As any program's new file."""
    old = os.umask(0o027)
    try:
        write_file(tmp_path / "new.json", b"new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o640


def test_read_only_files_are_refused(file: Path) -> None:
    """Whoever took the right to write away meant it; root is refused as well."""
    file.chmod(0o444)
    with pytest.raises(InputError) as refused:
        write_file(file, b"new", key="--output")
    assert str(refused.value) == f"{file}: --output: is read-only (a file that you may write to)"
    assert file.read_text() == "old"


def test_folders_and_missing_folders_are_refused(tmp_path: Path) -> None:
    """Before any work, each with what is wrong."""
    with pytest.raises(InputError, match=r"path: is a folder"):
        require_writable(tmp_path, key="path")
    with pytest.raises(InputError, match=r"a file in a folder that exists"):
        require_writable(tmp_path / "no" / "plan.json")
    require_writable(None)


def test_a_pipe_is_written_and_stays(tmp_path: Path) -> None:
    """A reader at the other end gets the bytes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"new")
    reader.join(timeout=20)
    assert got == [b"new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_devices_are_written_and_stay() -> None:
    """The null device is still one afterwards."""
    write_file(Path(os.devnull), b"new")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


WRITER = """
from pathlib import Path
from layoutopt.optimizer.specs.writing import write_file
print("before")
write_file(Path("/dev/stdout"), b"content\\n")
print("after")
"""


def test_standard_output_as_a_file(tmp_path: Path) -> None:
    """``/dev/stdout`` into a pipe and into a file: all that was printed is there, in order."""
    said = b"before\ncontent\nafter\n"
    words = [sys.executable, "-c", WRITER]
    assert subprocess.run(words, capture_output=True, check=True).stdout == said
    target = tmp_path / "out.txt"
    with target.open("wb") as stream:
        subprocess.run(words, stdout=stream, check=True)
    assert target.read_bytes() == said


def test_failure_half_way_keeps_the_old_file(file: Path) -> None:
    """Whatever stops the writer, a reader never sees half a file."""
    with pytest.raises(KeyboardInterrupt), open_for_writing(file) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert file.read_text() == "old"


def test_content_and_name_are_synced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced before the rename and its folder after it."""
    order: list[str] = []
    sync, rename = os.fsync, Path.replace

    def synced(handle: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def renamed(source: Path, target: Path) -> Path:
        order.append("rename")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_file(file, b"new")
    assert order == ["file", "rename", "folder"]


def test_long_names_are_written(tmp_path: Path) -> None:
    """The temporary name does not grow with the file's."""
    path = tmp_path / ("n" * 250 + ".json")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
