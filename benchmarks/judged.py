"""Whether the steps that answers state are those of the trainers' own orders of operations, chunk by chunk.

    python benchmarks/judged.py [--only TEXT] [--moves 48]

Solves built-in models on built-in clusters, and mixed stacks, and has ``tests/checks/judge.py`` judge the answer, its
near-ties, the answer with one block moved between stages, and the best layouts with half, twice, one more and one less pp or
vp. Exit code 1 if a price is more than 0.5% off, or a neighbour is judged more than 0.1% faster than the answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.builtin_questions import questions
from checks.judged_answers import MOVES, Sentence, hear


@click.command()
@click.option("--only", default="", help="Ask only questions whose name contains this text.")
@click.option("--moves", default=MOVES, show_default=True, help="Moves of a block to judge, at most.")
def main(only: str, moves: int) -> None:
    """Judge all questions."""
    wrong = 0
    chosen = [(name, asked) for name, asked in questions() if only in name]
    if not chosen:
        raise click.BadParameter(f"no question's name contains {only!r}", param_hint="--only")
    for name, asked in chosen:
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
