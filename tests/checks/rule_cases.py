"""Every validity rule with the question it is asked in, a layout it accepts and one it rejects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.context import RunOptions, make_context
from layoutopt.optimizer.space.rules import RULES
from layoutopt.optimizer.specs.layout import Recompute, Switches
from layoutopt.optimizer.specs.model import (
    IndexerSpec,
    LayerShape,
    LinearSpec,
    MambaSpec,
    Mixer,
    MlaSpec,
    MoeSpec,
    OptimizerSpec,
    Run,
)
from layoutopt.optimizer.specs.vocabulary import (
    CpComm,
    CudaGraph,
    Dispatcher,
    Fp8Recipe,
    Granularity,
    MuonSharing,
    Optimizer,
    Precision,
    Saver,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import Rule
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec

F = Framework
FULL = Recompute(granularity=Granularity.FULL)


def selective(*modules: str) -> Recompute:
    """Selective recomputation of modules."""
    return Recompute(granularity=Granularity.SELECTIVE, modules=modules)


@dataclass(frozen=True)
class Case:
    """A rule, the question it is asked in, a layout it accepts and one it rejects."""

    rule: str
    framework: Framework
    good: dict[str, Any]
    bad: dict[str, Any]
    software: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    gpus: int = 16
    domain: int = 8

    def __str__(self) -> str:
        return f"{self.rule}-{self.framework}-{self.software or 'newest'}"


MOE: dict[str, Any] = {"experts": 8}
MLA = MlaSpec(q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32)
WINDOW = (Run(name="w", block=(LayerShape(ffn=1024, window=128),), count=8),)
SHARED = MoeSpec(experts=8, top_k=2, ffn=512, shared_ffn=512)
DROPPING = MoeSpec(experts=8, top_k=2, ffn=512, capacity_factor=1.25)
BIASED = MoeSpec(experts=8, top_k=2, ffn=512, expert_bias=True)
MAMBA = MambaSpec(heads=12, head_dim=64, state=16, groups=4)
LINEAR = LinearSpec(key_heads=4, value_heads=8, key_head_dim=16, value_head_dim=16)
DELTA = (Run(name="d", block=(LayerShape(mixer=Mixer.GATED_DELTA, ffn=1024),), count=8),)
INDEXER = IndexerSpec(heads=4, head_dim=16, top_k=64)
MUON = OptimizerSpec(kind=Optimizer.MUON)
OWNED = replace(MUON, distribution=MuonSharing.OWNER)
SHARED_OUT = replace(MUON, distribution=MuonSharing.DISTRIBUTED)
A2A = Switches(cp_kind=CpComm.A2A)
PIPE: dict[str, Any] = {"pp": 4, "dp": 4, "schedule": Schedule.ONE_F_ONE_B}
CHUNKS: dict[str, Any] = {"pp": 4, "vp": 2, "dp": 4, "schedule": Schedule.INTERLEAVED}

PRODUCTS = [
    Case("world_size_product", F.ANY, {"tp": 2, "dp": 8}, {"tp": 2, "dp": 4}),
    Case("tp_supported", F.LLM_FOUNDRY, {"dp": 16}, {"tp": 2, "dp": 8}),
    Case("cp_supported", F.LLM_FOUNDRY, {"dp": 16}, {"cp": 2, "dp": 8}),
    Case("pp_supported", F.ACCELERATE, {"dp": 16}, PIPE),
    Case("vp_supported", F.NANOTRON, PIPE, CHUNKS),
    Case("ep_supported", F.NANOTRON, {"dp": 16}, {"dp": 16, "ep": 2}, model=MOE),
    Case("gbs_mod_mbs_dp", F.ANY, {"dp": 16, "micro_batches": 2}, {"dp": 16, "micro_batches": 3}),
]  # fmt: skip
HEADS = [
    Case("heads_mod_tp", F.MEGATRON, {"tp": 8, "sp": True, "dp": 2}, {"tp": 16, "sp": True, "dp": 1}),
    Case("heads_mod_tp", F.DEEPSPEED, {"tp": 8, "dp": 2}, {"tp": 16}, software="0.9"),
    Case("heads_mod_tp", F.DEEPSPEED, {"tp": 8, "dp": 2}, {"tp": 16}),
    Case("kv_heads_mod_tp", F.MEGATRON, {"tp": 8, "dp": 2}, {"tp": 8, "dp": 2}, model={"kv_heads": 4}),
    Case("kv_heads_mod_tp", F.MEGATRON, {"tp": 4}, {"tp": 8}, "core 0.15", {"kv_heads": 4}),
    Case("kv_heads_mod_tp", F.TORCHTITAN, {"tp": 4}, {"tp": 8}, model={"kv_heads": 4}),
    Case("kv_heads_mod_tp", F.ANY, {"tp": 4}, {"tp": 6}, model={"heads": 24, "kv_heads": 4}),
    Case("heads_mod_kv_heads", F.NANOTRON, {"tp": 1}, {"tp": 1}, model={"kv_heads": 3}),
    Case("mamba_heads_mod_tp", F.MEGATRON, {"tp": 4}, {"tp": 8}, model={"mamba": MAMBA}),
    Case("linear_heads_mod_tp", F.MEGATRON, {"tp": 4}, {"tp": 8}, model={"linear": LINEAR}),
    Case("linear_heads_mod_cp", F.MEGATRON, {"tp": 2, "cp": 2}, {"tp": 4, "cp": 2}, model={"linear": LINEAR}),
    Case("ffn_mod_tp", F.MEGATRON, {"tp": 4}, {"tp": 8}, model={"ffn": 1028}),
]  # fmt: skip
SEQUENCE = [
    Case("seq_mod_cp_tp", F.MEGATRON, {"cp": 2, "tp": 2, "sp": True}, {"cp": 512, "tp": 4, "sp": True}),
    Case("seq_mod_cp_tp", F.TORCHTITAN, {"cp": 8, "micro_batch": 2}, {"cp": 8}, training={"sequence": 1000}),
    Case("seq_mod_cp_tp", F.TORCHTITAN, {"tp": 4}, {"tp": 8}, "era A", training={"sequence": 1000}),
    Case("ulysses_heads", F.MEGATRON, {"cp": 4}, {"cp": 8}, None, {"kv_heads": 4}, {},
         {"cp_comm": CpComm.A2A}),
    Case("ulysses_heads", F.ANY, {"cp": 8}, {"cp": 16}, None, {"kv_heads": 4}, {}, {"cp_comm": CpComm.A2A}),
    Case("ulysses_heads", F.MEGATRON_BRIDGE, {"cp": 4, "switches": A2A}, {"cp": 8, "switches": A2A}, None, {"kv_heads": 4}),
    Case("ulysses_heads", F.DEEPSPEED, {"cp": 8}, {"cp": 16}, model={"kv_heads": 4}),
    Case("window_needs_gathered_cp", F.MEGATRON, {"cp": 1}, {"cp": 2}, model={"runs": WINDOW},
         options={"cp_comm": CpComm.P2P}),
    Case("sparse_needs_gathered_cp", F.MEGATRON, {"cp": 1}, {"cp": 2}, model={"indexer": INDEXER},
         options={"cp_comm": CpComm.P2P}),
    Case("sparse_without_cp", F.DEEPSPEED, {"cp": 1}, {"cp": 2}, model={"indexer": INDEXER}),
    Case("sparse_without_cp", F.MEGATRON, {"cp": 1}, {"cp": 2}, "core 0.18", {"indexer": INDEXER}),
    Case("linear_without_cp", F.MEGATRON, {"cp": 1}, {"cp": 2}, "core 0.17", {"runs": DELTA, "linear": LINEAR}),
    Case("moe_needs_sp", F.MEGATRON, {"tp": 2, "sp": True}, {"tp": 2}, model=MOE),
    Case("sp_or_ulysses", F.MEGATRON_DEEPSPEED, {"tp": 2, "sp": True}, {"tp": 2, "sp": True, "cp": 2}),
    Case("ulysses_alone", F.MEGATRON_DEEPSPEED, {"cp": 4}, {"cp": 4, "tp": 2}),
    Case("sp_supported", F.DEEPSPEED, {"tp": 2}, {"tp": 2, "sp": True}),
    Case("sp_with_tp", F.TORCHTITAN, {"tp": 2, "sp": True}, {"tp": 2}, "v0.2.2"),
    Case("cp_needs_qwen", F.NANOTRON, {}, {"cp": 2}),
    Case("mtp_with_cp", F.TORCHTITAN, {}, {"cp": 2}, model={"mtp_layers": 1}),
    Case("mtp_with_cp", F.MEGATRON, {}, {"cp": 2}, "core 0.13", {"mtp_layers": 1}),
]  # fmt: skip
LAYERS = [
    Case("stages_hold_blocks", F.ANY, {"pp": 2, "vp": 5}, {"pp": 2, "vp": 6}),
    Case("layers_mod_pp", F.MEGATRON, PIPE, {"pp": 3}),
    Case("layers_mod_pp_vp", F.MEGATRON, CHUNKS, CHUNKS | {"vp": 3}),
    Case("stage_split", F.MEGATRON, CHUNKS, CHUNKS | {"vp": 3}, software="core 0.12"),
    Case("windows_supported", F.MEGATRON, {}, {}, "core 0.13", {"runs": WINDOW}),
    Case("model_supported", F.NANOTRON, {}, {}, model=MOE),
    Case("model_supported", F.MEGATRON, {}, {}, "core 0.11", {"mtp_layers": 1}),
    Case("model_supported", F.MEGATRON_DEEPSPEED, {}, {}, model={"mla": MLA}),
    Case("model_supported", F.TORCHTITAN, {}, {}, model={"indexer": INDEXER}),
    Case("model_supported", F.MEGATRON_BRIDGE, {}, {}, model={"attention_gate": True}),
    Case("pipeline_needs_modules", F.DEEPSPEED, {}, PIPE),
    Case("tied_with_pp", F.TORCHTITAN, {"pp": 1}, PIPE, model={"tied_embeddings": True}),
    Case("mtp_with_pp", F.TORCHTITAN, {"pp": 1}, PIPE, model={"mtp_layers": 1}),
    Case("vp_needs_pp", F.ANY, CHUNKS, {"pp": 1, "vp": 2}),
    Case("vp_needs_three_ranks", F.MEGATRON, CHUNKS, CHUNKS | {"pp": 2}, software="core 0.7"),
    Case("vp_needs_three_ranks", F.MEGATRON, CHUNKS, CHUNKS | {"pp": 2}, options={"overlap_p2p": False}),
]  # fmt: skip
SCHEDULES = [
    Case("microbatches_ge_pp", F.MEGATRON, CHUNKS | {"micro_batches": 4}, CHUNKS | {"micro_batches": 3}),
    Case("microbatches_ge_pp", F.TORCHTITAN, PIPE | {"micro_batches": 4}, PIPE | {"micro_batches": 3}),
    Case("microbatches_ge_pp", F.NANOTRON, PIPE | {"micro_batches": 3}, PIPE | {"micro_batches": 2}),
    Case("interleaved_groups", F.MEGATRON, CHUNKS | {"micro_batches": 8}, CHUNKS | {"micro_batches": 9}),
    Case("interleaved_groups", F.MEGATRON, CHUNKS | {"micro_batches": 8}, CHUNKS | {"micro_batches": 9},
         "core 0.9"),
    Case("interleaved_groups", F.MEGATRON, CHUNKS | {"micro_batches": 16}, CHUNKS | {"micro_batches": 14},
         options={"microbatch_group": 6}),
    Case("interleaved_rounds", F.TORCHTITAN, CHUNKS | {"micro_batches": 9, "pp": 3},
         CHUNKS | {"micro_batches": 9}),
    Case("interleaved_rounds", F.ANY, CHUNKS | {"micro_batches": 8}, CHUNKS | {"micro_batches": 9}),
    Case("full_pipeline", F.ANY, PIPE | {"micro_batches": 4}, PIPE | {"micro_batches": 3}),
    Case("schedule_supported", F.MEGATRON, PIPE, PIPE | {"schedule": Schedule.ZB_H1}),
    Case("zero_bubble_without_sp", F.MEGATRON_DEEPSPEED, PIPE | {"schedule": Schedule.ZB_H1, "tp": 2},
         PIPE | {"schedule": Schedule.ZB_H1, "tp": 2, "sp": True}),
    Case("schedule_chunks", F.ANY, CHUNKS, CHUNKS | {"schedule": Schedule.ONE_F_ONE_B}),
    Case("schedule_micro_batches", F.ANY, PIPE | {"schedule": Schedule.DUALPIPE, "micro_batches": 8},
         PIPE | {"schedule": Schedule.DUALPIPE, "micro_batches": 7}),
]  # fmt: skip
EXPERTS = [
    Case("experts_mod_ep", F.ANY, {"ep": 4, "dp": 16}, {"ep": 16, "dp": 16}, model=MOE),
    Case("expert_world_product", F.ANY, {"ep": 8, "dp": 16}, {"ep": 8, "dp": 4, "pp": 4}, model=MOE),
    Case("expert_world_product", F.MEGATRON, {"ep": 8, "dp": 4, "tp": 2}, {"ep": 8, "dp": 4, "etp": 2},
         model=MOE),
    Case("dp_mod_ep", F.MEGATRON, {"ep": 4, "dp": 4}, {"ep": 8, "dp": 4}, "core 0.9", MOE),
    Case("ep_without_cp", F.MEGATRON, {"ep": 2, "dp": 16}, {"ep": 2, "cp": 2, "dp": 8}, "core 0.7", MOE),
    Case("etp_supported", F.MEGATRON, {"tp": 2, "etp": 2}, {"tp": 2, "etp": 1}, "core 0.9", MOE),
    Case("etp_supported", F.TORCHTITAN, {"tp": 2, "etp": 2}, {"tp": 2, "etp": 1}, model=MOE),
    Case("etp_supported", F.TORCHTITAN, {"tp": 2, "ep": 2, "etp": 1}, {"tp": 2, "ep": 2, "etp": 2}, model=MOE),
    Case("etp_supported", F.TORCHTITAN, {"tp": 2, "etp": 2}, {"tp": 2, "etp": 1}, "v0.2.2", MOE),
    Case("etp_supported", F.TORCHTITAN, {"tp": 4, "etp": 4}, {"tp": 4, "etp": 2}, "v0.2.2", MOE),
    Case("etp_supported", F.DEEPSPEED, {"tp": 2, "etp": 1}, {"tp": 2, "etp": 2}, model=MOE),
    Case("etp_supported", F.MEGATRON_DEEPSPEED, {"tp": 4, "etp": 4}, {"tp": 4, "etp": 2}, model=MOE),
    Case("biased_experts_etp", F.MEGATRON, {"etp": 1}, {"tp": 2, "etp": 2},
         model={"experts": 8, "moe": BIASED}),
    Case("expert_ffn_mod_etp", F.MEGATRON, {"etp": 4, "tp": 4}, {"etp": 3, "tp": 3}, model=MOE),
    Case("ep_within_nvlink", F.MEGATRON, {"ep": 8}, {"ep": 16}, "core 0.16", model={"experts": 16},
         options={"dispatcher": "hybridep"}),
    Case("ep_within_nvlink", F.MEGATRON, {"ep": 16}, {"ep": 12}, model={"experts": 48},
         options={"dispatcher": "hybridep"}),
    Case("hybrid_domains_searched", F.MEGATRON, {"ep": 8}, {"ep": 16}, model={"experts": 16},
         options={"dispatcher": "hybridep"}),
    Case("dispatch_kernels_searched", F.MEGATRON, {"ep": 2, "switches": Switches(dispatcher=Dispatcher.ALLTOALL)},
         {"ep": 2, "switches": Switches(dispatcher=Dispatcher.DEEPEP)}, model=MOE, domain=1),
    Case("dispatch_kernel_tokens", F.TORCHTITAN, {"ep": 2, "dp": 16}, {"ep": 1, "dp": 16}, model=MOE,
         options={"dispatcher": "deepep"}),
]  # fmt: skip
SHARDING = [
    Case("zero_supported", F.NANOTRON, {"zero": 1, "dp": 16}, {"zero": 3, "dp": 16}),
    Case("zero_with_pp", F.DEEPSPEED, PIPE | {"zero": 1}, PIPE | {"zero": 2}),
    Case("zero_with_pp", F.MEGATRON_DEEPSPEED, {"zero": 1}, {"zero": 2}, options={"pipeline_module": True}),
    Case("zero_with_pp", F.MEGATRON, {"zero": 3, "dp": 16}, PIPE | {"zero": 3}),
    Case("ddp_alone", F.TORCHTITAN, {"zero": 0, "dp": 16}, {"zero": 0, "tp": 2, "dp": 8}, "v0.2.2"),
    Case("ddp_alone", F.ACCELERATE, {"zero": 3, "tp": 2, "dp": 8}, {"zero": 0, "tp": 2, "dp": 8}),
    Case("ddp_without_cp", F.TORCHTITAN, {"zero": 3, "cp": 2, "dp": 8}, {"zero": 0, "cp": 2, "dp": 8}),
    Case("savers_need_zero", F.MEGATRON, {"zero": 1, "dp": 16, "savers": (Saver.BF16_MOMENTS,)},
         {"zero": 0, "dp": 16, "savers": (Saver.BF16_MOMENTS,)}),
    Case("savers_need_zero", F.TORCHTITAN, {"zero": 2, "dp": 16, "savers": (Saver.OFFLOAD_OPTIMIZER,)},
         {"zero": 0, "dp": 16, "savers": (Saver.OFFLOAD_OPTIMIZER,)}),
    Case("zero3_experts_alone", F.DEEPSPEED, {"zero": 3, "ep": 2}, {"zero": 3, "ep": 2, "tp": 2}, model=MOE),
    Case("fsdp2_axes", F.MEGATRON, {"zero": 3}, PIPE | {"zero": 3}, options={"torch_fsdp2": True}),
    Case("megatron_fsdp_v2_axes", F.MEGATRON, {"zero": 3}, {"zero": 3, "tp": 2},
         options={"megatron_fsdp_version": 2}),
    Case("hsdp_shard_divides", F.ANY, {"zero": 3, "dp": 16, "hsdp_shard": 8},
         {"zero": 3, "dp": 16, "hsdp_shard": 6}),
    Case("hsdp_supported", F.DEEPSPEED, {"zero": 3, "dp": 16, "hsdp_shard": 8},
         {"zero": 1, "dp": 16, "hsdp_shard": 8}, "0.19.6"),
    Case("hsdp_supported", F.DEEPSPEED, {"zero": 3, "dp": 16}, {"zero": 3, "dp": 16, "hsdp_shard": 8}),
    Case("replicas_divide_expert_dp", F.MEGATRON, {"zero": 1, "dp": 16, "ep": 4, "hsdp_shard": 8},
         {"zero": 1, "dp": 16, "ep": 8, "hsdp_shard": 4}, model=MOE),
    Case("hsdp_shard_mod_cp", F.TORCHTITAN, {"zero": 3, "dp": 4, "cp": 4, "hsdp_shard": 8},
         {"zero": 3, "dp": 4, "cp": 4, "hsdp_shard": 2}),
    Case("shard_holds_experts", F.TORCHTITAN, {"zero": 3, "dp": 16, "ep": 8, "hsdp_shard": 8},
         {"zero": 3, "dp": 16, "ep": 8, "hsdp_shard": 4}, model=MOE),
    Case("order_supported", F.MEGATRON, {"tp": 2, "dp": 8, "mesh_order": "tp-ep-dp-cp-pp"},
         {"tp": 2, "dp": 8, "mesh_order": "ep-dp-tp-cp-pp"}),
    Case("expert_dp_equals_dp", F.MEGATRON, PIPE | {"mesh_order": "tp-cp-ep-pp-dp"},
         PIPE | {"cp": 2, "dp": 2, "mesh_order": "tp-cp-ep-pp-dp"}),
    Case("order_without_cp_or_ep", F.MEGATRON, PIPE | {"mesh_order": "tp-cp-ep-pp-dp"},
         PIPE | {"cp": 2, "dp": 2, "mesh_order": "tp-cp-ep-pp-dp"}, "core 0.10"),
    Case("order_supported", F.MEGATRON, {"ep": 2, "mesh_order": "tp-cp-ep-dp-pp"},
         {"ep": 2, "mesh_order": "tp-cp-dp-ep-pp"}, model=MOE),
    Case("shard_nests_axes", F.ANY,
         {"zero": 3, "cp": 4, "dp": 6, "hsdp_shard": 8, "mesh_order": "cp-tp-ep-dp-pp"},
         {"zero": 3, "cp": 4, "dp": 6, "hsdp_shard": 6, "mesh_order": "cp-tp-ep-dp-pp"}),
    Case("expert_grid_nests", F.ANY, {"tp": 6, "pp": 2, "dp": 4, "ep": 12, "mesh_order": "tp-pp-cp-ep-dp"},
         {"tp": 6, "pp": 2, "dp": 4, "ep": 8, "mesh_order": "tp-pp-cp-ep-dp"}, model={"experts": 24}),
    Case("fsdp_mesh_order", F.MEGATRON_BRIDGE, PIPE | {"zero": 3},
         PIPE | {"zero": 3, "mesh_order": "tp-cp-ep-pp-dp"}),
]  # fmt: skip
RECOMPUTE = [
    Case("recompute_groups_supported", F.TORCHTITAN, {"recompute": FULL}, {"recompute": replace(FULL, group=4)}),
    Case("recompute_groups_divide", F.ANY, {"recompute": replace(FULL, group=4)}, {"recompute": replace(FULL, group=5)}),
    Case("recompute_supported", F.NANOTRON, {"recompute": FULL}, {"recompute": selective("mlp")}),
    Case("recompute_modules_supported", F.MEGATRON, {"recompute": selective("core_attn")},
         {"recompute": selective("layernorm")}, "core 0.11"),
    Case("recompute_modules_present", F.MEGATRON, {"recompute": selective("mla_up_proj")},
         {"recompute": selective("moe_act")}, model={"mla": MLA}),
    Case("recompute_with_delayed_fp8", F.MEGATRON,
         {"recompute": selective("mlp"), "precision": Precision.FP8},
         {"recompute": selective("layernorm"), "precision": Precision.FP8},
         training={"fp8_recipe": Fp8Recipe.DELAYED}),
    Case("recompute_with_delayed_fp8", F.MEGATRON_BRIDGE,
         {"recompute": selective("mlp"), "precision": Precision.FP8},
         {"recompute": selective("layernorm"), "precision": Precision.FP8}),
    Case("recompute_with_fp8", F.MEGATRON,
         {"recompute": selective("mlp"), "precision": Precision.FP8},
         {"recompute": selective("layernorm"), "precision": Precision.FP8}, "core 0.13",
         training={"fp8_recipe": Fp8Recipe.CURRENT}),
    Case("recompute_modules_named", F.MEGATRON, {"recompute": selective("mlp")}, {"recompute": selective()}),
]  # fmt: skip
OPTIMIZERS = [
    Case("optimizer_supported", F.MEGATRON, {}, {}, "core 0.15"),
    Case("optimizer_sharding", F.MEGATRON, {"zero": 1}, {"zero": 2}, training={"optimizer": MUON}),
    Case("muon_owner_needs_zero", F.ANY, {"zero": 1}, {"zero": 0}, training={"optimizer": OWNED}),
    Case("muon_without_owner", F.MEGATRON, {"zero": 0}, {"zero": 1}, training={"optimizer": SHARED_OUT}),
    Case("savers_need_adam", F.ANY, {}, {"savers": (Saver.BF16_MOMENTS,)}, training={"optimizer": MUON}),
]  # fmt: skip
PRECISIONS = [
    Case("precision_supported", F.NANOTRON, {}, {"precision": Precision.FP8}),
    Case("precision_hardware", F.ANY, {"precision": Precision.FP8}, {"precision": Precision.NVFP4}),
    Case("savers_supported", F.TORCHTITAN, {"savers": (Saver.OFFLOAD_OPTIMIZER,)},
         {"savers": (Saver.BF16_MOMENTS,)}),
    Case("grouped_gemm_fp16", F.MEGATRON, {}, {"precision": Precision.FP16}, "core 0.13", MOE),
    Case("fp8_shapes", F.MEGATRON, {"precision": Precision.FP8, "tp": 4},
         {"precision": Precision.FP8, "tp": 8}, model={"ffn": 1024 + 64}),
    Case("fp8_shapes", F.MEGATRON, {"precision": Precision.FP8, "cp": 4},
         {"precision": Precision.FP8, "cp": 4, "tp": 4, "sp": True}, training={"sequence": 96}),
    Case("fp8_shapes", F.MEGATRON, {"precision": Precision.FP8, "etp": 2},
         {"precision": Precision.FP8, "tp": 4, "etp": 4}, model={"experts": 8, "moe": replace(SHARED, ffn=96)}),
]  # fmt: skip
MERGED = Switches(ep_overlap=True, delay_wgrad=True)
OVERLAP: dict[str, Any] = {"overlap_moe_expert_parallel_comm": True}
FLAGS = [
    Case("moe_batch_overlap", F.MEGATRON, {"ep": 2}, {"ep": 2, "recompute": FULL}, model=MOE,
         options=OVERLAP),
    Case("moe_batch_overlap", F.MEGATRON, PIPE | {"vp": 2, "ep": 2, "schedule": Schedule.INTERLEAVED, "switches": MERGED},
         PIPE | {"ep": 2, "switches": MERGED}, model=MOE),
    Case("mtp_batch_overlap", F.MEGATRON,
         PIPE | {"vp": 2, "ep": 2, "schedule": Schedule.INTERLEAVED, "switches": MERGED},
         {"ep": 2, "switches": MERGED}, "core 0.17", MOE | {"mtp_layers": 1}),
    Case("full_graph_batch_overlap", F.MEGATRON, {"ep": 2, "switches": replace(MERGED, cuda_graph=CudaGraph.PARTIAL)},
         {"ep": 2, "switches": replace(MERGED, cuda_graph=CudaGraph.FULL)}, "core 0.16", MOE),
    Case("switches_together", F.MEGATRON, {"ep": 2, "switches": MERGED},
         {"ep": 2, "switches": Switches(delay_wgrad=True)}, model=MOE),
    Case("switch_supported", F.MEGATRON, {"ep": 2, "switches": Switches(tp_overlap=True)},
         {"ep": 2, "switches": MERGED}, "core 0.13", MOE),
    Case("full_graph_shapes", F.MEGATRON,
         {"ep": 2, "switches": Switches(cuda_graph=CudaGraph.FULL, dispatcher=Dispatcher.HYBRIDEP)},
         {"ep": 2, "switches": Switches(cuda_graph=CudaGraph.FULL)}, model=MOE),
    Case("full_graph_shapes", F.MEGATRON,
         {"ep": 2, "switches": Switches(cuda_graph=CudaGraph.FULL, dispatcher=Dispatcher.HYBRIDEP)},
         {"tp": 2, "dp": 8, "sp": True, "etp": 2,
          "switches": Switches(cuda_graph=CudaGraph.FULL, dispatcher=Dispatcher.HYBRIDEP)}, model=MOE),
    Case("dispatcher_alone", F.MEGATRON, {"ep": 2, "switches": Switches(dispatcher=Dispatcher.DEEPEP)},
         {"switches": Switches(dispatcher=Dispatcher.DEEPEP)}, model=MOE),
    Case("capacity_dispatcher", F.MEGATRON, {"ep": 2, "switches": Switches(dispatcher=Dispatcher.HYBRIDEP)},
         {"ep": 2, "switches": Switches(dispatcher=Dispatcher.DEEPEP)}, model={"experts": 8, "moe": DROPPING}),
    Case("fp8_gather_needs_zero", F.MEGATRON,
         {"zero": 1, "precision": Precision.FP8, "switches": Switches(fp8_param_gather=True)},
         {"zero": 0, "precision": Precision.FP8, "switches": Switches(fp8_param_gather=True)}),
    Case("full_graph_recompute", F.MEGATRON, {"switches": Switches(cuda_graph=CudaGraph.FULL)},
         {"recompute": FULL, "switches": Switches(cuda_graph=CudaGraph.FULL)}, "core 0.15"),
    Case("partial_graph_recompute", F.MEGATRON, {"switches": Switches(cuda_graph=CudaGraph.PARTIAL)},
         {"recompute": FULL, "switches": Switches(cuda_graph=CudaGraph.PARTIAL)}),
    Case("shared_overlap_recompute", F.MEGATRON, {"recompute": selective("moe_act")},
         {"recompute": selective("shared_experts")}, model={"experts": 8, "moe": SHARED},
         options={"shared_expert_overlap": True}),
    Case("one_cp_kind", F.MEGATRON, {"cp": 2, "switches": Switches(cp_kind=CpComm.ALL_GATHER)}, {"cp": 2}, "core 0.16",
         {"runs": (replace(WINDOW[0], block=(*WINDOW[0].block, LayerShape(ffn=1024)), count=4),)}),
    Case("shared_overlap_dispatcher", F.MEGATRON, {"ep": 2, "switches": Switches(shared_expert_overlap=True)},
         {"ep": 2, "switches": Switches(shared_expert_overlap=True, dispatcher=Dispatcher.DEEPEP)}, "core 0.17",
         {"experts": 8, "moe": SHARED}),
    Case("tp_overlap_needs_sp", F.MEGATRON, {"tp": 2, "sp": True}, {"tp": 2},
         options={"tp_comm_overlap": True}),
    Case("distributed_activations_without_sp", F.MEGATRON, {"tp": 2}, {"tp": 2, "sp": True},
         options={"distribute_saved_activations": True}),
    Case("activation_offload_alone", F.MEGATRON, {}, PIPE, options={"activation_offload": True}),
    Case("optimizer_offload_precision_aware", F.MEGATRON, {}, {}, options={"optimizer_offload": True}),
    Case("cuda_device_max_connections", F.MEGATRON, {"tp": 2}, {"zero": 3},
         options={"cuda_device_max_connections": 1}),
    Case("cuda_device_max_connections", F.MEGATRON, {"zero": 3}, {"tp": 2},
         options={"cuda_device_max_connections": 8}),
    Case("vocab_mod_tp", F.MEGATRON_BRIDGE, {"tp": 2}, {"tp": 4}, model={"vocab": 1026},
         options={"exact_vocab": True}),
    Case("cuda_graphs_axes", F.TORCHTITAN, {}, PIPE, options={"cuda_graphs": True}),
    Case("cuda_graphs_axes", F.TORCHTITAN, {"ep": 2}, PIPE | {"ep": 2}, model=MOE,
         options={"cuda_graphs": True, "dispatcher": "hybridep"}),
]  # fmt: skip
CASES = [
    *PRODUCTS,
    *OPTIMIZERS,
    *HEADS,
    *SEQUENCE,
    *LAYERS,
    *SCHEDULES,
    *EXPERTS,
    *SHARDING,
    *RECOMPUTE,
    *PRECISIONS,
    *FLAGS,
]


def keyed() -> dict[str, Case]:
    """Name the cases, equal ones by their number."""
    seen = Counter[str]()
    named = {}
    for case in CASES:
        seen[str(case)] += 1
        named[str(case) if seen[str(case)] == 1 else f"{case}#{seen[str(case)]}"] = case
    return named


KEYED = keyed()
"""Every case by its name."""

# Rules on the question as a whole can't accept and reject in one: the accepted one is asked apart.
OTHER_QUESTION: dict[str, dict[str, Any]] = {
    "kv_heads_mod_tp-megatron-newest": {"model": {"heads": 24, "kv_heads": 3}},
    "heads_mod_kv_heads-nanotron-newest": {"model": {"kv_heads": 4}},
    "windows_supported-megatron-core 0.13": {"model": {}},
    "model_supported-nanotron-newest": {"model": {}},
    "model_supported-megatron-core 0.11": {"model": {}},
    "model_supported-megatron-deepspeed-newest": {"model": {}},
    "model_supported-torchtitan-newest": {"model": {}},
    "model_supported-megatron-bridge-newest": {"model": {}},
    "optimizer_offload_precision_aware-megatron-newest": {
        "options": {"optimizer_offload": True, "precision_aware_optimizer": True}
    },
}
REJECTED_QUESTION: dict[str, dict[str, Any]] = {
    "optimizer_supported-megatron-core 0.15": {"training": {"optimizer": MUON}},
    "kv_heads_mod_tp-megatron-newest": {"model": {"heads": 24, "kv_heads": 3}},
    "optimizer_offload_precision_aware-megatron-newest": {
        "options": {"optimizer_offload": True, "precision_aware_optimizer": False}
    },
}


class Workbench:
    """Builds the context of a case from the fixtures."""

    def __init__(
        self,
        model: Callable[..., ModelSpec],
        cluster: Callable[..., ClusterSpec],
        training: Callable[..., TrainingSpec],
    ) -> None:
        self.model, self.cluster, self.training = model, cluster, training

    def context(self, case: Case, overrides: dict[str, Any]) -> Context:
        """Ask the question of a case."""
        fields = {"model": case.model, "training": case.training, "options": case.options} | overrides
        return make_context(
            self.model(**fields["model"]),
            self.training(**fields["training"]),
            self.cluster(case.gpus, domain=case.domain),
            case.framework,
            case.software,
            RunOptions(**fields["options"]),
        )


def rules_of(case: Case, ctx: Context) -> list[Rule]:
    """Return the rules of the case's name that its question has."""
    return [rule for rule in RULES if rule.name == case.rule and rule.applies(ctx)]
