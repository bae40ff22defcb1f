"""``layoutopt export``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.frameworks.registry import EXPORTED, FRAMEWORK_ALIASES
from layoutopt.optimizer.report.commands.options import (
    OUTPUT,
    OutputOptions,
    output_options,
)
from layoutopt.optimizer.report.commands.paths import require_no_input
from layoutopt.optimizer.report.commands.values import Release, Whole, Word
from layoutopt.optimizer.report.terminal import note, notes, print_document, print_json, say_lines
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.writing import require_writable, write_file

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.interop.records import CheckpointInterval, ExportedJob
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.specs.layout import Layout

TARGETS = Word(
    EXPORTED,
    FRAMEWORK_ALIASES,
    metavar="TRAINER",
)
NO_CHECKPOINTS = 0
ROBUST = 0
"""In place of a rank: the plan's robust choice."""


@click.command()
@click.argument("plan", metavar="PLAN", type=click.Path())
@click.option("--to", type=TARGETS, required=True, help=f"The trainer: {', '.join(TARGETS.words)}.")
@click.option(
    "--release", type=Release(),
    help="Its release, e.g. 'core 0.16', or torchtitan's era A or C; left out: the plan's own, if it is the trainer's, else "
    "the newest.",
)  # fmt: skip
@click.option(
    "--checkpoint-every", type=Whole(0, 10**9),
    help="Steps between checkpoints, 0 for none; left out: the interval that loses least to failures.",
)  # fmt: skip
@click.option(
    "--rank", type=Whole(1, 10**6),
    help="Which layout of the plan: 1 is the answer, 2 the first of its near-ties.",
)  # fmt: skip
@click.option("--robust", is_flag=True, help="The robust choice of a plan that solve --robust wrote.")
@click.option(
    "--nearest", is_flag=True, help="If the trainer can't launch the layout, export the nearest it can."
)
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Write the files there instead of printing them.",
)  # fmt: skip
@output_options
def command(
    plan: str,
    to: str,
    release: str | None,
    checkpoint_every: int | None,
    rank: int | None,
    robust: bool,
    nearest: bool,
    folder: Path | None,
    output: OutputOptions,
) -> None:
    """Write the launch configuration of a plan that solve wrote, every degree and stage written out.

    What the trainer can't launch is refused with the nearest layout that it can, and what that costs.
    """
    require_folder(folder)
    # Both name a layout of the plan, and may name different ones.
    if robust and rank is not None:
        raise input_error("--robust chooses the layout", "one of the two", key="--rank")
    question, layout = read_plan(plan, ROBUST if robust else rank or 1)
    checkpoints = _checkpoints(question, layout, checkpoint_every)
    try:
        job = _export(question, layout, to, release, checkpoints)
    except InputError as error:
        other = getattr(error, "nearest", None)
        if other is None or not nearest:
            raise _with_cost(error, question, layout, to, release) from None
        job = _export(question, other, to, release, checkpoints)
        note(f"exports the nearest layout: {_cost_words(question, layout, other, to, release)}", output)
    _hand_out(job, folder, output)


def read_plan(file: str, rank: int = 1) -> tuple[Question, Layout]:
    """Read the question and a layout of a plan: 1 is the answer, 2 the first of its near-ties, ``ROBUST`` that choice.

    Raises ``InputError`` for other files, plans without a layout, and ranks or choices that the plan does not have.
    """
    from layoutopt.optimizer.solve.inputs import question_from_plain
    from layoutopt.optimizer.specs.document import parse_document, read_text
    from layoutopt.optimizer.specs.layout_file import read_layout
    from layoutopt.optimizer.specs.loading import MAX_PLAN_BYTES

    document = parse_document(read_text(Path(file), max_bytes=MAX_PLAN_BYTES), file)
    inputs = document.data.get("inputs")
    if not isinstance(inputs, dict):
        raise input_error("is no plan", "what solve --json or solve -o wrote", key="inputs", file=file)
    if not isinstance(document.data.get("layout"), dict):
        raise input_error("holds no layout: nothing fits, or the search was stopped", key="layout", file=file)
    if rank == ROBUST:
        rank = _robust_rank(document.data, file)
    if rank > 1:
        document = document.replaced(("layout",), _of_rank(document.data.get("alternatives"), rank, file))
    question = question_from_plain(inputs, file=file)
    return question, read_layout(document).complete(question.workload, question.cluster, strict=False)


def _robust_rank(plan: dict[str, Any], file: str) -> int:
    """Return the rank of a plan's robust choice, of the answer and the near-ties inside the band."""
    stated, known = plan.get("robust"), plan.get("alternatives")
    chosen = stated.get("chosen") if isinstance(stated, dict) else None
    others = enumerate(known if isinstance(known, list) else (), start=2)
    ranks = [
        1,
        *(rank for rank, one in others if isinstance(one, dict) and not one.get("distinguishable", True)),
    ]
    if type(chosen) is not int or not 0 <= chosen < len(ranks):
        raise input_error("is not in the plan", "a plan that solve --robust wrote", key="--robust", file=file)
    return ranks[chosen]


def _of_rank(alternatives: object, rank: int, file: str) -> dict[str, Any]:
    """Return the layout of a near-tie as it stands in the plan."""
    known = alternatives if isinstance(alternatives, list) else []
    found = known[rank - 2] if rank - 2 < len(known) else None
    layout = found.get("layout") if isinstance(found, dict) else None
    if not isinstance(layout, dict):
        what = f"{rank} is not in the plan, which holds {1 + len(known)} layouts"
        raise input_error(what, f"1 to {1 + len(known)}; solve --top keeps more", key="--rank", file=file)
    return layout


def _export(
    question: Question, layout: Layout, to: str, release: str | None, checkpoints: CheckpointInterval | None
) -> ExportedJob:
    """Write the files, with the gradients that the plan was priced with, or a note where the trainer has its own."""
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.interop.launch.export import export
    from layoutopt.optimizer.solve.explain.remedies import cost_of

    workload, said = question.workload, tuple[str, ...]()
    release = _release(question, to, release)
    planned = cost_of(question).preset.grad_bytes
    trainer, theirs = _prices_of(question, to, release)
    # The plan was priced with gradients of some width: a launch file that can say it does, of others it is noted.
    if workload.training.grad_bytes is None and planned != theirs.preset.grad_bytes:
        if trainer in (Framework.MEGATRON_BRIDGE, Framework.NANOTRON) and planned in (2, 4):
            training = replace(workload.training, grad_bytes=int(planned))
            workload = replace(workload, training=training)
        else:
            own = f"gradients of {theirs.preset.grad_bytes:g} bytes are the trainer's own"
            said = (f"{own}; the plan was priced with {planned:g}",)
    job = export(layout, workload, question.cluster, to, version=release, plan=checkpoints)
    return replace(job, notes=(*job.notes, *said))


def _release(question: Question, to: str, release: str | None) -> str | None:
    """Return the release asked for, else the one that the plan is made for where it names one."""
    from layoutopt.optimizer.interop.launch.target import release_for

    return release or release_for(to, question.options.framework, question.options.space.software)


def _prices_of(question: Question, to: str, release: str | None) -> tuple[Framework, CostModel]:
    """Return the trainer that is exported to, and the question's prices under its record."""
    from layoutopt.optimizer.cost.factory import build_cost_model
    from layoutopt.optimizer.interop.launch.target import framework_named, version_text

    framework, workload = framework_named(to), question.workload
    return framework, build_cost_model(
        workload.model, workload.training, question.cluster,
        framework=framework, software=version_text(framework, _release(question, to, release)), kind=question.options.cost,
    )  # fmt: skip


def _checkpoints(question: Question, layout: Layout, every: int | None) -> CheckpointInterval | None:
    """Return the stated interval, or the one that loses least to checkpoints and failures together."""
    from layoutopt.optimizer.cost.checkpoints import checkpoint_cost, checkpoint_schedules
    from layoutopt.optimizer.cost.faults import job_mean_time_between_failures_s
    from layoutopt.optimizer.cost.parameters import model_parameters
    from layoutopt.optimizer.interop.records import CheckpointInterval
    from layoutopt.optimizer.plan.options import PlanOptions

    if every is not None:
        return CheckpointInterval(interval_steps=every) if every != NO_CHECKPOINTS else None
    step_s = _step_s(question, layout)
    training, failures = question.workload.training, question.cluster.failures
    steps = (training.total_tokens or 0.0) / training.tokens_per_step or MANY_STEPS
    cost = checkpoint_cost(
        model_parameters(question.workload.model),
        layout.gpus,
        question.cluster,
        least_stall_s=PlanOptions().least_stall_s,
    )
    mtbf_s = job_mean_time_between_failures_s(failures.gpu_hours_per_failure, layout.gpus)
    best = checkpoint_schedules(steps * step_s, cost, failures.restart_s, mtbf_s)[0]
    return CheckpointInterval(
        interval_steps=max(round(best.interval_s / step_s), 1), asynchronous=best.mode.value == "asynchronous"
    )


MANY_STEPS = 100_000
"""Length of a run whose tokens are not stated; the interval hardly depends on it."""


def _step_s(question: Question, layout: Layout) -> float:
    from layoutopt.optimizer.cost.estimate import estimate
    from layoutopt.optimizer.solve.explain.remedies import cost_of

    return estimate(cost_of(question), layout).step_time_s


def _cost_words(question: Question, layout: Layout, nearest: Layout, to: str, release: str | None) -> str:
    """Say what the nearest layout takes beside the plan's, at the plan's prices and at those of its trainer."""
    from layoutopt.optimizer.cost.estimate import estimate
    from layoutopt.optimizer.specs.units import format_seconds

    before, after = _step_s(question, layout), _step_s(question, nearest)
    words = f"{format_seconds(after)} per step, {after / before - 1:+.1%}"
    framework, prices = _prices_of(question, to, release)
    planned = question.options.framework
    if framework is planned:
        return words
    theirs = format_seconds(estimate(prices, nearest).step_time_s)
    return f"{words}, as {planned.value} would run it; {theirs} as {framework.value} does"


def _with_cost(
    error: InputError, question: Question, layout: Layout, to: str, release: str | None
) -> InputError:
    """Add the price of the nearest layout to what the trainer can't express."""
    nearest = getattr(error, "nearest", None)
    if nearest is None:
        return error
    price = Problem(
        what=f"the nearest layout takes {_cost_words(question, layout, nearest, to, release)}",
        allowed="--nearest exports it",
    )
    return InputError(*error.problems, price)


def require_folder(folder: Path | None) -> None:
    """Raises ``InputError``, before any work, where the files can't be written."""
    if folder is None:
        return
    if folder.is_file():
        raise input_error(f"'{folder}' is a file", "a folder, made if missing", key=OUTPUT)
    if folder.is_dir():
        require_writable(folder / "file", key=OUTPUT)
    else:
        require_writable(folder, key=OUTPUT)


def _hand_out(job: ExportedJob, folder: Path | None, output: OutputOptions) -> None:
    """Write or print the files; how to start and check them goes to stderr."""
    if folder is not None:
        for name in job.files:
            require_no_input(folder / name, key=OUTPUT)
        folder.mkdir(exist_ok=True)
        for name, text in job.files.items():
            write_file(folder / name, text.encode(), key=OUTPUT)
            note(f"wrote {folder / name}", output)
    if output.json:
        print_json(_plain(job))
    elif folder is None:
        for name, text in job.files.items():
            head = f"# {name}\n" if len(job.files) > 1 else ""
            print_document(f"{head}{text}")
    if not output.quiet:  # commands of several lines are there to be pasted
        say_lines(f"start: {job.command}\nmemory on one GPU: {job.memory_check}")
    notes(job.notes, output)


def _plain(job: ExportedJob) -> dict[str, Any]:
    from layoutopt.optimizer.report.json_forms import to_plain

    plain = {
        name: value for name, value in asdict(job).items() if name not in ("layout", "framework", "notes")
    }
    return (
        {"framework": job.framework.value}
        | plain
        | {
            "notes": list(job.notes),
            "layout": to_plain(job.layout),
        }
    )
