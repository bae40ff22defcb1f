"""Near-ties and the robust choice can be exported as the answer can."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from layoutopt import load_cluster, load_model, solve
from layoutopt.optimizer.report.commands.export import ROBUST, read_plan
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


def test_rank_two_is_the_first_near_tie(plan_text: str, tmp_path: Path) -> None:
    """Every rank of a plan is a whole layout of its question; what is beyond is said with what there is."""
    plan = json.loads(plan_text)
    file = tmp_path / "plan.json"
    file.write_text(plan_text)
    count = len(plan["alternatives"])
    assert count >= 1
    _, answer = read_plan(str(file))
    _, second = read_plan(str(file), 2)
    assert second != answer
    stated = plan["alternatives"][0]["layout"]
    assert (second.tp, second.pp, second.dp, second.micro_batch) == tuple(
        stated[name] for name in ("tp", "pp", "dp", "micro_batch")
    )
    with pytest.raises(
        InputError, match=f"--rank: {count + 2} is not in the plan, which holds {count + 1} layouts"
    ):
        read_plan(str(file), count + 2)


QUESTION = ("solve", "llama3-8b", "h100x8", "--batch", "64")


def test_the_robust_choice_is_exported(run: Callable[..., Result], tmp_path: Path) -> None:
    """The layout that ``solve --robust`` names, whichever rank it has, and the files that its rank gives."""
    file = tmp_path / "plan.json"
    assert run(*QUESTION, "--robust", "-o", str(file), "-q").exit_code == 0
    plan = json.loads(file.read_text())
    near = [1, *(rank for rank, one in enumerate(plan["alternatives"], 2) if not one["distinguishable"])]
    assert len(near) == len(plan["robust"]["worst_regret"])
    rank = near[plan["robust"]["chosen"]]
    assert read_plan(str(file), ROBUST) == read_plan(str(file), rank)
    written, ranked = (
        run("export", str(file), "--to", "megatron-lm", *words)
        for words in (("--robust",), ("--rank", str(rank)))
    )
    assert written.exit_code == 0 and written.stdout == ranked.stdout
    for chosen in (0, len(near) - 1):
        file.write_text(json.dumps(plan | {"robust": plan["robust"] | {"chosen": chosen}}))
        assert read_plan(str(file), ROBUST) == read_plan(str(file), near[chosen])


@pytest.mark.parametrize(
    "chosen", [None, {}, {"chosen": 99}, {"chosen": -1}, {"chosen": "0"}, {"chosen": True}]
)
def test_a_robust_choice_that_is_not_there(
    chosen: object, plan_text: str, run: Callable[..., Result], tmp_path: Path
) -> None:
    """Plans without one, and forged ones, are refused with what to do; a rank beside it is one too many."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(json.loads(plan_text) | ({} if chosen is None else {"robust": chosen})))
    ran = run("export", str(file), "--to", "megatron-lm", "--robust")
    assert ran.exit_code == 2
    assert "--robust: is not in the plan (a plan that solve --robust wrote)" in ran.stderr
    both = run("export", str(file), "--to", "megatron-lm", "--robust", "--rank", "2")
    assert both.exit_code == 2 and "--robust chooses the layout" in both.stderr


@pytest.mark.parametrize(
    ("framework", "software", "to", "written"),
    [
        ("megatron", "core 0.16", "megatron-lm", "core 0.16"),
        ("torchtitan", "era A", "torchtitan", "era A"),
        ("megatron", "core 0.16", "megatron-bridge", "0.6"),
        ("any", None, "megatron-lm", "core 0.19"),
    ],
)
def test_a_launch_is_for_the_release_that_the_plan_was_made_for(
    run: Callable[..., Result], tmp_path: Path, framework: str, software: str | None, to: str, written: str
) -> None:
    """Flags come and go with releases; another trainer's names of releases mean nothing."""
    question = solve(
        load_model("llama3-8b"),
        load_cluster("h100x8"),
        framework=framework,
        software=software,
        fix={"tp": 1, "pp": 1},
    )
    assert written in "".join(question.export(to).files.values())
    assert "core 0.18" in "".join(question.export("megatron-lm", release="core 0.18").files.values())
    question.save(tmp_path / "plan.json")
    assert written in run("export", str(tmp_path / "plan.json"), "--to", to).stdout
