"""Commands that read measured runs: validate, calibrate, published."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from click.testing import Result

    Ask = Callable[..., dict[str, Any]]

NCCL = Path(__file__).parents[1] / "interop" / "samples" / "nccl_all_reduce.txt"

ROW = {
    "id": "a", "framework": "megatron-lm", "model": "made-up 7B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8,
    "head_dim": 128, "ffn": 14336, "vocab": 128256, "seq": 4096, "gated": 1, "tied": 0, "gpu": "H100-80G-SXM",
    "gpus_per_node": 8, "n_gpus": 32, "tp": 2, "sp": 1, "cp": 1, "pp": 2, "vp": 1, "dp": 8, "zero": 1, "micro_batch": 1,
    "global_batch": 128, "recompute": "none", "precision": "bf16", "flash": 1, "group": "g", "measured_step_s": 4.0,
}  # fmt: skip
"""A complete run; nothing of it was measured anywhere."""


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Write rows as a table of measured runs."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows({**ROW, **row} for row in rows)
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Three layouts of a group, a row without micro-batch and one whose vp is open."""
    group = [{"id": f"b{b}", "micro_batch": b, "measured_step_s": 4.0 + b} for b in (1, 2, 4)]
    return write(
        tmp_path / "runs.csv", [*group, {"id": "skipped", "micro_batch": ""}, {"id": "open", "vp": ""}]
    )


def test_validate_prints_its_keys(ask: Ask, table: str) -> None:
    """Every figure under the name that scripts rely on; rows that cannot be priced come with a reason."""
    plain = ask("validate", table)
    assert (plain["rows"], plain["priced"]) == (5, 3)
    assert {skip["id"]: bool(skip["reason"]) for skip in plain["skipped"]} == {"skipped": True, "open": True}
    assert {"mape", "median_ape", "p90_ape", "bias"} <= set(plain["step_time"])
    assert {"mape", "bias", "rows"} <= set(plain["memory"])
    ranking = (
        "groups", "kendall_tau", "pairs_over_10pct", "top1_regret_mean", "top1_regret_median", "top3_regret_mean",
    )  # fmt: skip
    assert set(ranking) <= set(plain["ranking"]) and plain["ranking"]["groups"] == 1
    assert set(plain["by"]) == {"framework", "gpu", "precision", "kind"}
    assert {"id", "measured_s", "predicted_s", "ape"} <= set(plain["per_row"][0])


@pytest.mark.parametrize(
    "command",
    [
        ("validate", "ENDLESS"),
        ("validate", "TABLE", "--assume", "ENDLESS"),
        ("calibrate", "ENDLESS", "--cluster", "h100x8", "-o", "OUTPUT"),
        ("calibrate", "TABLE", "--cluster", "h100x8", "-o", "OUTPUT", "--nccl", "ENDLESS"),
        ("solve", "ENDLESS", "h100x8"),
        ("solve", "llama3-8b", "ENDLESS"),
        ("evaluate", "llama3-8b", "h100x8", "--layout", "ENDLESS"),
        ("import", "ENDLESS", "--kind", "megatron-log"),
        ("topology", "show", "ENDLESS"),
        ("diagnose", "ENDLESS", "ENDLESS"),
        ("verify", "ENDLESS"),
        ("simulate", "ENDLESS"),
        ("export", "ENDLESS", "--to", "megatron"),
    ],
)
def test_a_file_without_end_is_refused(
    run: Callable[..., Result], table: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A device is read up to the limit of what is looked for, never on."""
    files = {"ENDLESS": "/dev/zero", "TABLE": table, "OUTPUT": str(tmp_path / "c.yaml")}
    done = run(*(files.get(word, word) for word in command))
    assert done.exit_code == 2
    assert "/dev/zero: is larger than" in done.stderr


def test_assumptions_are_counted_apart(ask: Ask, table: str, tmp_path: Path) -> None:
    """A file that states the open cell prices its row, outside the headline figures."""
    stated = tmp_path / "assume.yaml"
    stated.write_text("rows: [{ids: [open], set: {vp: 1}, why: a test}]", encoding="utf-8")
    plain = ask("validate", table, "--assume", str(stated))
    assert plain["assumed"]["ids"] == ["open"]
    assert plain["step_time"]["rows"] == 3
    assert [skip["id"] for skip in plain["skipped"]] == ["skipped"]


def test_worst_rows_and_the_picture(run: Callable[..., Result], table: str, tmp_path: Path) -> None:
    """The largest errors with their breakdown, largest first; predicted against measured as a drawing."""
    picture = tmp_path / "runs.svg"
    done = run("validate", table, "--worst", "2", "--plot", str(picture))
    assert done.exit_code == 0
    worst = done.stdout.partition("Largest errors")[2]
    assert worst.count("s predicted") == 2 and "backward" in worst
    assert picture.read_text(encoding="utf-8").lstrip().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.csv",), "missing.csv: No such file or directory (a CSV file)"),
        (("TABLE", "--assume", "missing.yaml"), "('reference' or a YAML file)"),
        (("TABLE", "TABLE"), "id 'b1' is in"),
    ],
)
def test_unreadable_tables(
    run: Callable[..., Result], table: str, words: Sequence[str], message: str
) -> None:
    """One line for each problem, and exit code 2."""
    done = run("validate", *(table if word == "TABLE" else word for word in words))
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.fixture
def own(ask: Ask, tmp_path: Path) -> Callable[[Sequence[float]], str]:
    """Return a function that writes runs which took so many times what is predicted."""

    def build(ratios: Sequence[float]) -> str:
        rows = [{"id": f"own-{index}", "micro_batch": 2**index} for index in range(len(ratios))]
        predicted = ask("validate", write(tmp_path / "before.csv", rows))["per_row"]
        times = {row["id"]: row["predicted_s"] * ratio for row, ratio in zip(predicted, ratios, strict=True)}
        return write(tmp_path / "own.csv", [row | {"measured_step_s": times[row["id"]]} for row in rows])

    return build


def test_calibrate_writes_a_cluster_with_its_provenance(
    run: Callable[..., Result], own: Callable[[Sequence[float]], str], tmp_path: Path
) -> None:
    """The scale of three runs and the bandwidth of a log, each with its source, in a file that solve reads."""
    file = tmp_path / "calibrated.yaml"
    words = ("calibrate", own([1.2, 1.2, 1.2]), "--cluster", "h100x32", "--nccl", str(NCCL), "-o", str(file))
    plain = json.loads(run(*words, "--json").stdout)
    assert plain["error"]["mape_after"] < 0.1 * plain["error"]["mape_before"]
    text = file.read_text(encoding="utf-8")
    constants = yaml.safe_load(text)["calibration"]
    assert constants["time_scale"]["value"] == pytest.approx(1.2, rel=0.1)
    assert "3 own runs" in constants["time_scale"]["source"]
    assert constants["network_fraction.infiniband"]["source"].startswith("nccl-tests")
    assert "own-0" in text  # the runs themselves, as comments
    done = run("evaluate", "llama3-8b", str(file), "--layout", "tp=2,pp=2,mb=1,zero=1", "--json")
    assert json.loads(done.stdout)["verdict"] == "fits"


def test_runs_and_benchmarks_enter_one_after_the_other(
    run: Callable[..., Result], own: Callable[[Sequence[float]], str], tmp_path: Path
) -> None:
    """A log of collectives alone calibrates; runs after it keep its constants, and next-runs takes the file."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    plain = json.loads(
        run("calibrate", "--cluster", "h100x32", "--nccl", str(NCCL), "-o", str(first), "--json").stdout
    )
    assert set(plain["values"]) == {"network_fraction.infiniband"}
    assert run("calibrate", own([1.2, 1.1, 1.2]), "--cluster", str(first), "-o", str(second)).exit_code == 0
    data = yaml.safe_load(second.read_text(encoding="utf-8"))
    assert {"network_fraction.infiniband", "time_scale"} <= set(data["calibration"])
    assert [one["name"] for one in data["observations"]] == ["own-0", "own-1", "own-2"]
    done = run("next-runs", "llama3-8b", str(second), "--batch", "64", "--top", "3", "--json")
    assert done.exit_code == 0 and len(json.loads(done.stdout)["layouts"]) == 3
    refused = run("calibrate", "--cluster", "h100x32", "-o", str(first))
    assert refused.exit_code == 2 and "nothing to calibrate with" in refused.stderr


@pytest.mark.parametrize(
    ("ratios", "log", "message"),
    [
        ([50.0], "", "took 50 times the predicted step time"),  # a run that is nonsense
        ([1.0], "-23.74", "no nccl-tests table"),  # negative bandwidth
    ],
)
def test_calibrate_refuses_nonsense(
    run: Callable[..., Result],
    own: Callable[[Sequence[float]], str],
    tmp_path: Path,
    ratios: Sequence[float],
    log: str,
    message: str,
) -> None:
    """Nothing is written from runs far off or from a log with negative bandwidths."""
    file, negative = tmp_path / "calibrated.yaml", tmp_path / "log.txt"
    given: tuple[str, ...] = ()
    if log:
        head, *rest = NCCL.read_text(encoding="utf-8").partition("#wrong\n")
        rows = "".join(f"1048576 262144 float sum -1 85.57 {log} {log} 0 86.4 {log} {log} 0\n" for _ in rest)
        negative.write_text(head + rest[0] + rows, encoding="utf-8")
        given = ("--nccl", str(negative))
    done = run("calibrate", own(ratios), "--cluster", "h100x32", *given, "-o", str(file))
    assert done.exit_code == 2
    assert not file.exists()
    assert message in done.stderr


def test_published_layouts_without_a_search(run: Callable[..., Result]) -> None:
    """Four layouts with what is assumed, the range over virtual stages, and their prices."""
    plain = json.loads(run("published", "--no-search", "--json").stdout)
    assert len(plain) == 4
    for one in plain:
        assert one["assumed"] and one["published_s"] > 0 and abs(one["error"]) < 0.15
    assert list(plain[0]["predicted_s_by_vp"]) == ["1", "2", "4", "8"]
