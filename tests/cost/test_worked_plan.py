"""The worked plan: Llama 3 70B on 1,024 H100s, 512 sequences of 8,192 tokens, under the simple cost model.

Every expected value was computed from the stated formula; the tolerance is the rounding of the claim it checks.
"""

from math import sqrt

import pytest

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import Estimate, estimate
from layoutopt.optimizer.cost.factory import CostKind, build_cost_model
from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.cost.schedules import in_flight
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.model import TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision, Schedule

N = 70.6e9
PEAK = 989e12
SEQUENCE, BATCH, GPUS, LAYERS, HIDDEN = 8192, 512, 1024, 80, 8192
TOKENS_PER_STEP = SEQUENCE * BATCH
FLOPS_PER_TOKEN = 6 * N + 12 * LAYERS * HIDDEN * SEQUENCE
TOKENS = 20 * N

LLAMA3_70B = load_workload("llama3-70b").model
CLUSTER = load_cluster("h100-1024")


def price(
    *,
    tp: int = 8,
    pp: int = 1,
    vp: int = 1,
    cp: int = 1,
    zero: int = 1,
    seq: int = SEQUENCE,
    batch: int = BATCH,
) -> Estimate:
    """Price an even layout of the worked plan under the simple model."""
    training = TrainingSpec(sequence_length=seq, global_batch=batch, precision=Precision.BF16)
    cost = build_cost_model(LLAMA3_70B, training, CLUSTER, kind=CostKind.SIMPLE)
    dp = GPUS // (tp * pp * cp)
    count = pp * vp
    stages = tuple(
        VirtualStage(
            rank=i % pp, chunk=i // pp, layers=LAYERS // count, embedding=i == 0, head=i == count - 1
        )
        for i in range(count)
    )
    schedule = Schedule.NONE if pp == 1 else Schedule.ONE_F_ONE_B if vp == 1 else Schedule.INTERLEAVED
    layout = Layout(
        tp=tp, sp=True, cp=cp, pp=pp, vp=vp, dp=dp, zero=zero,
        micro_batches=batch // dp, schedule=schedule, stages=stages,
    )  # fmt: skip
    return estimate(cost, layout)


def test_row_1_recomputation_costs_a_third() -> None:
    """A fourth forward-sized pass over three: +33%, throughput x0.75."""
    assert pytest.approx(0.3333, abs=1e-4) == 4 / 3 - 1
    assert 3 / 4 == 0.75


def test_rows_2_and_3_flops_per_token() -> None:
    """6N + 12*L*d*T = 4.88e11, with recomputation 8N + 16*L*d*T = 6.51e11; the model's own count agrees."""
    assert pytest.approx(4.2360e11) == 6 * N
    assert pytest.approx(6.4425e10, rel=1e-4) == 12 * LAYERS * HIDDEN * SEQUENCE
    assert pytest.approx(4.88024e11, rel=1e-5) == FLOPS_PER_TOKEN
    assert pytest.approx(6.50699e11, rel=1e-5) == 8 * N + 16 * LAYERS * HIDDEN * SEQUENCE
    own = model_flops_per_token(LLAMA3_70B, SEQUENCE, causal=False) + 6 * 128256 * HIDDEN
    assert own == pytest.approx(FLOPS_PER_TOKEN, rel=2e-3)


def test_row_4_attention_share() -> None:
    """Attention adds 15% to 6N, is 13% of the total, and counting the causal half takes 7% off."""
    attention = 12 * LAYERS * HIDDEN * SEQUENCE
    assert attention / (6 * N) == pytest.approx(0.15209, abs=1e-5)
    assert attention / FLOPS_PER_TOKEN == pytest.approx(0.13201, abs=1e-5)
    assert attention / 2 / FLOPS_PER_TOKEN == pytest.approx(0.06601, abs=1e-5)


def test_row_5_input_embedding() -> None:
    """The input embedding is 1.0507e9 parameters and 1.29% of the count."""
    assert pytest.approx(1.0507e9, rel=1e-4) == 128256 * HIDDEN
    assert pytest.approx(0.012917, abs=1e-6) == 6 * 128256 * HIDDEN / FLOPS_PER_TOKEN


def test_rows_6_to_8_budget() -> None:
    """20 tokens per parameter: 6.89e23 FLOPs, 19.69 days at 40%, 336,647 steps."""
    total = FLOPS_PER_TOKEN * TOKENS
    assert total == pytest.approx(6.8909e23, rel=1e-4)
    assert pytest.approx(4.05094e17, rel=1e-5) == GPUS * PEAK * 0.4
    assert total / (GPUS * PEAK * 0.4) == pytest.approx(1.70106e6, rel=1e-4)
    assert total / (GPUS * PEAK * 0.4) / 86400 == pytest.approx(19.69, abs=0.005)
    assert round(TOKENS / TOKENS_PER_STEP) == 336_647
    assert round(1.41e12 / TOKENS_PER_STEP) == 336_170


def test_row_9_days_between_35_and_45_percent() -> None:
    """22.50 and 17.50 days. The claim "20 to 25 days" for 35-45% is not reproduced: that range is 31.5-39.4% MFU."""
    total = FLOPS_PER_TOKEN * TOKENS
    days = [total / (GPUS * PEAK * mfu) / 86400 for mfu in (0.35, 0.45)]
    assert days == pytest.approx([22.50, 17.50], abs=0.01)
    assert [total / (GPUS * PEAK * d * 86400) for d in (25, 20)] == pytest.approx([0.315, 0.394], abs=1e-3)


def test_rows_10_and_11_states_and_activations() -> None:
    """16 bytes per parameter over t=8 is 141 GB; activations of one micro-batch are 22.8 GB: nothing fits 80 GB."""
    assert pytest.approx(1129.6e9) == 16 * N
    memory = price(zero=0).memory
    components = memory.stages[0].components_bytes
    states = sum(components[name] for name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(141.2e9, rel=2e-3)
    assert components["activations"] == pytest.approx(22.817e9, rel=5e-4)
    assert memory.peak_bytes > memory.capacity_bytes


@pytest.mark.parametrize(("zero", "peak_gb"), [(1, 58.944), (2, 41.432), (3, 23.920)])
def test_rows_12_to_14_zero_stages(zero: int, peak_gb: float) -> None:
    """ZeRO-1 about 59 GB, ZeRO-2 about 41 GB, FSDP 24 GB at t=8, dp=128."""
    assert price(zero=zero).memory.peak_bytes == pytest.approx(peak_gb * 1e9, rel=2e-3)


def test_row_15_bubble_of_four_stages() -> None:
    """(p-1)/(m+p-1) = 15.79% with 16 micro-batches, an overhead of 18.75%."""
    parts = price(pp=4).breakdown_s
    ends = parts[Component.BUBBLE] / (sum(parts.values()) - parts[Component.BUBBLE])
    assert pytest.approx(0.15789, abs=1e-5) == 3 / 19
    assert ends == pytest.approx(3 / 16, rel=0.05)  # the head makes the last stage longer


def test_rows_16_and_17_data_parallel_traffic_hides() -> None:
    """ZeRO-1 moves 0.70 s, FSDP 3.15 s (4.20 s reducing every micro-batch) of traffic; both hide under compute."""
    parameters = N / 8
    once = 127 / 128 * 2 * parameters / 50e9
    assert 2 * once == pytest.approx(0.70048, abs=1e-5)
    assert (2 * 4 + 1) * once == pytest.approx(3.1522, abs=1e-4)
    assert 3 * 4 * once == pytest.approx(4.2029, abs=1e-4)
    assert price(zero=1).breakdown_s[Component.DP] == 0
    assert price(zero=3).breakdown_s[Component.FSDP] == 0


def test_row_18_compute_at_55_percent() -> None:
    """3.675 s of compute, 2.450 s of it backward. The claim "roughly 2.6 s" is 6% above what the formula gives."""
    parts = price().breakdown_s
    assert pytest.approx(3.6749, abs=1e-4) == FLOPS_PER_TOKEN * TOKENS_PER_STEP / GPUS / (0.55 * PEAK)
    assert parts[Component.FORWARD] + parts[Component.BACKWARD] == pytest.approx(3.6749, rel=2e-3)
    assert parts[Component.BACKWARD] == pytest.approx(2.450, rel=2e-3)


def test_row_19_step_and_mfu() -> None:
    """About 4.5 s and 45%: five all-reduce equivalents per layer at 450 GB/s give 0.835 s of tensor-parallel traffic.

    Four per layer would give 4.343 s and 46.5%, which is not what the claim says.
    """
    plan = price()
    all_reduce_s = 2 * 7 / 8 * 2 * TOKENS_PER_STEP / (GPUS / 8) * HIDDEN / 450e9
    assert 4 * LAYERS * all_reduce_s == pytest.approx(0.6681, abs=1e-4)
    assert 5 * LAYERS * all_reduce_s == pytest.approx(0.8351, abs=1e-4)
    assert 3.6749 + 4 * LAYERS * all_reduce_s == pytest.approx(4.343, abs=1e-3)
    assert pytest.approx(0.4654, abs=1e-4) == 0.55 * 3.6749 / 4.343
    assert plan.breakdown_s[Component.TP] == pytest.approx(0.8351, abs=2e-4)
    assert plan.step_time_s == pytest.approx(4.510, rel=2e-3)
    assert plan.mfu_full == pytest.approx(0.4482, abs=2e-3)


def test_row_20_the_pipeline_costs_six_points() -> None:
    """Four stages take MFU from 44.8% to about 38.9%: six points."""
    one, four = price(), price(pp=4)
    assert pytest.approx(4.364, abs=1e-3) == 3.6749 / (1 - 3 / 19)
    assert pytest.approx(0.064, abs=1e-3) == 0.4654 - 0.55 * 3.6749 / (4.364 + 0.6681)
    assert one.mfu_full - 0.3888 == pytest.approx(0.059, abs=2e-3)
    assert one.mfu_full - four.mfu_full == pytest.approx(0.06, abs=0.02)  # uneven ends cost another point


def test_rows_21_and_22_long_context() -> None:
    """131,072 tokens, 32 sequences, cp=16 inside dp*cp=128: states as at 8K over 128 ranks, 36.1 GB; 4 per replica."""
    sharded = 4 * N / 8 + 12 * N / 8 / 8
    assert sharded == pytest.approx(48.54e9, rel=1e-3)
    assert sharded + 22.817e9 == pytest.approx(71.35e9, rel=1e-3)
    assert TOKENS_PER_STEP / 131072 == 32
    plan = price(cp=16, seq=131072, batch=32)
    states = sum(
        plan.memory.stages[0].components_bytes[name] for name in ("weights", "gradients", "optimizer")
    )
    assert states == pytest.approx(36.13e9, rel=2e-3)
    assert plan.memory.stages[0].components_bytes["activations"] == pytest.approx(22.817e9, rel=1e-3)


def test_rows_23_and_24_llama3_405b() -> None:
    """6.5 TB of states, 50.7 GB over 128, 6.3 GB of weights; 16.8M tokens; 32, 16 and 16 micro-batches."""
    n = 405.9e9
    assert (16 * n, 16 * n / 128, 2 * n / 128) == pytest.approx((6.4944e12, 50.74e9, 6.342e9), rel=1e-3)
    assert 2048 * 8192 == 16_777_216
    assert (2048 / 64, 2048 / 128, 128 / 8) == (32, 16, 16)


@pytest.mark.parametrize(
    ("tokens_per_s", "gpus", "peak", "n", "layers", "heads", "head_dim", "seq", "mfu", "mfu_attention"),
    [
        (238.3e3, 6144, 275e12, 540.35e9, 118, 48, 256, 2048, 45.726, 46.229),
        (65.43e3, 2240, 312e12, 530e9, 105, 128, 160, 2048, 29.772, 30.266),
    ],
)
def test_rows_25_and_26_published_mfu(
    tokens_per_s: float, gpus: int, peak: float, n: float, layers: int, heads: int, head_dim: int, seq: int,
    mfu: float, mfu_attention: float,
) -> None:  # fmt: skip
    """PaLM 45.7 / 46.2% and MT-NLG 29.8 / 30.3%, without and with attention (PaLM appendix B)."""
    rate = tokens_per_s / gpus / peak * 100
    assert 6 * n * rate == pytest.approx(mfu, abs=1e-3)
    assert (6 * n + 12 * layers * heads * head_dim * seq) * rate == pytest.approx(mfu_attention, abs=1e-3)


def test_rows_27_to_30_utilisation() -> None:
    """Llama 3's 430/400/380 TFLOP/s, PaLM's HFU over MFU, GPT-3's selective share, a 7B model at 10,000 tokens/s."""
    assert [x / 989 * 100 for x in (430, 400, 380)] == pytest.approx([43.478, 40.445, 38.423], abs=1e-3)
    assert [x / 989.5 * 100 for x in (430, 400, 380)] == pytest.approx([43.46, 40.42, 38.40], abs=5e-3)
    assert pytest.approx(1.2511, abs=1e-4) == 57.8 / 46.2
    assert 57.8 / 46.2 < 4 / 3
    assert pytest.approx(0.027027, abs=1e-6) == 4 * 2048 / (24 * 12288 + 4 * 2048)
    assert 6 * 7e9 * 1e4 / 1e12 == 420
    assert pytest.approx(0.42446, abs=1e-5) == 420 / 989.5


def test_row_40_states_on_256_gpus() -> None:
    """70e9 parameters, t=8, p=4: 1,120 GB, 140, 35 GB; dp 8 and ZeRO-1 about 12 GB."""
    n = 70e9
    assert (16 * n, 16 * n / 8, 16 * n / 32, 256 / 32) == (1120e9, 140e9, 35e9, 8)
    p = n / 32
    assert 4 * p + 12 * p / 8 == pytest.approx(12.031e9, rel=1e-4)


@pytest.mark.parametrize(("pp", "vp", "factor"), [(4, 2, 1.375), (8, 4, 1.21875), (16, 8, 1.1171875)])
def test_row_41_interleaving_holds_more_activations(pp: int, vp: int, factor: float) -> None:
    """Stage 0 holds p*(1 + (p-1)/(p*v)) micro-batches of its layers, exactly the chunk count over v."""
    import numpy as np

    held = in_flight(Schedule.INTERLEAVED, np.array([pp]), np.array([vp]), np.array([8 * pp]))
    assert held[0, 0] == pytest.approx(pp * factor)


def test_row_42_checkpoint_every_sqrt_l_layers() -> None:
    """Chen et al. 2016: 80 layers are cheapest at every ninth, 8.9 + 9."""
    costs = {k: LAYERS / k + k for k in range(1, LAYERS + 1)}
    best = min(costs, key=costs.__getitem__)
    assert best == 9
    assert sqrt(LAYERS) == pytest.approx(8.94, abs=5e-3)
    assert costs[9] == pytest.approx(17.889, abs=1e-3)


def test_parameters_of_the_worked_plan() -> None:
    """The plan's 70.6e9 is Llama 3 70B's 70.55e9."""
    assert model_parameters(LLAMA3_70B) == pytest.approx(N, rel=1e-3)
