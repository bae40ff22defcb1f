"""Pages in a real browser: no error, every chart drawn, nothing asked of the network, any screen, any theme, paper."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.traced_faults import clean
from checks.traced_files import write_traces
from checks.traced_run import Run

from layoutopt.optimizer.diagnose.diagnosis import diagnose
from layoutopt.optimizer.diagnose.log_diagnosis import diagnose_log
from layoutopt.optimizer.diagnose.logged import LoggedProfile
from layoutopt.optimizer.interop.profiles.read import read_profiles
from layoutopt.optimizer.report.html.diagnosed import diagnosis_page
from layoutopt.optimizer.report.html.palette import DARK, LIGHT
from layoutopt.optimizer.report.html.planned import training_page
from layoutopt.optimizer.report.html.solved import solve_page
from layoutopt.optimizer.report.html.swept import sweep_page
from layoutopt.optimizer.sweep.inverse import MarginalValue, SizeAnswer

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis

PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
DESKTOP = {"width": 1100, "height": 900, "deviceScaleFactor": 1, "mobile": False}
SIZES = {"phone": PHONE, "desktop": DESKTOP}
CHARTS = {
    "solve": {"topology", "step", "timeline", "memory", "ties"},
    "moe": {"topology", "step", "timeline", "memory"},  # near-ties depend on the constants
    "infeasible": set[str](),
    "sweep": {"model0-step", "model0-mfu", "model0-cost"},
    "diagnosed": {"bars", "waterfall", "ranks", "time"},
    "log": {"bars", "waterfall"},
    "training": {"wall", "goodput", "marginal", "sizes"}
    | {f"phase{k}-{name}" for k in (0, 1) for name in ("topology", "step", "timeline", "memory")},
}
"""Charts that each page has at least."""

MARKS = """
JSON.stringify(Object.fromEntries([...document.querySelectorAll("figure")].map(figure => {
  const shown = node => { const box = node.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const drawn = figure.querySelectorAll(".point path, path.point, .js-fill, .js-line, .chip, .gpu");
  return [figure.id, [...drawn].filter(shown).length];
})))
"""
"""How many marks each chart shows: bars, points, filled shapes, lines, or the boxes of the network."""

COLOURS = """
JSON.stringify([...new Set([...document.querySelectorAll(".plot .point path, .plot path.point")]
  .map(node => getComputedStyle(node).fill))])
"""


def rgb(colour: str) -> str:
    """Write a hexadecimal colour as browsers do."""
    return f"rgb({', '.join(str(int(colour[start : start + 2], 16)) for start in (1, 3, 5))})"


def diagnosed(folder: Path) -> Diagnosis:
    """Return the diagnosis of a job of two stages with a slow rank."""
    case = clean(0)
    job = replace(case.job, rank_factor={5: 1.2})
    files = write_traces(Run(job), folder)
    return diagnose(read_profiles(files), case.cost, case.layout)


def logged() -> LogDiagnosis:
    """Return the diagnosis of a log with the timers of Megatron-LM's first level."""
    case = clean(0)
    timers = {"forward-backward": (0.5, 0.5), "all-grads-sync": (0.1, 0.1), "optimizer": (0.05, 0.05)}
    profile = LoggedProfile(source="train.log", trainer="megatron", steps=3, step_s=0.6, timers_s=timers)
    return diagnose_log(profile, case.cost, case.layout)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Path]:
    """One page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    get = request.getfixturevalue
    marginal = [
        MarginalValue(resource=name, more=0.1, step_time_s=4.0, saved=saved, days_saved=1.0, cost_saved=None)
        for name, saved in (("memory", 0.0), ("network", 0.02), ("flops", 0.07))
    ]
    sizes = [SizeAnswer(gpus=n, step_time_s=1.0, expected_days=4096 / n, cost=1.0) for n in (512, 1024, 2048)]
    texts = {
        "solve": solve_page(get("plan")),
        "moe": solve_page(get("moe_plan")),
        "infeasible": solve_page(get("infeasible")),
        "sweep": sweep_page(get("rows"), gpu_hour_cost=2.5),
        "diagnosed": diagnosis_page(diagnosed(folder), "llama3-8b"),
        "log": diagnosis_page(logged(), "llama3-8b"),
        "training": training_page(get("training"), marginal=marginal, sizes=sizes),
    }
    written = {name: folder / f"{name}.html" for name in texts}
    for name, text in texts.items():
        written[name].write_text(text, encoding="utf-8")
    return written


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CHARTS)
def test_page_is_whole(browser: Any, pages: dict[str, Path], name: str, size: str) -> None:
    """No console error, every chart with marks, no request, and no sideways scrolling."""
    browser.show(pages[name], device=SIZES[size])
    marks = json.loads(browser.run(MARKS))
    assert browser.errors == []
    assert set(marks) >= CHARTS[name]
    assert all(count >= 2 for count in marks.values()), marks
    # The page's own file, data: and blob: URLs are not the network's.
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert browser.run("performance.getEntriesByType('resource').length") == 0
    assert browser.run("document.documentElement.scrollWidth") <= SIZES[size]["width"]


def test_policy_forbids_requests(browser: Any, pages: dict[str, Path]) -> None:
    """Even a script that tried could not reach the network from a page."""
    browser.show(pages["sweep"], device=DESKTOP)
    refused = browser.run("fetch('https://example.invalid/').then(() => 'sent', error => error.name)")
    assert refused == "TypeError"
    browser.run("1")
    assert any("Content Security Policy" in error for error in browser.errors)


def test_words_for_people_who_do_not_see(browser: Any, pages: dict[str, Path]) -> None:
    """Every figure has a heading and a drawing with a description; ids are unique; the language is stated."""
    for name in ("solve", "training"):
        browser.show(pages[name], device=DESKTOP)
        found = json.loads(
            browser.run(
                """JSON.stringify({
                ids: [...document.querySelectorAll("[id]")].map(node => node.id).filter(id => !id.includes("plotly")
                    && !/^(clip|legend|topdefs|defs|g)/.test(id)),
                unnamed: [...document.querySelectorAll("figure")].filter(figure =>
                    !document.getElementById(figure.getAttribute("aria-labelledby"))).length,
                silent: [...document.querySelectorAll("figure [role=img]")].filter(node =>
                    (node.getAttribute("aria-label") || "").length < 40).length,
                lang: document.documentElement.lang,
                viewport: !!document.querySelector("meta[name=viewport]")})"""
            )
        )
        assert len(found["ids"]) == len(set(found["ids"]))
        assert (found["unnamed"], found["silent"], found["lang"], found["viewport"]) == (0, 0, "en", True)


def test_themes_follow_the_reader(browser: Any, pages: dict[str, Path]) -> None:
    """Page and charts change their colours with the theme, also while the page is open."""
    for dark, theme, other in ((True, DARK, LIGHT), (False, LIGHT, DARK)):
        browser.show(pages["solve"], device=DESKTOP, dark=not dark)
        browser.theme("dark" if dark else "light")
        browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        ground = browser.run("getComputedStyle(document.documentElement).backgroundColor")
        fills = json.loads(browser.run(COLOURS))
        assert ground == rgb(theme["paper"])
        assert rgb(theme["orange"]) in fills
        assert rgb(other["orange"]) not in fills


def test_paper_is_light_and_fits(browser: Any, pages: dict[str, Path]) -> None:
    """Before printing, charts turn light and fit a sheet, whatever the theme; afterwards they turn back."""
    browser.show(pages["solve"], device=DESKTOP, dark=True)
    browser.run("window.dispatchEvent(new Event('beforeprint')), 1")
    assert rgb(LIGHT["orange"]) in json.loads(browser.run(COLOURS))
    widths = json.loads(
        browser.run(
            "JSON.stringify([...document.querySelectorAll('.plot .main-svg')].map(n => n.getBoundingClientRect().width))"
        )
    )
    assert max(widths) <= 700
    browser.run("window.dispatchEvent(new Event('afterprint')), 1")
    assert rgb(DARK["orange"]) in json.loads(browser.run(COLOURS))
    assert browser.errors == []


def test_page_prints(browser: Any, pages: dict[str, Path]) -> None:
    """A page becomes a PDF of a few sheets; details stay folded."""
    browser.show(pages["solve"], device=DESKTOP)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 12


def test_folded_tables_open(browser: Any, pages: dict[str, Path]) -> None:
    """Each chart's numbers are there as a table, and a wide table scrolls by itself, not the page."""
    browser.show(pages["training"], device=PHONE)
    browser.run("document.querySelectorAll('details').forEach(node => { node.open = true; }), 1")
    assert browser.run("document.querySelectorAll('figure table td').length") > 20
    assert browser.run("document.documentElement.scrollWidth") <= PHONE["width"]
