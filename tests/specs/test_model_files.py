"""Model files: how the few keys that users write become runs of layers, parts and training numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_workload, override_training
from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Precision

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.workload import Workload

HEAD = "architecture:\n  hidden: 512\n  heads: 8\n  ffn: 1408\n  vocab: 32000\n"
TRAINING = "training: {sequence_length: 2048, global_batch: 64, precision: bf16}\n"
MOE = "  moe: {experts: 8, top_k: 2, ffn: 256"


@pytest.fixture
def load(tmp_path: Path) -> object:
    """Return a function that loads a text as a model file."""

    def read(text: str) -> Workload:
        path = tmp_path / "tiny.yaml"
        path.write_text(text)
        return load_workload(path)

    return read


def shapes(model: ModelSpec) -> list[LayerShape]:
    """List the layers in order."""
    return [shape for run in model.runs for _ in range(run.count) for shape in run.block]


def test_defaults(load: object) -> None:
    """What is left out takes the usual values: one run, MHA, RMSNorm, the file's name."""
    workload = load(HEAD + "  layers: 4\n" + TRAINING)  # type: ignore[operator]
    model = workload.model
    assert (model.name, model.kv_heads, model.head_dim) == ("tiny", 8, 64)
    assert (model.norm, model.gated, model.tied_embeddings) == (Norm.RMS, True, False)
    assert [(run.name, run.count, run.block) for run in model.runs] == [("dense", 4, (LayerShape(ffn=1408),))]
    assert workload.training.grad_bytes is None
    assert workload.phases == ()


def test_everything_stated(load: object) -> None:
    """Every scalar key arrives where it belongs."""
    text = (
        "name: all\nsource: [one, two]\npublished_parameters: 1.5M\n"
        + HEAD
        + "  layers: 4\n  kv_heads: 2\n  head_dim: 32\n  gated: no\n  tied_embeddings: yes\n"
        "  norm: LayerNorm\n  attention_bias: true\n  qkv_bias: true\n  mlp_bias: true\n  qk_norm: true\n"
        "  learned_positions: 4096\n  embedding_norm: true\n  mtp_layers: 1\n"
        + MOE
        + ", shared_ffn: 512, dense_layers: 1, node_limit: 4, capacity_factor: 1.25, router_bias: true, "
        "shared_gate: true, expert_bias: true}\n"
        "training:\n  sequence_length: 2048\n  global_batch_tokens: 131072\n"
        "  total_tokens: 1.4T tokens\n"
        "  precision: FP8\n  fp8_recipe: current\n  grad_dtype: bf16\n  moment_dtype: fp8\n"
        "  master_dtype: none\n"
        "  pad_vocab: true\n  flash: false\n  dropout: true\n"
        "  fused_loss: true\n  moe_imbalance: 1.2\n"
    )
    workload = load(text)  # type: ignore[operator]
    model, training = workload.model, workload.training
    assert (model.name, model.published_parameters, model.norm) == ("all", 1.5e6, Norm.LAYER)
    assert (model.gated, model.tied_embeddings, model.kv_heads, model.head_dim) == (False, True, 2, 32)
    assert (model.attention_bias, model.qkv_bias, model.mlp_bias, model.qk_norm) == (True,) * 4
    assert (model.learned_positions, model.embedding_norm, model.mtp_layers) == (4096, True, 1)
    moe = model.moe
    assert moe is not None
    assert (moe.shared_ffn, moe.binding_groups, moe.capacity_factor) == (512, (8, 4), 1.25)
    assert (moe.router_bias, moe.shared_gate, moe.expert_bias) == (True,) * 3
    assert (training.global_batch, training.total_tokens) == (64, 1.4e12)
    assert (training.precision, training.fp8_recipe) == (Precision.FP8, Fp8Recipe.CURRENT)
    assert (training.grad_bytes, training.moment_bytes, training.master_bytes) == (2, 1, 0)
    assert (training.pad_vocab, training.flash, training.dropout, training.fused_loss) == (
        True,
        False,
        True,
        True,
    )
    assert training.moe_imbalance == 1.2


def test_leading_dense_layers_are_a_run(load: object) -> None:
    """Leading dense layers and MoE layers are two runs named after their kinds."""
    model = load(HEAD + "  layers: 10\n" + MOE + ", dense_layers: 3}\n" + TRAINING).model  # type: ignore[operator]
    assert [(run.name, run.count) for run in model.runs] == [("dense", 3), ("moe", 7)]
    assert model.runs[0].block[0].ffn == 1408
    assert model.runs[1].block[0].ffn == 0


def test_pure_moe_needs_no_dense_width(load: object) -> None:
    """A model whose layers are all MoE is one run and may leave ffn out."""
    text = HEAD.replace("  ffn: 1408\n", "") + "  layers: 10\n" + MOE + "}\n" + TRAINING
    assert [(run.name, run.count) for run in load(text).model.runs] == [("moe", 10)]  # type: ignore[operator]


def test_alternation_is_one_run_and_a_remainder(load: object) -> None:
    """MoE on each second layer is one run of two-layer blocks; an odd layer is left over."""
    model = load(HEAD + "  layers: 9\n" + MOE + ", every: 2}\n" + TRAINING).model  # type: ignore[operator]
    assert [(run.name, run.count, len(run.block)) for run in model.runs] == [
        ("pattern", 4, 2),
        ("dense", 1, 1),
    ]
    assert [shape.mlp for shape in model.runs[0].block] == [Mlp.DENSE, Mlp.MOE]


@pytest.mark.parametrize(
    ("written", "windows"),
    [
        ("sliding_window: 128", [128] * 6),
        ("sliding_window: {window: 128}", [128] * 6),
        ("sliding_window: {window: 128, pattern: alternating}", [128, None] * 3),
        ("sliding_window: {window: 128, pattern: [sliding, sliding, full]}", [128, 128, None] * 2),
        ("sliding_window: {window: 128, pattern: [full, sliding]}", [None, 128] * 3),
        ("sliding_window:", [None] * 6),
    ],
)
def test_windows(load: object, written: str, windows: list[int | None]) -> None:
    """Windows repeat their pattern over the layers."""
    model = load(HEAD + "  layers: 6\n  " + written + "\n" + TRAINING).model  # type: ignore[operator]
    assert [shape.window for shape in shapes(model)] == windows
    assert len(model.runs) == 1


def test_long_window_pattern_with_remainder(load: object) -> None:
    """Five windows to one full layer over 62 layers is one run of ten blocks and two layers."""
    pattern = "[sliding, sliding, sliding, sliding, sliding, full]"
    text = HEAD + f"  layers: 62\n  sliding_window: {{window: 1024, pattern: {pattern}}}\n" + TRAINING
    runs = load(text).model.runs  # type: ignore[operator]
    assert [(run.name, run.count, len(run.block)) for run in runs] == [
        ("pattern", 10, 6),
        ("dense-window", 2, 1),
    ]


def test_blocks(load: object) -> None:
    """Mixed stacks list kinds in order; a repeated pattern is one run."""
    text = (
        HEAD
        + MOE
        + "}\n  mamba: {heads: 8, head_dim: 64, state: 16}\n  layers: 20\n  blocks:\n"
        + "    - {kind: dense, count: 2, bidirectional: true, ffn: 700}\n"
        + "    - {pattern: [mamba, moe, mamba-moe], count: 5}\n    - {kind: attention, window: 64}\n"
        + "    - {kind: mlp}\n    - {kind: experts}\n"
        + TRAINING
    )
    model = load(text).model  # type: ignore[operator]
    names = [(run.name, run.count, len(run.block)) for run in model.runs]
    assert names[:2] == [("encoder-dense", 2, 1), ("pattern", 5, 3)]
    listed = shapes(model)
    assert listed[0] == LayerShape(ffn=700, bidirectional=True)
    assert [shape.mixer for shape in listed[2:5]] == [Mixer.MAMBA, Mixer.ATTENTION, Mixer.MAMBA]
    assert listed[17] == LayerShape(mlp=Mlp.NONE, window=64)
    assert listed[18] == LayerShape(mixer=Mixer.NONE, ffn=1408)
    assert listed[19] == LayerShape(mixer=Mixer.NONE, mlp=Mlp.MOE)
    assert model.mamba is not None
    assert (model.mamba.groups, model.mamba.conv) == (1, 4)


def test_attention_free_stack_needs_no_heads(load: object) -> None:
    """A stack of Mamba layers may leave heads out."""
    text = (
        "architecture:\n  hidden: 512\n  vocab: 32000\n  mamba: {heads: 8, head_dim: 64, state: 16}\n"
        "  blocks:\n    - {kind: mamba, count: 12}\n" + TRAINING
    )
    assert load(text).model.layers == 12  # type: ignore[operator]


def test_mla_fixes_the_heads(load: object) -> None:
    """With latent attention the width of a query head is its two parts'."""
    mla = "  mla: {kv_lora_rank: 64, qk_nope_head_dim: 48, qk_rope_head_dim: 16, v_head_dim: 48}\n"
    model = load(HEAD + "  layers: 2\n" + mla + TRAINING).model  # type: ignore[operator]
    assert (model.kv_heads, model.head_dim) == (8, 64)
    assert model.mla is not None
    assert model.mla.q_lora_rank == 0


def test_phases_take_the_rest_from_training(load: object) -> None:
    """A phase changes sequence length, batch and tokens, and keeps the number formats."""
    phases = "phases:\n  - {name: main, sequence_length: 2048, global_batch: 64, total_tokens: 1T}\n"
    phases += "  - {name: long, sequence_length: 8192, global_batch_tokens: 131072}\n"
    workload = load(HEAD + "  layers: 2\n" + TRAINING + phases)  # type: ignore[operator]
    assert workload.phase_names == ("main", "long")
    assert [phase.global_batch for phase in workload.phases] == [64, 16]
    assert workload.phases[0].total_tokens == 1e12
    assert all(phase.precision is Precision.BF16 for phase in workload.phases)


def test_overrides() -> None:
    """Training numbers can be replaced one by one; an FP8 recipe goes with FP8."""
    workload = load_workload("deepseek-v3")
    changed = override_training(
        workload, sequence_length=131_072, global_batch=128, precision="bf16", total_tokens=1e12
    )
    training = changed.training
    assert (training.sequence_length, training.global_batch, training.total_tokens) == (131_072, 128, 1e12)
    assert (training.precision, training.fp8_recipe) == (Precision.BF16, None)
    assert override_training(workload) == workload
    assert changed.model == workload.model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequence_length": 0}, "sequence_length: 0 is out of range"),
        ({"global_batch": -4}, "global_batch: -4 is out of range"),
        ({"total_tokens": float("nan")}, "total_tokens: nan is out of range"),
        ({"precision": "bf17"}, "precision: 'bf17' is unknown"),
        ({"sequence_length": 4096}, "more than the model's 2048 learned positions"),
    ],
)
def test_bad_overrides(change: dict[str, object], message: str) -> None:
    """Impossible overrides are one line."""
    with pytest.raises(InputError, match=message):
        override_training(load_workload("gpt3-175b"), **change)  # type: ignore[arg-type]
