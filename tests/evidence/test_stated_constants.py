"""Constants that a cluster file states: shares of a peak are at most the peak, others near what their sources know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.evidence.parameters import check_calibration, known_parameters
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("gemm_cap.hopper", 7, "above 0, at most 1"),
        ("gemm_cap.ampere", 1.01, "above 0, at most 1"),
        ("hbm_fraction.blackwell", 1.5, "above 0, at most 1"),
        ("fp8_gain.volta", 3, "above 0, at most 1.05"),  # a family without a value of its own
        ("nvlink_fraction", 1.2, "above 0, at most 1"),  # all families at once
        ("network_fraction.infiniband", 2, "0.05 to 1"),
        ("tree_fraction", 1.5, "above 0, at most 1"),
        ("fp8_attention", 3, "1 to 2"),
        ("host_layer_s.megatron", 4, "1e-05 to 0.02"),
        ("time_scale", 9, "0.2 to 5"),
        ("moe_imbalance", 0.5, "1 to 15"),
        ("kernel_gap_s", 1, "1e-07 to 3e-05"),
    ],
)
def test_what_no_machine_has_is_refused(tmp_path: Path, name: str, value: float, valid: str) -> None:
    """One line with file, constant and range; exit 2."""
    file = tmp_path / "own.yaml"
    file.write_text(f"gpu: h100\nnodes: 1\ncalibration: {{{name}: {value}}}\n")
    result = CliRunner().invoke(main, ["solve", "llama3-8b", str(file)])
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2
    assert line == f"{file}: calibration: {name} = {value:g} is impossible ({valid})"


def test_every_constant_may_be_stated_as_it_is() -> None:
    """And as far as its source, or a calibration, goes; shares of a bandwidth or of a 16-bit peak never above 1 but one."""
    above = []
    for name, one in known_parameters().items():
        low, high = one.possible
        assert low <= one.bounds[0] and one.bounds[1] <= high, name
        check_calibration({name: one.value} if one.value else {})
        if name.partition(".")[0] in (
            "gemm_cap",
            "attention_cap",
            "hbm_fraction",
            "nvlink_fraction",
            "network_fraction",
        ):
            above += [name] if high > 1 else []
    assert above == ["gemm_cap.ada-geforce"]  # boost clocks over a nominal peak


def test_unusual_machines_may_be_stated() -> None:
    """Beyond the sources' ranges, within the hardware."""
    check_calibration(
        {"gemm_cap.hopper": 0.95, "hbm_fraction.hopper": 0.99, "host_moe": 9.0, "network_p2p.efa": 0.21}
    )
    with pytest.raises(InputError) as raised:
        check_calibration({"gemm_cap.hopper": 1.5, "host_moe": 90.0, "luck": 1.0})
    assert len(raised.value.problems) == 3
