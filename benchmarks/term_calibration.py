"""The terms of one run against the totals of three: which predicts other layouts of a machine better?

On simulated clusters, whose constants are drawn from the posterior of the fit, the traces of four ranks of one layout (3%
noise of every kernel and call) calibrate by terms. The step times of three layouts calibrate by their mean, as
``calibrate`` does with so few runs: with 3% noise of every run, and exactly. All predict the layouts that none of them
saw; the error is the mean of the absolute log of predicted over true step time. ``--write`` writes
``term_calibration_baseline.json``; ``--kept FILE`` keeps each cluster's errors, and a later run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.kept import measured
from checks.traced_files import write_traces
from checks.traced_plan import job_of
from checks.traced_run import Run

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
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

BASELINE = Path(__file__).with_name("term_calibration_baseline.json")
NOISE = 0.03
PROFILED = "tp=2,pp=2,zero=1,micro_batch=1"
PROFILED_RANKS = (0, 1, 4, 5)
"""One replica of the profiled layout: all members of its tensor-parallel groups and pipelines."""

TIMED = (PROFILED, "tp=4,zero=1,micro_batch=1", "pp=4,zero=1,micro_batch=1")
OTHERS = tuple(
    f"{degrees},zero=1,micro_batch=1"
    for degrees in ("tp=8", "tp=2", "pp=2", "tp=2,cp=2", "tp=4,pp=2", "pp=8")
)


KINDS = ("before", "totals_of_three", "exact_totals_of_three", "terms_of_one")


@dataclass(frozen=True)
class Experiment:
    """The question, and the layouts that run: one is profiled, three are timed, the others are predicted."""

    cluster: ClusterSpec
    workload: Workload
    layouts: dict[str, Layout]

    def priced(self, values: Mapping[str, float]) -> CostModel:
        """Return the prices under other constants."""
        here = replace(self.cluster, calibration=dict(values))
        model, training = self.workload.model, self.workload.training
        return build_cost_model(model, training, here, framework=Framework.MEGATRON)

    def step_s(self, values: Mapping[str, float], text: str) -> float:
        """Return a layout's step under other constants."""
        return estimate(self.priced(values), self.layouts[text]).step_time_s

    def read(self, number: int, truth: Mapping[str, float]) -> dict[str, float]:
        """Run the profiled layout on a machine of these constants, and return what its traces' terms say of them."""
        job = replace(job_of(self.priced(truth), self.layouts[PROFILED]), noise=NOISE, seed=number)
        with tempfile.TemporaryDirectory() as folder:
            run = Run(job)
            run.ranks = [rank for rank in run.ranks if rank.number in PROFILED_RANKS]
            write_traces(run, Path(folder), compress=False)
            found = diagnose(read_profiles([folder]), self.priced({}), self.layouts[PROFILED])
        fit = calibrate_terms(
            found,
            lambda values: expectation(self.priced(values), self.layouts[PROFILED]),
            Framework.MEGATRON,
            {},
        )
        return {name: entry.value for name, entry in fit.values.items()}

    def errors(self, number: int, truth: Mapping[str, float]) -> dict[str, list[float]]:
        """Return the absolute log errors of the layouts that nobody ran, by kind of calibration."""
        constants = self.read(number, truth)
        noise = NOISE * np.random.default_rng([0, number]).standard_normal(len(TIMED))
        logs = [math.log(self.step_s(truth, text) / self.step_s({}, text)) for text in TIMED]
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for text in OTHERS:
            true_s = self.step_s(truth, text)
            before = math.log(self.step_s({}, text) / true_s)
            found["before"].append(abs(before))
            found["totals_of_three"].append(abs(before + fmean(logs) + float(noise.mean())))
            found["exact_totals_of_three"].append(abs(before + fmean(logs)))
            found["terms_of_one"].append(abs(math.log(self.step_s(constants, text) / true_s)))
        return found


def experiment() -> Experiment:
    """Return the experiment of this benchmark."""
    cluster = load_cluster("h100x8")
    workload = override_training(load_workload("llama3-8b"), sequence_length=8192, global_batch=16)
    layouts = {text: parse_layout(text).complete(workload, cluster) for text in (*TIMED, *OTHERS)}
    return Experiment(cluster=cluster, workload=workload, layouts=layouts)


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--kept", type=Path, metavar="FILE", help="Go on from what an earlier run measured.")
    parser.add_argument("--write", action="store_true", help="Write the baseline.")
    asked = parser.parse_args()
    held = experiment()
    drawn = draw_posterior(held.cluster, samples=asked.clusters)
    cases = [f"{number} of {asked.clusters}" for number in range(asked.clusters)]
    found = measured(cases, lambda number: held.errors(number, drawn[number]), asked.kept)
    return report(found, write=asked.write)


def report(found: Sequence[Mapping[str, Sequence[float]]], *, write: bool) -> int:
    """Print the means, write them where asked, and return 1 where the terms of one run predict worse."""
    means = {kind: round(fmean(error for one in found for error in one[kind]), 5) for kind in KINDS}
    better = sum(fmean(one["terms_of_one"]) <= fmean(one["totals_of_three"]) for one in found)
    plain = {
        "clusters": len(found),
        "layouts": len(OTHERS),
        "mean_abs_log_error": means,
        "clusters_where_terms_are_nearer": better,
    }
    print(json.dumps(plain, indent=2))
    if write:
        BASELINE.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    return int(means["terms_of_one"] > means["totals_of_three"])


if __name__ == "__main__":
    sys.exit(main())
