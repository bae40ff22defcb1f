"""Software strings: what ``core 0.9``, ``NeMo 25.02``, ``era C`` or ``2022-05`` mean for a framework."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.record import NEWEST, Numbering, Release

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.record import FrameworkRecord

_NUMBERS = re.compile(r"\d+(?:\.\d+)+")
_DATE = re.compile(r"\b(?:19|20)\d\d(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?)?\b")
_END_OF_PERIOD = "-99"
"""Sorts behind every month of a year and every day of a month, so that a period's releases are all inside."""


def read_release(record: FrameworkRecord, software: str | None) -> Release:
    """Read a software string as the release that the framework's rules are keyed by.

    Parameters
    ----------
    record
        Decides the counting.
    software
        A release (``core 0.9``, ``0.15``, ``NeMo 25.02``, ``v0.2.2``, ``era C``; of a range the newest counts) or a
        date (``2022``, ``2022-05``, ``2022-05-16``): the newest release published by its end.

    Returns
    -------
    The release, ``NEWEST`` when the string is missing or says nothing that can be compared.
    """
    text = (software or "").strip().lower()
    for name, release in record.names.items():
        if re.search(rf"\b{re.escape(name)}\b", text):
            return release
    date = _date_of(record, software)
    if date is not None:
        return _published_by(record, date)
    found = [tuple(int(part) for part in match.split(".")) for match in _NUMBERS.findall(text)]
    return _own_number(record, max(found), text) if found and not record.dated else NEWEST


def date_remarks(record: FrameworkRecord, software: str | None) -> tuple[str, ...]:
    """Say what stands for a date by which a framework had no release, or none whose date is known."""
    date = _date_of(record, software)
    first = record.releases[0].date
    if date is None or (first and first <= date + _END_OF_PERIOD):
        return ()
    if not first:
        return (f"no release of {record.name} has a known date: what it can launch today stands for {date}",)
    return (f"{record.name} had no release by {date}: its first one, of {first}, stands for it",)


def _date_of(record: FrameworkRecord, software: str | None) -> str | None:
    """Return the date that a software string is, if it is one."""
    text = (software or "").strip().lower()
    date = None if _NUMBERS.search(text) and not record.dated else _DATE.search(text)
    return date[0] if date else None


def _own_number(record: FrameworkRecord, number: Release, text: str) -> Release:
    """Translate a number of another numbering into the framework's own."""
    for numbering in record.numberings:
        if numbering.first <= number[0] and not (numbering.unless and numbering.unless in text):
            return _inside(numbering, number)
    return number


def _inside(numbering: Numbering, number: Release) -> Release:
    """Return the release inside the newest listed one up to ``number``; NEWEST beyond the list."""
    listed = [own for tag, own in numbering.inside.items() if tag <= number]
    newer = number[:2] > max(numbering.inside)[:2]
    return NEWEST if newer else max(listed, default=min(numbering.inside.values()))


def _published_by(record: FrameworkRecord, date: str) -> Release:
    """Return the newest release that was published by the end of a year, month or day; the oldest if none was."""
    had = [one.number for one in record.releases if one.date <= date + _END_OF_PERIOD]
    newest = had == [one.number for one in record.releases]
    return NEWEST if newest else (had[-1] if had else record.releases[0].number)
