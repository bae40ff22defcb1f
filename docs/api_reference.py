"""Write docs/api.md from the docstrings of the package's face: ``python docs/api_reference.py > docs/api.md``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import layoutopt

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """# Python interface

Written by `python docs/api_reference.py > docs/api.md` from the docstrings; a test keeps it current.

```python
from layoutopt import load_cluster, load_model, solve

result = solve(load_model("llama3-8b", global_batch=64), load_cluster("h100x8"))
print(result)  # the answer on one screen, as the command line prints it
result.layout.tp, result.step_time_s
result.why_not(tp=4).slower  # what a wish costs
result.again(require="peak_gb<=70").layout
result.export("torchtitan").files  # launch files by name
```

Bad input raises `InputError`; its `problems` say where, what is wrong and what would be valid, one line each.
"""


def reference() -> str:
    """Return the whole page."""
    names = sorted(layoutopt.__all__, key=lambda name: (isinstance(getattr(layoutopt, name), type), name))
    parts = [HEAD]
    for name in names:
        found = getattr(layoutopt, name)
        if isinstance(found, type):
            parts += _class(name, found)
        elif callable(found):
            parts += [f"## {name}\n", _signature(name, found), _text(found)]
    return "\n".join(parts)


def _class(name: str, found: type) -> Iterator[str]:
    """Write a class with its own public members."""
    yield f"## {name}\n"
    yield _text(found)
    rows = [
        (key, value) for key, value in vars(found).items() if not key.startswith("_") and _described(value)
    ]
    if rows:
        yield "| member | |\n|---|---|"
        for key, value in rows:
            shown = f"{key}{_parameters(value)}" if inspect.isfunction(value) else key
            yield f"| `{shown}` | {' '.join(_text(value).split())} |".replace("||", "\\|\\|")
        yield ""


def _described(value: Any) -> bool:
    return bool(getattr(value, "__doc__", "")) and (inspect.isfunction(value) or hasattr(value, "__get__"))


def _parameters(function: Any) -> str:
    found = [
        parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"
    ]
    return "(" + ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in found) + ")"


def _signature(name: str, function: Any) -> str:
    """Write the call with one argument on a line."""
    found = inspect.signature(function)
    lines, starred = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            lines.append("*,")
        starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{star}{parameter.name}: {parameter.annotation}{default},")
    body = "\n".join(f"    {line}" for line in lines)
    return f"```python\n{name}(\n{body}\n) -> {found.return_annotation}\n```\n"


def _text(found: Any) -> str:
    return inspect.cleandoc(found.__doc__ or "").replace("``", "`") + "\n"


if __name__ == "__main__":
    print(reference(), end="")
