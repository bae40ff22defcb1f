"""Built-in and catalog names win over files and folders that happen to be called so; a path asks for those."""

from __future__ import annotations

from pathlib import Path

import pytest

from layoutopt.optimizer.ask.load import load_cluster, load_sources
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster as load_stated
from layoutopt.optimizer.specs.loading import reference_cluster

EIGHT = "name: other\nbase: a100x8\n"


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("name", ["h100x64", "h100"])
def test_a_file_called_like_a_cluster_does_not_stand_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: bool
) -> None:
    """Neither where one cluster is asked for, nor in a sweep's list."""
    monkeypatch.chdir(tmp_path)
    if folder:
        Path(name).mkdir()
    else:
        Path(name).write_text(EIGHT)
    assert load_cluster("h100x64") == reference_cluster("h100", 64)
    sources = load_sources(["llama3-8b", name])
    assert [family.at(64).gpu.name for family in sources.families] == ["h100"]


def test_a_path_asks_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``./h100x64`` is the file; a folder is refused as one."""
    monkeypatch.chdir(tmp_path)
    Path("h100x64").write_text(EIGHT)
    assert load_cluster("./h100x64").gpu_count == load_stated(Path("h100x64")).gpu_count == 8
    Path("h100").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        load_cluster("./h100")
