"""Answers before the judge: the best layout, its near-ties, and neighbours that the search passed over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from checks.judge import agrees, judge
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.stage_counts import layer_kinds
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.run_preset import preset_of_run
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import Schedule, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout, VirtualStage
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.workload import Workload

FASTER = 0.001
"""Share by which a neighbour has to be judged faster than the answer to count against it."""
HELD = ("tp", "cp", "ep", "etp", "micro_batch")
"""Axes that a neighbour in pp or vp shares with the answer."""
MOVES = 48
"""Moves of a block that are judged, at most: evenly taken from all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question: a model on a cluster under a framework, perhaps with another batch or stack of layers."""

    workload: Workload
    cluster: ClusterSpec
    framework: Framework

    @classmethod
    def named(
        cls, model: str, cluster: str, framework: Framework = Framework.MEGATRON, batch: int | None = None
    ) -> Asked:
        """Look up a built-in model and cluster."""
        workload = override_training(load_workload(model), global_batch=batch)
        return cls(workload=workload, cluster=load_cluster(cluster), framework=framework)

    @property
    def cost(self) -> CostModel:
        """The prices of the question."""
        return build_cost_model(
            self.workload.model,
            self.workload.training,
            self.cluster,
            framework=self.framework,
            preset=preset_of_run(self.framework, None, self.cluster, None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A layout with its price and its judgement."""

    what: str
    layout: Layout
    price_s: float
    judged_s: float

    @property
    def error(self) -> float:
        """Price over judgement, less one."""
        return self.price_s / self.judged_s - 1.0

    @property
    def agrees(self) -> bool:
        """Whether price and judgement agree."""
        return agrees(self.price_s, self.judged_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """What came of a question: the answer and its near-ties, and neighbours judged faster; empty where nothing fits."""

    sentences: tuple[Sentence, ...]
    faster: tuple[Sentence, ...]
    neighbours: int

    @property
    def good(self) -> bool:
        """Whether all prices agree and no neighbour is faster."""
        return all(sentence.agrees for sentence in self.sentences) and not self.faster


def hear(asked: Asked, *, moves: int = MOVES) -> Hearing:
    """Solve a question; judge the answer, its near-ties and its neighbours, of these so many moves of a block."""
    plan = solve_layout(asked.workload, asked.cluster, SolveOptions(framework=asked.framework))
    if plan.layout is None or plan.estimate is None:
        return Hearing(sentences=(), faster=(), neighbours=0)
    cost = asked.cost
    found = [("answer", plan.layout, plan.estimate)]
    found += [(f"near-tie {k}", other.layout, other.estimate) for k, other in enumerate(plan.alternatives, 1)]
    sentences = tuple(
        Sentence(
            what=what, layout=layout, price_s=price.step_time_s, judged_s=judge(cost, layout, asked.framework)
        )
        for what, layout, price in found
    )
    others = list(neighbours(asked, cost, plan.layout, moves=moves))
    limit = sentences[0].judged_s * (1.0 - FASTER)
    return Hearing(
        sentences=sentences,
        faster=tuple(other for other in others if other.judged_s < limit),
        neighbours=len(others),
    )


def neighbours(asked: Asked, cost: CostModel, answer: Layout, *, moves: int) -> Iterator[Sentence]:
    """Judge the answer's neighbours that can be launched and fit."""
    for what, layout in [
        *moved_blocks(cost.model, answer, moves),
        *other_pipelines(asked, answer),
    ]:
        judgement = judge_layout(asked.workload, asked.cluster, layout, framework=asked.framework)
        if judgement.verdict in (Verdict.FITS, Verdict.BORDERLINE) and judgement.estimate:
            judged_s = judge(cost, layout, asked.framework)
            yield Sentence(
                what=what, layout=layout, price_s=judgement.estimate.step_time_s, judged_s=judged_s
            )


def other_pipelines(asked: Asked, answer: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield the best layouts with half, twice, one more or one less pp or vp, the axes of ``HELD`` as in the answer."""
    held = {axis: (getattr(answer, axis),) for axis in HELD}
    pairs = [(pp, answer.vp) for pp in _around(answer.pp)] + [(answer.pp, vp) for vp in _around(answer.vp)]
    for pp, vp in pairs:
        space = SpaceOptions(fix=held | {"pp": (pp,), "vp": (vp,)})
        options = SolveOptions(framework=asked.framework, space=space, top=1)
        layout = solve_layout(asked.workload, asked.cluster, options).layout
        if layout is not None:
            yield f"pp {pp} vp {vp}", layout


def _around(degree: int) -> list[int]:
    return sorted({degree // 2, 2 * degree, degree - 1, degree + 1} - {0, degree})


def moved_blocks(model: ModelSpec, answer: Layout, moves: int) -> Iterator[tuple[str, Layout]]:
    """Yield the answer with one block moved from one virtual stage to another."""
    order = stages_in_order(answer)
    sizes = [stage.layers for stage in order]
    every = [(a, b) for a in range(len(sizes)) for b in range(len(sizes)) if a != b and sizes[a] > 1]
    for giver, taker in every[:: -(-len(every) // moves) or 1]:
        changed = list(sizes)
        changed[giver], changed[taker] = changed[giver] - 1, changed[taker] + 1
        yield f"block from {giver} to {taker}", recut(model, answer, changed)


def stages_in_order(layout: Layout) -> list[VirtualStage]:
    """Return the virtual stages in the order in which a micro-batch passes them."""
    back = layout.schedule in (Schedule.ZB_V, Schedule.DUALPIPE_V)
    return sorted(
        layout.stages, key=lambda stage: (stage.chunk, -stage.rank if back and stage.chunk else stage.rank)
    )


def recut(model: ModelSpec, layout: Layout, sizes: list[int]) -> Layout:
    """Return a layout whose virtual stages hold so many blocks, in the order in which a micro-batch passes them."""
    kinds_of_layers = layer_kinds(model).tolist()
    ends = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    cut = {}
    for stage, (start, end) in zip(stages_in_order(layout), pairwise(ends), strict=True):
        kinds = dict(Counter(model.runs[kind].name for kind in kinds_of_layers[start:end]))
        layers = sum(kinds.values())
        again = layers if stage.recomputed == stage.layers else min(stage.recomputed, layers)
        cut[stage.rank, stage.chunk] = replace(
            stage, layers=layers, kinds=kinds, recomputed=again, recomputed_kinds={}
        )
    return replace(layout, stages=tuple(cut[stage.rank, stage.chunk] for stage in layout.stages))
