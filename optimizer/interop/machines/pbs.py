"""PBS node files: one line per slot, the host's name repeated."""

from __future__ import annotations

import re
from collections import Counter

from layoutopt.optimizer.interop.reading import importer, shorten
from layoutopt.optimizer.interop.records import NodeSet
from layoutopt.optimizer.specs.errors import input_error

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")


@importer
def import_pbs_nodefile(text: str, file: str = "") -> NodeSet:
    """Read a ``PBS_NODEFILE``; slots per node are taken as GPUs per node where all nodes have as many.

    Raises ``InputError`` for lines that are no host, and without any.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        host = line.strip()
        if not host or host.startswith("#"):
            continue
        if not _HOST.fullmatch(host):
            what = f"{shorten(host)!r} is not a host name"
            raise input_error(what, "one host per line", file=file, line=number)
        hosts.append(host)
    slots = Counter(hosts)
    if not slots:
        raise input_error("no hosts", "one host per line", file=file)
    equal = len(set(slots.values())) == 1
    per_node = next(iter(slots.values()))
    # A site may count GPUs, cores or whole nodes as slots: one slot a node is the latter.
    counted = equal and per_node > 1
    note = f"{per_node} slots per node, taken as GPUs" if counted else "slots per node do not tell the GPUs"
    return NodeSet(nodes=tuple(slots), gpus_per_node=per_node if counted else None, notes=(note,))
