"""torchtitan's batch: in sequences per data-parallel rank (eras A and B) or in tokens (era C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.launch.common import divided

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.reading import Fields
    from layoutopt.optimizer.specs.partial_layout import PartialLayout

TOKENS_KEY = "num_tokens_per_microbatch_per_dp_rank"
LOCAL_BATCH = 8
SEQUENCE_LENGTH = 2048
MICRO_BATCH_TOKENS = 16384
"""Defaults of ``TrainingConfig`` (torchtitan/config/configs.py and job_config.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tokens per sequence, sequences per micro-batch, micro-batches per step, sequences per step."""

    sequence_length: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    global_batch: int | None = None


def read_batch(
    training: Fields,
    parallelism: Fields,
    era: str,
    layout: PartialLayout,
    notes: list[str],
    *,
    inherited: bool,
) -> Batch:
    """Read the batch of an era.

    ``inherited``: the configuration changes another one, whose values stand where it states none, so that
    the class defaults do not apply and what is absent is unknown. ``notes`` get the defaults that were taken.
    """
    if not inherited:
        _note_defaults(training, era, notes)
    if era == "C":
        return _in_tokens(training, parallelism, layout, inherited)
    return _in_sequences(training, parallelism, layout, inherited)


def _note_defaults(training: Fields, era: str, notes: list[str]) -> None:
    """Say which class defaults stand in for what the configuration does not state."""
    defaults: dict[tuple[str, ...], int] = {("max_context_length", "seq_len"): SEQUENCE_LENGTH}
    if era == "C":
        defaults[(TOKENS_KEY,)] = MICRO_BATCH_TOKENS
    else:
        defaults[("local_batch_size", "batch_size")] = LOCAL_BATCH
    for keys, value in defaults.items():
        if training.integer(*keys) is None:
            notes.append(f"assumed: {training.path(keys[0])} {value}, the class default")


def _in_tokens(training: Fields, parallelism: Fields, layout: PartialLayout, inherited: bool) -> Batch:
    sequence = training.integer("max_context_length", "seq_len", least=1)
    tokens = training.integer(TOKENS_KEY, least=1)
    if inherited and (sequence is None or tokens is None):
        return Batch(sequence_length=sequence)
    sequence, tokens = sequence or SEQUENCE_LENGTH, tokens or MICRO_BATCH_TOKENS
    micro_batch = divided(tokens, sequence, f"training.{TOKENS_KEY} over max_context_length")
    piped = layout.pp is not None and layout.pp > 1
    per_pass = parallelism.integer("num_pp_microbatches", least=1) if piped else None
    micro_batches: int | None
    batch: int | None
    step = training.integer("num_tokens_per_train_step", least=-1)
    if step is not None and step > 0:
        batch = divided(step, sequence, "training.num_tokens_per_train_step over max_context_length")
        micro_batches = _accumulated(batch, micro_batch, per_pass, layout.dp)
    else:
        micro_batches = per_pass or 1
        batch = (per_pass or 1) * micro_batch * layout.dp if layout.dp else None
    return Batch(
        sequence_length=sequence, micro_batch=micro_batch, micro_batches=micro_batches, global_batch=batch
    )


def _accumulated(batch: int, micro_batch: int, per_pass: int | None, dp: int | None) -> int | None:
    """Micro-batches per step: those of one pipeline pass times gradient accumulation."""
    if dp is None:
        return per_pass
    total = divided(batch, micro_batch * dp, "global batch over micro-batch*dp")
    if per_pass is not None:
        divided(total, per_pass, "micro-batches per step over num_pp_microbatches")
    return total


def _in_sequences(training: Fields, parallelism: Fields, layout: PartialLayout, inherited: bool) -> Batch:
    sequence = training.integer("seq_len", least=1) or (None if inherited else SEQUENCE_LENGTH)
    local = training.integer("local_batch_size", "batch_size", least=1)
    local = local or (None if inherited else LOCAL_BATCH)
    batch = training.integer("global_batch_size", least=-1)
    if local is None:
        return Batch(sequence_length=sequence, global_batch=batch if batch and batch > 0 else None)
    piped = layout.pp is not None and layout.pp > 1
    micro_batch = (parallelism.integer("pipeline_parallel_microbatch_size", least=1) or 1) if piped else local
    per_pass = divided(local, micro_batch, "training.local_batch_size over pipeline_parallel_microbatch_size")
    if batch is None or batch <= 0:
        batch = local * layout.dp if layout.dp else None
    passes = None
    if batch is not None and layout.dp:
        passes = divided(batch, local * layout.dp, "training.global_batch_size over local_batch_size*dp")
    return Batch(
        sequence_length=sequence,
        micro_batch=micro_batch,
        micro_batches=None if passes is None else passes * per_pass,
        global_batch=batch,
    )
