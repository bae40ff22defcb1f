"""The machine-readable form of layouts, estimates and plans: plain data for ``--json``, keys that do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate, MemoryEstimate
    from layoutopt.optimizer.specs.layout import Layout, VirtualStage

Plain = dict[str, Any]


def layout_to_plain(layout: Layout) -> Plain:
    """Write a layout with every degree and every virtual stage, chunk-major."""
    return {
        "tp": layout.tp,
        "sp": layout.sp,
        "cp": layout.cp,
        "pp": layout.pp,
        "vp": layout.vp,
        "ep": layout.ep,
        "etp": layout.etp,
        "dp": layout.dp,
        "zero": layout.zero,
        "hsdp_shard": layout.hsdp_shard,
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.micro_batches,
        "recompute": {
            "granularity": layout.recompute.granularity.value,
            "modules": list(layout.recompute.modules),
        },
        "schedule": layout.schedule.value,
        "mesh_order": layout.mesh_order,
        "precision": layout.precision.value,
        "stages": [_stage_to_plain(stage) for stage in layout.stages],
    } | ({"savers": [saver.value for saver in layout.savers]} if layout.savers else {})


def _stage_to_plain(stage: VirtualStage) -> Plain:
    plain: Plain = {
        "rank": stage.rank,
        "chunk": stage.chunk,
        "layers": stage.layers,
        "kinds": dict(stage.kinds),
        "recomputed": stage.recomputed,
        "embedding": stage.embedding,
        "head": stage.head,
        "mtp": stage.mtp,
    }
    return plain | ({"recomputed_kinds": dict(stage.recomputed_kinds)} if stage.recomputed_kinds else {})


def estimate_to_plain(estimate: Estimate) -> Plain:
    """Write an estimate; ``breakdown_s`` sums to ``step_time_s``."""
    return {
        "step_time_s": estimate.step_time_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "tflops_per_gpu": estimate.tflops_per_gpu,
        "mfu_causal": estimate.mfu_causal,
        "mfu_full": estimate.mfu_full,
        "hfu": estimate.hfu,
        "memory": _memory_to_plain(estimate.memory),
        "breakdown_s": dict(estimate.breakdown_s),
        "rank_time_s": list(estimate.rank_time_s),
    }


def _memory_to_plain(memory: MemoryEstimate) -> Plain:
    return {
        "peak_bytes": memory.peak_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "device_bytes": memory.device_bytes,
        "stages": [
            {
                "rank": stage.rank,
                "total_bytes": stage.total_bytes,
                "components_bytes": dict(stage.components_bytes),
            }
            for stage in memory.stages
        ],
    }
