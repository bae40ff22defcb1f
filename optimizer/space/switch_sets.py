"""Sets of launch switches: which of their values a question declares, and how they are written."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.frameworks.preset import preset_of_release, preset_value
from layoutopt.optimizer.frameworks.registry import abilities_of
from layoutopt.optimizer.frameworks.switches import (
    OFF_ON,
    SWITCHES,
    acting,
    combination_fault,
    read_switch,
    switch_text,
)
from layoutopt.optimizer.space.rule import FREEST
from layoutopt.optimizer.specs.layout import Switches
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Dispatcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import Codebook, Format, LayoutBatch
    from layoutopt.optimizer.frameworks.switches import Switch, Value
    from layoutopt.optimizer.space.context import Context, RunOptions
    from layoutopt.optimizer.space.options import SpaceOptions
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec


NEVER_SLOWER = "never_slower"
"""The rule under which tuples are counted with a switch off that is never slower and never larger on."""

FLAGS = {
    "ep_overlap": "overlap_moe_expert_parallel_comm",
    "delay_wgrad": "delay_wgrad",
    "shared_expert_overlap": "shared_expert_overlap",
    "tp_overlap": "tp_comm_overlap",
    "cp_kind": "cp_comm",
}
"""Switches and the flags of a launch that say the same."""


def stated(switches: Switches, options: RunOptions) -> Switches:
    """Return the switches of a layout, and where it states none those of the launch."""
    own: dict[str, Any] = {
        name: getattr(options, flag)
        for name, flag in FLAGS.items()
        if getattr(options, flag) is not None and getattr(switches, name) is None
    }
    # Trainers have words of their own for dispatchers (flex), which no switch stands for.
    if switches.dispatcher is None and options.dispatcher in tuple(Dispatcher):
        own["dispatcher"] = Dispatcher(options.dispatcher)
    return replace(switches, **own) if own else switches


def declared_switches(ctx: Context, options: SpaceOptions) -> dict[str, tuple[Value, ...]]:
    """Return the values of every switch that the question declares; others stay as the preset has them."""
    declared = {}
    for switch in SWITCHES:
        values = _declared(switch, ctx, options)
        # None stands for a switch that the question leaves alone, no value for one that it leaves without any.
        if values is not None:
            declared[switch.name] = values
    return declared


def switch_sets(ctx: Context, options: SpaceOptions) -> tuple[Switches, ...]:
    """Return every combination of declared values that can be launched, the plainest first; one that states nothing
    where none is declared."""
    declared = declared_switches(ctx, options)
    sets = [Switches(**_typed(declared, chosen)) for chosen in product(*declared.values())]
    # Where nothing can be launched all stay: the rules then say why.
    launchable = tuple(one for one in sets if not combination_fault(one))
    return launchable or tuple(sets)


def _typed(declared: Mapping[str, tuple[Value, ...]], chosen: tuple[Value, ...]) -> dict[str, Any]:
    return dict(zip(declared, chosen, strict=True))


def _declared(switch: Switch, ctx: Context, options: SpaceOptions) -> tuple[Value, ...] | None:
    has = abilities_of(ctx.framework, ctx.release).switches.get(switch.name, ())
    refused = {read_switch(switch.name, text) for text in options.forbid.get(switch.name, ())}
    if switch.name in options.fix:
        fixed = dict.fromkeys(read_switch(switch.name, text) for text in options.fix[switch.name])
        return tuple(value for value in fixed if value not in refused)
    # One value that the preset has anyway is no choice, and would double every name in the answer.
    own = preset_value(preset_of_release(ctx.framework, ctx.release).with_training(ctx.training), switch)
    limited = options.limits(switch.name)
    if not has or (switch.changes_numbers and not limited) or not switch.of(ctx.model):
        return None
    values = tuple(value for value in has if value not in refused)
    # Of both kinds of graph only the better one for the model is tried unasked.
    if switch.name == "cuda_graph" and not limited:
        values = tuple(value for value in values if value is not CudaGraph.FULL or _full_graphs(ctx, options))
    # The last value is the one that is on: with no price in time or memory there is nothing to compare.
    if _dominates(switch, ctx, options):
        values = values[-1:]
    return None if values == (own,) else values


def dominated_switches(ctx: Context, options: SpaceOptions) -> dict[str, tuple[Value, ...]]:
    """Return the values of switches that the release has and another is at least as fast and as lean as, everywhere."""
    has = abilities_of(ctx.framework, ctx.release).switches
    return {
        switch.name: has[switch.name][:-1]
        for switch in SWITCHES
        if len(has.get(switch.name, ())) > 1 and switch.of(ctx.model) and _dominates(switch, ctx, options)
    }


def dominated_sets(dominated: Mapping[str, tuple[Value, ...]]) -> int:
    """Count the sets of those switches that can be launched and are worse than all of them on."""
    sets = (Switches(**_typed(dominated, chosen)) for chosen in product(OFF_ON, repeat=len(dominated)))
    return sum(not combination_fault(one) for one in sets) - 1


def _dominates(switch: Switch, ctx: Context, options: SpaceOptions) -> bool:
    """Whether the last value of a switch stands for all of them: it is never slower, and legal in every layout."""
    free = switch.never_slower and not options.limits(switch.name)
    return free and _legal_everywhere(switch, ctx, options)


def _full_graphs(ctx: Context, options: SpaceOptions) -> bool:
    """Whether some dispatcher that is searched knows the sizes of experts before the step, as graphs of all of it need."""
    has = options.fix.get("dispatcher") or abilities_of(ctx.framework, ctx.release).switches.get("dispatcher")
    tried: list[Dispatcher | None] = [Dispatcher(str(value)) for value in has or ()]
    tried = tried or [None]
    return any(sized(one, ctx) and kernels_run(one, ctx) for one in tried)


def sized(dispatcher: Dispatcher | None, ctx: Context) -> bool:
    """Whether the sizes of experts' kernels are known before the step.

    They are without experts, with a capacity and with HybridEP's own (core 0.18).
    """
    if ctx.model.moe is None or ctx.model.moe.capacity_factor:
        return True
    return dispatcher is Dispatcher.HYBRIDEP and (ctx.framework in FREEST or ctx.release >= (0, 18))


def kernels_run(dispatcher: Dispatcher | None, ctx: Context) -> bool:
    """Whether a dispatcher has kernels for the GPUs; those that exchange inside a node themselves need NVLink."""
    if dispatcher is None or not dispatcher.deduplicates:
        return True
    generation = ctx.cluster.gpu.generation
    there = generation.hybridep if dispatcher is Dispatcher.HYBRIDEP else generation.deepep
    return there and ctx.cluster.nvlink_domain > 1


def _legal_everywhere(switch: Switch, ctx: Context, options: SpaceOptions) -> bool:
    """Whether a switch can be on in every layout where it acts: user buffers need sequence parallelism, and torch's
    asynchronous tensor parallelism a compiler."""
    if switch.name != "tp_overlap":
        return True
    compiles = all(read_switch("compiled", text) for text in options.fix.get("compiled", ()))
    return compiles and abilities_of(ctx.framework, ctx.release).sp and 0 not in options.fix.get("sp", ())


def switches_text(switches: Switches) -> str:
    """Write switches as ``name=value`` words, nothing where none is stated."""
    return " ".join(f"{name}={switch_text(value)}" for name, value in switches.stated().items())


def codes_like(layout: Layout, model: ModelSpec | None, book: Codebook) -> NDArray[np.bool_]:
    """Tell which precision codes (p,) a layout of a model means: switches that do nothing there need no saying."""
    own = (layout.precision, layout.savers, acting(layout.switches, layout, model))
    return np.array(
        [
            (precision, savers, acting(switches, layout, model)) == own
            for precision, savers, switches in book.formats
        ],
        dtype=bool,
    )


def stated_switches(book: Codebook) -> list[Switch]:
    """Return the switches that some precision code of a codebook states."""
    return [
        switch for switch in SWITCHES if any(getattr(one, switch.name) is not None for one in book.switches)
    ]


def first_switches(rows: LayoutBatch, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep, among each row's valid precision codes, the first of every set whose switches act alike there.

    ``valid`` has shape (n, precisions of the codebook). Switches on traffic do nothing where a group is a single rank.
    """
    kept, book = valid.copy(), rows.codebook
    stated = stated_switches(book)
    acting = [np.broadcast_to(switch.traffic(rows), len(rows)) for switch in stated]
    # A row's pattern as the bits of one number.
    pattern = np.zeros(len(rows), dtype=np.int64)
    for place, acts in enumerate(acting):
        pattern |= acts.astype(np.int64) << place
    for bits in np.unique(pattern).tolist():
        # Switches that do nothing in these rows cannot tell codes apart.
        silent = tuple(switch.name for place, switch in enumerate(stated) if not bits >> place & 1)
        where = np.flatnonzero(pattern == bits)
        for first, later in _alike(book.formats, silent):
            kept[where, later] &= ~kept[where, first]
    return kept


@lru_cache(maxsize=256)
def _alike(formats: tuple[Format, ...], silent: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of codes that differ in silent switches alone, the earlier one first, sorted by the later one."""
    groups: dict[Any, list[int]] = {}
    pairs = []
    for code, entry in enumerate(formats):
        known = groups.setdefault((*entry[:2], *_heard(entry[2], silent)), [])
        pairs += [(first, code) for first in known]
        known.append(code)
    return tuple(pairs)


def _heard(switches: Switches, silent: tuple[str, ...]) -> tuple[tuple[str, Value], ...]:
    return tuple((name, value) for name, value in switches.stated().items() if name not in silent)
