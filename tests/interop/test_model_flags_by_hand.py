"""What the exporters of Megatron-LM and Megatron-Bridge write of a model, its states and its stages, one part at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checks.agreement import dense_model, windowed
from checks.targets import DENSE, EXPERTS, FULL, on, says, staged, target

from layoutopt.optimizer.interop.megatron import write_model
from layoutopt.optimizer.interop.megatron.variants import variant_settings
from layoutopt.optimizer.interop.megatron_bridge import write as bridge
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layer_runs import runs_of, with_indexers
from layoutopt.optimizer.specs.model import IndexerSpec, LinearSpec, Mixer, MlaSpec, Norm
from layoutopt.optimizer.specs.vocabulary import (
    CudaGraph,
    Dispatcher,
    Saver,
)

MOE = EXPERTS.moe
assert MOE is not None
MODEL_FLAGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {},
        {
            "--num-layers": 8, "--hidden-size": 1024, "--ffn-hidden-size": 2816, "--num-attention-heads": 16,
            "--group-query-attention": True, "--num-query-groups": 8, "--kv-channels": 64, "--swiglu": True,
            "--disable-bias-linear": True, "--normalization": "RMSNorm", "--untie-embeddings-and-output-weights": True,
            "--position-embedding-type": "rope", "--attention-dropout": "0.0", "--hidden-dropout": "0.0",
            "--qk-layernorm": None, "--rotary-base": None, "--norm-epsilon": None, "--num-experts": None,
            "--attention-backend": None, "--softmax-type": None, "--add-qkv-bias": None,
        },
    ),
    (
        {"model": dense_model(8, 16, rope_base=5e5, norm_epsilon=1e-6, qk_norm=True, norm=Norm.LAYER, gated=False,
            tied_embeddings=True)},
        {
            "--group-query-attention": None, "--num-query-groups": None, "--rotary-base": 500_000, "--norm-epsilon": 1e-6,
            "--qk-layernorm": True, "--normalization": "LayerNorm", "--swiglu": None,
            "--untie-embeddings-and-output-weights": None,
        },
    ),
    ({"model": dense_model(8, attention_bias=True, qkv_bias=True, mlp_bias=True)}, {"--disable-bias-linear": None,
        "--add-qkv-bias": None}),
    ({"model": dense_model(8, qkv_bias=True)}, {"--disable-bias-linear": True, "--add-qkv-bias": True}),
    ({"model": dense_model(8, learned_positions=9)}, {"--position-embedding-type": "learned_absolute"}),
    ({"model": dense_model(8, attention_sinks=True), "release": (0, 15)}, {"--softmax-type": "learnable"}),
    ({"model": dense_model(8, attention_sinks=True), "release": (0, 14)}, {"--softmax-type": None}),
    ({"model": dense_model(8, rope_base=5e5), "release": (0, 7)}, {"--rotary-base": None}),
    ({"training": {"flash": False, "dropout": True}, "release": (0, 11)}, {"--attention-backend": "unfused",
        "--hidden-dropout": "0.1"}),
    ({"training": {"flash": False}, "release": (0, 10)}, {"--attention-backend": None}),
    (
        {"model": dense_model(8, mla=MlaSpec(q_lora_rank=0, kv_lora_rank=8, qk_nope_head_dim=16, qk_rope_head_dim=4,
            v_head_dim=12)), "release": (0, 12)},
        {
            "--multi-latent-attention": True, "--q-lora-rank": None, "--kv-lora-rank": 8, "--qk-head-dim": 16,
            "--qk-pos-emb-head-dim": 4, "--v-head-dim": 12, "--no-rope-fusion": True, "--kv-channels": 12,
            "--qk-layernorm": True, "--group-query-attention": None,
        },
    ),
    (
        {"model": dense_model(8, mla=MlaSpec(q_lora_rank=3, kv_lora_rank=8, qk_nope_head_dim=16, qk_rope_head_dim=4,
            v_head_dim=12)), "release": (0, 13)},
        {"--q-lora-rank": 3, "--no-rope-fusion": None},
    ),
    (
        {"model": EXPERTS, "release": (0, 10)},
        {
            "--num-experts": 16, "--moe-layer-freq": "([0]*1+[1]*7)", "--moe-ffn-hidden-size": 512, "--moe-router-topk": 2,
            "--moe-shared-expert-intermediate-size": 512, "--moe-router-num-groups": None, "--ffn-hidden-size": 2816,
            "--moe-router-score-function": None, "--moe-router-enable-expert-bias": None, "--moe-router-pre-softmax": None,
            "--moe-expert-capacity-factor": None, "--moe-pad-expert-input-to-capacity": None,
        },
    ),
    ({"model": EXPERTS, "release": (0, 9)}, {"--moe-ffn-hidden-size": None}),
    (
        {
            "model": replace(EXPERTS, moe=replace(MOE, router_bias=True, router_groups=4, router_group_limit=2,
            router_scaling=2.5, capacity_factor=1.5, shared_ffn=0, top_k=1)), "release": (0, 11),
        },
        {
            "--moe-router-num-groups": 4, "--moe-router-group-topk": 2, "--moe-router-topk-scaling-factor": 2.5,
            "--moe-router-score-function": "sigmoid", "--moe-router-enable-expert-bias": True,
                "--moe-router-pre-softmax": None,
            "--moe-expert-capacity-factor": 1.5, "--moe-pad-expert-input-to-capacity": True,
            "--moe-shared-expert-intermediate-size": None,
        },
    ),
    (
        {
            "model": replace(EXPERTS, moe=replace(MOE, router_groups=4, router_group_limit=2, router_scaling=2.5,
            top_k=1)), "release": (0, 10),
        },
        {
            "--moe-router-num-groups": None, "--moe-router-topk-scaling-factor": None, "--moe-router-pre-softmax": True,
        },
    ),
    (
        {"model": replace(EXPERTS, moe=replace(MOE, router_groups=1, router_group_limit=1))},
        {"--moe-router-num-groups": None},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), MODEL_FLAGS)
def test_flags_of_a_model(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """None is not written."""
    found = on(write_model.model_flags(target(**changes), []))
    assert {name: found.get(name) for name in expected} == expected


def test_what_no_gpt_class_builds_is_refused() -> None:
    """Several widths, several windows, norms over all heads, a fourth norm."""
    first, *_ = DENSE.runs
    wide = replace(DENSE, runs=(first, replace(first, block=(replace(first.block[0], ffn=8),))))
    with pytest.raises(InputError, match=r"MLP widths differ from layer to layer: \[8, 2816\]"):
        write_model.dense_width(wide)
    near = replace(first, block=(replace(first.block[0], window=8), replace(first.block[0], window=9)))
    with pytest.raises(InputError, match=r"windows of several lengths: \[8, 9\]"):
        write_model.window_marks(replace(DENSE, runs=(near,)))
    for changes, said in (
        ({"qk_norm_all": True}, "query and key norms over all heads"),
        ({"layer_norms": 4}, "layers with 4 norms"),
        ({"activation_scalars": 1}, "learned numbers in the activation"),
        ({"head_bias": True}, "a bias of the output matrix"),
    ):
        with pytest.raises(InputError, match=said):
            write_model.require_gpt(replace(DENSE, **changes))
    write_model.require_gpt(DENSE)
    assert write_model.pattern_text([False, True, True]) == "([0]*1+[1]*2)"


BRIDGE: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (
        bridge.overlap_overrides, {"preset": {"cuda_graph": CudaGraph.NONE, "dp_overlap": True, "param_overlap": True}},
        {
            "ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": True, "comm_overlap.tp_comm_overlap": False,
            "comm_overlap.overlap_p2p_comm": False, "comm_overlap.overlap_moe_expert_parallel_comm": False,
            "comm_overlap.delay_wgrad_compute": None, "comm_overlap.tp_comm_overlap_cfg": None,
                "model.cuda_graph_impl": "none",
        },
    ),
    (
        bridge.overlap_overrides,
        {"preset": {"tp_overlap": True, "ep_overlap": "batch", "delay_wgrad": True}, "model": EXPERTS, "ep": 2,
            "tp": 2, "sp": True},
        {
            "comm_overlap.tp_comm_overlap": True, "comm_overlap.overlap_moe_expert_parallel_comm": True,
            "comm_overlap.delay_wgrad_compute": True,
        },
    ),
    (
        bridge.overlap_overrides, {"preset": {"pp_overlap": True}, **staged({"pp": 2, "vp": 2}, 2, 2, 2, 2)},
        {"comm_overlap.overlap_p2p_comm": True},
    ),
    (
        bridge.graph_overrides, {"preset": {"cuda_graph": CudaGraph.FULL}, "release": (0, 18)},
        {
            "model.cuda_graph_impl": "full_iteration", "rerun_state_machine.check_for_nan_in_loss": False,
            "ddp.check_for_nan_in_grad": False, "rng.te_rng_tracker": True,
        },
    ),
    (
        bridge.graph_overrides, {"preset": {"cuda_graph": CudaGraph.FULL}, "release": (0, 17)},
        {"model.cuda_graph_impl": "local", "model.cuda_graph_scope": ["full_iteration"]},
    ),
    (
        bridge.graph_overrides, {"preset": {"cuda_graph": CudaGraph.PARTIAL}, "release": (0, 18)},
        {"model.cuda_graph_impl": "transformer_engine", "model.cuda_graph_modules": ["attn", "mlp"],
            "ddp.check_for_nan_in_grad": None},
    ),
    (
        bridge.state_overrides, {"preset": {"grad_bytes": 4}},
        {
            "ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True,
                "ddp.use_megatron_fsdp": False,
            "dist.use_megatron_fsdp": False, "ddp.data_parallel_sharding_strategy": "no_shard",
            "ddp.num_distributed_optimizer_instances": 1, "ddp.grad_reduce_in_fp32": True,
        },
    ),
    (
        bridge.state_overrides, {"zero": 0, "preset": {"grad_bytes": 2}},
        {"ddp.use_distributed_optimizer": False, "ddp.grad_reduce_in_fp32": False},
    ),
    (
        bridge.state_overrides, {"zero": 0, "savers": (Saver.OFFLOAD_OPTIMIZER,)},
        {
            "ddp.use_distributed_optimizer": True, "optimizer.use_precision_aware_optimizer": True,
            "optimizer.optimizer_cpu_offload": True, "optimizer.optimizer_offload_fraction": 1.0,
            "optimizer.exp_avg_dtype": None,
        },
    ),
    (
        bridge.state_overrides, {"zero": 3, "hsdp_shard": 4},
        {
            "ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": "optim_grads_params",
            "ddp.num_distributed_optimizer_instances": 2,
        },
    ),
    (
        bridge.state_overrides, {"savers": (Saver.BF16_MOMENTS,)},
        {
            "optimizer.use_precision_aware_optimizer": True, "optimizer.exp_avg_dtype": "bfloat16",
            "optimizer.exp_avg_sq_dtype": "bfloat16", "optimizer.optimizer_cpu_offload": None,
        },
    ),
    (
        bridge.layout_overrides, {},
        {
            "model.virtual_pipeline_model_parallel_size": None, "model.sequence_parallel": False, "model.cp_comm_type": None,
            "model.pipeline_model_parallel_layout": None, "dist.use_tp_pp_dp_mapping": False,
            "model.recompute_granularity": None, "model.recompute_modules": None, "model.recompute_method": None,
            "model.recompute_num_layers": None, "model.account_for_loss_in_pipeline_split": False,
        },
    ),
    (
        bridge.layout_overrides,
        {"recompute": FULL, "mesh_order": "tp-cp-ep-pp-dp", "cp": 2, "dp": 4, **staged({"pp": 2, "vp": 2}, 2, 2, 2, 2,
            limit=1)},
        {
            "model.virtual_pipeline_model_parallel_size": 2, "dist.use_tp_pp_dp_mapping": True, "model.cp_comm_type": "p2p",
            "model.recompute_granularity": "full", "model.recompute_method": "block", "model.recompute_num_layers": 1,
        },
    ),
    (
        bridge.moe_overrides, {"model": EXPERTS, "preset": {"dispatcher": Dispatcher.DEEPEP, "ep_overlap": "shared"},
            "ep": 2},
        {
            "num_moe_experts": 16, "moe_layer_freq": [0] + [1] * 7, "moe_ffn_hidden_size": 512, "moe_router_topk": 2,
            "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep", "moe_shared_expert_overlap": True,
            "moe_shared_expert_intermediate_size": 512, "moe_expert_capacity_factor": None,
            "moe_pad_expert_input_to_capacity": False, "moe_router_enable_expert_bias": False, "moe_router_num_groups": None,
        },
    ),
    (
        bridge.moe_overrides, {"model": EXPERTS, "preset": {"dispatcher": Dispatcher.DEEPEP}},
        {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": None, "moe_shared_expert_overlap": False},
    ),
    (bridge.moe_overrides, {}, {"num_moe_experts": None}),
    (bridge.checkpoint_overrides, {}, {"checkpoint.ckpt_format": "torch_dist", "checkpoint.save_interval": 100,
        "checkpoint.async_save": True}),
    (bridge.checkpoint_overrides, {"zero": 2, "saving": False}, {"checkpoint.ckpt_format": "fsdp_dtensor",
        "checkpoint.save_interval": None}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "changes", "expected"), BRIDGE)
def test_overrides_of_bridge(function: Any, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """Keys of the configuration; off is written too, for what a recipe turned on."""
    asked = {**changes, "preset": says(changes.get("preset", {}))}
    found = dict(function(target("megatron-bridge", **asked)))
    assert {name: found.get(name) for name in expected} == expected


def test_values_as_hydra_reads_them() -> None:
    """Null, truths, lists."""
    assert bridge.text([None, True, False, 1, 0.5, "a"]) == "[null,true,false,1,0.5,a]"
    assert bridge.window_overrides(windowed(4)) == [
        ("window_size", [511, 0]),
        ("window_attn_skip_freq", [1, 0, 1, 0]),
    ]
    assert bridge.window_overrides(DENSE) == [("window_size", None), ("window_attn_skip_freq", None)]


@pytest.mark.parametrize(
    ("release", "options", "keys"),
    [
        ((0, 16), "--recipe r --mode pretrain", 10),
        ((0, 17), "--recipe r --dataset llm-pretrain-mock", 10),
        (
            (0, 19),
            "--recipe r --mode pretrain --dataset mock "
            "-tp 1 -pp 1 -cp 1 -ep 1 -etp 1 -mb 2 -gb 48 -sl 2048 --max_steps 1000",
            0,
        ),
    ],
)
def test_options_of_bridges_script(release: tuple[int, ...], options: str, keys: int) -> None:
    """Degrees and batch are options from Bridge 0.6 on, keys before."""
    words, left = bridge.run_words(target("megatron-bridge", release=release), "r")
    assert " ".join(word for group in words for word in group) == options
    assert len(left) == keys


def test_recipes_of_models_and_their_kin() -> None:
    """A model's own, else the nearest family's, which is said."""
    for model, recipe, count in (
        (replace(DENSE, name="llama3-70b"), "llama3_70b_pretrain_config", 0),
        (DENSE, "llama3_8b_pretrain_config", 1),
        (EXPERTS, "qwen3_30b_a3b_pretrain_config", 1),
        (replace(DENSE, name="gpt3-175b"), "gpt3_175b_pretrain_config", 0),
    ):
        notes: list[str] = []
        assert bridge.recipe_of(target("megatron-bridge", model=model), notes) == recipe
        assert len(notes) == count
    old = target("megatron-bridge", model=replace(DENSE, name="gpt3-175b"), release=(0, 16))
    assert bridge.recipe_of(old, []) == "llama3_8b_pretrain_config"


def test_variants_of_attention_in_megatrons_words() -> None:
    """Linear layers by marks, chosen keys by sizes; a period of layers that choose from core 0.19 on, gates alone."""
    linear = LinearSpec(key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=16, conv=3)
    plain = DENSE.runs[0].block[0]
    run = replace(DENSE.runs[0], block=(replace(plain, mixer=Mixer.GATED_DELTA), plain), count=2)
    mixed = replace(DENSE, runs=(run,), linear=linear, attention_gate=True)
    assert variant_settings(mixed, (0, 18)) == [
        ("attention_output_gate", True), ("experimental_attention_variant", "gated_delta_net"),
        ("linear_attention_freq", [1, 0, 1, 0]), ("linear_conv_kernel_dim", 3), ("linear_key_head_dim", 8),
        ("linear_value_head_dim", 16), ("linear_num_key_heads", 2), ("linear_num_value_heads", 4),
    ]  # fmt: skip
    own = [
        ("experimental_attention_variant", "dsa"), ("dsa_indexer_n_heads", 2), ("dsa_indexer_head_dim", 4),
        ("dsa_indexer_topk", 8), ("dsa_indexer_loss_coeff", 0.001),
    ]  # fmt: skip
    shapes = with_indexers([plain] * 8, 2, 1)
    choosing = replace(DENSE, runs=runs_of(shapes), indexer=IndexerSpec(heads=2, head_dim=4, top_k=8))
    assert variant_settings(choosing, (0, 18)) == own
    period = [("dsa_indexer_topk_freq", 2), ("dsa_indexer_skip_topk_offset", 1)]
    assert variant_settings(choosing, (0, 19)) == [*own, *period]
    assert variant_settings(DENSE, (0, 19)) == []
