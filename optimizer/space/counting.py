"""How many tuples a space declares and how many each rule removes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCount:
    """Tuples that one rule removed from those that the rules before it left."""

    rule: str
    degrees: int
    tuples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceCounts:
    """Sizes of a space.

    ``degrees`` counts tuples of tp, sp, cp, pp, vp, dp, ep, etp and micro-batch, ``tuples`` the same times
    ZeRO choice, recomputation, mesh order, schedule and precision. Declared equals remaining plus everything
    removed, for both.
    """

    declared_degrees: int
    declared_tuples: int
    removed: tuple[RuleCount, ...]
    remaining_degrees: int
    remaining_tuples: int

    @property
    def last_rule(self) -> str:
        """The rule that removed the last degree tuples."""
        return next((count.rule for count in reversed(self.removed) if count.degrees), "")


@dataclass(slots=True)
class Tally:
    """Collects counts while a space is built; rules of one name add up where the name came first."""

    declared_degrees: int = 0
    declared_tuples: int = 0
    removed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def remove(self, rule: str, degrees: int, tuples: int) -> None:
        """Count what a rule removed."""
        before = self.removed.get(rule, (0, 0))
        self.removed[rule] = (before[0] + degrees, before[1] + tuples)

    def counts(self, remaining_degrees: int, remaining_tuples: int) -> SpaceCounts:
        """Close the books."""
        return SpaceCounts(
            declared_degrees=self.declared_degrees,
            declared_tuples=self.declared_tuples,
            removed=tuple(
                RuleCount(rule=rule, degrees=degrees, tuples=tuples)
                for rule, (degrees, tuples) in self.removed.items()
                if degrees or tuples
            ),
            remaining_degrees=remaining_degrees,
            remaining_tuples=remaining_tuples,
        )
