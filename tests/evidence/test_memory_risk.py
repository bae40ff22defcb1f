"""Room for a chance of running out of memory follows from measured peaks, and layouts keep it free."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks.published import read_runs

from layoutopt.optimizer.evidence.memory import peak_ratios, reserve_of_risk
from layoutopt.optimizer.evidence.validate import validate
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload


def measured_over_predicted() -> list[float]:
    """Return today's ratios of the runs whose peak of allocated memory is stated with all that decides it."""
    runs = [run for run in read_runs() if run.mem_kind == "allocated"]
    rows = validate(runs).memory.rows
    return sorted(row.measured_bytes / row.predicted_bytes for row in rows if row.kind == "allocated")


def test_the_table_is_that_of_todays_predictions() -> None:
    """The package's ratios are those of every run that reports such a peak, as it is priced now."""
    assert len(peak_ratios()) >= 30
    assert peak_ratios() == pytest.approx(measured_over_predicted(), abs=5e-4)


@pytest.mark.parametrize("risk", [0.05, 0.1, 0.25, 0.5])
def test_the_room_keeps_measured_peaks_inside(risk: float) -> None:
    """With the room that a risk asks for no larger share of the measured runs would have run out of memory."""
    room = reserve_of_risk(risk)
    over = np.array(peak_ratios()) * (1 - room) > 1 + 1e-9
    assert over.mean() <= risk


def test_less_risk_takes_more_room() -> None:
    """Room grows as the chance shrinks, beyond what some tens of runs can tell too."""
    rooms = [reserve_of_risk(risk) for risk in (0.6, 0.3, 0.1, 0.01, 1e-4)]
    assert rooms == sorted(rooms) and rooms[0] < 0.01 < rooms[3] < 0.1
    with pytest.raises(InputError, match="no chance"):
        reserve_of_risk(0.0)


def test_reserve_and_risk_change_the_answer() -> None:
    """llama3-70b on 64 H100s sits on the limit; with 5% or a risk of 1% another layout is proven the fastest."""
    workload, cluster = load_workload("llama3-70b"), load_cluster("h100x64")
    options = SolveOptions(top=1)
    free = solve_layout(workload, cluster, options)
    for reserve in (0.05, reserve_of_risk(0.01)):
        plan = solve_layout(workload, cluster, replace(options, reserve=reserve))
        assert plan.estimate is not None and free.estimate is not None
        memory = plan.estimate.memory
        assert memory.peak_bytes <= (1 - reserve) * memory.capacity_bytes < free.estimate.memory.peak_bytes
        assert plan.estimate.step_time_s > free.estimate.step_time_s


if __name__ == "__main__":
    print(", ".join(f"{ratio:.4f}" for ratio in measured_over_predicted()))
