"""What an infeasible answer suggests has been tried: with it the same question has an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import Saver

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=2048)


def options(**space: object) -> SolveOptions:
    """Options whose space is restricted so."""
    return SolveOptions(top=1, gap=0.5, space=SpaceOptions(**space))  # type: ignore[arg-type]


def test_a_batch_that_does_not_divide_has_two_ways_out() -> None:
    """Idle GPUs and the nearest larger batch are suggested, and both lead to a layout."""
    machine, fixed = load_cluster("h100x7"), {"tp": (1,), "cp": (1,), "pp": (1,)}
    plan = solve_layout(WORKLOAD, machine, options(fix=fixed))
    assert plan.infeasibility is not None
    found = {one.option: one.value for one in plan.infeasibility.suggestions}
    assert found == {"allow_idle": "50%", "batch": "70"}
    idle = solve_layout(WORKLOAD, machine, options(fix=fixed, allow_idle=0.5))
    larger = solve_layout(override_training(WORKLOAD, global_batch=70), machine, options(fix=fixed))
    assert idle.layout is not None
    assert larger.layout is not None


def test_a_model_too_large_is_offered_the_saver_that_helps() -> None:
    """Where memory is short a memory saver that the trainer has is tried and named."""
    machine = load_cluster("a100-40gx2")
    plan = solve_layout(WORKLOAD, machine, options())
    assert plan.infeasibility is not None
    (found,) = plan.infeasibility.suggestions
    assert found.option == "allow"
    savers = tuple(map(Saver, found.value.split("+")))
    assert solve_layout(WORKLOAD, machine, options(allow=savers)).layout is not None


def test_a_saver_that_the_trainer_lacks_is_refused() -> None:
    """Nothing asked for is dropped in silence."""
    asked = replace(options(allow=(Saver.OFFLOAD_OPTIMIZER,)), framework=Framework.NANOTRON)
    with pytest.raises(InputError, match=r"nanotron has no offload-optimizer \(it has"):
        solve_layout(WORKLOAD, load_cluster("h100x8"), asked)
