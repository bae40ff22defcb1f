"""What a run keeps, as stated: 8-bit weights alone, no master weights, accumulated gradients, chunked loss, eager layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from layoutopt.optimizer.cost.activations import layer_activations
from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import CostKind, build_cost_model, pricing_preset
from layoutopt.optimizer.cost.hardware import sustained_rates
from layoutopt.optimizer.cost.launch_switches import of_preset
from layoutopt.optimizer.cost.work import ComputeContext, make_keys
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.gpu_catalog import find_gpu
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.loading import load_workload, parse_workload, reference_cluster
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate

PARAMETERS = 8_030_261_248
"""Of Llama 3 8B (its model card's 8.03 billion)."""

HEAD = 4096 * 128_256


def priced(framework: Framework, *, zero: int = 1, **training: object) -> Estimate:
    """Price Llama 3 8B on eight H100s, data parallel, one sequence of 8,192 tokens."""
    workload = load_workload("llama3-8b")
    spec = replace(
        workload.training,
        **{"sequence_length": 8192, "global_batch": 8, "precision": Precision.BF16, "pad_vocab": False}
        | training,  # type: ignore[arg-type]
    )
    layout = Layout(
        dp=8, zero=zero, micro_batch=1, micro_batches=1, precision=spec.precision,
        stages=(
            VirtualStage(rank=0, chunk=0, layers=32, kinds={"dense": 32}, recomputed=0, embedding=True, head=True),
        ),
    )  # fmt: skip
    cluster = reference_cluster("h100", 8)
    return estimate(build_cost_model(workload.model, spec, cluster, framework=framework), layout)


def states_bytes(found: Estimate) -> float:
    """Sum weights, gradients and optimizer state of the only stage."""
    (stage,) = found.memory.stages
    return sum(stage.components_bytes[name] for name in ("weights", "gradients", "optimizer"))


def test_weights_in_8_bits_alone_are_counted_once() -> None:
    """No 16-bit ones beside them: on Hopper both arrangements of 1.03 bytes each, where copies beside take 2 more."""
    alone = priced(Framework.MEGATRON, precision=Precision.FP8, fp8_param_gather=True)
    beside = priced(Framework.MEGATRON, precision=Precision.FP8, fp8_param_gather=False)
    in_layers = PARAMETERS - 2 * HEAD
    saved = states_bytes(beside) - states_bytes(alone)
    assert saved == pytest.approx(2 * in_layers, rel=1e-3)


@pytest.mark.parametrize("framework", [Framework.TORCHTITAN, Framework.ACCELERATE, Framework.MEGATRON])
def test_without_master_weights_8_bytes_a_parameter(framework: Framework) -> None:
    """Weights, gradients and two moments in 16 bits: what transformers, TRL and AutoModel train in by default."""
    assert states_bytes(priced(framework, zero=0, master_bytes=0)) == pytest.approx(8 * PARAMETERS, rel=1e-3)


def test_automodel_trains_without_master_weights() -> None:
    """Its recipes load bf16 weights and update these: nothing needs to be stated."""
    assert states_bytes(priced(Framework.NEMO_AUTOMODEL, zero=0)) == pytest.approx(8 * PARAMETERS, rel=1e-3)


def test_accumulated_gradients_are_6_bytes() -> None:
    """DeepSpeed's bf16 optimizer keeps 16-bit gradients beside their fp32 sum, and reduces that."""
    plain, both = (priced(Framework.DEEPSPEED, zero=1, grad_bytes=size) for size in (2, 6))
    assert states_bytes(both) - states_bytes(plain) == pytest.approx(4 * PARAMETERS, rel=1e-3)
    assert load_preset(Framework.DEEPSPEED).with_training(_training(grad_bytes=6)).grad_comm_bytes == 4


def _training(**own: object) -> TrainingSpec:
    spec = {"sequence_length": 8192, "global_batch": 8, "precision": Precision.BF16} | own
    return TrainingSpec(**spec)  # type: ignore[arg-type]


def test_chunked_loss_keeps_one_chunk_of_logits() -> None:
    """Eight parts keep an eighth of the logits and, meanwhile, the gradient of the head's input."""
    whole, parts = (priced(Framework.TORCHTITAN, zero=3, loss_chunks=count) for count in (1, 8))
    logits = 10 * 8192 * 128_256  # 16-bit logits, fp32 log-softmax and its gradient
    assert whole.memory.peak_bytes - parts.memory.peak_bytes == pytest.approx(
        logits * 7 / 8 - 2 * 8192 * 4096, rel=1e-3
    )
    assert parts.step_time_s >= whole.step_time_s * (1 - 1e-9)


def logits_bytes(found: Estimate) -> float:
    """Logits of the only stage."""
    (stage,) = found.memory.stages
    return stage.components_bytes["logits"]


@pytest.mark.parametrize(
    ("framework", "bytes_per_logit"),
    [(Framework.ACCELERATE, 12), (Framework.DEEPSPEED, 12), (Framework.NEMO_AUTOMODEL, 14)],
)
def test_transformers_loss_keeps_every_logit_in_fp32(framework: Framework, bytes_per_logit: int) -> None:
    """The log-softmax, its gradient and that of the logits are alive at once, as torch's are (``checks.counted``)."""
    whole, fused = (priced(framework, zero=3, fused_loss=fused) for fused in (None, True))
    assert logits_bytes(whole) - logits_bytes(fused) == pytest.approx((bytes_per_logit - 2) * 8192 * 128_256)


def test_transformers_loss_of_long_sequences_does_not_fit() -> None:
    """An 8B model at 32,768 tokens: in 80 GB whatever is recomputed, the logits alone take 50."""
    long = {"sequence_length": 32_768}
    assert priced(Framework.ACCELERATE, zero=3, **long).memory.peak_bytes > 80e9
    assert logits_bytes(priced(Framework.ACCELERATE, zero=3, **long)) > 12 * 32_768 * 128_256


def test_torchtitan_makes_logits_in_parts_since_its_configurations_do() -> None:
    """From #2937 on, 2026-04-27; Hugging Face models in AutoModel, which is priced like it, have them all at once."""
    parts = {
        software: load_preset(Framework.TORCHTITAN, software).loss_chunks
        for software in (None, "era C", "2026-05", "2026-04", "2026-03", "era B", "v0.2.2", "2024-12")
    }
    assert parts == {
        None: 8, "era C": 8, "2026-05": 8, "2026-04": 8, "2026-03": 1, "era B": 1, "v0.2.2": 1, "2024-12": 1,
    }  # fmt: skip
    assert load_preset(Framework.NEMO_AUTOMODEL).loss_chunks == 1
    unasked, stated, whole = (priced(Framework.TORCHTITAN, zero=3, loss_chunks=own) for own in (None, 8, 1))
    assert unasked == stated and unasked.memory.peak_bytes < whole.memory.peak_bytes


def test_prediction_layers_make_all_their_logits_at_once() -> None:
    """torchtitan's MTPLoss knows no parts; what a run states is said of its model."""
    model, preset = load_workload("deepseek-v3").model, load_preset(Framework.TORCHTITAN)
    cases = ((model, None), (replace(model, mtp_layers=0), None), (model, 4))
    used = [pricing_preset(preset, own, _training(loss_chunks=parts), CostKind.FULL) for own, parts in cases]
    assert model.mtp_layers and [one.loss_chunks for one in used] == [1, 8, 4]


HIDDEN = 4096


@pytest.mark.parametrize(
    ("framework", "ffn", "bytes_per_element"),
    [
        # Counted with torch.autograd.graph.saved_tensors_hooks on transformers' Llama layer, a key-value head per head.
        (Framework.DEEPSPEED, 3.5, 52.1),
        (Framework.DEEPSPEED, 2.6875, 45.6),
        (Framework.ACCELERATE, 3.5, 62.1),
        (Framework.ACCELERATE, 2.6875, 55.6),
        # Fused norms and SwiGLU: two of 2 + 2 bytes, 3 + 1 of attention and 6 per element of the MLP.
        (Framework.MEGATRON, 3.5, 37.0),
    ],
)
def test_eager_layers_keep_what_their_kernels_save(
    framework: Framework, ffn: float, bytes_per_element: float
) -> None:
    """Bytes per token and hidden unit of a layer without checkpointing."""
    preset, gpu = load_preset(framework), find_gpu("h100").gpu
    constants = load_constants()
    run = Run(name="dense", block=(LayerShape(mlp=Mlp.DENSE, ffn=int(ffn * HIDDEN)),), count=1)
    model = ModelSpec(name="m", hidden=HIDDEN, heads=32, kv_heads=32, head_dim=128, vocab=32_000, runs=(run,))
    rates = sustained_rates(gpu, Precision.BF16, constants, preset)
    ctx = ComputeContext(
        model=model,
        training=_training(),
        preset=preset,
        constants=constants,
        rates=rates,
        switches=of_preset(preset),
    )
    one = {name: np.ones(1) for name in ("tp", "cp", "micro_batch", "ep", "etp")}
    keys = make_keys(ctx.training, sp=np.zeros(1), **one)
    kept = layer_activations(ctx, keys, run.block[0]).kept_bytes[0]
    assert kept / (8192 * HIDDEN) == pytest.approx(bytes_per_element, abs=0.1)


def test_the_reserve_of_one_machine_stays_with_its_releases() -> None:
    """BigScience's figures are those of its PyTorch; a newer Megatron-DeepSpeed takes the general reserve."""
    old, new = (load_preset(Framework.MEGATRON_DEEPSPEED, release) for release in ("2022", None))
    general = load_preset(Framework.MEGATRON)
    assert (old.allocator_reserve, old.overhead_bytes) == (0.174, 7.9e9)
    assert (new.allocator_reserve, new.overhead_bytes) == (general.allocator_reserve, general.overhead_bytes)


FILE = """
architecture: {{layers: 2, hidden: 256, heads: 4, ffn: 512, vocab: 1000, gated: true}}
training: {{sequence_length: 128, global_batch: 8, precision: {precision}, {stated}}}
"""


@pytest.mark.parametrize(
    ("stated", "field", "value"),
    [
        ("master_dtype: none", "master_bytes", 0),
        ("grad_dtype: bf16+fp32", "grad_bytes", 6),
        ("loss_chunks: 16", "loss_chunks", 16),
        ("fp8_param_gather: true", "fp8_param_gather", True),
    ],
)
def test_the_model_file_states_it(stated: str, field: str, value: object) -> None:
    """One key each."""
    workload = parse_workload(FILE.format(precision="fp8", stated=stated), "m.yaml")
    assert getattr(workload.training, field) == value


def test_narrow_weights_need_narrow_arithmetic() -> None:
    """8-bit weights of a 16-bit run are a contradiction: one line."""
    with pytest.raises(InputError, match=r"fp8_param_gather.*precision is bf16"):
        parse_workload(FILE.format(precision="bf16", stated="fp8_param_gather: true"), "m.yaml")
