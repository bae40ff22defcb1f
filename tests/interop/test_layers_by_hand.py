"""Which layer of a Hugging Face configuration is what, by each rule of a family; torchtitan's batch of each era."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.optimizer.interop.huggingface.family import ConfigReader, HfFamily
from layoutopt.optimizer.interop.huggingface.layers import (
    _after_first_dense,
    _by_sparse_step,
    _dense_width,
    _in_span,
    _indexing_layers,
    _interleaved,
    _mixers,
    _windows,
    block_sparse_layers,
)
from layoutopt.optimizer.interop.reading import Fields
from layoutopt.optimizer.interop.torchtitan.read_batch import Batch, read_batch, read_schedule, read_split
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.model import Mixer
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import Schedule


def reader(data: dict[str, Any], name: str = "x", **family: Any) -> ConfigReader:
    """Read settings as one family does."""
    return ConfigReader(Fields(data), HfFamily(name=name, gated=True, tied=False, norm="rms", **family))


SPARSE: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (_by_sparse_step, {"decoder_sparse_step": 1}, {}, "111111"),
    (_by_sparse_step, {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, {}, "010001"),
    (_by_sparse_step, {}, {"defaults": {"decoder_sparse_step": 3}}, "001001"),
    (_after_first_dense, {"first_k_dense_replace": 2}, {}, "001111"),
    (_after_first_dense, {"num_dense_layers": 0, "moe_layer_freq": 2}, {}, "101010"),
    (_after_first_dense, {"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, {}, "011011"),
    (_after_first_dense, {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4}, {}, "001111"),
    (_interleaved, {"interleave_moe_layer_step": 2}, {}, "010101"),
    (_interleaved, {"interleave_moe_layer_step": 1}, {}, "111111"),
    (_interleaved, {"moe_layers": [0, 5]}, {}, "100001"),
    (_in_span, {"moe_layer_start_index": 1, "moe_layer_end_index": 4, "moe_layer_interval": 1}, {}, "011110"),
    (_in_span, {"moe_layer_start_index": 0, "moe_layer_interval": 3}, {}, "001001"),
    (_indexing_layers, {}, {}, "111111"),
    (_indexing_layers, {"index_topk_freq": 2}, {}, "110101"),
    (_indexing_layers, {"index_topk_freq": 3, "index_skip_topk_offset": 0}, {}, "001001"),
    (_indexing_layers, {"index_topk_freq": 3, "index_skip_topk_offset": 1}, {}, "100100"),
    (_indexing_layers, {"index_topk_pattern": "FSSFSS"}, {}, "100100"),
    (_indexing_layers, {"indexer_types": ["full", "shared"] * 3}, {}, "101010"),
]


@pytest.mark.parametrize(("rule", "data", "family", "marks"), SPARSE)
def test_layers_that_a_rule_marks(
    rule: Any, data: dict[str, Any], family: dict[str, Any], marks: str
) -> None:
    """Steps count from 1, lists name layers from 0."""
    assert "".join(str(int(mark)) for mark in rule(reader(data, **family), 6)) == marks


KDA, DELTA = Mixer.KIMI_DELTA.value, Mixer.GATED_DELTA.value


@pytest.mark.parametrize(
    ("data", "family", "full"),
    [
        ({}, {}, "111111"),
        ({"full_attention_interval": 3}, {"linear": DELTA}, "001001"),
        ({}, {"linear": DELTA, "full_every": 2}, "010101"),
        ({}, {"linear": DELTA, "full_every": 2, "full_first": True}, "101010"),
        ({}, {"linear": KDA, "full_every": 2, "full_first": True}, "001010"),
        ({"layer_types": ["linear_attention", "full_attention"] * 3}, {"linear": DELTA}, "010101"),
        ({"linear_attn_config": {"full_attn_layers": [1, 4]}}, {"linear": KDA}, "100100"),
        ({"attn_type_list": [0, 1, 0, 1, 1, 1]}, {"linear": DELTA}, "010111"),
    ],
)
def test_layers_that_attend_to_everything(data: dict[str, Any], family: dict[str, Any], full: str) -> None:
    """The others mix tokens linearly; without such a class all attend."""
    found = _mixers(reader(data, **family), 6)
    assert "".join(str(int(mixer is Mixer.ATTENTION)) for mixer in found) == full
    assert all(mixer in (Mixer.ATTENTION, Mixer(family.get("linear") or "attention")) for mixer in found)


W = {"sliding_window": 8}


@pytest.mark.parametrize(
    ("data", "family", "windows"),
    [
        (W, {}, "......"),
        (W, {"window": "all"}, "888888"),
        ({"sliding_window": None}, {"window": "all", "defaults": {"sliding_window": 4}}, "......"),
        ({}, {"window": "all", "defaults": {"sliding_window": 4}}, "444444"),
        (W, {"window": "alternate"}, "8.8.8."),
        (W, {"window": "gemma3"}, "88888."),
        ({**W, "sliding_window_pattern": 3}, {"window": "gemma3"}, "88.88."),
        ({**W, "sliding_window_pattern": 2}, {"window": "period"}, "8.8.8."),
        ({**W, "sliding_window_pattern": "LLG"}, {"window": "period"}, "88.88."),
        ({**W, "sliding_window_pattern": "LG"}, {"window": "period"}, "8.8.8."),
        ({**W, "sliding_window_pattern": "L"}, {"window": "period"}, "88888."),
        ({**W, "global_attn_every_n_layers": 3}, {"window": "full_first_of_period"}, ".8.88."),
        ({**W, "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1]}, {"window": "full_first_of_period"}, ".88.88"),
        (W, {"window": "full_first"}, ".888.8"),
        ({**W, "use_sliding_window": True, "no_rope_layer_interval": 2}, {"window": "switch_rope"}, ".8.8.8"),
        ({**W, "no_rope_layer_interval": 2}, {"window": "switch_rope"}, "......"),
        ({"attention_chunk_size": 4, "no_rope_layer_interval": 4}, {"window": "llama4"}, "444.44"),
        ({"attention_chunk_size": 4, "no_rope_layers": [1, 0, 1, 0, 1, 0]}, {"window": "llama4"}, "4.4.4."),
        ({**W, "use_sliding_window": True, "max_window_layers": 4}, {"window": "qwen2"}, "....88"),
        ({**W, "use_sliding_window": True}, {"window": "switch"}, "888888"),
        ({**W, "use_sliding_window": False}, {"window": "switch"}, "......"),
        ({**W, "layer_types": ["sliding_attention", "full_attention"] * 3}, {}, "8.8.8."),
        (
            {"sliding_window_size": 7, "layer_types": ["sliding_attention"] * 6},
            {"window_heads": True},
            "888888",
        ),
    ],
)
def test_layers_that_have_a_window(data: dict[str, Any], family: dict[str, Any], windows: str) -> None:
    """Its length, a point for the whole sequence."""
    assert "".join(str(length or ".") for length in _windows(reader(data, **family), 6)) == windows


@pytest.mark.parametrize(
    ("rule", "data", "said"),
    [
        (
            _by_sparse_step,
            {"decoder_sparse_step": 1, "mlp_only_layers": [6]},
            "mlp_only_layers: 6 is not a layer (0 to 5)",
        ),
        (_interleaved, {"moe_layers": [-1]}, "moe_layers: -1 is not a layer (0 to 5)"),
        (
            _after_first_dense,
            {"moe_layer_freq": [1]},
            "moe_layer_freq: 1 entries for 6 layers (one entry per layer)",
        ),
        (
            _windows,
            {"layer_types": ["full_attention"]},
            "layer_types: 1 entries for 6 layers (one entry per layer)",
        ),
        (
            _windows,
            {"layer_types": ["strange"] * 6},
            "layer_types: layer kind 'strange' is not supported (full, sliding",
        ),
        (
            _interleaved,
            {},
            "interleave_moe_layer_step: missing (x has no default for interleave_moe_layer_step)",
        ),
    ],
)
def test_lists_of_layers_that_fit_no_model(rule: Any, data: dict[str, Any], said: str) -> None:
    """The key, and how many there are."""
    with pytest.raises(InputError) as raised:
        rule(reader(data), 6)
    assert str(raised.value).startswith(said)


def test_widths_and_chosen_blocks() -> None:
    """Four times the hidden size where a class says so; layers that choose blocks in either spelling."""
    asked: list[tuple[dict[str, Any], str, int]] = [
        ({"intermediate_size": 7}, "x", 7), ({"n_inner": None}, "gpt2", 32), ({"n_inner": 9}, "gpt2", 9),
        ({"ffn_dim": 5}, "x", 5), ({}, "falcon", 32),
    ]  # fmt: skip
    for data, name, width in asked:
        assert _dense_width(reader({"hidden_size": 8, **data}, name)) == width
    assert _dense_width(reader({"hidden_size": 8, "intermediate_size": 3}, ffn_is_4_hidden=True)) == 32
    with pytest.raises(InputError, match="intermediate_size: missing"):
        _dense_width(reader({"hidden_size": 8}))
    stack = {"num_hidden_layers": 3}
    assert block_sparse_layers(reader(stack)) == []
    older = {"sparse_attention_config": {"sparse_attention_freq": [1, 0, 1]}}
    assert block_sparse_layers(reader({**stack, **older})) == [True, False, True]


TITAN: list[tuple[str, bool, dict[str, Any], dict[str, Any], dict[str, Any], tuple[Any, ...], int]] = [
    ("A", False, {"seq_len": 64, "local_batch_size": 4}, {}, {"dp": 8, "pp": 1}, (64, 4, 1, 32), 0),
    ("A", False, {"seq_len": 64, "local_batch_size": 4, "global_batch_size": 64}, {}, {"dp": 8, "pp": 1}, (64, 4, 2, 64), 0),
    ("A", False, {"seq_len": 64, "batch_size": 4, "global_batch_size": -1}, {}, {"dp": 8, "pp": 2}, (64, 1, 4, 32), 0),
    (
        "A", False, {"seq_len": 64, "local_batch_size": 4}, {"pipeline_parallel_microbatch_size": 2}, {"dp": 8, "pp": 2},
        (64, 2, 2, 32), 0,
    ),
    ("A", False, {}, {}, {"dp": 1, "pp": 1}, (2048, 8, 1, 8), 2),
    ("A", True, {"global_batch_size": 64}, {}, {"dp": 8, "pp": 1}, (None, None, None, 64), 0),
    ("A", True, {"global_batch_size": 0}, {}, {"dp": 8, "pp": 1}, (None, None, None, None), 0),
    ("A", False, {"seq_len": 64, "local_batch_size": 4}, {}, {"dp": None, "pp": 1}, (64, 4, None, None), 0),
]  # fmt: skip


@pytest.mark.parametrize(("era", "inherited", "training", "parallelism", "axes", "batch", "count"), TITAN)
def test_batches_of_torchtitan(
    era: str,
    inherited: bool,
    training: dict[str, Any],
    parallelism: dict[str, Any],
    axes: dict[str, Any],
    batch: tuple[Any, ...],
    count: int,
) -> None:
    """A rank's sequences over its micro-batches, and how often a step repeats them; defaults are said."""
    notes: list[str] = []
    found = read_batch(
        Fields(training), Fields(parallelism), era, PartialLayout(**axes), notes, inherited=inherited
    )
    sequence, micro_batch, micro_batches, whole = batch
    assert found == Batch(
        sequence_length=sequence, micro_batch=micro_batch, micro_batches=micro_batches, global_batch=whole
    )
    assert len(notes) == count


def test_schedules_of_torchtitan() -> None:
    """1F1B where none is named, whatever the case; none without a pipeline."""
    assert read_schedule(Fields({"pipeline_parallel_schedule": "GPipe"}), 1) is Schedule.NONE
    assert read_schedule(Fields({}), 2) is Schedule.ONE_F_ONE_B
    assert read_schedule(Fields({"pipeline_parallel_schedule": "Interleaved1F1B"}), 2) is Schedule.INTERLEAVED
    for word in ("LoopedBFS", "strange"):
        with pytest.raises(InputError, match="pipeline_parallel_schedule"):
            read_schedule(Fields({"pipeline_parallel_schedule": word}), 2)


@pytest.mark.parametrize(
    ("data", "pp", "schedule", "layers", "split"),
    [
        ({}, 1, Schedule.NONE, 8, (1, [8])),
        ({}, 1, Schedule.NONE, None, (1, [])),
        ({}, 2, Schedule.ONE_F_ONE_B, 8, (1, [4, 4])),
        ({}, 4, Schedule.ONE_F_ONE_B, 8, (1, [2, 3, 2, 1])),
        ({}, 2, Schedule.INTERLEAVED, 8, (2, [2, 3, 2, 1])),
        ({}, 2, Schedule.INTERLEAVED, None, (2, [])),
        (
            {"pipeline_parallel_first_stage_less_layers": 0, "pipeline_parallel_last_stage_less_layers": 0},
            4, Schedule.GPIPE, 8, (1, [2, 2, 2, 2]),
        ),
        ({"pipeline_parallel_layers_per_stage": 2}, 2, Schedule.INTERLEAVED, 10, (3, [1, 2, 2, 2, 2, 1])),
        ({"pipeline_parallel_layers_per_stage": 2}, 2, Schedule.INTERLEAVED, None, (0, [])),
        (
            {"module_fqns_per_model_part": [["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "norm"]]},
            2, Schedule.ONE_F_ONE_B, 3, (1, [1, 2]),
        ),
    ],
)  # fmt: skip
def test_stages_of_torchtitan(
    data: dict[str, Any], pp: int, schedule: Schedule, layers: int | None, split: tuple[int, list[int]]
) -> None:
    """The ends count as a layer each unless they are told otherwise; the first stages hold what is left over."""
    assert read_split(Fields(data), pp, schedule, layers) == split


@pytest.mark.parametrize(
    ("data", "pp", "layers", "said"),
    [
        ({}, 4, 1, "pipeline_parallel_degree: 1 layers leave some of 4 stages empty"),
        (
            {"pipeline_parallel_layers_per_stage": 3}, 3, 10,
            "pipeline_parallel_layers_per_stage: 4 stages are not a multiple of pp=3",
        ),
        ({"module_fqns_per_model_part": [["layers.0"]]}, 2, 1, "module_fqns_per_model_part: 1 parts are not"),
        (
            {"module_fqns_per_model_part": [["layers.1"], ["layers.0"]]}, 2, 2,
            "module_fqns_per_model_part: layers are missing, repeated or out of order",
        ),
        (
            {"module_fqns_per_model_part": [["layers.0"], ["layers.1"]]}, 2, 3,
            "module_fqns_per_model_part: layers are missing, repeated or out of order",
        ),
    ],
)  # fmt: skip
def test_stages_that_ranks_cannot_share(data: dict[str, Any], pp: int, layers: int, said: str) -> None:
    """Which setting, and why."""
    with pytest.raises(InputError) as raised:
        read_split(Fields(data), pp, Schedule.ONE_F_ONE_B, layers)
    assert str(raised.value).startswith(said)
