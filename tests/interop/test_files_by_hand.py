"""What an import writes as this tool's own files, key by key, and what is left out where it is off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checks.agreement import dense_model, dense_then_moe, windowed

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.files import (
    assumed_of,
    imported_to_plain,
    job_training,
    layout_file,
    model_file,
    notes_of,
    stated,
    unwritten,
)
from layoutopt.optimizer.interop.measured.run_columns import job_columns, model_columns
from layoutopt.optimizer.interop.records import ImportedJob, JobOptions, JobTraining, LoggedRun, NodeSet
from layoutopt.optimizer.interop.sources import Imported
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.layout_string import StageItems
from layoutopt.optimizer.specs.model import AdapterSpec, MlaSpec, Norm, OptimizerSpec
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import (
    AdapterMethod,
    AdapterTarget,
    Fp8Recipe,
    Granularity,
    MuonSharing,
    Optimizer,
    Precision,
    Saver,
    Schedule,
)

LATENT = MlaSpec(q_lora_rank=3, kv_lora_rank=8, qk_nope_head_dim=16, qk_rope_head_dim=4, v_head_dim=12)
DENSE, EXPERTS = dense_model(8), dense_then_moe(8, mtp_layers=0)
SIZES = {
    "layers": 8,
    "hidden": 1024,
    "heads": 16,
    "kv_heads": 8,
    "head_dim": 64,
    "vocab": 32_000,
    "gated": True,
    "layer_norms": 2,
}


@pytest.mark.parametrize(
    ("model", "architecture"),
    [
        (DENSE, {**SIZES, "ffn": 2816}),
        (replace(DENSE, norm=Norm.LAYER, qk_norm=True, mtp_layers=1, streams=2, left_out=("vision",)), {
            **SIZES, "ffn": 2816, "norm": "layer", "qk_norm": True, "mtp_layers": 1, "streams": 2, "left_out": ["vision"],
        }),
        (replace(DENSE, rope_base=5e5, norm_epsilon=1e-6, tied_embeddings=True), {
            **SIZES, "ffn": 2816, "rope_base": 5e5, "norm_epsilon": 1e-6, "tied_embeddings": True,
        }),
        (EXPERTS, {
            **SIZES, "ffn": 2816,
            "moe": {"experts": 16, "top_k": 2, "ffn": 512, "shared_ffn": 512, "dense_layers": 1},
        }),
        (windowed(4), {
            **SIZES, "layers": 4,
            "blocks": [
                {"kind": "dense", "count": 1, "ffn": 2816, "window": 512},
                {"kind": "dense", "count": 1, "ffn": 2816},
            ] * 2,
        }),
        (dense_model(8, mla=LATENT), {
            "layers": 8, "hidden": 1024, "heads": 16, "vocab": 32_000, "gated": True, "ffn": 2816,
            "layer_norms": 2,
            "mla": {"q_lora_rank": 3, "kv_lora_rank": 8, "qk_nope_head_dim": 16, "qk_rope_head_dim": 4, "v_head_dim": 12},
        }),
    ],
)  # fmt: skip
def test_architectures(model: Any, architecture: dict[str, Any]) -> None:
    """Sizes, what is on, and which layer is which in its shortest form."""
    found = model_file(replace(model, published_parameters=None), {"sequence_length": 8, "precision": None})
    assert found == {"name": "tiny", "architecture": architecture, "training": {"sequence_length": 8}}
    assert model_file(replace(DENSE, published_parameters=1e9), {})["published_parameters"] == 1e9


@pytest.mark.parametrize(
    ("training", "plain"),
    [
        ({}, {}),
        (
            {"sequence_length": 8, "global_batch": 4, "train_steps": 3},
            {"sequence_length": 8, "global_batch": 4, "total_tokens": 96},
        ),
        ({"sequence_length": 8, "train_steps": 3}, {"sequence_length": 8}),
        (
            {"precision": Precision.FP8, "fp8_recipe": Fp8Recipe.DELAYED, "grad_bytes": 4, "moment_bytes": 2},
            {"precision": "fp8", "fp8_recipe": "delayed", "grad_dtype": "fp32", "moment_dtype": "bf16"},
        ),
        ({"moment_bytes": 1, "grad_bytes": 2}, {"moment_dtype": "fp8", "grad_dtype": "bf16"}),
        ({"flash": True, "dropout": False, "pad_vocab": False}, {"pad_vocab": False}),
        ({"flash": False, "dropout": True, "pad_vocab": True}, {"flash": False, "dropout": True, "pad_vocab": True}),
        ({"optimizer": OptimizerSpec()}, {}),
        ({"optimizer": OptimizerSpec(kind=Optimizer.LION)}, {"optimizer": {"kind": "lion"}}),
        (
            {"optimizer": OptimizerSpec(kind=Optimizer.MUON, distribution=MuonSharing.DISTRIBUTED, steps=3)},
            {"optimizer": {"kind": "muon", "distribution": "distributed", "steps": 3}},
        ),
        (
            {"adapter": AdapterSpec(method=AdapterMethod.LORA, rank=4, targets=(AdapterTarget.MLP,))},
            {"adapter": {"method": "lora", "rank": 4, "targets": ["mlp"]}},
        ),
    ],
)  # fmt: skip
def test_training_of_a_launch(training: dict[str, Any], plain: dict[str, Any]) -> None:
    """What is stated; tokens follow where steps, batch and length all are."""
    assert job_training(JobTraining(**training)) == plain


FULL = Granularity.FULL


@pytest.mark.parametrize(
    ("layout", "plain"),
    [
        ({}, {}),
        ({"tp": 2, "sp": False, "zero": 0, "micro_batch": 1}, {"tp": 2, "sp": False, "zero": 0, "micro_batch": 1}),
        ({"schedule": Schedule.ONE_F_ONE_B, "precision": Precision.BF16}, {"schedule": "1f1b", "precision": "bf16"}),
        ({"recompute": Recompute()}, {"recompute": "none"}),
        ({"recompute": Recompute(granularity=FULL)}, {"recompute": "full"}),
        ({"recompute": Recompute(granularity=FULL), "recompute_layers": 3}, {"recompute": "full:3"}),
        ({"recompute": Recompute(granularity=FULL, group=2)}, {"recompute": "uniform:2"}),
        ({"recompute": Recompute(granularity=Granularity.SELECTIVE, modules=("mlp", "moe"))}, {"recompute": "mlp+moe"}),
        (
            {"recompute": Recompute(granularity=Granularity.SELECTIVE)},
            {"recompute": {"granularity": "selective", "modules": []}},
        ),
        ({"savers": (Saver.BF16_MOMENTS,)}, {"savers": ["bf16-moments"]}),
        (
            {"split": (StageItems(layers=3), StageItems(layers=5, mtp=1))},
            {"stages": [{"layers": 3}, {"layers": 5, "mtp": 1}]},
        ),
    ],
)  # fmt: skip
def test_layouts_as_files(layout: dict[str, Any], plain: dict[str, Any]) -> None:
    """What is stated, false and zero too."""
    assert layout_file(PartialLayout(**layout)) == plain


def test_other_kinds_of_files() -> None:
    """Runs, nodes and notes: figures by name, and what is known beside them."""
    assert stated({"a": None, "b": 0, "c": False}) == {"b": 0, "c": False}
    run = LoggedRun(columns={"n_gpus": 8}, timers_s={"forward": (1.0, 2.0)}, samples_per_s=3.0, notes=("x",))
    assert imported_to_plain(Imported(kind="k", value=run)) == {
        "n_gpus": 8,
        "samples_per_s": 3.0,
        "timers_s": {"forward": [1.0, 2.0]},
    }
    assert imported_to_plain(Imported(kind="k", value=replace(run, timers_s={}, samples_per_s=None))) == {
        "n_gpus": 8
    }
    nodes = imported_to_plain(Imported(kind="k", value=NodeSet(nodes=("a", "b"), notes=("y",))))
    assert nodes["nodes"] == 2 and nodes["names"] == ["a", "b"] and "notes" not in nodes
    job = ImportedJob(
        framework=Framework.MEGATRON, layout=PartialLayout(vp=2), training=JobTraining(), notes=("assumed: a",),
        missing=("b",), options=JobOptions(pp_overlap=False, microbatch_group=4),
    )  # fmt: skip
    found = Imported(kind="k", value=job)
    assert notes_of(found) == ("assumed: a", "missing: b") == assumed_of(found)
    (said,) = unwritten(found)
    assert said.startswith("pp_overlap, microbatch_group: in options alone")
    plain = replace(job, layout=PartialLayout(vp=1), options=JobOptions(pp_overlap=False))
    assert unwritten(Imported(kind="k", value=plain)) == () == unwritten(Imported(kind="k", value=run))


@pytest.mark.parametrize(
    ("layout", "columns"),
    [
        ({}, {}),
        ({"sp": True, "zero": 1, "tp": 2}, {"sp": 1, "zero": 1, "tp": 2}),
        ({"sp": False, "zero": 0}, {"sp": 0, "zero": 0}),
        ({"zero": 3, "hsdp_shard": 8}, {"zero": "hsdp:8"}),
        ({"zero": 1, "hsdp_shard": 8}, {"zero": 1}),
        ({"recompute": Recompute()}, {"recompute": "none"}),
        (
            {"recompute": Recompute(granularity=Granularity.SELECTIVE, modules=("mlp", "moe"))},
            {"recompute": "selective", "recompute_modules": "mlp moe"},
        ),
        ({"schedule": Schedule.ONE_F_ONE_B}, {"schedule": "1f1b"}),
    ],
)
def test_runs_as_columns(layout: dict[str, Any], columns: dict[str, Any]) -> None:
    """What a launch states of a run; unknown cells are absent, off ones are not."""
    job = ImportedJob(framework=Framework.MEGATRON, layout=PartialLayout(**layout), training=JobTraining())
    assert job_columns(job) == {"framework": "megatron", **columns}


def test_models_as_columns() -> None:
    """The widest dense MLP, experts with the dense layers before them, latent attention in one cell."""
    plain = model_columns(DENSE)
    assert (plain["layers"], plain["ffn"], plain["gated"], plain["tied"]) == (8, 2816, 1, 0)
    assert not {"moe_experts", "mla", "mtp_depth"} & plain.keys()
    found = model_columns(replace(EXPERTS, mla=LATENT, mtp_layers=1))
    assert [found[f"moe_{name}"] for name in ("experts", "topk", "ffn", "shared_ffn", "dense_layers")] == [
        16,
        2,
        512,
        512,
        1,
    ]
    assert (found["mla"], found["mtp_depth"]) == ("q_lora=3;kv_lora=8;qk_nope=16;qk_rope=4;v=12", 1)
