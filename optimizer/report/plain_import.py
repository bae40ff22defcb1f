"""What importers read, as plain data: this tool's own files where there is one, else the figures by name."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.files import job_training, layout_file, model_file, stated
from layoutopt.optimizer.interop.records import (
    GpuTopology,
    ImportedJob,
    ImportedModel,
    MeasuredRun,
    NodeSet,
    OutOfMemory,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.machines.nccl_calibration import NcclCalibration
    from layoutopt.optimizer.interop.machines.nccl_log import NcclTable
    from layoutopt.optimizer.interop.sources import Imported
    from layoutopt.optimizer.report.plain import Plain


def imported_to_plain(found: Imported) -> Plain:
    """Write what one file holds. Models and layouts are in the form that MODEL and ``--layout`` read."""
    value = found.value
    if isinstance(value, ImportedModel):
        training = {
            "sequence_length": value.sequence_length,
            "precision": value.precision.value if value.precision else None,
        }
        return model_file(value.model, training)
    if isinstance(value, ImportedJob):
        return job_to_plain(value)
    if isinstance(value, MeasuredRun):
        return dict(value.columns)
    if isinstance(value, NodeSet):
        return _nodes(value)
    if isinstance(value, GpuTopology):
        return _plain(value, without=("notes",))
    if isinstance(value, tuple) and value and isinstance(value[0], OutOfMemory):
        return {"messages": [_plain(message) for message in value]}
    if isinstance(value, tuple):
        return nccl_to_plain(value)
    return dict(value)


def notes_of(found: Imported) -> tuple[str, ...]:
    """Return what a reader should know beside the plain data."""
    value = found.value
    if isinstance(value, tuple):
        return tuple(note for part in value for note in getattr(part, "notes", ()))
    notes = tuple(getattr(value, "notes", ()))
    return (*notes, *(f"missing: {text}" for text in getattr(value, "missing", ())))


def job_to_plain(job: ImportedJob) -> Plain:
    """Write a launch file: its trainer, its model (or the name of it), its layout, its switches."""
    training = job_training(job.training)
    if job.model is not None:
        model: Plain = {"model": model_file(job.model, training)}
    else:
        model = stated({"model_name": job.model_name, "mtp_layers": job.mtp_layers}) | {"training": training}
    options = stated({field.name: _value(getattr(job.options, field.name)) for field in fields(job.options)})
    return (
        stated({"framework": job.framework.value, "version": job.version, "gpus": job.gpus})
        | model
        | {"layout": layout_file(job.layout), "options": options}
    )


def _nodes(found: NodeSet) -> Plain:
    plain = _plain(found, without=("notes", "nodes"))
    return {"nodes": len(found.nodes)} | plain | {"names": list(found.nodes)}


def nccl_to_plain(tables: Sequence[NcclTable]) -> Plain:
    """Write the fit and the anomalies of every test; a table that can't be fitted says why."""
    from layoutopt.optimizer.interop.machines.nccl_fit import find_anomalies, fit_collective
    from layoutopt.optimizer.specs.errors import InputError

    tests = []
    for table in tables:
        test: Plain = {
            "collective": table.collective,
            "ranks": table.ranks,
            "nodes": table.nodes,
            "gpu": table.gpu,
        }
        try:
            fit = fit_collective(table)
            names = ("latency_s", "bus_bytes_per_s", "best_bus_bytes_per_s", "error", "rows")
            test |= {name: getattr(fit, name) for name in names}
        except InputError as error:
            test["not_fitted"] = error.problems[0].what
        test["anomalies"] = [asdict(anomaly) for anomaly in find_anomalies(table)]
        tests.append(test)
    return {"tests": tests}


def calibration_to_plain(found: NcclCalibration) -> Plain:
    """Write the constants that measured collectives suggest, as a cluster file's ``calibration``."""
    return {
        "calibration": {
            name: {"value": entry.value, "source": entry.source} for name, entry in found.values.items()
        },
        "anomalies": [asdict(anomaly) for anomaly in found.anomalies],
        "skipped": list(found.skipped),
    }


def _plain(record: Any, without: tuple[str, ...] = ()) -> Plain:
    names = [field.name for field in fields(record) if field.name not in without]
    return {name: _value(getattr(record, name)) for name in names}


def _value(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [_value(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(value)
    return value
