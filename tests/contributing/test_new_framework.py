"""A framework with exporter, importer and a rule of its own, added to the letter of CONTRIBUTING.md in a copy."""

from __future__ import annotations

import json

import pytest
from checks.contributor import Tree, files_named, row

NAMES = {"NAME": "tiny_train"}

RECORD = '''\
"""A made-up trainer: pipelines, tensor parallelism and ZeRO-1 under a file of key = value lines."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.abilities import SIXTEEN_BIT, WHOLE_LAYERS, Abilities
from layoutopt.optimizer.frameworks.record import FrameworkRecord, LaunchFormat, PublishedRelease, TrainerFamily
from layoutopt.optimizer.frameworks.stage_rule import NEAR_EQUAL
from layoutopt.optimizer.specs.vocabulary import Schedule

_2 = Abilities(
    schedules=(Schedule.NONE, Schedule.ONE_F_ONE_B),
    stage_rule=NEAR_EQUAL,
    fixed_axes=("cp", "vp", "ep", "etp"),
    zero=(0, 1),
    granularities=WHOLE_LAYERS,
    precisions=SIXTEEN_BIT,
)
_1 = replace(_2, zero=(0,))

RECORD = FrameworkRecord(
    name="tiny-train",
    aliases=("tt",),
    family=TrainerFamily.OWN,
    releases=(
        PublishedRelease(number=(1, 0), date="2024-03", abilities=_1),
        PublishedRelease(number=(2, 0), date="2025-06", abilities=_2),
    ),
    exports="2.0",
    imports=(LaunchFormat(kind="tiny-train", reader="import_tiny_train", sign=r"^\\[tiny-train\\]"),),
)
'''
PRESET = "source: made up\nlike: nanotron\nhost_step_s: 0.1\nuntil:\n  '1.0': {host_step_s: 0.3}\n"
WRITER = '''\
"""Write tiny-train's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.records import ExportedJob
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target


def export(target: Target) -> ExportedJob:
    """Write ``job.conf``."""
    layout = target.layout
    values = {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "zero": layout.zero,
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.micro_batches,
        "full": int(layout.recompute.granularity is Granularity.FULL),
        "length": target.training.sequence_length,
    }
    lines = [f"{name} = {value}" for name, value in values.items()]
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"job.conf": "\\n".join(["[tiny-train]", *lines]) + "\\n"},
        command="tiny-train job.conf",
        memory_check="none",
        layout=layout,
    )
'''
READER = '''\
"""Read tiny-train's file."""

from __future__ import annotations

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.interop.records import ImportedJob, JobTraining
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import Granularity, Schedule


@importer
def import_tiny_train(text: str, file: str = "") -> ImportedJob:
    """Read ``job.conf``."""
    values = {
        name.strip(): int(value)
        for name, sign, value in (line.partition("=") for line in text.splitlines())
        if sign
    }
    again = Granularity.FULL if values["full"] else Granularity.NONE
    layout = PartialLayout(
        tp=values["tp"],
        sp=values["tp"] > 1,
        pp=values["pp"],
        dp=values["dp"],
        zero=values["zero"],
        micro_batch=values["micro_batch"],
        micro_batches=values["micro_batches"],
        recompute=Recompute(granularity=again),
        schedule=Schedule.ONE_F_ONE_B if values["pp"] > 1 else Schedule.NONE,
    )
    return ImportedJob(
        framework=Framework.TINY_TRAIN,
        layout=layout,
        training=JobTraining(
            sequence_length=values["length"],
            global_batch=values["dp"] * values["micro_batch"] * values["micro_batches"],
        ),
        gpus=values["tp"] * values["pp"] * values["dp"],
    )
'''
RULES = '''\
"""tiny-train's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.rule import Rule, varying

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout


def _short(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = rows.pp <= 4
    return result


def _detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"pp {layout.pp}: tiny-train has at most 4 stages", {"pp": layout.pp}


RULES: tuple[Rule, ...] = (
    Rule(
        name="tiny_stages",
        formula="pp <= 4",
        reason="made up",
        source="made up",
        reads=frozenset({"pp"}),
        holds=_short,
        detail=_detail,
        valid=varying("pp"),
        frameworks=frozenset({Framework.TINY_TRAIN}),
    ),
)
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A copy of the package with the framework in it."""
    copy = Tree.copy(tmp_path_factory.mktemp("copy"))
    copy.write("optimizer/frameworks/tiny_train.py", RECORD)
    copy.write("optimizer/frameworks/tiny_train.yaml", PRESET)
    registry = "optimizer/frameworks/registry.py"
    copy.insert(registry, "    torchtitan,\n", "    tiny_train,\n")
    copy.insert(registry, "    TORCHTITAN = ", "    TINY_TRAIN = tiny_train.RECORD\n")
    copy.write("optimizer/interop/tiny_train/__init__.py", '"""tiny-train\'s files."""\n')
    copy.write("optimizer/interop/tiny_train/write.py", WRITER)
    copy.write("optimizer/interop/tiny_train/read.py", READER)
    copy.write("optimizer/space/rules/tiny_train.py", RULES)
    return copy


def test_the_page_names_what_is_touched(tree: Tree) -> None:
    """The files are those of the page, no more and no fewer."""
    assert tree.touched() == set(files_named(row("a framework"), **NAMES))


def test_solve_export_import_evaluate(tree: Tree) -> None:
    """A plan is proven, exported, read back as the same layout, and priced the same."""
    question = ("llama3-8b", "h100x16", "--batch", "64", "--framework", "tt")
    tree.run("solve", *question, "-q", "-o", "plan.json")
    tree.run("verify", "plan.json")
    plan = json.loads((tree.folder / "plan.json").read_text(encoding="utf-8"))
    assert plan["layout"]["pp"] <= 4 and plan["layout"]["zero"] <= 1 and plan["layout"]["cp"] == 1
    text = tree.run("export", "plan.json", "--to", "tiny-train").stdout
    (tree.folder / "job.conf").write_text(text, encoding="utf-8")
    read = json.loads(tree.run("import", "job.conf", "--json").stdout)
    assert {axis: read["layout"][axis] for axis in ("tp", "pp", "dp", "zero")} == {
        axis: plan["layout"][axis] for axis in ("tp", "pp", "dp", "zero")
    }
    judged = json.loads(
        tree.run(
            "evaluate", "llama3-8b", "--from", "job.conf", "--cluster", "h100x16", "--batch", "64", "--json"
        ).stdout
    )
    assert judged["estimate"]["step_time_s"] == plan["estimate"]["step_time_s"]


def test_its_rules_and_releases_count(tree: Tree) -> None:
    """Its own rule makes a layout invalid, an older release lacks ZeRO-1, and a date names a release."""
    judge = ("evaluate", "llama3-8b", "h100x16", "--batch", "64", "--framework", "tiny-train", "--layout")
    assert "tiny_stages" in tree.run(*judge, "tp=2,pp=8", check=3).stdout
    for release in ("1.0", "2024"):
        old = ("--software", release)
        assert "zero_supported" in tree.run(*judge, "tp=2,pp=2,dp=4,zero=1", *old, check=3).stdout
    tree.run("explain", *judge[1:], "tp=2,pp=8", check=3)


def test_what_it_cannot_launch_is_refused(tree: Tree) -> None:
    """A plan of another framework is exported to it as far as it goes, else refused with the nearest layout."""
    tree.run(
        *("solve", "llama3-8b", "h100x16", "--batch", "64", "-q", "-o", "other.json"),
        *("--fix", "zero=3", "--fix", "tp=4", "--framework", "any"),
    )
    refused = tree.run("export", "other.json", "--to", "tiny-train", check=2)
    assert "zero" in refused.stderr
    tree.run("export", "other.json", "--to", "tiny-train", "--nearest")


def test_mypy_asks_for_what_is_left_out(tree: Tree) -> None:
    """The copy type-checks, and a record without its releases does not."""
    files = [name for name in files_named(row("a framework"), **NAMES) if name.endswith(".py")]
    assert "Success" in tree.mypy(*files)
    tree.write("lacking.py", RECORD.replace('    exports="2.0",\n', ""))
    assert 'Missing named argument "exports"' in tree.mypy("lacking.py")
    tree.path("lacking.py").unlink()


def test_a_slip_in_the_preset_is_one_line(tree: Tree) -> None:
    """A field that no preset has, and a preset that is not there, are told by file and key."""
    name, ask = "optimizer/frameworks/tiny_train.yaml", ("solve", "llama3-8b", "h100x16", "--framework", "tt")
    tree.write(name, PRESET.replace("host_step_s: 0.1", "host_steps_s: 0.1"))
    told = tree.run(*ask, check=2).stderr
    assert told == "frameworks/tiny_train.yaml: host_steps_s: is unknown (the fields of FrameworkPreset)\n"
    tree.path(name).unlink()
    assert "frameworks/tiny_train.yaml: no such preset" in tree.run(*ask, check=2).stderr
    tree.write(name, PRESET)
