"""What ``import`` writes of a launch file costs what the file costs, and commands that ``export`` prints can be pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from click.testing import Result

BASE = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --vocab-size 32000 --micro-batch-size 1 "
    "--global-batch-size 128 "
)
EXPERTS = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --use-distributed-optimizer "
STATED = {
    "scores": ("--attention-backend unfused", "training.flash", False),
    "masks": ("--hidden-dropout 0.1", "training.dropout", True),
    "savers": (
        "--use-distributed-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 1.0",
        "savers",
        ["offload-optimizer"],
    ),
    "switches": ("--use-torch-fsdp2", "switches", {"dp_overlap": False}),
    "dispatcher": (
        f"{EXPERTS} --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
        "switches.dispatcher",
        "hybridep",
    ),
    "narrow": ("--fp8-format hybrid --fp8-param-gather", "training.fp8_param_gather", True),
}


@pytest.mark.parametrize("name", STATED)
def test_written_parts_cost_what_the_launch_file_costs(
    name: str, run: Callable[..., Result], ask: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Attention that keeps its scores, savers and switches are in the files that MODEL and --layout read."""
    flags, key, value = STATED[name]
    script = tmp_path / "run.sh"
    script.write_text(BASE + flags + "\n")
    parts: dict[str, Any] = {}
    for part in ("model", "layout"):
        (tmp_path / f"{part}.yaml").write_text(run("import", str(script), "--part", part).stdout)
        parts |= yaml.safe_load((tmp_path / f"{part}.yaml").read_text())
    found: Any = parts
    for step in key.split("."):
        found = found[step]
    assert found == value
    whole = ask("evaluate", "--from", str(script), "--cluster", "h100x8")
    again = ask("evaluate", str(tmp_path / "model.yaml"), "h100x8", "--layout", str(tmp_path / "layout.yaml"))
    for figure in ("step_time_s", "memory"):
        assert again["estimate"][figure] == whole["estimate"][figure]


def test_what_no_part_can_say_is_named(run: Callable[..., Result], tmp_path: Path) -> None:
    """Sends that wait, in a pipeline with chunks, have no key; without chunks they wait anyway."""
    script, stages = tmp_path / "run.sh", "--pipeline-model-parallel-size 4 --no-overlap-p2p-communication"
    script.write_text(f"{BASE} {stages} --num-virtual-stages-per-pipeline-rank 2\n")
    assert "pp_overlap: in options alone" in run("import", str(script), "--part", "layout").stderr
    script.write_text(f"{BASE} {stages}\n")
    assert "in options alone" not in run("import", str(script), "--part", "layout").stderr


@pytest.mark.parametrize("to", ["megatron", "deepspeed", "accelerate"])
def test_commands_of_several_lines_are_printed_as_they_are(
    to: str, run: Callable[..., Result], plan_text: str, tmp_path: Path
) -> None:
    """How to start the job and how to check its memory is there to be pasted: no line end is written out."""
    plan = tmp_path / "plan.json"
    plan.write_text(plan_text)
    result = run("export", str(plan), "--to", to, "--nearest")
    assert "start: " in result.stderr
    assert "\\n" not in result.stderr
