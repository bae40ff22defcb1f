"""Launch switches as records: what each is called, its values, and what is known of them whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.model import Mixer
from layoutopt.optimizer.specs.vocabulary import CpComm, CudaGraph, Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.specs.layout import Layout, Switches
    from layoutopt.optimizer.specs.model import ModelSpec

Value = bool | int | str
OFF_ON = (False, True)


def _in_any(rows: Any) -> Any:
    return rows.tp > 0


def _of_experts(rows: Any) -> Any:
    return rows.ep > 1


def _of_replicas(rows: Any) -> Any:
    return rows.dp * rows.cp > 1


def _any_model(model: ModelSpec) -> bool:
    return True


def _with_experts(model: ModelSpec) -> bool:
    return model.is_moe


def _with_shared_experts(model: ModelSpec) -> bool:
    return model.moe is not None and model.moe.shared_ffn > 0


def _without_prediction_layers(model: ModelSpec) -> bool:
    """Whether the loss has one prediction: pytorch/torchtitan's chunks know no others (models/deepseek_v3/mtp.py)."""
    return model.mtp_layers == 0


def _that_attends(model: ModelSpec) -> bool:
    """Whether layers attend to keys that no indexer chooses: those may lie anywhere, and are gathered."""
    return model.indexer is None and any(shape.mixer is Mixer.ATTENTION for shape in model.shapes)


def _itself(value: Value, model: ModelSpec) -> Value:
    return value


def _without_ring(kind: Value, model: ModelSpec) -> Value:
    """Return the kind of context parallelism where a ring is meant: layers with a window gather instead."""
    windows = all(shape.window is not None for shape in model.shapes if shape.mixer is Mixer.ATTENTION)
    return CpComm.ALL_GATHER if windows and kind in (CpComm.P2P, CpComm.A2A_P2P) else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One launch switch: a field of ``Switches``, an axis of the space, a key of layouts.

    ``values`` are those that some trainer has; the first is the plain one. ``changes_numbers``: results differ, so that it
    is searched only where it is opened by name. ``traffic`` tells in which layouts there is what it acts on: of one
    layout, or of many as arrays; ``of`` in which models. ``needs`` names a switch without which this one can't be on.
    ``meant`` is what a value comes to in a model.
    ``never_slower``: the last value is at least as fast as the others in every layout and takes no more memory, so that
    only it is searched.
    """

    name: str
    meaning: str
    values: tuple[Value, ...]
    traffic: Callable[[Any], Any] = _in_any
    of: Callable[[ModelSpec], bool] = _any_model
    needs: str = ""
    meant: Callable[[Value, ModelSpec], Value] = _itself
    changes_numbers: bool = False
    never_slower: bool = False

    def acts(self, layout: Layout, model: ModelSpec | None) -> bool:
        """Whether it can change anything in a layout of a model; None: of one that is not known."""
        return bool(self.traffic(layout)) and (model is None or self.of(model))


SWITCHES: tuple[Switch, ...] = (
    Switch(
        name="ep_overlap",
        meaning="expert traffic of one micro-batch beside the compute of another (1F1B)",
        values=OFF_ON,
        traffic=_of_experts,
        of=_with_experts,
    ),
    Switch(
        name="delay_wgrad",
        meaning="the experts' weight gradients beside the next exchange",
        values=OFF_ON,
        needs="ep_overlap",
        traffic=_of_experts,
        of=_with_experts,
    ),
    Switch(
        name="shared_expert_overlap",
        meaning="expert traffic beside the shared experts",
        values=OFF_ON,
        traffic=_of_experts,
        of=_with_shared_experts,
    ),
    Switch(
        name="dispatcher",
        meaning="how tokens reach their experts",
        values=tuple(Dispatcher),
        traffic=_of_experts,
        of=_with_experts,
    ),
    Switch(
        name="tp_overlap",
        meaning="tensor-parallel traffic beside compute, in the buffers that it is gathered in anyway",
        values=OFF_ON,
        traffic=lambda rows: (rows.tp > 1) & (rows.sp > 0),
        never_slower=True,
    ),
    Switch(
        name="dp_overlap",
        meaning="gradient reductions beside compute",
        values=OFF_ON,
        traffic=_of_replicas,
        never_slower=True,
    ),
    Switch(
        name="param_overlap",
        meaning="parameter gathers beside compute",
        values=OFF_ON,
        needs="dp_overlap",
        traffic=lambda rows: _of_replicas(rows) & (rows.zero > 0),
        never_slower=True,
    ),
    Switch(
        name="cp_kind",
        meaning="how context parallelism communicates",
        values=tuple(CpComm),
        traffic=lambda rows: rows.cp > 1,
        of=_that_attends,
        meant=_without_ring,
    ),
    Switch(name="cuda_graph", meaning="how much is replayed from CUDA graphs", values=tuple(CudaGraph)),
    Switch(
        name="loss_chunks",
        meaning="parts of the tokens whose logits exist one after another",
        values=(1, 8),
        of=_without_prediction_layers,
    ),
    Switch(
        name="fp8_param_gather",
        meaning="weights kept and gathered in 8 bits alone",
        values=OFF_ON,
        changes_numbers=True,
    ),
    Switch(
        name="compiled",
        meaning="kernels fused by a compiler (torch.compile)",
        values=OFF_ON,
        never_slower=True,
    ),
)

BY_NAME: Mapping[str, Switch] = {switch.name: switch for switch in SWITCHES}


def _follows(name: str, value: Value, switches: Switches) -> bool:
    """Whether a switch is off since one that it needs is."""
    needs = BY_NAME[name].needs
    return bool(needs) and not value and getattr(switches, needs) is False


def acting(switches: Switches, layout: Layout, model: ModelSpec | None) -> Switches:
    """Leave out what can't change anything in a layout of a model, None: of one that is not known.

    That a switch is off needs no saying where one that it needs is.
    """
    silent = [
        name
        for name, value in switches.stated().items()
        if not BY_NAME[name].acts(layout, model) or _follows(name, value, switches)
    ]
    return replace(switches, **dict.fromkeys(silent)) if silent else switches


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
    for name in ("ep_overlap", "shared_expert_overlap"):
        if getattr(switches, name) and dispatcher is Dispatcher.ALLGATHER:
            return f"{name} needs a dispatcher other than allgather"
    if switches.delay_wgrad and not switches.ep_overlap:
        return "delay_wgrad needs ep_overlap"
    if switches.tp_overlap and switches.compiled is False:
        return "tp_overlap needs compiled"
    if switches.param_overlap and switches.dp_overlap is False:
        return "param_overlap needs dp_overlap"
    return ""
