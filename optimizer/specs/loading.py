"""Load models, clusters and layouts from files or by built-in name.

Reading imports pydantic and PyYAML; they are imported when a file is first read, never by importing this module.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec
    from layoutopt.optimizer.specs.document import Document
    from layoutopt.optimizer.specs.workload import Workload

SUFFIXES = (".yaml", ".yml", ".json")


def model_names() -> tuple[str, ...]:
    """Return the names of the built-in models, sorted."""
    return _builtin_names("layoutopt.models")


def cluster_names() -> tuple[str, ...]:
    """Return the names of the built-in clusters, sorted."""
    return _builtin_names("layoutopt.topologies")


def gpu_names() -> tuple[str, ...]:
    """Return the names of the catalog's GPUs, without aliases."""
    from layoutopt.optimizer.specs.gpu_catalog import catalog

    return tuple(catalog())


def load_gpu(name: str) -> GpuSpec:
    """Return a GPU of the catalog by name or alias; raises ``InputError`` with the nearest name."""
    from layoutopt.optimizer.specs.gpu_catalog import find_gpu

    return find_gpu(name).gpu


def load_workload(source: str | Path) -> Workload:
    """Load a model file, or a built-in model by name (``llama3-405b``).

    Raises
    ------
    InputError
        With one line for each problem: file, line, key, what is wrong, what is allowed.
    """
    from layoutopt.optimizer.specs.file_model import validate
    from layoutopt.optimizer.specs.model_file import ModelFile

    document, name = _open(source, "layoutopt.models", "model")
    return validate(ModelFile, document).workload(name)


def load_cluster(source: str | Path) -> ClusterSpec:
    """Load a cluster file, a built-in cluster by name (``h100-16384``), or a reference fabric (``h100x16384``).

    Raises
    ------
    InputError
        With one line for each problem: file, line, key, what is wrong, what is allowed.
    """
    from layoutopt.optimizer.specs.gpu_catalog import split_reference

    reference = split_reference(str(source))
    if reference is not None and not Path(source).exists():
        return reference_cluster(*reference)
    from layoutopt.optimizer.specs.cluster_file import ClusterFile
    from layoutopt.optimizer.specs.file_model import validate

    document, name = _open(source, "layoutopt.topologies", "cluster")
    return validate(ClusterFile, document).cluster(name, document)


def reference_cluster(gpu: str, count: int) -> ClusterSpec:
    """Return ``count`` GPUs of a catalog entry on the reference fabric; the same family at every count."""
    from layoutopt.optimizer.specs.gpu_catalog import find_gpu
    from layoutopt.optimizer.specs.reference_fabric import build_reference

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

    Raises ``InputError`` for numbers that are not positive, an unknown precision, or a sequence that is longer
    than the model's learned positions.
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
    if precision is not None:
        changes["precision"] = _precision(str(precision))
        if changes["precision"] is not Precision.FP8:
            changes["fp8_recipe"] = None
    positions = workload.model.learned_positions
    if sequence_length is not None and positions and sequence_length > positions:
        raise input_error(
            f"{sequence_length} is more than the model's {positions} learned positions",
            f"at most {positions}",
            key="sequence_length",
        )
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
    from layoutopt.optimizer.specs.document import parse_document, read_text

    text = str(source)
    if isinstance(source, str) and text in _builtin_names(package):
        file = f"{text}.yaml"
        return parse_document(resources.files(package).joinpath(file).read_text("utf-8"), file), text
    path = Path(text)
    if not _is_path(text):
        raise InputError(_unknown_name(text, package, what))
    return parse_document(read_text(path), text), path.stem


def _is_path(text: str) -> bool:
    try:
        return text.endswith(SUFFIXES) or "/" in text or "\\" in text or Path(text).exists()
    except (OSError, ValueError):
        return True


def _unknown_name(text: str, package: str, what: str) -> Problem:
    from difflib import get_close_matches

    from layoutopt.optimizer.specs.units import shown

    names = _builtin_names(package)
    near = get_close_matches(text.lower()[:60], names, n=3, cutoff=0.5)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return Problem(
        what=f"no built-in {what} and no file is called {shown(text)}{hint}",
        allowed=f"a {what} file, or one of: {', '.join(names)}",
    )
