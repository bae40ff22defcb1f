"""Every file under tests/bad_inputs gives exactly the one-line errors that its first lines state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_layout, load_workload

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent.parent / "bad_inputs"
FILES = sorted(FOLDER.glob("*/*.yaml"))
MARK = "# expect: "
LOAD: dict[str, Callable[[Path], Any]] = {
    "model": load_workload,
    "cluster": load_cluster,
    "layout": load_layout,
}


def expected(path: Path) -> list[str]:
    """Read the stated errors, without the file name."""
    lines = path.read_text("utf-8").splitlines()
    return [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}/{path.stem}" for path in FILES])
def test_error_is_exact(path: Path) -> None:
    """A bad file names file, line, key, what is wrong and what is allowed, every problem on one line."""
    with pytest.raises(InputError) as caught:
        LOAD[path.parent.name](path)
    shown = str(caught.value).splitlines()
    assert [line.removeprefix(f"{path}:").strip() for line in shown] == expected(path)
    assert all(line.startswith(f"{path}:") for line in shown)


def test_corpus_is_large() -> None:
    """The corpus covers the three kinds of files and does not shrink unnoticed."""
    assert len(FILES) >= 190
    assert {path.parent.name for path in FILES} == set(LOAD)


@pytest.mark.parametrize("count", ["1000000007", "9" * 20])
def test_a_gpu_count_that_is_too_large_is_named_as_the_problem(count: str) -> None:
    """An H100 cluster with ten or more digits of GPUs gets the valid range, not itself as the nearest name."""
    with pytest.raises(InputError, match=f"{count} GPUs") as caught:
        load_cluster(f"h100x{count}")
    assert "nearest" not in str(caught.value)
