"""The model file: its keys, their checks, and the conversion to ``ModelSpec`` and ``TrainingSpec``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from layoutopt.optimizer.specs.architecture_file import ArchitectureFile  # noqa: TC001  # pydantic reads it
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.file_model import FileModel
from layoutopt.optimizer.specs.kinds import (
    NAME,
    SOURCE,
    SWITCH,
    FieldKind,
    choice,
    quantity,
    unknown_word,
    whole,
    word,
)
from layoutopt.optimizer.specs.model import AdapterSpec, OptimizerSpec, TrainingSpec
from layoutopt.optimizer.specs.printable import as_name
from layoutopt.optimizer.specs.units import COUNT, NUMBER, TOKENS, shown
from layoutopt.optimizer.specs.vocabulary import (
    AdapterMethod,
    AdapterTarget,
    Fp8Recipe,
    FrozenPart,
    MuonSharing,
    Optimizer,
    Precision,
)
from layoutopt.optimizer.specs.workload import Workload, outside_batch, rounding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import StrEnum

    from layoutopt.optimizer.specs.file_model import Finding, PartialFields

GRAD_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "bf16+fp32": 6}
"""``bf16+fp32``: 16-bit gradients beside their fp32 accumulation (deepspeedai/DeepSpeed runtime/bf16_optimizer.py)."""

MOMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
MASTER_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "none": 0}
"""``bf16`` stores what the 16-bit weights lack of 32 bits; ``none`` updates the weights themselves."""

OPTIMIZER_WORDS = {
    "adam": Optimizer.ADAMW,
    "sgd-momentum": Optimizer.SGD,
    "adamw-8bit": Optimizer.ADAM_8BIT,
    "adam8bit": Optimizer.ADAM_8BIT,
}
"""Further words for optimizers, those of other tools among them."""


class BatchFile(FileModel):
    """Sequence length and batch, shared by the run and its phases."""

    sequence_length: Annotated[int, whole(dimension=TOKENS)] = Field(description="tokens per sequence")
    global_batch: Annotated[int | None, whole(tokens_key="global_batch_tokens")] = Field(
        default=None, description="sequences per optimizer step (or give global_batch_tokens)"
    )
    global_batch_tokens: Annotated[float | None, quantity(TOKENS)] = Field(
        default=None,
        description="tokens per optimizer step, rounded to whole sequences (or give global_batch)",
    )
    total_tokens: Annotated[float | None, quantity(TOKENS)] = Field(
        default=None, description="tokens of the whole run or phase"
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that the batch is given once and holds a sequence."""
        batch, tokens, length = given.global_batch, given.global_batch_tokens, given.sequence_length
        if not given.stated & {"global_batch", "global_batch_tokens"}:
            yield ("global_batch",), "missing", "sequences per optimizer step, or global_batch_tokens"
        # Tokens that are rounded, as the 16M of a paper are, are no whole number of sequences: the nearest one is meant.
        if tokens and length and (problem := outside_batch(tokens, length)):
            yield ("global_batch_tokens",), *problem
        elif tokens and length and batch and round(tokens / length) != batch:
            what = f"{tokens:.0f} tokens contradict global_batch {batch} x sequence_length {length}"
            yield ("global_batch_tokens",), what, f"{batch * length}, or only one of the two keys"

    def sequences(self) -> int:
        """Return the global batch in sequences."""
        return self.global_batch or round((self.global_batch_tokens or 0) / self.sequence_length)

    def rounding_notes(self, key: str) -> Iterator[str]:
        """Say that the tokens of the batch under ``key`` were rounded, where they were."""
        if self.global_batch_tokens is not None:
            yield from rounding(f"{key}.global_batch_tokens", self.global_batch_tokens, self.sequence_length)


class PhaseFile(BatchFile):
    """A part of the run with its own sequence length and batch, such as a long-context stage."""

    name: Annotated[str, NAME] = Field(description="name of the phase in reports")


class OptimizerFile(FileModel):
    """What updates the weights: its kind, and what Muon needs to be told."""

    kind: Annotated[Optimizer, word(Optimizer, OPTIMIZER_WORDS)] = Field(
        default=Optimizer.ADAMW, description="what turns gradients into updates"
    )
    distribution: Annotated[MuonSharing | None, word(MuonSharing)] = Field(
        default=None,
        description="Muon: how ranks share a matrix's orthogonalisation; default owner with ZeRO, else duplicated",
    )
    steps: Annotated[int, whole(most=100)] = Field(
        default=5, description="Muon: steps of the Newton-Schulz iteration"
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that keys of Muon come with Muon."""
        for key in ("distribution", "steps"):
            if key in given.stated and given.kind not in (None, Optimizer.MUON):
                yield (key,), f"kind is {given.kind}", "only with kind muon"

    def spec(self) -> OptimizerSpec:
        """Convert to the form that the other rooms use."""
        return OptimizerSpec(kind=self.kind, distribution=self.distribution, steps=self.steps)


def _optimizer_mapping(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _words(kind: type[StrEnum], name: str) -> FieldKind:
    """Read a list of words of one enumeration, in its order."""

    def read(value: Any) -> tuple[Any, ...]:
        """Check every word."""
        # An empty list would be an adapter on nothing; nothing frozen is said by leaving the key out.
        if not isinstance(value, list) or not value:
            raise input_error(f"{shown(value)} is no list of {name}", f"a list of {', '.join(kind)}")
        for item in value:
            if item not in list(kind):
                raise unknown_word(item, kind)
        # In one order, each once: two files that list the same words are one workload, with one digest.
        return tuple(word for word in kind if word in value)

    return FieldKind(read=read, schema={"type": "array", "items": {"enum": list(kind)}})


TARGETS = _words(AdapterTarget, "targets")
PARTS = _words(FrozenPart, "parts")


class AdapterFile(FileModel):
    """Low-rank adapters: all other weights, embedding and output matrix among them, are frozen."""

    method: Annotated[AdapterMethod, word(AdapterMethod)] = Field(
        default=AdapterMethod.LORA, description="frozen weights in 16 bits, or the blocks' in 4"
    )
    rank: Annotated[int, whole(most=4096)] = Field(description="inner width of every adapter")
    targets: Annotated[tuple[AdapterTarget, ...], TARGETS] = Field(
        default=tuple(AdapterTarget), description="which matrices of a layer have an adapter"
    )

    def spec(self) -> AdapterSpec:
        """Convert to the form that the other rooms use."""
        return AdapterSpec(method=self.method, rank=self.rank, targets=self.targets)


def _or_kind(schema: dict[str, Any]) -> None:
    # Before 2.9 pydantic wrapped a reference that has other keys beside it into ``allOf``.
    reference = schema.pop("$ref", None) or schema.pop("allOf", [{}])[0].get("$ref")
    schema["anyOf"] = [{"enum": list(Optimizer)}, {"$ref": reference}]


class TrainingFile(BatchFile):
    """The numbers of the training run that decide cost; what is left out is the framework preset's."""

    precision: Annotated[Precision, word(Precision)] = Field(
        description="number format of matrix multiplications"
    )
    fp8_recipe: Annotated[Fp8Recipe | None, word(Fp8Recipe)] = Field(
        default=None, description="how FP8 scales are chosen; only with precision fp8"
    )
    grad_dtype: Annotated[int | None, choice(GRAD_BYTES)] = Field(default=None, description="gradient buffer")
    moment_dtype: Annotated[int | None, choice(MOMENT_BYTES)] = Field(
        default=None, description="moments of the optimizer"
    )
    master_dtype: Annotated[int | None, choice(MASTER_BYTES)] = Field(
        default=None, description="master weights"
    )
    pad_vocab: Annotated[bool | None, SWITCH] = Field(
        default=None, description="round the vocabulary up to a multiple of 128 x tp"
    )
    flash: Annotated[bool, SWITCH] = Field(default=True, description="fused attention that stores no scores")
    dropout: Annotated[bool, SWITCH] = Field(default=False, description="dropout masks are stored")
    fused_loss: Annotated[bool | None, SWITCH] = Field(
        default=None, description="cross entropy that keeps only 16-bit logits"
    )
    loss_chunks: Annotated[int | None, whole(most=100_000)] = Field(
        default=None, description="parts of the tokens whose logits exist one after another; 1: all at once"
    )
    fp8_param_gather: Annotated[bool | None, SWITCH] = Field(
        default=None, description="keep and gather 8-bit weights alone; only with precision fp8 or mxfp8"
    )
    moe_imbalance: Annotated[float | None, quantity(NUMBER, least=1.0)] = Field(
        default=None, description="tokens of the fullest expert rank over the mean"
    )
    adapter: AdapterFile | None = Field(
        default=None, description="low-rank adapters, which alone are trained"
    )
    frozen: Annotated[tuple[FrozenPart, ...], PARTS] = Field(
        default=(), description="parts whose weights stay as they are"
    )
    optimizer: Annotated[OptimizerFile, BeforeValidator(_optimizer_mapping)] = Field(
        default=OptimizerFile(),
        description="what updates the weights: its kind, or {kind, distribution, steps}",
        json_schema_extra=_or_kind,
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check the batch and that an FP8 recipe comes with FP8."""
        yield from super().check(given)
        if given.fp8_recipe and given.precision and given.precision is not Precision.FP8:
            yield ("fp8_recipe",), f"precision is {given.precision}", "only with precision fp8"
        if given.fp8_param_gather and given.precision not in (None, Precision.FP8, Precision.MXFP8):
            yield ("fp8_param_gather",), f"precision is {given.precision}", "only with precision fp8 or mxfp8"
        if given.frozen and given.adapter:
            yield ("frozen",), "adapters freeze every part", "frozen or adapter"
        if given.adapter and given.optimizer and given.optimizer.kind is Optimizer.MUON:
            what = "muon's work is of all matrices, which adapters freeze"
            others = ", ".join(kind for kind in Optimizer if kind is not Optimizer.MUON)
            yield ("optimizer",), what, f"with adapters: {others}"
        in_matrices = set(given.frozen or ()) - {FrozenPart.EMBEDDING, FrozenPart.OUTPUT, FrozenPart.ROUTER}
        if in_matrices and given.optimizer and given.optimizer.kind is Optimizer.MUON:
            what = f"muon's work is of all matrices, {', '.join(sorted(in_matrices))} among them"
            yield ("frozen",), what, "with muon: embedding, router, output"

    def spec(self) -> TrainingSpec:
        """Convert to the form that the other rooms use."""
        return TrainingSpec(
            global_batch=self.sequences(),
            grad_bytes=self.grad_dtype,
            moment_bytes=self.moment_dtype,
            master_bytes=self.master_dtype,
            optimizer=self.optimizer.spec(),
            adapter=self.adapter.spec() if self.adapter else None,
            **{name: getattr(self, name) for name in SAME},
        )


SAME = (
    *("sequence_length", "total_tokens", "precision", "fp8_recipe", "pad_vocab", "flash", "dropout"),
    *("fused_loss", "loss_chunks", "fp8_param_gather", "moe_imbalance", "frozen"),
)
"""Fields that ``TrainingSpec`` has under the same name."""


def _frozen_findings(frozen: set[FrozenPart], architecture: Any) -> Iterator[Finding]:
    """Check that frozen parts are there, and that a matrix that is two parts is frozen as both."""
    place = ("training", "frozen")
    experts = frozen & {FrozenPart.EXPERTS, FrozenPart.ROUTER}
    if experts and architecture.moe is None:
        yield place, f"the model has no {min(experts)}", "experts and router only with architecture.moe"
    ends = frozen & {FrozenPart.EMBEDDING, FrozenPart.OUTPUT}
    if len(ends) == 1 and architecture.tied_embeddings:
        yield place, f"{min(ends)} alone, of tied embeddings", "embedding and output, which are one matrix"


class ModelFile(FileModel):
    """A model and how it is trained."""

    file_kind: ClassVar[str] = "model"
    architecture: ArchitectureFile = Field(description="the layers: layers, hidden, heads, vocab, ...")
    training: TrainingFile = Field(description="the run: sequence_length, global_batch, precision, ...")
    name: Annotated[str | None, NAME] = Field(
        default=None, description="name in reports; the file's if left out"
    )
    phases: list[PhaseFile] = Field(
        default=[], description="parts of the run in order, e.g. a long-context stage"
    )
    published_parameters: Annotated[float | None, quantity(COUNT)] = Field(
        default=None, description="parameter count that the authors state"
    )
    source: Annotated[tuple[str, ...], SOURCE] = Field(default=(), description="where the numbers come from")

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check what training and architecture must agree on."""
        training: Any = given.training
        positions = given.architecture.learned_positions if given.architecture else 0
        phases = [(("phases", i), phase) for i, phase in enumerate(given.phases or ())]
        parts = [(("training",), training), *phases]
        # A learned table has one row per position and ends; rotary angles go on for as long as a sequence does.
        for place, part in parts if positions else ():
            if part and part.sequence_length > positions:
                what = f"{part.sequence_length} is more than the model's {positions} learned positions"
                yield (*place, "sequence_length"), what, f"at most {positions}"
        if training and training.moe_imbalance and given.architecture and given.architecture.moe is None:
            yield ("training", "moe_imbalance"), "the model has no experts", "only with architecture.moe"
        only_experts = training and training.adapter and training.adapter.targets == (AdapterTarget.EXPERTS,)
        if only_experts and given.architecture and given.architecture.moe is None:
            what = "the model has no experts to adapt"
            allowed = "attention, mlp; experts only with architecture.moe"
            yield ("training", "adapter", "targets"), what, allowed
        if training and training.frozen and given.architecture:
            yield from _frozen_findings(set(training.frozen), given.architecture)

    def notes(self) -> dict[str, str]:
        """Return what is to be said of how the file was read, by the part that it is about."""
        parts = {"training": self.training, **{f"phases[{i}]": phase for i, phase in enumerate(self.phases)}}
        return {key: note for key, part in parts.items() for note in part.rounding_notes(key)}

    def workload(self, default_name: str) -> Workload:
        """Convert to a ``Workload``."""
        training = self.training.spec()
        phases = [
            replace(
                training,
                sequence_length=p.sequence_length,
                global_batch=p.sequences(),
                total_tokens=p.total_tokens,
            )
            for p in self.phases
        ]
        return Workload(
            model=self.architecture.spec(self.name or as_name(default_name), self.published_parameters),
            training=training,
            phases=tuple(phases),
            phase_names=tuple(phase.name for phase in self.phases),
        )
