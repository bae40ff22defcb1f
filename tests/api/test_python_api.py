"""The Python interface: five lines solve, answers show themselves, and the model takes constraints of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import layoutopt
from layoutopt import InputError, SolveOptions, evaluate, explain, load_cluster, load_model, solve
from layoutopt.optimizer.solve.certificate import Status

CONFIG = Path(__file__).parents[1] / "interop" / "samples" / "hf_llama.json"


@pytest.fixture(scope="module")
def result() -> layoutopt.Result:
    """A small question, solved."""
    return solve(load_model("llama3-8b", global_batch=64), load_cluster("h100x16"), framework="any")


def test_importing_is_light() -> None:
    """``import layoutopt`` loads none of the scientific stack, and lists its names."""
    heavy = "('numpy', 'ortools', 'pydantic', 'rich', 'networkx', 'scipy')"
    script = (
        f"import sys, layoutopt; print([n for n in {heavy} if n in sys.modules], 'solve' in dir(layoutopt))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"
    with pytest.raises(AttributeError, match="no attribute 'slove'"):
        layoutopt.__getattr__("slove")


def test_every_public_name_can_be_imported() -> None:
    """What ``__all__`` lists is there."""
    for name in layoutopt.__all__:
        assert getattr(layoutopt, name) is not None


def test_result_says_what_matters(result: layoutopt.Result) -> None:
    """The repr is a line with status, question, step time, proof and layout; text and HTML are the tables."""
    assert result.status == "optimal" and result.layout is not None and result.step_time_s is not None
    line = repr(result)
    assert line.startswith("<optimal: llama3-8b on 16 x h100: ") and "proven" in line and "\n" not in line
    assert f"tp={result.layout.tp} " in line
    assert "How sure" in str(result) and "Near-ties" in str(result)
    html = result._repr_html_()
    assert html.startswith("<pre") and "How sure" in html and "\x1b" not in html


def test_dictionary_and_file_are_the_plan(result: layoutopt.Result, tmp_path: Path) -> None:
    """``to_dict`` is what ``solve --json`` prints, ``save`` what ``verify`` reads."""
    result.save(tmp_path / "plan.json")
    plain = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plain == json.loads(json.dumps(result.to_dict()))
    assert {"status", "objective", "layout", "estimate", "certificate"} <= set(plain)


def test_restrictions_and_options(result: layoutopt.Result) -> None:
    """Single values and tuples restrict axes; SolveOptions carries the rest; bad values are input errors."""
    model, cluster = result.workload, result.cluster
    fixed = solve(model, cluster, framework="any", fix={"tp": 2, "pp": (1, 2)}, most={"cp": 1})
    assert fixed.layout is not None and (fixed.layout.tp, fixed.layout.cp) == (2, 1)
    assert fixed.step_time_s is not None and result.step_time_s is not None
    assert fixed.step_time_s >= result.step_time_s
    stopped = solve(model, cluster, options=SolveOptions(time_limit_s=1e-9))
    assert stopped.plan.status is Status.STOPPED
    with pytest.raises(InputError, match="framework"):
        solve(model, cluster, framework="megatorn")
    with pytest.raises(InputError, match="no axis"):
        solve(model, cluster, fix={"tpp": 2})


def test_model_takes_constraints(result: layoutopt.Result) -> None:
    """Without a constraint the model gives the optimum again; with one, the best layout that meets it, with its gap."""
    again = result.resolve()
    assert again.layout == result.layout and again.proven
    assert result.layout is not None and result.step_time_s is not None
    held = sum(stage.layers for stage in result.layout.stages if stage.rank == 0)
    open_model = result.model
    assert open_model.variables.blocks[0][0].name == "blocks_0_0"
    open_model.model.add(open_model.variables.blocks[0][0] != held)
    other = result.resolve()
    assert other.layout is not None and other.estimate is not None
    first = sum(stage.layers for stage in other.layout.stages if stage.rank == 0)
    assert first != held
    assert other.estimate.step_time_s >= result.step_time_s * (1 - 1e-9)
    assert other.bound_s <= other.estimate.step_time_s * (1 + 1e-9)
    open_model.model.add(open_model.variables.columns["tp"] == 7)
    assert result.resolve().layout is None


def test_memory_of_the_model_means_memory() -> None:
    """A bound on ``peak_kib`` is kept by the layout that comes out."""
    small = solve(load_model("llama3-8b", global_batch=64), load_cluster("h100x8"))
    assert small.estimate is not None
    limit_bytes = 0.9 * small.estimate.memory.peak_bytes
    small.model.model.add(small.model.variables.peak_kib <= int(limit_bytes / 1024))
    leaner = small.resolve()
    assert leaner.layout is None or leaner.estimate is not None
    if leaner.estimate is not None:
        assert leaner.estimate.memory.peak_bytes <= limit_bytes * (1 + 1e-5)


def test_model_holds_the_winner_and_bounds_the_rest() -> None:
    """What is left out of the model is proven not to be faster than its floor."""
    small = solve(load_model("llama3-8b", global_batch=16), load_cluster("h100x8"))
    held, others_s = small.model.data, small.open_model.others_s
    assert 1 <= len(held) <= 16
    assert small.step_time_s is not None and others_s >= small.step_time_s * (1 - 1e-9)
    near = solve(small.workload, small.cluster, options=SolveOptions(top=12, near=0.05))
    steps = [other.estimate.step_time_s for other in near.plan.alternatives]
    inside = {int(tp) for tp in held.batch.tp}
    for other in near.plan.alternatives:
        assert other.layout.tp in inside or other.estimate.step_time_s >= others_s * (1 - 1e-9)
    assert steps


def test_infeasible_answers_say_why() -> None:
    """No layout, no traceback: the reason is in the repr; there is no model and nothing to export."""
    none = solve(load_model("llama3-70b"), load_cluster("h100x8"))
    assert none.status == "infeasible" and none.layout is None and none.step_time_s is None
    assert "no layout fits" in repr(none)
    for ask in (lambda: none.model, lambda: none.export("megatron-lm")):
        with pytest.raises(InputError):
            ask()


def test_verdicts_and_reasons(result: layoutopt.Result) -> None:
    """Layouts as text are judged and explained; wishes cost something; exports are launch files."""
    model, cluster = result.workload, result.cluster
    fits = evaluate(model, cluster, "tp=4,pp=2,zero=1")
    assert fits.verdict == "fits" and fits.estimate is not None and repr(fits).startswith("<fits: ")
    full = explain(model, cluster, "tp=1,zero=0", compare=False)
    assert full.verdict == "does_not_fit" and "helps" in repr(full) and "Remedies" in str(full)
    slow = result.explain("tp=8,pp=2,zero=1")
    assert "over the optimum" in repr(slow) and "Gap to the optimum" in slow._repr_html_()
    wish = result.why_not(tp=8)
    assert wish.slower is not None and wish.slower > 0
    job = solve(model, cluster, fix={"zero": 1}).export("megatron-lm")
    assert "--tensor-model-parallel-size" in job.files["launch.sh"]


def test_models_of_other_tools() -> None:
    """A config.json with a batch is a model; without one the error says what to give."""
    model = load_model(CONFIG, global_batch=32, sequence_length=1024)
    assert (model.model.hidden, model.training.global_batch) == (768, 32)
    with pytest.raises(InputError, match=r"give a global batch \(global_batch\)"):
        load_model(CONFIG)
    assert load_cluster("h100-256", gpus=64).gpu_count == 64
