"""Restrictions, lists that open an axis, releases, and small number theory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.frameworks.abilities import ALL_ORDERS
from layoutopt.optimizer.frameworks.record import NEWEST
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of, parse_release
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split
from layoutopt.optimizer.frameworks.torchtitan import ERA_A, ERA_B, ERA_C
from layoutopt.optimizer.space.axes import parse_recompute
from layoutopt.optimizer.space.divisors import divisors, factorisation_text, prime_powers
from layoutopt.optimizer.space.enumeration import build_space
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.space.recompute_sets import recompute_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.model import MlaSpec
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Granularity, Precision, Schedule
from layoutopt.optimizer.topology.mesh import dense_axes

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec

F = Framework
MLA = MlaSpec(q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32)


@pytest.fixture(scope="session")
def declare(
    make_model: Callable[..., ModelSpec],
    make_cluster: Callable[..., ClusterSpec],
    make_training: Callable[..., TrainingSpec],
) -> Callable[..., Space]:
    """Declare a space of a small model on 16 GPUs under options."""

    def build(framework: Framework = F.ANY, training: dict[str, Any] | None = None, **fields: Any) -> Space:
        model = {name: fields.pop(name) for name in ("experts", "mla", "dense_layers") if name in fields}
        question = make_model(**model), make_training(**(training or {})), make_cluster(16)
        return build_space(*question, framework, SpaceOptions(**fields))

    return build


def test_fix_max_min_forbid(declare: Callable[..., Space]) -> None:
    """Every restriction holds in every row, for degrees, derived axes and modifiers."""
    space = declare(
        fix={"tp": (2, 4), "precision": ("bf16",), "mesh_order": ("tp-cp-ep-dp-pp",)},
        max={"pp": 2, "dp": 4},
        min={"cp": 2, "micro_batches": 4},
        forbid={"zero": (3,), "recompute": ("mlp",), "vp": (2,)},
    )
    rows, _ = space.expand(space.degrees)
    assert len(rows)
    assert set(rows.tp.tolist()) <= {2, 4}
    assert rows.pp.max() <= 2
    assert rows.dp.max() <= 4
    assert rows.cp.min() >= 2
    assert rows.micro_batches.min() >= 4
    assert 3 not in rows.zero
    assert 2 not in rows.vp
    assert "mlp" not in [recompute_text(r) for r in rows.codebook.recomputes]
    assert any(count.rule == "limits" for count in space.counts.removed)


def test_orders_may_be_spelt_either_way(declare: Callable[..., Space]) -> None:
    """The place of ep in a mesh order is notation: both spellings fix the same order."""
    spellings = ("tp-cp-pp-ep-dp", "tp-cp-ep-pp-dp", "tp-cp-pp-dp")
    assert {declare(fix={"mesh_order": (text,)}).modifiers.orders for text in spellings} == {
        ("tp-cp-ep-pp-dp",)
    }
    assert "tp-cp-ep-pp-dp" not in declare(forbid={"mesh_order": ("tp-cp-pp-ep-dp",)}).modifiers.orders


def test_restricting_never_adds_layouts(declare: Callable[..., Space]) -> None:
    """A restricted space holds exactly the rows of the whole space that satisfy the restriction."""
    whole, part = declare(experts=8), declare(experts=8, max={"tp": 2, "ep": 4}, min={"dp": 2})
    keep = (whole.degrees.tp <= 2) & (whole.degrees.ep <= 4) & (whole.degrees.dp >= 2)
    assert part.degrees.table()[:, :9].tolist() == whole.degrees.table()[keep][:, :9].tolist()


def test_fixed_value_may_exceed_the_default_range(declare: Callable[..., Space]) -> None:
    """tp 16 crosses the NVLink domain of 8: not searched by default, searched when fixed, if heads allow."""
    assert 16 not in declare().degrees.tp
    wide = declare(fix={"tp": (16,)})
    assert wide.empty is not None
    assert wide.empty.rule == "heads_mod_tp"


def test_lists_open_axes(declare: Callable[..., Space]) -> None:
    """Schedules and precisions are searched when listed, as far as the framework launches them."""
    space = declare(
        schedules=(Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_V),
        precisions=(Precision.BF16, Precision.FP8),
    )
    rows, _ = space.expand(space.degrees)
    used = {space.modifiers.schedules[code] for code in set(rows.schedule.tolist())}
    assert used == {Schedule.NONE, Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_V}
    assert {rows.codebook.precisions[code] for code in set(rows.precision.tolist())} == {
        Precision.BF16,
        Precision.FP8,
    }
    assert set(rows.vp[rows.schedule == space.modifiers.schedules.index(Schedule.ZB_V)].tolist()) == {2}
    assert declare(F.MEGATRON, schedules=(Schedule.ZB_H1,)).modifiers.schedules == (Schedule.NONE,)


def test_unsupported_precision_is_removed_by_a_rule(declare: Callable[..., Space]) -> None:
    """A listed precision that the GPU lacks is declared, and removed by name."""
    space = declare(precisions=(Precision.BF16, Precision.NVFP4))
    assert "precision_hardware" in {count.rule for count in space.counts.removed}
    rows, _ = space.expand(space.degrees)
    assert {rows.codebook.precisions[code] for code in set(rows.precision.tolist())} == {Precision.BF16}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fix": {"tpp": (8,)}}, "no axis 'tpp'.*did you mean"),  # misspelt
        ({"max": {"schedule": 3}}, "no axis 'schedule'"),  # no order on schedules
        ({"fix": {"tp": (0,)}}, "tp can't be 0"),  # degrees start at 1
        ({"fix": {"tp": ("eight",)}}, "tp can't be eight"),  # not a number
        ({"min": {"pp": -1}}, "pp can't be -1"),  # negative
        ({"micro_batches": (0,)}, "micro_batch can't be 0"),  # empty micro-batch
        ({"allow_idle": 1.0}, "no share of GPUs"),  # nothing left to train on
        ({"fix": {"schedule": ("1b1f",)}}, "no schedule '1b1f'.*1f1b"),  # unknown schedule
        ({"forbid": {"precision": ("fp7",)}}, "no precision 'fp7'"),  # unknown precision
    ],
)
def test_bad_options_are_input_errors(options: dict[str, Any], message: str) -> None:
    """Each impossible restriction is one line that names the option and what is allowed."""
    with pytest.raises(InputError, match=message):
        SpaceOptions(**options)


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [("recompute", "mlps", "no module 'mlps'"), ("mesh_order", "tp-pp", "is no order of the axes")],
)
def test_bad_names_are_input_errors(
    declare: Callable[..., Space], axis: str, value: str, message: str
) -> None:
    """Unknown modules and orders are refused when the axes are declared."""
    with pytest.raises(InputError, match=message):
        declare(fix={axis: (value,)})


def test_recompute_texts_round_trip(declare: Callable[..., Space]) -> None:
    """A choice as it is printed can be given back to --fix."""
    for choice in declare(experts=8, mla=MLA).modifiers.recomputes:
        assert parse_recompute(recompute_text(choice)) == choice
    fixed = declare(fix={"recompute": ("none", "mlp+layernorm")}).modifiers.recomputes
    assert fixed == (
        Recompute(),
        Recompute(granularity=Granularity.SELECTIVE, modules=("layernorm", "mlp")),
    )


@pytest.mark.parametrize(
    ("framework", "fields", "expected"),
    [
        # Graphs of parts of layers refuse whole layers, of which none are a number; not layers without any.
        (F.MEGATRON, {}, {"full", "mlp", "layernorm", "layernorm+mlp", "none"}),
        (F.MEGATRON, {"software": "core 0.11"}, {"full"}),  # knows core attention alone, flash needs none
        (F.MEGATRON, {"software": "core 0.11", "training": {"flash": False}}, {"full", "core_attn"}),
        (F.MEGATRON_DEEPSPEED, {"training": {"flash": False}}, {"full", "core_attn"}),
        (F.TORCHTITAN, {}, {"full", "op"}),  # its selective policy is per operator
        (F.NANOTRON, {}, {"full"}),
        (
            F.ANY,
            {"experts": 8},
            # Graphs and expert overlap refuse whole layers, of which none are a number; not layers without any.
            {"full", "layernorm", "moe", "layernorm+moe", "moe_act", "layernorm+moe_act", "none"},
        ),
    ],
)
def test_recompute_sets(
    declare: Callable[..., Space], framework: Framework, fields: dict[str, Any], expected: set[str]
) -> None:
    """The declared sets follow the model, flash attention, the framework and its release."""
    assert {recompute_text(r) for r in declare(framework, **fields).modifiers.recomputes} == expected


def test_recompute_sets_of_latent_attention(declare: Callable[..., Space]) -> None:
    """A stack like DeepSeek-V3's gets every combination of norms, up-projection and MLP level once."""
    space = declare(experts=8, dense_layers=1, mla=MLA)
    texts = [recompute_text(r) for r in space.modifiers.recomputes]
    assert len(texts) == len(set(texts)) == 17
    assert {"mla_up_proj+mlp+moe_act", "layernorm+mla_up_proj", "mla_up_proj"} <= set(texts)


def test_delayed_scaling_excludes_discarded_outputs(declare: Callable[..., Space]) -> None:
    """fp8 with delayed scaling loses the layernorm sets, bf16 of the same list keeps them."""
    space = declare(
        F.MEGATRON,
        training={"fp8_recipe": Fp8Recipe.DELAYED, "precision": Precision.FP8},
        precisions=(Precision.BF16, Precision.FP8),
    )
    rows, _ = space.expand(space.degrees)
    names = [recompute_text(r) for r in space.modifiers.recomputes]
    norm = names.index("layernorm")
    kept = set(rows.precision[rows.recompute == norm].tolist())
    assert {rows.codebook.precisions[code] for code in kept} == {Precision.BF16}
    assert "recompute_with_delayed_fp8" in {count.rule for count in space.counts.removed}


@pytest.mark.parametrize(
    ("framework", "software", "release"),
    [
        (F.MEGATRON, "core 0.9", (0, 9)),
        (F.MEGATRON, "0.15", (0, 15)),
        (F.MEGATRON, "core_v0.12.1", (0, 12, 1)),
        (F.MEGATRON_BRIDGE, "0.2", (0, 15)),
        (F.MEGATRON_BRIDGE, "core 0.15", (0, 15)),
        (F.MEGATRON_BRIDGE, "NeMo 25.02", (0, 11)),
        (F.MEGATRON_BRIDGE, "NeMo 24.09-24.12", (0, 10)),
        (F.MEGATRON_BRIDGE, "26.04.01", (0, 17)),
        (F.MEGATRON_BRIDGE, "99.01", NEWEST),
        (F.TORCHTITAN, "v0.2.2", (0, 2, 2)),
        (F.TORCHTITAN, "era A", ERA_A),
        (F.TORCHTITAN, "Era C", ERA_C),
        (F.DEEPSPEED, "0.16.4", (0, 16, 4)),
        (F.ANY, None, NEWEST),
        (F.MEGATRON, "nightly", NEWEST),
        (F.MEGATRON, "v2.6", (0, 0, 2, 6)),
        (F.MEGATRON, "v3.0.2", (0, 0, 3, 0)),
        (F.MEGATRON, "2020", (0, 0, 1, 0)),  # a date stands for the newest release published by its end
        (F.MEGATRON, "2021", (0, 0, 2, 6)),
        (F.MEGATRON, "2022-05-15", (0, 0, 2, 6)),
        (F.MEGATRON, "2022-05", (0, 0, 3, 0)),
        (F.MEGATRON, "2024-09", (0, 8)),
        (F.MEGATRON, "2030", NEWEST),
        (F.MEGATRON_BRIDGE, "NeMo 25.01", (0, 11)),
        (F.MEGATRON_BRIDGE, "NeMo 2.1.0", (0, 10)),
        (F.MEGATRON_BRIDGE, "2024-12", (0, 9)),
        (F.TORCHTITAN, "2025-12-01", ERA_A),
        (F.TORCHTITAN, "2026-03", ERA_B),
    ],
)
def test_releases(framework: Framework, software: str | None, release: tuple[int, ...]) -> None:
    """Release strings as people write them; what says nothing counts as the newest."""
    assert parse_release(framework, software) == release


def test_stage_rules_of_frameworks() -> None:
    """Split and recomputation freedom follow the framework and its release."""
    rules = {framework: abilities_of(framework, NEWEST).stage_rule for framework in Framework}
    assert rules[F.MEGATRON].split is Split.FREE
    assert rules[F.MEGATRON].recomputation is Recomputation.UNIFORM_COUNT
    assert rules[F.TORCHTITAN].recomputation is Recomputation.ALL_OR_NONE
    assert rules[F.ANY].recomputation is Recomputation.PER_RANK
    assert rules[F.TORCHTITAN].split is Split.NEAR_EQUAL
    assert rules[F.TORCHTITAN].launchable is Split.FREE
    assert rules[F.NANOTRON].split is Split.BY_COST
    assert rules[F.MEGATRON_DEEPSPEED].split is Split.LARGER_FIRST
    splits = [abilities_of(F.MEGATRON, (0, minor)).stage_rule.split for minor in (8, 10, 12, 13)]
    assert splits == [Split.EQUAL, Split.EQUAL_MIDDLE_UNCHUNKED, Split.EQUAL_MIDDLE, Split.FREE]


def test_24_orders() -> None:
    """`any` has every order of tp, cp, dp and pp once, the frameworks' default first."""
    assert len({dense_axes(order) for order in ALL_ORDERS}) == len(ALL_ORDERS) == 24
    assert ALL_ORDERS[:2] == ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")


@given(number=st.integers(1, 5000), limit=st.one_of(st.none(), st.integers(1, 100)))
def test_divisors(number: int, limit: int | None) -> None:
    """Divisors are all of them, ascending, within the limit."""
    expected = [d for d in range(1, number + 1) if number % d == 0 and (limit is None or d <= limit)]
    assert list(divisors(number, limit)) == expected


@given(number=st.integers(1, 10**6))
def test_prime_powers(number: int) -> None:
    """Prime powers multiply to the number, primes ascend and are prime."""
    product = 1
    for prime, exponent in prime_powers(number):
        assert all(prime % small for small in range(2, int(prime**0.5) + 1))
        product *= prime**exponent
    assert product == number


def test_factorisation_text() -> None:
    """Powers are multiplied out, thousands separated."""
    assert factorisation_text(5128) == "8 x 641"
    assert factorisation_text(1) == "1"
