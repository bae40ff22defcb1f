"""Machines of the catalog beside the usual ones: each solves a question, says how sure it is, and is found by its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_gpu, parse_cluster
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

MACHINES = (
    "a10", "a40", "l40s", "rtx-4090", "pro-6000", "gh200", "gh200-144g", "mi250x", "mi325x", "mi350x", "mi355x",
)  # fmt: skip
WITHOUT_NVLINK = ("a10", "l40s", "rtx-4090", "pro-6000")
FIXED = ("--fix", "tp=4", "--fix", "pp=2", "--fix", "micro_batch=1", "--fix", "zero=1", "--fix", "vp=1")


@pytest.mark.parametrize("gpu", MACHINES)
def test_every_machine_solves_a_question_and_says_how_sure_it_is(
    ask: Callable[..., dict[str, Any]], gpu: str
) -> None:
    """The answer is proven, and no measured run is claimed for a GPU that has none."""
    answer = ask("solve", "llama2-7b", f"{gpu}x32", "--batch", "256", "--seq", "2048", *FIXED)
    assert answer["status"] == "optimal"
    assert 0.05 < answer["estimate"]["mfu_causal"] < 0.6
    band = answer["error_band"]
    assert band["outside"] == f"GPU {gpu}"
    assert band["rows"] == 0 and band["unseen_median_ape"] > 0.05


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mi300x8", "mi300xx8"),
        ("mi355x64", "mi355xx64"),
        ("h100-64", "h100x64"),
        ("gb200-nvl72-288", "gb200x288"),
        ("4090x8", "rtx-4090x8"),
        ("rtx-pro-6000x16", "pro-6000x16"),
        ("h100-4", "h100x4"),
        ("h100-256", "h100-256"),  # a built-in keeps its name
    ],
)
def test_other_spellings(text: str, name: str) -> None:
    """GPUs answer to their short names, and whole nodes to the spelling of built-in clusters."""
    assert load_cluster(text).name == name


@pytest.mark.parametrize("text", ["zz9x64", "h10x64"])
def test_an_unknown_gpu_is_answered_with_all(run: Callable[..., Result], text: str) -> None:
    """One line with every GPU of the catalog."""
    done = run("solve", "llama3-8b", text)
    assert done.exit_code == 2
    (line,) = done.stderr.strip().splitlines()
    assert "no such GPU; GPUs are v100-16g" in line and "mi355x" in line


def test_a_count_that_is_no_whole_nodes_misspells_a_built_in() -> None:
    """``h100-1638`` is nearer to ``h100-16384`` than to a cluster."""
    with pytest.raises(InputError, match="nearest: h100-16384"):
        load_cluster("h100-1638")


INLINE = """\
gpu:
  name: card
  architecture: ada-l40s
  dense_flops: {{bf16: 300 TFLOP/s}}
  memory: 48e9
  memory_bandwidth: 864 GB/s
  {nvlink}
  gpus_per_node: 8
  nic_bandwidth: 100 Gbit/s
  sm_count: 142
  tdp: 350 W
  host_link_bandwidth: 32 GB/s
gpus: 16
"""


def test_the_next_step_names_the_file(run: Callable[..., Result], tmp_path: Path) -> None:
    """A cluster of a file is asked about by its path: its name says nothing to another command."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: lab\ngpu: h100\ngpus: 8\n")
    words = " ".join(run("cluster", "show", str(path)).stdout.split())
    assert words.startswith("lab ") and f"layoutopt topology show {path.parent}" in words


@pytest.mark.parametrize(
    ("nvlink", "message"),
    [
        ("nvlink_domain: 2", "nvlink_bandwidth: missing"),
        ("nvlink_bandwidth: 56 GB/s", "nvlink_domain: missing"),
    ],
)
def test_half_of_nvlink_is_refused(nvlink: str, message: str) -> None:
    """A domain without bandwidth, or a bandwidth without a domain, is one line."""
    with pytest.raises(InputError, match=message):
        parse_cluster(INLINE.format(nvlink=nvlink), "card.yaml")


def test_a_gpu_without_nvlink_needs_no_nvlink_keys() -> None:
    """Inline as in the catalog; its peers reach each other over the host link, and tensor parallelism stays in the node."""
    inline = parse_cluster(INLINE.format(nvlink="source: made up"), "card.yaml")
    assert inline.nvlink_domain == 1 and inline.tensor_domain == 8
    for name in WITHOUT_NVLINK:
        assert load_gpu(name).nvlink_domain == 1
    links = load_links()
    nodes = [tier for tier in Topology(inline, links).tiers if tier.is_host]
    assert [(tier.inside, tier.outside, tier.bytes_per_s) for tier in nodes] == [(1, 8, 32e9)]
    with pytest.raises(InputError, match="l40s has no NVLink"):
        parse_cluster("gpu: l40s\ngpus: 16\nnvlink_domain: 8\n", "c.yaml")
