"""Turn measured runs into cases that the cost model can price, or into skips with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.hardware import EIGHT_BIT, HOPPER
from layoutopt.optimizer.evidence.assumptions import assume
from layoutopt.optimizer.evidence.case import Case, RunFamily, Skip, SkipRow
from layoutopt.optimizer.evidence.case_cluster import cluster_of, memory_size_stated
from layoutopt.optimizer.evidence.case_layout import check_degrees, layout_of
from layoutopt.optimizer.evidence.case_model import model_of, training_of
from layoutopt.optimizer.evidence.case_preset import check_method, framework_of, switches_of
from layoutopt.optimizer.evidence.notes import read_notes
from layoutopt.optimizer.evidence.recipes import with_recipe
from layoutopt.optimizer.evidence.releases import release_of
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.assumptions import Assumption
    from layoutopt.optimizer.evidence.notes import NoteFacts
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.specs.cluster import GpuSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Precision

GIB_PER_GB = 2**30 / 1e9

DECIDING = ("tp", "pp", "dp", "zero", "micro_batch", "global_batch", "recompute", "precision")
"""Columns without which a row counts as incomplete, beside vp where pp > 1."""


def build_cases(
    runs: Sequence[MeasuredRun], assumptions: Sequence[Assumption] = ()
) -> tuple[list[Case], list[Skip]]:
    """Build a case for every row that can be priced, and a skip for every other."""
    results = [build_case(run, assumptions) for run in runs]
    cases = [result for result in results if isinstance(result, Case)]
    return cases, [result for result in results if isinstance(result, Skip)]


def build_case(run: MeasuredRun, assumptions: Sequence[Assumption] = ()) -> Case | Skip:
    """Build the case of one row, or say why it has none."""
    try:
        return _case(run, assumptions)
    except SkipRow as reason:
        return Skip(run=run, reason=str(reason))
    except InputError as error:
        return Skip(run=run, reason=str(error.problems[0]))


def _case(run: MeasuredRun, assumptions: Sequence[Assumption]) -> Case:
    read, facts = read_notes(run)
    stated, assumed = assume(with_recipe(read), assumptions)
    check_method(stated)
    if stated.step_s is None and stated.mem_gb is None and not stated.oom:
        raise SkipRow("neither step time nor memory nor out of memory reported")
    framework = framework_of(stated)
    check_degrees(stated)
    filled, unstated = _defaults(stated, framework)
    model, training = model_of(filled, facts), training_of(filled, facts)
    cluster = cluster_of(filled)
    zero = filled.zero.stage if filled.zero else framework.record.unstated.zero
    layout = layout_of(filled, framework, model, training.precision, zero=zero)
    _check_experts(filled, layout)
    switches = switches_of(filled, facts, framework)
    return Case(
        run=run,
        framework=framework,
        software=release_of(filled),
        model=model,
        training=training,
        cluster=cluster,
        layout=layout,
        family=family_of(model, cluster.gpu, training.precision, framework),
        switches=switches,
        unstated=unstated,
        assumed=assumed,
        complete=_complete(read),
        memory_gb=_memory_gb(stated, facts),
        memory_known=_memory_known(stated),
    )


def _defaults(run: MeasuredRun, framework: Framework) -> tuple[MeasuredRun, tuple[str, ...]]:
    """Fill what the framework decides where a source says nothing, and name those columns."""
    unstated = [name for name in ("zero", "recompute", "tied", "flash") if getattr(run, name) is None]
    if run.sp is None and run.tp != 1:
        unstated.append("sp")
    if run.is_moe and run.etp is None and run.tp != 1:
        unstated.append("etp")
    if not memory_size_stated(run):
        unstated.append("gpu memory")
    tied = run.tied if run.tied is not None else framework.record.unstated.tied
    return replace(run, tied=tied), tuple(unstated)


def _complete(run: MeasuredRun) -> bool:
    return all(getattr(run, name) is not None for name in DECIDING) and (run.pp == 1 or run.vp is not None)


def _memory_known(run: MeasuredRun) -> bool:
    """Whether a row states what decides memory.

    Selective recomputation alone says little of models with experts or latent attention, whose recipes recompute
    more than attention.
    """
    modules = run.recompute != "selective" or run.recompute_modules or not (run.is_moe or run.mla)
    return memory_size_stated(run) and None not in (run.zero, run.recompute) and bool(modules)


def _check_experts(run: MeasuredRun, layout: Layout) -> None:
    if not run.is_moe:
        if layout.ep > 1:
            raise SkipRow(f"ep {layout.ep} without experts")
        return
    ranks = layout.tp * layout.cp * layout.dp
    if ranks % (layout.ep * layout.etp):
        raise SkipRow(f"ep {layout.ep} x etp {layout.etp} does not divide the stage's {ranks} ranks")
    if (run.moe_experts or 1) % layout.ep:
        raise SkipRow(f"ep {layout.ep} does not divide {run.moe_experts} experts")


def _memory_gb(run: MeasuredRun, facts: NoteFacts) -> float | None:
    """Measured peak in 1e9 bytes. nvidia-smi counts in MiB, so that what is read off it as GB is GiB."""
    if run.mem_gb is None:
        return None
    binary = facts.memory_gib or run.mem_kind == "nvidia-smi"
    return run.mem_gb * GIB_PER_GB if binary else run.mem_gb


def family_of(model: ModelSpec, gpu: GpuSpec, precision: Precision, framework: Framework) -> RunFamily:
    """Return the family of a row: MoE on any GPU, dense by GPU generation and precision, nanotron apart."""
    if framework is Framework.NANOTRON:
        return RunFamily.NANOTRON
    if model.is_moe:
        return RunFamily.MOE
    if gpu.generation.name == HOPPER:
        return RunFamily.DENSE_HOPPER_8 if precision in EIGHT_BIT else RunFamily.DENSE_HOPPER_16
    return _DENSE.get(gpu.generation.name, RunFamily.DENSE_OTHER)


_DENSE = {
    "ampere": RunFamily.DENSE_A100,
    "volta": RunFamily.DENSE_V100,
    "blackwell": RunFamily.DENSE_BLACKWELL,
}
