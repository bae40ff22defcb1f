"""How many processes launchers and batch systems start, one per GPU."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from shlex import split
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.launch.flags import scalar, split_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_GPUS = 10**7

_KEYS = {
    **dict.fromkeys(("nnodes", "num_nodes", "nodes", "num_machines", "N"), "nodes"),
    **dict.fromkeys(("nproc_per_node", "num_gpus", "npernode", "ppn"), "own_per_node"),
    **dict.fromkeys(("ntasks_per_node", "tasks_per_node"), "tasks_per_node"),
    **dict.fromkeys(("gpus_per_node", "gres"), "gpus_per_node"),
    **dict.fromkeys(("num_processes", "np"), "own_processes"),
    **dict.fromkeys(("n", "ntasks"), "tasks"),
    "gpus_per_task": "gpus_per_task",
    "gpus": "gpus",
}
"""Launchers' options (torchrun, deepspeed, accelerate, srun, mpirun, SBATCH lines) and what they count.

``own`` is what a launcher starts itself, ``tasks`` what the batch system starts, each of which may be such a launcher.
"""

_SBATCH = re.compile(r"^#SBATCH[ \t]+(\S[^\n]*)", re.MULTILINE)
_OF_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "tasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gpus_per_task": ("SLURM_GPUS_PER_TASK",),
    "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
}
_ONE_NODE = ("torchrun", "torch.distributed.launch", "torch.distributed.run", "deepspeed")
"""Launchers that start one node unless told otherwise."""

_MPI = ("mpirun", "mpiexec", "mpirun_rsh", "orterun", "prterun", "horovodrun")
"""Launchers whose ``-n`` is the number of processes, and whose ``-N`` that of one node."""


def _counted(words: Sequence[str]) -> dict[str, int]:
    """Read what options of launchers and of Slurm count."""
    found: dict[str, int] = {}
    for flag, value in {**_short_flags(words), **split_flags(words)}.items():
        number = value[0] if isinstance(value, list) else value
        if isinstance(number, str):  # gpu:h100:8 names the type in front
            number = scalar(number.split(":")[-1])
        key = _KEYS.get(flag)
        if key and type(number) is int and 0 < number <= MAX_GPUS:
            found[key] = number
    return found


def batch_lines(text: str) -> dict[str, int]:
    """Return what ``#SBATCH`` lines ask for, and what follows from that."""
    words: list[str] = []
    for line in _SBATCH.findall(text):
        # shlex refuses a quote that nothing closes; other options of such a line still count.
        try:
            words += split(line, comments=True)
        except ValueError:
            words += line.split()
    return _completed(_counted(words))


def _completed(found: dict[str, int]) -> dict[str, int]:
    """Add what Slurm derives: GPUs of a node from those of its tasks, tasks of all nodes from those of one."""
    more = dict(found)
    if "gpus_per_task" in more and "tasks_per_node" in more:
        more.setdefault("gpus_per_node", more["gpus_per_task"] * more["tasks_per_node"])
    if "gpus" in more and "nodes" in more and more["gpus"] % more["nodes"] == 0:
        more.setdefault("gpus_per_node", more["gpus"] // more["nodes"])
    if "nodes" in more and "tasks_per_node" in more:
        more.setdefault("tasks", more["nodes"] * more["tasks_per_node"])
    return more


def slurm_variables(text: str) -> dict[str, str]:
    """Return the variables that Slurm sets from a script's own lines."""
    asked = batch_lines(text)
    return {name: str(asked[key]) for key, names in _OF_SLURM.items() if key in asked for name in names}


def launched_gpus(words: Sequence[str], text: str = "") -> int | None:
    """Processes that torchrun, deepspeed, accelerate, srun, mpirun or ``#SBATCH`` lines start, None if not stated."""
    launcher = list(_launcher_words(words))
    names = {PurePosixPath(word).name for word in launcher}
    if "jsrun" in names:
        return _resource_sets(launcher)
    # the command line comes after the batch system's lines and wins
    stated, asked = _counted(launcher), batch_lines(text)
    found = asked | stated
    if names & set(_ONE_NODE):
        return _of_torchrun(found, stated, launcher)
    if names & set(_MPI):
        stated = _of_mpi(stated, launcher)
    # A launcher's own number is of processes; Slurm's tasks may each be such a launcher, so that they count last.
    if "own_processes" in stated:
        return stated["own_processes"]
    if "own_per_node" in stated:
        return stated["own_per_node"] * found["nodes"] if "nodes" in found else None
    # Without --num_processes accelerate takes the number from its own configuration file.
    return None if "accelerate" in names else _of_batch(found, stated)


def _of_torchrun(found: dict[str, int], stated: dict[str, int], launcher: Sequence[str]) -> int | None:
    """Return nodes times processes of a node, one node unless told otherwise, whoever starts the launcher on each.

    Without a number of its own it takes all GPUs of its nodes, or a number that is not known.
    """
    flags = {word.lstrip("-").replace("-", "_").partition("=")[0] for word in launcher}
    if "own_per_node" in stated:
        nodes = found.get("nodes") or (None if flags & {"nnodes", "num_nodes"} else 1)
        return nodes * stated["own_per_node"] if nodes else None
    both = found.get("nodes", 0) * found.get("gpus_per_node", 0)
    # --nproc_per_node gpu or auto: as many as the machine has.
    return None if any("nproc" in flag for flag in flags) else both or None


def _of_batch(found: dict[str, int], stated: dict[str, int]) -> int | None:
    """Return the batch system's own tasks, or a process per GPU where it counts GPUs alone."""
    if "tasks" in stated:
        return stated["tasks"]
    if "nodes" in found and "tasks_per_node" in found:
        return found["nodes"] * found["tasks_per_node"]
    if "tasks" in found:
        return found["tasks"]
    if "nodes" in found and "gpus_per_node" in found:
        return found["nodes"] * found["gpus_per_node"]
    return found.get("gpus")


def _of_mpi(stated: dict[str, int], launcher: Sequence[str]) -> dict[str, int]:
    """Read ``mpirun -n 16 -N 8 -H host:8,host:8`` in MPI's sense."""
    # Slurm's -N is nodes and its -n tasks, MPI's -N the processes of a node and its -n all of them.
    found = {key: value for key, value in stated.items() if key not in ("tasks", "nodes")}
    if "tasks" in stated:
        found["own_processes"] = stated["tasks"]
    slots = [
        re.fullmatch(r"[\w.-]+:(\d{1,6})", host)
        for word, hosts in zip(launcher, [*launcher[1:], ""], strict=False)
        if word in ("-H", "--host", "-host", "--hosts")
        for host in hosts.split(",")
    ]
    if slots and all(slots):
        found.setdefault("own_processes", sum(int(match[1]) for match in slots if match))
    return found


def _resource_sets(launcher: Sequence[str]) -> int | None:
    """``jsrun -n 16 -g 4``: resource sets, and the GPUs of each."""
    flags = {flag: value for flag, value in zip(launcher, [*launcher[1:], ""], strict=False)}
    numbers = [
        scalar(str(flags.get(short, flags.get(full, ""))))
        for short, full in (("-n", "--nrs"), ("-g", "--gpu_per_rs"))
    ]
    if not all(type(number) is int and 0 < number <= MAX_GPUS for number in numbers):
        return None
    return int(numbers[0]) * int(numbers[1])


def _launcher_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words in front of the trainer's own script."""
    for place, word in enumerate(words):
        if word.endswith((".py", ".pyz")):
            return words[:place]
    return words


def _short_flags(words: Sequence[str]) -> dict[str, object]:
    """Read ``-N 4``, ``-n8`` and ``-np 64``."""
    found: dict[str, object] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if match := re.fullmatch(r"-(N|np|n|npernode)(\d{1,7})?", word):
            found[match[1]] = scalar(match[2] or following)
    return found
