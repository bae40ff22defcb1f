"""Load a model, a cluster or a layout from whatever a user names it by."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.ask.records import AS_STATED, PYTHON, Loaded, Names, RunChoices
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.units import TOKENS, whole_number
from layoutopt.optimizer.specs.workload import outside_batch, rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import BinaryIO

    from layoutopt.optimizer.interop.records import ImportedJob, ImportedModel
    from layoutopt.optimizer.interop.sources import Imported
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.families import ClusterFamily


STDIN = "-"

OWN_MODEL = re.compile(r'^[ \t{]*"?architecture"?\s*:', re.MULTILINE)
"""The key by which this tool's model files are told from those of other tools."""


FROM_CLUSTER = re.compile(r"([\w.\-]{1,60})@(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Text that can be read only once: standard input or a pipe, and what messages call it."""

    text: str
    name: str


def load_model(
    source: str | Path,
    run: RunChoices = AS_STATED,
    *,
    names: Names = PYTHON,
    beside: tuple[str, ...] | None = (),
) -> Loaded[Workload]:
    """Load a model with its training run: a built-in name, a model file, another tool's file, ``-`` for standard input.

    ``beside`` are the kinds of other files that are read with the same ``run``, None where the caller knows more of them.
    Raises ``InputError`` with one line for each problem, also for a run that neither the file nor ``run`` describes, and for
    what only other kinds of files take.
    """
    from layoutopt.optimizer.specs.loading import load_workload, override_training, parse_workload

    stream = _stream(source)
    notes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    if is_foreign_model(stream or source):
        found = _foreign_workload(stream or source, run, names)
        workload, notes, kinds = found.value, found.notes, found.kinds
    else:
        fill = _stated_run(run, names)
        said: dict[str, str] = {}
        workload = (
            parse_workload(stream.text, stream.name, fill, said)
            if stream
            else load_workload(source, fill, said)
        )
        if run.global_batch is not None or run.batch_tokens is not None:
            said.pop("training", None)  # another batch replaces the one that was rounded
        notes = notes_on(stream.name if stream else source, (*said.values(), *workload.model.remarks))
    length = run.sequence_length or workload.training.sequence_length
    with names.used():
        changed = override_training(
            workload,
            sequence_length=run.sequence_length,
            global_batch=batch_sequences(run, length, names),
            precision=run.precision[0] if run.precision else None,
            total_tokens=run_tokens(run, length, names),
        )
    if beside is not None:
        require_used(run, (*beside, *kinds), stream.name if stream else str(source), names)
    return Loaded(value=changed, notes=(*notes, *rounded(run, length, names)), kinds=kinds)


def load_cluster(source: str | Path, *, gpus: int | None = None, names: Names = PYTHON) -> ClusterSpec:
    """Load a built-in cluster, ``h100x4096``, a file, ``-`` or ``h100@FILE``; only its first ``gpus`` where given."""
    from layoutopt.optimizer.specs import loading
    from layoutopt.optimizer.specs.reference_fabric import first_gpus

    text = str(source)
    stream = _stream(source)
    if stream is not None:
        cluster = loading.parse_cluster(stream.text, stream.name)
    else:
        cluster = foreign_cluster(text) or loading.load_cluster(source)
    if cluster.calibration:
        from layoutopt.optimizer.evidence.parameters import check_calibration

        check_calibration(cluster.calibration, file=text)
    if cluster.observations:
        from layoutopt.optimizer.evidence.observed import check_observations

        check_observations(cluster, file=text)
    return cluster if gpus is None else first_gpus(cluster, gpus, key=names.gpus)


def load_question(
    model: str | Path, cluster: str | Path, run: RunChoices = AS_STATED, *, names: Names = PYTHON
) -> tuple[Loaded[Workload], ClusterSpec]:
    """Load a model and a cluster; raises ``InputError`` with the problems of both."""
    # Both are read before anything is refused: whoever mends one would else find the other's fault next.
    problems: list[Problem] = []
    workload, machine = None, None
    try:
        workload = load_model(model, run, names=names)
    except InputError as error:
        problems.extend(error.problems)
    try:
        machine = load_cluster(cluster, gpus=run.gpus, names=names)
    except InputError as error:
        problems.extend(error.problems)
    if workload is None or machine is None:
        raise InputError(*problems)
    return workload, machine


def load_layout(text: str, *, names: Names = PYTHON) -> PartialLayout:
    """Read a layout given as text (``tp=8,pp=16``), as a layout file or plan, or ``-`` for standard input.

    Raises ``InputError`` for an empty text and for what a layout can't say.
    """
    from layoutopt.optimizer.specs import loading
    from layoutopt.optimizer.specs.document import exists, parse_document
    from layoutopt.optimizer.specs.layout_file import read_layout

    if not text.strip():
        raise input_error("is empty", "tp=8,pp=16,..., a layout file or a plan", key=names.layout)
    stream = _stream(text)
    if stream is not None:
        return read_layout(parse_document(stream.text, stream.name))
    # A missing file should be called missing, and not a layout that can't be read.
    is_file = exists(Path(text)) or text.endswith(loading.SUFFIXES)
    return loading.load_layout(text) if is_file else loading.parse_layout(text)


def batch_sequences(run: RunChoices, length: int, names: Names = PYTHON) -> int | None:
    """Return the global batch in sequences, None where none is given; tokens are rounded to whole ones.

    Raises ``InputError`` where both are given or the tokens are no number of sequences in range.
    """
    if run.batch_tokens is None:
        return run.global_batch
    if run.global_batch is not None:
        what = f"is given together with {names.global_batch}"
        raise input_error(what, "one of the two", key=names.batch_tokens)
    problem = outside_batch(run.batch_tokens, length)
    if problem is not None:
        raise input_error(*problem, key=names.batch_tokens)
    return round(run.batch_tokens / length)


def run_tokens(run: RunChoices, length: int, names: Names = PYTHON) -> float | None:
    """Return the tokens of the whole run as stated, or as epochs over samples of a sequence each; None: as the file says.

    Raises ``InputError`` where tokens and samples are both given, or epochs without samples.
    """
    if run.total_tokens is not None and (run.epochs or run.samples):
        what = f"is given together with {names.epochs if run.epochs else names.samples}"
        raise input_error(
            what, f"{names.total_tokens}, or {names.epochs} and {names.samples}", key=names.total_tokens
        )
    if run.epochs is not None and run.samples is None:
        raise input_error(f"is given without {names.samples}", "sequences of the data set", key=names.epochs)
    # One epoch where none is stated: samples alone say the run's length.
    if run.samples is not None:
        return (run.epochs or 1.0) * run.samples * length
    return run.total_tokens


def rounded(run: RunChoices, length: int, names: Names = PYTHON) -> tuple[str, ...]:
    """Say that the batch in tokens that is asked for was rounded, where it was."""
    tokens = run.batch_tokens
    return () if tokens is None else tuple(rounding(names.batch_tokens, tokens, length))


def is_foreign_model(source: str | Path | Stream) -> bool:
    """Tell whether a model is named by a file or folder of another tool."""
    from layoutopt.optimizer.interop.sources import detect_kind, holds_model, read_text
    from layoutopt.optimizer.specs.document import exists
    from layoutopt.optimizer.specs.loading import model_names

    if isinstance(source, Stream):
        text, name = source.text, ""
    else:
        if isinstance(source, str) and source in model_names():
            return False  # a folder of that name is asked for by a path: ./llama3-8b
        place = Path(source)
        if not str(source).strip() or not exists(place):
            return False
        if place.is_dir():
            return exists(place / "config.json")
        text, name = read_text(place), place.name
    # This product's own files first: they may look like another tool's YAML.
    if OWN_MODEL.search(text):
        return False
    try:
        return holds_model(detect_kind(text, name))
    except InputError:
        # What nobody knows is read as this product's own where it looks like it, so that its errors name
        # keys.
        return bool(name) and Path(name).suffix not in (".yaml", ".yml", ".json")


def foreign_cluster(source: str) -> ClusterSpec | None:
    """Read ``GPU@FILE``: a node list, topology or graph of GPUs of the catalog; None where it is something else."""
    match = FROM_CLUSTER.fullmatch(source)
    if match is None:
        return None
    from layoutopt.optimizer.interop.machines.fabric import cluster_from
    from layoutopt.optimizer.specs.loading import load_gpu

    load_gpu(match[1])  # an unknown GPU is named before the file is read
    return cluster_from(match[1], import_given(match[2]).value, source)


def import_given(source: str | Path | Stream, run: RunChoices = AS_STATED, **options: Any) -> Imported:
    """Import a file of another tool, or what standard input or a pipe holds.

    ``options`` are the importer's own. Raises ``InputError`` where ``run.strict`` and something has to be assumed.
    """
    from layoutopt.optimizer.interop.files import assumed_of
    from layoutopt.optimizer.interop.sources import Around, import_path, import_text

    around = Around(
        variables=dict(run.settings),
        arguments=dict(run.arguments),
        function=run.function,
        recipe_file=None if run.recipe_file is None else Path(run.recipe_file),
    )
    stream = source if isinstance(source, Stream) else _stream(source)
    found = (
        import_text(stream.text, stream.name, around=around, **options)
        if stream
        else import_path(str(source), around=around, **options)
    )
    assumed = assumed_of(found) if run.strict else ()
    if assumed:
        name = stream.name if stream else str(source)
        raise InputError(
            *(Problem(what=note, allowed="state it, or leave strict out", file=name) for note in assumed)
        )
    return found


def require_used(run: RunChoices, kinds: tuple[str, ...], file: str, names: Names = PYTHON) -> None:
    """Refuse what ``run`` says for reading and no file of these kinds takes: it would not be in the answer.

    Raises ``InputError`` with the option's name.
    """
    given = (
        ("settings", "outside", "launch scripts"),
        ("arguments", "outside", "launch scripts"),
        ("function", "function", "Python configurations"),
        ("recipe_file", "recipe_file", "commands of Megatron-Bridge and NeMo"),
    )
    if not any(getattr(run, field) for field, _, _ in given):
        return
    from layoutopt.optimizer.interop.sources import options_of

    taken = {name for kind in kinds for name in options_of(kind)}
    for field, name, takers in given:
        if getattr(run, field) and name not in taken:
            what = f"does not apply to {' and '.join(kinds) or file}"
            raise input_error(
                what, f"only {takers} take it", key=getattr(names, field), file=file if kinds else ""
            )


def notes_on(source: str | Path, notes: tuple[str, ...]) -> tuple[str, ...]:
    """Put the name of a file in front of what is to be said of it."""
    return tuple(f"{Path(source).name}: {text}" for text in notes)


def _foreign_workload(source: str | Path | Stream, run: RunChoices, names: Names) -> Loaded[Workload]:
    """Read the model of a Hugging Face configuration or a launch file; the run's numbers come from ``run``."""
    from layoutopt.optimizer.interop.records import ImportedJob, ImportedModel

    found = import_given(source, run)
    name = source.name if isinstance(source, Stream) else str(source)
    if isinstance(found.value, ImportedModel):
        return replace(_with_training(found.value, name, run, names), kinds=(found.kind,))
    if isinstance(found.value, ImportedJob):
        workload = job_workload(found.value, run, None, names)
        return Loaded(value=workload, notes=notes_on(name, found.value.notes), kinds=(found.kind,))
    raise input_error(f"is {found.kind}, no model", "a model file, config.json or a launch file", file=name)


def job_workload(
    job: ImportedJob, run: RunChoices, model: ModelSpec | None, names: Names = PYTHON
) -> Workload:
    """Return what a launch file trains, with what is asked for in place of its own numbers."""
    from layoutopt.optimizer.interop.launch.complete import complete_workload, named_model
    from layoutopt.optimizer.specs.loading import override_training

    # A batch in tokens needs a length before the rest of the job is completed.
    length = run.sequence_length or job.training.sequence_length
    batch = batch_sequences(run, length, names) if length else run.global_batch
    training = replace(job.training, sequence_length=length, global_batch=batch or job.training.global_batch)
    workload = complete_workload(replace(job, training=training, model=model or named_model(job)))
    with names.used():
        return override_training(
            workload,
            precision=run.precision[0] if run.precision else None,
            total_tokens=run_tokens(run, workload.training.sequence_length, names),
        )


def _with_training(found: ImportedModel, source: str, run: RunChoices, names: Names) -> Loaded[Workload]:
    """Give a model that describes no run the run that is asked for."""
    from layoutopt.optimizer.specs.model import TrainingSpec
    from layoutopt.optimizer.specs.vocabulary import Precision
    from layoutopt.optimizer.specs.workload import Workload

    length = run.sequence_length or found.sequence_length
    batch = batch_sequences(run, length, names) if length else run.global_batch
    if length is None or batch is None:
        needed = (
            (f"a sequence length ({names.sequence_length})", length),
            (f"a global batch ({names.global_batch})", batch),
        )
        lacking = [words for words, value in needed if value is None]
        raise input_error("describes no training run", f"give {' and '.join(lacking)}", file=source)
    notes = notes_on(source, found.notes)
    if run.sequence_length is None:
        own = f"sequences of {length:,} tokens, the model's own length; {names.sequence_length} sets another"
        notes = (*notes, f"{source}: {own}")
    precision = found.precision or Precision.BF16
    training = TrainingSpec(sequence_length=length, global_batch=batch, precision=precision)
    return Loaded(value=Workload(model=found.model, training=training), notes=notes)


def _stream(source: str | Path) -> Stream | None:
    """Read what can be read only once: standard input (``-``) or a pipe; None for names and files."""
    from layoutopt.optimizer.specs.document import decode, exists, read_text

    # Whoever asks next would find the stream empty: it is read once and passed on as text.
    if str(source) == STDIN:
        return Stream(text=decode(_bounded(sys.stdin.buffer), STDIN), name=STDIN)
    place = Path(source)
    if not str(source).strip() or not exists(place) or place.is_file() or place.is_dir():
        return None
    return Stream(text=read_text(place), name=str(source))


def _bounded(stream: BinaryIO) -> bytes:
    """Read standard input as far as a file may go."""
    from layoutopt.optimizer.specs.document import MAX_BYTES

    # One byte more tells a file of the limit from a longer one, and a stream without end is not waited for.
    raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise input_error(f"is larger than {MAX_BYTES // 1_000_000} MB", file=STDIN)
    return raw


def _stated_run(run: RunChoices, names: Names) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return what of a run fills a model file that states less: its sequence length, batch, precision."""

    def fill(stated: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the run says of keys that the file leaves open."""
        length = run.sequence_length or whole_number(stated.get("sequence_length"), TOKENS) or 0
        filled: dict[str, Any] = {}
        filled |= {} if run.sequence_length is None else {"sequence_length": run.sequence_length}
        filled |= {"precision": run.precision[0].lower()} if run.precision else {}
        if not {"global_batch", "global_batch_tokens"} & stated.keys():
            batch = batch_sequences(run, length, names) if length > 0 else run.global_batch
            filled |= {} if batch is None else {"global_batch": batch}
        return {key: value for key, value in filled.items() if stated.get(key) is None}

    return fill


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
                models.append(load_model(source, run, names=names, beside=None))
            elif (machine := foreign_cluster(source)) is not None:
                families.append(ClusterFamily(name=machine.name, base=machine))
            else:
                families.append(load_family(source))
        except InputError as error:
            problems.extend(error.problems)
    missing = "a MODEL" if not models else "a CLUSTER" if not families else ""
    # A source that could not be read may be the one that is missing.
    if not problems and missing:
        what = f"{' '.join(sources)[:60]}: {missing} is missing"
        problems.append(
            Problem(key="sweep", what=what, allowed="MODEL... CLUSTER..., e.g. llama3-70b h100x1024")
        )
    if problems:
        raise InputError(*problems)
    require_used(run, tuple(kind for model in models for kind in model.kinds), " ".join(sources)[:60], names)
    return Sources(
        models=tuple(model.value for model in models),
        families=tuple(families),
        notes=tuple(note for model in models for note in model.notes),
    )


def _is_model(source: str) -> bool:
    """Tell whether a source is a built-in model, or a file that describes an architecture; built-in names win."""
    from layoutopt.optimizer.specs.document import exists, parse_document, read_text
    from layoutopt.optimizer.specs.gpu_catalog import is_gpu, split_reference
    from layoutopt.optimizer.specs.loading import cluster_names, model_names

    if source in model_names():
        return True
    if source in cluster_names() or is_gpu(source) or split_reference(source) is not None:
        return False
    if not exists(Path(source)):
        return False
    if is_foreign_model(source):
        return True
    data = parse_document(read_text(Path(source)), source).data
    return isinstance(data, dict) and "architecture" in data
