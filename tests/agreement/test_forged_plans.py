"""What solve writes is accepted, and nothing that was changed afterwards: false figures are rejected, none crashes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from checks.forged_settings import OF_CONTEXT, OF_DEMANDED, OF_GROUPED, OF_MERGED
from checks.forgeries import OF_GOAL, OF_INFEASIBLE, OF_SWITCHED, SHARED, listed
from checks.forging import Forgery, Others, Right, both, every_figure, put
from checks.further_forgeries import FURTHER, INVENTED, INVENTED_OF_LAYOUTS, WITHOUT_LAYOUT
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan, write_again
from layoutopt.optimizer.solve.api import freer_gain, solve_layout
from layoutopt.optimizer.solve.inputs import question_from_plain
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.verify.api import rebuild
from layoutopt.optimizer.solve.verify.claim import COUNTS
from layoutopt.optimizer.solve.verify.claim import verify_plan as check_plan
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.solve.verify.rebuilt import Rebuilt
    from layoutopt.optimizer.solve.verify.report import VerifyReport
    from layoutopt.optimizer.specs.cluster import ClusterSpec

Json = dict[str, Any]

SMALL = SpaceOptions(max={"vp": 2, "cp": 1}, fix={"mesh_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")})
NO_ROOM = SpaceOptions(fix={"zero": (0,)}, forbid={"recompute": ("full",)})
FEW = SpaceOptions(
    fix={
        "tp": (1,),
        "cp": (1,),
        "pp": (1,),
        "ep": (8,),
        "micro_batch": (1, 2),
        "mesh_order": ("tp-cp-ep-dp-pp",),
    },
    # Else the answer has overlap and graphs, and room: nothing to switch on.
    forbid={"recompute": ("none",), "ep_overlap": ("1",)},
)
ORDER = {"mesh_order": ("tp-cp-ep-dp-pp",)}
MERGED = ORDER | {
    "tp": (1,),
    "cp": (1,),
    "pp": (2,),
    "vp": (4,),
    "ep": (8,),
    "micro_batch": (1,),
    "zero": (1,),
}
GROUPED = ORDER | {"recompute": ("uniform:2", "uniform:4"), "cp": (1,), "vp": (1,), "zero": (1,)}
DEMANDS = ("peak_gb <= 60", "layers[0] <= 31")
QUESTIONS = {
    "dense": ("llama3-8b", "h100x16", SolveOptions(near=0.2)),
    "moe": ("mixtral-8x7b", "h100x16", SolveOptions(near=0.2, space=SMALL)),
    "infeasible": ("llama3-70b", "h100x8", SolveOptions(near=0.2, space=NO_ROOM)),
    "switched": ("qwen3-30b-a3b", "h100x16", SolveOptions(near=0.2, space=FEW)),
    "goal": (
        "llama3-8b",
        "h100x8",
        SolveOptions(near=0.2, minimize="energy", space=SpaceOptions(max={"vp": 1})),
    ),
    "merged": (
        "qwen3-30b-a3b",
        "h100x16",
        SolveOptions(near=0.3, space=SpaceOptions(fix=MERGED | {"ep_overlap": ("1",)})),
    ),
    "grouped": ("llama3-8b", "h100x8", SolveOptions(near=0.3, space=SpaceOptions(fix=GROUPED))),
    "context": (
        "llama3-8b",
        "h100x8",
        SolveOptions(near=0.3, space=SpaceOptions(fix=ORDER | {"cp": (4,), "vp": (1,)})),
    ),
    "demanded": (
        "llama3-8b",
        "h100x16",
        SolveOptions(
            near=0.3,
            then="cost",
            within=0.1,
            space=SpaceOptions(fix=ORDER, max={"vp": 1}, require=DEMANDS, gpu_hour_cost=2.0),
        ),
    ),
}


def solved(
    model: str,
    cluster: str | ClusterSpec,
    options: SolveOptions | None = None,
    *,
    robust: bool = False,
    compared: bool = False,
    stop_after_s: float | None = None,
) -> Json:
    """Solve and write as the command line does."""
    options = options or SolveOptions()
    workload = load_workload(model)
    machine = load_cluster(cluster) if isinstance(cluster, str) else cluster
    end = None if stop_after_s is None else time.perf_counter() + stop_after_s
    plan = solve_layout(
        workload, machine, options, should_stop=lambda: end is not None and time.perf_counter() > end
    )
    if compared:
        plan = replace(plan, freer_gain=freer_gain(workload, machine, plan, options))
    honesty = assess(plan, workload, machine, options, robust=robust)
    written: Json = json.loads(json.dumps(plan_to_plain(plan, honesty)))
    return written


@dataclass(frozen=True)
class Case:
    """One honest plan and what it is compared with; rebuilt once for all changes that leave the inputs alone."""

    plan: Json
    rebuilt: Rebuilt

    def verify(self, plan: Json) -> VerifyReport:
        """Verify a plan as the command does."""
        if plan.get("inputs") == self.plan["inputs"]:
            return check_plan(plan, self.rebuilt)
        return verify_plan(plan)


@cache
def case(name: str) -> Case:
    """Solve one of the questions."""
    plan = solved(*QUESTIONS[name])
    return Case(plan, rebuild(question_from_plain(plan["inputs"]), write_again))


@cache
def others() -> Others:
    """Solve the dense question with twice the memory, and with a restricted space."""
    cluster = load_cluster("h100x16")
    roomy = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=2 * cluster.gpu.memory_bytes))
    fixed = SolveOptions(space=SpaceOptions(fix={"tp": (8,)}))
    return Others(solved("llama3-8b", roomy), solved("llama3-8b", cluster, fixed))


OF_ONE = {
    "infeasible": OF_INFEASIBLE | WITHOUT_LAYOUT,
    "switched": OF_SWITCHED,
    "goal": OF_GOAL,
    "merged": OF_MERGED,
    "grouped": OF_GROUPED,
    "context": OF_CONTEXT,
    "demanded": OF_DEMANDED,
}
"""Forgeries of one question alone."""


def table(name: str) -> dict[str, Forgery]:
    """Return the forgeries of a question."""
    if name in OF_ONE:
        return OF_ONE[name]
    return SHARED | (FURTHER | listed(others()) if name == "dense" else {})


NAMES = [
    *(("dense", forgery) for forgery in {**listed(Others()), **SHARED, **FURTHER}),
    *(("moe", forgery) for forgery in SHARED),
    *((question, forgery) for question, own in OF_ONE.items() for forgery in own),
]


def test_there_are_enough() -> None:
    """All recorded forgeries are among them, but for two that are honest plans of other inputs."""
    assert len(listed(Others())) == 57
    assert len(NAMES) >= 120
    assert len(OF_SWITCHED) + len(OF_GOAL) >= 30
    assert len(OF_MERGED) + len(OF_GROUPED) + len(OF_CONTEXT) + len(OF_DEMANDED) >= 80
    assert len(FURTHER) >= 45 and not {*FURTHER} & {*SHARED, *listed(Others())}


@pytest.mark.parametrize(("question", "name"), NAMES)
def test_forgery(question: str, name: str) -> None:
    """Every false plan is rejected with a reason on one line, every unreadable one is bad input, none crashes."""
    honest = case(question)
    forgery = table(question)[name]
    plan = forgery.made_of(honest.plan)
    if forgery.right is Right.UNREADABLE:
        with pytest.raises(InputError) as error:
            honest.verify(plan)
        lines = [str(problem) for problem in error.value.problems]
    else:
        report = honest.verify(plan)
        assert report.accepted is (forgery.right is Right.ACCEPTED), str(report)
        lines = [check.reason for check in report.failures]
        assert bool(lines) is not report.accepted
    assert all(line and "\n" not in line and len(line) < 1000 for line in lines), lines


@pytest.mark.parametrize("question", ["dense", "infeasible"])
def test_invented_figures_are_named(question: str) -> None:
    """What stands under keys that no plan has is printed as not checked, each on a line that says so."""
    honest = case(question)
    made = INVENTED if question == "infeasible" else INVENTED + INVENTED_OF_LAYOUTS
    plan = Forgery(both(*(forgery.change for forgery in made))).made_of(honest.plan)
    report = honest.verify(plan)
    assert report.accepted, str(report)
    for forgery in made:
        (told,) = (text for text in report.not_checked if text.startswith(forgery.named))
        assert told.endswith(": no statement of a plan") and "\n" not in told and "\x1b" not in told
    assert len(report.not_checked) == len(made) + 1  # and the time that it took


@pytest.mark.parametrize("question", QUESTIONS)
def test_honest_plan(question: str) -> None:
    """The plan itself is accepted, and all of it was checked but for the time that it took.

    That no layout is better in another objective than time is for a search to say.
    """
    honest = case(question)
    report = honest.verify(honest.plan)
    assert report.accepted, str(report)
    claim = ["that"] if question == "goal" else []
    assert [text.split()[0] for text in report.not_checked] == [*claim, "solve_time_s"]


def test_switches_beyond_the_plan_are_named() -> None:
    """What is stated of switches that no search states is printed as not checked."""
    honest = case("switched")
    for name, key in (
        ("an unknown switch", "layout.switches.luck"),
        ("worth of what is off", "switches_worth.ep_overlap"),
    ):
        report = honest.verify(OF_SWITCHED[name].made_of(honest.plan))
        assert any(text.startswith(key) for text in report.not_checked), str(report)


HONEST: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "within a gap": (
        "llama3-70b", "h100x32",
        {"gap": 0.2, "top": 1, "space": SpaceOptions(min={"pp": 4}, fix={"recompute": ("full",)})}, {},
        ("a gap of at most 20.000%", "recompute = full"),
    ),
    "restricted": ("llama3-8b", "h100x8", {"space": SpaceOptions(fix={"tp": (8,)})}, {}, ("tp = 8",)),
    "forbidden": (
        "llama3-8b", "h100x8", {"space": SpaceOptions(forbid={"zero": (1,)}, max={"pp": 4})}, {},
        ("zero other than 1", "pp at most 4"),
    ),
    "a requirement over axes": (
        "llama3-8b", "h100x8", {"space": SpaceOptions(require=("tp*cp == 8",))}, {}, ("what meets tp*cp == 8",)
    ),
    "a requirement over memory": (
        "llama3-8b", "h100x8", {"space": SpaceOptions(require=("peak_gb <= 60",))}, {},
        ("what meets peak_gb <= 60",),
    ),
    "a requirement over stages": (
        "llama3-8b", "h100x8", {"space": SpaceOptions(require=("layers[0] <= 14",))}, {},
        ("what meets layers[0] <= 14",),
    ),
    "a second goal": ("llama3-8b", "h100x8", {"then": "memory", "within": 0.01}, {}, ("the best in memory",)),
    "idle GPUs": ("llama3-8b", "h100x12", {"space": SpaceOptions(allow_idle=0.4)}, {}, ("allow idle: 0.4",)),
    "many runners-up": ("llama3-8b", "h100x8", {"top": 6, "near": None}, {}, ()),
    "one model": (
        "llama3-8b", "h100x8",
        {"one_model": True, "space": SpaceOptions(
            fix={"tp": (1,), "mesh_order": ("tp-cp-ep-dp-pp",), "zero": (1, 3)}, max={"vp": 1, "pp": 2}
        )},
        {}, ("tp = 1",),
    ),
    "robust": ("llama3-8b", "h100x8", {"top": 3, "near": 0.1}, {"robust": True}, ()),
    "compared with the freest trainer": ("llama3-8b", "h100x8", {}, {"compared": True}, ()),
    "several threads": ("llama3-8b", "h100x8", {"workers": 2}, {}, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_other_honest_plans(name: str) -> None:
    """Plans of other options are accepted too; what restricts them is named."""
    model, cluster, options, more, restrictions = HONEST[name]
    plan = solved(model, cluster, SolveOptions(**options), **more)
    report = verify_plan(plan)
    assert report.accepted, str(report)
    told = " / ".join(report.restrictions)
    assert all(words in told for words in restrictions), told
    near = ("within a gap", "a second goal")
    assert plan["status"] == ("within_gap" if name in near else "optimal")


def test_own_constants_are_named() -> None:
    """A plan with constants of one's own is a consistent answer to its inputs, and the output says which constants."""
    cluster = replace(load_cluster("h100x16"), calibration={"time_scale": 0.9})
    report = verify_plan(solved("llama3-8b", cluster))
    assert report.accepted, str(report)
    assert "the cluster's own constant time_scale = 0.9" in report.restrictions


def test_other_versions_are_named() -> None:
    """A plan that another numpy computed can be verified; the output says so, and what can't be found again."""
    honest = case("dense")
    plan = Forgery(put("certificate/versions/numpy", "1.26.4")).made_of(honest.plan)
    report = honest.verify(plan)
    assert report.accepted, str(report)
    version = "certificate.versions.numpy '1.26.4': not what runs here; prices agree all the same"
    assert version in report.not_checked
    assert {f"certificate.{name}" for name in COUNTS} < {text.split()[0] for text in report.not_checked}


def test_a_false_name_is_told() -> None:
    """A plan for a better cluster than the one that it names is a consistent answer; the output says what differs."""
    report = verify_plan(others().roomy)
    assert report.accepted, str(report)
    assert "a cluster that is not the built-in h100x16: gpu.memory_bytes" in report.restrictions


def test_stopped_plan() -> None:
    """A search that was stopped claims no more than its bound; its counts can't be found again and are named."""
    plan = solved("llama3-70b", "h100x256", stop_after_s=0.2)
    assert plan["status"] == "stopped"
    report = verify_plan(plan)
    assert report.accepted, str(report)
    unread = {text.split()[0] for text in report.not_checked}
    always = {"solve_time_s", "whether", *(f"certificate.{name}" for name in COUNTS)}
    # A roomier layout and near-ties left open are named only where the search happened to stop beside such ones.
    beside = {name for name in ("comfortable", "open_ties") if plan.get(name)}
    assert unread == always | beside
    for claimed in ("optimal", "within_gap", "infeasible"):
        forged = Forgery(put("status", claimed)).made_of(plan)
        assert not verify_plan(forged).accepted


@pytest.mark.parametrize("name", ["moe", "infeasible"])
def test_every_statement_is_checked_or_named(name: str) -> None:
    """Each figure and word by itself, the digest made anew: rejected, unreadable, or among what was not checked."""
    honest = case(name)
    forgeries = dict(every_figure(honest.plan))
    assert len(forgeries) > 40
    for path, forgery in forgeries.items():
        try:
            report = honest.verify(forgery.made_of(honest.plan))
        except InputError:
            continue
        key = path.replace("/", ".")  # named itself, or with all of a statement that it is part of
        named = any(
            text.startswith(key) or key.startswith(f"{text.split()[0]}.") for text in report.not_checked
        )
        assert named or not report.accepted, path


TEXTS: dict[str, Callable[[str], str]] = {
    "truncated": lambda text: text[: len(text) // 2],
    "empty": lambda _: "",
    "not JSON": lambda _: "status: optimal",
    "a key twice": lambda text: text.replace('"status":', '"status": "infeasible", "status":', 1),
    "a key twice, deep": lambda text: text.replace('"peak_bytes":', '"peak_bytes": 1.0, "peak_bytes":', 1),
    "NaN": lambda text: text.replace('"gap": 0.0', '"gap": NaN', 1),
    "Infinity": lambda text: text.replace('"gap": 0.0', '"gap": Infinity', 1),
    "deep nesting": lambda _: '{"inputs": ' * 100_000 + "1" + "}" * 100_000,
    "more digits than can be read": lambda text: text.replace(
        '"idle_gpus": 0', f'"idle_gpus": {"9" * 5000}', 1
    ),
    "a list": lambda text: f"[{text}]",
    "a number": lambda _: "3",
    "null": lambda _: "null",
    "not text": lambda _: "\x00\x01",
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_no_plan(tmp_path: Path, name: str) -> None:
    """Text that can't be read as one plan ends with exit code 2 and one line."""
    text = json.dumps(case("dense").plan)
    file = tmp_path / "plan.json"
    file.write_text(TEXTS[name](text))
    assert file.read_text() != text
    result = CliRunner().invoke(main, ["verify", str(file)])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output and len(result.output.strip().splitlines()) <= 2


def test_exit_codes(tmp_path: Path) -> None:
    """An honest plan ends with 0 and names what was not checked; a forged one with 3 and the reason."""
    honest = case("dense").plan
    slower = listed(others())["slower layout gap target honest bound"].made_of(honest)
    for plan, code in ((honest, 0), (slower, 3)):
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(plan))
        result = CliRunner().invoke(main, ["verify", str(file)])
        assert result.exit_code == code, result.output
        assert "not checked: solve_time_s" in result.output
        assert ("gap target 0 amount to stopped" in " ".join(result.output.split())) is (code == 3)
        assert "restricted to" in result.output


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (("export", "{}", "--to", "megatron-lm"), "tp", 1.0),
        (("evaluate", "llama3-8b", "h100x16", "--layout", "{}"), "micro_batch", "1"),
        (("simulate", "{}"), "pp", 2.0),
    ],
)
def test_a_plan_holds_whole_numbers(tmp_path: Path, words: tuple[str, ...], key: str, value: object) -> None:
    """What solve never writes is no layout to launch, price or simulate: one line, exit code 2."""
    plan = case("dense").plan
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan | {"layout": plan["layout"] | {key: value}}))
    result = CliRunner().invoke(main, [word.format(file) for word in words])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.endswith(f"layout.{key}: {value!r} is not valid (a whole number)")


def test_numbers_beyond_floats_are_rejected(tmp_path: Path) -> None:
    """A number that only overflows when it is read is no figure that a plan can have."""
    text = json.dumps(case("dense").plan).replace('"mfu_full": ', '"mfu_full": 1e999, "was": ', 1)
    file = tmp_path / "plan.json"
    file.write_text(text)
    assert CliRunner().invoke(main, ["verify", str(file)]).exit_code == 3
