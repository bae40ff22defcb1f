"""Compute time of attention to one key that all heads share, beside compressed keys (DeepSeek-V4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.flops import compressed_keys, score_width
from layoutopt.optimizer.cost.hardware import attention_s
from layoutopt.optimizer.cost.mixers import compressed_inputs, compressed_outputs, compressed_queries
from layoutopt.optimizer.cost.work import Work, linear, moved

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.work import ComputeContext, Keys
    from layoutopt.optimizer.specs.model import LayerShape


def compressed_projections(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> dict[str, Work]:
    """Time the projections of attention to one shared key; those that all heads share see sharded tokens.

    The output projection of a group of heads multiplies its own columns alone; positions are turned in queries, keys
    and, back again, in the output.
    """
    model, one, share = ctx.model, np.ones_like(keys.tp), ctx.cast_share(keys)
    query, (grouped, joined) = compressed_queries(model), compressed_outputs(model)
    heads = model.heads / keys.tp
    down = moved(ctx, 0.0 * one, 0.0 * one)
    for weight in compressed_inputs(model, shape):
        down = down + linear(ctx, keys.local_tokens, one * weight.rows, one * weight.columns)
    up = linear(ctx, keys.tokens, query.rows / keys.tp, one * query.columns, normed=True, input_share=share)
    output = linear(ctx, keys.tokens, grouped.rows / keys.tp, one * grouped.columns)
    output = output + linear(
        ctx, keys.tokens, one * joined.rows, joined.columns / keys.tp, output_share=share
    )
    rotary = keys.tokens * model.head_dim * (2 * heads + 1) * 8.0
    return {"qkv": down + up, "rotary": moved(ctx, rotary, rotary), "proj": output}


def compressed_attention_work(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> Work:
    """Time fused attention to compressed keys beside the window, all of them or the chosen ones."""
    model, length = ctx.model, float(ctx.training.sequence_length)
    seen = compressed_keys(model, shape, length, causal=not ctx.rates.ideal)
    flops = 2 * seen * score_width(model) * keys.tokens / keys.tp
    heads = np.maximum(model.heads / keys.tp, 1.0)
    tiles = keys.micro_batch * heads * np.ceil(keys.sequence / 128)
    reach = length / shape.compression
    if shape.sparse and model.indexer is not None:
        reach = min(reach, float(model.indexer.top_k))
    # A kernel's efficiency follows from the keys that it sees, not from the sequence.
    reached = np.full_like(keys.tp, reach)
    forward, backward = (
        attention_s(
            ctx.rates, flops, tiles=tiles, length=reached, head_dim=float(model.head_dim), backward=way
        )
        for way in (False, True)
    )
    return Work(forward, backward, np.zeros_like(forward))
