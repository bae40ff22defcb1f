"""Questions of built-in models on built-in clusters, and of mixed stacks: what benchmarks ask of all of them."""

from __future__ import annotations

from dataclasses import replace

from checks.judged_answers import Asked
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.model import Run

MEGATRON = (
    ("llama3-8b", "h100-256"),
    ("llama3-8b", "b200-256"),
    ("llama2-7b", "a100-512"),
    ("nemotron4-15b", "h100-1024"),
    ("nemotron4-15b", "a100-384-opa"),
    ("gpt-22b", "a100-384-opa"),
    ("qwen3-32b", "h100-256"),
    ("qwen3-32b", "gb200-nvl72-576"),
    ("llama2-70b", "a100-512"),
    ("llama2-70b", "h100-256"),
    ("llama3-70b", "h100-1024"),
    ("llama3-70b", "h100-8192"),
    ("llama3-70b", "b200-256"),
    ("gpt3-175b", "a100-512"),
    ("gpt3-175b", "a100-3072"),
    ("gpt3-175b", "h100-8192"),
    ("bloom-176b", "a100-384-opa"),
    ("bloom-176b", "h100-1024"),
    ("nemotron4-340b", "h100-1024"),
    ("nemotron4-340b", "gb300-nvl72-576"),
    ("llama3-405b", "h100-8192"),
    ("llama3-405b", "h100-16384"),
    ("mt-nlg-530b", "a100-3072"),
    ("palm-540b", "h100-8192"),
    ("gpt-1t", "a100-3072"),
    ("mixtral-8x7b", "h100-256"),
    ("mixtral-8x22b", "h100-1024"),
    ("qwen3-30b-a3b", "h100-256"),
    ("qwen3-235b-a22b", "h100-256"),
    ("gpt-oss-120b", "gb300-nvl72-576"),
    ("grok-1", "h100-1024"),
    ("deepseek-v2", "b200-256"),
    ("deepseek-v3", "h800-2048"),
    ("kimi-k2", "gb200-nvl72-576"),
)
ANY = (
    ("llama3-70b", "h100-256"),
    ("llama3-405b", "h100-16384"),
    ("gpt3-175b", "h100-1024"),
    ("qwen3-235b-a22b", "h100-256"),
    ("deepseek-v2", "h800-2048"),
    ("deepseek-v3", "h800-2048"),
)


MIXED = (
    ("llama3-70b", "h100-256", "every other with a window"),
    ("llama3-8b", "h100-256", "three of four with a window"),
    ("qwen3-32b", "h100-256", "a narrow tower in front"),
)


def questions() -> list[tuple[str, Asked]]:
    """Return the 40 built-in questions and three mixed stacks."""
    asked = [(f"{model} {cluster}", Asked.named(model, cluster)) for model, cluster in MEGATRON]
    asked += [
        (f"{model} {cluster} any", Asked.named(model, cluster, Framework.ANY)) for model, cluster in ANY
    ]
    return asked + [
        (f"{model} {cluster}, {what}", mixed(model, cluster, what)) for model, cluster, what in MIXED
    ]


def mixed(model: str, cluster: str, what: str) -> Asked:
    """Return a question whose dense layers partly attend within a window, or are half as wide, in some pattern."""
    asked = Asked.named(model, cluster)
    spec = asked.workload.model
    (run,) = spec.runs
    full = run.block[0]
    window, narrow = replace(full, window=1024), replace(full, ffn=full.ffn // 2)
    runs = {
        "every other with a window": (replace(run, block=(window, full), count=run.count // 2),),
        "three of four with a window": (replace(run, block=(window,) * 3 + (full,), count=run.count // 4),),
        "a narrow tower in front": (
            Run(name="tower", block=(narrow,), count=run.count // 2),
            replace(run, count=run.count - run.count // 2),
        ),
    }[what]
    workload = replace(asked.workload, model=replace(spec, runs=runs))
    return replace(asked, workload=workload)
