"""Memory savers in launch files: written where the framework has them, refused with the nearest layout where not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks.launches import nearest_layout

from layoutopt.optimizer.interop.launch.export import NotExpressible, export
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Saver

MOMENTS, OPTIMIZER, ACTIVATIONS = Saver.BF16_MOMENTS, Saver.OFFLOAD_OPTIMIZER, Saver.OFFLOAD_ACTIVATIONS
DENSE = Layout(dp=8, zero=1, micro_batches=1)
EXPERTS = Layout(dp=8, ep=8, zero=1, micro_batches=1)


def launch_file(
    to: str, layout: Layout, *savers: Saver, model: str = "llama3-8b", version: str | None = None
) -> str:
    """Return the first file of an export with memory savers on eight GPUs."""
    workload = load_workload(model)
    workload = replace(workload, training=replace(workload.training, global_batch=8))
    layout = replace(layout, precision=workload.training.precision, savers=tuple(sorted(savers)))
    job = export(layout, workload, load_cluster("h100x8"), to, version=version)
    return next(iter(job.files.values()))


def nearest(layout: Layout, to: str, version: str | None = None) -> Layout:
    """The nearest layout of llama3-8b on eight GPUs that the framework can launch."""
    workload = load_workload("llama3-8b")
    workload = replace(workload, training=replace(workload.training, global_batch=8))
    return nearest_layout(layout, workload, load_cluster("h100x8"), to, version=version)


def test_megatron_writes_every_saver() -> None:
    """A mixture of experts under Megatron-LM: 16-bit moments, optimizer and activations on the host."""
    text = launch_file("megatron-lm", EXPERTS, *Saver, model="mixtral-8x7b")
    for flag in (
        "--use-precision-aware-optimizer", "--exp-avg-dtype bf16", "--exp-avg-sq-dtype bf16",
        "--optimizer-cpu-offload", "--optimizer-offload-fraction 1.0", "--fine-grained-activation-offloading",
        "--offload-modules attn_norm",
    ):  # fmt: skip
        assert flag in text, flag
    plain = launch_file("megatron-lm", EXPERTS, model="mixtral-8x7b")
    assert "offload" not in plain
    assert "precision-aware" not in plain


@pytest.mark.parametrize(
    ("to", "version", "layout", "setting"),
    [
        ("megatron-bridge", None, DENSE, "optimizer.optimizer_cpu_offload=True"),
        ("torchtitan", "A", replace(DENSE, zero=3), "enable_cpu_offload = true"),
        ("torchtitan", "C", replace(DENSE, zero=3), "cfg.training.enable_cpu_offload = True"),
        ("megatron-deepspeed", None, DENSE, "--cpu-optimizer"),
        ("deepspeed", None, replace(DENSE, zero=2), '"offload_optimizer"'),
        ("accelerate", None, replace(DENSE, zero=3), "fsdp_offload_params: true"),
    ],
)
def test_others_write_the_offloaded_optimizer(
    to: str, version: str | None, layout: Layout, setting: str
) -> None:
    """Each framework's own setting is there with the saver and not without."""
    with_saver = launch_file(to, layout, OPTIMIZER, version=version).replace('"', '"')
    assert setting.lower() in with_saver.lower()
    assert setting.lower() not in launch_file(to, layout, version=version).lower()


@pytest.mark.parametrize(
    ("to", "version", "savers", "kept"),
    [
        ("megatron-lm", None, (ACTIVATIONS, OPTIMIZER), (OPTIMIZER,)),  # no module for a dense MLP
        ("megatron-lm", "core 0.11", (MOMENTS,), ()),  # came with 0.12
        ("torchtitan", "C", (MOMENTS, OPTIMIZER), (OPTIMIZER,)),
        ("nanotron", None, (OPTIMIZER,), ()),
    ],
)
def test_missing_savers_are_refused(
    to: str, version: str | None, savers: tuple[Saver, ...], kept: tuple[Saver, ...]
) -> None:
    """The refusal names the axis, and the nearest layout keeps the savers that exist."""
    zero = 3 if to == "torchtitan" else 1
    layout = replace(DENSE, zero=zero, savers=savers)
    with pytest.raises(NotExpressible, match="savers"):
        launch_file(to, layout, *savers, version=version)
    assert nearest(layout, to, version).savers == kept


@pytest.mark.parametrize(
    ("to", "least"), [("megatron-lm", 1), ("torchtitan", 2), ("accelerate", 2), ("deepspeed", 1)]
)
def test_optimizer_savers_need_a_sharded_optimizer(to: str, least: int) -> None:
    """With replicas and ZeRO-0 the nearest layout shards the optimizer."""
    layout = replace(DENSE, zero=0, savers=(OPTIMIZER,))
    with pytest.raises(NotExpressible, match="zero"):
        launch_file(to, layout, OPTIMIZER)
    assert nearest(layout, to).zero == least
