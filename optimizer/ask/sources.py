"""Models and clusters named in one list, as a sweep takes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.ask.load import foreign_cluster, is_foreign_model, load_model
from layoutopt.optimizer.ask.records import AS_STATED, PYTHON, Names, RunChoices
from layoutopt.optimizer.specs.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.families import ClusterFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The models and cluster families of a list, and notes on what was read."""

    models: tuple[Workload, ...]
    families: tuple[ClusterFamily, ...]
    notes: tuple[str, ...]


def load_sources(sources: Sequence[str], run: RunChoices = AS_STATED, *, names: Names = PYTHON) -> Sources:
    """Tell models from clusters and load both; raises ``InputError`` with the problems of all.

    ``run`` completes models of other tools' files, which don't describe a run.
    """
    from layoutopt.optimizer.sweep.families import ClusterFamily, load_family

    problems: list[Problem] = []
    models, families = [], []
    for source in sources:
        try:
            if _is_model(source):
                models.append(load_model(source, run, names=names))
            elif (machine := foreign_cluster(source)) is not None:
                families.append(ClusterFamily(name=machine.name, base=machine))
            else:
                families.append(load_family(source))
        except InputError as error:
            problems.extend(error.problems)
    missing = "a MODEL" if not models else "a CLUSTER" if not families else ""
    if not problems and missing:
        what = f"{' '.join(sources)[:60]}: {missing} is missing"
        problems.append(
            Problem(key="sweep", what=what, allowed="MODEL... CLUSTER..., e.g. llama3-70b h100x1024")
        )
    if problems:
        raise InputError(*problems)
    return Sources(
        models=tuple(model.value for model in models),
        families=tuple(families),
        notes=tuple(note for model in models for note in model.notes),
    )


def _is_model(source: str) -> bool:
    """Tell whether a source is a built-in model, or a file that describes an architecture."""
    from layoutopt.optimizer.specs.document import exists, parse_document, read_text
    from layoutopt.optimizer.specs.loading import model_names

    if source in model_names():
        return True
    if not exists(Path(source)):
        return False
    if is_foreign_model(source):
        return True
    data = parse_document(read_text(Path(source)), source).data
    return isinstance(data, dict) and "architecture" in data
