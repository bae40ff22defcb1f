"""What torchtitan's configuration says of stages, schedule and batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.launch.common import divided
from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.reading import Fields
    from layoutopt.optimizer.specs.partial_layout import PartialLayout


TOKENS_KEY = "num_tokens_per_microbatch_per_dp_rank"
LOCAL_BATCH = 8
SEQUENCE_LENGTH = 2048
MICRO_BATCH_TOKENS = 16384
"""Defaults of ``TrainingConfig`` (torchtitan/config/configs.py and job_config.py)."""


OPEN_AXES = {
    "tensor_parallel_degree": ("tp", "sp", "dp"),
    "enable_sequence_parallel": ("sp",),
    "context_parallel_degree": ("cp", "dp"),
    "pipeline_parallel_degree": ("pp", "vp", "schedule", "split", "dp", "zero"),
    "pipeline_parallel_schedule": ("vp", "schedule", "split"),
    "pipeline_parallel_layers_per_stage": ("vp", "split"),
    "module_fqns_per_model_part": ("vp", "split"),
    "expert_parallel_degree": ("ep", "etp"),
    "expert_tensor_parallel_degree": ("etp",),
    "data_parallel_replicate_degree": ("dp", "hsdp_shard", "zero"),
    "data_parallel_shard_degree": ("dp", "hsdp_shard", "zero"),
    "fsdp_reshard_after_forward": ("zero",),
}
"""Settings and the axes of a layout that nobody knows while the setting is open."""


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
    # Micro-batches are tokens over length: with one of them in another file nothing but the length is known.
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
    # -1, the default, is one pass of every rank, without accumulation (job_config.py).
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


SCHEDULES = {
    "1f1b": Schedule.ONE_F_ONE_B,
    "gpipe": Schedule.GPIPE,
    "interleaved1f1b": Schedule.INTERLEAVED,
    "zbvzerobubble": Schedule.ZB_V,
    "dualpipev": Schedule.DUALPIPE_V,
}
"""Schedules of torch.distributed.pipelining that are modelled, by torchtitan's case-insensitive names."""

NOT_MODELLED = ("loopedbfs", "interleavedzerobubble", "pipelineschedulesingle", "pipelineschedulemulti")
SINGLE_STAGE = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
_LAYER = re.compile(r"layers\.(\d{1,5})")


def read_schedule(parallelism: Fields, pp: int) -> Schedule:
    """Return the schedule; 1F1B is torchtitan's default.

    Raises ``InputError`` for schedules that are unknown or not modelled.
    """
    if pp == 1:
        return Schedule.NONE
    name = parallelism.text("pipeline_parallel_schedule") or "1F1B"
    schedule = SCHEDULES.get(name.lower())
    if schedule is None:
        what = f"{shorten(name)!r} is not {'modelled' if name.lower() in NOT_MODELLED else 'known'}"
        known = "of 1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble, DualPipeV"
        raise parallelism.fail("pipeline_parallel_schedule", what, known)
    return schedule


def read_split(parallelism: Fields, pp: int, schedule: Schedule, layers: int | None) -> tuple[int, list[int]]:
    """Return virtual stages per rank and the layers of each stage in model order (empty: unknown without a
    model).

    Follows ``_get_pipeline_metadata`` and ``generate_llm_fqn_per_model_part`` of
    pytorch/torchtitan torchtitan/distributed/pipeline_parallel.py. Raises ``InputError`` for stages that the ranks
    can't share.
    """
    if pp == 1:
        return 1, [] if layers is None else [layers]
    parts = parallelism.items("module_fqns_per_model_part")
    if parts is not None:
        return _listed(parallelism, parts, pp, layers)
    first = _weight(parallelism, "pipeline_parallel_first_stage_less_layers")
    last = _weight(parallelism, "pipeline_parallel_last_stage_less_layers")
    per_stage = parallelism.integer("pipeline_parallel_layers_per_stage", least=1)
    if per_stage is not None and layers is None:
        return 0, []  # the number of stages follows from the model's layers
    # Without a number of layers per stage torchtitan gives looped and V-shaped schedules two stages a rank.
    per_rank = 1 if schedule in SINGLE_STAGE else 2
    if per_stage is not None and layers is not None:
        stages = -(-(layers + first + last) // per_stage)
        if stages % pp:
            what, key = f"{stages} stages are not a multiple of pp={pp}", "pipeline_parallel_layers_per_stage"
            raise parallelism.fail(key, what, "torchtitan refuses it")
        per_rank = stages // pp
    return per_rank, [] if layers is None else _automatic(parallelism, layers, pp * per_rank, first, last)


def _weight(parallelism: Fields, key: str) -> int:
    value = parallelism.integer(key)
    return 1 if value is None else value  # 0 is stated: an end that weighs nothing


def _automatic(parallelism: Fields, layers: int, stages: int, first: int, last: int) -> list[int]:
    # Embedding and head weigh as many layers as first and last say, and earlier stages take what does not divide.
    base, extra = divmod(layers + first + last, stages)
    if base == 0 or max(first, last) > base:
        what = f"{layers} layers leave some of {stages} stages empty"
        raise parallelism.fail("pipeline_parallel_degree", what)
    counts = [base + (index < extra) for index in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def _listed(parallelism: Fields, parts: list[object], pp: int, layers: int | None) -> tuple[int, list[int]]:
    key = "module_fqns_per_model_part"
    counts, seen = [], []
    for part in parts:
        names = part if isinstance(part, list) else [part]
        matches = [_LAYER.fullmatch(name) for name in names if isinstance(name, str)]
        inside = [int(match[1]) for match in matches if match]
        counts.append(len(inside))
        seen += inside
    if not counts or len(counts) % pp:
        raise parallelism.fail(key, f"{len(counts)} parts are not a multiple of pp={pp}")
    if seen != list(range(len(seen))) or (layers is not None and len(seen) != layers):
        what = "layers are missing, repeated or out of order"
        raise parallelism.fail(key, what, "layers.0, layers.1, ... in stage order")
    return len(counts) // pp, counts
