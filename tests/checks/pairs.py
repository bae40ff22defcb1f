"""Published pairs of runs in which one switch changed: what was measured of its effect, and what is predicted."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from checks.published import EVIDENCE, SHOWN_ONLY
from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.case_layout import SELECTIVE_OP
from layoutopt.optimizer.evidence.cases import build_case
from layoutopt.optimizer.evidence.predict import predict
from layoutopt.optimizer.evidence.run import COLUMNS, MeasuredRun
from layoutopt.optimizer.evidence.table import read_cells
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Dispatcher, NetworkFabric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAIRS = EVIDENCE / "ab.csv"

PUBLIC = {
    "Kimi-K2": {
        "mla": "q_lora=1536;kv_lora=512;qk_nope=128;qk_rope=64;v=128",
        "moe_shared_ffn": "2048",
        "moe_dense_layers": "1",
    },
    "DeepSeek-V3 671B": {
        "mla": "q_lora=1536;kv_lora=512;qk_nope=128;qk_rope=64;v=128",
        "moe_shared_ffn": "2048",
        "moe_dense_layers": "3",
        "stage_split": "Et|(tt|)*30L",
    },
    "Moonlight-16B-A3B": {
        "mla": "q_lora=0;kv_lora=512;qk_nope=128;qk_rope=64;v=128",
        "moe_shared_ffn": "2816",
        "moe_dense_layers": "1",
    },
    "Qwen3-30B-A3B": {"head_dim": "128"},
    "GPT-OSS-120B": {"head_dim": "64", "ffn": "2880"},
    "Llama 4 Scout": {"head_dim": "128", "moe_shared_ffn": "8192"},
}
"""Cells that the table lacks, from the public configuration of the named model; the split is stated in its notes."""

AXES = re.compile(
    r"moe dispatcher|ep a2a overlap|cuda graphs|async TP|recompute|precision|chunked loss|float8|MXFP8",
    re.IGNORECASE,
)
"""Switches that are axes of the space, recomputation or precision."""

NEEDED = (
    "tp",
    "pp",
    "dp",
    "zero",
    "micro_batch",
    "global_batch",
    "recompute",
    "precision",
    "seq",
    "gpu",
    "n_gpus",
)

FABRICS = {"EFA": NetworkFabric.EFA, "IB": NetworkFabric.INFINIBAND}
DISPATCHERS = {
    "alltoall": Dispatcher.ALLTOALL,
    "deepep": Dispatcher.DEEPEP,
    "deepep-uccl": Dispatcher.DEEPEP,
    "deepep-nvshmem": Dispatcher.DEEPEP,
    "hybridep": Dispatcher.HYBRIDEP,
}


TOLD = 0.03
"""Effects from which on the sign has to be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One changed run against its baseline; ``reason`` says why it has no prediction or is not counted."""

    pair: str
    switch: str
    value: str
    measured: float | None
    predicted: float | None = None
    reason: str = ""

    @property
    def counted(self) -> bool:
        """Whether it is one of those that accuracy is about."""
        return self.predicted is not None and not self.reason

    @property
    def miss(self) -> float:
        """Distance of the predicted from the measured ratio."""
        assert self.measured is not None
        assert self.predicted is not None
        return abs(self.predicted - self.measured)

    @property
    def large(self) -> bool:
        """Whether it exceeds what repeated runs differ by, so that its sign has to be right."""
        return abs((self.measured or 1.0) - 1) > TOLD

    @property
    def sign_right(self) -> bool:
        """Whether it is predicted to help where it helped."""
        return ((self.predicted or 1.0) - 1) * ((self.measured or 1.0) - 1) > 0


def figures(listed: Sequence[Effect]) -> dict[str, float]:
    """Sum up counted effects: how many, the median miss, and the share of signs right among the larger ones."""
    counted = [effect for effect in listed if effect.counted]
    large = [effect for effect in counted if effect.large]
    return {
        "effects": len(counted),
        "median_miss": round(median(effect.miss for effect in counted), 4),
        "large": len(large),
        "sign_right": round(sum(e.sign_right for e in large) / max(len(large), 1), 4),
    }


def pair_rows() -> list[dict[str, str]]:
    """Return the rows of the table as they stand there."""
    return list(csv.DictReader(PAIRS.read_text(encoding="utf-8").splitlines()))


def effects() -> tuple[Effect, ...]:
    """Return every changed run of the table against the baseline of its pair."""
    rows = pair_rows()
    members: dict[str, list[tuple[dict[str, str], str, str]]] = defaultdict(list)
    for row in rows:  # the row that names another pair comes before it and is that pair's baseline
        members[row["pair"]].append((row, row["switch"], row["value"]))
        if row["pair2"]:
            members[row["pair2"]].append((row, row["switch2"], row["value2"]))
    found = []
    for pair, listed in members.items():
        if "before" in [value for _, _, value in listed]:
            listed = sorted(listed, key=lambda item: item[2] != "before")
        found += list(_of_pair(pair, listed))
    return tuple(found)


def _of_pair(pair: str, listed: list[tuple[dict[str, str], str, str]]) -> Iterator[Effect]:
    base, *others = listed
    switch = next((name for _, name, _ in (*others, base) if name), "")
    first = case_of(base[0])
    for row, _, value in others:
        effect = Effect(pair=pair, switch=switch, value=value, measured=_measured(row, base[0]))
        if effect.measured is None:
            yield replace(effect, reason="no ratio of times stated")
            continue
        second = case_of(row)
        failed = next((one for one in (first, second) if isinstance(one, str)), "")
        if failed or isinstance(first, str) or isinstance(second, str):
            yield replace(effect, reason=failed)
            continue
        reason = _set_aside(row, base[0], switch) or ("" if _axes(first) != _axes(second) else SAME_VALUES)
        ratio = predict(second).step_time_s / predict(first).step_time_s
        yield replace(effect, predicted=ratio, reason=reason)


def _measured(row: dict[str, str], base: dict[str, str]) -> float | None:
    """Time of a row over that of its baseline, from whatever both state."""
    for column, inverse in (
        ("step_time_s", False),
        ("tflops_gpu", True),
        ("tokens_s_gpu", True),
        ("rel_step", False),
    ):
        if row[column] and base[column]:
            ratio = float(row[column]) / float(base[column])
            return 1 / ratio if inverse else ratio
    return None


def _set_aside(row: dict[str, str], base: dict[str, str], switch: str) -> str:
    """Say why a pair that has a prediction is not counted."""
    if SHOWN_ONLY.match(row["id"]) or SHOWN_ONLY.match(base["id"]):
        return "the arm's library binds the host: shown only"
    if not AXES.search(switch):
        return "not an axis, recomputation or precision"
    lacking = [name for name in NEEDED if not row[name] or not base[name]]
    if lacking:
        return f"not stated: {', '.join(lacking)}"
    if row["control"] == "several":
        return "more than one thing changed"
    return ""


SAME_VALUES = "both arms have the same value of every axis"


def _axes(case: Case) -> tuple[object, ...]:
    """Return what a pair's arms may differ in to be counted: switches, recomputation, precision."""
    return case.switches, case.layout.recompute, case.training.precision, case.training.fp8_recipe


def case_of(row: dict[str, str]) -> Case | str:
    """Build the case of a row with its switches, or say why it has none."""
    cells = {name: text for name, text in row.items() if name in COLUMNS and text}
    cells |= {name: text for name, text in PUBLIC.get(row["model"], {}).items() if not cells.get(name)}
    own = {"ep_overlap", "cuda_graph"}
    cells = {name: text for name, text in cells.items() if name not in own}
    if row["pp"] == "1":
        cells.setdefault("vp", "1")
    if "rowwise" in row["value"] or "rowwise" in row["pair"]:
        cells["fp8_recipe"] = "rowwise"
    cells["recompute_modules"] = "+".join(row["recompute_modules"].split())
    if row["framework"] == "torchtitan" and row["recompute"] == "selective" and "layer" not in row["value"]:
        cells["recompute"] = SELECTIVE_OP  # selective_ac_option: op, its default
    cells |= {"flash": "1", "gated": "1", "tied": "0"}
    if not cells["recompute_modules"]:
        del cells["recompute_modules"]
    if not row["n_gpus"] or not row["gpu"] or not row["layers"]:
        return "GPU, their number or the model not stated"
    values, wrong = read_cells(cells, file=PAIRS.name, line=1)
    if wrong:
        return str(wrong[0])
    values = {"tflops_gpu": None, "measured_from": None, **values}
    run = MeasuredRun(**{**values, "measured_step_s": 1.0}, file=PAIRS.name, line=1)
    case = build_case(run)
    if not isinstance(case, Case):
        return case.reason
    fabric = FABRICS.get(row["fabric"])
    cluster = replace(case.cluster, fabric=fabric) if fabric else case.cluster
    return replace(case, cluster=cluster, switches={**case.switches, **_switches(row)})


def _switches(row: dict[str, str]) -> dict[str, Any]:
    """Return the preset's fields that a pair's own columns state."""
    from layoutopt.optimizer.frameworks.preset import EpOverlap

    found: dict[str, Any] = {}
    if row["dispatcher"] in DISPATCHERS:
        found["dispatcher"] = DISPATCHERS[row["dispatcher"]]
    if row["ep_overlap"]:
        found["ep_overlap"] = EpOverlap.BATCH if row["ep_overlap"] == "1" else EpOverlap.NONE
    word = row["cuda_graph"].partition(":")[0]
    if word in ("none", "partial", "full_iteration"):
        found["cuda_graph"] = CudaGraph(word)
    text = f"{row['switch']} {row['value']}".lower()
    if "async tp" in text or "asynctp" in row["pair"]:
        found["tp_overlap"] = row["value"] == "on"
    if row["pair"].startswith("tt2412-8b"):
        found["compiled"] = "eager" not in row["value"]
    if row["switch"] == "chunked loss":
        found["loss_chunks"] = 8 if "chunked" in row["value"] else 1
    return found
