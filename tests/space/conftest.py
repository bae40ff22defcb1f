"""Builders of small models, clusters and runs for the tests of the declared space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks.rule_cases import Workbench

from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec, NetworkLevel
from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Callable


def _gpu(domain: int, node: int) -> GpuSpec:
    return GpuSpec(
        name="test GPU",
        architecture="hopper",
        generation=generations()["hopper"],
        dense_flops={Precision.FP16: 1e15, Precision.BF16: 1e15, Precision.FP8: 2e15},
        memory_bytes=80e9,
        nominal_memory_bytes=80e9,
        hbm_bytes_per_s=3e12,
        nvlink_bytes_per_s=450e9,
        nvlink_domain=domain,
        gpus_per_node=node,
        nic_bytes_per_s=50e9,
        sm_count=132,
        tdp_w=700.0,
        host_link_bytes_per_s=64e9,
        source="a made-up part",
    )


@pytest.fixture(scope="session")
def make_model() -> Callable[..., ModelSpec]:
    """Dense, or with leading dense layers and experts behind them."""

    def build(
        layers: int = 8, *, experts: int = 0, dense_layers: int = 0, ffn: int = 1024, **fields: Any
    ) -> ModelSpec:
        dense = Run(name="dense", block=(LayerShape(ffn=ffn),), count=dense_layers if experts else layers)
        mixture = Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=layers - dense_layers)
        runs = tuple(run for run in ((dense, mixture) if experts else (dense,)) if run.count)
        shape: dict[str, Any] = {"hidden": 256, "heads": 8, "kv_heads": 8, "head_dim": 32, "vocab": 1024}
        moe = MoeSpec(experts=experts, top_k=2, ffn=512) if experts else None
        return ModelSpec(**({"name": "test", "runs": runs, "moe": moe} | shape | fields))

    return build


@pytest.fixture(scope="session")
def make_cluster() -> Callable[..., ClusterSpec]:
    """Nodes of 8 in one domain, and a pod level."""

    def build(gpus: int = 16, *, domain: int = 8, node: int = 8, pod: int = 0) -> ClusterSpec:
        levels = [NetworkLevel(name="pod", gpus=pod)] if pod else []
        return ClusterSpec(
            name="test",
            gpu=_gpu(domain, node),
            gpu_count=gpus,
            gpus_per_node=node,
            nvlink_domain=domain,
            nics_per_node=node,
            nic_bytes_per_s=50e9,
            levels=(*levels, NetworkLevel(name="spine", gpus=gpus)),
        )

    return build


@pytest.fixture(scope="session")
def make_training() -> Callable[..., TrainingSpec]:
    """Short sequences in bf16."""

    def build(batch: int = 32, sequence: int = 1024, **fields: Any) -> TrainingSpec:
        defaults: dict[str, Any] = {"precision": Precision.BF16}
        return TrainingSpec(sequence_length=sequence, global_batch=batch, **(defaults | fields))

    return build


@pytest.fixture(scope="session")
def bench(
    make_model: Callable[..., ModelSpec],
    make_cluster: Callable[..., ClusterSpec],
    make_training: Callable[..., TrainingSpec],
) -> Workbench:
    """Fixtures in one hand."""
    return Workbench(make_model, make_cluster, make_training)
