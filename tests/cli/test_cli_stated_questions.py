"""Questions that have to be solved with a proof, each verified on the independent path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

QUESTIONS = {
    "llama3-405b on 16,384": (("llama3-405b", "h100-16384"), 16384),
    "llama3-70b on 1,024": (("llama3-70b", "h100-1024"), 1024),
    "deepseek-v3 on 2,048": (("deepseek-v3", "h800-2048"), 2048),
    "gpt3-175b on 512": (("gpt3-175b", "a100-512", "--batch", "512"), 512),
    "mt-nlg-530b on 2,240": (("mt-nlg-530b", "a100x2240", "--batch", "1920"), 2240),
    "llama3-8b on 6": (("llama3-8b", "h100x6", "--batch", "96"), 6),
    "qwen3-235b-a22b on 256": (("qwen3-235b-a22b", "h100-256", "--batch", "2048"), 256),
}
PRIME = ("mt-nlg-530b", "a100x5128", "--batch", "1920")


def used_gpus(layout: dict[str, Any]) -> int:
    """Return how many GPUs a layout occupies."""
    return int(layout["tp"] * layout["cp"] * layout["pp"] * layout["dp"])


@pytest.fixture
def solved_and_verified(
    ask: Callable[..., dict[str, Any]], run: Callable[..., Result], tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Solve, check that the answer is proven and that ``verify`` accepts it."""

    def solve(*question: str) -> dict[str, Any]:
        plan, file = ask("solve", *question), tmp_path / "plan.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        assert (plan["status"], plan["objective"]["gap"]) == ("optimal", pytest.approx(0, abs=1e-6))
        assert run("verify", str(file)).exit_code == 0
        return plan

    return solve


@pytest.mark.parametrize("name", QUESTIONS)
def test_solved_and_proven(name: str, solved_and_verified: Callable[..., dict[str, Any]]) -> None:
    """The answer is optimal, uses every GPU and keeps the whole batch."""
    question, gpus = QUESTIONS[name]
    plan = solved_and_verified(*question)
    layout, training = plan["layout"], plan["inputs"]["workload"]["training"]
    assert used_gpus(layout) == gpus
    assert layout["dp"] * layout["micro_batch"] * layout["micro_batches"] == training["global_batch"]


def test_a_large_prime_factor_needs_idle_gpus(
    ask: Callable[..., dict[str, Any]], solved_and_verified: Callable[..., dict[str, Any]]
) -> None:
    """5,128 = 8 x 641 has no layout, and the answer names 641; leaving GPUs out it has one that says how many."""
    strict = ask("solve", *PRIME)
    assert strict["status"] == "infeasible" and "641" in strict["infeasibility"]["message"]
    loose = solved_and_verified(*PRIME, "--allow-idle")
    assert used_gpus(loose["layout"]) + loose["idle_gpus"] == 5128
    assert loose["idle_gpus"] > 0


def test_the_fewest_gpus_that_fit_do_fit(
    ask: Callable[..., dict[str, Any]], solved_and_verified: Callable[..., dict[str, Any]]
) -> None:
    """Llama 3 405B on 64 H100s: the least memory, what binds, and a number of GPUs that one node less can't replace."""
    why = ask("solve", "llama3-405b", "h100x64")["infeasibility"]
    assert why["binding"] == "memory" and why["least_bytes"] > why["capacity_bytes"]
    fewest = why["fewest_gpus"]
    assert solved_and_verified("llama3-405b", f"h100x{fewest}")["status"] == "optimal"
    assert ask("solve", "llama3-405b", f"h100x{fewest - 8}")["status"] == "infeasible"


@pytest.mark.parametrize(
    ("zero", "verdict", "peak_gb"),
    [(0, "does_not_fit", 164.0), (1, "fits", 58.944), (2, "fits", 41.432), (3, "fits", 23.920)],
)
def test_the_worked_plan_comes_out_of_evaluate(
    ask: Callable[..., dict[str, Any]], zero: int, verdict: str, peak_gb: float
) -> None:
    """Llama 3 70B on 1,024 GPUs, tp=8, under the simple model: 4.51 s, 44.8% MFU, the memory of each ZeRO stage."""
    layout = f"tp=8,dp=128,zero={zero},micro_batch=1"
    judged = ask(
        "evaluate", "llama3-70b", "h100-1024", "--batch", "512", "--cost-model", "simple", "--layout", layout
    )
    estimate = judged["estimate"]
    assert judged["verdict"] == verdict
    assert estimate["step_time_s"] == pytest.approx(4.510, rel=2e-3)
    assert estimate["mfu_full"] == pytest.approx(0.4482, abs=2e-3)
    assert estimate["memory"]["peak_bytes"] == pytest.approx(peak_gb * 1e9, rel=2e-3)
