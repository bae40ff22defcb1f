"""One record per framework: the registry is complete, and files are found by the framework's name."""

from __future__ import annotations

from importlib import import_module, resources
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.record import NEWEST, FrameworkRecord
from layoutopt.optimizer.frameworks.registry import (
    EXPORTED,
    FRAMEWORK_ALIASES,
    Framework,
    abilities_of,
    find_framework,
    framework_named,
    parse_release,
)
from layoutopt.optimizer.interop.torchtitan.write import SCHEDULE_NAMES
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import Optimizer, Schedule

if TYPE_CHECKING:
    from pathlib import Path

ROOMS = resources.files("layoutopt.optimizer")


@pytest.mark.parametrize("framework", Framework)
def test_every_record_has_its_files(framework: Framework) -> None:
    """The preset reads, and there is a writer exactly where the record names the release that it writes."""
    record = framework.record
    assert import_module(f"layoutopt.optimizer.frameworks.{record.folder}").RECORD is record
    assert load_preset(framework).host_step_s > 0
    writer = ROOMS.joinpath("interop", record.folder, "write.py")
    assert writer.is_file() is (record.exports is not None)


def test_every_record_is_in_the_registry() -> None:
    """A module with a record that the registry does not list would be dead."""
    names = [place.name.removesuffix(".py") for place in ROOMS.joinpath("frameworks").iterdir()]
    modules = [
        import_module(f"layoutopt.optimizer.frameworks.{name}") for name in names if name.isidentifier()
    ]
    found = {
        module.RECORD.name for module in modules if isinstance(vars(module).get("RECORD"), FrameworkRecord)
    }
    assert found == {framework.value for framework in Framework}


@pytest.mark.parametrize("framework", Framework)
def test_releases_are_in_order(framework: Framework) -> None:
    """Numbers and dates both rise, and every date is read back as its release."""
    releases = framework.record.releases
    assert list(releases) == sorted(releases, key=lambda one: one.number)
    assert list(releases) == sorted(releases, key=lambda one: one.date)
    for one in releases[:-1]:
        latest = [other for other in releases if other.date[: len(one.date)] <= one.date][-1]
        assert abilities_of(framework, parse_release(framework, one.date)) is latest.abilities
    assert parse_release(framework, "2099") == NEWEST


def test_names_and_aliases() -> None:
    """Aliases are unique, in any case, and unknown words are refused with the names there are."""
    assert len(FRAMEWORK_ALIASES) == sum(len(framework.record.aliases) for framework in Framework)
    assert find_framework("NeMo") is Framework.MEGATRON_BRIDGE
    assert find_framework("jax") is None
    with pytest.raises(InputError, match="'jax' is unknown"):
        framework_named("jax")


def test_a_member_without_a_record_is_a_type_error(tmp_path: Path) -> None:
    """mypy rejects a framework that is a bare name, and a record that lacks a field."""
    import subprocess
    import sys

    head = "from layoutopt.optimizer.frameworks.record import TrainerFamily, FrameworkRecord\n"
    lacking = tmp_path / "lacking.py"
    lacking.write_text(head + 'FrameworkRecord(name="x", family=TrainerFamily.FREEST, exports=None)\n')
    bare = tmp_path / "bare.py"
    bare.write_text("from layoutopt.optimizer.frameworks.registry import Framework\nFramework('x')\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(lacking), str(bare)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 'Missing named argument "releases"' in done.stdout
    assert 'expected "FrameworkRecord"' in done.stdout


@pytest.mark.parametrize("framework", EXPORTED)
def test_an_exporter_has_a_word_for_every_optimizer(framework: Framework) -> None:
    """Whatever a release may be asked for beside AdamW has a word in launch files: none is a KeyError of a writer."""
    releases = framework.record.releases
    asked = {kind for one in releases for kind in one.abilities.optimizers} - {Optimizer.ADAMW}
    assert asked <= {*framework.record.optimizers}


def test_torchtitan_has_a_name_for_every_schedule() -> None:
    """Schedules that a release launches have names in its configuration."""
    releases = Framework.TORCHTITAN.record.releases
    launched = {schedule for one in releases for schedule in one.abilities.schedules} - {Schedule.NONE}
    assert launched == {*SCHEDULE_NAMES}
