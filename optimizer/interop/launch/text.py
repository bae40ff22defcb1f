"""Text of launch files: flags wrapped over lines, comment headers, YAML without surprises."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutopt.optimizer.interop.launch.target import Target

WIDTH = 110
LAUNCHER = ("torchrun", "--nnodes", "{nodes}", "--nproc-per-node", "{per_node}")
HEAD_NODE = "HEAD_NODE"
"""Stands for the address of the first node, where the others meet: no plan knows it."""

AT_HEAD = f"{HEAD_NODE} (the address of the first node)"
IN_HOSTFILE = "/job/hostfile (the nodes; --hostfile names another file)"
"""Where DeepSpeed's launcher looks for them (deepspeedai/DeepSpeed launcher/runner.py, DLTS_HOSTFILE)."""

RENDEZVOUS_PORT = 29500
"""torchrun's and accelerate's own default."""


def quote(word: str) -> str:
    """Quote a word for a POSIX shell when it needs it."""
    return shlex.quote(word)


def python_text(value: str) -> str:
    """Write a string as Python does, in double quotes where it has none itself."""
    literal = repr(value)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def toml_text(value: str) -> str:
    """Write a TOML basic string: JSON's escapes are TOML's, but for the delete character, which JSON lets pass."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def flag_words(flags: Iterable[tuple[str, Any]]) -> list[list[str]]:
    """Turn (flag, value) pairs into word groups: True is a bare switch, False and None are left out."""
    groups = []
    for name, value in flags:
        # an absent switch is off for argparse; False has no spelling
        if value is None or value is False:
            continue
        values = [] if value is True else list(value) if isinstance(value, list | tuple) else [value]
        groups.append([name, *(quote(str(item)) for item in values)])
    return groups


def command_text(start: Sequence[str], sections: Sequence[Sequence[Sequence[str]]]) -> str:
    """Write a command with one backslash-continued block per section, lines of at most ``WIDTH``."""
    lines = [" ".join(start)]
    for section in sections:
        lines += _wrapped([" ".join(group) for group in section])
    return " \\\n".join(lines) + "\n"


def _wrapped(groups: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for group in groups:
        if lines and len(lines[-1]) + 1 + len(group) <= WIDTH:
            lines[-1] += " " + group
        else:
            lines.append("  " + group)
    return lines


def torchrun_words(target: Target) -> list[str]:
    """The launcher's words, one process per GPU, and where nodes meet if there are several."""
    words = [word.format(nodes=target.nodes, per_node=target.gpus_per_node) for word in LAUNCHER]
    if target.nodes > 1:
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HEAD_NODE}:{RENDEZVOUS_PORT}"]
    return words


def header(target: Target, software: str, *, comment: str = "#", meeting: str = AT_HEAD) -> str:
    """Comment lines on top of a file: what for, which release, the product of the degrees, what to replace.

    ``meeting`` is what says where several nodes meet.
    """
    layout = target.layout
    product = f"tp{layout.tp} x cp{layout.cp} x pp{layout.pp} x dp{layout.dp}"
    lines = [
        f"{target.model.name} on {layout.gpus} GPUs = {product}; written by layoutopt for {software}",
        f"vp{layout.vp}, ZeRO-{layout.zero}, {layout.micro_batches} micro-batches of {layout.micro_batch}, "
        f"global batch {target.global_batch} sequences of {target.training.sequence_length}",
    ]
    lines.append(
        "placeholders, to replace with your own: learning rate and its schedule, data, tokenizer, where to save"
    )
    if target.nodes > 1:
        lines.append(f"placeholder: {meeting}")
    if target.model.is_moe:
        edp = layout.dp * layout.cp * layout.tp // (layout.ep * layout.etp)
        lines.append(f"experts: etp{layout.etp} x ep{layout.ep} x pp{layout.pp} x expert-dp{edp}")
    lines += target.model.remarks
    # a comment ends with its line, and control characters may end it
    return "".join(f"{comment} {printable(line)}\n" for line in lines)


def yaml_text(data: Mapping[str, Any]) -> str:
    """Write YAML in the order given; floats keep a dot, which PyYAML needs to read them back as numbers."""
    import yaml

    text: str = yaml.safe_dump(dict(data), sort_keys=False, default_flow_style=None, width=WIDTH)
    return text
