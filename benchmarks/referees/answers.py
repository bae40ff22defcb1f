"""Answers of the search as the trainers' own code reads them: solved, exported, judged."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from checks.launches import Launch

from benchmarks.referees import configs, megatron
from benchmarks.referees.environments import tree_of
from benchmarks.referees.verdicts import Tally, compare
from layoutopt import InputError, SolveOptions, load_cluster, load_model, solve
from layoutopt.optimizer.frameworks.registry import Framework

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUESTIONS = """
{"ask": ["qwen3-30b-a3b", "h100x48", "megatron", "core 0.16"], "global_batch": 384, "precision": "fp8"}
{"ask": ["qwen3-30b-a3b", "h100x32", "megatron", "core 0.17"], "global_batch": 128, "fix": {"cuda_graph": "partial"}}
{"ask": ["glm-5", "h200x512", "megatron", "core 0.19"], "global_batch": 1024}
{"ask": ["deepseek-v3.2", "h100x512", "megatron", "core 0.19"], "global_batch": 2048}
{"ask": ["mixtral-8x7b", "h100x64", "megatron", "core 0.19"], "global_batch": 256, "fix": {"ep_overlap": "true"}}
{"ask": ["grok-1", "h100x192", "megatron", "core 0.18"], "global_batch": 384, "precision": "fp8"}
{"ask": ["qwen3-next-80b-a3b", "h100x64", "megatron", "core 0.18"], "global_batch": 256}
{"ask": ["gpt-oss-120b", "h100x64", "megatron", "core 0.18"], "global_batch": 256}
{"ask": ["llama3-8b", "h100x32", "megatron", "core 0.18"], "global_batch": 128, "fix": {"cuda_graph": "full_iteration"}}
{"ask": ["qwen3-235b-a22b", "h100x128", "megatron", "core 0.17"], "global_batch": 512, "precision": "fp8"}
{"ask": ["deepseek-v3", "h800x1024", "megatron", "core 0.15"], "global_batch": 4096, "precision": "fp8"}
{"ask": ["mixtral-8x22b", "h100x128", "megatron", "core 0.13"], "global_batch": 256}
{"ask": ["llama2-70b", "a100x80", "megatron", "core 0.11"], "global_batch": 160, "fix": {"recompute": "full"}}
{"ask": ["nemotron4-15b", "h100x40", "megatron", "core 0.10"], "global_batch": 160}
{"ask": ["gpt-22b", "a100x48", "megatron", "core 0.10"], "global_batch": 96, "precision": "fp16"}
{"ask": ["llama3-405b", "h100x512", "torchtitan", "era A"], "global_batch": 512, "fix": {"schedule": "zb-v"}}
{"ask": ["llama3-70b", "h100x96", "torchtitan", "era A"], "global_batch": 192, "precision": "fp8"}
{"ask": ["llama3-8b", "h100x24", "accelerate", "1.15"], "global_batch": 96, "sequence_length": 32768}
{"ask": ["llama3-70b", "h100x64", "deepspeed", "0.19.8"], "global_batch": 128}
{"ask": ["llama3-8b", "a100x24", "nanotron", "2026-04"], "global_batch": 96}
{"ask": ["bloom-176b", "a100x192", "megatron-deepspeed", "2025-07"], "global_batch": 384}
{"ask": ["gpt3-175b", "a100x128", "megatron-deepspeed", "2025-07"], "global_batch": 512, "precision": "fp16"}
"""
"""Of models, sizes, precisions and switches beside those of the tables, a line each."""

GAP, LIMIT_S = 0.05, 30.0
"""Launch files are judged, not proofs."""


def answered(question: dict[str, Any]) -> Launch | str:
    """The answer as a launch, or why there is none."""
    asked = dict(question)
    model, cluster, framework, release = asked.pop("ask")
    fix = asked.pop("fix", None)
    workload = load_model(model, **asked)
    options: dict[str, Any] = {"framework": framework, "software": release, "fix": fix}
    try:
        result = solve(
            workload,
            load_cluster(cluster),
            **options,
            options=SolveOptions(gap=GAP),
            time_limit_s=LIMIT_S,
        )
        job = result.export(framework, release=release)
    except InputError as error:
        return str(error)
    assert result.layout is not None
    return Launch(layout=result.layout, model=workload.model, job=job, broken=(), parameters=())


def referee(python: dict[str, Path], checkouts: dict[str, Path], folder: Path) -> Iterator[Tally]:
    """Judge every release's answers that have an environment and a checkout, those without an answer as not judged."""
    asked = defaultdict(list)
    for line in QUESTIONS.split("\n"):
        if line:
            question = json.loads(line)
            asked[tuple(question["ask"][2:])].append(answered(question))
    for (framework, release), answers in asked.items():
        launches = [answer for answer in answers if isinstance(answer, Launch)]
        found = judged(Framework(framework), release, launches, python, checkouts, folder)
        tally = compare(f"answers for {framework} {release}", launches, found)
        tally.not_judged.update(answer for answer in answers if isinstance(answer, str))
        yield tally


def judged(
    framework: Framework,
    release: str,
    launches: list[Launch],
    python: dict[str, Path],
    checkouts: dict[str, Path],
    folder: Path,
) -> list[dict[str, Any]]:
    """What the release says to its launches."""
    one = next(
        (one for one in configs.REFEREES if (one.framework, one.release) == (framework, release)), None
    )
    environment, checkout = (one.environment, one.checkout) if one else ("torch", "megatron")
    if environment not in python or (checkout and checkout not in checkouts):
        return [{"error": f"referee: no environment or checkout of {framework}", "derived": {}}] * len(
            launches
        )
    if one is None:
        number = release.split()[-1]
        tree = tree_of(checkouts["megatron"], f"core_v{number}.0", "megatron", folder)
        return megatron.findings(python[environment], tree, number, launches)
    source = tree_of(checkouts[one.checkout], one.commit, one.part, folder) if one.checkout else None
    return configs.findings(one, python[environment], source, launches)
