"""A GPU of a new generation, added to the letter of CONTRIBUTING.md in a copy of the package."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checks.contributor import Tree, constants_named, files_named, row

from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.hardware import sustained_rates
from layoutopt.optimizer.evidence.parameters import check_calibration
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_gpu
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from pathlib import Path

CATALOG = "optimizer/specs/gpus.yaml"
GENERATION = """\
  quantum:
    architectures: [quantum]
    any_arrangement: true
    sized_experts: false
    ordered_streams: true
    deepep: true
    hybridep: true
"""
ENTRY = """\
  q100:
    architecture: {architecture}
    dense_flops: {{bf16: 3000 TFLOP/s, fp8: 6000 TFLOP/s, mxfp8: 6000 TFLOP/s, nvfp4: 18000 TFLOP/s}}
    memory: 300e9
    memory_bandwidth: 16 TB/s
    nvlink_bandwidth: 1800 GB/s
    nvlink_domain: 8
    gpus_per_node: 8
    nic_bandwidth: 800 Gbit/s
    sm_count: 200
    tdp: 1500 W
    host_link_bandwidth: 100 GB/s
    source: made up
"""
CONSTANT = """\
{name}:
  value: 0.7
  unit: fraction
  bounds: [0.1, 2.0]
  meaning: "made up"
  source: "made up"
"""
QUESTION = ("llama3-8b", "q100x16", "--batch", "64")
SWITCHED = ("--precision", "nvfp4"), ("--precision", "mxfp8"), ("--precision", "fp8"), ()


def with_entry(tree: Tree, architecture: str) -> None:
    """Add the GPU to the catalog."""
    tree.append(CATALOG, ENTRY.format(architecture=architecture))


def test_a_gpu_of_a_known_generation_is_one_entry(tmp_path: Path) -> None:
    """Nothing but the catalog is touched, and the GPU solves, exports and is listed."""
    tree = Tree.copy(tmp_path)
    with_entry(tree, "blackwell-b200")
    assert tree.touched() == set(files_named(row("a GPU")))
    tree.run("solve", *QUESTION, "-q", "-o", "plan.json")
    tree.run("verify", "plan.json")
    assert "q100" in tree.run("catalog").stdout


def test_a_gpu_of_a_new_generation(tmp_path: Path) -> None:
    """Every constant that a command misses is named in one line, is on the page, and is the whole of what is missing."""
    tree, line = Tree.copy(tmp_path), row("a GPU of a new generation")
    constants = constants_named(line, GENERATION="quantum")
    tree.insert(CATALOG, "gpus:", GENERATION)
    with_entry(tree, "quantum")
    tree.write("switches.yaml", "gpu: q100\ngpus: 16\nin_switch_reduction: true\n")
    asked = set()
    questions = [("solve", *QUESTION, *words, "-q") for words in SWITCHED]
    questions.append(("solve", "llama3-8b", str(tree.path("switches.yaml")), "--batch", "64", "-q"))
    for question in questions:
        while (done := tree.run(*question, check=None)).returncode:
            (message,) = done.stderr.splitlines()
            missing = re.search(r"no constant (\w+\.quantum) \(state it under calibration", message)
            assert done.returncode == 2 and missing is not None, message
            name = missing[1]
            assert name in constants and name not in asked, message
            asked.add(name)
            tree.append(constants[name], CONSTANT.format(name=name))
    assert asked == set(constants)
    tree.path("switches.yaml").unlink()
    assert tree.touched() == set(files_named(line))
    _every_command(tree)


def _every_command(tree: Tree) -> None:
    """Solve, verify, evaluate, explain, simulate, plan, show, export and import with the new GPU."""
    for number, words in enumerate(SWITCHED):
        plan = f"plan{number}.json"
        tree.run("solve", *QUESTION, *words, "-q", "-o", plan)
    tree.run("verify", "plan0.json")
    tree.run("evaluate", "llama3-8b", "q100x16", "--batch", "64", "--layout", "tp=2,dp=8")
    tree.run("explain", "llama3-8b", "q100x16", "--batch", "64", "--layout", "tp=2,dp=8")
    tree.run("solve", "mixtral-8x7b", "q100x16", "--batch", "64", "-q", "--framework", "any")
    tree.run("simulate", "plan3.json")
    tree.run("topology", "show", "q100x16")
    script = tree.run("export", "plan3.json", "--to", "megatron-lm").stdout
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" not in script  # the generation orders its streams
    (tree.folder / "launch.sh").write_text(script, encoding="utf-8")
    tree.run("import", "launch.sh")
    tree.run("evaluate", "--from", "launch.sh", "--cluster", "q100x16")


def test_a_constant_can_be_stated_by_the_user(tmp_path: Path) -> None:
    """FP8 on a generation that has no gain in the package is refused by name, and priced where the cluster states it."""
    preset = load_preset(Framework.MEGATRON)
    plain = load_gpu("v100")
    gpu = replace(plain, dense_flops={**plain.dense_flops, Precision.FP8: 250e12})
    with pytest.raises(InputError, match=r"no constant fp8_gain\.volta \(state it under calibration"):
        sustained_rates(gpu, Precision.FP8, load_constants(), preset)
    file = tmp_path / "own.yaml"
    file.write_text("gpu: v100\ngpus: 16\ncalibration: {fp8_gain.volta: 0.9}\n", encoding="utf-8")
    stated = load_constants(load_cluster(file).calibration)
    rates = sustained_rates(gpu, Precision.FP8, stated, preset)
    cap = stated["gemm_cap.volta"]
    assert rates.linear_flops_per_s == pytest.approx(gpu.dense_flops[Precision.FP8] * cap * 0.9)
    check_calibration({"fp8_gain.volta": 0.9, "nvls_gain.ampere": 1.1})
    for name in ("fp8_gain.pascal", "gemm_occupancy_exponent.cdna3"):
        with pytest.raises(InputError, match="unknown constant"):
            check_calibration({name: 0.9})
