"""The only place that reads files: which tool wrote this file, and what is in it.

``import_path`` and ``import_text`` recognise every format of this room; what they return depends on the
kind: ``ImportedModel``, ``ImportedJob``, ``MeasuredRun``, ``NodeSet``, ``GpuTopology``, tables of
collectives, out-of-memory messages, or a plain graph.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.specs.errors import InputError, input_error

LARGEST_FILE = 64 * 2**20


class Kind(StrEnum):
    """A file format that can be imported."""

    HF_CONFIG = "hf-config"
    MEGATRON_ARGS = "megatron-args"
    MEGATRON_DUMP = "megatron-dump"
    MEGATRON_LOG = "megatron-log"
    MEGATRON_DEEPSPEED = "megatron-deepspeed"
    BRIDGE_COMMAND = "bridge-command"
    BRIDGE_RUN_CONFIG = "bridge-run-config"
    TORCHTITAN_TOML = "torchtitan-toml"
    TORCHTITAN_PYTHON = "torchtitan-python"
    TORCHTITAN_LOG = "torchtitan-log"
    DEEPSPEED_JSON = "deepspeed-json"
    NANOTRON_YAML = "nanotron-yaml"
    NANOTRON_LOG = "nanotron-log"
    ACCELERATE_YAML = "accelerate-yaml"
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
    Kind.HF_CONFIG: ("huggingface.config", "import_config"),
    Kind.MEGATRON_ARGS: ("megatron.read", "import_arguments"),
    Kind.MEGATRON_DUMP: ("megatron.read", "import_dump"),
    Kind.MEGATRON_LOG: ("measured.logs", "import_megatron_log"),
    Kind.MEGATRON_DEEPSPEED: ("megatron_deepspeed.read", "import_megatron_deepspeed"),
    Kind.BRIDGE_COMMAND: ("megatron_bridge.read", "import_recipe_command"),
    Kind.BRIDGE_RUN_CONFIG: ("megatron_bridge.read", "import_run_config"),
    Kind.TORCHTITAN_TOML: ("torchtitan.read", "import_toml"),
    Kind.TORCHTITAN_PYTHON: ("torchtitan.read", "import_python"),
    Kind.TORCHTITAN_LOG: ("measured.logs", "import_torchtitan_log"),
    Kind.DEEPSPEED_JSON: ("deepspeed.read", "import_deepspeed"),
    Kind.NANOTRON_YAML: ("nanotron.read", "import_nanotron"),
    Kind.NANOTRON_LOG: ("measured.logs", "import_nanotron_log"),
    Kind.ACCELERATE_YAML: ("accelerate.read", "import_accelerate"),
    Kind.TORCH_OOM: ("measured.oom", "import_oom"),
    Kind.SLURM_ENV: ("machines.slurm", "import_slurm_environment"),
    Kind.SLURM_CONF: ("machines.slurm", "import_topology_conf"),
    Kind.SLURM_YAML: ("machines.slurm", "import_topology_yaml"),
    Kind.PBS_NODEFILE: ("machines.pbs", "import_pbs_nodefile"),
    Kind.NVIDIA_TOPO: ("machines.nvidia_topo", "import_topo"),
    Kind.NCCL_TESTS: ("machines.nccl_log", "import_nccl_tests"),
    Kind.GRAPHML: ("machines.graphs", "import_graphml"),
    Kind.NODE_LINK: ("machines.graphs", "import_node_link"),
}

_TEXT_SIGNS = (
    # first match wins: the lines by which a text gives itself away
    (Kind.GRAPHML, r"<graphml\b"),
    (Kind.NCCL_TESTS, r"#\s+size\s+count\s"),
    (Kind.MEGATRON_DUMP, r"^.*?\s*tensor_model_parallel_size \.{2,} "),
    (Kind.TORCH_OOM, r"out of memory\.\s+Tried to allocate"),
    (Kind.TORCHTITAN_LOG, r"step:\s*\d+.*memory:\s*[\d.]+GiB"),
    (Kind.NANOTRON_LOG, r"iteration: \d+ / \d+ \|"),
    (Kind.MEGATRON_LOG, r"elapsed time per iteration \(ms\)"),
    (Kind.NVIDIA_TOPO, r"^\s*GPU0\s.*\bX\b|^\s+GPU0\b.*(Affinity|NIC0|GPU1)"),
    (Kind.SLURM_ENV, r"^\s*(export\s+)?SLURM_(JOB_)?NODELIST="),
    (Kind.SLURM_CONF, r"^\s*(?i:SwitchName|BlockName|RingName)="),
    (Kind.BRIDGE_COMMAND, r"run_recipe\.py|(^|\s)--recipe[ =]"),
    (Kind.MEGATRON_DEEPSPEED, r"--deepspeed_config\b|--zero-stage\b|--ds-sequence-parallel-size\b"),
    (Kind.MEGATRON_ARGS, r"--(tensor|pipeline)-model-parallel-size\b|--num-layers\b|--micro-batch-size\b"),
    (Kind.TORCHTITAN_PYTHON, r"ParallelismConfig\(|\.parallelism\.|from torchtitan"),
    (Kind.TORCHTITAN_TOML, r"^\[parallelism\]|^\[training\]"),
    (Kind.SLURM_YAML, r"^\s*-\s+topology:"),
    (Kind.BRIDGE_RUN_CONFIG, r"megatron\.bridge|ConfigContainer"),
    (Kind.NANOTRON_YAML, r"^tokens:|batch_accumulation_per_replica"),
    (Kind.ACCELERATE_YAML, r"^distributed_type:|^fsdp_config:|^parallelism_config:"),
)
_HOST_LINE = re.compile(r"[A-Za-z][\w.\-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One file: its kind and what was in it."""

    kind: Kind
    value: Any


def read_text(path: str | Path) -> str:
    """Read a text file; in a folder, its ``config.json``. Problems are one-line errors."""
    place = Path(path)
    folder = place.is_dir()
    place = place / "config.json" if folder else place
    try:
        if place.stat().st_size > LARGEST_FILE:
            raise input_error("file is too large", f"at most {LARGEST_FILE >> 20} MiB", file=str(path))
        return place.read_text(encoding="utf-8")
    except FileNotFoundError:
        what = "a folder without config.json" if folder else "no such file"
        raise input_error(what, file=str(path)) from None
    except UnicodeDecodeError:
        raise input_error("not a text file", "UTF-8 text", file=str(path)) from None
    except (OSError, ValueError) as error:
        raise input_error(f"cannot be read: {shorten(error)}", file=str(path)) from None


def detect_kind(text: str, file: str = "") -> Kind:
    """Tell which tool wrote a text; refuse what no importer knows."""
    if text.lstrip()[:1] == "{":
        return _json_kind(text, file)
    for kind, sign in _TEXT_SIGNS:
        if re.search(sign, text, re.MULTILINE):
            return kind
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    named_json = file.lower().endswith(".json")
    if lines and not named_json and all(_HOST_LINE.fullmatch(line) for line in lines):
        return Kind.PBS_NODEFILE
    raise input_error("format is not recognised", "name it: " + ", ".join(Kind), key="kind", file=file)


def _json_kind(text: str, file: str) -> Kind:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = {}
    keys = set(data) if isinstance(data, dict) else set()
    if {"nodes"} <= keys and keys & {"links", "edges"}:
        return Kind.NODE_LINK
    if "results" in keys:
        return Kind.NCCL_TESTS
    if keys & {"model_type", "architectures", "text_config", "hidden_size", "n_embd"}:
        return Kind.HF_CONFIG
    if keys & {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16"}:
        return Kind.DEEPSPEED_JSON
    if keys:
        raise input_error("JSON of no known tool", "name it: " + ", ".join(Kind), key="kind", file=file)
    return Kind.HF_CONFIG  # its importer says what is wrong with the syntax


def import_text(text: str, file: str = "", kind: Kind | str | None = None, **options: Any) -> Imported:
    """Import a text of the given kind, or of the kind it gives itself away as.

    ``options`` are the importer's own: ``job`` for logs, ``collective`` for nccl-tests, ``gpus`` for
    DeepSpeed, ``function`` for torchtitan, ``name`` for models and Slurm topologies.
    """
    chosen = _named(kind) if kind is not None else detect_kind(text, file)
    module_name, function_name = _IMPORTERS[chosen]
    module = importlib.import_module(f"layoutopt.optimizer.interop.{module_name}")
    try:
        return Imported(kind=chosen, value=getattr(module, function_name)(text, file, **options))
    except InputError as error:
        # helpers deep in an importer do not know the file's name
        raise InputError(
            *(replace(problem, file=problem.file or file) for problem in error.problems)
        ) from None


def _named(kind: Kind | str) -> Kind:
    if kind in Kind.__members__.values():
        return Kind(kind)
    raise input_error(f"import kind {shorten(kind)!r} is not known", "one of " + ", ".join(Kind), key="kind")


def import_path(path: str | Path, kind: Kind | str | None = None, **options: Any) -> Imported:
    """Read and import one file, or the ``config.json`` of a model folder, which names the model."""
    if Path(path).is_dir():
        options.setdefault("name", Path(path).resolve().name)
        kind = kind or Kind.HF_CONFIG
    return import_text(read_text(path), Path(path).name, kind, **options)
