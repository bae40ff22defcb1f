"""A DeepSpeed configuration that states other values than the trainer's arguments is refused with both places."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.interop.sources import import_path
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = (
    "deepspeed --num_gpus 8 train.py --deepspeed ds.json --model_name_or_path Qwen/Qwen2.5-7B "
    "--per_device_train_batch_size 2 --bf16 --gradient_accumulation_steps 1 --model_max_length 2048\n"
)


def written(folder: Path, **stated: Any) -> Path:
    """Write the script, and beside it the configuration with stage 2 and what is stated."""
    (folder / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, **stated}))
    script = folder / "train.sh"
    script.write_text(SCRIPT)
    return script


@pytest.mark.parametrize(
    ("stated", "places"),
    [
        (
            {"train_micro_batch_size_per_gpu": 4},
            ("--per-device-train-batch-size", "train_micro_batch_size_per_gpu"),
        ),
        ({"gradient_accumulation_steps": 8}, ("gradient_accumulation_steps", "of ds.json")),
        ({"fp16": {"enabled": True}}, ("bf16", "fp16.enabled of ds.json")),
        ({"train_batch_size": 64}, ("global batch", "train_batch_size of ds.json")),
    ],
)
def test_a_contradiction_names_both_places(
    tmp_path: Path, stated: dict[str, Any], places: tuple[str, ...]
) -> None:
    """As the trainer refuses it before the first step."""
    with pytest.raises(InputError) as caught:
        import_path(str(written(tmp_path, **stated)))
    assert all(place in str(caught.value) for place in (*places, "contradicts"))


def test_auto_and_equal_values_agree(tmp_path: Path) -> None:
    """``auto`` takes the trainer's."""
    stated = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 1,
        "train_batch_size": 16,
    }
    job = import_path(str(written(tmp_path, bf16={"enabled": "auto"}, **stated))).value
    assert (job.training.global_batch, job.layout.micro_batch, job.layout.zero) == (16, 2, 2)
