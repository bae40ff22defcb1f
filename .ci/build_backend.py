"""Build backend: setuptools on a copy of the sources in which the links of src/layoutopt are what they lead to.

``src/layoutopt`` holds links to ``cli.py``, ``optimizer``, ``models`` and ``topologies`` at the root. Where a checkout or an
archive cannot hold links (Windows without developer mode, ``core.symlinks=false``, many zip tools) each of them is a small
file with the link's target in it. A wheel or sdist is built all the same; an editable install needs the links and says so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setuptools import build_meta

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/layoutopt")
PARTS = ("cli.py", "optimizer", "models", "topologies")
COPIED = ("pyproject.toml", "README.md", "LICENSE", ".ci/build_backend.py")
MANIFEST = "include .ci/build_backend.py\n"
"""Whoever builds from the sdist needs this file too."""


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel."""
    target = str(Path(wheel_directory).resolve())
    with _whole_sources():
        name: str = build_meta.build_wheel(target, config_settings)
    return name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Build a source archive, without links."""
    target = str(Path(sdist_directory).resolve())
    with _whole_sources():
        name: str = build_meta.build_sdist(target, config_settings)
    return name


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel, which shows the checkout itself; refuses a checkout whose links are none."""
    broken = [str(PACKAGE / part) for part in PARTS[1:] if not (ROOT / PACKAGE / part).is_dir()]
    if broken:
        raise SystemExit(
            f"{', '.join(broken)}: should be links to the folders of the same name, but this checkout has none. "
            "Either make them: git config core.symlinks true && git checkout -- src, "
            "or install without -e, which needs no links."
        )
    name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


@contextmanager
def _whole_sources() -> Iterator[None]:
    """Work in a temporary copy of what is built, every part in its place."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        (copy / "MANIFEST.in").write_text(MANIFEST, encoding="utf-8")
        (copy / PACKAGE).mkdir(parents=True)
        for item in (ROOT / PACKAGE).iterdir():
            if item.is_file() and item.name not in PARTS:
                shutil.copy2(item, copy / PACKAGE / item.name)
        for part in PARTS:
            _copy(_source(part), copy / PACKAGE / part)
        os.chdir(copy)
        try:
            yield
        finally:
            os.chdir(before)


def _source(part: str) -> Path:
    """Return a part itself, whether its place holds it (sdist), a link, or a file with the link's target."""
    place = ROOT / PACKAGE / part
    at_root = ROOT / part
    found = at_root if at_root.exists() else place
    if not found.exists() or (found.is_file() and not part.endswith(".py")):
        raise SystemExit(f"{part}: missing; it belongs at the root of the checkout")
    return found


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)
