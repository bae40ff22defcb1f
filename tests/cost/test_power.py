"""Power caps slow a GPU by the measured law; energy counts nodes, NICs, switches and the machine room."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.published import read_runs

from layoutopt.optimizer.cost.budget import gpu_power_w, node_power_w, switch_power_w
from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.hardware import capped_speed, sustained_rates
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.predict import predict
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.gpu_catalog import find_gpu
from layoutopt.optimizer.specs.loading import parse_cluster, reference_cluster
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import GpuSpec

CONSTANTS = load_constants()


def capped(watts: float) -> GpuSpec:
    """Return an H100 under a limit."""
    gpu = find_gpu("h100").gpu
    return replace(gpu, tdp_w=watts, nominal_tdp_w=gpu.tdp_w)


@pytest.mark.parametrize(
    ("watts", "speed"),
    [(700, 1.0), (900, 1.0), (500, (500 / 700) ** 0.62), (385, 0.55**0.62), (192.5, 0.55**0.62 / 2)],
)
def test_a_cap_lowers_the_clock(watts: float, speed: float) -> None:
    """81% at 500 of 700 W; a higher limit gains nothing; below the knee speed is proportional to the cap."""
    assert capped_speed(capped(watts), CONSTANTS) == pytest.approx(speed)


def test_bandwidth_falls_below_the_knee_alone() -> None:
    """500 of 700 W leaves it whole, half of the knee's 385 W halves it; compute and attention are slower under both."""
    preset = load_preset(Framework.MEGATRON)
    full, some, least = (
        sustained_rates(capped(watts), Precision.BF16, CONSTANTS, preset) for watts in (700, 500, 192.5)
    )
    assert some.memory_bytes_per_s == full.memory_bytes_per_s
    assert least.memory_bytes_per_s == pytest.approx(full.memory_bytes_per_s / 2)
    for rate in ("linear_flops_per_s", "wide_flops_per_s", "attention_flops_per_s"):
        assert getattr(some, rate) / getattr(full, rate) == pytest.approx((5 / 7) ** 0.62)


def test_speed_is_monotone_and_continuous_in_the_cap() -> None:
    """No jump at the knee."""
    speeds = np.array([capped_speed(capped(watts), CONSTANTS) for watts in range(100, 701)])
    steps = np.diff(speeds)
    assert (steps > 0).all()
    assert steps.max() < 0.003


def test_500_w_runs_follow_from_the_700_w_constants() -> None:
    """No constant is the part's own: torchtitan's published rows on capped H100s are within 8% in the mean."""
    assert not CONSTANTS.has("gemm_cap", "hopper-500w")
    gpu = find_gpu("h100-96g-500w").gpu
    assert (gpu.architecture, gpu.tdp_w, gpu.rated_w) == ("hopper", 500, 700)
    cases = [
        case
        for case in build_cases(read_runs())[0]
        if case.cluster.gpu == gpu and case.measured_s and not case.assumed
    ]
    errors = [abs(predict(case).step_time_s / (case.measured_s or 1.0) - 1) for case in cases]
    assert len(errors) == 24
    assert np.mean(errors) < 0.08
    assert np.median(errors) < 0.07


CAPPED = """
gpu: {{base: h100, tdp: {watts}}}
nodes: 2
{more}
"""


def test_a_limit_below_the_catalogs_is_a_cap() -> None:
    """``base`` with another ``tdp`` is the same silicon; a mapping without base is a part of its own."""
    gpu = parse_cluster(CAPPED.format(watts="500 W", more=""), "c.yaml").gpu
    assert (gpu.tdp_w, gpu.rated_w) == (500, 700)


def test_a_limit_below_what_was_measured_is_refused() -> None:
    """H100 of 700 W ran at 200 W (arXiv 2604.11391)."""
    assert parse_cluster(CAPPED.format(watts="200 W", more=""), "c.yaml").gpu.tdp_w == 200
    for watts in ("199 W", "100 W", "20 W"):
        with pytest.raises(InputError, match=r"gpu\.tdp: .*at least 200 W"):
            parse_cluster(CAPPED.format(watts=watts, more=""), "c.yaml")


def test_a_node_draws_what_was_measured() -> None:
    """8 x H100 in training at most 7.75 kW measured (arXiv 2506.14551), 10.2 rated; a GB200 1.67 of a rack's 120 kW."""
    assert node_power_w(reference_cluster("h100", 8)) == pytest.approx(7.75e3, rel=0.03)
    assert node_power_w(reference_cluster("gb200", 72)) / 4 == pytest.approx(120e3 / 72, rel=0.03)
    for name, rated_w in (("a100-80g", 6.5e3), ("h100", 10.2e3), ("b200", 14.3e3)):
        assert 0.6 * rated_w < node_power_w(reference_cluster(name, 8)) < rated_w


def test_the_network_takes_its_share() -> None:
    """A whole InfiniBand fabric takes 6 to 9% of the power of nodes and network; a single node has none."""
    cluster = reference_cluster("h100", 2048)
    network = switch_power_w(cluster) + cluster.nics_per_node * cluster.nic_power_w
    assert 0.06 < network / (node_power_w(cluster) + switch_power_w(cluster)) < 0.12
    assert switch_power_w(reference_cluster("h100", 8)) == 0


def test_every_part_is_the_users() -> None:
    """Two capped nodes: 8 x 500 W, 1 kW of host, 8 NICs of 20 W, 8 ports of 10 W, PUE 1.1."""
    more = "host_power: 1 kW\nnic_power: 20 W\nswitch_power: 10 W\npue: 1.1"
    cluster = parse_cluster(CAPPED.format(watts="500 W", more=more), "c.yaml")
    assert gpu_power_w(cluster) == pytest.approx((8 * 500 + 1000 + 8 * 20 + 8 * 10) / 8 * 1.1)
