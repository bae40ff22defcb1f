"""What a question does not search unless it is opened: values of switches, memory savers, number formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.preset import preset_of_release, preset_value
from layoutopt.optimizer.frameworks.registry import savers_of
from layoutopt.optimizer.frameworks.switches import SWITCHES, read_switch, switch_text
from layoutopt.optimizer.space.axes import MICRO_BATCHES
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.space.recompute_sets import groups_of, recompute_text
from layoutopt.optimizer.space.rules.recompute import GROUPING
from layoutopt.optimizer.space.switch_sets import NEVER_SLOWER, kernels_run
from layoutopt.optimizer.specs.vocabulary import Dispatcher, Saver, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.frameworks.switches import Switch
    from layoutopt.optimizer.space.axes import Axes

SAVERS = {
    Saver.BF16_MOMENTS: "moments of the optimizer in 16 bits",
    Saver.OFFLOAD_OPTIMIZER: "the optimizer's state in host memory",
    Saver.OFFLOAD_ACTIVATIONS: "what layers keep for the backward pass in host memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Openable:
    """Values that are not searched: of which axis, what they mean, what opens them, whether results differ with them.

    ``closed_since`` is the reason. ``covered_by`` names the rule that proves them no better than what is searched: an answer
    is the best with them too.
    """

    name: str
    values: tuple[str, ...]
    meaning: str
    opened_by: str
    changes_numbers: bool
    closed_since: str = ""
    covered_by: str = ""


def openable(axes: Axes) -> tuple[Openable, ...]:
    """List what the framework's release has and the question leaves out, what keeps the numbers first."""
    found = [
        *_micro_batches(axes),
        *_schedules(axes),
        *_switches(axes),
        *_between_domains(axes),
        *_groups(axes),
        *_savers(axes),
        *_formats(axes),
    ]
    # What leaves results as they are can be tried without asking anybody about convergence.
    return tuple(sorted(found, key=lambda one: one.changes_numbers))


def _micro_batches(axes: Axes) -> Iterator[Openable]:
    """Sizes between the powers of two, of a batch that all of these divide."""
    if axes.options.micro_batches or axes.options.limits("micro_batch"):
        return
    every = divisors(axes.ctx.training.global_batch, MICRO_BATCHES[-1])
    # What is searched already is no offer.
    rest = [str(size) for size in every if size not in axes.micro_batch]
    if rest:
        yield Openable(
            name="micro_batch",
            values=tuple(rest),
            meaning="sequences of a micro-batch, between the powers of two",
            opened_by=f"--fix micro_batch={','.join(map(str, every))}",
            changes_numbers=False,
            closed_since="powers of two stand for the sizes between them",
        )


def _schedules(axes: Axes) -> Iterator[Openable]:
    """Orders of the pipeline that the release runs beside 1F1B and interleaved ones."""
    refused = axes.options.forbid.get("schedule", ())
    has = [one for one in axes.abilities.schedules if one is not Schedule.NONE and one.value not in refused]
    rest = [one.value for one in has if one not in axes.schedules]
    if rest and not axes.options.schedules and "schedule" not in axes.options.fix and axes.pp != (1,):
        yield Openable(
            name="schedule",
            values=tuple(rest),
            meaning="order of the passes through the pipeline",
            opened_by=f"--fix schedule={','.join([Schedule.NONE, *has])}",
            changes_numbers=False,
        )


def _switches(axes: Axes) -> Iterator[Openable]:
    preset = preset_of_release(axes.ctx.framework, axes.ctx.release).with_training(axes.ctx.training)
    for switch in SWITCHES:
        # What the question forbids is no offer.
        refused = {read_switch(switch.name, text) for text in axes.options.forbid.get(switch.name, ())}
        has = [one for one in axes.abilities.switches.get(switch.name, ()) if one not in refused]
        # A switch that is not searched stands at the preset's value.
        declared = axes.switch_values.get(switch.name, (preset_value(preset, switch),))
        rest = [switch_text(value) for value in has if value not in declared]
        if rest and switch.of(axes.ctx.model) and switch.name not in axes.options.fix:
            every = ",".join(switch_text(value) for value in has)
            yield Openable(
                name=switch.name,
                values=tuple(rest),
                meaning=switch.meaning,
                opened_by=f"--fix {switch.name}={every}",
                changes_numbers=switch.changes_numbers,
                **_why(axes, switch),
            )


def _why(axes: Axes, switch: Switch) -> dict[str, str]:
    """Say why values of a switch are not searched: where results differ, that is the reason."""
    if switch.name in axes.dominated:
        best = switch_text(axes.abilities.switches[switch.name][-1])
        return {"closed_since": f"never faster or leaner than {best}", "covered_by": NEVER_SLOWER}
    if switch.name == "cuda_graph" and switch.name not in axes.options.forbid:
        return {
            "closed_since": "no layout here can launch it, experts being sized by the router",
            "covered_by": "full_graph_shapes",
        }
    return {}


def _between_domains(axes: Axes) -> Iterator[Openable]:
    """HybridEP among several NVLink domains, which a search tries where it is told the dispatchers."""
    has, ctx = axes.abilities.switches.get("dispatcher", ()), axes.ctx
    there = Dispatcher.HYBRIDEP in has and kernels_run(Dispatcher.HYBRIDEP, ctx)
    if there and ctx.experts and not axes.options.limits("dispatcher"):
        yield Openable(
            name="dispatcher",
            values=(f"{Dispatcher.HYBRIDEP} between NVLink domains",),
            meaning="how tokens reach their experts",
            opened_by=f"--fix dispatcher={','.join(map(switch_text, has))}",
            changes_numbers=False,
            closed_since="containers are built without it, and deepep takes the same way with fewer SMs",
        )


def _groups(axes: Axes) -> Iterator[Openable]:
    if axes.ctx.framework not in GROUPING or "recompute" in axes.options.fix:
        return
    refused = axes.options.forbid.get("recompute", ())
    values = tuple(
        text for text in map(recompute_text, groups_of(axes.ctx.model.layers)) if text not in refused
    )
    if values:
        every = ",".join([*map(recompute_text, axes.recomputes), *values])
        yield Openable(
            name="recompute",
            values=values,
            meaning="all layers from one saved input for as many (uniform method)",
            opened_by=f"--fix recompute={every}",
            changes_numbers=False,
            closed_since="as fast as recomputing all layers one by one: it helps where their inputs do not fit",
        )


def _savers(axes: Axes) -> Iterator[Openable]:
    ctx = axes.ctx
    tried = {saver for chosen in axes.savers for saver in chosen}
    for saver in savers_of(ctx.framework, ctx.release, ctx.model):
        refused = saver.value in axes.options.forbid.get("savers", ())
        if saver not in tried and saver in SAVERS and not refused:
            yield Openable(
                name="savers",
                values=(saver.value,),
                meaning=SAVERS[saver],
                opened_by=f"--allow {saver.value}",
                changes_numbers=saver is Saver.BF16_MOMENTS,
                closed_since=""
                if saver is Saver.BF16_MOMENTS
                else "takes memory of the hosts, which is granted",
            )


def _formats(axes: Axes) -> Iterator[Openable]:
    """Formats that the GPU and the release have; of the buffers and the master weights a model file states one."""
    ctx, known = axes.ctx, [*axes.precisions]
    # A format that the GPU lacks is no offer, whatever the trainer knows.
    refused = axes.options.forbid.get("precision", ())
    others = [
        one
        for one in axes.abilities.precisions
        if one not in known and one.value not in refused and one in ctx.cluster.gpu.dense_flops
    ]
    if others:
        every = ",".join([*known, *others])
        meaning = "precision of the matrix multiplications"
        yield Openable(
            name="precision",
            values=tuple(others),
            meaning=meaning,
            opened_by=f"--precision {every}",
            changes_numbers=True,
        )
    stated: dict[str, tuple[tuple[str, ...], str, str]] = {
        "grad_dtype": (("fp32", "bf16"), "gradient buffer", "training.grad_dtype of the model file"),
        "master_dtype": (("fp32", "none"), "master weights", "training.master_dtype of the model file"),
    }
    if ctx.experts:
        drops = "capacity_factor of the model's experts"
        stated["capacity_factor"] = (("1.0",), "experts of a fixed size, which drop tokens", drops)
    for name, (values, meaning, where) in stated.items():
        yield Openable(name=name, values=values, meaning=meaning, opened_by=where, changes_numbers=True)
