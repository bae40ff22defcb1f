"""What was imported, written as this tool's own files where there is one (it loads again), else as figures by name."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.records import (
    GpuTopology,
    ImportedJob,
    ImportedModel,
    LoggedRun,
    NodeSet,
    OutOfMemory,
)
from layoutopt.optimizer.specs.canonical import encode
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.layer_runs import LAYER_KINDS, indexer_pattern
from layoutopt.optimizer.specs.model import ADAMW, LayerShape, Mixer, Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import Granularity, Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.interop.machines.nccl_calibration import NcclCalibration
    from layoutopt.optimizer.interop.machines.nccl_log import NcclTable
    from layoutopt.optimizer.interop.records import JobTraining
    from layoutopt.optimizer.interop.sources import Imported
    from layoutopt.optimizer.specs.layout import Recompute
    from layoutopt.optimizer.specs.model import AdapterSpec, ModelSpec, MoeSpec, OptimizerSpec
    from layoutopt.optimizer.specs.partial_layout import PartialLayout

Plain = dict[str, Any]

SWITCHES = (
    "v_head_dim", "window_kv_heads", "tied_embeddings", "attention_bias", "qkv_bias", "mlp_bias", "qk_norm", "qk_norm_all",
    "layer_norms", "attention_sinks", "window_sinks", "attention_gate", "activation_scalars", "head_bias",
    "learned_positions", "embedding_norm",
    "mtp_layers", "rope_base", "norm_epsilon",
)  # fmt: skip
"""Keys of an architecture that are left out where they are off, 0 or not stated."""

DTYPES = {4: "fp32", 2: "bf16", 1: "fp8"}


def model_file(model: ModelSpec, training: Mapping[str, Any]) -> Plain:
    """Write a model file; loading it gives ``model`` again. Training numbers that are None are left out."""
    plain: Plain = {"name": model.name, "architecture": _architecture(model), "training": stated(training)}
    if model.published_parameters is not None:
        plain["published_parameters"] = model.published_parameters
    return plain


def stated(values: Mapping[str, Any]) -> Plain:
    """Return what is not None."""
    return {name: value for name, value in values.items() if value is not None}


def job_training(training: JobTraining) -> Plain:
    """Write a launch file's batch and number formats as the training part of a model file."""
    return stated(
        {
            "sequence_length": training.sequence_length,
            "global_batch": training.global_batch,
            "precision": training.precision.value if training.precision else None,
            "fp8_recipe": training.fp8_recipe.value if training.fp8_recipe else None,
            "grad_dtype": DTYPES.get(training.grad_bytes or 0),
            "moment_dtype": DTYPES.get(training.moment_bytes or 0),
            "optimizer": _optimizer(training.optimizer),
            "adapter": _adapter(training.adapter),
            "pad_vocab": training.pad_vocab,
            # What a model file takes for granted is left out: a short file shows what is special.
            "flash": False if training.flash is False else None,
            "dropout": training.dropout or None,
            "total_tokens": _total_tokens(training),
        }
    )


def _optimizer(spec: OptimizerSpec | None) -> Plain | None:
    """Write what differs from AdamW."""
    if spec is None or spec == ADAMW:
        return None
    muon = spec.kind is Optimizer.MUON
    way = spec.distribution.value if spec.distribution else None
    return stated({"kind": spec.kind.value, "distribution": way, "steps": spec.steps if muon else None})


def _adapter(spec: AdapterSpec | None) -> Plain | None:
    if spec is None:
        return None
    return {
        "method": spec.method.value,
        "rank": spec.rank,
        "targets": [target.value for target in spec.targets],
    }


def _total_tokens(training: JobTraining) -> int | None:
    steps, batch, length = training.train_steps, training.global_batch, training.sequence_length
    return steps * batch * length if steps and batch and length else None


def _architecture(model: ModelSpec) -> Plain:
    attends = any(shape.mixer is Mixer.ATTENTION for run in model.runs for shape in run.block)
    plain: Plain = {"layers": model.layers, "hidden": model.hidden}
    if attends or model.mla:
        plain["heads"] = model.heads
        if model.mla is None:
            plain |= {"kv_heads": model.kv_heads, "head_dim": model.head_dim}
    plain |= {"vocab": model.vocab, "gated": model.gated}
    if model.norm is not Norm.RMS:
        plain["norm"] = model.norm.value
    plain |= {name: getattr(model, name) for name in SWITCHES if getattr(model, name)}
    plain |= {"left_out": list(model.left_out)} if model.left_out else {}
    plain |= {"streams": model.streams} if model.streams > 1 else {}
    for name in ("mla", "compressed", "mamba", "linear"):
        part = getattr(model, name)
        if part is not None:
            plain[name] = {field: getattr(part, field) for field in part.__slots__}
    return plain | _indexer(model) | _stack(model)


def _indexer(model: ModelSpec) -> Plain:
    """Write the indexer with the pattern of the layers that have one."""
    if model.indexer is None:
        return {}
    own = stated({field: getattr(model.indexer, field) for field in model.indexer.__slots__})
    if model.compressed is not None:  # blocks says which layers choose keys
        return {"indexer": own}
    pattern = indexer_pattern(model.shapes)
    if pattern is None:
        raise input_error("no period of layers has an indexer", "each n-th layer", key="indexer")
    every, offset = pattern
    attending = [(i, shape.sparse) for i, shape in enumerate(model.shapes) if shape.mixer is Mixer.ATTENTION]
    full = [index for index, sparse in attending if not sparse]
    chosen = next(index for index, sparse in attending if sparse)
    if full and (full[-1] > chosen or every > 1):
        raise input_error("layers with an indexer lie between others", "all behind them", key="indexer")
    leading = {"dense_layers": full[-1] + 1} if full else {}
    return {"indexer": own | leading | ({} if every == 1 else {"every": every, "offset": offset})}


def _stack(model: ModelSpec) -> Plain:
    """Write which layer is which: in the short form for dense layers followed by MoE layers, else as blocks."""
    shapes = model.shapes
    moe = _moe(model.moe) if model.moe else {}
    leading = next((i for i, shape in enumerate(shapes) if shape.mlp is Mlp.MOE), len(shapes))
    dense, sparse = LayerShape(mlp=Mlp.DENSE), LayerShape(mlp=Mlp.MOE)
    short = [dense] * leading + [sparse] * (len(shapes) - leading)
    widths = {shape.ffn for shape in shapes if shape.mlp is Mlp.DENSE}
    ffn = {"ffn": widths.pop()} if len(widths) == 1 else {}
    if [_narrow(shape) for shape in shapes] == short and (ffn or leading == 0):
        return ffn | ({"moe": moe | ({"dense_layers": leading} if leading else {})} if moe else {})
    blocks = [_block(shape, len(list(equal))) for shape, equal in groupby(map(_described, shapes))]
    return ({"moe": moe} if moe else {}) | {"blocks": blocks}


def _narrow(shape: LayerShape) -> LayerShape:
    """Return the shape without the width of its MLP, and without what the indexer says."""
    return replace(shape, ffn=0, sparse=False, indexes=False)


def _described(shape: LayerShape) -> LayerShape:
    """Return the shape as an entry of blocks has it: what an indexer of a period of layers says stands elsewhere."""
    return shape if shape.compression else replace(shape, sparse=False, indexes=False)


def _block(shape: LayerShape, count: int) -> Plain:
    base = LayerShape(mixer=shape.mixer, mlp=shape.mlp)
    plain: Plain = {"kind": next(name for name, kind in LAYER_KINDS.items() if kind == base), "count": count}
    return plain | stated(
        {
            "ffn": shape.ffn or None,
            "window": shape.window,
            "chunked": shape.chunked or None,
            "bidirectional": shape.bidirectional or None,
            "compression": shape.compression or None,
            "chosen": shape.sparse or None,
        }
    )


def _moe(moe: MoeSpec) -> Plain:
    plain = {"experts": moe.experts, "top_k": moe.top_k, "ffn": moe.ffn}
    optional = (
        *("shared_ffn", "capacity_factor", "router_bias", "shared_gate", "expert_bias"),
        *("router_scaling", "router_groups", "router_group_limit"),
    )
    return plain | {name: getattr(moe, name) for name in optional if getattr(moe, name)}


def layout_file(layout: PartialLayout) -> Plain:
    """Write a layout file of what is stated; loading it gives the same."""
    names = (
        "tp", "sp", "cp", "pp", "vp", "ep", "etp", "dp", "zero", "hsdp_shard", "micro_batch", "micro_batches",
    )  # fmt: skip
    plain = stated({name: getattr(layout, name) for name in names})
    if layout.recompute is not None:
        plain["recompute"] = _recompute(layout.recompute, layout.recompute_layers)
    words = {name: getattr(layout, name) for name in ("schedule", "mesh_order", "precision")}
    plain |= {name: str(value) for name, value in words.items() if value is not None}
    if layout.savers:
        plain["savers"] = [str(saver) for saver in layout.savers]
    if layout.switches:
        plain["switches"] = encode(layout.switches)
    if layout.split:
        plain["stages"] = [
            {"layers": item.layers} | ({"mtp": item.mtp} if item.mtp else {}) for item in layout.split
        ]
    return plain


def _recompute(recompute: Recompute, layers: int | None) -> Any:
    if recompute.granularity is Granularity.FULL:
        if recompute.group:
            return f"uniform:{recompute.group}"
        return "full" if layers is None else f"full:{layers}"
    if recompute.granularity is Granularity.NONE:
        return "none"
    return "+".join(recompute.modules) or {"granularity": "selective", "modules": []}


def imported_to_plain(found: Imported) -> Plain:
    """Write what one file holds. Models and layouts are in the form that MODEL and ``--layout`` read."""
    value = found.value
    if isinstance(value, ImportedModel):
        precision = value.precision.value if value.precision else None
        return model_file(value.model, {"sequence_length": value.sequence_length, "precision": precision})
    if isinstance(value, ImportedJob):
        return job_to_plain(value)
    if isinstance(value, LoggedRun):
        timers = {name: list(pair) for name, pair in value.timers_s.items()}
        kept = {"samples_per_s": value.samples_per_s, "timers_s": timers or None}
        return dict(value.columns) | stated(kept)
    if isinstance(value, NodeSet):
        return _nodes(value)
    if isinstance(value, GpuTopology):
        return _without(value, "notes")
    if isinstance(value, tuple) and value and isinstance(value[0], OutOfMemory):
        return {"messages": encode(value)}
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


INFORMATION = re.compile(
    r"the model is \S+ with its published sizes|(PyTorch FSDP|Hugging Face)[^:]*: judged as .*"
    r"|read from .*, which the script starts|accelerate starts Megatron-LM|sample_packing: .*"
    r"|.* (are not part of|not during) the actor's step|the global batch is \d+ \* \d+ sequences per data-parallel rank"
    # what the trainer itself makes of a setting
    r"|num_query_groups \d+ is ignored: .*|virtual stages are parsed, but .*: vp=1|cp_comm_strategy .*: priced as p2p"
    # what is so of a machine
    r"|NVLink is not all-to-all: .*|\d+ of \d+ GPUs have no (NVLink|NIC) .*|no NIC is GPU-direct .*|\d+ switches without .*"
)
"""Notes that say how a file was read where nothing had to be assumed or left out."""


def assumed_of(found: Imported) -> tuple[str, ...]:
    """Return the notes on what had to be assumed, was left out or is missing."""
    return tuple(note for note in notes_of(found) if not INFORMATION.fullmatch(note))


def unwritten(found: Imported) -> tuple[str, ...]:
    """Name the switches of a launch file that neither a model nor a layout file has a key for."""
    job = found.value
    if not isinstance(job, ImportedJob):
        return ()
    options = job.options
    lacking = {
        "pp_overlap": options.pp_overlap is False and (job.layout.vp or 1) > 1,
        "cp_windows": options.cp_windows is not None,
        "microbatch_group": options.microbatch_group is not None,
    }
    names = ", ".join(name for name, there in lacking.items() if there)
    said = f"{names}: in options alone, no model or layout file says it; evaluate --from prices it"
    return (said,) if names else ()


def job_to_plain(job: ImportedJob) -> Plain:
    """Write a launch file: its trainer, its model (or the name of it), its layout, its switches."""
    from layoutopt.optimizer.interop.launch.complete import named_model, stated_layout

    # What the layout leaves open may follow from the model, which the file may only name.
    known = job.model
    with suppress(InputError):  # a name that is none of a built-in model
        known = named_model(job)
    training = job_training(job.training) | _narrow_weights(job)
    if job.model is not None:
        model: Plain = {"model": model_file(job.model, training)}
    else:
        model = stated({"model_name": job.model_name, "mtp_layers": job.mtp_layers}) | {"training": training}
    options = stated(encode(job.options))
    plain = stated({"framework": job.framework.value, "version": job.version, "gpus": job.gpus}) | model
    return plain | {"layout": layout_file(stated_layout(job, known)), "options": options}


def _narrow_weights(job: ImportedJob) -> Plain:
    """Write whether weights exist in 8 bits alone, which a model file says of 8-bit training only."""
    narrow = job.training.precision in (Precision.FP8, Precision.MXFP8)
    return stated({"fp8_param_gather": job.options.fp8_param_gather}) if narrow else {}


def _nodes(found: NodeSet) -> Plain:
    plain = _without(found, "notes", "nodes")
    return {"nodes": len(found.nodes)} | plain | {"names": list(found.nodes)}


def nccl_to_plain(tables: Sequence[NcclTable]) -> Plain:
    """Write the fit and the anomalies of every test; a table that can't be fitted says why."""
    from layoutopt.optimizer.interop.machines.nccl_fit import find_anomalies, fit_collective

    tests = []
    for table in tables:
        test: Plain = {name: getattr(table, name) for name in ("collective", "ranks", "nodes", "gpu")}
        try:
            fit = fit_collective(table)
            names = ("latency_s", "bus_bytes_per_s", "best_bus_bytes_per_s", "error", "rows")
            test |= {name: getattr(fit, name) for name in names}
        # One table that says too little does not take the others along.
        except InputError as error:
            test["not_fitted"] = error.problems[0].what
        test["anomalies"] = encode(find_anomalies(table))
        tests.append(test)
    return {"tests": tests}


def calibration_to_plain(found: NcclCalibration) -> Plain:
    """Write the constants that measured collectives suggest, as a cluster file's ``calibration``."""
    values = {name: {"value": one.value, "source": one.source} for name, one in found.values.items()}
    return {"calibration": values, "anomalies": encode(found.anomalies), "skipped": list(found.skipped)}


def _without(record: Any, *names: str) -> Plain:
    """Write a record without some of its fields."""
    return {name: value for name, value in encode(record).items() if name not in names}
