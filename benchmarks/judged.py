"""Whether the steps that answers state are those of the trainers' own orders of operations, chunk by chunk.

    python benchmarks/judged.py [--only TEXT] [--moves 48]

Solves built-in models on built-in clusters, and mixed stacks, and has ``tests/checks/judge.py`` judge the answer, its
near-ties, the answer with one block moved between stages, and the best layouts with half, twice, one more and one less pp or
vp. Exit code 1 if a price is more than 0.5% off, or a neighbour is judged more than 0.1% faster than the answer.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.judged_answers import MOVES, Asked, Sentence, hear

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


@click.command()
@click.option("--only", default="", help="Ask only questions whose name contains this text.")
@click.option("--moves", default=MOVES, show_default=True, help="Moves of a block to judge, at most.")
def main(only: str, moves: int) -> None:
    """Judge all questions."""
    wrong = 0
    for name, asked in questions():
        if only not in name:
            continue
        hearing = hear(asked, moves=moves)
        wrong += not hearing.good
        worst = max((abs(sentence.error) for sentence in hearing.sentences), default=0.0)
        verdict = "good" if hearing.good else "WRONG"
        click.echo(f"{verdict:5}  {name}: worst price {worst:.2%}, {hearing.neighbours} neighbours judged")
        for sentence in [s for s in hearing.sentences if not s.agrees] + list(hearing.faster):
            click.echo(f"       {described(sentence)}")
    click.echo(f"{wrong} wrong")
    sys.exit(int(wrong > 0))


def described(sentence: Sentence) -> str:
    """Return a line about a layout."""
    degrees = " ".join(f"{axis}{getattr(sentence.layout, axis)}" for axis in ("tp", "cp", "pp", "vp", "ep"))
    stated, judged = f"stated {sentence.price_s:.4f} s", f"judged {sentence.judged_s:.4f} s"
    return f"{sentence.what} ({degrees} m{sentence.layout.micro_batches}): {stated}, {judged}"


if __name__ == "__main__":
    main()
