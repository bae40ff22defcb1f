"""Options that say of profiles what they do not say themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.options import grouped
from layoutopt.optimizer.report.commands.values import Whole
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions

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
