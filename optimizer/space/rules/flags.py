"""Rules on stated flags: overlap, offload, graphs, environment. What isn't stated isn't judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.rule import MEGATRONS, Rule, everywhere, mask, says
from layoutopt.optimizer.space.rules.recompute import per_entry
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Detail, Factors
    from layoutopt.optimizer.specs.layout import Layout

_ARGUMENTS = "NVIDIA/Megatron-LM training/arguments.py"
_CONFIG = "NVIDIA/Megatron-LM core/transformer/transformer_config.py"


def _when(flag: str, fits: Callable[[LayoutBatch, Context], BoolArray]) -> Callable[..., BoolArray]:
    """Apply a predicate only where the flag is switched on."""

    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) fit where the flag is set."""
        # A flag that is stated as off asks for nothing.
        return fits(rows, ctx) if getattr(ctx.options, flag) else everywhere(rows)

    return holds


def _fixed(rows: LayoutBatch, holds: bool) -> BoolArray:
    return np.full(len(rows), holds)


def _no_sequence_parallel(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.sp == 0)


def _activation_offload(rows: LayoutBatch, ctx: Context) -> BoolArray:
    plain = per_entry(lambda recompute, _: recompute.granularity is Granularity.NONE)(rows, ctx)
    return mask((rows.pp == 1) & plain)


def _aware_optimizer(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return _fixed(rows, ctx.options.precision_aware_optimizer is not False)


def _connections(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """One hardware queue orders tp and cp kernels before Blackwell, FSDP needs several; both only warn."""
    one = ctx.options.cuda_device_max_connections == 1
    # Blackwell's streams keep their order without a single queue.
    ordered = ((rows.tp > 1) | (rows.cp > 1)) & (not ctx.cluster.gpu.generation.ordered_streams)
    sharded = rows.zero >= 2
    return mask((~sharded | ordered) if one else (~ordered | sharded))


def _connections_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    stated = ctx.options.cuda_device_max_connections or 0
    need = "other than 1 for FSDP" if stated == 1 else "1 for tp or cp > 1 before Blackwell"
    text = f"CUDA_DEVICE_MAX_CONNECTIONS is {stated}, must be {need}"
    return text, {
        "cuda_device_max_connections": stated,
        "tp": layout.tp,
        "cp": layout.cp,
        "zero": layout.zero,
    }


def _exact_vocabulary(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(ctx.model.vocab % rows.tp == 0)


def _vocabulary_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    vocab, tp = ctx.model.vocab, layout.tp
    rows = padded_vocabulary(vocab, tp)
    text = f"vocabulary {vocab:,} % tp {tp} = {vocab % tp}; padded it would have {rows:,} rows"
    return text, {"vocab": vocab, "tp": tp, "padded": rows}


def padded_vocabulary(vocab: int, tp: int) -> int:
    """Return the vocabulary padded to a multiple of 128*tp (Megatron-LM training/vocab_utils.py)."""
    step = 128 * tp
    return -(-vocab // step) * step


def _graphs(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.pp == 1) & ((rows.ep == 1) | _fixed(rows, ctx.options.dispatcher == "hybridep")))


def _stated(name: str, flag: str, holds: Callable[..., BoolArray], detail: Detail, **more: object) -> Rule:
    """Build a launch-only rule of the Megatron frameworks that rests on a flag."""
    fields: dict[str, object] = {
        "frameworks": MEGATRONS,
        "source": _CONFIG,
        "launch_only": True,
        "reads": frozenset({"tp", "cp", "sp", "pp", "vp", "ep", "zero", "recompute"}),
    }
    return Rule(name=name, flag=flag, holds=holds, detail=detail, **(fields | more))  # type: ignore[arg-type]


RULES: tuple[Rule, ...] = (
    _stated(
        "distributed_activations_without_sp",
        "distribute_saved_activations",
        _when("distribute_saved_activations", _no_sequence_parallel),
        says("distribute_saved_activations excludes sequence parallelism", "sp"),
        formula="distribute_saved_activations => not sp",
        reason="with sequence parallelism the saved inputs are already sharded",
    ),
    _stated(
        "activation_offload_alone",
        "activation_offload",
        _when("activation_offload", _activation_offload),
        says("activation offload needs one stage and no recomputation", "pp"),
        formula="activation offload => pp = 1 and no recomputation",
        reason="offloaded tensors are neither recomputed nor sent",
    ),
    _stated(
        "optimizer_offload_precision_aware",
        "optimizer_offload",
        _when("optimizer_offload", _aware_optimizer),
        says("optimizer offload without the precision-aware optimizer"),
        formula="optimizer offload => precision-aware optimizer",
        reason="only that optimizer keeps its state apart from the GPU's",
        source=_ARGUMENTS,
    ),
    _stated(
        "cuda_device_max_connections",
        "cuda_device_max_connections",
        _connections,
        _connections_detail,
        formula="tp or cp > 1 before Blackwell => 1; FSDP => not 1",
        reason="communication must be launched before the GEMM that hides it; FSDP needs several queues",
        source=_ARGUMENTS,
    ),
    _stated(
        "vocab_mod_tp",
        "exact_vocab",
        _when("exact_vocab", _exact_vocabulary),
        _vocabulary_detail,
        formula="unpadded vocabulary % tp = 0",
        reason="a preset vocabulary size isn't padded",
        source="NVIDIA-NeMo/Megatron-Bridge models (vocab_size)",
    ),
    _stated(
        "cuda_graphs_axes",
        "cuda_graphs",
        _when("cuda_graphs", _graphs),
        says("CUDA graphs need pp = 1, and ep = 1 unless the dispatcher is hybridep", "pp", "ep"),
        formula="CUDA graphs => pp = 1; ep > 1 => hybridep",
        reason="captured graphs can't contain data-dependent transfers",
        source="pytorch/torchtitan trainer.py",
        frameworks=frozenset({Framework.TORCHTITAN}),
    ),
)
