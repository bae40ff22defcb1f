"""The catalog, the built-in models and the built-in clusters."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import resources
from itertools import pairwise

import pytest

from layoutopt.optimizer.cost.parameters import active_parameters, model_parameters, mtp_parameters
from layoutopt.optimizer.specs.gpu_catalog import catalog
from layoutopt.optimizer.specs.loading import (
    cluster_names,
    gpu_names,
    load_cluster,
    load_gpu,
    load_workload,
    model_names,
)
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Precision

MODELS = [
    "llama2-7b",
    "llama2-70b",
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "gpt3-175b",
    "gpt-22b",
    "gpt-1t",
    "mt-nlg-530b",
    "palm-540b",
    "bloom-176b",
    "nemotron4-15b",
    "nemotron4-340b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "grok-1",
    "deepseek-v2",
    "deepseek-v3",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "gpt-oss-120b",
    "kimi-k2",
]
CLUSTERS = [
    "h100-256",
    "h100-1024",
    "h100-8192",
    "h100-16384",
    "h800-2048",
    "a100-512",
    "a100-3072",
    "a100-384-opa",
    "b200-256",
    "gb200-nvl72-576",
    "gb300-nvl72-576",
]
GPUS = [
    "v100-32g",
    "a100-40g",
    "a100-80g",
    "a100-80g-pcie",
    "h100",
    "h100-96g-500w",
    "h800",
    "h200",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "mi300x",
    "v100-16g",
]
# spellings of published tables
SPELLINGS = {
    "H100-80G-SXM": "h100",
    "A100-80G-SXM": "a100-80g",
    "A100-40G-SXM": "a100-40g",
    "GB200-NVL72": "gb200",
    "GB300-NVL72": "gb300",
    "B200-180G": "b200",
    "B300-288G": "b300",
    "H100-96G-SXM-HBM2e-500W": "h100-96g-500w",
    "V100-32G-SXM": "v100-32g",
    "V100-16G-SXM": "v100-16g",
    "H800-80G": "h800",
    "H200-141G": "h200",
    "A100-SXM": "a100-80g",
    "H100-80G-PCIe": "h100-80g-pcie",
}


def test_promised_names_are_there() -> None:
    """Every documented built-in exists."""
    assert set(MODELS) <= set(model_names())
    assert set(CLUSTERS) <= set(cluster_names())
    assert set(GPUS) <= set(gpu_names())


@pytest.mark.parametrize("name", model_names())
def test_parameters_agree_with_the_published_count(name: str) -> None:
    """Each shape has the published number of parameters within 1%."""
    model = load_workload(name).model
    assert model.published_parameters is not None
    assert model_parameters(model) == pytest.approx(model.published_parameters, rel=0.01)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("llama2-7b", 6_738_415_616),
        ("qwen3-32b", 32_762_123_264),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-v3", 671_026_419_200),
    ],
)
def test_parameter_vectors(name: str, count: int) -> None:
    """Shapes give the exact counts of the released weights."""
    assert model_parameters(load_workload(name).model) == count


def test_gpt3_with_padded_vocabulary() -> None:
    """GPT-3 has biases, LayerNorm and learned positions (Narayanan et al. 2021: 174.6B at 51,200 rows)."""
    assert model_parameters(load_workload("gpt3-175b").model, vocab=51_200) == 174_615_846_912


def test_deepseek_v3_parts() -> None:
    """Active parameters and the MTP layer of DeepSeek-V3 are those of its report."""
    model = load_workload("deepseek-v3").model
    assert active_parameters(model, with_input_embedding=True) == 37_552_282_624
    assert active_parameters(model) == 36_625_603_584
    assert mtp_parameters(model).total == pytest.approx(11.61e9, rel=0.001)


@pytest.mark.parametrize("name", model_names())
def test_models_state_their_source(name: str) -> None:
    """A built-in model says where its numbers come from and is called like its file."""
    text = resources.files("layoutopt.models").joinpath(f"{name}.yaml").read_text("utf-8")
    assert "\nsource:\n  - " in text
    workload = load_workload(name)
    assert workload.model.name == name
    assert workload.training.global_batch >= 1


@pytest.mark.parametrize(
    ("name", "sequence_length", "batch", "tokens"),
    [
        ("llama3-405b", 8192, 2048, 15.6e12),
        ("deepseek-v3", 4096, 15_360, 14.8e12),
        ("gpt3-175b", 2048, 1536, 300e9),
        ("mt-nlg-530b", 2048, 1920, 270e9),
        ("llama3-70b", 8192, 512, 15e12),
        ("qwen3-235b-a22b", 4096, 2048, 36e12),
        ("kimi-k2", 4096, 16_384, 15.5e12),
    ],
)
def test_published_training_setups(name: str, sequence_length: int, batch: int, tokens: float) -> None:
    """Batches and token counts are the published ones."""
    training = load_workload(name).training
    assert (training.sequence_length, training.global_batch, training.total_tokens) == (
        sequence_length,
        batch,
        tokens,
    )


def test_deepseek_v3_training() -> None:
    """DeepSeek-V3 trains in block-scaled FP8 with bf16 moments, one MTP layer and routing to 4 of 8 groups of experts."""
    workload = load_workload("deepseek-v3")
    assert workload.training.precision is Precision.FP8
    assert workload.training.fp8_recipe is Fp8Recipe.BLOCKWISE
    assert workload.training.moment_bytes == 2
    moe = workload.model.moe
    assert moe is not None
    assert (workload.model.mtp_layers, moe.binding_groups, moe.router_bias) == (1, (8, 4), True)
    assert [(run.name, run.layers) for run in workload.model.runs] == [("dense", 3), ("moe", 58)]


@pytest.mark.parametrize("name", cluster_names())
def test_clusters_nest_and_cover(name: str) -> None:
    """Levels of a built-in cluster grow, nest and cover it."""
    cluster = load_cluster(name)
    sizes = [cluster.gpus_per_node, *(level.gpus for level in cluster.levels)]
    assert sizes[-1] >= cluster.gpu_count
    assert all(outer % inner == 0 or outer == cluster.gpu_count for inner, outer in pairwise(sizes))
    assert str(cluster.gpu_count) in name


def test_clusters_of_published_runs() -> None:
    """Networks are those that the papers describe."""
    llama = load_cluster("h100-16384")
    assert [(level.gpus, level.oversubscription) for level in llama.levels[1:]] == [
        (3072, 1.0),
        (16_384, 7.0),
    ]
    omni_path = load_cluster("a100-384-opa")
    assert omni_path.nics_per_node * omni_path.nic_bytes_per_s == 50e9
    assert load_cluster("gb200-nvl72-576").nvlink_domain == 72
    assert load_cluster("a100-512").nic_bytes_per_s == 25e9


@pytest.mark.parametrize("count", [256, 1024, 8192, 16_384])
def test_h100_clusters_are_the_reference_fabric(count: int) -> None:
    """The built-in H100 clusters are members of the family that ``NAMExN`` builds, on the fabric of their source."""
    named, built = load_cluster(f"h100-{count}"), load_cluster(f"h100x{count}")
    assert replace(named, name=built.name) == replace(built, levels=named.levels, fabric=named.fabric)
    assert [(level.gpus, level.oversubscription, level.latency_s) for level in named.levels] == [
        (min(level.gpus, count), level.oversubscription, level.latency_s) for level in built.levels
    ]


@pytest.mark.parametrize("name", gpu_names())
def test_gpu_entries_are_sensible(name: str) -> None:
    """Entries have a source, FLOP/s that double as formats halve, formats as their generation, and about nominal memory."""
    gpu = load_gpu(name)
    assert gpu.source
    assert 0.99 < gpu.memory_bytes / gpu.nominal_memory_bytes < 1.1
    if Precision.FP8 in gpu.dense_flops:
        assert gpu.dense_flops[Precision.FP8] >= 2 * gpu.dense_flops[Precision.BF16] * 0.98
    assert (Precision.BF16 in gpu.dense_flops) == (gpu.architecture != "volta")
    alike = [one for one in map(load_gpu, gpu_names()) if one.generation.name == gpu.generation.name]
    assert {Precision.MXFP8 in one.dense_flops for one in alike} == {Precision.MXFP8 in gpu.dense_flops}
    assert (gpu.nvlink_bytes_per_s > gpu.nic_bytes_per_s) == (gpu.nvlink_domain > 1)


def test_aliases_are_unique_and_found() -> None:
    """Every alias leads to one entry, in any case, spellings of published tables included."""
    aliases = [alias for entry in catalog().values() for alias in entry.get("aliases", ())]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(catalog())
    for spelling, name in SPELLINGS.items():
        assert load_gpu(spelling).name == name


def test_loading_is_light() -> None:
    """Importing the loader needs neither pydantic nor YAML, and loading needs no numerical package."""
    code = (
        "import sys; from layoutopt.optimizer.specs import loading;"
        "early = {'pydantic', 'yaml', 'numpy'} & set(sys.modules);"
        "loading.load_workload('deepseek-v3'); loading.load_cluster('h100-16384'); loading.model_names();"
        "late = {'numpy', 'networkx', 'ortools', 'scipy', 'plotly'} & set(sys.modules);"
        "print(sorted(early), sorted(late))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["[]", "[]"]
