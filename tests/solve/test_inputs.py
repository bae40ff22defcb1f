"""What a plan's inputs hold, and which code and constants its digest covers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.solve import inputs
from layoutopt.optimizer.solve.inputs import (
    DECIDE_NOTHING,
    Question,
    cost_model_digest,
    deciding_files,
    question_from_plain,
)
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from pathlib import Path

LOADED = """
import sys
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
solve_layout(load_workload("llama3-8b"), load_cluster("h100x8"))
print(*(name for name in sys.modules if name.startswith("layoutopt.optimizer.")))
"""


def question(**options: Any) -> Question:
    """A small question with search options of its own."""
    return Question(
        workload=load_workload("llama3-8b"), cluster=load_cluster("h100x8"), options=SolveOptions(**options)
    )


def test_digest_covers_what_a_solve_loads() -> None:
    """Every module that a solve loads is in the digest, in every room and folder, but those that judge and explain."""
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    covered = {path.removesuffix("/__init__.py").removesuffix(".py") for path in deciding_files()}
    modules = {name.removeprefix("layoutopt.optimizer.").replace(".", "/") for name in loaded.stdout.split()}
    assert {
        "space/rules/products",
        "solve/search/best_first",
        "solve/model/cp_model",
        "cost/compute",
    } <= modules
    assert {path for path in modules - covered if not path.startswith(DECIDE_NOTHING)} == set()


def test_digest_covers_constants() -> None:
    """Tables of constants are in the digest."""
    assert {"cost/constants.yaml", "specs/gpus.yaml", "topology/links.yaml"} <= set(deciding_files())


def test_digest_sees_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed, a moved and a new file of a folder in a folder change the digest."""
    files = dict(deciding_files())
    (tmp_path / "changed").write_text("pass\n")
    (tmp_path / "same").write_bytes(files["space/rules/products.py"].read_bytes())
    others = [
        {**files, "space/rules/products.py": tmp_path / "changed"},
        {**files, "space/rules/new.py": tmp_path / "changed"},
        {path: file for path, file in files.items() if path != "space/rules/products.py"}
        | {"cost/products.py": tmp_path / "same"},
    ]
    digests = {cost_model_digest()}
    for other in others:
        monkeypatch.setattr(inputs, "deciding_files", lambda other=other: other)
        digests.add(cost_model_digest.__wrapped__())
    assert len(digests) == 4


def test_search_is_part_of_the_inputs() -> None:
    """Gap target, near-ties, seed and threads survive JSON, and each changes the inputs."""
    changed: dict[str, Any] = {
        "gap": 0.1,
        "top": 7,
        "near": None,
        "one_model": True,
        "workers": 3,
        "seed": 5,
        "warm_start_s": 2.5,
    }
    plain = json.loads(json.dumps(question(**changed).to_plain()))
    assert question_from_plain(plain).options == SolveOptions(**changed)
    whole = question()
    for name, value in changed.items():
        other = replace(whole, options=replace(whole.options, **{name: value}))
        assert other.to_plain() != whole.to_plain()


def test_plans_without_search_options_are_read() -> None:
    """Inputs that say nothing of the search, as older plans do, stand for the defaults."""
    plain = question().to_plain()
    del plain["search"]
    assert question_from_plain(plain).options == SolveOptions()


def test_plans_of_before_a_fact_was_recorded_are_read() -> None:
    """Which dispatchers a GPU's generation has kernels for, and what a run freezes, are newer than some plans."""
    plain = question().to_plain()
    for name in ("deepep", "hybridep"):
        del plain["cluster"]["gpu"]["generation"][name]
    del plain["workload"]["training"]["frozen"]
    read = question_from_plain(plain)
    assert read.workload == question().workload and not read.cluster.gpu.generation.deepep


def test_plans_that_limit_nodes_are_read() -> None:
    """``node_limit`` stood beside the router's groups, alone for DeepSeek's eight, and empty for all other experts."""
    for name, old, groups in (
        ("deepseek-v3", {"node_limit": 4}, (8, 4)),
        ("deepseek-v3", {"node_limit": 4, "router_groups": None, "router_group_limit": None}, (8, 4)),
        ("deepseek-v2", {"node_limit": None}, (8, 3)),
        ("mixtral-8x7b", {"node_limit": None}, None),
        ("mixtral-8x7b", {"node_limit": 8}, None),
    ):
        plain = replace(question(), workload=load_workload(name)).to_plain()
        moe = plain["workload"]["model"]["moe"]
        moe.update(old)
        if "router_groups" in old:
            del moe["router_groups"], moe["router_group_limit"]
        read = question_from_plain(plain).workload.model
        assert read == load_workload(name).model
        assert read.moe is not None and read.moe.binding_groups == groups


@pytest.mark.parametrize(
    ("name", "value"),
    [("gap", 2), ("gap", "a"), ("gap", True), ("top", 1.5), ("top", -1), ("near", 10**400), ("near", "x"), ("seed", -1),
     ("workers", 10**9), ("one_model", 1), ("warm_start_s", -1.0), ("gap", float("nan"))],
)  # fmt: skip
def test_wrong_search_options(name: str, value: object) -> None:
    """A value that no search has is bad input, named."""
    plain = question().to_plain()
    plain["search"][name] = value
    with pytest.raises(InputError, match=name):
        question_from_plain(plain)
