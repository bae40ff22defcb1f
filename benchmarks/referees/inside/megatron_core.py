"""Runs in the referee's environment: parts of the megatron-core package that need no GPU, called directly.

python megatron_core.py < questions.jsonl > findings.jsonl

A question is ``{"held": {"pp", "vp", "m"}}``: the most chunks that every rank of its schedule holds at once, of
``get_schedule_table`` and ``get_pp_rank_microbatches``; ``{"stages": {"string", "pp", "layers", "mtp"}}``: the layers of
every virtual stage of a layout string, after ``validate_layer_layout``; or ``{"groups": {"order", "tp", "cp", "dp", ...}}``:
the groups of the first rank, of ``RankGenerator``. A finding is the answer, or ``{"error": text}``.
"""

# mypy: disable-error-code="misc,no-any-return"
from __future__ import annotations

import contextlib
import io
import json
import sys
import types
import warnings
from typing import Any
from unittest import mock


def held(shape: dict[str, Any]) -> list[int]:
    """Forwards that ran and whose backward did not, at most, rank by rank: warm-up, then one of each."""
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import schedules

    pp, vp, m = shape["pp"], shape["vp"], shape["m"]
    chunks = vp if vp > 1 else None
    most = []
    for rank in range(pp):
        with (
            mock.patch.object(parallel_state, "get_pipeline_model_parallel_world_size", lambda: pp),
            mock.patch.object(parallel_state, "get_pipeline_model_parallel_rank", lambda rank=rank: rank),
            mock.patch.object(
                parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: chunks
            ),
        ):
            total, _, warmup, remaining = schedules.get_pp_rank_microbatches(m, vp, pp)
        if len(schedules.get_schedule_table(m, vp, pp)) != total:
            raise ValueError("the table and the counts of the schedule differ")
        most.append(warmup + (remaining > 0))
    return most


def stages(asked: dict[str, Any]) -> list[int]:
    """Layers of every virtual stage, chunk by chunk."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    parsed = PipelineParallelLayerLayout(asked["string"], asked["pp"])
    parsed.validate_layer_layout(asked["layers"], asked["mtp"] or None)
    chunks = len(parsed.layout[0])
    return [
        parsed.layout[rank][chunk].count(LayerType.decoder)
        for chunk in range(chunks)
        for rank in range(asked["pp"])
    ]


def groups(asked: dict[str, Any]) -> dict[str, list[int]]:
    """The first rank's dense groups, and those of its experts."""
    from megatron.core.parallel_state import RankGenerator

    degrees = {name: asked[name] for name in ("tp", "cp", "dp", "pp")}
    ranks = degrees["tp"] * degrees["cp"] * degrees["dp"]
    dense = RankGenerator(**degrees, ep=1, order=asked["order"])
    own = {
        "tp": asked["etp"],
        "ep": asked["ep"],
        "dp": ranks // (asked["etp"] * asked["ep"]),
        "pp": degrees["pp"],
        "cp": 1,
    }
    sparse = RankGenerator(**own, order=asked["order"])
    found = {name: dense.get_ranks(name)[0] for name in ("tp", "cp", "dp", "pp")}
    found["dp_cp"] = dense.get_ranks("dp-cp")[0]
    return found | {
        name: sparse.get_ranks(part)[0] for name, part in (("etp", "tp"), ("ep", "ep"), ("edp", "dp"))
    }


ANSWERS = {"held": held, "stages": stages, "groups": groups}


def main() -> None:
    """Answer line by line."""
    warnings.simplefilter("ignore")
    sys.modules.setdefault("transformer_engine_torch", types.ModuleType("transformer_engine_torch"))
    for line in sys.stdin.read().splitlines():
        ((kind, asked),) = json.loads(line).items()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                answer = ANSWERS[kind](asked)
        except (AssertionError, ValueError, RuntimeError) as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
