"""The worked plan: Llama 3 70B on 1,024 H100s, 512 sequences of 8,192 tokens, under the simple cost model.

Every expected value was computed from the stated formula; the tolerance is the rounding of the claim it checks.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.budget import Budget, training_budget
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.data_parallel import DpContext, traffic
from layoutopt.optimizer.cost.estimate import Estimate, RankMemory, estimate
from layoutopt.optimizer.cost.factory import CostKind, build_cost_model
from layoutopt.optimizer.cost.flops import attention_flops, layer_flops, model_flops_per_token
from layoutopt.optimizer.cost.parameters import active_parameters, embedding_parameters, model_parameters
from layoutopt.optimizer.cost.placement import groups_of
from layoutopt.optimizer.cost.schedules import in_flight
from layoutopt.optimizer.cost.states import RankParameters
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training, parse_layout
from layoutopt.optimizer.specs.model import TrainingSpec
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Granularity, Precision, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel

N = 70.6e9
SEQUENCE, BATCH, GPUS, LAYERS, HIDDEN, VOCAB = 8192, 512, 1024, 80, 8192, 128256
TOKENS_PER_STEP = SEQUENCE * BATCH
FLOPS_PER_TOKEN = 6 * N + 12 * LAYERS * HIDDEN * SEQUENCE
TOKENS = 20 * N

LLAMA3_70B = load_workload("llama3-70b").model
CLUSTER = load_cluster("h100-1024")


def training_of(seq: int, batch: int) -> TrainingSpec:
    """The plan's training at some length and batch."""
    return TrainingSpec(sequence_length=seq, global_batch=batch, precision=Precision.BF16)


def simple_cost(seq: int = SEQUENCE, batch: int = BATCH) -> CostModel:
    """The simple model's prices."""
    return build_cost_model(LLAMA3_70B, training_of(seq, batch), CLUSTER, kind=CostKind.SIMPLE)


def layout_of(
    *,
    tp: int = 8,
    pp: int = 1,
    vp: int = 1,
    cp: int = 1,
    zero: int = 1,
    seq: int = SEQUENCE,
    batch: int = BATCH,
    gpus: int = GPUS,
    recompute: Granularity = Granularity.NONE,
) -> Layout:
    """An even layout of the worked plan."""
    workload = replace(load_workload("llama3-70b"), training=training_of(seq, batch))
    text = f"tp={tp},pp={pp},vp={vp},cp={cp},zero={zero}"
    layout = parse_layout(text).complete(workload, load_cluster(f"h100x{gpus}"))
    again = LAYERS // (pp * vp) if recompute is Granularity.FULL else 0
    stages = tuple(replace(stage, recomputed=again) for stage in layout.stages)
    return replace(layout, recompute=Recompute(granularity=recompute), stages=stages)


def price(*, seq: int = SEQUENCE, batch: int = BATCH, **layout: Any) -> Estimate:
    """Price an even layout of the worked plan under the simple model."""
    return estimate(simple_cost(seq, batch), layout_of(seq=seq, batch=batch, **layout))


def states_of(rank: RankMemory) -> float:
    """Bytes of weights, gradients and optimizer state on a rank."""
    return sum(rank.components_bytes[name] for name in ("weights", "gradients", "optimizer"))


def test_row_1_recomputation_costs_a_third() -> None:
    """Recomputing every layer adds its forward, a third of forward and backward: 33% more work in the layers."""
    plain, again = price(), price(recompute=Granularity.FULL)
    repeated = again.breakdown_s[Component.RECOMPUTE]
    head = 6 * VOCAB * HIDDEN / FLOPS_PER_TOKEN
    layers = (1 - 2 * head) * (plain.breakdown_s[Component.FORWARD] + plain.breakdown_s[Component.BACKWARD])
    assert repeated / layers == pytest.approx(1 / 3, rel=3e-3)


def test_rows_2_and_3_flops_per_token() -> None:
    """6N + 12*L*d*T = 4.88e11 with the input embedding, which the model's own count leaves out; 6.51e11 recomputed."""
    own = model_flops_per_token(LLAMA3_70B, SEQUENCE, causal=False)
    embedding = 6 * embedding_parameters(LLAMA3_70B, VOCAB).total
    assert own + embedding == pytest.approx(4.88024e11, rel=2e-3)
    shape = LLAMA3_70B.runs[0].block[0]
    layer = layer_flops(LLAMA3_70B, shape, SEQUENCE, causal=False)
    ends = 2 * embedding / 3
    assert own + embedding + LAYERS * layer + ends == pytest.approx(6.50699e11, rel=2e-3)
    assert active_parameters(LLAMA3_70B, with_input_embedding=True) == pytest.approx(N, rel=1e-3)


def test_row_4_attention_share() -> None:
    """Attention adds 15% to the matrices, is 13% of the total, and counting the causal half takes 7% off."""
    shape = LLAMA3_70B.runs[0].block[0]
    embedding = 6 * embedding_parameters(LLAMA3_70B, VOCAB).total
    attention = 3 * LAYERS * attention_flops(LLAMA3_70B, shape, SEQUENCE, causal=False)
    full, half = (
        model_flops_per_token(LLAMA3_70B, SEQUENCE, causal=causal) + embedding for causal in (False, True)
    )
    assert attention == pytest.approx(6.4425e10, rel=1e-4)
    assert attention / (full - attention) == pytest.approx(0.15209, rel=2e-3)
    assert attention / full == pytest.approx(0.13201, rel=2e-3)
    assert 1 - half / full == pytest.approx(0.06601, rel=2e-3)


def test_row_5_input_embedding() -> None:
    """The input embedding is 1.0507e9 parameters and 1.29% of the count."""
    embedding = embedding_parameters(LLAMA3_70B, VOCAB).total
    full = model_flops_per_token(LLAMA3_70B, SEQUENCE, causal=False) + 6 * embedding
    assert embedding == pytest.approx(1.0507e9, rel=1e-4)
    assert 6 * embedding / full == pytest.approx(0.012917, rel=2e-3)


def budget_of(mfu: float, tokens: float = TOKENS) -> Budget:
    """The run at an MFU that counts the whole attention square and the input embedding, as the plan does."""
    training = replace(training_of(SEQUENCE, BATCH), total_tokens=tokens)
    step_time_s = FLOPS_PER_TOKEN * TOKENS_PER_STEP / (GPUS * CLUSTER.gpu.dense_flops[Precision.BF16] * mfu)
    return training_budget(LLAMA3_70B, training, CLUSTER, step_time_s=step_time_s, gpus=GPUS)


def test_rows_6_to_8_budget() -> None:
    """20 tokens per parameter: 6.89e23 FLOPs with the input embedding, 19.69 days at 40%, 336,647 steps."""
    budget = budget_of(0.4)
    embedding = 6 * embedding_parameters(LLAMA3_70B, VOCAB).total * budget.tokens
    assert budget.total_flops + embedding == pytest.approx(6.8909e23, rel=2e-3)
    assert budget.days == pytest.approx(19.69, rel=1e-3)
    assert round(budget.steps) == 336_647
    assert round(budget_of(0.4, tokens=1.41e12).steps) == 336_170


def test_row_9_days_between_35_and_45_percent() -> None:
    """22.50 and 17.50 days. The claim "20 to 25 days" for 35-45% is not reproduced: that range is 31.5-39.4% MFU."""
    assert [budget_of(mfu).days for mfu in (0.35, 0.45)] == pytest.approx([22.50, 17.50], rel=1e-3)
    assert [budget_of(mfu).days for mfu in (0.315, 0.394)] == pytest.approx([25, 20], rel=2e-3)


def test_rows_10_and_11_states_and_activations() -> None:
    """16 bytes per parameter over t=8 is 141 GB; activations of one micro-batch are 22.8 GB: nothing fits 80 GB."""
    assert 8 * states_of(price(zero=0).memory.stages[0]) == pytest.approx(1129.6e9, rel=2e-3)
    memory = price(zero=0).memory
    components = memory.stages[0].components_bytes
    assert states_of(memory.stages[0]) == pytest.approx(141.2e9, rel=2e-3)
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
    assert parts[Component.BUBBLE] / sum(parts.values()) == pytest.approx(0.15789, rel=0.05)
    assert ends == pytest.approx(3 / 16, rel=0.05)  # the head makes the last stage longer


def test_rows_16_and_17_data_parallel_traffic_hides() -> None:
    """ZeRO-1 moves 0.70 s, FSDP 3.15 s (4.20 s reducing every micro-batch) of traffic; both hide under compute."""
    cost, layout = simple_cost(), layout_of()
    batch = batch_of_one(layout)
    held = RankParameters(dense=np.array([N / 8]), expert=np.zeros(1))
    groups = groups_of(DEFAULT_MESH_ORDER, batch)
    context = DpContext(
        batch=batch, topology=cost.topology, groups=groups, preset=cost.preset, weight_bytes=2.0,
        constants=cost.constants, ideal=True,
    )  # fmt: skip
    once = traffic(context, held)
    gather, reduce = float(once.all_gather_s[0]), float(once.reduce_scatter_s[0])
    assert gather + reduce == pytest.approx(0.70048, rel=1e-3)
    assert 2 * 4 * gather + reduce == pytest.approx(3.1522, rel=1e-3)
    assert 4 * (2 * gather + reduce) == pytest.approx(4.2029, rel=1e-3)
    assert price(zero=1).breakdown_s[Component.DP] == 0
    assert price(zero=3).breakdown_s[Component.FSDP] == 0


def test_row_18_compute_at_55_percent() -> None:
    """3.675 s of compute, 2.450 s of it backward. The claim "roughly 2.6 s" is 6% above what the formula gives."""
    parts = price().breakdown_s
    assert parts[Component.FORWARD] + parts[Component.BACKWARD] == pytest.approx(3.6749, rel=2e-3)
    assert parts[Component.BACKWARD] == pytest.approx(2.450, rel=2e-3)


def test_row_19_step_and_mfu() -> None:
    """About 4.5 s and 45%: five all-reduce equivalents per layer at 450 GB/s give 0.835 s of tensor-parallel traffic.

    Four per layer would give 4.343 s and 46.5%, which is not what the claim says.
    """
    plan = price()
    assert plan.breakdown_s[Component.TP] == pytest.approx(0.8351, abs=2e-4)
    assert plan.step_time_s == pytest.approx(4.510, rel=2e-3)
    assert plan.mfu_full == pytest.approx(0.4482, abs=2e-3)


def test_row_20_the_pipeline_costs_six_points() -> None:
    """Four stages take MFU from 44.8% to about 38.9%: six points."""
    one, four = price(), price(pp=4)
    assert one.mfu_full - 0.3888 == pytest.approx(0.059, abs=2e-3)
    assert one.mfu_full - four.mfu_full == pytest.approx(0.06, abs=0.02)  # uneven ends cost another point


def test_rows_21_and_22_long_context() -> None:
    """131,072 tokens, 32 sequences, cp=16 inside dp*cp=128: states as at 8K over 128 ranks, 36.1 GB; 4 per replica."""
    assert layout_of(cp=16, seq=131072, batch=32).micro_batches == 4
    plan = price(cp=16, seq=131072, batch=32)
    assert states_of(plan.memory.stages[0]) == pytest.approx(36.13e9, rel=2e-3)
    assert plan.memory.stages[0].components_bytes["activations"] == pytest.approx(22.817e9, rel=1e-3)


def test_rows_23_and_24_llama3_405b() -> None:
    """6.5 TB of states, 50.7 GB over 128, 6.3 GB of weights; 16.8M tokens; 32, 16 and 16 micro-batches."""
    cluster, workload = load_cluster("h100-16384"), load_workload("llama3-405b")
    cost = build_cost_model(workload.model, workload.training, cluster, kind=CostKind.SIMPLE)
    layout = parse_layout("tp=8,pp=16,zero=0").complete(workload, cluster)
    ranks = estimate(cost, layout).memory.stages
    assert 8 * sum(states_of(rank) for rank in ranks) == pytest.approx(6.4944e12, rel=1e-3)
    assert mean(states_of(rank) for rank in ranks) == pytest.approx(50.74e9, rel=1e-3)
    assert mean(rank.components_bytes["weights"] for rank in ranks) == pytest.approx(6.342e9, rel=1e-3)
    assert workload.training.tokens_per_step == 16_777_216
    questions = (("h100x8192", 8192, 2048, 1), ("h100-16384", 8192, 2048, 1), ("h100-16384", 131072, 128, 16))
    found = []
    for name, seq, batch, cp in questions:
        asked = override_training(workload, sequence_length=seq, global_batch=batch)
        given = parse_layout(f"tp=8,pp=16,cp={cp}")
        found.append(given.complete(asked, load_cluster(name)).micro_batches)
    assert found == [32, 16, 16]


@pytest.mark.parametrize(
    ("model", "tokens_per_s", "gpus", "peak", "mfu", "mfu_attention"),
    [
        ("palm-540b", 238.3e3, 6144, 275e12, 45.726, 46.229),
        ("mt-nlg-530b", 65.43e3, 2240, 312e12, 29.772, 30.266),
    ],
)
def test_rows_25_and_26_published_mfu(
    model: str, tokens_per_s: float, gpus: int, peak: float, mfu: float, mfu_attention: float
) -> None:
    """PaLM 45.7 / 46.2% and MT-NLG 29.8 / 30.3%, without and with attention (PaLM appendix B), by the model's count."""
    spec, rate = load_workload(model).model, tokens_per_s / gpus / peak * 100
    (run,) = spec.runs
    attention = 3 * run.count * attention_flops(spec, run.block[0], 2048, causal=False)
    full = model_flops_per_token(spec, 2048, causal=False)
    assert (full - attention) * rate == pytest.approx(mfu, rel=5e-3)
    assert full * rate == pytest.approx(mfu_attention, rel=5e-3)


def test_rows_27_and_30_peaks() -> None:
    """Llama 3's 430, 400 and 380 TFLOP/s are 43.5, 40.4 and 38.4% of the catalog's peak, 420 are 42.4%."""
    peak = CLUSTER.gpu.dense_flops[Precision.BF16] / 1e12
    shares = [rate / peak * 100 for rate in (430, 400, 380, 420)]
    assert shares == pytest.approx([43.46, 40.42, 38.40, 42.446], abs=0.02)


def test_row_28_hardware_utilisation_is_up_to_a_third_above() -> None:
    """Recomputing everything makes HFU at most 4/3 of MFU, less by the head, which is not repeated."""
    plan = price(recompute=Granularity.FULL)
    assert 1.3 < plan.hfu / plan.mfu_causal < 4 / 3


def test_row_29_core_attention_is_a_small_share() -> None:
    """GPT-3's core attention is 2.7% of a layer's forward: what selective recomputation repeats."""
    spec = load_workload("gpt3-175b").model
    shape = spec.runs[0].block[0]
    whole = layer_flops(spec, shape, 2048, causal=False)
    assert attention_flops(spec, shape, 2048, causal=False) / whole == pytest.approx(0.027027, abs=1e-6)


def test_row_40_states_on_256_gpus() -> None:
    """t=8, p=4 on 256 GPUs, 70.55e9 parameters instead of 70e9: 35.3 GB of states, about 12 GB with ZeRO-1 over 8."""
    for zero, states_gb in ((0, 35.0), (1, 12.031)):
        plan = price(pp=4, zero=zero, gpus=256)
        mean_bytes = mean(states_of(rank) for rank in plan.memory.stages)
        assert mean_bytes == pytest.approx(states_gb * 1e9 * 70.554 / 70, rel=2e-3)


@pytest.mark.parametrize(("pp", "vp", "factor"), [(4, 2, 1.375), (8, 4, 1.21875), (16, 8, 1.1171875)])
def test_row_41_interleaving_holds_more_activations(pp: int, vp: int, factor: float) -> None:
    """Stage 0 holds p*(1 + (p-1)/(p*v)) micro-batches of its layers, exactly the chunk count over v."""
    held = in_flight(Schedule.INTERLEAVED, np.array([pp]), np.array([vp]), np.array([8 * pp]))
    assert held[0, 0] == pytest.approx(pp * factor)


def test_parameters_of_the_worked_plan() -> None:
    """The plan's 70.6e9 is Llama 3 70B's 70.55e9."""
    assert model_parameters(LLAMA3_70B) == pytest.approx(N, rel=1e-3)
