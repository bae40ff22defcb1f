"""Runs in a referee's environment: bytes that real blocks of a trainer keep for their backward pass, by saved_tensors_hooks.

python saved_tensors.py SOURCE [TREE] < blocks.jsonl > findings.jsonl

SOURCE is ``transformers`` (its decoder layers as they are) or ``torchtitan`` (TREE is its checkout). A block is
``{"kind": .., "mode": .., "hidden": .., ...}``; a finding ``{"error": text or null, "kept": [[shape, dtype, bytes], ...]}``,
each storage once, without weights and without what comes from outside the block (positions). Attention is that of torch for
CPUs, which keeps queries, keys, values, output and a statistic of every row, as kernels for GPUs do.
"""

# mypy: disable-error-code="misc,no-any-return,untyped-decorator"
# torch is not installed where types are checked: its classes are Any there.
from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 480
"""Tokens of a finding, no width of any block: what is kept is proportional to them, as attention keeps no scores."""


def kept(
    block: nn.Module, run: Callable[[torch.Tensor], Any], x: torch.Tensor, outside: set[int]
) -> list[Any]:
    """Storages that one forward pass keeps."""
    found: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
    weights = [*block.parameters(), *block.buffers()]
    given = outside | own(*weights)
    sizes = [tuple(p.shape[-2:]) for p in weights if p.dim() > 1]  # of one expert where a tensor holds all
    shapes = {tuple(p.shape) for p in weights} | {*sizes} | {size[::-1] for size in sizes}
    run(x)  # whatever is compiled or cached at the first call

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if (
            storage.data_ptr() not in given and tuple(tensor.shape) not in shapes
        ):  # nor a weight's copy in 16 bits
            found[storage.data_ptr()] = (storage, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = run(x)
    del out
    return [[list(tensor.shape), str(tensor.dtype), storage.nbytes()] for storage, tensor in found.values()]


def own(*tensors: torch.Tensor) -> set[int]:
    """Addresses of what comes from outside."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


# The tag says that it must not run twice, which torch knows of its own kernels.
@torch.library.custom_op("referee::attention", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def attention_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and rows' statistics of batch x heads x tokens x width; of no values, which nobody looks at."""
    out = q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    return out, q.new_zeros(q.shape[:3], dtype=torch.float32)


@attention_kernel.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("referee::attention_backward", mutates_args=())
def backward_kernel(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    statistic: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients, which such kernels compute of all that the forward pass had and gave."""
    return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


@backward_kernel.register_fake
def _(grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: torch.Tensor) -> Any:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
    return backward_kernel(grad, *ctx.saved_tensors)


attention_kernel.register_autograd(_backward, setup_context=_setup)
attention_kernel.register_autocast("cpu", torch.bfloat16)  # as torch does with its own kernels


class Attention(nn.Module):
    """Attention in the place of torchtitan's kernel for GPUs: torch's for CPUs, or what keeps the same where that can't."""

    def __init__(self, real: bool) -> None:
        super().__init__()
        self.real = real

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        """Attend over one sequence of tokens x heads x width; ``out_transform`` gets the rows' statistics."""
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
        if self.real:
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
            out, statistic = flash(q, k, v, 0.0, True)
        else:
            out, statistic = attention_kernel(q, k, v)
        out = out.squeeze(0).transpose(0, 1)
        transform = options.get("out_transform")
        return out if transform is None else transform(out, statistic.squeeze(0).transpose(0, 1))


def torchtitan_config(block: dict[str, Any]) -> Any:
    """Torchtitan's own configuration of one layer."""
    from torchtitan.models import deepseek_v3, gpt_oss, llama3, qwen3
    from torchtitan.models.common import ComplexRoPE, CosSinRoPE

    width = block["qk_rope"] if block["kind"] == "latent" else block["head_dim"]
    form = ComplexRoPE if block["kind"] in ("dense", "latent") else CosSinRoPE
    rope = form.Config(dim=width, max_context_length=TOKENS)
    sizes = {
        "n_layers": 1,
        "dim": block["hidden"],
        "n_heads": block["heads"],
        "attn_backend": "flex",
        "rope": rope,
    }
    grouped = {"n_kv_heads": block["kv_heads"]}
    sparse = {"moe_comm_backend": "standard", "non_blocking_capacity_factor": None}
    if block["kind"] == "dense":
        build = llama3._build_llama3_layers  # noqa: SLF001
        return build(**sizes, **grouped, hidden_dim=block["ffn"])[0]
    experts = {"moe_hidden_dim": block["expert_ffn"], "num_experts": block["experts"]}
    if block["kind"] == "sparse":
        build = qwen3._build_qwen3_moe_layers  # noqa: SLF001
        return build(
            **sizes, **grouped, **sparse, **experts, head_dim=block["head_dim"], top_k=block["top_k"]
        )[0]
    if block["kind"] == "windowed":
        build = gpt_oss._build_gptoss_layers  # noqa: SLF001  # its heads are fixed: 64 and 8 of width 64
        own = {"hidden_dim": block["expert_ffn"], "num_experts": block["experts"], "top_k": block["top_k"]}
        del sizes["n_heads"]
        return build(**sizes, **sparse, **own, load_balance_coeff=1e-3)[0]
    build = deepseek_v3._build_dsv3_layers  # noqa: SLF001
    latent = {
        "q_lora_rank": block["q_lora"], "kv_lora_rank": block["kv_lora"], "qk_nope_head_dim": block["qk_nope"],
        "qk_rope_head_dim": block["qk_rope"], "v_head_dim": block["v_head"], "mscale": 1.0,
    }  # fmt: skip
    router = {"router_top_k": block["top_k"], "router_score_func": "sigmoid", "num_shared_experts": 1}
    return build(**sizes, **sparse, **experts, **latent, **router, n_dense_layers=0, dense_hidden_dim=0)[0]


def torchtitan(block: dict[str, Any]) -> list[Any]:
    """A layer of torchtitan in the 16-bit weights that FSDP gathers."""
    module = torchtitan_config(block).build()
    for part in module.modules():
        if hasattr(part, "_debug_force_load_balance"):
            part._debug_force_load_balance = True  # noqa: SLF001
    module.attention.inner_attention = Attention(real=block["kind"] in REAL)
    module = prepared(module)
    x = torch.randn(TOKENS, block["hidden"], dtype=torch.bfloat16, requires_grad=True)
    positions = torch.arange(TOKENS)
    torch._dynamo.config.capture_scalar_outputs = True  # noqa: SLF001  # as torchtitan/distributed/compile.py
    run = torch.compile(module, fullgraph=True) if block["mode"] == "compiled" else module
    return kept(module, lambda t: run(t, None, positions), x, own(positions))


def prepared(module: nn.Module) -> nn.Module:
    """Some values in every weight, in 16 bits; positions' buffers as they are."""
    for p in module.parameters():
        p.data = torch.randn_like(p, dtype=torch.float32).mul(0.02).to(torch.bfloat16)
    return module


def transformers(block: dict[str, Any]) -> list[Any]:
    """A decoder layer of transformers, in 16-bit weights or under autocast."""
    import importlib

    from transformers import AttentionInterface, models

    family, name, more = FAMILIES[block["kind"]]

    part = importlib.import_module(f"{models.__name__}.{family}.modeling_{family}")
    own_config = getattr(
        importlib.import_module(f"{models.__name__}.{family}.configuration_{family}"), f"{name}Config"
    )
    AttentionInterface.register("kernel", kernel_of_transformers)
    kernel = "sdpa" if block["kind"] in ("dense", "sparse") else "kernel"
    config = own_config(**common(block), **more(block), attn_implementation=kernel, num_hidden_layers=1)
    module = getattr(part, f"{name}DecoderLayer")(config, 0)
    rotary = getattr(part, f"{name}RotaryEmbedding")(config)
    narrow = block["mode"] == "16-bit"
    kind = torch.bfloat16 if narrow else torch.float32
    module = prepared(module).to(kind)
    x = torch.randn(1, TOKENS, block["hidden"], dtype=kind, requires_grad=True)
    positions = torch.arange(TOKENS)[None]
    embeddings = rotary(x, positions)
    outside = own(*embeddings, positions)
    autocast = (
        contextlib.nullcontext()
        if narrow
        else torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)
    )

    def run(t: torch.Tensor) -> Any:
        with autocast:
            return module(t, attention_mask=None, position_ids=positions, position_embeddings=embeddings)

    return kept(module, run, x, outside)


def kernel_of_transformers(
    module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any
) -> Any:
    """Attention as transformers calls it."""
    return attention_kernel(q, k, v)[0].transpose(1, 2), None


def common(block: dict[str, Any]) -> dict[str, Any]:
    """What every configuration of transformers has."""
    return {
        "hidden_size": block["hidden"], "num_attention_heads": block["heads"], "intermediate_size": block["ffn"],
        "num_key_value_heads": block["kv_heads"], "vocab_size": 256, "max_position_embeddings": TOKENS,
    }  # fmt: skip


FAMILIES: dict[str, tuple[str, str, Any]] = {
    "dense": ("llama", "Llama", lambda _: {}),
    "windowed": ("mistral", "Mistral", lambda b: {"sliding_window": b["window"]}),
    "sparse": (
        "qwen3_moe", "Qwen3Moe",
        lambda b: {
            "num_experts": b["experts"], "num_experts_per_tok": b["top_k"], "moe_intermediate_size": b["expert_ffn"],
            "head_dim": b["head_dim"],
        },
    ),
    "latent": (
        "deepseek_v3", "DeepseekV3",
        lambda b: {
            "q_lora_rank": b["q_lora"], "kv_lora_rank": b["kv_lora"], "qk_nope_head_dim": b["qk_nope"],
            "qk_rope_head_dim": b["qk_rope"], "v_head_dim": b["v_head"], "n_routed_experts": b["experts"],
            "num_experts_per_tok": b["top_k"], "moe_intermediate_size": b["expert_ffn"], "n_shared_experts": 1,
            "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
        },
    ),
}  # fmt: skip
REAL = ("dense", "sparse", "windowed")
"""Blocks whose attention torch's kernel for CPUs computes, which wants values as wide as keys; a window keeps no less."""
SOURCES: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "torchtitan": torchtitan,
    "transformers": transformers,
}


def main() -> None:
    """Answer line by line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if len(sys.argv) > 2:
        sys.path.insert(0, sys.argv[2])
        torch._utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001
    for line in sys.stdin.read().splitlines():
        try:
            found: dict[str, Any] = {"error": None, "kept": SOURCES[sys.argv[1]](json.loads(line))}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", "kept": []}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
