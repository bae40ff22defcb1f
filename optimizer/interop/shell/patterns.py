"""Bash patterns: what a glob matches, cuts off and replaces, and the words that braces make."""

from __future__ import annotations

import re
from functools import cache

MAX_WORDS = 5_000
"""Most words that one word of a script may become."""

MOST_BRACES = 50
"""Most braces of a word that are expanded."""

LONGEST = 1_000
"""Longest text that is searched for a glob; launch scripts cut names and paths."""

LONGEST_GROUPED = 100
"""Longest text that is held against a glob with groups (``+(a|b)``), which backtracks."""

_CLASSES = {
    "digit": "0-9", "alpha": "A-Za-z", "alnum": "0-9A-Za-z", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "xdigit": "0-9A-Fa-f", "punct": re.escape(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~"""), "blank": r" \t", "word": r"\w",
}  # fmt: skip
_NUMBERS = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,6}))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d{1,3}))?")


def quote_glob(text: str) -> str:
    """Return the glob that matches a text alone."""
    return re.sub(r"([\\*?\[\]+@!(|)])", r"\\\1", text)


def glob_matches(text: str, glob: str, *, grouped: bool = True) -> bool | None:
    """Tell whether a whole text matches a shell glob; None where that is not decided here.

    ``grouped`` lets ``@(a|b)`` and its like be groups, as ``[[`` and ``shopt -s extglob`` do.
    """
    pattern = _pattern(glob, grouped)
    has_groups = grouped and re.search(r"[?*+@!]\(", glob)
    if pattern is None or (has_groups and len(text) > LONGEST_GROUPED):
        return None
    return pattern.fullmatch(text) is not None


@cache
def _pattern(glob: str, grouped: bool) -> re.Pattern[str] | None:
    """Return a glob as a regular expression; without groups it never backtracks over a star."""
    # What stands between two stars may be taken at its first place for good (an atomic group): a later place leaves less.
    if grouped and re.search(r"[?*+@!]\(", glob):
        source = _grouped(glob)
    else:
        parts = [_plain(part) for part in _between_stars(glob)]
        middle = "".join(f"(?>.*?{part})" for part in parts[1:-1] if part)
        source = parts[0] if len(parts) == 1 else f"{parts[0]}{middle}.*{parts[-1]}"
    try:
        return None if source is None else re.compile(source, re.DOTALL)
    except (re.error, RecursionError):
        return None


def _between_stars(glob: str) -> list[str]:
    """Split a glob at its stars, those behind a backslash or in brackets left out."""
    parts, at = [""], 0
    while at < len(glob):
        end = _one(glob, at)
        if glob[at] == "*":
            parts.append("")
        else:
            parts[-1] += glob[at:end]
        at = end
    return parts


def _one(glob: str, at: int) -> int:
    """Return where the element that starts at a place ends: a character, one with a backslash, a bracket."""
    if glob[at] == "\\":
        return min(at + 2, len(glob))
    if glob[at] == "[":
        match = re.compile(r"\[[!^]?\]?(?:\[:\w+:\]|\\.|[^\]\\])*\]", re.DOTALL).match(glob, at)
        return match.end() if match else at + 1
    return at + 1


def _plain(glob: str) -> str:
    """Return a glob without stars and groups as a regular expression."""
    out, at = "", 0
    while at < len(glob):
        end = _one(glob, at)
        out += _element(glob[at:end])
        at = end
    return out


def _element(part: str) -> str:
    if part == "?":
        return "."
    if part[0] == "[" and len(part) > 2:
        negated = part[1] in "!^"
        inner = re.sub(r"\[:(\w+):\]", lambda m: _CLASSES.get(m[1], ""), part[2 if negated else 1 : -1])
        inner = inner.replace("[", r"\[")
        # A bracket that closes right behind the one that opens stands for itself.
        inner = r"\]" + inner[1:] if inner.startswith("]") else inner
        return f"[{'^' if negated else ''}{inner}]"
    return re.escape(part[1:] if part[0] == "\\" and len(part) > 1 else part)


def _grouped(glob: str) -> str | None:
    """Return a glob with groups as a regular expression; None for repeats in repeats and for ``!()`` inside."""
    out, at = "", 0
    while at < len(glob):
        if glob[at] in "?*+@!" and glob[at + 1 : at + 2] == "(":
            end = _closing(glob, at + 1)
            if end is None:
                return None
            group = _group(glob[at], glob[at + 2 : end], last=end + 1 == len(glob))
            if group is None:
                return None
            out, at = out + group, end + 1
            continue
        end = _one(glob, at)
        out += ".*" if glob[at] == "*" else _element(glob[at:end])
        at = end
    return out


def _group(mark: str, inner: str, *, last: bool) -> str | None:
    # A repeat in a repeat is tried in every way to share a text out between the two, which takes for ever.
    if re.search(r"[*+]", inner) and mark in "*+":
        return None
    ways = [_grouped(way) for way in _ways(inner)]
    if None in ways or (mark == "!" and not last):
        return None
    joined = f"(?:{'|'.join(way or '' for way in ways)})"
    return f"(?!{joined}\\Z).*" if mark == "!" else joined + {"@": "", "?": "?", "*": "*", "+": "+"}[mark]


def _closing(text: str, at: int) -> int | None:
    """Return where the parenthesis that opens at a place closes."""
    depth = 0
    while at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at = _one(text, at)
    return None


def _ways(inner: str) -> list[str]:
    """Split at bars outside of inner groups."""
    ways, depth = [""], 0
    for char in inner:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "|" and depth == 0:
            ways.append("")
        else:
            ways[-1] += char
    return ways


def is_plain(glob: str) -> bool:
    """Tell whether a glob matches one text alone."""
    return not re.search(r"(?<!\\)[*?\[]|(?<!\\)[?*+@!]\(", glob)


def unquoted(glob: str) -> str:
    """Return the text that a plain glob matches."""
    return re.sub(r"\\(.)", r"\1", glob, flags=re.DOTALL)


def trim(text: str, glob: str, *, front: bool, longest: bool) -> str | None:
    """Cut off what matches a glob at one end (``${x#glob}``, ``##``, ``%``, ``%%``); None if not decided here."""
    if is_plain(glob):
        return text.removeprefix(unquoted(glob)) if front else text.removesuffix(unquoted(glob))
    if len(text) > LONGEST:
        return None
    ends = range(len(text) + 1)
    for size in reversed(ends) if longest else ends:
        match = glob_matches(text[:size] if front else text[len(text) - size :], glob)
        if match is None:
            return None
        if match:
            return text[size:] if front else text[: len(text) - size]
    return text


def replace_glob(text: str, glob: str, new: str, *, every: bool) -> str | None:
    """Replace what matches a glob (``${x/glob/new}``, ``//``); ``#`` and ``%`` in front bind it to an end."""
    if glob.startswith(("#", "%")) and not every:
        front, bound = glob[0] == "#", glob[1:]
        rest = trim(text, bound, front=front, longest=True) if bound else text
        if rest is None or (rest == text and bound):
            return rest
        return new + rest if front else rest + new
    if not glob or is_plain(glob):
        return text.replace(unquoted(glob), new, -1 if every else 1) if glob else text
    return None if len(text) > LONGEST else _replaced(text, glob, new, every=every)


def _replaced(text: str, glob: str, new: str, *, every: bool) -> str | None:
    result, at = [], 0
    while at < len(text):
        end = None
        # Of all that matches at a place bash replaces the longest.
        for stop in range(len(text), at, -1):
            match = glob_matches(text[at:stop], glob)
            if match is None:
                return None
            if match:
                end = stop
                break
        if end is None:
            result.append(text[at])
            at += 1
            continue
        result.append(new)
        at = end
        if not every:
            break
    return "".join(result) + text[at:]


def brace_expand(source: str) -> list[str] | None:
    """Expand ``{a,b}`` and ``{1..4}`` in the source of a word; None beyond ``MAX_WORDS`` words or ``MOST_BRACES`` braces."""
    return _braces(source, MAX_WORDS) if source.count("{") <= MOST_BRACES else None


def _braces(source: str, most: int) -> list[str] | None:
    place = _brace(source)
    if place is None:
        return [source]
    first, last, parts = place
    before, after = source[:first], source[last + 1 :]
    ends = _braces(after, most)
    words: list[str] = []
    for part in parts:
        inner = _braces(part, most)
        if inner is None or ends is None or len(words) + len(inner) * len(ends) > most:
            return None
        words += [before + one + end for one in inner for end in ends]
    return words


def _brace(source: str) -> tuple[int, int, list[str]] | None:
    """Return the first brace that expands: where it opens, where it closes, and its parts."""
    at = 0
    while at < len(source):
        if source[at] == "{":
            found = _parts(source, at)
            if found is not None:
                return at, *found
        at = skip(source, at)
    return None


def skip(source: str, at: int) -> int:
    """Return the place behind a character, or behind the quotes or expansion that it opens."""
    char = source[at]
    if char == "\\":
        return min(at + 2, len(source))
    if char == "'":
        return _until(source, at + 1, "'")
    if char == '"' or char == "`":
        return _quoted(source, at)
    if char == "$" and source[at + 1 : at + 2] in ("{", "("):
        return balanced(source, at + 1)
    if char == "$" and source[at + 1 : at + 2] == "'":
        return _quoted(source, at + 1)
    return at + 1


def _until(source: str, at: int, mark: str) -> int:
    end = source.find(mark, at)
    return len(source) if end < 0 else end + 1


def _quoted(source: str, at: int) -> int:
    """Return the place behind the quotes that open at a place; inside, a backslash and expansions are passed over."""
    mark, at = source[at], at + 1
    while at < len(source) and source[at] != mark:
        inner = source[at] == "\\" or (mark == '"' and source[at] in "$`" and source[at + 1 : at + 2] != "'")
        at = skip(source, at) if inner else at + 1
    return min(at + 1, len(source))


def balanced(source: str, at: int) -> int:
    """Return the place behind the bracket that closes the one at a place."""
    opening = source[at]
    closing = {"{": "}", "(": ")", "[": "]"}[opening]
    at += 1
    while at < len(source) and source[at] != closing:
        at = balanced(source, at) if source[at] == opening else skip(source, at)
    return min(at + 1, len(source))


def _parts(source: str, at: int) -> tuple[int, list[str]] | None:
    """Return where a brace closes and its parts, None where it stands for itself."""
    parts, inner, depth = [""], at + 1, 0
    while inner < len(source):
        char = source[inner]
        if char == "}" and depth == 0:
            if len(parts) > 1:
                return inner, parts
            span = _span(parts[0])
            return None if span is None else (inner, span)
        if char == "," and depth == 0:
            parts.append("")
            inner += 1
            continue
        depth += {"{": 1, "}": -1}.get(char, 0)
        end = skip(source, inner)
        parts[-1] += source[inner:end]
        inner = end
    return None


def _span(text: str) -> list[str] | None:  # {a..e} and {1..9..2}; None for {x}, which stands for itself
    if numbers := _NUMBERS.fullmatch(text):
        # {08..11}: one end with zeros in front makes all numbers as wide.
        width = max(map(len, numbers.group(1, 2)))
        padded = any(re.match(r"-?0\d", end) for end in numbers.group(1, 2))
        values = _steps(int(numbers[1]), int(numbers[2]), numbers[3])
        return [f"{value:0{width}d}" if padded else str(value) for value in values]
    letters = _LETTERS.fullmatch(text)
    return [chr(value) for value in _steps(ord(letters[1]), ord(letters[2]), letters[3])] if letters else None


def _steps(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1
    ends = range(first, last + 1, size) if first <= last else range(first, last - 1, -size)
    return ends[: MAX_WORDS + 1]  # one more than is allowed shows the caller that there are too many
