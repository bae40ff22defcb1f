"""The preset that priced an answer, for tables that explain its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


def preset_of(
    workload: Workload, cluster: ClusterSpec, framework: Framework, software: str | None, kind: CostKind
) -> FrameworkPreset:
    """Return the framework's preset as the cost model of this question uses it."""
    from layoutopt.optimizer.cost.factory import build_cost_model

    model = build_cost_model(
        workload.model, workload.training, cluster, framework=framework, software=software, kind=kind
    )
    return model.preset
