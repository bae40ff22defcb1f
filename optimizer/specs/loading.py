"""Load models, clusters and layouts from files or by built-in name.

Reading imports pydantic and PyYAML; they are imported when a file is first read, never by importing this
module.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.cluster_text import cluster_mapping
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.gpu_catalog import catalog, find_gpu, split_reference
from layoutopt.optimizer.specs.reference_fabric import MAX_GPUS, build_reference, resized
from layoutopt.optimizer.specs.units import shown, whole_number
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec
    from layoutopt.optimizer.specs.document import Document
    from layoutopt.optimizer.specs.file_model import FileModel
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.workload import Workload

    Fill = Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """From what a file's ``training`` states to what fills the rest of it."""


MAX_PLAN_BYTES = 100_000_000
"""A plan holds a stage list and a certificate beside the layout."""
SUFFIXES = (".yaml", ".yml", ".json")


def model_names() -> tuple[str, ...]:
    """Return the names of the built-in models, sorted."""
    return _builtin_names("layoutopt.models")


def cluster_names() -> tuple[str, ...]:
    """Return the names of the built-in clusters, sorted."""
    return _builtin_names("layoutopt.topologies")


def gpu_names() -> tuple[str, ...]:
    """Return the names of the catalog's GPUs, without aliases."""
    return tuple(catalog())


def load_gpu(name: str) -> GpuSpec:
    """Return a GPU of the catalog by name or alias; raises ``InputError`` with the nearest name."""
    return find_gpu(name).gpu


def load_workload(
    source: str | Path, fill: Fill | None = None, said: dict[str, str] | None = None
) -> Workload:
    """Load a model file, or a built-in model by name (``llama3-405b``); ``fill`` completes a file's ``training``.

    ``said`` takes notes on how the file was read, by the part of it that they are about.

    Raises
    ------
    InputError
        With one line for each problem: file, line, key, what is wrong, what is allowed.
    """
    found = _workload(*_open(source, "layoutopt.models", "model"), fill, said)
    return _with_builtin_tokens(found) if source in model_names() else found


def _with_builtin_tokens(workload: Workload) -> Workload:
    """Mark numbers of tokens as those of a model's makers."""
    main, *phases = (
        replace(part, builtin_tokens=part.total_tokens is not None)
        for part in (workload.training, *workload.phases)
    )
    return replace(workload, training=main, phases=tuple(phases))


def parse_workload(
    text: str, file: str, fill: Fill | None = None, said: dict[str, str] | None = None
) -> Workload:
    """Read the text of a model file that messages call ``file``; notes and errors as in ``load_workload``."""
    from layoutopt.optimizer.specs.document import parse_document

    return _workload(parse_document(text, file), "model", fill, said)


def _workload(
    document: Document, name: str, fill: Fill | None = None, said: dict[str, str] | None = None
) -> Workload:
    from layoutopt.optimizer.specs.file_model import validate
    from layoutopt.optimizer.specs.model_file import ModelFile

    stated = document.data.get("training") or {}
    # Filled before the file is validated, so that a key that is missing but filled is none that is missing.
    if fill is not None and isinstance(stated, dict) and (filled := fill(stated)):
        document = document.replaced((), {**document.data, "training": {**stated, **filled}})
    found = validate(ModelFile, document)
    if said is not None:
        said.update(found.notes())
    return found.workload(name)


def load_cluster(source: str | Path) -> ClusterSpec:
    """Load a cluster file, a built-in cluster (``h100-16384``), or a reference fabric (``h100x16384``).

    A file of such a name is asked for by a path: ``./h100x16384``.

    Raises
    ------
    InputError
        With one line for each problem: file, line, key, what is wrong, what is allowed.
    """
    from layoutopt.optimizer.specs.document import exists

    reference = split_reference(str(source))
    # Text is a name first: a folder that happens to be called h100x64 must not change the question. A Path is a file.
    named = isinstance(source, str) or not exists(Path(source))
    if reference is not None and named and str(source) not in cluster_names():
        return reference_cluster(*reference)
    return _cluster(*_open(source, "layoutopt.topologies", "cluster"))


def parse_cluster(text: str, file: str) -> ClusterSpec:
    """Read the text of a cluster file that messages call ``file``; errors as in ``load_cluster``."""
    from layoutopt.optimizer.specs.document import parse_document

    return _cluster(parse_document(text, file), "cluster")


def _cluster(document: Document, name: str) -> ClusterSpec:
    from layoutopt.optimizer.specs.cluster_file import ClusterFile
    from layoutopt.optimizer.specs.file_model import validate

    return validate(ClusterFile, with_base(document, load_cluster)).cluster(name, document)


def load_layout(source: str | Path) -> PartialLayout:
    """Load a layout file, or the layout of a plan; ``PartialLayout.complete`` fills in what it leaves open.

    Raises
    ------
    InputError
        With one line for each problem: file, line, key, what is wrong, what is allowed.
    """
    from layoutopt.optimizer.specs.document import parse_document, read_text
    from layoutopt.optimizer.specs.layout_file import read_layout

    return read_layout(parse_document(read_text(Path(source), max_bytes=MAX_PLAN_BYTES), str(source)))


def parse_layout(text: str) -> PartialLayout:
    """Read a layout from the command line: ``tp=8,pp=16,vp=8,mb=1,zero=1,recompute=full:4``.

    Raises ``InputError`` with every problem; an unknown key comes with the nearest valid one.
    """
    from layoutopt.optimizer.specs.layout_file import read_layout_text

    return read_layout_text(text)


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a ``model``, ``cluster`` or ``layout`` file, every key described."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_file_model(kind).model_json_schema(),
    }


def _file_model(kind: str) -> type[FileModel]:
    if kind == "model":
        from layoutopt.optimizer.specs.model_file import ModelFile

        return ModelFile
    if kind == "cluster":
        from layoutopt.optimizer.specs.cluster_file import ClusterFile

        return ClusterFile
    if kind == "layout":
        from layoutopt.optimizer.specs.layout_file import LayoutFile

        return LayoutFile
    raise input_error(f"no schema is called {kind!r}", "model, cluster, layout", key="kind")


def reference_cluster(gpu: str, count: int) -> ClusterSpec:
    """Return ``count`` GPUs of a catalog entry on the reference fabric; the same family at every count."""
    return build_reference(find_gpu(gpu), count)


def override_training(
    workload: Workload,
    *,
    sequence_length: int | None = None,
    global_batch: int | None = None,
    precision: Precision | str | None = None,
    total_tokens: float | None = None,
) -> Workload:
    """Return the workload with some of its training numbers replaced (the phases keep theirs).

    Raises ``InputError`` for numbers that are not positive, an unknown precision, or a sequence that is
    longer than the model's learned positions.
    """
    changes: dict[str, Any] = {}
    positive = {
        "sequence_length": sequence_length,
        "global_batch": global_batch,
        "total_tokens": total_tokens,
    }
    for key, value in positive.items():
        if value is not None and not 0 < value < 1e18:
            raise input_error(f"{value} is out of range", "above 0", key=key)
        changes |= {} if value is None else {key: value}
    # From here on the number is that of whoever asks, even where it equals the makers'.
    if total_tokens is not None:
        changes["builtin_tokens"] = False
    if precision is not None:
        changes["precision"] = _precision(str(precision))
        # A recipe belongs to fp8 alone, and a file that states one with another precision is refused.
        if changes["precision"] is not Precision.FP8:
            changes["fp8_recipe"] = None
    positions = workload.model.learned_positions
    if sequence_length is not None and positions and sequence_length > positions:
        what = f"{sequence_length} is more than the model's {positions} learned positions"
        raise input_error(what, f"at most {positions}", key="sequence_length")
    return replace(workload, training=replace(workload.training, **changes))


def _precision(text: str) -> Precision:
    try:
        return Precision(text.lower())
    except ValueError:
        raise input_error(f"{text!r} is unknown", ", ".join(Precision), key="precision") from None


@cache
def _builtin_names(package: str) -> tuple[str, ...]:
    files = resources.files(package).iterdir()
    return tuple(sorted(item.name.removesuffix(".yaml") for item in files if item.name.endswith(".yaml")))


def _open(source: str | Path, package: str, what: str) -> tuple[Document, str]:
    """Read a built-in or a file; return it with the name that it has unless it states one."""
    from layoutopt.optimizer.specs.document import exists, parse_document, read_text

    text = str(source)
    if not text.strip():
        raise input_error("is empty", f"a {what} file or a built-in name", key=what.upper())
    if isinstance(source, str) and text in _builtin_names(package):
        file = f"{text}.yaml"
        return parse_document(resources.files(package).joinpath(file).read_text("utf-8"), file), text
    if not exists(Path(text)):
        raise InputError(_unknown(text, package, what))
    path = Path(text)
    return parse_document(read_text(path), text), path.stem


def _unknown(text: str, package: str, what: str) -> Problem:
    """Build the problem for what is neither a built-in nor a file, with the nearest of both."""
    names = _builtin_names(package)
    if not text.endswith(SUFFIXES) and "/" not in text:
        near = _near_gpus(text, what) or _near(text, names)
        missing = f"no built-in {what} and no file is called {shown(text)}"
        allowed = f"a {what} file, or one of: {', '.join(names)}"
        if what == "cluster" and _counts_gpus(text):
            allowed = f"no such GPU; GPUs are {', '.join(gpu_names())}"
        return Problem(what=missing + near, allowed=allowed)
    near = _near(Path(text).name, _siblings(Path(text))) or _near(Path(text).stem, names)
    file = text if text.isprintable() else shown(text)
    return Problem(what=f"no such file{near}", allowed=f"a {what} file or a built-in name", file=file)


def _near(text: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    word, names = text.lower()[:60], list(known)  # difflib's time grows with the product of both lengths
    # Who types "llama3" wants to see what begins so, though longer names are not similar to it.
    begun = [name for name in names if word and name.startswith(word)]
    near = list(dict.fromkeys([*begun, *get_close_matches(word, names, n=3, cutoff=0.6)]))[:3]
    return f"; nearest: {', '.join(near)}" if near else ""


def _counts_gpus(text: str) -> bool:
    """Tell whether a text has the form ``NAMExN``."""
    head, _, count = text.rpartition("x")
    return bool(head) and whole_number(count) is not None


def _near_gpus(text: str, what: str) -> str:
    """Name the GPUs nearest to that of ``NAMExN``."""
    if what != "cluster" or not _counts_gpus(text):
        return ""
    head, _, count = text.rpartition("x")
    near = _near(head, gpu_names()).removeprefix("; nearest: ")
    return f"; nearest: {', '.join(f'{name}x{count}' for name in near.split(', '))}" if near else ""


def _siblings(path: Path) -> list[str]:
    """Return the YAML and JSON files beside a path that does not exist."""
    try:
        # Compared one by one with what was asked for: more would be a wait for a hint.
        return sorted(item.name for item in path.parent.iterdir() if item.suffix in SUFFIXES)[:1000]
    except (OSError, ValueError):
        return []


OWN_KEYS = ("name", "base", "source")
"""Keys that a base does not lend."""


def with_base(document: Document, load: Callable[[str], ClusterSpec]) -> Document:
    """Return a cluster file with the keys of its base filled in; ``load`` reads a built-in by name.

    The network grows or shrinks with a stated number of GPUs. Raises ``InputError`` for an unknown base.
    """
    stated = document.data
    if not isinstance(stated, dict) or not isinstance(stated.get("base"), str):
        return document
    name = stated["base"]
    if "/" in name or "." in name:  # a base is a name: files could be each other's base without end
        allowed = "a built-in cluster, or NAMExN: h100x1024"
        raise InputError(document.problem(("base",), f"{shown(name)} is a file", allowed))
    try:
        lent = cluster_mapping(_sized(name, load, _count(stated)))
    except InputError as error:
        problems = (document.problem(("base",), found.what, found.allowed) for found in error.problems)
        raise InputError(*problems) from None
    # The size is one of the two keys: lending the other would contradict what the file states.
    for one, other in (("gpus", "nodes"), ("nodes", "gpus")):
        if stated.get(one) is not None:
            lent.pop(other, None)
    own = {key: value for key, value in stated.items() if value is not None}
    return document.replaced((), {**{key: lent[key] for key in lent if key not in OWN_KEYS}, **own})


def _sized(name: str, load: Callable[[str], ClusterSpec], count: Callable[[int], int | None]) -> ClusterSpec:
    """Load the base at the number of GPUs that the file states, at its own where it states none."""
    reference = split_reference(name)
    if reference is not None:
        entry = find_gpu(reference[0])
        return build_reference(entry, count(entry.gpu.gpus_per_node) or reference[1])
    base = load(name)
    gpus = count(base.gpus_per_node)
    # A graph is as large as it is; a file that states another size beside it is told so when it is read as a whole.
    return base if gpus in (None, base.gpu_count) or base.graph is not None else resized(base, int(gpus or 0))


def _count(stated: Mapping[str, Any]) -> Callable[[int], int | None]:
    """Return the number of GPUs that a file states, given the base's node size; what is no number is judged later."""

    def gpus(base_node: int) -> int | None:
        """Return the GPUs that the file states, over nodes of the base's size unless stated."""
        gpus, nodes, node = (whole_number(stated.get(key)) for key in ("gpus", "nodes", "gpus_per_node"))
        found = gpus or (nodes * (node or base_node) if nodes else 0)
        return found if 1 <= found <= MAX_GPUS else None

    return gpus
