"""The only place that reads files: which tool wrote this file, and what is in it.

``import_path`` and ``import_text`` recognise every format of this room; what they return depends on the
kind: ``ImportedModel``, ``ImportedJob``, ``MeasuredRun``, ``NodeSet``, ``GpuTopology``, tables of
collectives, out-of-memory messages, or a plain graph.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.launchers import LAUNCHERS, SCRIPT
from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.specs import document
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

LARGEST_FILE = 64 * 2**20
LEVELS_UP = 3
"""How far above its folder a script's own files may lie: ``../../models/8B.sh``."""

NAMED_BY_SCRIPTS = (".sh", ".bash", ".env", ".conf", ".cfg", ".json", ".yaml", ".yml", ".toml", ".txt", "")
"""Endings of files that scripts source, start or fill in."""


RELEASED = {"dim", "n_layers", "n_heads"}
"""Keys of the ``params.json`` that lies beside the weights of Llama and Mistral as they were first released."""


class FileKind(StrEnum):
    """A file format that can be imported, beside the launch files of the frameworks' records."""

    HF_CONFIG = "hf-config"
    MEGATRON_DUMP = "megatron-dump"
    MEGATRON_LOG = "megatron-log"
    TORCHTITAN_LOG = "torchtitan-log"
    NANOTRON_LOG = "nanotron-log"
    DEEPSPEED_LOG = "deepspeed-log"
    NEMO_LOG = "nemo-log"
    TRAINER_LOG = "trainer-log"
    TORCH_OOM = "torch-oom"
    SLURM_ENV = "slurm-env"
    SLURM_CONF = "slurm-conf"
    SLURM_YAML = "slurm-yaml"
    PBS_NODEFILE = "pbs-nodefile"
    NVIDIA_TOPO = "nvidia-topo"
    NCCL_TESTS = "nccl-tests"
    GRAPHML = "graphml"
    NODE_LINK = "node-link"


_IMPORTERS = {
    FileKind.HF_CONFIG: ("huggingface.config", "import_config"),
    FileKind.MEGATRON_DUMP: ("megatron.read", "import_dump"),
    FileKind.MEGATRON_LOG: ("measured.megatron_log", "import_megatron_log"),
    FileKind.TORCHTITAN_LOG: ("measured.logs", "import_torchtitan_log"),
    FileKind.NANOTRON_LOG: ("measured.logs", "import_nanotron_log"),
    FileKind.DEEPSPEED_LOG: ("measured.other_logs", "import_deepspeed_log"),
    FileKind.NEMO_LOG: ("measured.other_logs", "import_nemo_log"),
    FileKind.TRAINER_LOG: ("measured.other_logs", "import_trainer_log"),
    FileKind.TORCH_OOM: ("measured.oom", "import_oom"),
    FileKind.SLURM_ENV: ("machines.slurm", "import_slurm_environment"),
    FileKind.SLURM_CONF: ("machines.slurm", "import_topology_conf"),
    FileKind.SLURM_YAML: ("machines.slurm", "import_topology_yaml"),
    FileKind.PBS_NODEFILE: ("machines.pbs", "import_pbs_nodefile"),
    FileKind.NVIDIA_TOPO: ("machines.nvidia_topo", "import_topo"),
    FileKind.NCCL_TESTS: ("machines.nccl_log", "import_nccl_tests"),
    FileKind.GRAPHML: ("machines.graphs", "import_graphml"),
    FileKind.NODE_LINK: ("machines.graphs", "import_node_link"),
}

_WITH_MODEL = (
    FileKind.HF_CONFIG,
    FileKind.MEGATRON_DUMP,
    FileKind.MEGATRON_LOG,
    FileKind.TORCHTITAN_LOG,
    FileKind.NANOTRON_LOG,
)
LAUNCH_FORMATS = {one.kind: (framework, one) for framework in Framework for one in framework.record.imports}
KINDS = (*FileKind, *LAUNCH_FORMATS, *LAUNCHERS)
"""Names of all file formats."""

_TEXT_SIGNS = (
    # first match wins: the lines by which a text gives itself away
    (FileKind.GRAPHML, r"<graphml\b"),
    (FileKind.NCCL_TESTS, r"#[ \t]+size[ \t]+count\s"),
    (FileKind.MEGATRON_DUMP, r"\btensor_model_parallel_size \.{2,} "),
    (FileKind.TORCH_OOM, r"out of memory\.\s+Tried to allocate"),
    (FileKind.TORCHTITAN_LOG, r"step:\s*\d+.*memory:\s*[\d.]+GiB"),
    (FileKind.NANOTRON_LOG, r"iteration: \d+ / \d+ \|"),
    (FileKind.MEGATRON_LOG, r"elapsed time per iteration \(m?s\)"),
    (FileKind.DEEPSPEED_LOG, r"SamplesPerSec=|time \(ms\) \| fwd|iter time \(s\): [\d.]+ samples/sec:"),
    (FileKind.NEMO_LOG, r"train_step_timing in s[:=]"),
    (
        FileKind.TRAINER_LOG,
        r"'train_steps_per_second'|train_steps_per_second +=|\d/\d+ \[[\d:]+<[\d:?]+, +[\d.]+ ?(s/it|it/s)",
    ),
    (
        FileKind.NVIDIA_TOPO,
        r"^[ \t]*GPU0\s.*\bX\b|^[ \t]+GPU0\b.*(Affinity|NIC0|GPU1)|^LINK TYPE TABLE:|^=+NVSMI LOG=+|^\| NVIDIA-SMI \d",
    ),
    (FileKind.SLURM_ENV, r"^[ \t]*(export[ \t]+)?SLURM_(JOB_)?NODELIST="),
    (FileKind.SLURM_CONF, r"^[ \t]*(?i:SwitchName|BlockName|RingName)="),
    (FileKind.SLURM_YAML, r"^[ \t]*-\s+topology:"),
)
_HOST_LINE = re.compile(r"[A-Za-z][\w.\-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One file: its kind and what was in it."""

    kind: str
    value: Any


def read_text(path: str | Path) -> str:
    """Read a text file; in a folder, its ``config.json``. Raises ``InputError`` where that can't be done."""
    place = Path(path)
    if place.is_dir():
        place = place / "config.json"
        if not place.is_file():
            raise input_error("a folder without config.json", file=str(path))
    if not document.exists(place):
        raise input_error("no such file", file=str(path))
    try:
        return document.read_text(place, max_bytes=LARGEST_FILE)
    except InputError as error:
        raise InputError(*(replace(problem, file=str(path)) for problem in error.problems)) from None


def _signs() -> Iterator[tuple[str, str]]:
    """Yield kinds and the signs of their texts, in the order in which they are tried."""
    yield from _TEXT_SIGNS
    yield from ((launch.kind, launch.sign) for launch in LAUNCHERS.values())
    for _, launch in sorted(LAUNCH_FORMATS.values(), key=lambda entry: entry[1].shared):
        if launch.sign:
            yield launch.kind, launch.sign


def signs_in(text: str, kinds: Sequence[FileKind]) -> list[FileKind]:
    """Return which of some kinds of text a text has the signs of."""
    return [kind for kind, sign in _TEXT_SIGNS if kind in kinds and re.search(sign, text, re.MULTILINE)]


def holds_model(kind: str) -> bool:
    """Tell whether files of a kind describe a model."""
    return kind in _WITH_MODEL or kind in LAUNCH_FORMATS or kind in LAUNCHERS


def detect_kind(text: str, file: str = "") -> str:
    """Tell which tool wrote a text. Raises ``InputError`` for what no importer knows."""
    start = text.lstrip()[:2]
    if start[:1] == "{" and start != "{'":  # a log of the Hugging Face trainer prints Python's dictionaries
        return _json_kind(text, file)
    script = SCRIPT.search(file) is not None or text.startswith("#!")
    for kind, sign in _signs():
        # a script may quote a log, and asks Slurm for its nodes
        if not (script and kind in FileKind.__members__.values()) and re.search(sign, text, re.MULTILINE):
            return kind
    if script:
        allowed = "name its kind: " + ", ".join(KINDS)
        raise input_error("starts no trainer that is known", allowed, key="kind", file=file)
    # A PBS node file has no sign but that it holds nothing else than names, so it is looked for last.
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    named_json = file.lower().endswith(".json")
    if lines and not named_json and all(_HOST_LINE.fullmatch(line) for line in lines):
        return FileKind.PBS_NODEFILE
    raise input_error("format is not recognised", "name it: " + ", ".join(KINDS), key="kind", file=file)


def _json_kind(text: str, file: str) -> str:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = {}
    keys = set(data) if isinstance(data, dict) else set()
    if {"nodes"} <= keys and keys & {"links", "edges"}:
        return FileKind.NODE_LINK
    if "traceEvents" in keys:
        raise _profile_error("FILE", file)
    if "results" in keys:
        return FileKind.NCCL_TESTS
    if keys >= RELEASED:
        what = "is the params.json of an original release, which states neither the model's class nor all of its sizes"
        how = "the config.json of the same model in Hugging Face's format, or a model file with its architecture"
        raise input_error(what, how, file=file)
    if keys & {"model_type", "architectures", "text_config", "hidden_size", "n_embd"}:
        return FileKind.HF_CONFIG
    for kind, (_, launch) in LAUNCH_FORMATS.items():
        if keys & launch.json_keys:
            return kind
    if keys:
        raise input_error("JSON of no known tool", "name it: " + ", ".join(KINDS), key="kind", file=file)
    return FileKind.HF_CONFIG  # its importer says what is wrong with the syntax


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is known of the world around a file: importers take what concerns their kind.

    ``variables`` and ``arguments`` (by position from 1) of a script, the ``function`` of a Python configuration, the
    ``recipe_file`` of a Megatron-Bridge or NeMo 2 checkout, and the ``folder`` whose files a script may name.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[int, str] = field(default_factory=dict)
    function: str | None = None
    recipe_file: Path | None = None
    folder: Path | None = None

    def options(self) -> dict[str, Any]:
        """Return what is known as importers' options."""
        from layoutopt.optimizer.interop.shell.record import Outside

        outside = Outside(variables=self.variables, arguments=self.arguments, beside=self._beside)
        named = {"function": self.function, "recipe_file": self.recipe_file}
        return {"outside": outside} | {name: value for name, value in named.items() if value is not None}

    def _beside(self, name: str) -> str | None:
        """Return a text file near the folder, None where there is none or a script has no reason to name it."""
        if self.folder is None:
            return None
        try:
            place, root = (self.folder / name).resolve(), self.folder.resolve()
        except (OSError, RuntimeError, ValueError):  # links in a circle, and names that no file can have
            return None
        root = (root, *root.parents)[min(LEVELS_UP, len(root.parents))]
        # A script of a stranger must not bring in what lies elsewhere on this machine, nor files that no script names.
        if not place.is_relative_to(root) or place.suffix not in NAMED_BY_SCRIPTS or not place.is_file():
            return None
        return read_text(place)


def import_text(
    text: str, file: str = "", kind: str | None = None, *, around: Around | None = None, **options: Any
) -> Imported:
    """Import a text of the given kind, or of the kind it gives itself away as.

    ``options`` are the importer's own: ``job`` for logs, ``collective`` for nccl-tests, ``gpus`` for
    DeepSpeed, ``function`` for torchtitan, ``name`` for models and Slurm topologies; one that the kind does not have is an
    ``InputError``. Of ``around`` it takes what it knows. Raises ``InputError`` too for what is no UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise input_error("is not UTF-8 text", file=file) from None
    chosen = _named(kind) if kind is not None else detect_kind(text, file)
    read, known = _reader(chosen), options_of(chosen)
    for name in options.keys() - known:
        own = sorted(known - {"outside"})
        allowed = f"only {', '.join(own)}" if own else "nothing beside the file"
        raise input_error(f"does not apply to {chosen}", allowed, key=name, file=file)
    offered = {name: value for name, value in (around or Around()).options().items() if name in known}
    try:
        return Imported(kind=chosen, value=_checked(read(text, file, **{**offered, **options})))
    except InputError as error:
        # helpers deep in an importer do not know the file's name
        named = (replace(problem, file=problem.file or file) for problem in error.problems)
        raise InputError(*named) from None


def _reader(kind: str) -> Callable[..., Any]:
    module_name, function_name = _importer(kind)
    module = importlib.import_module(f"layoutopt.optimizer.interop.{module_name}")
    read: Callable[..., Any] = getattr(module, function_name)
    return read


def options_of(kind: str) -> set[str]:
    """Return what the importer of a kind takes beside the file; ``outside`` are the variables and arguments of scripts."""
    return set(signature(_reader(kind)).parameters) - {"text", "file"}


def _checked(value: Any) -> Any:
    """Say of a launch whose degrees its GPUs cannot hold that it contradicts itself."""
    from layoutopt.optimizer.interop.records import ImportedJob

    if not isinstance(value, ImportedJob):
        return value
    from layoutopt.optimizer.interop.launch.complete import contradiction

    wrong = contradiction(value.layout, value.gpus)
    return replace(value, notes=(*value.notes, f"contradictory: {wrong}")) if wrong else value


def _refuse_profile(place: Path) -> None:
    """Say what profiles are for: they tell of a run's time, not of a model, a launch or a machine."""
    from layoutopt.optimizer.interop.profiles.trace_file import beginning, is_profile

    if is_profile(beginning(place)):
        raise _profile_error(shorten(place.name), str(place))


def _profile_error(name: str, file: str) -> InputError:
    return input_error(
        "is a profile of a run", f"layoutopt diagnose PLAN {name} holds it against its plan", file=file
    )


def _named(kind: str) -> str:
    if kind in KINDS:
        return kind
    raise input_error(f"import kind {shorten(kind)!r} is not known", "one of " + ", ".join(KINDS), key="kind")


def _importer(kind: str) -> tuple[str, str]:
    """Return the module and the function that read a kind."""
    if kind in LAUNCHERS:
        return f"{kind.replace('-', '_')}.read", LAUNCHERS[kind].reader
    if kind not in LAUNCH_FORMATS:
        return _IMPORTERS[FileKind(kind)]
    framework, launch = LAUNCH_FORMATS[kind]
    return f"{framework.record.folder}.read", launch.reader


def import_path(
    path: str | Path, kind: str | None = None, *, around: Around | None = None, **options: Any
) -> Imported:
    """Read and import one file, or the ``config.json`` of a model folder, which names the model."""
    place = Path(path)
    if place.is_dir():
        options.setdefault("name", place.resolve().name)
        kind = kind or FileKind.HF_CONFIG
    near = replace(around or Around(), folder=place.parent)
    if kind is None and place.is_file():
        _refuse_profile(place)
    return import_text(read_text(path), place.name, kind, around=near, **options)
