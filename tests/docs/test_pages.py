"""Pages agree with the product: generated ones are current, links lead somewhere, files that are shown can be read."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.specs.loading import json_schema, load_cluster, load_layout, load_workload

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "benchmarks" / "README.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"`(docs/[\w./-]+\.(?:md|py|yaml|svg|ipynb)|benchmarks/[\w./-]+\.(?:py|md))`")
FILE = re.compile(r"<!-- file: (?P<name>\S+) -->\n```yaml\n(?P<body>.*?)```", re.DOTALL)
ANSWER = re.compile(r"<!-- answer -->\n```\n(?P<body>.*?)```", re.DOTALL)
LABELS = ("model", "cluster", "layout", "speed", "memory", "run", "Near-ties", "How sure", "Next")


@pytest.mark.parametrize(("script", "page"), [("file_reference", "files"), ("api_reference", "api")])
def test_generated_pages_are_current(script: str, page: str) -> None:
    """The page is what its script writes."""
    written = runpy.run_path(str(DOCS / f"{script}.py"))["reference"]()
    assert (DOCS / f"{page}.md").read_text("utf-8") == written, f"python docs/{script}.py > docs/{page}.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link, and every page or script that is named, is there; headings that are linked to exist."""
    text = page.read_text("utf-8")
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, heading = target.partition("#")
        place = page.parent / file if file else page
        assert place.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", place.read_text("utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, (
                target
            )
    for name in MENTION.findall(text):
        assert (ROOT / name).exists(), name


def test_files_shown_can_be_read(tmp_path: Path) -> None:
    """Every file that a page shows is valid, and so is every example."""
    shown = [(page, match) for page in PAGES for match in FILE.finditer(page.read_text("utf-8"))]
    assert len(shown) >= 3
    for page, match in shown:
        path = tmp_path / match["name"]
        path.write_text(match["body"], encoding="utf-8")
        kind = next(iter(yaml.safe_load(match["body"]).keys() & {"architecture", "gpu", "base"}), None)
        if kind == "architecture":
            load_workload(path)
        elif kind is not None:
            load_cluster(path)
        assert page.exists()
    loaders: dict[str, Callable[[Path], object]] = {
        "model": load_workload,
        "cluster": load_cluster,
        "layout": load_layout,
    }
    for path in sorted((DOCS / "examples").glob("*.yaml")):
        loaders[path.stem.split("-")[0]](path)


def test_nearly_every_key_has_an_example_in_a_whole_file() -> None:
    """What the files do not hold are alternatives of keys that they do, and keys that came since."""
    scope = runpy.run_path(str(DOCS / "file_reference.py"))
    missing, total = [], 0
    for kind, (_, names) in scope["KINDS"].items():
        schema = json_schema(kind)
        files = [yaml.safe_load((DOCS / "examples" / f"{name}.yaml").read_text("utf-8")) for name in names]
        for path, _entry in scope["keys"](schema, schema.get("$defs", {})):
            total += 1
            missing += (
                [] if any(True for file in files for _ in scope["_values"](file, path)) else [".".join(path)]
            )
    assert total > 140
    assert len(missing) <= 0.1 * total, missing


def test_the_tutorials_answer_has_the_lines_of_a_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer that is explained line by line has the lines that the command prints, in their order."""
    text = (DOCS / "tutorial.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for match in FILE.finditer(text):
        Path(match["name"]).write_text(match["body"], encoding="utf-8")
    done = CliRunner().invoke(main, ["solve", "model.yaml", "cluster.yaml", "-q", "-o", "plan.json"])
    printed = done.stdout
    assert printed, done.stderr
    found = ANSWER.search(text)
    assert found is not None
    for answer in (printed, found["body"]):
        first, *lines = answer.splitlines()
        assert first.startswith("optimal under this cost model: ")
        assert [label for line in lines for label in LABELS if line.startswith(label)] == list(LABELS)
    for label in ("stages", *LABELS):
        assert f"`{label}`" in text, label
