"""Names of kernels as libraries write them, from torch 1.13 to 2.9, NCCL 2.4 to 2.28, CUDA and ROCm: what each does."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.diagnose.kernels import collective_kind, group_axis, is_known_group, kernel_kind
from layoutopt.optimizer.diagnose.parts import Activity, Phase

PARTS: dict[Activity, tuple[str, ...]] = {
    Activity.GEMM: (
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopB_TNT",
        "nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(Params)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, X>>(Params)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>(cublasLt::cublasSplitKParams)",
        "void gemvNSP_kernel<__nv_bfloat16, float, 1, 32, 4, 1024>(gemvNSPParams)",
        "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0_AFC1",
        "_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_34GridwiseGemm",
        "triton_tem_fused_addmm_gelu_7",
        "triton_mm",
    ),
    Activity.EXPERTS: (
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<X>>>(Params)",
        "void cutlass::Kernel<cutlass::gemm::kernel::GemmGrouped<X>>(Params)",
        "void deep_gemm::sm90_bf16_gemm_impl<128, 128, 64, (deep_gemm::GemmType)1>(int*)",
        "_kernel_grouped_gemm_fwd",
    ),
    Activity.ATTENTION: (
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, cutlass::bfloat16_t>>(Flash_fwd_params)",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::MainloopFwdSm90<2>>>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
        "fmha_cutlassB_bf16_aligned_128x128_k128_dropout_sm80(PyTorchMemEffAttention::AttentionBackwardKernel::Params)",
        "_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelI",
        "_ZN5aiter23fmha_bwd_hd128_bf16_a32",
        "attn_fwd.kd",
        "bwd_preprocess.kd",
        "bwd_kernel_dk_dv.kd",
        "triton_tem_fused_flex_attention_backward_1",
    ),
    Activity.SCORES: (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, "
        "at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(float*)",
        "scaled_upper_triang_masked_softmax_warp_forward",
        "triton_per_fused__softmax_add_masked_fill_3",
        "triton_red_fused__softmax_backward_data_mul_2",
    ),
    Activity.LOSS: (
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, "
        "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)",
        "triton_red_fused__log_softmax_nll_loss_forward_5",
        "liger_cross_entropy_kernel",
    ),
    Activity.NORM: (
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<X>(Params)",
        "void transformer_engine::normalization::ln_bwd_tuned_kernel<X>(Params)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int)",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float, float>(float const*)",
        "void cuComputePartGradGammaBeta<float, float, float>(float const*)",
        "_rms_norm_backward_kernel",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "triton_per_fused_native_layer_norm_native_layer_norm_backward_4",
    ),
    Activity.ACTIVATION: (
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>",
        "void transformer_engine::gated_kernel<X, swiglu>(Params)",
        "_swiglu_forward_kernel",
        "triton_poi_fused_mul_silu_1",
        "triton_poi_fused_add_mul_silu_silu_backward_9",
    ),
    Activity.ELEMENTWISE: (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3, 64, 64>(float*)",
        "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, float>(float**)",
        "void at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel<long>(char**)",
        "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>(__nv_bfloat16 const*)",
        "triton_poi_fused__scaled_dot_product_flash_attention_clone_3",
        "triton_poi_fused_permute_view_2",
        "triton_red_fused_mm_sum_4",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "__amd_rocclr_fillBufferAligned",
    ),
    Activity.OPTIMIZER: (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<X, FusedAdamMathFunctor<float, 4>>(X)",
        "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*>(int, int volatile*)",
        "triton_for_fused_add_addcdiv_lerp_sqrt_0",
    ),
    Activity.PERMUTE: (
        "_permute_kernel",
        "_row_id_map_pass_1_kernel",
        "_sort_chunks_by_map_kernel",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(X)",
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<X>(X)",
    ),
    Activity.DROPOUT: (
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(X)",
        "triton_poi_fused_native_dropout_0",
    ),
    Activity.EMBEDDING: (
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>(X)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
    ),
    Activity.SCAN: ("_chunk_scan_fwd_kernel", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "selective_scan_fwd_kernel"),
    Activity.QUANTIZE: ("void transformer_engine::cast_transpose_optimized_kernel<X>(X)",),
}  # fmt: skip

COLLECTIVES = {
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclKernel_AllReduce_TREE_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)": "all_gather",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "",
    "void c10d::(anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true>(X)": "all_reduce",
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(X)": "all_to_all",
    "gloo:all_reduce": "all_reduce",
}
"""What an event's name alone tells of a collective."""

NAMED_CALLS = {
    "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "all_to_allv": "all_to_all",
    "_broadcast_oop": "broadcast",
    "send": "send",
    "recv": "recv",
}

GROUPS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1": "cp",
    "DATA_PARALLEL_GROUP_WITH_CP_AG": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "EXPERT_DATA_PARALLEL_GROUP": "dp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "POSITION_EMBEDDING_GROUP": "pp",
    "mesh_dp_shard_cp": "dp",
    "mesh_efsdp": "dp",
    "mesh_tp": "tp",
}


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, names in PARTS.items() for name in names])
def test_what_a_kernel_does(part: Activity, name: str) -> None:
    """Each name is classed as what its library made the kernel for."""
    assert kernel_kind(name).part is part


@pytest.mark.parametrize("name", [name for names in PARTS.values() for name in names])
def test_backward_is_told_by_name(name: str) -> None:
    """A name that says backward is of no forward kernel, and none of forward is of a backward one."""
    words = ("bwd", "backward", "bprop", "cutlassB", "grad")
    phase = kernel_kind(name).phase
    told = any(word in name.lower().replace("cutlassb", "cutlassB") for word in words)
    assert phase is not (Phase.FORWARD if told else Phase.BACKWARD)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_by_their_kernels(name: str) -> None:
    """Kernels of NCCL, RCCL, DeepEP and symmetric memory are traffic, and their kind is told where the name has it."""
    assert kernel_kind(name).part is None
    assert collective_kind(name) == COLLECTIVES[name]


@pytest.mark.parametrize("name", NAMED_CALLS)
def test_collectives_by_torchs_names(name: str) -> None:
    """What torch calls an operation, by release."""
    assert collective_kind(name) == NAMED_CALLS[name]


@pytest.mark.parametrize("name", GROUPS)
def test_groups_by_their_descriptions(name: str) -> None:
    """Groups of Megatron-Core and meshes of torchtitan have their axis; those of several axes are known as such."""
    assert group_axis(name) == GROUPS[name]


def test_groups_of_several_axes() -> None:
    """Gradient norms and losses are summed over several axes: no axis, and nothing to ask for."""
    for name in ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "MODEL_PARALLEL_GROUP", "mesh_loss", "default_pg"):
        assert group_axis(name) is None and is_known_group(name)
    assert not is_known_group("undefined")
