"""Blocks of real trainers whose saved tensors are counted, beside what we say that such a layer keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.ask.load import load_cluster
from layoutopt.optimizer.cost.activations import layer_activations
from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.model import LayerShape, MlaSpec, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator

Block = dict[str, Any]
TOKENS = 480
"""No width of any block, so that shapes tell weights from activations."""
GROUPED = {"hidden": 1024, "heads": 16, "kv_heads": 4, "head_dim": 64, "ffn": 2816}
SPARSE = {**GROUPED, "experts": 16, "top_k": 4, "expert_ffn": 512}
LATENT = {
    **SPARSE, "kv_heads": 16, "q_lora": 384, "kv_lora": 256, "qk_nope": 64, "qk_rope": 32, "v_head": 64,
}  # fmt: skip
KINDS: dict[str, Block] = {
    "dense": GROUPED,
    "windowed": {**GROUPED, "window": 128},
    "sparse": SPARSE,
    "latent": LATENT,
}
GPT_OSS = {**SPARSE, "heads": 64, "kv_heads": 8, "window": 128}
"""Torchtitan's windowed block, whose heads are fixed."""
MODES = {
    ("transformers", "16-bit"): Framework.DEEPSPEED,
    ("transformers", "autocast"): Framework.ACCELERATE,
    ("torchtitan", "compiled"): Framework.TORCHTITAN,
}
"""Whose blocks, how they run, and the preset that says what they keep."""
LIMITS = {"16-bit": 0.05, "autocast": 0.05, "compiled": 0.01, "fused": 0.01}


def blocks() -> Iterator[Block]:
    """Every kind of block in every mode."""
    for source, mode in MODES:
        for kind, sizes in KINDS.items():
            own = GPT_OSS if (source, kind) == ("torchtitan", "windowed") else sizes
            yield {"source": source, "mode": mode, "kind": kind, "tokens": TOKENS, **own}


def model_of(block: Block) -> ModelSpec:
    """The model of one such layer."""
    sparse, latent = "experts" in block, block["kind"] == "latent"
    sinks = sparse and "window" in block
    moe, mla = None, None
    if sparse:
        shared = {"shared_ffn": block["expert_ffn"], "router_bias": True} if latent else {}
        moe = MoeSpec(experts=block["experts"], top_k=block["top_k"], ffn=block["expert_ffn"], **shared)
    if latent:
        mla = MlaSpec(
            q_lora_rank=block["q_lora"],
            kv_lora_rank=block["kv_lora"],
            qk_nope_head_dim=block["qk_nope"],
            qk_rope_head_dim=block["qk_rope"],
            v_head_dim=block["v_head"],
        )
    shape = LayerShape(mlp=Mlp.MOE if sparse else Mlp.DENSE, ffn=0 if sparse else block["ffn"])
    sizes = {name: block[name] for name in ("hidden", "heads", "kv_heads", "head_dim")}
    run = Run(name="block", block=(shape,), count=1)
    normed = block["kind"] == "sparse"
    return ModelSpec(
        name="block", vocab=256, runs=(run,), moe=moe, mla=mla, qk_norm=normed, attention_sinks=sinks, **sizes
    )


def kept_bytes(block: Block) -> float:
    """Bytes that we say the block keeps for one sequence of its tokens on one GPU."""
    model = model_of(block)
    training = TrainingSpec(
        sequence_length=block["tokens"], global_batch=1, precision=Precision.BF16, moe_imbalance=1.0
    )
    framework = MODES[(block["source"], block["mode"])]
    cost = build_cost_model(model, training, load_cluster("h100x8"), framework=framework)
    batch = batch_of_one(Layout())
    keys = cost.comm_context(batch, DEFAULT_MESH_ORDER).keys
    return float(layer_activations(cost.compute_context(batch), keys, model.runs[0].block[0]).kept_bytes[0])
