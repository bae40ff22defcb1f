"""Notes and assumptions: what fills or overrides cells, and how that is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.evidence.assumptions import assume, built_in, parse_assumptions
from layoutopt.optimizer.evidence.notes import read_notes
from layoutopt.optimizer.evidence.run import MeasuredRun
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("notes", "column", "before", "after"),
    [
        ("FSDP32 x TP8, compile, no AsyncTP", "tp_overlap", True, False),
        ("FSDP32 x TP8, compile, AsyncTP", "tp_overlap", None, True),
        ("bf16; vanilla TP; compile", "tp_overlap", None, False),
        ("TP userbuffers comm overlap; mock data", "tp_overlap", None, True),
        ("A/B: EP overlap ON, delayed wgrad off", "ep_overlap", None, True),
        ("a2a overlap OFF, no VP", "ep_overlap", True, False),
        ("no A2A overlap", "ep_overlap", None, False),
        ("moe_a2a_overlap=False", "ep_overlap", None, False),
        ("cuda_graph=off", "cuda_graph", None, "none"),
        ("cuda_graph=none:full_iteration", "cuda_graph", "maybe_full_iteration", "maybe_full_iteration"),
        ("fp8-tensorwise; vanilla rowwise known slow", "fp8_recipe", "rowwise", "tensorwise"),
        ("EP overlap + delayed wgrad", "fp8_recipe", None, None),
        ("bf16 Adam fp32 states", "moment_dtype", "bf16", "fp32"),
        ("TE CUDA graphs; FP32 Adam; mock data", "moment_dtype", None, "fp32"),
        ("BF16 optimizer accumulating grads in fp32", "grad_dtype", None, "fp32"),
        ("pp_layout Et|(tt|)*30mL; MTP 1", "stage_split", None, "Et|(tt|)*30mL"),
        ("card (pp_layout Et*3|(tt|)*29m|L); graphs", "stage_split", None, "Et*3|(tt|)*29m|L"),
        ("nothing to read here", "tp_overlap", None, None),
    ],
)
def test_notes_decide_columns(notes: str, column: str, before: Any, after: Any) -> None:
    """A phrase in the notes outweighs the column that was read out of them; other words leave it alone."""
    run, _ = read_notes(MeasuredRun(id="a", notes=notes, **{column: before}))
    assert getattr(run, column) == after


@pytest.mark.parametrize(
    ("notes", "fact", "value"),
    [
        ("compile; FSDP", "compiled", True),
        ("eager; FSDP", "compiled", False),
        ("batch size not stated; compile not stated", "compiled", None),
        ("no dropout", "dropout", False),
        ("dropout 0.1 default", "dropout", True),
        ("alltoall dispatcher, EP overlap OFF", "dispatcher", Dispatcher.ALLTOALL),
        ("hybridep; mock data", "dispatcher", Dispatcher.HYBRIDEP),
        ("amp_bf16/DEFAULT (fp32 sharded master weights)", "fp32_reduction", True),
        ("mem = max over ranks, GiB", "memory_gib", True),
        ("rank-0 peak allocated 62.166 GiB", "memory_gib", True),
        ("peak allocated GB after iter 2", "memory_gib", False),
        ("reserved 3 GB", "memory_gib", False),
    ],
)
def test_notes_carry_facts(notes: str, fact: str, value: bool | None) -> None:
    """What has no column is read from the notes."""
    assert getattr(read_notes(MeasuredRun(id="a", notes=notes))[1], fact) is value


def test_assumptions_fill_only_empty_cells_of_named_rows() -> None:
    """A stated cell stays, other rows are untouched, and the filled columns are named."""
    text = "rows: [{ids: ['lab-*'], set: {vp: 4, micro_batch: 2}, why: the recipe of that week}]"
    rules = parse_assumptions(text, "a.yaml")
    run, filled = assume(MeasuredRun(id="lab-1", micro_batch=1), rules)
    assert (run.vp, run.micro_batch, filled) == (4, 1, ("vp",))
    other = MeasuredRun(id="other-1")
    assert assume(other, rules) == (other, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a.yaml: no list of assumptions (rows: [{ids, set, why}])"),
        ("rows: [", "a.yaml:1: not valid YAML"),
        ("rows: [1]", "a.yaml: rows[0]: not an assumption (keys ids, set and why)"),
        ("rows: [{ids: [a], set: {vp: 4}}]", "a.yaml: rows[0]: not an assumption (keys ids, set and why)"),
        ("rows: [{ids: [], set: {vp: 4}, why: x}]", "a.yaml: rows[0]: ids name no rows"),
        ("rows: [{ids: [a], set: {vp: 4}, why: ''}]", "a.yaml: rows[0]: set or why is empty"),
        ("rows: [{ids: [a], set: {vpp: 4}, why: x}]", "a.yaml: rows[0]: 'vpp' can't be assumed"),
        ("rows: [{ids: [a], set: {layers: 4}, why: x}]", "a.yaml: rows[0]: 'layers' can't be assumed"),
        ("rows: [{ids: [a], set: {vp: four}, why: x}]", "a.yaml: rows[0].set.vp: 'four'"),
        ("rows: [{ids: [a], set: {sp: 2}, why: x}]", "a.yaml: rows[0].set.sp: '2' (0 or 1)"),
    ],
)
def test_wrong_assumption_files(text: str, expected: str) -> None:
    """Each mistake is one line with the entry and the column."""
    with pytest.raises(InputError) as caught:
        parse_assumptions(text, "a.yaml")
    assert str(caught.value.problems[0]).startswith(expected)


def test_the_reference_assumptions() -> None:
    """The four reference rows get what their reports leave out; the name of another set is an error."""
    llama, filled = assume(MeasuredRun(id="llama3-405b-h100-8192-cp1"), built_in("reference"))
    assert (llama.vp, llama.micro_batch, llama.recompute) == (8, 1, "none")
    assert {"vp", "micro_batch", "recompute"} <= set(filled)
    deepseek, _ = assume(MeasuredRun(id="dsv3-h800-2048-report"), built_in("reference"))
    assert (deepseek.micro_batch, deepseek.moment_dtype) == (1, "bf16")
    assert deepseek.recompute_modules == "layernorm mla_up_proj"
    with pytest.raises(InputError, match="reference"):
        built_in("wishful")


def test_rows_without_notes_are_unchanged(make_run: Callable[..., MeasuredRun]) -> None:
    """No notes, no changes."""
    run = make_run()
    assert read_notes(run)[0] == run
