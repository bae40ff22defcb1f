"""Public reports of training jobs, read as a user would write them down for this tool.

A report states what its author saw: what a price needs and the report leaves out (batch, number format, dimensions of a
named public model) is filled in by the test and visible there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from checks.published import CASES

from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework, framework_named
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.solve.plan import Judgement
    from layoutopt.optimizer.space.context import RunOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

ARCHITECTURE = {
    "layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "head_dim": "head_dim",
    "ffn": "ffn", "vocab": "vocab",
}  # fmt: skip
"""Keys of a report's model that are keys of the model file."""

LAYOUT = {
    "tp": "tp",
    "sp": "sp",
    "cp": "cp",
    "pp": "pp",
    "vp": "vp",
    "ep": "ep",
    "etp": "etp",
    "dp": "dp",
    "mbs": "mb",
    "zero": "zero",
}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that names a test's report."""
    config.addinivalue_line("markers", "report(id): the public report that a test judges")


@dataclass(frozen=True)
class Report:
    """One report and the ways to ask the tool about it; everything passed in wins over what is stated."""

    case: dict[str, Any]
    folder: Path

    @property
    def check(self) -> dict[str, Any]:
        """The machine-readable expectation."""
        found: dict[str, Any] = self.case.get("check") or {}
        return found

    @property
    def framework(self) -> Framework:
        """The report's framework, ``any`` where none is named."""
        name = self.case.get("framework") or "any"
        return framework_named(name)

    @property
    def software(self) -> str | None:
        """The report's release."""
        found: str | None = self.case.get("version")
        return found

    def near(self, value: float, key: str) -> bool:
        """Whether a value agrees with the report's figure within its tolerance."""
        stated = float(self.check[key])
        return abs(value / stated - 1) <= float(self.check["tol"])

    def workload(
        self, *, seq: int | None = None, batch: int, precision: str | None = None, **fill: Any
    ) -> Workload:
        """Write the model file and load it."""
        model, layout = self.case["model"], self.case["layout"]
        architecture = {ours: model[theirs] for theirs, ours in ARCHITECTURE.items() if theirs in model}
        architecture |= {"gated": bool(model.get("gated", 1)), "tied_embeddings": bool(model.get("tied", 0))}
        if "experts" in model and "topk" in model:
            width = model["moe_ffn"]
            architecture["moe"] = {"experts": model["experts"], "top_k": model["topk"], "ffn": width}
            architecture["moe"] |= {"dense_layers": model["dense_layers"]} if "dense_layers" in model else {}
            shared = model.get("shared_experts", 0)
            architecture["moe"] |= {"shared_ffn": shared * width} if shared else {}
        if "mla" in model:
            architecture["mla"] = _latent(model["mla"])
        training = {
            "sequence_length": seq or model["seq"],
            "global_batch": batch,
            "precision": precision or layout.get("precision", "bf16"),
        }
        extra = {
            name: fill.pop(name)
            for name in ("grad_dtype", "flash", "fused_loss", "loss_chunks")
            if name in fill
        }
        text = yaml.safe_dump({"architecture": architecture | fill, "training": training | extra})
        path = self.folder / "model.yaml"
        path.write_text(text, encoding="utf-8")
        return load_workload(path)

    def cluster(self, gpus: int | None = None, gpu: str | None = None) -> ClusterSpec:
        """Load the reference fabric of the report's GPU."""
        stated = self.case["cluster"]
        return load_cluster(f"{gpu or stated['gpu']}x{gpus or stated['n_gpus']}".lower())

    def layout(self, **changes: Any) -> str:
        """Write the layout for ``--layout``."""
        stated = {
            ours: self.case["layout"][theirs]
            for theirs, ours in LAYOUT.items()
            if theirs in self.case["layout"]
        }
        return ",".join(f"{axis}={value}" for axis, value in (stated | changes).items() if value is not None)

    def judge(
        self,
        workload: Workload,
        cluster: ClusterSpec,
        layout: str | None = None,
        *,
        run: RunOptions | None = None,
        framework: Framework | None = None,
        software: str | None = None,
    ) -> Judgement:
        """Judge a layout under the report's framework and release."""
        return judge_layout(
            workload,
            cluster,
            parse_layout(layout or self.layout()),
            framework=framework or self.framework,
            software=software or self.software,
            run_options=run,
        )

    def cost(self, workload: Workload, cluster: ClusterSpec) -> CostModel:
        """Build the prices under the report's framework and release."""
        return build_cost_model(
            workload.model, workload.training, cluster, framework=self.framework, software=self.software
        )


def _latent(text: str) -> dict[str, int]:
    """Read ``q_lora=0;kv_lora=512;nope=128;rope=64;v=128``."""
    names = {
        "q_lora": "q_lora_rank", "kv_lora": "kv_lora_rank", "nope": "qk_nope_head_dim", "rope": "qk_rope_head_dim",
        "v": "v_head_dim",
    }  # fmt: skip
    pairs = (item.split("=") for item in text.split(";"))
    return {names[name]: int(value) for name, value in pairs}


@pytest.fixture(scope="session")
def cases() -> dict[str, dict[str, Any]]:
    """Every report by id."""
    return {case["id"]: case for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))}


@pytest.fixture
def report(request: pytest.FixtureRequest, cases: dict[str, dict[str, Any]], tmp_path: Path) -> Report:
    """The report that the test's marker names."""
    marker = request.node.get_closest_marker("report")
    assert marker is not None
    return Report(case=cases[marker.args[0]], folder=tmp_path)
