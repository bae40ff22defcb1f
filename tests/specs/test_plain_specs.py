"""Specs as plain data: exact round trips, digests, and errors of tampered data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.report.json_forms import to_plain as printed
from layoutopt.optimizer.specs.canonical import (
    cluster_from_plain,
    digest,
    layout_from_plain,
    to_plain,
    workload_from_plain,
)
from layoutopt.optimizer.specs.cluster import (
    ClusterSpec,
    FailureSpec,
    Generation,
    GpuSpec,
    NetworkLevel,
    StorageSpec,
)
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layer_runs import MAX_LAYERS
from layoutopt.optimizer.specs.layout import Layout, Recompute, VirtualStage
from layoutopt.optimizer.specs.loading import (
    cluster_names,
    gpu_names,
    load_cluster,
    load_gpu,
    load_workload,
    model_names,
    reference_cluster,
)
from layoutopt.optimizer.specs.model import (
    LayerShape,
    MambaSpec,
    Mixer,
    MlaSpec,
    Mlp,
    ModelSpec,
    MoeSpec,
    Norm,
    Run,
    TrainingSpec,
)
from layoutopt.optimizer.specs.reference_fabric import MAX_GPUS
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Granularity, Precision, Saver, Schedule
from layoutopt.optimizer.specs.workload import Workload

COUNTS = st.integers(1, 10**9)
NATURALS = st.integers(0, 10**9)
LAYERS = st.integers(1, MAX_LAYERS)
RATES = st.floats(1e-9, 1e18)
NAMES = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12)
SWITCHES = st.booleans()


def built(kind: type, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Build a spec from strategies for its fields."""
    return st.builds(kind, **fields)


SHAPES = built(
    LayerShape,
    mixer=st.sampled_from(Mixer),
    window=st.none() | COUNTS,
    mlp=st.sampled_from(Mlp),
    ffn=NATURALS,
    bidirectional=SWITCHES,
)
RUNS = built(Run, name=NAMES, block=st.lists(SHAPES, min_size=1, max_size=3).map(tuple), count=LAYERS)
MODELS = built(
    ModelSpec,
    name=NAMES,
    **{key: COUNTS for key in ("hidden", "heads", "kv_heads", "head_dim", "vocab")},
    **{
        key: SWITCHES
        for key in (
            "gated",
            "tied_embeddings",
            "attention_bias",
            "qkv_bias",
            "mlp_bias",
            "qk_norm",
            "embedding_norm",
        )
    },
    runs=st.lists(RUNS, min_size=1, max_size=3).map(tuple),
    norm=st.sampled_from(Norm),
    learned_positions=NATURALS,
    mtp_layers=st.just(0) | LAYERS,
    moe=st.none()
    | built(
        MoeSpec,
        experts=COUNTS,
        top_k=COUNTS,
        ffn=COUNTS,
        shared_ffn=NATURALS,
        router_groups=st.none() | COUNTS,
        router_group_limit=st.none() | COUNTS,
        capacity_factor=st.none() | RATES,
        router_bias=SWITCHES,
    ),
    mla=st.none()
    | built(
        MlaSpec,
        q_lora_rank=NATURALS,
        **{key: COUNTS for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
    ),
    mamba=st.none()
    | built(MambaSpec, **{key: COUNTS for key in ("heads", "head_dim", "state", "groups", "conv")}),
    published_parameters=st.none() | RATES,
)
TRAININGS = built(
    TrainingSpec,
    sequence_length=COUNTS,
    global_batch=COUNTS,
    precision=st.sampled_from(Precision),
    total_tokens=st.none() | RATES,
    fp8_recipe=st.none() | st.sampled_from(Fp8Recipe),
    **{key: st.none() | st.integers(0, 4) for key in ("grad_bytes", "moment_bytes", "master_bytes")},
    **{key: st.none() | SWITCHES for key in ("pad_vocab", "fused_loss")},
    flash=SWITCHES,
    dropout=SWITCHES,
    moe_imbalance=st.none() | st.floats(1.0, 10.0),
)
WORKLOADS = built(
    Workload,
    model=MODELS,
    training=TRAININGS,
    phases=st.lists(TRAININGS, max_size=2).map(tuple),
    phase_names=st.lists(NAMES, max_size=2).map(tuple),
)
GPUS = built(
    GpuSpec,
    name=NAMES,
    architecture=NAMES,
    generation=built(
        Generation,
        name=NAMES,
        **{
            fact: SWITCHES
            for fact in ("any_arrangement", "sized_experts", "ordered_streams", "deepep", "hybridep")
        },
    ),
    source=NAMES,
    dense_flops=st.dictionaries(st.sampled_from(Precision), RATES),
    **{key: COUNTS for key in ("nvlink_domain", "gpus_per_node", "sm_count")},
    **{
        key: RATES
        for key in (
            *("memory_bytes", "nominal_memory_bytes", "hbm_bytes_per_s", "nvlink_bytes_per_s"),
            *("nic_bytes_per_s", "tdp_w", "host_link_bytes_per_s"),
        )
    },
)
CLUSTERS = built(
    ClusterSpec,
    name=NAMES,
    gpu=GPUS,
    gpu_count=st.integers(1, MAX_GPUS),
    **{key: COUNTS for key in ("gpus_per_node", "nvlink_domain", "nics_per_node")},
    nic_bytes_per_s=RATES,
    levels=st.lists(
        built(NetworkLevel, name=NAMES, gpus=COUNTS, oversubscription=RATES, latency_s=st.floats(0, 1)),
        max_size=3,
    ).map(tuple),
    rail_optimized=SWITCHES,
    in_switch_reduction=SWITCHES,
    reserve_bytes=st.floats(0, 1e12),
    host_memory_bytes=st.none() | RATES,
    pue=RATES,
    storage=st.none() | built(StorageSpec, write_bytes_per_s=RATES, per_gpu_bytes_per_s=RATES),
    failures=built(FailureSpec, gpu_hours_per_failure=RATES, restart_s=st.floats(0, 1e6)),
    graph=st.none() | st.just({"directed": False, "nodes": [{"id": 1}], "edges": []}),
    calibration=st.dictionaries(NAMES, RATES),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
DATA = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)
KINDS = st.dictionaries(NAMES, NATURALS, max_size=2)
STAGES = built(
    VirtualStage,
    **{key: NATURALS for key in ("rank", "chunk", "layers", "recomputed", "mtp")},
    kinds=KINDS,
    recomputed_kinds=KINDS,
    embedding=SWITCHES,
    head=SWITCHES,
)
LAYOUTS = built(
    Layout,
    **{key: COUNTS for key in ("tp", "cp", "pp", "vp", "ep", "etp", "dp", "micro_batch", "micro_batches")},
    sp=SWITCHES,
    zero=st.integers(0, 3),
    hsdp_shard=st.none() | COUNTS,
    recompute=built(
        Recompute, granularity=st.sampled_from(Granularity), modules=st.lists(NAMES, max_size=2).map(tuple)
    ),
    schedule=st.sampled_from(Schedule),
    mesh_order=NAMES,
    precision=st.sampled_from(Precision),
    savers=st.sets(st.sampled_from(Saver)).map(lambda chosen: tuple(sorted(chosen))),
    stages=st.lists(STAGES, max_size=3).map(tuple),
)


def through_json(spec: Any) -> Any:
    """Write and read the plain form."""
    return json.loads(json.dumps(to_plain(spec), allow_nan=False))


FEW = settings(max_examples=30)


@FEW
@given(workload=WORKLOADS)
def test_workloads_survive_json(workload: Workload) -> None:
    """A workload comes back equal from JSON, and so does its digest."""
    back = workload_from_plain(through_json(workload))
    assert back == workload
    assert digest(back) == digest(workload)


@FEW
@given(cluster=CLUSTERS)
def test_clusters_survive_json(cluster: ClusterSpec) -> None:
    """A cluster comes back equal from JSON, and so does its digest."""
    back = cluster_from_plain(through_json(cluster))
    assert back == cluster
    assert digest(back) == digest(cluster)


@FEW
@given(layout=LAYOUTS)
def test_layouts_survive_json(layout: Layout) -> None:
    """A layout comes back equal from JSON; its plain form is the one that reports print."""
    assert layout_from_plain(through_json(layout)) == layout
    assert to_plain(layout) == printed(layout)


def test_builtins_survive_json() -> None:
    """All built-in models and clusters come back equal, each with a digest of its own."""
    workloads = [load_workload(name) for name in model_names()]
    clusters = [load_cluster(name) for name in cluster_names()]
    assert [workload_from_plain(through_json(item)) for item in workloads] == workloads
    assert [cluster_from_plain(through_json(item)) for item in clusters] == clusters
    digests = {digest(item) for item in [*workloads, *clusters]}
    assert len(digests) == len(workloads) + len(clusters)


def test_digest_depends_on_content_alone() -> None:
    """The order of keys and the spelling of a whole number do not matter; every value does."""
    cluster = load_cluster("h100-256")
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    from dataclasses import replace

    assert digest(replace(cluster, reserve_bytes=0)) == digest(cluster)
    assert digest(replace(cluster, pue=1.3)) != digest(cluster)
    assert len(digest(cluster)) == 64


def test_digest_refuses_nan() -> None:
    """A number that JSON cannot hold has no digest."""
    with pytest.raises(ValueError, match="JSON"):
        digest({"a": float("nan")})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 0}, "plan.json: layout.tp: 0 is not valid (a whole number, above 0)"),
        ({"tp": 8.0}, "plan.json: layout.tp: 8.0 is not valid (a whole number)"),
        ({"tp": True}, "plan.json: layout.tp: true is not valid (a whole number)"),
        ({"sp": 1}, "plan.json: layout.sp: 1 is not valid (true or false)"),
        ({"zero": -1}, "plan.json: layout.zero: -1 is not valid (a whole number, 0 or more)"),
        ({"schedule": "2f2b"}, "plan.json: layout.schedule: '2f2b' is not valid (none, gpipe, 1f1b,"),
        ({"recompute": []}, "plan.json: layout.recompute: a list is not valid (an object)"),
        ({"stages": [{"rank": 0, "chunk": 0}]}, "plan.json: layout.stages[0].layers: missing"),
        ({"stages": {}}, "plan.json: layout.stages: a mapping is not valid (a list)"),
        ({"colour": 1}, "plan.json: layout.colour: unknown key (tp, sp, cp,"),
        ({"mesh_order": 5}, "plan.json: layout.mesh_order: 5 is not valid (text)"),
    ],
)
def test_tampered_layouts(change: dict[str, Any], message: str) -> None:
    """A wrong value in a plan is one line with its path."""
    with pytest.raises(InputError) as caught:
        layout_from_plain(to_plain(Layout()) | change, file="plan.json", path=("layout",))
    assert str(caught.value).startswith(message)


@FEW
@given(data=DATA)
def test_any_data_is_a_spec_or_an_input_error(data: Any) -> None:
    """Arbitrary JSON never escapes as another exception."""
    for read in (layout_from_plain, workload_from_plain, cluster_from_plain):
        try:
            read(data)
        except InputError as error:
            assert error.problems


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("gpu", gpu_names())
def test_clusters_of_every_gpu_of_the_catalog_read_back(gpu: str, nodes: int) -> None:
    """A plan states them as these data: GPUs without NVLink have a rate of 0 there."""
    one = load_gpu(gpu)
    cluster = reference_cluster(gpu, nodes * max(one.gpus_per_node, one.nvlink_domain))

    assert cluster_from_plain(json.loads(json.dumps(to_plain(cluster)))) == cluster


def test_an_nvlink_domain_without_a_rate_is_refused() -> None:
    plain = to_plain(load_cluster("h100x8"))
    plain["gpu"]["nvlink_bytes_per_s"] = 0.0

    with pytest.raises(InputError, match=r"gpu\.nvlink_bytes_per_s: 0\.0 joins no NVLink domain of 8 GPUs"):
        cluster_from_plain(plain)
