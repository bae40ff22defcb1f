"""What a model is beside its sizes (rope base, norm epsilon, router) is in every launch that has a word for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checks.agreement import dense_model, workload_of
from checks.launches import BUILTIN_MODELS

from layoutopt.optimizer.interop.files import model_file
from layoutopt.optimizer.interop.huggingface.config import import_config
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_workload

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ExportedJob
    from layoutopt.optimizer.specs.model import ModelSpec

CLUSTER = load_cluster("h100x8")
PLAIN = Layout(dp=8, micro_batches=2, zero=1)
DENSE = dense_model(8, rope_base=750_000.0, norm_epsilon=3e-6)
DEEPSEEK = replace(load_workload("deepseek-v3").model, mtp_layers=0, rope_base=20_000.0)


def written(
    model: ModelSpec, framework: str, version: str | None = None, layout: Layout = PLAIN
) -> ExportedJob:
    """An export of the model."""
    return export(layout, workload_of(model, layout), CLUSTER, framework, version=version)


def facts(model: ModelSpec | None) -> tuple[float | int | None, ...]:
    """What is compared here and, where it decides no price, by no equality."""
    assert model is not None
    moe = model.moe
    router = (moe.router_scaling, moe.router_groups, moe.router_group_limit) if moe else ()
    return (model.rope_base, model.norm_epsilon, *router)


@pytest.mark.parametrize(
    ("framework", "version", "kind", "model", "words"),
    [
        ("megatron-lm", "core 0.19", "megatron-args", DENSE, ("--rotary-base 750000", "--norm-epsilon 3e-06")),
        ("megatron-lm", "core 0.8", "megatron-args", DENSE, ("--rotary-base 750000", "--norm-epsilon 3e-06")),
        (
            "megatron-lm", "core 0.13", "megatron-args", DEEPSEEK,
            (
                "--rotary-base 20000", "--norm-epsilon 1e-06", "--moe-router-topk-scaling-factor 2.5",
                "--moe-router-num-groups 8", "--moe-router-group-topk 4",
            ),
        ),
        (
            "megatron-bridge", "0.6", "bridge-command", DEEPSEEK,
            (
                "model.rotary_base=20000", "model.layernorm_epsilon=1e-06", "model.moe_router_topk_scaling_factor=2.5",
                "model.moe_router_num_groups=8", "model.moe_router_group_topk=4",
            ),
        ),
        (
            "megatron-deepspeed", None, "megatron-deepspeed", DENSE,
            ("--rotary-position-embeddings-theta 750000", "--layernorm-epsilon 3e-06"),
        ),
        ("nanotron", None, "nanotron-yaml", DENSE, ("rope_theta: 750000.0", "rms_norm_eps: 3.0e-06")),
    ],
    ids=["megatron", "megatron-0.8", "megatron-moe", "bridge", "megatron-deepspeed", "nanotron"],
)  # fmt: skip
def test_written_and_read_back(
    framework: str, version: str | None, kind: str, model: ModelSpec, words: tuple[str, ...]
) -> None:
    """The trainer's own words, without a note that anything is left open."""
    layout = replace(PLAIN, ep=8) if model.is_moe else PLAIN
    job = written(model, framework, version, layout)
    text = next(text for name, text in job.files.items() if not name.endswith(".json"))
    assert [word for word in words if word not in text] == []
    assert not [note for note in job.notes if "does not state" in note or "left out" in note]
    read = import_text(text, "", kind).value
    if framework != "megatron-bridge":  # whose recipe says the rest of the model
        assert facts(read.model) == facts(model)


@pytest.mark.parametrize(
    ("framework", "version", "words"),
    [
        ("megatron-lm", "core 0.19", ("--rotary-base (default 10000)", "--norm-epsilon (default 1e-5)")),
        ("megatron-bridge", "0.6", ("model.rotary_base", "model.layernorm_epsilon")),
        ("megatron-deepspeed", None, ("--rotary-position-embeddings-theta", "--layernorm-epsilon")),
        ("nanotron", None, ("rope_theta (default 10000)", "rms_norm_eps (default 1e-6)")),
    ],
)
def test_a_note_names_what_the_model_file_leaves_open(
    framework: str, version: str | None, words: tuple[str, ...]
) -> None:
    """And nothing is written that the file does not say."""
    job = written(dense_model(8), framework, version)
    notes = "\n".join(job.notes)
    assert [word for word in words if word not in notes] == []
    assert "750000" not in "".join(job.files.values()) and "rope_theta: " not in "".join(job.files.values())


def test_a_note_where_the_release_has_no_word() -> None:
    """Rope bases came with core 0.8, scaling and groups of routers with 0.11."""
    assert "rope base 750000 is left out" in "\n".join(written(DENSE, "megatron-lm", "core 0.7").notes)
    mixtral = load_workload("mixtral-8x7b").model
    assert mixtral.moe is not None
    own = replace(
        mixtral, moe=replace(mixtral.moe, router_scaling=2.5, router_groups=4, router_group_limit=2)
    )
    notes = "\n".join(written(own, "megatron-lm", "core 0.10", replace(PLAIN, ep=8)).notes)
    assert "router scaling 2.5 is left out" in notes and "4 groups of experts are left out" in notes


def test_a_flavor_of_torchtitan_keeps_its_own() -> None:
    """Its configuration has no setting for the base, which the flavor holds."""
    llama = load_workload("llama3-8b").model
    layout = replace(PLAIN, zero=3)
    assert "rope base" not in "\n".join(written(llama, "torchtitan", layout=layout).notes)
    other = "\n".join(written(replace(llama, rope_base=1e6), "torchtitan", layout=layout).notes)
    assert "rope base 1e+06 is left out: torchtitan's flavor 8b has 500000" in other
    unknown = "\n".join(written(DENSE, "torchtitan", layout=layout).notes)
    assert "rope theta 750000, norm eps 3e-06" in unknown


def test_read_from_a_hugging_face_file() -> None:
    """At the top level, or with the scaling of positions; whatever else stands there is no fault of the layout."""
    plain = (
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99,'
        ' "intermediate_size": 128, "rms_norm_eps": 1e-05, %s}'
    )
    for key, base in (
        ('"rope_theta": 500000.0', 5e5),
        ('"rope_parameters": {"rope_type": "default", "rope_theta": 1000000}', 1e6),
        ('"rope_theta": "none"', None),
        ('"rope_theta": -1', None),
    ):
        model = import_config(plain % key).model
        assert (model.rope_base, model.norm_epsilon) == (base, 1e-5)


def test_written_to_a_model_file_and_read_again() -> None:
    """Keys of the model file; models that differ in them alone are equal, for they have one price."""
    plain = model_file(DEEPSEEK, {"sequence_length": 4096, "global_batch": 8, "precision": "bf16"})
    assert (
        facts(parse_workload(json.dumps(plain), "").model) == facts(DEEPSEEK) == (20_000.0, 1e-6, 2.5, 8, 4)
    )
    assert replace(DENSE, rope_base=None, norm_epsilon=None) == DENSE


def test_groups_come_with_their_limit() -> None:
    """Both keys, and groups of equal size."""
    plain = model_file(DEEPSEEK, {"sequence_length": 4096, "global_batch": 8, "precision": "bf16"})
    for changes, word in (
        ({"router_group_limit": None}, "router_group_limit"),
        ({"router_groups": 7}, "is not a multiple"),
        ({"router_group_limit": 9}, "9 of only 8 groups"),
        ({"node_limit": 5}, "5, and router_group_limit says 4"),
        ({"router_groups": 256, "router_group_limit": 4}, "are 4 experts for the 8 of a token"),
        ({"node_limit": 9, "router_group_limit": None}, "9 of only 8 groups"),
    ):
        architecture = plain["architecture"]
        moe = {key: value for key, value in (architecture["moe"] | changes).items() if value is not None}
        with pytest.raises(InputError, match=word):
            parse_workload(json.dumps(plain | {"architecture": architecture | {"moe": moe}}), "")
    older = plain["architecture"]["moe"] | {"node_limit": 4}
    del older["router_group_limit"]
    read = parse_workload(json.dumps(plain | {"architecture": plain["architecture"] | {"moe": older}}), "")
    assert read.model.moe == DEEPSEEK.moe


@pytest.mark.parametrize(
    ("experts", "limit", "groups"),
    [(256, 4, (8, 4)), (160, 3, (8, 3)), (256, 8, (16, 8)), (36, 4, (9, 4)), (8, 8, None), (7, 2, None)],
)
def test_limited_nodes_are_an_older_spelling(
    experts: int, limit: int, groups: tuple[int, int] | None
) -> None:
    """Of eight groups, as every published model has, or the next number that divides the experts and leaves some out."""
    plain = model_file(DEEPSEEK, {"sequence_length": 4096, "global_batch": 8, "precision": "bf16"})
    moe = {key: value for key, value in plain["architecture"]["moe"].items() if "router_group" not in key}
    moe |= {"experts": experts, "top_k": 2, "node_limit": limit}
    for stated in (moe, moe | dict(zip(("router_groups", "router_group_limit"), groups or (), strict=False))):
        text = json.dumps(plain | {"architecture": plain["architecture"] | {"moe": stated}})
        read = parse_workload(text, "").model.moe
        assert read is not None and read.binding_groups == groups


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_built_in_models_state_what_is_published(name: str) -> None:
    """Of models with rotary positions, all but those whose base no source here gives; BLOOM has slopes in their place."""
    model = load_workload(name).model
    if model.rope_base is None:
        assert model.learned_positions or name in ("bloom-176b", "glm-5", "kimi-linear-48b-a3b", "palm-540b")
    if model.moe is not None and model.moe.router_bias and not model.moe.expert_bias:
        assert model.moe.router_scaling is not None
