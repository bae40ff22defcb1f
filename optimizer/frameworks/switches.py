"""Launch switches as records: what each is called, its values, and what is known of them whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.vocabulary import CpComm, CudaGraph, Dispatcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.specs.layout import Switches

Value = bool | int | str
OFF_ON = (False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One launch switch: a field of ``Switches``, an axis of the space, a key of layouts.

    ``values`` are those that some trainer has; the first is the plain one. ``changes_numbers``: results differ, so that it
    is searched only where it is opened by name. ``acts_on``: it does nothing where this is 1: the degree of an axis, or
    ``experts`` for models without them; empty where it acts in every layout. ``never_slower``: the last value is at least
    as fast as the others in every layout and takes no more memory, so that only it is searched.
    """

    name: str
    meaning: str
    values: tuple[Value, ...]
    acts_on: str = ""
    changes_numbers: bool = False
    never_slower: bool = False


SWITCHES: tuple[Switch, ...] = (
    Switch(
        name="ep_overlap",
        meaning="expert traffic of one micro-batch beside the compute of another (1F1B)",
        values=OFF_ON,
        acts_on="ep",
    ),
    Switch(
        name="delay_wgrad",
        meaning="the experts' weight gradients beside the next exchange",
        values=OFF_ON,
        acts_on="ep",
    ),
    Switch(
        name="shared_expert_overlap",
        meaning="expert traffic beside the shared experts",
        values=OFF_ON,
        acts_on="ep",
    ),
    Switch(
        name="dispatcher",
        meaning="how tokens reach their experts",
        values=tuple(Dispatcher),
        acts_on="ep",
    ),
    Switch(
        name="tp_overlap",
        meaning="tensor-parallel traffic beside compute, in the buffers that it is gathered in anyway",
        values=OFF_ON,
        acts_on="tp",
        never_slower=True,
    ),
    Switch(name="dp_overlap", meaning="gradient reductions beside compute", values=OFF_ON, never_slower=True),
    Switch(
        name="param_overlap", meaning="parameter gathers beside compute", values=OFF_ON, never_slower=True
    ),
    Switch(
        name="cp_kind",
        meaning="how context parallelism communicates",
        values=tuple(CpComm),
        acts_on="cp",
    ),
    Switch(name="cuda_graph", meaning="how much is replayed from CUDA graphs", values=tuple(CudaGraph)),
    Switch(
        name="loss_chunks",
        meaning="parts of the tokens whose logits exist one after another",
        values=(1, 8),
    ),
    Switch(
        name="fp8_param_gather",
        meaning="weights kept and gathered in 8 bits alone",
        values=OFF_ON,
        changes_numbers=True,
    ),
)

BY_NAME: Mapping[str, Switch] = {switch.name: switch for switch in SWITCHES}


def read_switch(name: str, text: object) -> Value:
    """Read a value as ``switch_text`` writes it; also true, false, on and off. Raises ValueError."""
    known = BY_NAME[name].values
    word = str(text).lower()
    if known == OFF_ON:
        word = {"true": "1", "on": "1", "false": "0", "off": "0"}.get(word, word)
    if name == "loss_chunks" and word.isascii() and word.isdecimal() and 1 <= int(word[:6]) <= 100_000:
        return int(word)
    for value in known:
        if word == switch_text(value):
            return value
    raise ValueError(f"{name} {text!r:.40} is none of {', '.join(map(switch_text, known))}")


def switch_text(value: Value) -> str:
    """Write a value: ``1`` and ``0`` for on and off, else its word or number."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def combination_fault(switches: Switches) -> str:
    """Say why switches can't be launched together, whatever the layout; empty if they can.

    NVIDIA/Megatron-LM core/transformer/transformer_config.py and training/arguments.py.
    """
    dispatcher = switches.dispatcher
    if switches.ep_overlap and switches.shared_expert_overlap:
        return "ep_overlap excludes shared_expert_overlap"
    if switches.delay_wgrad and not switches.ep_overlap:
        return "delay_wgrad needs ep_overlap"
    for name in ("ep_overlap", "shared_expert_overlap"):
        if getattr(switches, name) and dispatcher is Dispatcher.ALLGATHER:
            return f"{name} needs a dispatcher other than allgather"
    if switches.param_overlap and switches.dp_overlap is False:
        return "param_overlap needs dp_overlap"
    return ""
