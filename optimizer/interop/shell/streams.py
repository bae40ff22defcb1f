"""What a script's commands read from their standard input, as far as the script itself holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Input:
    """A text that commands read one after the other."""

    text: str
    at: int = 0

    def line(self, end: str = "\n") -> tuple[str, bool]:
        """Return what comes before the next ``end``, and whether there was one."""
        place = self.text.find(end, self.at) if end else -1
        start, found = self.at, place >= 0
        self.at = place + len(end) if found else len(self.text)
        return self.text[start : place if found else len(self.text)], found

    def rest(self) -> str:
        """Return all that is left."""
        start, self.at = self.at, len(self.text)
        return self.text[start:]
