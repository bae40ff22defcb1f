"""The terms of one run against the totals of three: which predicts other layouts of a machine better?

On simulated clusters, whose constants are drawn from the posterior of the fit, the traces of two ranks of one layout (3%
noise of every kernel and call) calibrate by terms. The step times of three layouts calibrate by their mean, as
``calibrate`` does with so few runs: with 3% noise of every run, and exactly. All predict the layouts that none of them
saw; the error is the mean of the absolute log of predicted over true step time. ``--write`` writes
``term_calibration_baseline.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.traced_files import write_traces
from checks.traced_job import Run
from checks.traced_plan import job_of

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.diagnose.constants import calibrate_terms
from layoutopt.optimizer.diagnose.diagnosis import diagnose
from layoutopt.optimizer.diagnose.predicted import expectation
from layoutopt.optimizer.evidence.posterior import draw_posterior
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.profiles.read import read_profiles
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training, parse_layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.cost_model import CostModel

BASELINE = Path(__file__).with_name("term_calibration_baseline.json")
NOISE = 0.03
PROFILED = "tp=2,pp=2,zero=1,micro_batch=1"
PROFILED_RANKS = (0, 4)
"""One rank of each stage of the profiled layout."""

TIMED = (PROFILED, "tp=4,zero=1,micro_batch=1", "pp=4,zero=1,micro_batch=1")
OTHERS = tuple(
    f"{degrees},zero=1,micro_batch=1"
    for degrees in ("tp=8", "tp=2", "pp=2", "tp=2,cp=2", "tp=4,pp=2", "pp=8")
)


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="Write the baseline.")
    asked = parser.parse_args()
    cluster = load_cluster("h100x8")
    workload = override_training(load_workload("llama3-8b"), sequence_length=8192, global_batch=16)
    layouts = {text: parse_layout(text).complete(workload, cluster) for text in (*TIMED, *OTHERS)}

    def priced(values: Mapping[str, float]) -> CostModel:
        here = replace(cluster, calibration=dict(values))
        return build_cost_model(workload.model, workload.training, here, framework=Framework.MEGATRON)

    def step_s(values: Mapping[str, float], text: str) -> float:
        return estimate(priced(values), layouts[text]).step_time_s

    kinds = ("before", "totals_of_three", "exact_totals_of_three", "terms_of_one")
    errors: dict[str, list[float]] = {kind: [] for kind in kinds}
    rng = np.random.default_rng(0)
    for number, truth in enumerate(draw_posterior(cluster, samples=asked.clusters)):
        job = replace(job_of(priced(truth), layouts[PROFILED]), noise=NOISE, seed=number)
        with tempfile.TemporaryDirectory() as folder:
            run = Run(job)
            run.ranks = [rank for rank in run.ranks if rank.number in PROFILED_RANKS]
            write_traces(run, Path(folder), compress=False)
            found = diagnose(read_profiles([folder]), priced({}), layouts[PROFILED])
        fit = calibrate_terms(
            found, lambda values: expectation(priced(values), layouts[PROFILED]), Framework.MEGATRON, {}
        )
        constants = {name: entry.value for name, entry in fit.values.items()}
        noise = np.exp(NOISE * rng.standard_normal(len(TIMED)))
        logs = [
            math.log(step_s(truth, text) * off / step_s({}, text))
            for text, off in zip(TIMED, noise, strict=True)
        ]
        scale = math.exp(fmean(logs))
        exact = math.exp(fmean(math.log(step_s(truth, text) / step_s({}, text)) for text in TIMED))
        for text in OTHERS:
            true_s, before_s = step_s(truth, text), step_s({}, text)
            errors["before"].append(abs(math.log(before_s / true_s)))
            errors["totals_of_three"].append(abs(math.log(scale * before_s / true_s)))
            errors["exact_totals_of_three"].append(abs(math.log(exact * before_s / true_s)))
            errors["terms_of_one"].append(abs(math.log(step_s(constants, text) / true_s)))
    means = {name: round(fmean(values), 5) for name, values in errors.items()}
    plain = {"clusters": asked.clusters, "layouts": len(OTHERS), "mean_abs_log_error": means}
    print(json.dumps(plain, indent=2))
    if asked.write:
        BASELINE.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    return int(means["terms_of_one"] > means["totals_of_three"])


if __name__ == "__main__":
    sys.exit(main())
