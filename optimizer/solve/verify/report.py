"""The outcome of a verification: one line for each check."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its name, whether it passed, and the reason in one line."""

    name: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Whether a plan is accepted, and why.

    ``not_checked`` names what the plan states and was not rebuilt, ``restrictions`` what the claim is restricted to.
    ``tuples`` were priced anew, ``even_layouts`` of their even layouts too, ``solved_exactly`` had their
    stages solved; ``rows_by_optimistic_terms`` degree rows were excluded without pricing each of their
    tuples (0 when every tuple was priced).
    """

    accepted: bool
    checks: tuple[Check, ...]
    not_checked: tuple[str, ...] = ()
    restrictions: tuple[str, ...] = ()
    degree_rows: int
    tuples: int
    even_layouts: int
    solved_exactly: int
    rows_by_optimistic_terms: int
    seconds: float

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    def to_plain(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        words = {True: "ok  ", False: "FAIL"}
        lines = [f"{words[check.passed]} {check.name}: {check.reason}" for check in self.checks]
        lines += [f"restricted to {text}" for text in self.restrictions]
        lines += [f"not checked: {text}" for text in self.not_checked]
        return "\n".join([*lines, "accepted" if self.accepted else "rejected"])
