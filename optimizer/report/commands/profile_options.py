"""Options that say of a run what its profiles do not: groups and axes, how fast it is, and on what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.options import grouped
from layoutopt.optimizer.report.commands.values import Number, QuantityText, Share, Whole, Word
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from layoutopt.optimizer.diagnose.utilization import Throughput
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions
    from layoutopt.optimizer.specs.vocabulary import Precision


MOST_STEPS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChoices:
    """Steps, rank and axes of groups as written."""

    steps: int | None
    rank: int | None
    axis: tuple[str, ...]

    def options(self) -> ProfileOptions:
        """Return them as the readers take them; raises ``InputError`` for an axis that is none."""
        from layoutopt.optimizer.interop.profiles.options import ProfileOptions

        axes = {}
        for text in self.axis:
            name, _, axis = text.rpartition("=")
            if not name or axis not in tuple(Axis):
                raise input_error(
                    f"{text[:60]!r} is no axis of a group", "GROUP=tp, cp, ep, pp or dp", key="--axis"
                )
            axes[name] = Axis(axis)
        return ProfileOptions(steps=self.steps, rank=self.rank, axes=axes)


profile_options = grouped(
    "choices",
    ProfileChoices,
    click.option(
        "--steps", type=Whole(1, MOST_STEPS), help="Optimizer steps in a profile that marks none."
    ),
    click.option("--rank", type=Whole(0, 10**7), help="The rank of a single profile that names none."),
    click.option(
        "--axis", metavar="GROUP=AXIS", multiple=True,
        help="Whose traffic a process group is, by its name or description, or all calls of a kind: all_reduce=dp.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChoices:
    """A throughput as written, the GPU or its peak in FLOP/s, and what share of the forward pass is repeated."""

    gpu: str | None
    peak: float | None
    tokens_per_s: float | None
    tflops: float | None
    step: float | None
    count: str
    repeated: float

    @property
    def stated(self) -> bool:
        """Whether any speed is given."""
        return any(value is not None for value in (self.tokens_per_s, self.tflops, self.step))

    def throughput(self) -> Throughput:
        """Return the speed."""
        from layoutopt.optimizer.diagnose.utilization import Count, Throughput

        return Throughput(
            tokens_per_s=self.tokens_per_s,
            tflops_per_gpu=self.tflops,
            step_time_s=self.step,
            count=Count(self.count),
        )

    def peak_flops(self, precision: Precision) -> float:
        """Return the peak that utilisation is a share of; raises ``InputError`` where neither way gives it."""
        from layoutopt.optimizer.diagnose.utilization import peak_flops
        from layoutopt.optimizer.specs.gpu_catalog import find_gpu

        if self.peak is not None:
            return self.peak
        if self.gpu is None:
            raise input_error("missing", "a GPU of the catalog, or --peak of another chip", key="--gpu")
        return peak_flops(find_gpu(self.gpu).gpu, precision)


speed_options = grouped(
    "speed",
    SpeedChoices,
    click.option("--gpu", metavar="NAME", help="A GPU of the catalog, whose peak utilisation is a share of."),
    click.option(
        "--peak", type=QuantityText("FLOP_RATE", "FLOP/S"),
        help='Instead of --gpu: the dense peak of one chip, e.g. "275 TFLOP/s".',
    ),
    click.option(
        "--tokens-per-s", type=QuantityText("TOKENS", "N"), help='Tokens per second of the whole job, e.g. "3.2M".'
    ),
    click.option("--tflops", type=Number("N", positive=True), help="TFLOP/s per GPU, counted as --count says."),
    click.option("--step", type=QuantityText("TIME", "TIME"), help='Time of one optimizer step, e.g. "4.5 s".'),
    click.option(
        "--count", type=Word(("full", "causal", "matrices")), default="full", show_default=True,
        help="What --tflops counts of attention: the whole square of scores, half of it, nothing (6N).",
    ),
    click.option(
        "--repeated", type=Share("SHARE", whole=True), default=0.0, show_default=True,
        help="Share of the forward pass that recomputation does again, for HFU: 100% with full recomputation.",
    ),
)  # fmt: skip
