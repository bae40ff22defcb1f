"""The layout that a vendor publishes for a model, as a baseline for the optimum."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from math import log
from typing import TYPE_CHECKING

from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.document import plain_yaml
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import Granularity, Verdict

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Judgement, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

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
    for one in sorted(known, key=lambda entry: abs(log(entry.gpus / cluster.gpu_count))):
        judged = _judge(one, workload, cluster, options)
        if judged is not None:
            return VendorLayout(name=f"{SOURCE} {one.name}", gpus=one.gpus, judgement=judged)
    return None


def _judge(
    one: PublishedLayout, workload: Workload, cluster: ClusterSpec, options: SolveOptions
) -> Judgement | None:
    try:
        whole = one.partial().complete(workload, cluster)
    except InputError:
        return None
    if not whole.stages:
        return None
    judged = judge_layout(
        workload,
        cluster,
        whole,
        framework=options.framework,
        software=options.space.software,
        run_options=options.space.run,
        cost=options.cost,
    )
    runs = judged.verdict in (Verdict.FITS, Verdict.BORDERLINE) and judged.estimate is not None
    return judged if runs else None


@cache
def published_layouts() -> tuple[PublishedLayout, ...]:
    """Read the package's table; raises TypeError for a key that a layout does not have."""
    text = (
        resources.files("layoutopt.optimizer.plan")
        .joinpath("vendor_recipes.yaml")
        .read_text(encoding="utf-8")
    )
    entries = plain_yaml(text)
    assert {field.name for field in fields(PublishedLayout)} >= {name for entry in entries for name in entry}
    return tuple(PublishedLayout(**entry) for entry in entries)
