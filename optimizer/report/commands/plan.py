"""``layoutopt plan``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.report.commands.buyer import asks_what_to_buy
from layoutopt.optimizer.report.commands.buyer import command as buyer
from layoutopt.optimizer.report.commands.drawing import draw_solve, require_drawing, write_drawing
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import (
    OUTPUT,
    DrawingOptions,
    OutputOptions,
    SpaceCommand,
    drawing_options,
)
from layoutopt.optimizer.report.commands.paths import WRITTEN
from layoutopt.optimizer.report.commands.question import QuestionChoices, question_options
from layoutopt.optimizer.report.commands.searching import print_none, solve_watched
from layoutopt.optimizer.report.commands.values import Number, Share
from layoutopt.optimizer.report.terminal import note, print_json, print_tables
from layoutopt.optimizer.specs.writing import require_writable, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from layoutopt.optimizer.plan.options import PlanOptions
    from layoutopt.optimizer.plan.training_plan import TrainingPlan
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Precision
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Questions beside the plan itself."""

    days: float | None
    fewest: bool
    sizes: str | None
    largest_batch: bool
    marginal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extra:
    """An answer to one of them: its JSON key, plain data, table, and what a page draws."""

    key: str
    plain: Any
    table: RenderableType
    drawn: Sequence[Any] = ()


class PlanCommand(SpaceCommand):
    """A plan of one machine, or of which of several to buy."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Hand over to the buyer's question where the words ask it."""
        # Two questions under one name with different options: click has to know which before it parses.
        if asks_what_to_buy(args):
            return buyer.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    cls=PlanCommand,
    epilog="Several machines, number formats or a range of batches ask what to buy: layoutopt plan MODEL h100,b200 "
    "--help says how.",
)
@click.option(
    "--error",
    type=Share("PERCENT", percent=True),
    help="Error of the predicted step time. Default: that of measured runs of this kind.",
)
@click.option(
    "--days",
    type=Number("DAYS", positive=True),
    help="Find the fewest GPUs that finish in so many days.",
)
@click.option("--fewest", is_flag=True, help="Find the fewest GPUs that fit at all.")
@click.option("--sizes", metavar="RANGE", help="Days and cost by size, e.g. 256:4096:x2; marks the cheapest.")
@click.option("--largest-batch", is_flag=True, help="Find the largest global batch worth using.")
@click.option("--marginal", is_flag=True, help="Say what 10% more memory, network or FLOP/s would save.")
@click.option(
    "-o", "--output", "file", type=WRITTEN, metavar="FILE",
    help="Write the plan as JSON.",
)  # fmt: skip
@question_options
@drawing_options
def command(
    error: float | None,
    days: float | None,
    fewest: bool,
    sizes: str | None,
    largest_batch: bool,
    marginal: bool,
    file: Path | None,
    question: QuestionChoices,
    drawing: DrawingOptions,
) -> ExitCode:
    """Plan a training run of MODEL on CLUSTER: days, cost, failures, checkpoints, and what to watch.

    The layout is solved to proof, every phase of the model file by itself.
    """
    from layoutopt.optimizer.plan.options import PlanOptions
    from layoutopt.optimizer.plan.training_plan import make_training_plan, phase_workloads

    require_writable(file, key=OUTPUT)
    require_drawing(drawing)
    output = question.output
    workload, machine = question.read()
    options = PlanOptions(
        gpu_hour_cost=question.demands.gpu_hour_cost, solve=question.options(), seed=question.search.seed
    )
    questions = _Asked(days=days, fewest=fewest, sizes=sizes, largest_batch=largest_batch, marginal=marginal)
    # The main phase first: the precision that it chooses decides from which runs the range of days comes.
    plan = solve_watched(phase_workloads(workload)[0][1], machine, options.solve, output)
    extra = _size_questions(workload, question.cluster, questions, options)
    if plan.layout is None:
        # Questions about other sizes have answers all the same.
        code = print_none(
            plan, output, {part.key: part.plain for part in extra}, [part.table for part in extra]
        )
        draw_solve(plan, drawing, output)
        return code
    options, told = _with_error(options, error, plan.layout.precision, workload, machine)
    training = make_training_plan(workload, machine, plan, options)
    extra = told + extra + _machine_questions(training, workload, machine, questions, options)
    code = _print_plan(training, extra, file, workload.model, output)
    _draw(training, extra, drawing, output)
    return code


def _with_error(
    options: PlanOptions, stated: float | None, precision: Precision, workload: Workload, cluster: ClusterSpec
) -> tuple[PlanOptions, list[_Extra]]:
    """Set the error of the step time: as stated, else that of measured runs of this kind, and say where it is from."""
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.evidence.band import calibrated_by_runs, error_band
    from layoutopt.optimizer.report.json_forms import to_plain
    from layoutopt.optimizer.report.tables.honesty import range_section

    if stated is not None:
        return replace(options, relative_error=stated), []
    if options.solve.cost is not CostKind.FULL:
        return options, []
    band = error_band(workload, cluster, precision, framework=options.solve.framework)
    calibrated = calibrated_by_runs(cluster)
    table = range_section(band, calibrated=calibrated)
    return replace(options, step_ratios=band.seen_ratios if calibrated else band.ratios), [
        _Extra(key="error_band", plain=to_plain(band), table=table)
    ]


def _print_plan(
    training: TrainingPlan,
    extra: list[_Extra],
    file: Path | None,
    model: ModelSpec,
    output: OutputOptions,
) -> ExitCode:
    from layoutopt.optimizer.report.json_forms import to_plain, with_remarks

    plain = to_plain(training) | {part.key: part.plain for part in extra}
    plain = with_remarks(plain, model)
    if file is not None:
        write_json(file, plain, key=OUTPUT)
        note(f"wrote {file}", output)
    if output.json:
        print_json(plain)
    else:
        from rich.console import Group

        from layoutopt.optimizer.report.tables.training import training_tables

        print_tables(Group(training_tables(training), *(part.table for part in extra)))
    proven = all(phase.plan.status.value in ("optimal", "within_gap") for phase in training.phases)
    return ExitCode.OK if proven else ExitCode.STOPPED


def _draw(
    training: TrainingPlan, extra: list[_Extra], drawing: DrawingOptions, output: OutputOptions
) -> None:
    """Write page and picture."""
    if not drawing.wanted:
        return
    from layoutopt.optimizer.report.html.main_charts import training_picture
    from layoutopt.optimizer.report.html.planned import training_page

    drawn = {part.key: part.drawn for part in extra}
    write_drawing(
        drawing,
        output,
        page=lambda: training_page(
            training,
            marginal=drawn.get("marginal", ()),
            sizes=drawn.get("sizes", ()),
            fewest=[*drawn.get("fewest", ()), *drawn.get("deadline", ())],
        ),
        picture=lambda: training_picture(training),
    )


def _size_questions(workload: Workload, cluster: str, asked: _Asked, options: PlanOptions) -> list[_Extra]:
    """Answer questions about other sizes of the cluster."""
    if asked.days is None and not asked.fewest and asked.sizes is None:
        return []
    from layoutopt.optimizer.report.json_forms import to_plain
    from layoutopt.optimizer.report.tables.sweep import fewest_section, sizes_section
    from layoutopt.optimizer.sweep.families import load_family
    from layoutopt.optimizer.sweep.inverse import cheapest, cost_by_size, fewest_for_deadline, fewest_that_fit
    from layoutopt.optimizer.sweep.ranges import parse_counts

    # The family and not the machine: other sizes of it are asked about.
    family, parts = load_family(cluster), []
    if asked.fewest:
        found = fewest_that_fit(workload, family, options.solve)
        title = "Fewest GPUs that fit"
        table = fewest_section(title, found, priced=False)
        parts.append(_Extra(key="fewest", plain=to_plain(found), table=table, drawn=[(title, found)]))
    if asked.days is not None:
        found = fewest_for_deadline(workload, family, options, days=asked.days)
        title = f"Fewest GPUs for {asked.days:g} days"
        table = fewest_section(title, found, priced=True)
        parts.append(_Extra(key="deadline", plain=to_plain(found), table=table, drawn=[(title, found)]))
    if asked.sizes is not None:
        answers = cost_by_size(workload, family, parse_counts(asked.sizes, key="--sizes"), options)
        best = cheapest(answers, days=asked.days)
        within = "" if asked.days is None else f" within {asked.days:g} days"
        note_text = f"{'cheapest' if options.gpu_hour_cost is not None else 'fewest GPU-days'}{within} marked"
        table = sizes_section("Sizes", answers, best.gpus if best else None, note_text)
        plain = {"cheapest_gpus": best.gpus if best else None, "answers": to_plain(answers)}
        parts.append(_Extra(key="sizes", plain=plain, table=table, drawn=answers))
    return parts


def _machine_questions(
    training: TrainingPlan, workload: Workload, cluster: ClusterSpec, asked: _Asked, options: PlanOptions
) -> list[_Extra]:
    """Answer questions about the batch and the machine."""
    from layoutopt.optimizer.report.json_forms import to_plain
    from layoutopt.optimizer.report.tables.sweep import batch_section, marginal_section
    from layoutopt.optimizer.sweep.inverse import largest_useful_batch, marginal_values

    parts = []
    if asked.largest_batch:
        batch = largest_useful_batch(workload, cluster, options.solve)
        parts.append(_Extra(key="largest_batch", plain=to_plain(batch), table=batch_section(batch)))
    if asked.marginal:
        values = marginal_values(workload, cluster, training.phases[0].estimate.step_time_s, options)
        plain, table = to_plain(values), marginal_section(values)
        parts.append(_Extra(key="marginal", plain=plain, table=table, drawn=values))
    return parts
