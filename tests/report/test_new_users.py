"""What new users stumbled over: spellings, what was not asked for, digits that nothing supports, what to replace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks.launches import nearest_layout
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.ask.load import load_model
from layoutopt.optimizer.ask.records import RunChoices
from layoutopt.optimizer.cost.estimate import Estimate, estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import EXPORTED
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.launch.text import AT_HEAD, HEAD_NODE, IN_HOSTFILE
from layoutopt.optimizer.interop.machines.nccl_log import COLLECTIVES
from layoutopt.optimizer.report.commands.topology import COLLECTIVE
from layoutopt.optimizer.report.tables.short import run_pair
from layoutopt.optimizer.report.tables.step_time import rates_pairs
from layoutopt.optimizer.solve.verify.statements import not_checked
from layoutopt.optimizer.specs.canonical import to_plain, workload_from_plain
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Schedule, collective_spelt

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.specs.workload import Workload

SPELT = {
    "all-reduce": ("all-reduce", "all_reduce", "allreduce", "AllReduce", "ALL_REDUCE", "all_reduce_perf", "ncclAllReduce"),
    "all-gather": ("all_gather", "allgather", "AllGather", "all_gather_into_tensor", "_all_gather_base", "all_gather_perf"),
    "reduce-scatter": ("reduce_scatter", "reducescatter", "ReduceScatter", "reduce_scatter_tensor"),
    "all-to-all": ("all_to_all", "alltoall", "all2all", "AllToAll", "all_to_all_single", "alltoall_perf"),
    "send-recv": ("send_recv", "sendrecv", "SendRecv", "sendrecv_perf"),
}  # fmt: skip


@pytest.mark.parametrize(("word", "text"), [(word, text) for word, texts in SPELT.items() for text in texts])
def test_collectives_are_spelt_as_in_nccl_its_tests_and_torch(word: str, text: str) -> None:
    """Whoever reads a log or a profile types what is written there."""
    assert COLLECTIVE.convert(text, None, None) == word


@pytest.mark.parametrize("text", ["reduce", "all", "", "all_reduced", "gather"])
def test_other_collectives_are_refused_with_the_nearest(text: str) -> None:
    """What has no price is not taken for what has one."""
    with pytest.raises(InputError, match=r"is unknown \("):
        COLLECTIVE.convert(text, None, None)


@pytest.mark.parametrize("text", [*SPELT["all-reduce"], *SPELT["send-recv"], *SPELT["all-to-all"]])
def test_a_log_without_the_name_of_its_test_takes_every_spelling(text: str) -> None:
    """``import --collective`` reads what ``topology cost --collective`` reads, by its own names."""
    word = collective_spelt(text, COLLECTIVES)
    assert word is not None and word.replace("_", "") in text.lower().replace("_", "").replace(
        "-", ""
    ).replace("2", "to")


def test_a_collective_of_torch_is_priced() -> None:
    """The same price under every name."""
    words = ("topology", "cost", "h100x16", "--bytes", "1 MB", "--ranks", "16", "--json", "--collective")
    printed = {CliRunner().invoke(main, [*words, name]).stdout for name in SPELT["all-reduce"][:3]}
    assert len(printed) == 1 and '"seconds"' in printed.pop()


def _export(to: Framework, nodes: int) -> tuple[str, str]:
    """Return the files and the notes and command of a launch of llama3-8b."""
    workload = override_training(load_workload("llama3-8b"), global_batch=8 * nodes)
    cluster = load_cluster(f"h100x{8 * nodes}")
    asked = Layout(dp=8 * nodes, zero=1, micro_batches=1, precision=workload.training.precision)
    layout = nearest_layout(asked, workload, cluster, to.value)
    job = export(layout, workload, cluster, to.value)
    return "\n".join(job.files.values()), "\n".join([*job.notes, job.command])


@pytest.mark.parametrize("to", EXPORTED)
def test_where_nodes_meet_is_a_marked_placeholder(to: Framework) -> None:
    """Every launch of several nodes says what to replace, and uses it; one node needs no such thing."""
    files, said = _export(to, 2)
    assert AT_HEAD in files + said or IN_HOSTFILE in files + said
    if AT_HEAD in files + said:
        lines = [line for line in (files + "\n" + said).splitlines() if not line.lstrip().startswith("#")]
        assert any(HEAD_NODE in line for line in lines), "named, and used nowhere"
    alone, said_alone = _export(to, 1)
    assert HEAD_NODE not in alone + said_alone
    assert "hostfile" not in alone + said_alone


MODEL = """architecture: {layers: 4, hidden: 512, heads: 8, ffn: 2048, vocab: 32k}
training: {sequence_length: 1Ki, global_batch: 8, total_tokens: 1B, precision: bf16}
"""


def _priced(workload: Workload) -> Estimate:
    layers = workload.model.layers
    stages = build_stages(workload.model, [layers], 1, Schedule.NONE, 0)
    layout = Layout(dp=8, zero=1, micro_batches=workload.training.global_batch // 8, stages=stages)
    return estimate(build_cost_model(workload.model, workload.training, load_cluster("h100x8")), layout)


def test_only_stated_tokens_make_a_run(tmp_path: Path) -> None:
    """A built-in model's count belongs to its makers; an option and an own file state one, the same number too."""
    file = tmp_path / "own.yaml"
    file.write_text(MODEL)
    built_in = load_model("llama3-8b").value
    tokens = built_in.training.total_tokens
    assert tokens and built_in.training.stated_tokens is None
    stated = load_model("llama3-8b", RunChoices(total_tokens=tokens)).value
    samples = load_model("llama3-8b", RunChoices(samples=1000, epochs=3)).value
    own = load_model(file).value
    for workload, shown in ((built_in, False), (stated, True), (samples, True), (own, True)):
        assert (workload.training.stated_tokens is not None) is shown
        priced = _priced(override_training(workload, global_batch=64))
        assert bool(run_pair(priced, workload.training)) is shown
        assert ("whole run" in dict(rates_pairs(priced, workload.training))) is shown


def test_whose_tokens_they_are_is_kept_in_plans() -> None:
    """A page that is drawn from a plan says no more than the answer did; plans of before hold no such key."""
    built_in, stated = (
        load_model("llama3-8b", run).value for run in (RunChoices(), RunChoices(total_tokens=1e12))
    )
    for workload in (built_in, stated):
        assert workload_from_plain(to_plain(workload)) == workload
    assert to_plain(built_in)["training"]["builtin_tokens"] is True
    assert "builtin_tokens" not in to_plain(stated)["training"]


def test_a_plan_of_a_built_in_model_says_whose_tokens_it_counts() -> None:
    """``plan`` needs a number of tokens, and says that this one is not the user's."""
    words = ("plan", "llama3-8b", "h100x8", "--batch", "64", "-q")
    for more, whose in (((), True), (("--tokens", "1B"), False)):
        printed = " ".join(CliRunner().invoke(main, [*words, *more]).stdout.split())
        assert ("the built-in model's; --tokens or --samples set yours" in printed) is whose


def test_verify_prints_no_digits_that_nothing_supports() -> None:
    """A step time that is percents off, and the time that another run took, have three digits."""
    (line,) = not_checked({"solve_time_s": 2.237469689003774}, {})
    assert line == "solve_time_s 2.24: the time of another run"
    assert not_checked({"status": "optimal"}, {})[0].startswith("status 'optimal'")
