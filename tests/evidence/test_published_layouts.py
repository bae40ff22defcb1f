"""The published reference layouts: prices, ranges, and what is assumed."""

from __future__ import annotations

import pytest
from rich.console import Console

from layoutopt.optimizer.evidence.published import CHUNKS, distance, reference_runs, references
from layoutopt.optimizer.report.json_forms import published_to_plain
from layoutopt.optimizer.report.tables.published import published_tables
from layoutopt.optimizer.specs.vocabulary import Verdict

LLAMA = ["llama3-405b-h100-8192-cp1", "llama3-405b-h100-16384-cp1", "llama3-405b-h100-16384-cp16"]


def test_the_four_layouts_are_priced_and_fit() -> None:
    """Three rows of Llama 3 405B and one of DeepSeek-V3; all ran, so none may be called too large."""
    found = references()
    assert [one.case.run.id for one in found] == [*LLAMA, "dsv3-h800-2048-report"]
    for one in found:
        assert one.verdict is not Verdict.DOES_NOT_FIT
        assert one.assumed


def test_predictions_are_close_and_in_order() -> None:
    """8K steps within 5% of the published MFU, the long one between its two counts, all in order; DeepSeek within 15%."""
    short, many, long, deepseek = references()
    for one, published in ((short, 0.43), (many, 0.41)):
        assert abs(one.estimate.mfu_full / published - 1) <= 0.05
    assert 10.9 <= long.estimate.step_time_s <= 15.3
    assert short.estimate.mfu_full > many.estimate.mfu_full > long.estimate.mfu_full
    assert abs(deepseek.error) <= 0.15


def test_fewer_chunks_take_longer() -> None:
    """The range over virtual stages starts with the longest bubble; DeepSeek's schedule leaves none open."""
    for one in references()[:3]:
        steps = [one.by_vp[chunks] for chunks in CHUNKS]
        assert steps == sorted(steps, reverse=True)
        assert one.by_vp[one.case.layout.vp] == one.estimate.step_time_s
    assert references()[3].by_vp == {}


def test_rows_name_their_sources() -> None:
    """Every reference row says where it is published."""
    assert all(run.source and run.source.startswith("arXiv") for run in reference_runs())


def test_the_table_names_every_layout_whole() -> None:
    """On 80 columns ids are not cut to the same letters, nor the headings of the figures."""
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(published_tables([(one, None) for one in references()]))
    summary = captured.get().partition("source ")[0]
    for word in (*LLAMA, "dsv3-h800-2048-report", "published", "causal"):
        assert word in summary


def test_distance_to_the_optimum_is_explained() -> None:
    """The proven optimum is no slower, the differences sum to the distance, and the authors speak of what differs."""
    one = references()[0]
    far = distance(one)
    assert far.plan.status.value == "optimal" and far.plan.estimate is not None and far.gap is not None
    assert far.slower is not None and 0 <= far.slower < 0.2
    assert 0 < far.faster_rows < 0.2 * far.rows
    saved = sum(step.saved_s for step in far.gap.steps)
    assert one.estimate.step_time_s - saved == pytest.approx(far.plan.estimate.step_time_s, rel=1e-6)
    axes = {axis for step in far.gap.steps for axis in step.axes}
    assert axes - {"dp", "micro_batches"} <= set(far.reasons)
    assert "2407.21783" in far.authors
    plain = published_to_plain([(one, far)])[0]
    assert plain["optimum"]["status"] == "optimal" and plain["rank"]["rows"] == far.rows
