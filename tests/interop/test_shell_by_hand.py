"""Words that small scripts start programs with, each as bash makes them, and what stays open."""

from __future__ import annotations

import pytest
from checks.launches import parse_script

from layoutopt.optimizer.interop.shell.record import Outside


def words(text: str) -> list[str]:
    """The arguments of the first program that a script starts; open ones as a question mark."""
    script = parse_script(text, outside=Outside())
    return ["?" if "\ue000" in word else word for word in script.commands[0][1:]]


@pytest.mark.parametrize(("text", "passed"), [
    ("echo 4 > f; TP=$(cat f); python $TP", ["4"]),
    ("echo 4 > f; echo 2 > g; python $(cat f g)", ["4", "2"]),
    ("echo 4 > f; python $(cat f nowhere)", ["?"]),
    ("python $(cat nowhere)", ["?"]),
    ("echo a b | { cat; } > f; python $(cat < f)", ["a", "b"]),
    ("python $(seq 3)", ["1", "2", "3"]), ("python $(seq 2 3)", ["2", "3"]), ("python $(seq 5 -2 1)", ["5", "3", "1"]),
    ("python $(seq -s, 1 3)", ["1,2,3"]), ("python $(seq -s : 2)", ["1:2"]), ("python x$(seq 3 1)", ["x"]),
    ("python $(seq 1 0 3)", ["?"]), ("python $(basename /a/b.sh .sh)", ["b"]), ("python $(basename /a/b/)", ["b"]),
    ("python $(basename b b)", ["b"]), ("python $(dirname /a/b)", ["/a"]), ("python $(dirname /a)", ["/"]),
    ("python $(dirname a)", ["."]), ("python $(expr 3 + 4)", ["7"]), ("python $(echo '2*3' | bc)", ["6"]),
    ("python $(echo '2^3' | bc)", ["?"]),
])  # fmt: skip
def test_programs_whose_output_is_known(text: str, passed: list[str]) -> None:
    """By their arguments and the files that the script wrote; of others nothing is made up."""
    assert words(text) == passed


@pytest.mark.parametrize(("condition", "true"), [
    ("[ a = a ]", True), ("[ a = b ]", False), ("[ a != b ]", True), ("[ -z '' ]", True), ("[ -n a ]", True),
    ("[ -n ]", True),
    ("[ ]", False), ("[ a ]", True), ("[ '' ]", False), ("[ ! a ]", False), ("[ 2 -lt 10 ]", True), ("[ 10 -le 2 ]", False),
    ("[ 2 -eq 2 ]", True), ("[ 2 -ge 2 ]", True), ("[ 2 -gt 2 ]", False), ("[ 2 -ne 2 ]", False),
    ("[ a = a -a b = c ]", False),
    ("[ a = a -o b = c ]", True), ("[[ abc == a* ]]", True), ("[[ abc == 'a*' ]]", False),
    ("[[ abc != a* ]]", False), ("[[ a < b ]]", True), ("[[ b > c ]]", False), ("[[ abc =~ ^a.c$ ]]", True),
    ("[[ 1+1 -eq 2 ]]", True), ("[[ a == b || c == c ]]", True), ("[[ a == a && b == c ]]", False),
    ("[ = = = ]", True), ("[ -n = -n ]", True), ("X=1; [ -v X ]", True), ("echo x > f; [ -s f ]", True),
    (": > f; [ -s f ]", False),
    (": > f; [ -e f ]", True), ("declare -A M=([a]=1); [[ -v M[a] ]]", True), ("declare -A M=([a]=1); [[ -v M[b] ]]", False),
])  # fmt: skip
def test_conditions_are_judged_as_bash_does(condition: str, true: bool) -> None:
    """Texts, patterns, numbers, files that the script wrote, and how they are joined."""
    assert words(f"{condition} && T=yes || T=no; python $T") == ["yes" if true else "no"]
