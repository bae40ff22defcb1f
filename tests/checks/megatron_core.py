"""Questions that the megatron-core package answers without a GPU, and our own answers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from checks.agreement import random_model
from checks.orders_of_torch import held
from layoutopt.optimizer.interop.megatron.write import layout_string
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Schedule
from layoutopt.optimizer.topology.counting import ranks_of_groups
from layoutopt.optimizer.topology.mesh import mesh_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.topology.groups import GroupBatch

Question = dict[str, dict[str, Any]]
GROUPS = ("tp", "cp", "dp", "pp", "dp_cp", "etp", "ep", "edp")
STRINGS, MESHES = 60, 60


def questions() -> list[Question]:
    """Shapes of pipelines, layout strings of random stages, random meshes in both orders."""
    return [*_shapes(), *_strings(), *_meshes()]


def _shapes() -> Iterator[Question]:
    for vp, pp, m in itertools.product((1, 2, 3, 4), (2, 4, 8), (1, 2, 3, 5)):
        yield {"held": {"pp": pp, "vp": vp, "m": m * pp}}


def _strings() -> Iterator[Question]:
    rng = np.random.default_rng(5)
    for _ in range(STRINGS):
        pp, vp = int(rng.integers(2, 6)), int(rng.integers(1, 4))
        layers = rng.integers(0, 4, pp * vp)
        layers[rng.integers(pp * vp)] += 1
        model = random_model(rng, max(int(layers.sum()), 2))
        layers[-1] += model.layers - layers.sum()
        schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
        stages = tuple(build_stages(model, layers.tolist(), pp, schedule, model.mtp_layers))
        layout = Layout(pp=pp, vp=vp, schedule=schedule, stages=stages)
        asked = {
            "pp": pp,
            "layers": model.layers,
            "mtp": model.mtp_layers,
            "listed": [s.layers for s in stages],
        }
        yield {"stages": {"string": layout_string(layout), **asked}}


def _meshes() -> Iterator[Question]:
    rng = np.random.default_rng(6)
    for place in range(MESHES):
        tp, cp, dp, pp = (int(2 ** rng.integers(0, 4)) for _ in range(4))
        etp = int(rng.choice([n for n in (1, 2, 4, 8) if tp % n == 0]))
        ep = int(rng.choice([n for n in (1, 2, 4, 8, 16) if (tp * cp * dp) % (n * etp) == 0]))
        order = (DEFAULT_MESH_ORDER, "tp-cp-ep-pp-dp")[place % 2]
        if order != DEFAULT_MESH_ORDER and tp * cp * dp // (ep * etp) != dp:
            order = DEFAULT_MESH_ORDER  # Megatron-LM refuses experts across the pipeline
        yield {"groups": {"order": order, "tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": ep, "etp": etp}}


def answer(question: Question) -> Any:
    """What we say."""
    ((kind, asked),) = question.items()
    if kind == "held":
        return held({"schedule": "interleaved" if asked["vp"] > 1 else "1f1b", **asked})
    if kind == "stages":
        return asked["listed"]
    degrees = {name: np.array([asked[name]]) for name in ("tp", "cp", "dp", "pp", "ep", "etp")}
    groups = mesh_groups(asked["order"], **degrees)
    return {name: members(getattr(groups, name)) for name in GROUPS}


def members(group: GroupBatch) -> list[int]:
    """The group of the first rank."""
    digits = tuple((int(digit.size[0]), int(digit.stride[0])) for digit in group.digits)
    first: list[int] = ranks_of_groups(digits, int(group.ranks[0]))[0].tolist()
    return first
