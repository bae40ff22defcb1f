"""Random layouts as launches: what the exporter writes, whether the rules call it valid, and what it must come to."""

from __future__ import annotations

import importlib
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from checks.agreement import Trainer, pick, random_layout, workload_of
from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.estimate import distinct_ranks
from layoutopt.optimizer.cost.parameters import block_parameters
from layoutopt.optimizer.cost.pipeline import schedule_of
from layoutopt.optimizer.cost.stage_counts import rank_blocks
from layoutopt.optimizer.cost.stage_parameters import end_parameters
from layoutopt.optimizer.cost.states import on_rank
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import abilities_of, parse_release
from layoutopt.optimizer.interop.launch.export import NotExpressible
from layoutopt.optimizer.interop.launch.target import Target, context_of, make_target
from layoutopt.optimizer.interop.megatron.write_model import require_gpt
from layoutopt.optimizer.interop.shell.scripts import read_commands
from layoutopt.optimizer.space.check import find_faults, nearest_launchable
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.layer_runs import by_layer
from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches
from layoutopt.optimizer.specs.loading import load_workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.interop.records import ExportedJob
    from layoutopt.optimizer.interop.shell.record import Outside
    from layoutopt.optimizer.interop.shell.scripts import Script
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.workload import Workload

BUILTIN_MODELS = sorted(path.stem for path in (Path(__file__).parents[2] / "models").glob("*.yaml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A layout as its trainer would start it; ``broken`` are the rules that it breaks."""

    layout: Layout
    model: ModelSpec
    job: ExportedJob
    broken: tuple[str, ...]
    parameters: tuple[int, ...]

    @property
    def words(self) -> list[str]:
        """Arguments of the training script."""
        text = "\n".join(
            line for line in self.job.files["launch.sh"].splitlines() if not line.startswith("export ")
        )
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        return words[words.index("pretrain_gpt.py") + 1 :]

    @property
    def environment(self) -> dict[str, str]:
        """What the script exports."""
        lines = self.job.files["launch.sh"].splitlines()
        pairs = [shlex.split(line, comments=True)[1] for line in lines if line.startswith("export ")]
        return dict(pair.split("=", 1) for pair in pairs)

    def derived(self) -> dict[str, Any]:
        """What the trainer has to derive from the launch."""
        layout = self.layout
        same = ("tp", "cp", "pp", "ep", "dp", "vp", "zero", "micro_batch", "micro_batches")
        return {name: getattr(layout, name) for name in same} | {
            "world": layout.gpus,
            "global_batch": layout.dp * layout.micro_batch * layout.micro_batches,
            "layers": [stage.layers for stage in layout.stages],
            "reshard": layout.zero == 3,
            "parameters": [self.parameters[place] for place in (0, layout.pp // 2, -1) if self.parameters],
        }


def written(target: Target) -> ExportedJob:
    """The file that the trainer's writer writes, whatever the rules say."""
    module = importlib.import_module(f"layoutopt.optimizer.interop.{target.framework.record.folder}.write")
    if not target.framework.record.loads_models:
        require_gpt(target.model)
    job: ExportedJob = module.export(target)
    return job


def launch_of(trainer: Trainer, layout: Layout, model: ModelSpec, cluster: ClusterSpec) -> Launch | None:
    """A layout as a launch; None where the writer has no words for it."""
    workload = workload_of(model, layout)
    try:
        target = make_target(layout, workload, cluster, trainer.framework.value, version=trainer.release)
        ctx = context_of(target.layout, workload, cluster, trainer.framework, trainer.release)
        job = written(target)
    except (InputError, LookupError):  # a broken layout may want words that the format lacks
        return None
    broken = tuple(fault.reason.rule for fault in find_faults(target.layout, ctx))
    preset = load_preset(trainer.framework, trainer.release)
    held = () if broken else rank_parameters(target.layout, target.model, preset)
    return Launch(layout=target.layout, model=target.model, job=job, broken=broken, parameters=held)


def rank_parameters(layout: Layout, model: ModelSpec, preset: FrameworkPreset) -> tuple[int, ...]:
    """Parameters that every pipeline rank of a valid layout holds before their state is sharded."""
    cut = by_layer(replace(model, embedding_norm=False))  # in no trainer's words
    blocks = rank_blocks(layout, cut)[0]
    batch = batch_of_one(layout)
    schedule = schedule_of(batch)
    held = [on_rank(cut, block_parameters(cut, run), batch, preset) for run in cut.runs]
    each = [
        sum(n * float(one.dense[0] + one.expert[0]) for n, one in zip(row, held, strict=True))
        for row in blocks
    ]
    first, last = (
        float((end.dense + end.expert)[0])
        for end in end_parameters(cut, preset, batch, folded=schedule.folded)
    )
    each[0] += first
    each[0 if schedule.folded else -1] += last
    return tuple(round(each[rank]) for rank in distinct_ranks(len(each), layout.pp))


def builtin_launches(
    trainer: Trainer,
    number: int,
    seed: int,
    cluster: ClusterSpec,
    names: tuple[str, ...] = tuple(BUILTIN_MODELS),
) -> Iterator[Launch]:
    """Every built-in model with random degrees on the framework's own split, moved to the nearest launchable layout."""
    rng = np.random.default_rng(seed)
    models = [load_workload(name).model for name in names]
    for place in range(number):
        layout = replace(random_layout(rng)[0], stages=(), recompute=Recompute())
        model = models[place % len(models)]
        launch = launch_of(trainer, layout, model, cluster)
        if launch is None:
            continue
        ctx = context_of(
            launch.layout, workload_of(model, layout), cluster, trainer.framework, trainer.release
        )
        nearest = nearest_launchable(launch.layout, ctx)[1]
        again = launch_of(trainer, nearest, model, cluster) if nearest else None
        if again is not None:
            yield again


def nearest_layout(
    layout: Layout, workload: Workload, cluster: ClusterSpec, to: str, *, version: str | None = None
) -> Layout:
    """The layout itself where the framework can launch it, else the nearest one that it can, whether or not it fits."""
    target = make_target(layout, workload, cluster, to, version=version)
    ctx = context_of(target.layout, workload, cluster, target.framework, target.version)
    reasons, nearest = nearest_launchable(target.layout, ctx)
    if nearest is None:
        raise NotExpressible(*(Problem(what=str(reason)) for reason in reasons), nearest=None)
    return nearest


def parse_script(text: str, file: str = "", outside: Outside | None = None) -> Script:
    """The first way through a script."""
    return read_commands(text, lambda script: (), file, outside)[0][0][0]


def random_switches(rng: np.random.Generator, trainer: Trainer) -> Switches:
    """Values of some launch switches that the release has."""
    release = parse_release(trainer.framework, trainer.release)
    known = abilities_of(trainer.framework, release).switches
    chosen: dict[str, Any] = {name: pick(rng, values) for name, values in known.items() if rng.random() < 0.5}
    return Switches(**chosen)


def random_launches(trainer: Trainer, number: int, seed: int, cluster: ClusterSpec) -> Iterator[Launch]:
    """Layouts as they come, every second one with switches, and beside each broken one the nearest that the rules accept."""
    rng, own = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    for place in range(number):
        layout, model = random_layout(rng)
        if place % 2:
            layout = replace(layout, switches=random_switches(own, trainer))
        launch = launch_of(trainer, layout, model, cluster)
        if launch is None:
            continue
        yield launch
        if launch.broken:
            ctx = context_of(
                launch.layout, workload_of(model, layout), cluster, trainer.framework, trainer.release
            )
            nearest = nearest_launchable(launch.layout, ctx)[1]
            again = launch_of(trainer, nearest, model, cluster) if nearest else None
            if again is not None:
                yield again
