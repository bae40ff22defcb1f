"""What a long benchmark has measured so far, a line per case, so that a later run goes on from there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def measured(cases: Iterable[Any], measure: Callable[[int], Any], file: Path | None) -> list[Any]:
    """Return what ``measure`` gives of the number of each case, those that ``file`` keeps of the same cases left out.

    Exits with a line where the file keeps what was measured of other cases.
    """
    listed = [str(case) for case in cases]
    lines = file.read_text("utf-8").splitlines() if file is not None and file.exists() else []
    found = [json.loads(line) for line in lines]
    if [one["case"] for one in found] != listed[: len(found)]:
        sys.exit(f"{file} keeps what was measured of other cases")
    for number in range(len(found), len(listed)):
        found.append({"case": listed[number], "found": measure(number)})
        if file is not None:
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(found[-1]) + "\n")
    return [one["found"] for one in found]
