"""Runs in the referee's environment: bytes of all tensors that are alive, and the most of them."""

# mypy: disable-error-code="misc"
# torch is not installed where types are checked: its classes are Any there.
from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Adds up the storages that are alive after every operator; what an operator frees before it ends is not seen."""

    def __init__(self, *held: Any) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref[Any]] = {}
        self.peak_bytes = 0
        self.see(held)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; what runs inside a distributed tensor's operator comes by once more."""
        if any(kind is DTensor for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.see((args, kwargs, result))
        return result

    def see(self, values: Any) -> None:
        """Note what storages there are now; FSDP resizes some to nothing and back."""
        for leaf in tree_leaves(values):
            if isinstance(leaf, torch.Tensor):
                storage = (leaf.to_local() if isinstance(leaf, DTensor) else leaf).untyped_storage()
                known = self.storages.get(storage._cdata)  # noqa: SLF001  # no other name of a storage
                if known is None or known() is None:
                    self.storages[storage._cdata] = weakref.ref(storage)  # noqa: SLF001
        alive = {place: one for place, ref in self.storages.items() if (one := ref()) is not None}
        self.storages = {place: self.storages[place] for place in alive}
        self.peak_bytes = max(self.peak_bytes, sum(int(one.nbytes()) for one in alive.values()))


def peak_bytes(step: Any, modules: Any, optimizer: torch.optim.Optimizer) -> int:
    """The most that is alive in a step, with weights, gradients and moments; inputs and targets among it."""
    held = [[p, p.grad] for module in modules for p in module.parameters()]
    live = Live(held, [dict(state) for state in optimizer.state.values()])
    with live:
        step()
    return live.peak_bytes
