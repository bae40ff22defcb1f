"""Layouts in files and on the command line: keys, checks, and conversion to ``PartialLayout``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from layoutopt.optimizer.specs.canonical import layout_from_plain
from layoutopt.optimizer.specs.document import Document, plain_scalar
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.file_model import FileModel, validate
from layoutopt.optimizer.specs.kinds import SWITCH, FieldKind, as_kind_error, unknown_word, whole, word
from layoutopt.optimizer.specs.layer_runs import MAX_LAYERS
from layoutopt.optimizer.specs.layout import Recompute, Switches, VirtualStage
from layoutopt.optimizer.specs.layout_string import StageItems, parse_layout_string
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.units import shown
from layoutopt.optimizer.specs.vocabulary import (
    OP_MODULE,
    RECOMPUTE_MODULES,
    Axis,
    CpComm,
    CudaGraph,
    Dispatcher,
    Granularity,
    Precision,
    Saver,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.specs.file_model import Finding, PartialFields

MAX_DEGREE = 100_000_000
MAX_CHUNKS = 10_000
MAX_TEXT = 20_000
MODULE_NAMES = (*RECOMPUTE_MODULES, OP_MODULE)
RECOMPUTE_FORMS = (
    "none, full, full:N (N layers per virtual stage), uniform:K (groups of K layers), selective, "
    "or modules joined by +"
)
SHORT_KEYS = {
    "mb": "micro_batch", "mbs": "micro_batch", "m": "micro_batches", "t": "tp", "p": "pp", "v": "vp",
    "hsdp": "hsdp_shard", "order": "mesh_order",
}  # fmt: skip
"""Shorter spellings on the command line."""

Degree = Annotated[int | None, whole(most=MAX_DEGREE)]


def _modules(names: list[Any], words: tuple[str, ...] = ()) -> tuple[str, ...]:
    for name in names:
        if name not in MODULE_NAMES:
            raise unknown_word(name, (*words, *MODULE_NAMES))
    # A set in fact: ``mlp+core_attn`` and ``core_attn+mlp`` are one layout, with one price and one digest.
    return tuple(sorted(set(names)))


@as_kind_error
def _recompute_mapping(value: Any) -> Any:
    """Turn ``full:4``, ``uniform:4`` or ``core_attn+mlp`` into the mapping that it stands for."""
    if isinstance(value, dict):
        return value
    head, _, tail = value.partition(":") if isinstance(value, str) else ("", "", "")
    if head == "full":
        return {"granularity": "full"} | ({"layers": tail} if tail else {})
    if head == "uniform" and tail:
        return {"granularity": "full", "group": tail}
    if head in ("none", "selective") and not tail:
        return {"granularity": head}
    names = (tail if head == "selective" else head).split("+")
    if not isinstance(value, str) or names == [""]:
        raise input_error(f"{shown(value)} is not a recomputation", RECOMPUTE_FORMS)
    modules = _modules(names, ("none", "full", "full:N", "selective"))
    return {"granularity": "selective", "modules": list(modules)}


def _read_modules(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise input_error(f"{shown(value)} is not a list", ", ".join(MODULE_NAMES))
    return _modules(value)


MODULES = FieldKind(read=_read_modules, schema={"type": "array", "items": {"enum": list(MODULE_NAMES)}})


class RecomputeFile(FileModel):
    """Activation recomputation."""

    granularity: Annotated[Granularity, word(Granularity)] = Field(description="none, selective or full")
    modules: Annotated[tuple[str, ...], MODULES] = Field(
        default=(), description="modules of selective recomputation"
    )
    layers: Annotated[int | None, whole(least=0, most=MAX_LAYERS)] = Field(
        default=None, description="layers that every virtual stage recomputes in full; left out: all"
    )
    group: Annotated[int, whole(most=MAX_LAYERS)] = Field(
        default=1, description="layers that full recomputation repeats from one saved input"
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that modules come with selective recomputation and layers with full."""
        wanted = [("modules", bool(given.modules), Granularity.SELECTIVE)]
        wanted += [("layers", given.layers is not None, Granularity.FULL)]
        wanted += [("group", (given.group or 1) > 1, Granularity.FULL)]
        for key, is_given, kind in wanted:
            if given.granularity and is_given and given.granularity is not kind:
                yield (key,), f"granularity is {given.granularity}", f"only with {kind}"

    def spec(self) -> Recompute:
        """Convert to ``Recompute``; selective alone means core attention, as in Megatron-LM."""
        selective = self.granularity is Granularity.SELECTIVE
        modules = self.modules or (("core_attn",) if selective else ())
        # Groups of one layer are every layer from its own input, which is written 0: one layout, one spelling.
        group = self.group if self.group > 1 else 0
        return Recompute(granularity=self.granularity, modules=modules, group=group)


SAVER_NAMES = tuple(saver.value for saver in Saver)


def _read_savers(value: Any) -> tuple[Saver, ...]:
    """Read ``none``, names joined by ``+``, or a list of names."""
    listed = [] if value == "none" else value.split("+") if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise input_error(f"{shown(value)} is not a list", ", ".join(SAVER_NAMES))
    for name in listed:
        if name not in SAVER_NAMES:
            raise unknown_word(name, ("none", *SAVER_NAMES))
    return tuple(sorted({Saver(name) for name in listed}))


SAVERS = FieldKind(read=_read_savers, schema={"type": "array", "items": {"enum": list(SAVER_NAMES)}})


class SwitchesFile(FileModel):
    """Launch switches; those left out are as the trainer's preset has them."""

    ep_overlap: Annotated[bool | None, SWITCH] = Field(
        default=None, description="expert traffic of one micro-batch beside the compute of another (1F1B)"
    )
    delay_wgrad: Annotated[bool | None, SWITCH] = Field(
        default=None, description="the experts' weight gradients beside the next exchange"
    )
    shared_expert_overlap: Annotated[bool | None, SWITCH] = Field(
        default=None, description="expert traffic beside the shared experts"
    )
    dispatcher: Annotated[Dispatcher | None, word(Dispatcher)] = Field(
        default=None, description="how tokens reach their experts"
    )
    tp_overlap: Annotated[bool | None, SWITCH] = Field(
        default=None, description="tensor-parallel traffic beside compute (user buffers, asynchronous TP)"
    )
    dp_overlap: Annotated[bool | None, SWITCH] = Field(
        default=None, description="gradient reductions beside compute"
    )
    param_overlap: Annotated[bool | None, SWITCH] = Field(
        default=None, description="parameter gathers beside compute"
    )
    cp_kind: Annotated[CpComm | None, word(CpComm)] = Field(
        default=None, description="how context parallelism communicates"
    )
    cuda_graph: Annotated[CudaGraph | None, word(CudaGraph)] = Field(
        default=None, description="how much is replayed from CUDA graphs"
    )
    loss_chunks: Annotated[int | None, whole(most=100_000)] = Field(
        default=None, description="parts of the tokens whose logits exist one after another"
    )
    fp8_param_gather: Annotated[bool | None, SWITCH] = Field(
        default=None, description="weights kept and gathered in 8 bits alone"
    )
    compiled: Annotated[bool | None, SWITCH] = Field(
        default=None, description="kernels fused by a compiler (torch.compile)"
    )

    def spec(self) -> Switches:
        """Convert to ``Switches``."""
        return Switches(**{name: getattr(self, name) for name in type(self).model_fields})


def _read_counts(value: Any) -> dict[str, int]:
    # By ``type``: True is an int of Python's, and ``{dense: yes}`` counts nothing.
    if not isinstance(value, dict) or not all(type(item) is int and item >= 0 for item in value.values()):
        allowed = "numbers of layers by kind: {dense: 3, moe: 1}"
        raise input_error(f"{shown(value)} does not count layers", allowed)
    return dict(value)


COUNTS = FieldKind(
    read=_read_counts, schema={"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
)
Layers = Annotated[int, whole(least=0, most=MAX_LAYERS)]


class StageFile(FileModel):
    """One virtual stage."""

    rank: Annotated[int | None, whole(least=0, most=MAX_DEGREE)] = Field(
        default=None, description="pipeline rank; default the place in the list modulo pp"
    )
    chunk: Annotated[int | None, whole(least=0, most=MAX_CHUNKS)] = Field(
        default=None, description="chunk on that rank; default the place in the list over pp"
    )
    layers: Layers = Field(description="decoder layers")
    kinds: Annotated[dict[str, int], COUNTS] = Field(default={}, description="layers by kind")
    recomputed: Annotated[int | None, whole(least=0, most=MAX_LAYERS)] = Field(
        default=None,
        description="layers recomputed in full; default as recompute says, if no stage states it",
    )
    recomputed_kinds: Annotated[dict[str, int], COUNTS] = Field(
        default={}, description="recomputed layers by kind; left out: the first ones"
    )
    embedding: Annotated[bool | None, SWITCH] = Field(
        default=None, description="holds the input embedding; default the first of the list"
    )
    head: Annotated[bool | None, SWITCH] = Field(
        default=None, description="holds the output head; default the last of the list"
    )
    mtp: Layers = Field(default=0, description="multi-token-prediction layers")

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that kinds add up and no more layers are recomputed than there are."""
        if given.layers is None:
            return
        if given.kinds and sum(given.kinds.values()) != given.layers:
            yield ("kinds",), f"hold {sum(given.kinds.values())} layers", f"layers, {given.layers}, in all"
        if given.recomputed is not None and given.recomputed > given.layers:
            what = f"{given.recomputed} of only {given.layers} layers"
            yield ("recomputed",), what, f"at most {given.layers}"

    def spec(self, index: int, last: int, pp: int) -> VirtualStage:
        """Convert entry ``index`` of a list that ends with ``last``."""
        return VirtualStage(
            rank=index % pp if self.rank is None else self.rank,
            chunk=index // pp if self.chunk is None else self.chunk,
            layers=self.layers,
            kinds=self.kinds,
            recomputed=self.recomputed or 0,
            recomputed_kinds=self.recomputed_kinds,
            embedding=index == 0 if self.embedding is None else self.embedding,
            head=index == last if self.head is None else self.head,
            mtp=self.mtp,
        )


@as_kind_error
def _stage_list(value: Any) -> Any:
    """Turn a layout string or numbers of layers into the list of stages that they stand for."""
    if isinstance(value, str):
        return [{"layers": items.layers, "mtp": items.mtp} for items in parse_layout_string(value, key="")]
    if isinstance(value, list):
        return [item if isinstance(item, dict) else {"layers": item} for item in value]
    return value


def _read_order(value: Any) -> str:
    axes = value.lower().split("-") if isinstance(value, str) else []
    if sorted(axes) != sorted(Axis):
        allowed = "tp, cp, ep, dp, pp joined by -, innermost first"
        raise input_error(f"{shown(value)} is not a mesh order", allowed)
    return "-".join(axes)


ORDER = FieldKind(
    read=_read_order, schema={"type": "string", "examples": ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]}
)


def _or_text(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": "string"}, *schema.get("anyOf", [])]


def _or_text_or_counts(schema: dict[str, Any]) -> None:
    _or_text(schema)
    schema["anyOf"].insert(1, {"type": "array", "items": {"type": "integer", "minimum": 0}})


class LayoutFile(FileModel):
    """A parallel layout; what is left out is derived from the workload and the cluster."""

    file_kind: ClassVar[str] = "layout"
    tp: Degree = Field(default=None, description="tensor-parallel degree")
    sp: Annotated[bool | None, SWITCH] = Field(
        default=None, description="sequence parallelism; default on if tp > 1"
    )
    cp: Degree = Field(default=None, description="context-parallel degree")
    pp: Degree = Field(default=None, description="pipeline-parallel degree")
    vp: Annotated[int | None, whole(most=MAX_CHUNKS)] = Field(
        default=None, description="virtual stages per rank"
    )
    ep: Degree = Field(default=None, description="expert-parallel degree")
    etp: Degree = Field(default=None, description="expert-tensor-parallel degree")
    dp: Degree = Field(default=None, description="data-parallel degree; default GPUs / (tp cp pp)")
    zero: Annotated[int | None, whole(least=0, most=3)] = Field(
        default=None, description="ZeRO stage: 0 none, 1 optimizer, 2 gradients, 3 weights (FSDP)"
    )
    hsdp_shard: Degree = Field(default=None, description="ranks per shard group; default the whole group")
    micro_batch: Degree = Field(default=None, description="sequences per micro-batch; default 1")
    micro_batches: Degree = Field(
        default=None, description="micro-batches per step; default from the global batch"
    )
    recompute: Annotated[RecomputeFile | None, BeforeValidator(_recompute_mapping)] = Field(
        default=None, description=RECOMPUTE_FORMS, json_schema_extra=_or_text
    )
    schedule: Annotated[Schedule | None, word(Schedule)] = Field(
        default=None, description="pipeline schedule"
    )
    mesh_order: Annotated[str | None, ORDER] = Field(default=None, description="axes, innermost first")
    precision: Annotated[Precision | None, word(Precision)] = Field(
        default=None, description="default the workload's"
    )
    savers: Annotated[tuple[Saver, ...] | None, SAVERS] = Field(
        default=None, description="memory savers, a list or joined by +; default none"
    )
    switches: SwitchesFile | None = Field(default=None, description="launch switches; default the preset's")
    idle_gpus: Annotated[int | None, whole(least=0, most=MAX_DEGREE)] = Field(
        default=None, description="GPUs of the cluster that the layout leaves out; default none"
    )
    stages: Annotated[list[StageFile] | None, BeforeValidator(_stage_list)] = Field(
        default=None,
        description="virtual stages, chunk-major: Megatron-LM layout string, layers of each, or stages",
        json_schema_extra=_or_text_or_counts,
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check the shard group and the length of the stage list."""
        if given.hsdp_shard and given.zero == 0:
            yield ("hsdp_shard",), "zero is 0", "only with zero 1, 2 or 3"
        if given.stages and given.pp and given.vp and len(given.stages) != given.pp * given.vp:
            what = f"lists {len(given.stages)} virtual stages"
            yield ("stages",), what, f"pp {given.pp} x vp {given.vp} = {given.pp * given.vp}"
        if given.schedule is Schedule.NONE and given.pp and given.pp > 1:
            allowed = ", ".join(s for s in Schedule if s is not Schedule.NONE)
            yield ("schedule",), f"none with pp {given.pp}", allowed

    def partial(self) -> PartialLayout:
        """Convert to the form that ``complete`` fills in."""
        recompute = self.recompute
        own = type(self).model_fields.keys() - {"recompute", "stages", "switches"}
        stated = {name: getattr(self, name) for name in own}
        return PartialLayout(
            recompute=recompute.spec() if recompute else None,
            recompute_layers=recompute.layers if recompute else None,
            switches=self.switches.spec() if self.switches else None,
            **self._stages(),
            **stated,
        )

    def _stages(self) -> dict[str, Any]:
        """Return ``split`` if only the content of the stages is given, else ``stages``."""
        listed = self.stages or []
        if not listed:
            return {}
        if all(stage.recomputed is None and not stage.kinds for stage in listed):
            return {"split": tuple(StageItems(layers=stage.layers, mtp=stage.mtp) for stage in listed)}
        # The place in the list says the rank only with pp: Megatron-LM lists chunk after chunk, ranks within each.
        last, pp = len(listed) - 1, self.pp or 1
        return {"stages": tuple(stage.spec(index, last, pp) for index, stage in enumerate(listed))}


def read_layout(document: Document) -> PartialLayout:
    """Read a layout file, or the ``layout`` of a plan with the GPUs that the plan leaves idle.

    What a plan states was written by ``solve``: there a number of another kind is no other way of writing it, but wrong.
    """
    stated = document.data.get("layout")
    if not isinstance(stated, dict):
        return validate(LayoutFile, document).partial()
    # Only a plan has inputs; a file with a ``layout`` of somebody's own writes degrees as it likes ("8", 8.0).
    if isinstance(document.data.get("inputs"), dict):
        layout_from_plain(stated, file=document.file, path=("layout",), unknown_allowed=True)
    layout = validate(LayoutFile, document, path=("layout",)).partial()
    idle = document.data.get("idle_gpus")
    return replace(layout, idle_gpus=idle) if type(idle) is int and idle > 0 else layout


def read_layout_text(text: str) -> PartialLayout:
    """Read ``tp=8,pp=16,recompute=full:4``; raises ``InputError`` with every problem and the nearest key."""
    if len(text) > MAX_TEXT:
        raise input_error("is too long", f"at most {MAX_TEXT} characters", key="layout")
    data: dict[str, Any] = {}
    problems = []
    for item in re.split(r"[,\s]+", text.strip(", \n\t")):
        key, equals, value = item.partition("=")
        name = SHORT_KEYS.get(key.lower(), key.lower())
        if not equals or not value:
            what = f"{shown(item)} is not key=value"
            problems.append(Problem(what=what, key="layout", allowed="tp=8,pp=16,zero=1"))
        elif name in SwitchesFile.model_fields:
            switches = data.setdefault("switches", {})
            if name in switches:
                problems.append(Problem(what="is given twice", key=name, allowed="one value"))
            switches[name] = _text_value(name, value)
        elif name in data:
            problems.append(Problem(what="is given twice", key=name, allowed="one value"))
        else:
            data[name] = _text_value(name, value)
    # Both kinds of fault at once: a misspelt pair must not hide a wrong value behind it.
    try:
        partial = validate(LayoutFile, Document(data, "")).partial()
    except InputError as error:
        raise InputError(*problems, *error.problems) from None
    if problems:
        raise InputError(*problems)
    return partial


_ON_OFF = tuple(name for name in SwitchesFile.model_fields if name.endswith(("overlap", "wgrad", "gather")))
"""Switches that are on or off."""


def _text_value(name: str, value: str) -> Any:
    """Read a value of the command line, where 1 and 0 also mean on and off."""
    if (name == "sp" or name in _ON_OFF) and value in ("0", "1"):
        return value == "1"
    if name == "stages" and re.fullmatch(r"\d+(/\d+)*", value):
        return [int(part[:9]) for part in value.split("/")]  # longer ones are out of range however they end
    return value if name in ("recompute", "schedule", "stages") else plain_scalar(value)
