"""Judge a given layout: can it be launched, does it fit, what does it cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.collectives import collectives
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import CostKind, build_cost_model
from layoutopt.optimizer.cost.run_facts import RunFacts
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of, parse_release
from layoutopt.optimizer.frameworks.releases import date_remarks
from layoutopt.optimizer.solve.plan import Judgement
from layoutopt.optimizer.solve.run_preset import preset_of_run
from layoutopt.optimizer.space.check import advise_layout, check_layout, with_own_split
from layoutopt.optimizer.space.context import RunOptions, make_context
from layoutopt.optimizer.space.effective import with_stages
from layoutopt.optimizer.space.requirement import broken_requirements, parse_requirement
from layoutopt.optimizer.space.rows import schedule_of
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import Verdict

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import MemoryEstimate
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

BORDERLINE = 0.95
"""From this share of usable memory on, a layout is called borderline."""


def memory_verdict(memory: MemoryEstimate) -> Verdict:
    """Compare the fullest rank with what the GPU leaves to tensors."""
    if memory.peak_bytes > memory.capacity_bytes:
        return Verdict.DOES_NOT_FIT
    return Verdict.BORDERLINE if memory.peak_bytes > memory.borderline_bytes else Verdict.FITS


def judge_layout(
    workload: Workload,
    cluster: ClusterSpec,
    layout: PartialLayout | Layout,
    *,
    framework: Framework = Framework.MEGATRON,
    software: str | None = None,
    run_options: RunOptions | None = None,
    cost: CostKind = CostKind.FULL,
    preset: FrameworkPreset | None = None,
    require: tuple[str, ...] = (),
    gpu_hour_cost: float | None = None,
) -> Judgement:
    """Return the verdict on a layout with every reason; a layout that can be priced is, even when invalid.

    ``preset`` replaces the framework's own, where a launch file states its switches. ``require`` are comparisons that the
    layout has to meet (``parse_requirement``), ``gpu_hour_cost`` is the price in those about cost.

    Raises InputError when the layout's degrees don't multiply to the GPUs or the batch.
    """
    whole = _whole(layout, workload, cluster, framework, software)
    training = workload.training
    automatic = not layout.stages and not (isinstance(layout, PartialLayout) and layout.split)
    if isinstance(layout, PartialLayout) and layout.idle_gpus:
        launched = cluster.gpu_count - layout.idle_gpus
        run_options = replace(run_options or RunOptions(), processes=launched)
    ctx = make_context(workload.model, training, cluster, framework, software, run_options)
    model = ctx.model
    # Where nobody listed stages the trainer's own split is what runs.
    if automatic:
        whole = with_stages(with_own_split(whole, ctx), ctx)
    broken = check_layout(
        whole, model, training, cluster, framework, software, run_options, automatic=automatic
    )
    requirements = tuple(map(parse_requirement, require))
    # Ranks that the cluster does not have, stages without layers, and ranks without their partner have no price.
    priceless = whole.gpus > cluster.gpu_count or not whole.stages
    if broken and (priceless or not SCHEDULES[whole.schedule].seats_all(whole.pp)):
        reasons = tuple(str(rule) for rule in broken)
        return Judgement(layout=whole, verdict=Verdict.INVALID, reasons=reasons, broken=broken, estimate=None)
    preset = preset or preset_of_run(framework, software, cluster, run_options)
    prices = build_cost_model(
        model, training, cluster, framework=framework, software=software, kind=cost, preset=preset
    )
    priced = estimate(prices, whole)
    facts = RunFacts(model=model, training=training, cluster=cluster, gpu_hour_cost=gpu_hour_cost)
    step_s, peak_bytes = priced.step_time_s, priced.memory.peak_bytes
    broken = (*broken, *broken_requirements(requirements, facts, whole, step_s, peak_bytes))
    reasons = tuple(str(rule) for rule in broken)
    # What cannot be launched is invalid however small it is.
    verdict = Verdict.INVALID if broken else memory_verdict(priced.memory)
    if not broken or memory_verdict(priced.memory) is Verdict.DOES_NOT_FIT:
        reasons += _memory_reasons(memory_verdict(priced.memory), priced.memory)
    advice = advise_layout(whole, model, training, cluster, framework, software, run_options)
    return Judgement(
        layout=whole,
        verdict=verdict,
        reasons=reasons,
        broken=broken,
        estimate=priced,
        collectives=collectives(prices, whole),
        warnings=(
            *model.remarks,
            *date_remarks(framework.record, software),
            *(str(rule) for rule in advice),
        ),
    )


def judge_if_runs(
    layout: PartialLayout | Layout,
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    *,
    demanded: bool = False,
) -> Judgement | None:
    """Judge a layout as the options of a search have it launched and priced; None where it can't run or doesn't fit.

    What is left open is completed with the most even stages. What the space requires counts if ``demanded``.
    """
    space = options.space
    try:
        whole = layout.complete(workload, cluster) if isinstance(layout, PartialLayout) else layout
        if not whole.stages:
            return None
        judged = judge_layout(
            workload, cluster, whole,
            framework=options.framework, software=space.software, run_options=space.run, cost=options.cost,
            require=space.require if demanded else (), gpu_hour_cost=space.gpu_hour_cost,
        )  # fmt: skip
    except InputError:
        return None
    runs = judged.verdict in (Verdict.FITS, Verdict.BORDERLINE) and judged.estimate is not None
    return judged if runs else None


def _whole(
    layout: PartialLayout | Layout,
    workload: Workload,
    cluster: ClusterSpec,
    framework: Framework,
    software: str | None,
) -> Layout:
    """Fill in what a layout leaves open; a release without sequence parallelism has it off unless it is asked for.

    Where nobody can say how experts are split, they are split as the framework does it. A pipeline without a named
    schedule has the default one, a single stage none.
    """
    if not isinstance(layout, PartialLayout):
        return replace(layout, schedule=schedule_of(layout))
    abilities, unstated = (
        abilities_of(framework, parse_release(framework, software)),
        framework.record.unstated,
    )
    if layout.sp is None and not abilities.sp:
        layout = replace(layout, sp=False)
    if layout.etp is None and workload.model.is_moe and unstated.etp_is_tp == "without ep":
        layout = replace(layout, etp=unstated.etp(layout.tp or 1, layout.ep or 1))
    whole = layout.complete(workload, cluster, strict=False)
    return replace(whole, schedule=schedule_of(whole))


def _memory_reasons(verdict: Verdict, memory: MemoryEstimate) -> tuple[str, ...]:
    """Say what fills the fullest rank when it is full or nearly so."""
    if verdict is Verdict.FITS:
        return ()
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    # Three components are most of any rank: more would hide what to do about it.
    largest = sorted(fullest.components_bytes.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{name} {value / 1e9:.1f} GB" for name, value in largest)
    share = memory.peak_bytes / memory.capacity_bytes
    return (
        f"rank {fullest.rank} needs {memory.peak_bytes / 1e9:.1f} GB of {memory.capacity_bytes / 1e9:.1f} GB usable "
        f"({share:.0%}): {parts}",
    )
