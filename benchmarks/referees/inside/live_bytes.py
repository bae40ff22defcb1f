"""Runs in the referee's environment: bytes of all tensors that are alive, the most of them, and what they are."""

# mypy: disable-error-code="misc,no-any-return"
# torch is not installed where types are checked: its classes are Any there.
from __future__ import annotations

import weakref
from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GATHERS = ("fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "c10d::_allgather_base_")
REDUCES = ("fsdp::chunk_cat", "c10d::_reduce_scatter_base_")


class Live(TorchDispatchMode):
    """Adds up the storages that are alive after every operator, by what they are; see ``peak_bytes``.

    What an operator frees before it ends is not seen, nor is what the communication library allocates for itself while
    a collective is waited for: gloo copies whole inputs, libraries for GPUs have buffers of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref[Any]] = {}
        self.kinds: dict[int, str] = {}
        self.peak_bytes = 0
        self.peak: list[tuple[weakref.ref[Any], int, str]] = []
        self.waits = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; what runs inside a distributed tensor's operator comes by once more."""
        if any(kind is DTensor for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        if not self.waits and name != "c10d::send":  # what is sent are copies
            kind = "gathered" if name in GATHERS else "reduced" if name in REDUCES else ""
            self.see((args, kwargs, result), kind)
        return result

    def see(self, values: Any, kind: str = "") -> None:
        """Note what storages there are now, and of what kind; FSDP resizes some to nothing and back."""
        for leaf in tree_leaves(values):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf, kind)
        alive = {place: one for place, ref in self.storages.items() if (one := ref()) is not None}
        self.storages = {place: self.storages[place] for place in alive}
        total = sum(int(one.nbytes()) for one in alive.values())
        if total > self.peak_bytes:
            self.peak_bytes = total
            self.peak = [
                (self.storages[place], int(one.nbytes()), self.kinds[place]) for place, one in alive.items()
            ]

    def note(self, tensor: torch.Tensor, kind: str) -> None:
        """Remember a tensor's storage; the first kind that is told of it stays."""
        place = place_of(tensor)
        known = self.storages.get(place)
        if known is None or known() is None:
            self.storages[place] = weakref.ref(local(tensor).untyped_storage())
            self.kinds[place] = ""
        self.kinds[place] = self.kinds[place] or kind

    def saved(self, tensor: torch.Tensor, kind: str) -> torch.Tensor:
        """A tensor that autograd keeps for the backward pass; itself it would keep the graph that it came out of."""
        self.note(tensor, kind)
        return tensor.detach()


def local(value: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that this rank holds, and what a wrapper of a collective's result stands for."""
    value = value.to_local() if isinstance(value, DTensor) else value
    return value.elem if isinstance(value, AsyncCollectiveTensor) else value


def place_of(tensor: torch.Tensor) -> int:
    """What tells a storage from others that are alive."""
    return local(tensor).untyped_storage()._cdata  # noqa: SLF001  # no other name of a storage


def peak_bytes(
    step: Any, modules: list[Any], optimizer: torch.optim.Optimizer, received: list[torch.Tensor]
) -> dict[str, int]:
    """``all``: the most that is alive in a step, and what it is.

    Of ``weights``, ``gradients`` and moments (``optimizer``) what this rank holds, ``receive``: buffers that a pipeline
    receives in; ``gathered`` and ``reduced``: buffers
    of FSDP's collectives and the whole weights; ``saved``: what autograd keeps of blocks, ``ends`` of all else;
    ``working``: the rest.
    """
    live, inside = Live(), [0]
    for module in modules:
        live.see(list(module.parameters()), "weights")
    live.see([dict(state) for state in optimizer.state.values()], "optimizer")
    live.see(received, "receive")
    received.clear()

    def enter(*_: Any) -> None:
        inside[0] += 1

    def leave(*_: Any) -> None:
        inside[0] -= 1

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        return live.saved(tensor, "saved" if inside[0] else "ends")

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        live.waits = True
        try:
            return waited(work, *args, **kwargs)
        finally:
            live.waits = False

    waited = dist.Work.wait
    hooks = [
        hook
        for module in modules
        for block in module.blocks
        for hook in (block.register_forward_pre_hook(enter), block.register_forward_hook(leave))
    ]
    with ExitStack() as stack:
        stack.enter_context(patch.object(dist.Work, "wait", wait))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor))
        stack.enter_context(live)
        step()
    for hook in hooks:
        hook.remove()
    held = {place_of(p.grad) for module in modules for p in module.parameters() if p.grad is not None}
    found: Counter[str] = Counter()
    for ref, size, kind in live.peak:
        one = ref()
        found["gradients" if one is not None and one._cdata in held else kind or "working"] += size  # noqa: SLF001
    return {"all": live.peak_bytes, **found}
