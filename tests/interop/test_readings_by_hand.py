"""What importers read alike, against what their docstrings say: syntax, typed settings, patterns, number formats."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.optimizer.interop.launch.common import (
    divided,
    looped_schedule,
    megatron_precision,
    per_layer_pattern,
    selective,
)
from layoutopt.optimizer.interop.launch.flags import scalar
from layoutopt.optimizer.interop.reading import (
    Fields,
    parse_json,
    parse_python,
    parse_toml,
    parse_yaml,
    shorten,
)
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import (
    Fp8Recipe,
    Precision,
    Schedule,
)


def refused(function: Any, *given: Any, **named: Any) -> str:
    """The one line that a refusal says."""
    with pytest.raises(InputError) as raised:
        function(*given, **named)
    return str(raised.value)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_python, "a = 1\nb = = 2\n", "f:2: not valid Python"),
        (parse_python, "a = '\0'", "f: not valid Python"),
        (parse_json, '{"a": 1,\n"b"}', "f:2: not valid JSON"),
        (parse_json, "[1]", "f: holds list, not a JSON object"),
        (parse_yaml, "a: 1\nb: [1\n", "f:3: not valid YAML"),
        (parse_yaml, "- 1\n", "f: holds list, not a YAML mapping"),
        (parse_yaml, "", "f: holds NoneType, not a YAML mapping"),
        (parse_yaml, "a: 2026-13-45\n", "f: not valid YAML"),
        (parse_toml, "a = 1\nb == 2\n", "f:2: not valid TOML"),
        (parse_toml, "a = 1\na = 2", "f: not valid TOML: Cannot overwrite"),
    ],
)
def test_syntax_errors_have_their_line(parse: Any, text: str, said: str) -> None:
    """The file, the line that is wrong, and which language it is not."""
    assert refused(parse, text, "f").startswith(said)


def test_documents_are_read() -> None:
    """Keys that are no strings become some, as trainers read them."""
    assert parse_yaml("1: 2\na: [1]\n") == {"1": 2, "a": [1]}
    assert parse_json('{"a": {"b": null}}') == {"a": {"b": None}}
    assert parse_toml("[a]\nb = 1\n") == {"a": {"b": 1}}


def test_long_values_are_shown_in_sixty_characters() -> None:
    """Sixty fit, of more three dots take the place of the last three; line breaks are blanks."""
    assert shorten("x" * 60) == "x" * 60
    assert shorten("x" * 61) == "x" * 57 + "..."
    assert shorten(" a\n\tb ") == "a b"


SETTINGS = Fields(
    {
        "none": None, "one": 1, "zero": 0, "big": 10**15, "whole": 8.0, "half": 0.5, "inf": float("inf"), "yes": True,
        "word": "Full", "list": [1, 2], "pair": (1, 2), "words": ["a", "b"], "inner": {"a": 1, 2: 3}, "minus": -1,
    },
    file="f",
    prefix="p",
)  # fmt: skip


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda f: f.integer("none", "one"), 1),
        (lambda f: f.integer("absent"), None),
        (lambda f: f.integer("whole"), 8),
        (lambda f: f.integer("zero"), 0),
        (lambda f: f.integer("big"), 10**15),
        (lambda f: f.integer("minus", least=-1), -1),
        (lambda f: f.integer("one", least=1, most=1), 1),
        (lambda f: f.count("absent"), 1),
        (lambda f: f.count("absent", default=3), 3),
        (lambda f: f.count("whole"), 8),
        (lambda f: f.required("one"), 1),
        (lambda f: f.number("half"), 0.5),
        (lambda f: f.number("one"), 1.0),
        (lambda f: f.number("absent"), None),
        (lambda f: f.fact("word", "half"), 0.5),
        (lambda f: f.fact("zero", "inf", "minus"), None),
        (lambda f: f.flag("yes"), True),
        (lambda f: f.flag("absent"), None),
        (lambda f: (f.on("yes"), f.on("absent")), (True, False)),
        (lambda f: f.text("word"), "Full"),
        (lambda f: f.text("absent"), None),
        (lambda f: f.choice("word", ["none", "full"]), "full"),
        (lambda f: f.choice("absent", ["none"]), None),
        (lambda f: f.items("list"), [1, 2]),
        (lambda f: f.items("pair"), [1, 2]),
        (lambda f: f.items("absent"), None),
        (lambda f: f.words("words"), ("a", "b")),
        (lambda f: f.words("absent"), None),
        (lambda f: dict(f.section("inner").data), {"a": 1, "2": 3}),
        (lambda f: dict(f.section("absent").data), {}),
        (lambda f: f.section("inner").path("a"), "p.inner.a"),
        (lambda f: Fields({}).path("a"), "a"),
        (lambda f: (f.unstated("none", "absent"), f.unstated("none", "one")), (True, False)),
        (lambda f: (f.is_open("none"), f.is_open("one")), (False, False)),
    ],
)
def test_settings_are_read_by_their_type(read: Any, value: Any) -> None:
    """The first name that is present with a value; absent and null are None."""
    assert read(SETTINGS) == value


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda f: f.integer("yes"), "f: p.yes: 'True' is not a whole number (0 or more)"),
        (lambda f: f.integer("half"), "f: p.half: '0.5' is not a whole number (0 or more)"),
        (lambda f: f.integer("inf", least=1), "f: p.inf: 'inf' is not a whole number (1 or more)"),
        (lambda f: f.integer("minus"), "f: p.minus: -1 is out of range (0 or more)"),
        (lambda f: f.integer("whole", most=7), "f: p.whole: 8 is out of range (0 to 7)"),
        (lambda f: f.integer("zero", least=1, most=7), "f: p.zero: 0 is out of range (1 to 7)"),
        (lambda f: f.count("zero"), "f: p.zero: 0 is out of range (1 to 1000000)"),
        (
            lambda f: f.required("absent", "none", least=2),
            "f: p.absent: missing (needs absent or none, a whole number of at least 2)",
        ),
        (lambda f: f.number("yes"), "f: p.yes: 'True' is not a number"),
        (lambda f: f.number("inf"), "f: p.inf: 'inf' is not a number"),
        (lambda f: f.number("word"), "f: p.word: 'Full' is not a number"),
        (lambda f: f.flag("one"), "f: p.one: '1' is not true or false"),
        (lambda f: f.text("one"), "f: p.one: '1' is not a string"),
        (lambda f: f.choice("word", ["a", "b"]), "f: p.word: 'Full' is not known (one of a, b)"),
        (lambda f: f.items("word"), "f: p.word: 'Full' is not a list"),
        (lambda f: f.words("list"), "f: p.list: holds something else than strings"),
        (lambda f: f.section("list"), "f: p.list: '[1, 2]' is not a mapping"),
    ],
)
def test_settings_of_another_type_are_refused(read: Any, said: str) -> None:
    """Where it stands, what it is, and what would be valid."""
    plain = said.replace(" (", "; valid: ").rstrip(")") if said.endswith(")") else said
    assert refused(read, SETTINGS) in (said, plain)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"my_parallel_size": 2}, ["my_parallel_size"]),
        ({"my_parallel_size": 1}, []),  # a degree of 1 is off
        ({"zero_quantized_weights": 1}, ["zero_quantized_weights"]),  # a switch of 1 is on
        ({"my_parallel": True, "offload_it": False, "shard": None, "recompute": "none"}, ["my_parallel"]),
        ({"offload_a": 0, "offload_b": -1, "offload_c": "", "offload_d": [], "offload_e": {}}, []),
        ({"eval_micro_batch": 2, "save_sharded": True, "hidden_size": 8}, []),
    ],
)
def test_what_may_change_a_layout_and_is_not_read_is_named(data: dict[str, Any], named: list[str]) -> None:
    """Keys that are on, concern a layout, and were never asked for."""
    fields = Fields(data)
    assert fields.unread() == named
    for key in named:
        fields.raw(key)
    assert fields.unread() == []


def test_unread_keys_of_sections_are_named_once() -> None:
    """With their path, unless the launcher's own names were told already."""
    fields, notes = Fields({"a": {"tensor_parallel": 2}, "pipeline": 3}), list[str]()
    fields.section("a")
    fields.section("a")
    fields.name_unread(notes)
    fields.name_unread(notes)
    assert notes == ["not read, though it may change the layout: pipeline, a.tensor_parallel"]


@pytest.mark.parametrize(
    ("value", "layers", "marks"),
    [
        (2, 5, [1, 0, 1, 0, 1]),
        (1, 2, [1, 1]),
        ("([0]*3+[1]*2)", 5, [0, 0, 0, 1, 1]),
        ("2*[0, 1]", 4, [0, 1, 0, 1]),
        ("'[1,(0)]'", 2, [1, 0]),
        ([1, 0], 2, [1, 0]),
        (10_000, 2, [1, 0]),
        ("[0]*10000", 10_000, [0] * 10_000),
    ],
)
def test_patterns_of_layers(value: object, layers: int, marks: list[int]) -> None:
    """Every nth layer from the first, or a list that is added and repeated."""
    assert per_layer_pattern(value, layers, key="k") == [bool(mark) for mark in marks]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "k: 0 is out of range (1 to 10000)"),
        (10_001, "k: 10001 is out of range (1 to 10000)"),
        ("[0]*2", "k: 2 entries for 3 layers (one entry per layer)"),
        ("3", "k: pattern '3' is not a list (like ([0]*3+[1]*58))"),
        ("[0]*[1]", "k: cannot read pattern '[0]*[1]' (like ([0]*3+[1]*58))"),
        ("2*3", "k: cannot read pattern '2*3' (like ([0]*3+[1]*58))"),
        ("[0]+1", "k: cannot read pattern '[0]+1' (like ([0]*3+[1]*58))"),
        ("[0]*10001", "k: cannot read pattern '[0]*10001' (like ([0]*3+[1]*58))"),
        ("[0, 0]*5001", "k: cannot read pattern '[0, 0]*5001' (like ([0]*3+[1]*58))"),
        ("[True]*3", "k: cannot read pattern '[True]*3' (like ([0]*3+[1]*58))"),
        ("[0]-[1]", "k: cannot read pattern '[0]-[1]' (like ([0]*3+[1]*58))"),
    ],
)
def test_patterns_that_are_none(value: object, said: str) -> None:
    """What is wrong and how one looks."""
    assert refused(per_layer_pattern, value, 3, key="k") == said


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({}, (None, None)),
        ({"bf16": True}, (Precision.BF16, None)),
        ({"fp16": True}, (Precision.FP16, None)),
        ({"bf16": True, "fp8": "hybrid"}, (Precision.FP8, Fp8Recipe.DELAYED)),
        ({"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"}, (Precision.MXFP8, Fp8Recipe.MX)),
        ({"fp8": "e4m3", "fp8_recipe": "blockwise"}, (Precision.FP8, Fp8Recipe.BLOCKWISE)),
        ({"bf16": True, "fp4": "e2m1"}, (Precision.NVFP4, None)),
        ({"bf16": True, "fp8": False}, (Precision.BF16, None)),
    ],
)
def test_number_formats_of_megatron(data: dict[str, Any], found: tuple[Any, Any]) -> None:
    """The narrowest one that is on."""
    assert megatron_precision(Fields(data), fp8_key="fp8", fp4_key="fp4") == found


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"bf16": True, "fp16": True}, "fp16: bf16 and fp16 exclude each other"),
        ({"fp8": "e4m3", "fp4": "e2m1"}, "fp4: fp8 and fp4 exclude each other"),
        ({"fp8": "e4m3", "fp8_recipe": "x"}, "fp8_recipe: 'x' is not known"),
    ],
)
def test_number_formats_that_exclude_each_other(data: dict[str, Any], said: str) -> None:
    """One is chosen at a time."""
    assert refused(megatron_precision, Fields(data), fp8_key="fp8", fp4_key="fp4").startswith(said)


def test_what_a_launch_derives() -> None:
    """Schedules by stages and chunks, exact quotients, modules in order and once."""
    assert [looped_schedule(*one) for one in ((1, 1), (1, 2), (2, 1), (2, 2))] == [
        Schedule.NONE,
        Schedule.NONE,
        Schedule.ONE_F_ONE_B,
        Schedule.INTERLEAVED,
    ]
    assert (divided(12, 4, "x"), divided(12, 1, "x"), divided(0, 4, "x")) == (3, 12, 0)
    assert refused(divided, 13, 4, "x") == "x: 13 is not a multiple of 4"
    assert refused(divided, 13, 0, "x") == "x: 13 is not a multiple of 0"
    assert selective(["mlp", "core_attn", "mlp"], key="k").modules == ("core_attn", "mlp")
    assert refused(selective, ["mlp", "x"], key="k").startswith("k: recompute module 'x' is not modelled")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("+8", 8), ("-8", -8), ("'8'", 8), ("1" * 18, int("1" * 18)), ("1" * 19, float("1" * 19)), ("1.5", 1.5),
        (".5", 0.5), ("1.", 1.0), ("1e-5", 1e-5), ("1e1234", "1e1234"), ("True", True), ("false", False), ("None", None),
        ("null", None), ("a b", "a b"), ('"x"', "x"), ("", ""),
    ],
)  # fmt: skip
def test_words_are_numbers_truths_or_themselves(text: str, value: object) -> None:
    """Quotes around a word are none of it."""
    assert scalar(text) == value and type(scalar(text)) is type(value)
