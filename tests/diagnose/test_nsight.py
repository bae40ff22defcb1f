"""SQLite exports of Nsight Systems: a simulated job's rank read back by names, launches and NVTX ranges alone."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.traced_job import Job, Kernel, Stage, Traffic
from checks.traced_report import write_report
from checks.traced_run import Run
from click.testing import CliRunner

from layoutopt import InputError
from layoutopt.cli import main
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.orders import Pipeline
from layoutopt.optimizer.diagnose.diagnosis import diagnose
from layoutopt.optimizer.diagnose.parts import Activity, Phase
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.interop.profiles.read import read_profiles
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.vocabulary import Axis, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.diagnose.terms import RankTerms

TP = Traffic("tp", "all_gather", 30, 1 << 22)
FORWARD = (
    Kernel(Activity.NORM, 20, 1),
    TP,
    Kernel(Activity.GEMM, 100, 1),
    Kernel(Activity.ATTENTION, 60, 1),
    Kernel(Activity.GEMM, 80, 1),
)
BACKWARD = (Kernel(Activity.ATTENTION, 150, 1), Kernel(Activity.GEMM, 360, 1), Kernel(Activity.NORM, 40, 1))
OPTIONS = ProfileOptions(axes={"all_gather": Axis.TP})


def job(*, again: bool = False) -> Job:
    """Four layers on two tensor-parallel ranks."""
    stage = Stage(forward=FORWARD * 4, backward=BACKWARD * 4, again=FORWARD * 4 if again else ())
    return Job(
        pipeline=Pipeline(schedule=Schedule.NONE, pp=1, micro_batches=3), stages=(stage,), tp=2, host_us=300
    )


def terms_of(run: Run, folder: Path) -> RankTerms:
    """Write and read rank 0."""
    report = write_report(run.ranks[0], folder / "rank0.sqlite")
    return diagnose(read_profiles([report], OPTIONS)).ranks[0]


@pytest.mark.parametrize("again", [False, True])
def test_components_are_what_was_put_in(again: bool, tmp_path: Path) -> None:
    """Totals exactly, and what names tell within 5%: a multiplication between norms has the phase of its neighbours."""
    run = Run(job(again=again))
    terms, truth = terms_of(run, tmp_path), run.truth(0)
    assert terms.steps == 3 and terms.steps_ns == round(1000 * sum(truth.values()))
    for component in (Component.TP, Component.OPTIMIZER, Component.STEP):
        expected = sum(us for label, us in truth.items() if label.component is component) / 3
        assert terms.components_s[component] * 1e6 == pytest.approx(expected, rel=0.05, abs=5)
    for part in (Activity.GEMM, Activity.ATTENTION, Activity.NORM):
        expected = sum(us for label, us in truth.items() if label.part is part) / 3
        assert terms.seconds(part=part) * 1e6 == pytest.approx(expected, rel=0.005)
    forward = sum(us for label, us in truth.items() if label.component is Component.FORWARD) / 3
    seen = terms.components_s[Component.FORWARD] + terms.components_s[Component.RECOMPUTE]
    again_s = sum(us for label, us in truth.items() if label.component is Component.RECOMPUTE) / 3
    assert seen * 1e6 == pytest.approx(forward + again_s, rel=0.05)
    assert (terms.components_s[Component.RECOMPUTE] > 0) is again


def test_what_is_no_report(tmp_path: Path) -> None:
    """A database of something else, and a broken one: one line."""
    other = tmp_path / "other.sqlite"
    base = sqlite3.connect(other)
    base.execute("create table runs (id integer)")
    base.commit()
    base.close()
    with pytest.raises(InputError, match="holds no kernels"):
        read_profiles([other])
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(other.read_bytes()[:200])
    with pytest.raises(InputError, match="cannot be read"):
        read_profiles([broken])


def changed(folder: Path, statement: str) -> Path:
    """Write rank 0 and change its tables."""
    report = write_report(Run(job()).ranks[0], folder / "rank0.sqlite")
    base = sqlite3.connect(report)
    base.execute(statement)
    base.commit()
    base.close()
    return report


def test_a_report_without_kernels_is_refused(tmp_path: Path) -> None:
    """An empty table of kernels beside marked steps: one line that says how to profile."""
    report = changed(tmp_path, "delete from CUPTI_ACTIVITY_KIND_KERNEL")
    with pytest.raises(InputError, match=r"holds no kernels \(profile with nsys profile --trace cuda,nvtx\)"):
        read_profiles([report], OPTIONS)


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (KERNELS, "start = null"),
        (KERNELS, "end = null"),
        (KERNELS, "start = 'soon'"),
        (KERNELS, "demangledName = null"),
        (KERNELS, "start = end, end = start"),
        (KERNELS, "globalPid = null"),
        (KERNELS, "end = end + (1 << 62)"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "start = null"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end = 'late'"),
        ("NVTX_EVENTS", "start = null"),
        ("NVTX_EVENTS", "start = end, end = start"),
    ],
)
def test_impossible_rows_are_left_out(table: str, change: str, tmp_path: Path) -> None:
    """Times that are none, of no length or run backwards: the rest is read, and a note counts them."""
    report = changed(tmp_path, f"update {table} set {change} where rowid = 2")
    (found,) = read_profiles([report], OPTIONS)
    assert found.notes == ("rank0.sqlite: 1 rows without a name or a possible time are left out",)
    assert (found.events.end_ns >= found.events.start_ns).all()
    diagnose([found])


@pytest.mark.parametrize("change", ["start = end, end = start", "start = null"])
def test_no_row_is_possible(change: str, tmp_path: Path) -> None:
    """Where nothing is left: one line."""
    report = changed(tmp_path, f"update {KERNELS} set {change}")
    with pytest.raises(InputError, match="holds no kernels with a possible time: "):
        read_profiles([report], OPTIONS)
    report.unlink()
    with pytest.raises(InputError, match="marks no step"):
        read_profiles([changed(tmp_path, f"update NVTX_EVENTS set {change}")], OPTIONS)


def test_a_step_begins_in_its_forward_pass(tmp_path: Path) -> None:
    """A multiplication before the first kernel whose name tells a phase is not the optimizer's of the step before."""
    stage = Stage(forward=(Kernel(Activity.GEMM, 100, 1), *FORWARD), backward=BACKWARD)
    one = Job(
        pipeline=Pipeline(schedule=Schedule.NONE, pp=1, micro_batches=1), stages=(stage,), tp=2, host_us=300
    )
    (found,) = read_profiles([write_report(Run(one).ranks[0], tmp_path / "rank0.sqlite")], OPTIONS)
    first = np.searchsorted(found.events.start_ns, found.steps[:, 0])
    assert len(first) > 1 and {found.names[name][:4] for name in found.events.name[first]} == {
        found.names[found.events.name[0]][:4]
    }
    assert (found.events.phase[first] == Phase.FORWARD).all()


def test_the_gpu_of_a_report(tmp_path: Path) -> None:
    """The table of the machine's GPUs names the one that ran the kernels."""
    report = changed(tmp_path, "create table TARGET_INFO_GPU as select 0 id, 'NVIDIA A100-SXM4-80GB' name")
    assert diagnose(read_profiles([report], OPTIONS)).devices == ("NVIDIA A100-SXM4-80GB",)


def test_a_compressed_report_is_to_be_unpacked(tmp_path: Path) -> None:
    """SQLite cannot read it as it is: the line says what to do."""
    report = write_report(Run(job()).ranks[0], tmp_path / "rank0.sqlite")
    packed = tmp_path / "rank0.sqlite.gz"
    packed.write_bytes(gzip.compress(report.read_bytes(), 1))
    with pytest.raises(InputError, match=r"is a compressed report .*gunzip rank0\.sqlite\.gz"):
        read_profiles([packed], OPTIONS)


def test_a_report_without_nodes_of_graphs_is_read(tmp_path: Path) -> None:
    """The column is there only where graphs were traced: without it every kernel was launched alone."""
    (whole,) = read_profiles([write_report(Run(job()).ranks[0], tmp_path / "whole_rank0.sqlite")], OPTIONS)
    report = changed(tmp_path, "alter table CUPTI_ACTIVITY_KIND_KERNEL drop column graphNodeId")
    (found,) = read_profiles([report], OPTIONS)
    assert found.launches == whole.launches > 0 and found.graphs == 0


def test_a_rank_of_several_is_not_told(tmp_path: Path) -> None:
    """A report of two processes holds two ranks: one number is of neither."""
    report = changed(
        tmp_path, "update CUPTI_ACTIVITY_KIND_KERNEL set globalPid = globalPid + (1 << 24) where rowid % 2"
    )
    with pytest.raises(InputError, match=r"--rank: is said of one rank, and the report holds 2"):
        read_profiles([report], ProfileOptions(rank=3))


def test_an_axis_of_nothing_is_refused(tmp_path: Path) -> None:
    """An axis told of no group and no kind of call: what there is."""
    report = write_report(Run(job()).ranks[0], tmp_path / "rank0.sqlite")
    with pytest.raises(InputError, match=r"--axis: 'nope' names no group .*\(.*all_gather.*\)"):
        read_profiles([report], ProfileOptions(axes={"all_gather": Axis.TP, "nope": Axis.TP}))


def test_an_unknown_group_is_asked_for(tmp_path: Path) -> None:
    """No table says whose traffic a kernel is: a note asks for the option."""
    report = write_report(Run(job()).ranks[0], tmp_path / "rank0.sqlite")
    assert any("--axis all_gather=" in note for note in diagnose(read_profiles([report])).notes)


def test_import_says_what_profiles_are_for(tmp_path: Path) -> None:
    """A trace, compressed or not, and a report: one line that names ``diagnose``."""
    report = write_report(Run(job()).ranks[0], tmp_path / "rank0.sqlite")
    packed = Path(__file__).parents[1] / "data" / "profiles" / "cpu_dp2" / "rank0_trace.json.gz"
    plain = tmp_path / "trace.json"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    for file in (report, packed, plain):
        result = CliRunner().invoke(main, ["import", str(file)])
        assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
        assert f"is a profile of a run (layoutopt diagnose PLAN {file.name} holds it" in result.stderr
    with pytest.raises(InputError, match="is a profile of a run"):
        import_text(plain.read_text())
