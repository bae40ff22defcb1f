"""Sets of launch switches: which of their values a question declares, and how they are written."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.frameworks.preset import preset_of_release, preset_value
from layoutopt.optimizer.frameworks.registry import abilities_of
from layoutopt.optimizer.frameworks.switches import (
    SWITCHES,
    acting,
    combination_fault,
    read_switch,
    switch_text,
)
from layoutopt.optimizer.specs.layout import Switches
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Dispatcher

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import Codebook, LayoutBatch
    from layoutopt.optimizer.frameworks.switches import Switch, Value
    from layoutopt.optimizer.space.context import Context, RunOptions
    from layoutopt.optimizer.space.options import SpaceOptions
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec


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
        if values:
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


def _typed(declared: dict[str, tuple[Value, ...]], chosen: tuple[Value, ...]) -> dict[str, Any]:
    return dict(zip(declared, chosen, strict=True))


def _declared(switch: Switch, ctx: Context, options: SpaceOptions) -> tuple[Value, ...]:
    has = abilities_of(ctx.framework, ctx.release).switches.get(switch.name, ())
    if switch.name in options.fix:
        return tuple(dict.fromkeys(read_switch(switch.name, text) for text in options.fix[switch.name]))
    # One value that the preset has anyway is no choice, and would double every name in the answer.
    own = preset_value(preset_of_release(ctx.framework, ctx.release).with_training(ctx.training), switch)
    limited = options.limits(switch.name)
    if not has or ((switch.changes_numbers or switch.on_request) and not limited) or not switch.of(ctx.model):
        return ()
    refused = {read_switch(switch.name, text) for text in options.forbid.get(switch.name, ())}
    values = tuple(value for value in has if value not in refused)
    # Of both kinds of graph only the better one for the model is tried unasked.
    if switch.name == "cuda_graph" and not limited:
        left = (
            CudaGraph.FULL
            if _sized_by_routing(ctx)
            else CudaGraph.PARTIAL
            if CudaGraph.FULL in values
            else None
        )
        values = tuple(value for value in values if value is not left)
    # The last value is the one that is on: with no price in time or memory there is nothing to compare.
    if switch.never_slower and not limited:
        values = values[-1:] if _legal_everywhere(switch, ctx, options) else values
    return () if values == (own,) else values


def _sized_by_routing(ctx: Context) -> bool:
    """Whether experts get as many tokens as the router sends; a graph of all needs a size, which may drop some.

    Elsewhere a graph of the whole iteration replays all that graphs of parts do, with a single launch.
    """
    return ctx.model.moe is not None and ctx.model.moe.capacity_factor is None


def _legal_everywhere(switch: Switch, ctx: Context, options: SpaceOptions) -> bool:
    """Whether a switch can be on in every layout where it acts: user buffers need sequence parallelism."""
    if switch.name != "tp_overlap":
        return True
    return abilities_of(ctx.framework, ctx.release).sp and 0 not in options.fix.get("sp", ())


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


def first_switches(rows: LayoutBatch, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep, among each row's valid precision codes, the first of every set whose switches act alike there.

    ``valid`` has shape (n, precisions of the codebook). Switches on traffic do nothing where a group is a single rank.
    """
    kept, book = valid.copy(), rows.codebook
    stated = [
        switch for switch in SWITCHES if any(getattr(one, switch.name) is not None for one in book.switches)
    ]
    acting = [np.broadcast_to(switch.traffic(rows), len(rows)) for switch in stated]
    # A row's pattern as the bits of one number.
    pattern = np.zeros(len(rows), dtype=np.int64)
    for place, acts in enumerate(acting):
        pattern |= acts.astype(np.int64) << place
    for bits in np.unique(pattern).tolist():
        # Switches that do nothing in these rows cannot tell codes apart.
        silent = [switch.name for place, switch in enumerate(stated) if not bits >> place & 1]
        alike = [(*entry[:2], *_heard(entry[2], silent)) for entry in book.formats]
        # Every code acts differently here: all stay.
        if len(set(alike)) == len(alike):
            continue
        where = np.flatnonzero(pattern == bits)
        for later in range(1, len(alike)):
            for first in (earlier for earlier in range(later) if alike[earlier] == alike[later]):
                kept[where, later] &= ~kept[where, first]
    return kept


def _heard(switches: Switches, silent: list[str]) -> tuple[tuple[str, Value], ...]:
    return tuple((name, value) for name, value in switches.stated().items() if name not in silent)
