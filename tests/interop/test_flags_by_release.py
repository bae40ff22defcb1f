"""Flags that Megatron-LM's writer writes from one release on, or up to one: the releases on both sides of each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.agreement import dense_model, dense_then_moe, workload_of
from checks.launches import written

from layoutopt.optimizer.interop.launch.target import make_target
from layoutopt.optimizer.interop.records import CheckpointInterval
from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Granularity, Precision, Saver

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ExportedJob
    from layoutopt.optimizer.specs.model import ModelSpec

DENSE, EXPERTS = dense_model(4), dense_then_moe(4, mtp_layers=0)
BASE = Layout(dp=8, micro_batches=2, zero=1)
SELECTIVE = Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn",))
SPREAD = replace(BASE, tp=2, sp=True, ep=2, etp=2, dp=4)
SHARDED = replace(BASE, zero=3)
FP8 = replace(BASE, precision=Precision.FP8)


def job(layout: Layout, model: ModelSpec, release: str, **changes: Any) -> ExportedJob:
    """What is written for a release, whatever its rules say."""
    workload, cluster = workload_of(model, layout, **changes), load_cluster("h100x64")
    saving = CheckpointInterval(interval_steps=100)
    return written(
        make_target(layout, workload, cluster, "megatron", version=f"core {release}", checkpoint=saving)
    )


def graphs(kind: CudaGraph) -> Layout:
    """A layout with CUDA graphs."""
    return replace(BASE, switches=Switches(cuda_graph=kind))


@pytest.mark.parametrize(
    ("layout", "model", "last", "first", "old", "new"),
    [
        (SPREAD, EXPERTS, "0.9", "0.10", "", "--expert-tensor-parallel-size 2"),
        (SPREAD, EXPERTS, "0.9", "0.10", "", "--moe-ffn-hidden-size 512"),
        (replace(BASE, cp=2, dp=4), DENSE, "0.9", "0.10", "", "--cp-comm-type"),
        (replace(BASE, recompute=SELECTIVE), DENSE, "0.11", "0.12", "", "--recompute-modules core_attn"),
        (FP8, DENSE, "0.11", "0.12", "", "--fp8-recipe"),
        (SHARDED, DENSE, "0.13", "0.14", "--use-custom-fsdp", "--use-megatron-fsdp"),
        (SHARDED, DENSE, "0.13", "0.14", "--no-gradient-accumulation-fusion", ""),
        (SHARDED, DENSE, "0.13", "0.14", "--ckpt-format torch_dist", "--ckpt-format fsdp_dtensor"),
        (BASE, DENSE, "0.6", "0.7", "", "--async-save"),
        (BASE, DENSE, "0.15", "0.16", "", "--use-persistent-ckpt-worker"),
        (
            graphs(CudaGraph.PARTIAL),
            DENSE,
            "0.17",
            "0.18",
            "--cuda-graph-scope attn mlp",
            "--cuda-graph-modules attn mlp",
        ),
        (
            graphs(CudaGraph.FULL),
            DENSE,
            "0.17",
            "0.18",
            "--cuda-graph-impl local",
            "--cuda-graph-impl full_iteration",
        ),
        (replace(BASE, savers=(Saver.BF16_MOMENTS,)), DENSE, "0.12", "0.13", "", "--exp-avg-dtype bf16"),
    ],
)
def test_a_flag_changes_with_its_release(
    layout: Layout, model: ModelSpec, last: str, first: str, old: str, new: str
) -> None:
    """In the last release before, and in the first one from then on."""
    before, after = (" ".join(job(layout, model, one).files["launch.sh"].split()) for one in (last, first))
    before, after = before.replace("\\ ", ""), after.replace("\\ ", "")
    assert (old in before) and (new in after)
    assert not old or old not in after
    assert not new or new not in before


@pytest.mark.parametrize(("grad_bytes", "flag"), [(2, True), (4, False)])
def test_gradients_are_summed_in_16_bits_where_they_are_stated_so(grad_bytes: int, flag: bool) -> None:
    """From core 0.12 on a flag, before it a note; never for gradients of four bytes."""
    old, new = (job(BASE, DENSE, release, grad_bytes=grad_bytes) for release in ("0.11", "0.12"))
    assert ("--grad-reduce-in-bf16" in new.files["launch.sh"]) is flag
    assert "--grad-reduce-in-bf16" not in old.files["launch.sh"]
    assert any("--grad-reduce-in-bf16 came with core 0.12" in note for note in old.notes) is flag


def test_one_gpu_can_check_the_memory_from_core_0_16_on() -> None:
    """Before that it is said why not; what saves is left out of the check, and it runs two steps."""
    old, new = (job(BASE, DENSE, release).memory_check for release in ("0.15", "0.16"))
    assert old == "none: --fake-process-group came with core 0.16"
    assert "WORLD_SIZE=8" in new and "--fake-process-group" in new and "--train-iters 2" in new
    assert "--save" not in new and "--save-interval 100" in job(BASE, DENSE, "0.16").files["launch.sh"]
