"""From what a launch file states to the complete layout that can be priced, or what is missing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.common import looped_schedule
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches, VirtualStage
from layoutopt.optimizer.specs.model import ADAMW, TrainingSpec
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Granularity, Precision, Saver
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.frameworks.abilities import Abilities
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Schedule


def complete_layout(
    job: ImportedJob,
    *,
    model: ModelSpec | None = None,
    gpus: int | None = None,
    global_batch: int | None = None,
) -> Layout:
    """Return the job's layout with every axis set.

    ``model``, ``gpus`` and ``global_batch`` (sequences) are used where the file does not state its own.
    Raises ``InputError`` with one line for each value that is missing or does not divide.
    """
    part = job.layout
    model = job.model or model
    tp, cp, pp, vp = part.tp or 1, part.cp or 1, part.pp or 1, part.vp or 1
    problems: list[Problem] = []
    dp = part.dp or _dp(part, job.gpus or gpus, problems)
    micro_batch = part.micro_batch
    if micro_batch is None:
        problems.append(Problem(what="missing", key="micro-batch", allowed="sequences per micro-batch"))
    micro_batches = part.micro_batches
    if micro_batches is None and dp and micro_batch:
        micro_batches = _micro_batches(job.training.global_batch or global_batch, dp, micro_batch, problems)
    if problems or not dp or not micro_batch or not micro_batches:
        raise InputError(*problems)
    zero, shard = _sharding(job, dp * cp)
    schedule = part.schedule or looped_schedule(pp, vp)
    whole = Layout(
        tp=tp,
        sp=bool(part.sp),
        cp=cp,
        pp=pp,
        vp=vp,
        ep=part.ep or 1,
        etp=part.etp or _unset_etp(job, model, tp, part.ep or 1),
        dp=dp,
        zero=zero,
        hsdp_shard=shard,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        recompute=part.recompute or Recompute(),
        schedule=schedule,
        mesh_order=part.mesh_order or DEFAULT_MESH_ORDER,
        precision=job.precision or Precision.BF16,
        savers=_savers(job, model),
        switches=_switches(job),
        stages=_stages(job, pp, vp, model, schedule),
    )
    from layoutopt.optimizer.frameworks.preset import load_preset, telling  # it loads numpy

    preset = load_preset(job.framework, job.version)
    return replace(whole, switches=telling(whole.switches, whole, model, preset))


DEGREES = ("tp", "cp", "pp", "ep", "zero")
"""What decides memory and traffic: open ones are asked for, never filled in."""

OTHERS = {"sp": "sequence parallelism off", "recompute": "nothing recomputed"}


def _abilities(job: ImportedJob) -> Abilities:
    """Return what the release of the job's framework can do, the newest where the file names none."""
    from layoutopt.optimizer.frameworks.registry import abilities_of, parse_release  # it loads numpy

    return abilities_of(job.framework, parse_release(job.framework, job.version))


def require_stated(job: ImportedJob, how: str) -> None:
    """Raise ``InputError`` for every degree that a launch file leaves open; ``how`` says how to give it.

    A degree that the framework's release does not have is not open: nothing but 1 can be launched.
    """
    open_degrees = [name for name in DEGREES if getattr(job.layout, name) is None and _is_choice(name, job)]
    if not open_degrees:
        return
    why = next((text.partition(": ")[2] for text in job.missing if set(open_degrees) & _named_in(text)), "")
    what = "not stated by the launch file" + (f", {why}" if why else "")
    raise InputError(*(Problem(what=what, key=name, allowed=how) for name in open_degrees))


def _is_choice(degree: str, job: ImportedJob) -> bool:
    """Whether the framework's release has more than one value of a degree."""
    has = _abilities(job)
    return has.zero != (0,) if degree == "zero" else degree not in has.fixed_axes


def assumptions(job: ImportedJob) -> tuple[str, ...]:
    """Return what is taken where a launch file leaves something else than a degree open."""
    part = job.layout
    # One rank of tensor parallelism has no sequence to split: nothing is assumed of it.
    known = {"sp"} if part.tp == 1 else set()
    taken = [text for name, text in OTHERS.items() if getattr(part, name) is None and name not in known]
    if job.precision is None:
        taken.append("precision bf16")
    return (*(f"assumed: {text}; the file does not state it" for text in taken), *_unmodelled(job))


def _unmodelled(job: ImportedJob) -> tuple[str, ...]:
    """Say where a part of the optimizer, or one whose framework has no such saver, is priced as on the GPU."""
    share = job.options.optimizer_offload
    if not share or (share == 1.0 and Saver.OFFLOAD_OPTIMIZER in _abilities(job).savers):
        return ()
    return (f"{share:.0%} of the optimizer in host memory is not modelled here; memory is overestimated",)


def _named_in(missing: str) -> set[str]:
    return set(missing.partition(":")[0].replace(",", " ").split())


def fill_open(job: ImportedJob, given: PartialLayout, key: str) -> ImportedJob:
    """Fill what a launch file leaves open; raises ``InputError`` where both state a value and differ."""
    part = replace(job.layout, precision=job.precision)
    problems = list(_contradictions(job, part, given))
    if problems:
        raise InputError(*(Problem(key=key, what=what, allowed=allowed) for what, allowed in problems))
    filled = {
        name: getattr(given, name) for name in PartialLayout.__slots__ if getattr(given, name) is not None
    }
    training = replace(job.training, precision=given.precision or job.precision)
    return replace(job, layout=replace(part, **filled), training=training)


def _contradictions(job: ImportedJob, part: PartialLayout, given: PartialLayout) -> Iterator[tuple[str, str]]:
    """Yield what is given otherwise than a launch file states it, and what may be."""
    if given.idle_gpus:
        yield f"idle_gpus={given.idle_gpus} beside a launch file", "a cluster of the GPUs that are launched"
    own = _switches(job)
    if job.options.ep_overlap is None:
        own = replace(own, ep_overlap=None, shared_expert_overlap=None)
    mine, theirs = (_words(layout) for layout in (replace(part, switches=own), given))
    for name, value in theirs.items():
        if name in mine and mine[name] != value and name not in ("dp", "micro_batches", "idle_gpus"):
            yield (
                f"{name}={_text(value)} is not the {_text(mine[name])} of the launch file",
                "what the file leaves open",
            )


def _words(layout: PartialLayout) -> dict[str, Any]:
    """Return what a layout states, each switch by its own name, stages by their layers alone."""
    stated = {name: getattr(layout, name) for name in PartialLayout.__slots__}
    listed, switches = stated.pop("split") or stated["stages"], stated.pop("switches")
    stated["stages"] = tuple(stage.layers for stage in listed) if listed else None
    return {name: value for name, value in stated.items() if value is not None} | (
        switches or Switches()
    ).stated()


def _text(value: object) -> str:
    from layoutopt.optimizer.frameworks.switches import switch_text
    from layoutopt.optimizer.space.recompute_sets import recompute_text  # it loads numpy

    if isinstance(value, Recompute):
        return recompute_text(value)
    if isinstance(value, tuple):
        return "/".join(map(str, value)) or "none"
    return switch_text(value) if isinstance(value, bool | int | str) else str(value)


def _unset_etp(job: ImportedJob, model: ModelSpec | None, tp: int, ep: int) -> int:
    """Return what an unset expert tensor parallelism means."""
    return job.framework.record.unstated.etp(tp, ep) if model is None or model.is_moe else 1


def _savers(job: ImportedJob, model: ModelSpec | None) -> tuple[Saver, ...]:
    """Return the stated memory savers that the framework's release offers; parts of an optimizer are none.

    Those that were filled in count too, whether the release has them or not: rules judge that.
    """
    from layoutopt.optimizer.frameworks.registry import parse_release, savers_of  # it loads numpy

    stated = {
        Saver.BF16_MOMENTS: job.training.moment_bytes == 2,
        Saver.OFFLOAD_ACTIVATIONS: job.options.activation_offload,
        Saver.OFFLOAD_OPTIMIZER: job.options.optimizer_offload == 1.0,
    }
    filled = job.layout.savers or ()
    if model is None or not any(stated.values()):
        return filled
    known = savers_of(job.framework, parse_release(job.framework, job.version), model)
    return tuple(saver for saver in Saver if saver in filled or (stated[saver] and saver in known))


def _switches(job: ImportedJob) -> Switches:
    """Return the stated launch switches that the framework's release has."""
    from layoutopt.optimizer.solve.run_preset import named_dispatcher

    options = job.options
    stated: dict[str, Any] = {
        "ep_overlap": options.ep_overlap == "batch",
        "delay_wgrad": options.delay_wgrad,
        "shared_expert_overlap": options.ep_overlap == "shared",
        "dispatcher": named_dispatcher(options.moe_dispatcher) if options.moe_dispatcher else None,
        "tp_overlap": options.tp_overlap,
        "dp_overlap": options.dp_overlap,
        "param_overlap": options.param_overlap,
        "cp_kind": options.cp_comm,
        "cuda_graph": options.cuda_graph,
        "compiled": options.compiled,
        "loss_chunks": options.loss_chunks,
    }
    has = _abilities(job).switches
    own = Switches(**{name: value for name, value in stated.items() if value in has.get(name, ())})
    filled: dict[str, Any] = job.layout.switches.stated() if job.layout.switches else {}
    return replace(own, **filled)


def stated_layout(job: ImportedJob, model: ModelSpec | None) -> PartialLayout:
    """Return the job's layout with the memory savers and the launch switches that its file states.

    ``model`` is the job's, None where it is not known: then every switch is kept, else those that tell.
    """
    switches = _switches(job)
    with suppress(InputError):  # what is open says nothing of which switches tell
        switches = complete_layout(job, model=model).switches
    return replace(job.layout, savers=_savers(job, model) or None, switches=switches or None)


def complete_workload(
    job: ImportedJob,
    *,
    model: ModelSpec | None = None,
    global_batch: int | None = None,
    sequence_length: int | None = None,
) -> Workload:
    """Return the job's model and run; the arguments are used where the file does not state its own.

    Raises ``InputError`` with one line for each value that is missing.
    """
    training = job.training
    found = job.model or model
    batch, length = training.global_batch or global_batch, training.sequence_length or sequence_length
    if found is None or batch is None or length is None:
        needed = {"model": found, "global batch": batch, "sequence length": length}
        lacking = [name for name, value in needed.items() if value is None]
        how = {"model": "a built-in model or a model file named beside the launch file"}
        what = "missing in the launch file"
        raise InputError(*(Problem(what=what, allowed=how.get(name, ""), key=name) for name in lacking))
    tokens = None if training.train_steps is None else float(training.train_steps * batch * length)
    spec = TrainingSpec(
        sequence_length=length,
        global_batch=batch,
        precision=job.precision or Precision.BF16,
        total_tokens=tokens,
        fp8_recipe=training.fp8_recipe,
        grad_bytes=training.grad_bytes,
        moment_bytes=training.moment_bytes,
        optimizer=training.optimizer or ADAMW,
        pad_vocab=training.pad_vocab,
        flash=training.flash is not False,
        dropout=bool(training.dropout),
        adapter=training.adapter,
    )
    return Workload(model=found, training=spec)


def named_model(job: ImportedJob) -> ModelSpec | None:
    """Return the job's model; one that the file only names is loaded from the built-in models."""
    if job.model is not None or job.model_name is None:
        return job.model
    from layoutopt.optimizer.specs.loading import load_workload

    model = load_workload(job.model_name).model
    return model if job.mtp_layers is None else replace(model, mtp_layers=job.mtp_layers)


def _own_layers(job: ImportedJob, layers: int, pp: int) -> list[int]:
    """Layers per stage of a framework that balances them itself by their number; none of others."""
    from layoutopt.optimizer.frameworks.stage_rule import Split
    from layoutopt.optimizer.space.stage_splits import own_split  # it loads numpy

    # DeepSpeed's pipeline needs no equal stages: what does not divide is a layer more on the first ones.
    rule = _abilities(job).stage_rule
    own = own_split(rule, pp, 1, layers) if rule.split is Split.LARGER_FIRST else None
    return [] if own is None else [int(held) for held in own]


def _dp(part: PartialLayout, gpus: int | None, problems: list[Problem]) -> int | None:
    inner = (part.tp or 1) * (part.cp or 1) * (part.pp or 1)
    if gpus is None:
        allowed = "the launch file does not state how many"
        problems.append(Problem(what="missing", key="gpus", allowed=allowed))
        return None
    wrong = contradiction(part, gpus)
    if wrong:
        problems.append(Problem(what=wrong, key="dp"))
        return None
    return gpus // inner


def _sharding(job: ImportedJob, ranks: int) -> tuple[int, int | None]:
    """Return the ZeRO stage and the ranks of a shard group, of the ranks that hold the same parameters."""
    zero, shard = job.layout.zero or 0, job.layout.hsdp_shard
    if shard or job.replicas == 1 or not zero:
        return zero, shard
    if ranks % job.replicas:
        what = f"dp*cp={ranks} is not a multiple of the {job.replicas} replicas of the launch file"
        raise InputError(Problem(what=what, key="dp"))
    if ranks == job.replicas:
        return 0, None  # one rank a copy: nothing is sharded
    return zero, ranks // job.replicas


def contradiction(part: PartialLayout, gpus: int | None) -> str:
    """Say what is wrong where a number of GPUs cannot hold whole replicas, empty where it can or is not known."""
    inner = (part.tp or 1) * (part.cp or 1) * (part.pp or 1)
    if gpus is None or gpus % inner == 0:
        return ""
    factors = f"tp={part.tp or 1} * cp={part.cp or 1} * pp={part.pp or 1} = {inner}"
    return f"{gpus} GPUs are not a multiple of {factors}"


def _micro_batches(batch: int | None, dp: int, micro_batch: int, problems: list[Problem]) -> int | None:
    if batch is None:
        problems.append(Problem(what="missing", key="global batch", allowed="sequences per optimizer step"))
        return None
    if batch % (dp * micro_batch):
        what = f"global batch {batch} is not a multiple of dp={dp} * micro-batch={micro_batch}"
        problems.append(Problem(what=what, key="global batch"))
        return None
    return batch // (dp * micro_batch)


def _stages(
    job: ImportedJob, pp: int, vp: int, model: ModelSpec | None, schedule: Schedule
) -> tuple[VirtualStage, ...]:
    """Build the stages that the file states, or the equal ones that its framework makes; empty if unknown."""
    part = job.layout
    if model is None:
        return ()
    if part.stages:
        return part.staged(model, pp, vp, schedule)
    layers = [stage.layers for stage in part.split or ()]
    even = pp == 1 or job.framework.record.unstated.equal_stages
    if not layers and even and model.layers % (pp * vp) == 0:
        layers = [model.layers // (pp * vp)] * (pp * vp)
    if not layers and vp == 1:
        layers = _own_layers(job, model.layers, pp)
    if not layers:
        return ()
    if sum(layers) != model.layers or len(layers) != pp * vp:
        what = f"{len(layers)} stages hold {sum(layers)} layers, {model.name} has {model.layers}"
        raise InputError(Problem(what=what, key="stages"))
    full = part.recompute is not None and part.recompute.granularity is Granularity.FULL
    limit = model.layers if part.recompute_layers is None else part.recompute_layers
    mtp = [stage.mtp for stage in part.split or ()]
    return build_stages(model, layers, pp, schedule, limit if full else 0, mtp if any(mtp) else None)
