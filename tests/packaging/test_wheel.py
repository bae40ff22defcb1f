"""The built wheel holds exactly the tree, and works where users' own modules carry the same names."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("cli.py", "optimizer", "models", "topologies")
"""What the root of the repository contributes to the package."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the tracked files, so that no build output lands in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    files = [name for name in listed if name and not name.startswith(("tests/", "docs/"))]
    archive = subprocess.run(
        ["tar", "--create", "--files-from=-"], cwd=ROOT, check=True, capture_output=True,
        input="\n".join(name for name in files if (ROOT / name).exists()).encode(),
    ).stdout  # fmt: skip
    subprocess.run(["tar", "--extract"], cwd=source, check=True, input=archive)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(out),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("layoutopt-*.whl"))


def expected_names() -> set[str]:
    """Package files of the tree: Python modules and data files of every folder that has an __init__.py."""
    names = {f"layoutopt/{path.name}" for path in (ROOT / "src/layoutopt").glob("*") if path.is_file()}
    for part in PARTS:
        path = ROOT / part
        found = (
            [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in {".py", ".yaml", ".csv"}]
        )
        names |= {f"layoutopt/{item.relative_to(ROOT)}" for item in found if "__pycache__" not in item.parts}
    return names


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Every module and data file of the tree is in the wheel; no generic top-level name is."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected_names()


def test_installed_package_ignores_users_modules_of_the_same_name(wheel: Path, tmp_path: Path) -> None:
    """A PYTHONPATH with its own cli.py, optimizer.py and models/ changes nothing."""
    target, hostile = tmp_path / "target", tmp_path / "hostile"
    hostile.mkdir()
    for name in ("cli.py", "optimizer.py", "models.py"):
        (hostile / name).write_text("raise RuntimeError('imported the wrong module')\n")
    zipfile.ZipFile(wheel).extractall(target)
    environment = {**os.environ, "PYTHONPATH": f"{hostile}{os.pathsep}{target}"}
    result = subprocess.run(
        [sys.executable, "-m", "layoutopt", "--help"], env=environment, cwd=hostile, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "solve" in result.stdout


def test_sources_without_links_build_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """A zip or checkout whose links are files with their targets builds the same; an editable install says what it lacks."""
    source, out = tmp_path / "source", tmp_path / "out"
    for name in ("pyproject.toml", "README.md", "LICENSE", ".ci/build_backend.py", "src", *PARTS):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True)
        else:
            shutil.copy2(ROOT / name, source / name)
    for part in PARTS:
        place = source / "src" / "layoutopt" / part
        place.unlink()
        place.write_text(f"../../{part}", encoding="utf-8")
    pip = [sys.executable, "-m", "pip"]
    build = [
        *pip,
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(out),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True)
    names = [set(zipfile.ZipFile(file).namelist()) for file in (wheel, next(out.glob("*.whl")))]
    assert names[0] == names[1]
    editable = [*pip, "install", "--no-deps", "--dry-run", "--editable", str(source)]
    refused = subprocess.run(editable, check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "should be links to the folders of the same name" in refused.stdout + refused.stderr
