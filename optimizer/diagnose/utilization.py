"""How well a run uses its GPUs, from its throughput alone: MFU and HFU in every count of FLOPs that is quoted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.flops import attention_flops, model_flops_per_token
from layoutopt.optimizer.cost.parameter_counts import count_parameters
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.parameter_counts import ParameterCounts
    from layoutopt.optimizer.specs.cluster import GpuSpec
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Precision
    from layoutopt.optimizer.specs.workload import Workload


class Count(StrEnum):
    """What of attention a count of FLOPs holds: nothing (6N), the lower triangle of the scores, the whole square."""

    MATRICES = "matrices"
    CAUSAL = "causal"
    FULL = "full"


COUNT_WORDS = {
    Count.MATRICES: "matrix parameters alone (6N)",
    Count.CAUSAL: "causal attention (Megatron-LM's count)",
    Count.FULL: "full attention (PaLM's count)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a run states of its speed: exactly one of the three is given.

    ``tokens_per_s`` and ``step_time_s`` are the whole job's; ``tflops_per_gpu`` counts FLOPs as ``count`` says.
    """

    tokens_per_s: float | None = None
    tflops_per_gpu: float | None = None
    step_time_s: float | None = None
    count: Count = Count.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedUse:
    """Utilisation in one count of FLOPs; ``hfu`` adds what backward repeats of the forward pass."""

    flops_per_token: float
    tflops_per_gpu: float
    mfu: float
    hfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """What a throughput means.

    ``peak_flops_per_gpu`` is what utilisation is a share of, ``parameters`` say which N takes part, ``repeated`` is the
    share of the forward pass that backward computes again. ``by_count`` has every count of FLOPs.
    """

    gpus: int
    peak_flops_per_gpu: float
    sequence_length: int
    global_batch: int
    parameters: ParameterCounts
    repeated: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    step_time_s: float
    by_count: dict[Count, CountedUse]


def peak_flops(gpu: GpuSpec, precision: Precision) -> float:
    """Return a GPU's dense peak in a precision, FLOP/s; raises ``InputError`` where it has none."""
    if precision not in gpu.dense_flops:
        known = ", ".join(gpu.dense_flops)
        raise input_error(f"{gpu.name} has no {precision} arithmetic", f"one of {known}", key="precision")
    return gpu.dense_flops[precision]


def utilization(
    workload: Workload, throughput: Throughput, *, gpus: int, peak_flops_per_gpu: float, repeated: float = 0.0
) -> Utilization:
    """Return what a throughput on ``gpus`` GPUs means.

    ``repeated`` is the share of the forward pass that recomputation does again, 0 to 1. Raises ``InputError`` for a rate
    above the peak of the hardware, what is repeated counted too: a mistake of unit, GPU or model.
    """
    flops = _flops_per_token(workload.model, workload.training.sequence_length)
    tokens_per_s = _tokens_per_s(workload, throughput, gpus, flops)
    per_gpu = tokens_per_s / gpus
    by_count = {
        count: CountedUse(
            flops_per_token=value,
            tflops_per_gpu=value * per_gpu / 1e12,
            mfu=value * per_gpu / peak_flops_per_gpu,
            hfu=value
            * (1 + repeated / 3)
            * per_gpu
            / peak_flops_per_gpu,  # forward is a third of the three passes
        )
        for count, value in flops.items()
    }
    # By the smallest count: what is above the peak without attention is impossible by any count.
    least = by_count[Count.MATRICES].mfu
    if least > 1:
        raise input_error(
            f"{per_gpu:,.4g} tokens/s per GPU are {least:.3g} times the hardware's peak",
            "the whole job's tokens/s and its number of GPUs, with their peak and the model that ran",
            key="throughput",
        )
    again = by_count[Count.MATRICES].hfu
    if again > 1:
        raise input_error(
            f"{repeated:.0%} of the forward pass repeated makes an HFU of {again:.1%}: more than the hardware's peak",
            f"at most {3 * (1 / least - 1):.0%} at this speed, 0 without recomputation",
            key="repeated",
        )
    training = workload.training
    return Utilization(
        gpus=gpus,
        peak_flops_per_gpu=peak_flops_per_gpu,
        sequence_length=training.sequence_length,
        global_batch=training.global_batch,
        parameters=count_parameters(workload.model),
        repeated=repeated,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=per_gpu,
        step_time_s=training.tokens_per_step / tokens_per_s,
        by_count=by_count,
    )


def require_possible(cost: CostModel, gpus: int, step_s: float, *, file: str) -> None:
    """Refuse a step that a plan's GPUs cannot run at their peak: it is of another batch, model or GPU.

    Raises ``InputError``.
    """
    training, gpu = cost.training, cost.cluster.gpu
    flops = _flops_per_token(cost.model, training.sequence_length)[Count.MATRICES] * training.tokens_per_step
    times = flops / gpus / step_s / peak_flops(gpu, training.precision)
    if times > 1:
        step = format_seconds(step_s)
        what = (
            f"has steps of {step}, in which the plan's batch needs {times:.3g} times the peak of {gpu.name}"
        )
        raise input_error(what, "the run of the plan: its batch, layers and GPUs", file=file)


def _flops_per_token(model: ModelSpec, length: int) -> dict[Count, float]:
    """FLOPs of one token, forward and backward, by count."""
    full = model_flops_per_token(model, length, causal=False)
    layers = [(run.count, shape) for run in model.runs for shape in run.block]
    layers += [(model.mtp_layers, model.last_shape)] if model.mtp_layers else []
    # Three times a forward pass: backward multiplies once for the inputs and once for the weights' side.
    scores = sum(count * attention_flops(model, shape, length, causal=False) for count, shape in layers)
    return {
        Count.MATRICES: full - 3 * scores,
        Count.CAUSAL: model_flops_per_token(model, length, causal=True),
        Count.FULL: full,
    }


def _tokens_per_s(workload: Workload, throughput: Throughput, gpus: int, flops: dict[Count, float]) -> float:
    stated = [throughput.tokens_per_s, throughput.tflops_per_gpu, throughput.step_time_s]
    if sum(value is not None for value in stated) != 1:
        raise input_error(
            "exactly one speed is needed", "tokens_per_s, tflops_per_gpu or step_time_s", key="throughput"
        )
    if throughput.tokens_per_s is not None:
        return throughput.tokens_per_s
    if throughput.step_time_s is not None:
        return workload.training.tokens_per_step / throughput.step_time_s
    assert throughput.tflops_per_gpu is not None
    return throughput.tflops_per_gpu * 1e12 * gpus / flops[throughput.count]
