"""torchtitan's pipeline split: how many stages, which layers on each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.reading import Fields

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
        why = "is not modelled" if name.lower() in NOT_MODELLED else "is not known"
        raise parallelism.fail(
            "pipeline_parallel_schedule",
            f"{shorten(name)!r} {why}",
            "of 1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble, DualPipeV",
        )
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
    per_rank = 1 if schedule in SINGLE_STAGE else 2
    if per_stage is not None and layers is not None:
        stages = -(-(layers + first + last) // per_stage)
        if stages % pp:
            raise parallelism.fail(
                "pipeline_parallel_layers_per_stage",
                f"{stages} stages are not a multiple of pp={pp}",
                "torchtitan refuses it",
            )
        per_rank = stages // pp
    return per_rank, [] if layers is None else _automatic(parallelism, layers, pp * per_rank, first, last)


def _weight(parallelism: Fields, key: str) -> int:
    value = parallelism.integer(key)
    return 1 if value is None else value


def _automatic(parallelism: Fields, layers: int, stages: int, first: int, last: int) -> list[int]:
    base, extra = divmod(layers + first + last, stages)
    if base == 0 or max(first, last) > base:
        raise parallelism.fail(
            "pipeline_parallel_degree", f"{layers} layers leave some of {stages} stages empty"
        )
    counts = [base + (index < extra) for index in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def _listed(parallelism: Fields, parts: list[object], pp: int, layers: int | None) -> tuple[int, list[int]]:
    key = "module_fqns_per_model_part"
    counts, seen = [], []
    for part in parts:
        names = part if isinstance(part, list) else [part]
        inside = [
            int(match[1]) for name in names if isinstance(name, str) and (match := _LAYER.fullmatch(name))
        ]
        counts.append(len(inside))
        seen += inside
    if not counts or len(counts) % pp:
        raise parallelism.fail(key, f"{len(counts)} parts are not a multiple of pp={pp}")
    if seen != list(range(len(seen))) or (layers is not None and len(seen) != layers):
        raise parallelism.fail(
            key, "layers are missing, repeated or out of order", "layers.0, layers.1, ... in stage order"
        )
    return len(counts) // pp, counts
