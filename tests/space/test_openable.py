"""What a question leaves out is listed apart by whether results differ with it, and what is named opens it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import describe_space
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.enumeration import axes_table
from layoutopt.optimizer.space.openable import openable
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Saver

if TYPE_CHECKING:
    from layoutopt.optimizer.space.axes import Axes

FEW = {"tp": (1,), "pp": (1, 2), "ep": (1, 8)}


def axes_of(framework: Framework, **opened: Any) -> Axes:
    """Declare the space of a small question about experts."""
    fix = {**FEW, **opened.pop("fix", {})}
    options = SolveOptions(space=SpaceOptions(fix=fix, **opened), framework=framework)
    return describe_space(load_workload("qwen3-30b-a3b"), load_cluster("b200x16"), options).axes


@pytest.mark.parametrize("framework", [Framework.MEGATRON, Framework.TORCHTITAN, Framework.ANY])
def test_both_sets_hold_all_that_the_release_has(framework: Framework) -> None:
    """A value of a switch is searched, the trainer's own, or named with what opens it; what changes numbers apart."""
    axes = axes_of(framework)
    named = {one.name: one for one in openable(axes)}
    for name, values in axes.abilities.switches.items():
        searched = [value for value in values if value in axes.switch_values.get(name, ())]
        rest = named[name].values if name in named else ()
        assert len(searched) + len(rest) >= len(values) - 1 or name == "shared_expert_overlap", name
    differ = {one.name for one in openable(axes) if one.changes_numbers}
    assert {"precision", "grad_dtype", "master_dtype", "capacity_factor"} <= differ
    assert not differ & set(axes.switch_values)


def test_what_is_named_opens_it() -> None:
    """Every option of the list declares the values that it names."""
    for one in openable(axes_of(Framework.MEGATRON)):
        option, _, rest = one.opened_by.partition(" ")
        if option == "--fix":
            name, _, values = rest.partition("=")
            axes = axes_of(Framework.MEGATRON, fix={name: tuple(values.split(","))})
            opened = axes.recomputes if name == "recompute" else axes.switch_values[name]
            assert len(opened) == len(values.split(","))
            assert name not in {left.name for left in openable(axes)}
        elif option == "--allow":
            axes = axes_of(Framework.MEGATRON, allow=(Saver(rest),))
            assert any(Saver(rest) in chosen for chosen in axes.savers)
            assert (rest,) not in {left.values for left in openable(axes)}
        else:
            assert one.changes_numbers


def test_what_leaves_results_alone_has_a_reason() -> None:
    """Whatever is not searched though results are the same says why; groups are those that fill up the model."""
    for framework in (Framework.MEGATRON, Framework.ANY, Framework.TORCHTITAN):
        left = [one for one in openable(axes_of(framework)) if not one.changes_numbers]
        assert all(one.closed_since or one.name in ("schedule", "dispatcher") for one in left), left
    (groups,) = (one for one in openable(axes_of(Framework.MEGATRON)) if one.name == "recompute")
    assert groups.values == tuple(f"uniform:{size}" for size in (2, 3, 4, 6, 8))  # of 48 layers
    axes = axes_of(Framework.MEGATRON, fix={"cp": (1, 2)})
    assert axes.switch_values["cp_kind"] == ("p2p", "all_gather", "a2a", "a2a+p2p")
    assert not {"cp_kind", "cuda_graph"} & {one.name for one in openable(axes)}


def test_memory_savers_are_an_axis_where_they_are_allowed() -> None:
    """The table of axes has them then, with their sets counted, and else does not speak of them."""
    for allowed, values in (((), 0), ((Saver.BF16_MOMENTS,), 2)):
        rows = {row.axis: row for row in axes_table(axes_of(Framework.MEGATRON, allow=allowed))}
        assert ("savers" in rows) == bool(allowed)
        assert not allowed or rows["savers"].values == values
        assert {"tp", "ep", "micro_batch", "mesh_order", "precision"} <= rows.keys()


@pytest.mark.parametrize(
    ("framework", "named"),
    [(Framework.MEGATRON, ()), (Framework.TORCHTITAN, ("gpipe", "zb-v", "dualpipe-v"))],
)
def test_orders_of_the_pipeline_are_named(framework: Framework, named: tuple[str, ...]) -> None:
    """Schedules that a release runs and a question leaves out are listed with what opens them, until they are opened."""
    found = {one.name: one for one in openable(axes_of(framework))}
    assert (found["schedule"].values if named else ()) == named
    assert named or "schedule" not in found
    opened = axes_of(framework, fix={"schedule": ("none", "1f1b")})
    assert "schedule" not in {one.name for one in openable(opened)}


def test_what_is_forbidden_is_no_offer() -> None:
    """Neither among the values nor in what opens them: a fix can't undo what the question forbids."""
    forbidden = {"cuda_graph": ("full_iteration",), "precision": ("fp8",), "savers": ("offload-optimizer",)}
    free, limited = (
        openable(axes_of(Framework.MEGATRON)),
        openable(axes_of(Framework.MEGATRON, forbid=forbidden)),
    )
    assert any(one.name == "precision" and "fp8" in one.values for one in free)
    for one in limited:
        for value in forbidden.get(one.name, ()):
            assert value not in one.values and value not in one.opened_by.partition("=")[2].split(",")
