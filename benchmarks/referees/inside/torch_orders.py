"""Runs in the referee's environment: the orders of torch's own pipeline schedules, and what each rank holds in them.

python torch_orders.py < shapes.jsonl > findings.jsonl

A shape is ``{"schedule": .., "pp": .., "vp": .., "m": ..}``; a finding the most chunks that every rank holds at once:
forwards that ran and whose backward, or weight gradient where that runs apart, did not.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

from torch.distributed.pipelining import schedules

CLASSES = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zb-v": schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": schedules.ScheduleDualPipeV,
}
FREES = ("FULL_BACKWARD", "BACKWARD_WEIGHT")


def order_of(shape: dict[str, Any]) -> dict[int, list[Any]]:
    """Operations of every rank; None where it waits."""
    pp, vp, kind = shape["pp"], shape["vp"], CLASSES[shape["schedule"]]
    stages = [
        mock.MagicMock(
            group_size=pp, num_stages=pp * vp, stage_index=chunk * pp, group_rank=0, has_backward=True
        )
        for chunk in range(vp)
    ]
    schedule = kind(stages if vp > 1 else stages[0], n_microbatches=shape["m"])
    order: dict[int, list[Any]] = schedule.pipeline_order if vp > 1 else schedule._get_pipeline_order()  # noqa: SLF001
    return order


def single(action: Any) -> list[Any]:
    """The operations of an action: a pair's both."""
    return list(getattr(action, "sub_actions", None) or [action])


def most_held(order: list[Any]) -> int:
    """The most chunks held at once."""
    held = most = 0
    for action in order:
        for one in single(action) if action is not None else ():
            name = one.computation_type.name
            held += (name == "FORWARD") - (name in FREES)
            most = max(most, held)
    return most


def main() -> None:
    """Answer line by line."""
    for line in sys.stdin.read().splitlines():
        order = order_of(json.loads(line))
        print(json.dumps([most_held(order[rank]) for rank in sorted(order)]), flush=True)


if __name__ == "__main__":
    main()
