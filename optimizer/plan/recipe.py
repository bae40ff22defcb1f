"""The rule-of-thumb layout that a practitioner would write down, as a baseline for the optimum.

The rules follow Narayanan et al. 2021 (arXiv:2104.04473, section 3: tensor parallelism up to the node, then the
fewest pipeline stages, then data parallelism) as refined by Grattafiori et al. 2024 (arXiv:2407.21783, section 3.3:
context parallelism for long sequences, mesh order by bandwidth need, about one layer per pipeline chunk).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from math import log
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.parameters import block_parameters, model_parameters
from layoutopt.optimizer.frameworks.abilities import PP_BEFORE_DP, Abilities
from layoutopt.optimizer.frameworks.registry import abilities_of, parse_release
from layoutopt.optimizer.solve.judge import judge_if_runs
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.solve.plan import Judgement, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.workload import Workload


STATE_BYTES = 16
"""Weights, gradients and Adam state per parameter in mixed precision (Rajbhandari et al. 2020, section 3.1)."""

MAX_TENSOR = 8
"""Tensor degree of the largest published models; wider groups multiply slices too small to be efficient."""

TOKENS_PER_CONTEXT_RANK = 8192
"""No context parallelism at 8K, 16 ranks at 128K (Grattafiori et al. 2024, section 3.3.2)."""

MICRO_BATCHES = (1, 2)
"""Smallest micro-batch that keeps GPUs efficient; 2 where 1 can't be launched."""

LEAST_STEPS = (4, 1)
"""Micro-batches that every stage should see, and what must do: with fewer than 4, and fewer than stages, bubble and exposed
data-parallel traffic eat the step (the recipe's own check, m >= p and enough work per GPU to hide the traffic)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The layout the rules lead to, its verdict and price, and the reasons step by step.

    ``judgement`` is None when no layout of the recipe can be launched and fits.
    """

    judgement: Judgement | None
    steps: tuple[str, ...]


def recipe_layout(workload: Workload, cluster: ClusterSpec, options: SolveOptions) -> Recipe:
    """Follow the rules of thumb; the first layout that can be launched and fits is the recipe's."""
    rules = _Rules(workload, cluster, options)
    judgement = next((found for layout in rules.layouts() if (found := rules.fitting(layout))), None)
    return Recipe(judgement=judgement, steps=rules.steps(judgement))


class _Rules:
    """The rules applied to one question."""

    def __init__(self, workload: Workload, cluster: ClusterSpec, options: SolveOptions) -> None:
        self._workload, self._cluster, self._options = workload, cluster, options
        release = parse_release(options.framework, options.space.software)
        self._abilities: Abilities = abilities_of(options.framework, release)
        self._tp = self.tensor_degrees()
        self._cp = self.context_degree()

    def layouts(self) -> Iterator[PartialLayout]:
        """Yield layouts in the recipe's order of preference.

        Recomputation comes last; before it the fewest stages, then more chunks per stage. A wider tensor group
        than the rule asks for is used only when nothing else can be launched.
        """
        for least, again, tp, pp in product(LEAST_STEPS, (False, True), self._tp, self.pipeline_degrees()):
            # A recipe leaves no GPU idle: whoever follows it by hand takes degrees that divide.
            if self._cluster.gpu_count % (tp * self._cp * pp):
                continue
            choices = product(self.chunks(pp), MICRO_BATCHES, self.expert_degrees(tp, pp), self.orders())
            for vp, micro_batch, ep, order in choices:
                if self._micro_batches(tp, pp, micro_batch) >= max(least, pp):
                    yield self._layout(tp, pp, vp, micro_batch, ep, order, again)

    def fitting(self, layout: PartialLayout) -> Judgement | None:
        """Judge a layout with its most even stages and return the verdict if it can be launched and fits."""
        return judge_if_runs(layout, self._workload, self._cluster, self._options)

    def steps(self, judgement: Judgement | None) -> tuple[str, ...]:
        """Say what each rule led to."""
        if judgement is None:
            return ("no layout of the recipe can be launched and fits",)
        layout, length = judgement.layout, self._workload.training.sequence_length
        gb = STATE_BYTES * _dense_parameters(self._workload.model) / 1e9
        stages = "stage" if layout.pp == 1 else "stages"
        schedule = f", {layout.vp} chunks each" if layout.vp > 1 else ""
        joins = "the NVLink domain" if self._cluster.nvlink_domain > 1 else "the node"
        inside = "inside" if layout.ep <= self._cluster.nvlink_domain else "beyond"
        experts = [f"experts over {layout.ep} ranks, {inside} the NVLink domain"]
        experts = experts if self._workload.model.is_moe else []
        zero = f" with ZeRO-{layout.zero}" if layout.zero else ""
        return (
            f"tensor parallel {layout.tp} inside {joins} of {self._cluster.tensor_domain}: "
            f"{gb:,.0f} GB of states",
            f"{layout.pp} pipeline {stages}, the fewest that fit and see {LEAST_STEPS[0]} micro-batches{schedule}",
            f"context parallel {layout.cp} at {length:,} tokens",
            *experts,
            f"data parallel {layout.dp}{zero} on the rest, {layout.micro_batches} micro-batches",
            f"micro-batch {layout.micro_batch}, recomputation {layout.recompute.granularity.value}",
            f"mesh {layout.mesh_order}, innermost first",
        )

    def _micro_batches(self, tp: int, pp: int, micro_batch: int) -> int:
        """Return the micro-batches that a stage sees in a step."""
        copies = self._cluster.gpu_count // (tp * self._cp * pp)
        return self._workload.training.global_batch // (copies * micro_batch)

    def tensor_degrees(self) -> list[int]:
        """Return the least degree at which the states fit one GPU, at most 8 and the NVLink domain; then wider."""
        if "tp" in self._abilities.fixed_axes:
            return [1]
        widest = min(self._cluster.tensor_domain, MAX_TENSOR, self._cluster.gpu_count)
        degrees = [
            tp for tp in divisors(self._cluster.gpu_count, widest) if self._workload.model.heads % tp == 0
        ]
        states = STATE_BYTES * _dense_parameters(self._workload.model)
        wide = [tp for tp in degrees if states / tp <= self._cluster.gpu.memory_bytes]
        # Where no group holds the states alone, stages have to help: the widest first, which leaves them the least.
        return wide or degrees[::-1]

    def context_degree(self) -> int:
        """Return the widest degree that divides the GPUs and leaves a rank the tokens that one rank handles well."""
        wanted = max(self._workload.training.sequence_length // TOKENS_PER_CONTEXT_RANK, 1)
        if "cp" in self._abilities.fixed_axes:
            return 1
        return max(divisors(self._cluster.gpu_count, wanted))

    def pipeline_degrees(self) -> tuple[int, ...]:
        """Return the degrees that divide the GPUs and give every stage a layer, the fewest stages first."""
        if "pp" in self._abilities.fixed_axes:
            return (1,)
        return divisors(self._cluster.gpu_count, self._workload.model.layers)

    def chunks(self, pp: int) -> list[int]:
        """Return chunks per stage, as many as layers allow first: interleaving shrinks the bubble."""
        if pp == 1 or "vp" in self._abilities.fixed_axes:
            return [1]
        layers = self._workload.model.layers
        # Stages are even when the chunks divide the layers, or the layers with embedding and head counted as one each.
        slots = {count for total in (layers, layers + 2) for count in divisors(total) if count % pp == 0}
        return [count // pp for count in sorted(slots, reverse=True)] or [1]

    def expert_degrees(self, tp: int, pp: int) -> list[int]:
        """Return expert degrees, the widest inside the NVLink domain first, then beyond it."""
        moe = self._workload.model.moe
        if moe is None or "ep" in self._abilities.fixed_axes:
            return [1]
        stage = self._cluster.gpu_count // pp
        degrees = [ep for ep in divisors(moe.experts) if stage % ep == 0]
        inside = [ep for ep in degrees if ep <= self._cluster.nvlink_domain]
        return inside[::-1] + [ep for ep in degrees if ep not in inside]

    def orders(self) -> list[str]:
        """Return the mesh order with pipeline inside data parallelism, then the framework's own."""
        known = self._abilities.orders
        return list(dict.fromkeys([PP_BEFORE_DP, known[0]] if PP_BEFORE_DP in known else known[:1]))

    def _layout(
        self, tp: int, pp: int, vp: int, micro_batch: int, ep: int, order: str, again: bool
    ) -> PartialLayout:
        return PartialLayout(
            tp=tp,
            cp=self._cp,
            pp=pp,
            vp=vp,
            ep=ep,
            # The least: ZeRO-1 sends no more than data parallelism does (Rajbhandari et al. 2020, section 7.2.1).
            zero=min(filter(None, self._abilities.zero), default=0),
            micro_batch=micro_batch,
            recompute=Recompute(granularity=Granularity.FULL) if again else Recompute(),
            mesh_order=order,
        )


def _dense_parameters(model: ModelSpec) -> float:
    """Count what tensor parallelism has to split: everything but routed experts, which have an axis of their own."""
    experts = sum(run.count * block_parameters(model, run).expert for run in model.runs)
    return model_parameters(model) - experts


SOURCE = "NVIDIA-NeMo/Megatron-Bridge"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLayout:
    """One published layout: for which model, GPU, number of GPUs and number format, and its degrees.

    ``recompute`` lists modules, or is ``full``.
    """

    model: str
    gpu: str
    gpus: int
    precision: str
    name: str
    tp: int = 1
    cp: int = 1
    pp: int = 1
    vp: int = 1
    ep: int = 1
    micro_batch: int = 1
    recompute: tuple[str, ...] | str = ()

    def partial(self) -> PartialLayout:
        """Return it as a layout with the rest left open; data parallelism takes the rest of the GPUs, with ZeRO-1."""
        modules = () if isinstance(self.recompute, str) else tuple(self.recompute)
        full = self.recompute == "full"
        granularity = Granularity.FULL if full else Granularity.SELECTIVE if modules else Granularity.NONE
        return PartialLayout(
            tp=self.tp,
            cp=self.cp,
            pp=self.pp,
            vp=self.vp,
            ep=self.ep,
            zero=1,
            micro_batch=self.micro_batch,
            recompute=Recompute(granularity=granularity, modules=modules),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorLayout:
    """A published layout on the cluster in question: where it is from, and its verdict and price there."""

    name: str
    gpus: int
    judgement: Judgement


def vendor_layout(workload: Workload, cluster: ClusterSpec, options: SolveOptions) -> VendorLayout | None:
    """Return the published layout for the model, GPU and number format, of the nearest size that runs and fits here.

    None where none is known or runs.
    """
    wanted = (workload.model.name, cluster.gpu.name, workload.training.precision.value)
    known = [one for one in published_layouts() if (one.model, one.gpu, one.precision) == wanted]
    # By the ratio of sizes: 8 GPUs are as far from 64 as 512 are.
    for one in sorted(known, key=lambda entry: abs(log(entry.gpus / cluster.gpu_count))):
        judged = judge_if_runs(one.partial(), workload, cluster, options)
        if judged is not None:
            return VendorLayout(name=f"{SOURCE} {one.name}", gpus=one.gpus, judgement=judged)
    return None


@cache
def published_layouts() -> tuple[PublishedLayout, ...]:
    """Read the package's table; raises TypeError for a key that a layout does not have."""
    entries = packaged("plan", "vendor_recipes")
    assert {field.name for field in fields(PublishedLayout)} >= {name for entry in entries for name in entry}
    return tuple(PublishedLayout(**entry) for entry in entries)
