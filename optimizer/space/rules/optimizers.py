"""Rules on optimizers: which a trainer has, what it shards of them, and how ranks share Muon's work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.optimizers import OPTIMIZERS
from layoutopt.optimizer.frameworks.registry import abilities_of
from layoutopt.optimizer.space.rule import MEGATRONS, Rule, everywhere, mask
from layoutopt.optimizer.specs.vocabulary import MuonSharing, Optimizer, Saver

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout

_STATE_SAVERS = {Saver.BF16_MOMENTS, Saver.OFFLOAD_OPTIMIZER}
_ELEMENT_WISE = (Optimizer.ADAMW, Optimizer.SGD)


def _orthogonal(ctx: Context) -> bool:
    return OPTIMIZERS[ctx.training.optimizer.kind].orthogonal


def _supported(rows: LayoutBatch, ctx: Context) -> BoolArray:
    known = abilities_of(ctx.framework, ctx.release).optimizers
    return np.full(len(rows), ctx.training.optimizer.kind in known)


def _supported_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    kind = ctx.training.optimizer.kind
    known = ", ".join(abilities_of(ctx.framework, ctx.release).optimizers)
    return f"{ctx.framework} has no {kind}; valid: {known}", {"optimizer": kind.value}


def _sharded_weights(rows: LayoutBatch, ctx: Context) -> BoolArray:
    # Adam and SGD work element by element, so that it does not matter where a matrix is cut.
    return mask((rows.zero < 2) | (ctx.training.optimizer.kind in _ELEMENT_WISE))


def _zero_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    spec = ctx.training.optimizer
    words = f"{spec.kind} {spec.distribution}" if spec.distribution else spec.kind.value
    return f"{words} with ZeRO-{layout.zero}", {"optimizer": words, "zero": layout.zero}


def _owners(rows: LayoutBatch, ctx: Context) -> BoolArray:
    owner = _orthogonal(ctx) and ctx.training.optimizer.distribution is MuonSharing.OWNER
    return mask(rows.zero >= 1) if owner else everywhere(rows)


def _whole_state(rows: LayoutBatch, ctx: Context) -> BoolArray:
    way = ctx.training.optimizer.distribution
    shared = _orthogonal(ctx) and way in (MuonSharing.DUPLICATED, MuonSharing.DISTRIBUTED)
    return mask(rows.zero == 0) if shared else everywhere(rows)


def _savers(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if ctx.training.optimizer.kind is Optimizer.ADAMW:
        return everywhere(rows)
    plain = np.array([not _STATE_SAVERS & set(savers) for _, savers, _ in rows.codebook.formats], dtype=bool)
    return np.asarray(plain[rows.precision])


def _savers_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    savers = ", ".join(saver for saver in layout.savers if saver in _STATE_SAVERS)
    kind = ctx.training.optimizer.kind
    return f"{savers} with {kind}", {"savers": savers, "optimizer": kind.value}


RULES: tuple[Rule, ...] = (
    Rule(
        name="optimizer_supported",
        formula="the optimizer is in the framework's list",
        reason="the trainer has to have it",
        source="NVIDIA/Megatron-LM --optimizer: adam, sgd; muon and dist_muon from core 0.16, lion from 0.17; "
        "deepspeedai/DeepSpeed optimizer.type; huggingface/transformers optim",
        reads=frozenset(),
        axis="optimizer",
        holds=_supported,
        detail=_supported_detail,
    ),
    Rule(
        name="optimizer_sharding",
        formula="zero >= 2 => AdamW or SGD",
        reason="Megatron-FSDP cuts matrices over ranks",
        source="NVIDIA/Megatron-LM arguments.py: other optimizers take neither Megatron-FSDP nor FSDP2",
        reads=frozenset({"zero"}),
        holds=_sharded_weights,
        detail=_zero_detail,
        frameworks=MEGATRONS,
    ),
    Rule(
        name="muon_owner_needs_zero",
        formula="Muon's matrices have owners => zero >= 1",
        reason="an owner holds the state of its matrices alone",
        source="NVIDIA/Megatron-LM core/optimizer/layer_wise_optimizer.py",
        reads=frozenset({"zero"}),
        holds=_owners,
        detail=_zero_detail,
    ),
    Rule(
        name="muon_without_owner",
        formula="Muon duplicated or distributed => zero = 0",
        reason="every rank needs the whole momentum",
        source="NVIDIA/Megatron-LM arguments.py: with the distributed optimizer Muon is the layer-wise one",
        reads=frozenset({"zero"}),
        holds=_whole_state,
        detail=_zero_detail,
        frameworks=MEGATRONS,
    ),
    Rule(
        name="savers_need_adam",
        formula="16-bit moments or an optimizer in host memory => AdamW",
        reason="both are written for Adam's state",
        source="NVIDIA/Megatron-LM --use-precision-aware-optimizer; deepspeedai/DeepSpeed CPU Adam",
        reads=frozenset({"precision"}),
        axis="savers",
        holds=_savers,
        detail=_savers_detail,
    ),
)
