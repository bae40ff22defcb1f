"""Options that several commands share, each group collected into one frozen record."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from layoutopt.optimizer.ask.records import RunChoices
from layoutopt.optimizer.report.commands.completion import complete_cluster, complete_model
from layoutopt.optimizer.report.commands.paths import WRITTEN, keeps_inputs
from layoutopt.optimizer.report.commands.values import (
    COST_KINDS,
    COUNT,
    FRAMEWORK,
    GOAL,
    PRECISIONS,
    SAVER,
    SEQUENCES,
    TOKEN_COUNT,
    Argument,
    Number,
    QuantityText,
    Release,
    Setting,
    Share,
    Whole,
)
from layoutopt.optimizer.specs.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Decorator = Callable[["Command"], "Command"]
    Command = Callable[..., Any]

_Record = TypeVar("_Record")
AXES = (
    "tp, sp, cp, pp, vp, dp, ep, etp, zero, hsdp_shard, micro_batch, "
    "micro_batches, recompute, mesh_order, schedule, precision, savers, ep_overlap, delay_wgrad, "
    "shared_expert_overlap, dispatcher, tp_overlap, dp_overlap, param_overlap, cp_kind, cuda_graph, loss_chunks, "
    "fp8_param_gather, compiled"
)
"""Names that restrictions take, as ``--help`` lists them; a test compares them with what is taken."""

IDLE_BY_DEFAULT = "10%"
OUTPUT = "--output"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkOptions:
    """Which trainer has to launch the layout, and which preset of the cost model prices it."""

    framework: str
    software: str | None
    cost_model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceChoices:
    """Restrictions of the declared space as written."""

    fix: tuple[str, ...]
    max: tuple[str, ...]
    min: tuple[str, ...]
    forbid: tuple[str, ...]
    allow_idle: float | None
    allow: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandChoices:
    """What the answer has to meet, as written, and the price that demands about cost need."""

    require: tuple[str, ...]
    gpu_hour_cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchChoices:
    """How long and how widely to search, and what counts among the fastest."""

    then: str | None
    within: float
    top: int | None
    time_limit: float | None
    workers: int
    gap: float
    seed: int
    one_model: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What goes to stdout and stderr."""

    json: bool
    quiet: bool
    verbose: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingOptions:
    """Files for people who look rather than read: a page, and the main chart."""

    report: Path | None
    plot: Path | None

    @property
    def wanted(self) -> bool:
        """Whether any file is asked for."""
        return self.report is not None or self.plot is not None


@dataclass(slots=True)
class Settings:
    """What the error handler has to know about a run; the context's ``obj``."""

    verbose: bool = False


def grouped(name: str, record: type[_Record], *options: Decorator) -> Decorator:
    """Build a decorator that adds options and passes their values as one record, named ``name``."""
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]

    def decorate(command: Command) -> Command:
        """Add the options, and put their values into the record."""

        @wraps(command)
        def collect(**given: Any) -> Any:
            """Pass the options' values on as one record."""
            # Fields without an option keep their defaults: reading a foreign file asks for a few of a run alone.
            values = {key: given.pop(key) for key in names if key in given}
            return command(**given, **{name: record(**values)})

        decorated: Command = collect
        # As decorators apply from the last line up: --help lists options in the order of the call.
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def _remember_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    # The error handler stands outside of the command, whose arguments it never sees.
    if value:
        ctx.ensure_object(Settings).verbose = True
    return value


model_argument = click.argument("model", metavar="MODEL", shell_complete=complete_model)
cluster_argument = click.argument("cluster", metavar="CLUSTER", shell_complete=complete_cluster)

_READING = (
    click.option(
        "--set", "settings", metavar="NAME=VALUE", multiple=True, type=Setting(),
        help="A variable that a launch script leaves to the outside, or LINE_N=1: the first way at the condition of line N.",
    ),
    click.option(
        "--arg", "arguments", metavar="N=VALUE", multiple=True, type=Argument(),
        help="The N-th argument of a launch script.",
    ),
    click.option("--function", metavar="NAME", help="The function of a Python configuration."),
    click.option(
        "--recipe-file", metavar="FILE", help="The file of a Megatron-Bridge or NeMo 2 checkout that holds the recipe."
    ),
    click.option("--strict", is_flag=True, help="Refuse a foreign file where something has to be assumed."),
)  # fmt: skip
"""What a foreign file does not say itself."""


reading_options = grouped("reading", RunChoices, *_READING)

workload_options = grouped(
    "asked",
    RunChoices,
    *_READING,
    click.option(
        "--batch", "global_batch", type=SEQUENCES, metavar="SEQUENCES", help="Global batch in sequences."
    ),
    click.option(
        "--batch-tokens", type=QuantityText("TOKENS", "TOKENS"), help='Global batch in tokens, e.g. "16M".'
    ),
    click.option("--seq", "sequence_length", type=TOKEN_COUNT, metavar="TOKENS", help="Sequence length."),
    click.option(
        "--precision",
        type=PRECISIONS,
        default=(),
        help="Precision of the matrix multiplications; where a layout is searched, a list tries each.",
    ),
    click.option("--gpus", type=COUNT, metavar="N", help="Use only the first N GPUs of the cluster."),
    click.option(
        "--tokens", "total_tokens", type=QuantityText("TOKENS", "TOKENS"),
        help='Tokens of the whole run, e.g. "15T"; default what the model file states.',
    ),
    click.option("--epochs", type=Number("N", positive=True), help="Instead of --tokens: passes over --samples."),
    click.option("--samples", type=COUNT, metavar="N", help="Sequences of the data set, with --epochs."),
)  # fmt: skip

framework_options = grouped(
    "trainer",
    FrameworkOptions,
    click.option(
        "--framework",
        type=FRAMEWORK,
        default="megatron",
        show_default=True,
        help=f"Trainer that launches the layout, its rules and defaults: {', '.join(FRAMEWORK.words)}, which frees all.",
    ),
    click.option(
        "--software",
        type=Release(),
        help="Release of the trainer, where releases differ, or a date: '2022-05' is the newest release by then.",
    ),
    click.option(
        "--cost-model",
        type=COST_KINDS,
        default="full",
        show_default=True,
        help="'simple' prices with rules of thumb that can be followed by hand.",
    ),
)

space_options = grouped(
    "space",
    SpaceChoices,
    click.option(
        "--fix",
        multiple=True,
        metavar="AXIS=V[,V]",
        help=f"Only these values of an axis, e.g. tp=4,8. Axes: {AXES}.",
    ),
    click.option("--max", multiple=True, metavar="AXIS=N", help="Largest value of an axis, e.g. pp=16."),
    click.option("--min", multiple=True, metavar="AXIS=N", help="Smallest value of an axis."),
    click.option("--forbid", multiple=True, metavar="AXIS=V[,V]", help="Values to leave out, e.g. zero=3."),
    click.option(
        "--allow-idle",
        type=Share("[PERCENT]", percent=True),
        is_flag=False,
        flag_value=IDLE_BY_DEFAULT,
        help=f"Let up to PERCENT of the GPUs stay idle ({IDLE_BY_DEFAULT} if no number follows).",
    ),
    click.option(
        "--allow",
        type=SAVER,
        multiple=True,
        help=f"Memory saver to try too: {', '.join(SAVER.words)}, which stands for both kinds.",
    ),
)

demand_options = grouped(
    "demands",
    DemandChoices,
    click.option(
        "--require",
        multiple=True,
        metavar="COMPARISON",
        help='What the layout has to meet: "tp*cp<=8", "layers[0]<=5", "peak_gb<=70", "days<=60".',
    ),
    click.option("--gpu-hour-cost", type=Number("PRICE"), help="Price of a GPU-hour."),
)

search_options = grouped(
    "search",
    SearchChoices,
    click.option(
        "--then",
        type=GOAL,
        help="Of the fastest layouts take the one that is best in this.",
    ),
    click.option(
        "--within",
        type=Share("PERCENT", percent=True),
        default=0.0,
        show_default="the solver's rounding",
        help="With --then: how much slower than the fastest a layout may be.",
    ),
    click.option(
        "--top",
        type=Whole(1, 1000),
        help="Layouts to report, however much slower; by default up to 3 within 2%.",
    ),
    click.option(
        "--time-limit", type=QuantityText("TIME", "SECONDS"), help='Stop with the best so far, e.g. "5 min".'
    ),
    click.option(
        "--workers", type=Whole(1, 1024), default=1, show_default=True, help="Threads of the solver."
    ),
    click.option(
        "--gap",
        type=Share("SHARE"),
        default=0.0,
        show_default=True,
        help="Accept a layout proven within 0.01 or 1%.",
    ),
    click.option(
        "--seed", type=Whole(0, 2**31 - 1), default=0, show_default=True, help="Random seed of the solver."
    ),
    click.option(
        "--one-model", is_flag=True, help="One solver model for the whole space (small spaces only)."
    ),
)

drawing_options = grouped(
    "drawing",
    DrawingOptions,
    click.option(
        "--report",
        type=WRITTEN,
        metavar="FILE.html",
        help="Write a page with charts, complete in one file.",
    ),
    click.option(
        "--plot",
        type=WRITTEN,
        metavar="FILE",
        help="Write the main chart as .svg or .png.",
    ),
)

_output_options = grouped(
    "output",
    OutputOptions,
    click.option("--json", is_flag=True, help="Print JSON and nothing else to stdout."),
    click.option("-q", "--quiet", is_flag=True, help="No progress and no notes on stderr."),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        callback=_remember_verbose,
        help="More detail, also of internal errors.",
    ),
)


def output_options(command: Command) -> Command:
    """Add these options and pass their values as ``OutputOptions``, named ``output``; a command's inputs are kept."""
    # Here and not at each command: none can forget it.
    return _output_options(keeps_inputs(command))


def bare_flag_values(args: list[str], flags: dict[str, str]) -> list[str]:
    """Give each flag of ``flags`` that no number follows its own value.

    Click would otherwise take the argument behind the flag for its value: ``--allow-idle MODEL CLUSTER``.
    """
    filled = []
    for position, arg in enumerate(args):
        following = args[position + 1] if position + 1 < len(args) else ""
        bare = arg in flags and not following.removesuffix("%").replace(".", "", 1).isdecimal()
        filled.append(f"{arg}={flags[arg]}" if bare else arg)
    return filled


class SpaceCommand(click.Command):
    """A command with ``--allow-idle``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Fill in bare flags before click looks at them.

        Raises ``InputError`` where an argument behind one is no share.
        """
        flag = "--allow-idle"
        try:
            return super().parse_args(ctx, bare_flag_values(args, {flag: IDLE_BY_DEFAULT}))
        except click.UsageError as error:
            # An argument too many right behind the flag was meant as its number.
            following = args[args.index(flag) + 1 :][:1] if flag in args else []
            if "extra argument" not in error.format_message() or not following:
                raise
            what = f"{following[0][:60]!r} is no share"
            raise InputError(Problem(key=flag, what=what, allowed="0% up to below 100%")) from None
