"""Work of one GPU's kernels: what it depends on, and the time of linear layers and element-wise kernels.

Functions work on arrays of degree combinations (``Keys``) and return ``Work``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.formats import Operands
from layoutopt.optimizer.cost.hardware import gemm_s, memory_bound_s
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Fp8Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.constants import Constants
    from layoutopt.optimizer.cost.hardware import Rates
    from layoutopt.optimizer.cost.launch_switches import RowSwitches
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Degree combinations, float64 arrays of shape (n,), and the tokens they leave on a rank.

    ``tokens`` of one micro-batch per rank before tensor parallelism; ``local_tokens`` where sequence
    parallelism shards them too; ``sequence`` is the tokens of one sequence on a rank.
    """

    tp: FloatArray
    sp: FloatArray
    cp: FloatArray
    micro_batch: FloatArray
    ep: FloatArray
    etp: FloatArray
    sequence: FloatArray
    tokens: FloatArray
    local_tokens: FloatArray


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of a part of a layer: forward, input gradient (with kernels that have no weights), weight gradient."""

    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray

    def scaled(self, times: FloatArray | float) -> Work:
        """Do the same work ``times``, (n,) or one number for all."""
        return Work(times * self.forward_s, times * self.dgrad_s, times * self.wgrad_s)

    def without_wgrad(self) -> Work:
        """Do the work of weights that are frozen."""
        return Work(self.forward_s, self.dgrad_s, 0.0 * self.wgrad_s)

    def __add__(self, other: Work) -> Work:
        return Work(
            self.forward_s + other.forward_s, self.dgrad_s + other.dgrad_s, self.wgrad_s + other.wgrad_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeContext:
    """What compute time depends on beside the degrees. ``nvlink_domain``: GPUs that reach each other over NVLink.

    ``host_slower``: host time over that of the x86 CPUs that presets' host times are of.
    """

    model: ModelSpec
    training: TrainingSpec
    preset: FrameworkPreset
    constants: Constants
    rates: Rates
    switches: RowSwitches
    nvlink_domain: int = 1
    host_slower: float = 1.0

    @property
    def operands(self) -> Operands:
        """How tokens come to multiply in the run's narrow format."""
        return Operands(
            precision=self.rates.precision,
            recipe=self.training.fp8_recipe,
            any_arrangement=self.rates.any_arrangement,
        )

    def cast_share(self, keys: Keys) -> FloatArray | float:
        """Share, (n,) or 1, of the tokens in front of or behind a pair of tensor-parallel matrices that a rank casts."""
        return keys.local_tokens / keys.tokens if self.operands.gathers_narrow else 1.0

    @property
    def traffic(self) -> float:
        """Memory traffic of element-wise kernels over unfused ones."""
        return self.constants["fused_traffic"] if self.preset.compiled else 1.0

    @property
    def expert_traffic(self) -> FloatArray:
        """Memory traffic around expert multiplications over that of separate kernels, (n,) or ().

        A graph of the whole iteration cannot ask the host how many tokens an expert got: from Blackwell on one kernel
        sizes itself, multiplies, activates and casts for all local experts (NVIDIA/Megatron-LM, CuTe DSL grouped MLP).
        """
        sized = self.rates.eight_bit and self.rates.sized_experts
        fused = self.switches.graphs[CudaGraph.FULL] & sized
        return np.where(fused, self.constants["fused_expert_traffic"], 1.0)


def make_keys(training: TrainingSpec, **degrees: FloatArray) -> Keys:
    """Derive the token counts of degree combinations (tp, sp, cp, micro_batch, ep, etp)."""
    # Context parallelism splits every sequence, sequence parallelism a rank's tokens outside its matrices.
    sequence = training.sequence_length / degrees["cp"]
    tokens = degrees["micro_batch"] * sequence
    local = tokens / np.where(degrees["sp"] > 0, degrees["tp"], 1.0)
    return Keys(**degrees, sequence=sequence, tokens=tokens, local_tokens=local)


def linear(
    ctx: ComputeContext,
    rows: FloatArray,
    columns: FloatArray,
    inner: FloatArray,
    *,
    wide: bool = False,
    groups: FloatArray | float = 1.0,
    cast_share: FloatArray | float = 1.0,
    normed: bool = False,
    input_share: FloatArray | float = 1.0,
    output_share: FloatArray | float = 1.0,
    split: Sequence[FloatArray] = (),
) -> Work:
    """Time a linear layer of ``rows`` tokens, (n,); the weight gradient accumulates into the gradient buffer.

    ``cast_share`` is the traffic of 8-bit casts over that of separate kernels. ``normed``: a norm's kernel writes the input.
    ``input_share`` of the input and ``output_share`` of the output's gradient are cast on this rank, the rest is gathered.
    ``split``: the columns of matrices that a framework multiplies one by one, and whose input gradients it adds up.
    """
    rates, buffer = ctx.rates, 2.0 * ctx.preset.grad_bytes
    own = ctx.preset.weight_bytes
    # Fused into the multiplication it reads and writes the buffer; as a kernel of its own it reads the
    # gradient too.
    added, grad = (own + buffer, own) if ctx.preset.adds_gradients else (0.0, buffer)
    forward = dgrad = wgrad = np.zeros_like(rows)
    parts = split if split and not ctx.preset.joint_projections and not rates.ideal else (columns,)
    for part in parts:
        forward = forward + gemm_s(rates, rows, part, inner, wide=wide, groups=groups)
        dgrad = dgrad + gemm_s(rates, rows, inner, part, wide=wide, groups=groups)
        wgrad = wgrad + gemm_s(rates, part, inner, rows, wide=wide, output_bytes=grad, groups=groups)
    # Each matrix gives the input a gradient of its own; autograd adds them up.
    if len(parts) > 1:
        # A compiled sum reads all parts and writes once; a chain of additions reads two and writes one each
        # time.
        summed = len(parts) + 1 if ctx.preset.compiled else 3 * (len(parts) - 1)
        dgrad = dgrad + memory_bound_s(rates, 2.0 * summed * groups * rows * inner)
    if rates.eight_bit and not wide:
        speed = ctx.constants["fp8_rowwise"] if ctx.training.fp8_recipe is Fp8Recipe.ROWWISE else 1.0
        cast_in = _cast_s(ctx, groups * rows * inner * cast_share, input_share, normed=normed)
        cast_out = _cast_s(ctx, groups * rows * columns * cast_share, output_share)
        forward, dgrad = forward / speed + cast_in, dgrad / speed + cast_out
        wgrad = wgrad / speed
    return Work(forward, dgrad, wgrad + memory_bound_s(rates, added * groups * columns * inner))


def _cast_s(
    ctx: ComputeContext, elements: FloatArray, share: FloatArray | float, *, normed: bool = False
) -> FloatArray:
    """Time the casts of a tensor's elements, of which a rank makes ``share`` and gathers the rest."""
    whole = ctx.operands.cast_bytes(normed=normed, gathered=False)
    parted = ctx.operands.cast_bytes(normed=normed, gathered=True)
    bytes_ = np.where(np.asarray(share) < 1.0, share * parted[0] + parted[1], sum(whole))
    return memory_bound_s(ctx.rates, ctx.constants["cast_traffic"] * bytes_ * elements)


def moved(ctx: ComputeContext, forward_bytes: FloatArray, backward_bytes: FloatArray) -> Work:
    """Time element-wise kernels by the bytes they move, (n,) each."""
    forward = memory_bound_s(ctx.rates, forward_bytes * ctx.traffic)
    backward = memory_bound_s(ctx.rates, backward_bytes * ctx.traffic)
    return Work(forward, backward, np.zeros_like(forward))
