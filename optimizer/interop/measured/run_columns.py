"""A job as columns of the measured-run table: architecture, layout, batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.model import Mlp

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.specs.model import ModelSpec

Columns = dict[str, str | int | float]


def job_columns(job: ImportedJob) -> Columns:
    """Return what a launch file says about a run; unknown cells are absent."""
    layout, training = job.layout, job.training
    shard = layout.hsdp_shard
    cells = {
        "framework": job.framework.value,
        "seq": training.sequence_length,
        "n_gpus": job.gpus,
        "tp": layout.tp,
        "sp": None if layout.sp is None else int(layout.sp),
        "cp": layout.cp,
        "pp": layout.pp,
        "vp": layout.vp,
        "ep": layout.ep,
        "etp": layout.etp,
        "dp": layout.dp,
        "zero": f"hsdp:{shard}" if shard and layout.zero == 3 else layout.zero,
        "micro_batch": layout.micro_batch,
        "global_batch": training.global_batch,
        "recompute": layout.recompute.granularity.value if layout.recompute else None,
        "recompute_modules": " ".join(layout.recompute.modules) if layout.recompute else None,
        "precision": training.precision.value if training.precision else None,
        "fp8_recipe": training.fp8_recipe.value if training.fp8_recipe else None,
        "schedule": layout.schedule.value if layout.schedule else None,
        "software": job.version,
    }
    columns: Columns = model_columns(job.model) if job.model else {}
    return columns | {name: value for name, value in cells.items() if value not in (None, "")}


def model_columns(model: ModelSpec) -> Columns:
    """Return the architecture's columns."""
    # A table has one cell for the width; of models whose layers differ the widest stands for all.
    widths = {shape.ffn for run in model.runs for shape in run.block if shape.mlp is Mlp.DENSE}
    columns: Columns = {
        "model": model.name,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": max(widths, default=0),
        "vocab": model.vocab,
        "gated": int(model.gated),
        "tied": int(model.tied_embeddings),
    }
    if model.moe is not None:
        dense = sum(shape.mlp is Mlp.DENSE for shape in model.shapes)
        columns |= {
            "moe_experts": model.moe.experts,
            "moe_topk": model.moe.top_k,
            "moe_ffn": model.moe.ffn,
            "moe_shared_ffn": model.moe.shared_ffn,
            "moe_dense_layers": dense,
        }
    if model.mla is not None:
        mla = model.mla
        columns["mla"] = (
            f"q_lora={mla.q_lora_rank};kv_lora={mla.kv_lora_rank};qk_nope={mla.qk_nope_head_dim};"
            f"qk_rope={mla.qk_rope_head_dim};v={mla.v_head_dim}"
        )
    if model.mtp_layers:
        columns["mtp_depth"] = model.mtp_layers
    return columns
