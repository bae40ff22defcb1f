"""Shard groups whose size the GPUs decide, and torchtitan's checkpointing by mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.interop.launch.complete import complete_layout
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob


def titan(body: str, kind: str = "torchtitan-python") -> ImportedJob:
    """Import a configuration function with the given body."""
    text = "def run():\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "    return cfg\n"
    value: ImportedJob = import_text(text, "", kind).value
    return value


@pytest.mark.parametrize(
    ("gpus", "zero", "shard"), [(32, 3, 4), (64, 3, 8), (8, 0, None)], ids=["rest 4", "rest 8", "rest 1"]
)
def test_a_shard_degree_that_is_the_rest_keeps_its_replicas(gpus: int, zero: int, shard: int | None) -> None:
    """2 replicas at tp 4: what the GPUs leave is one copy of the states, in TOML and in Python."""
    toml = """
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
[training]
local_batch_size = 1
"""
    python = "cfg = llama3_8b()\ncfg.parallelism = ParallelismConfig(tensor_parallel_degree=4, "
    python += "data_parallel_replicate_degree=2)\ncfg.training = TrainingConfig(local_batch_size=1)"
    for got in (import_text(toml, "", "torchtitan-toml").value, titan(python)):
        layout = complete_layout(got, gpus=gpus, global_batch=gpus)
        assert (layout.dp, layout.zero, layout.hsdp_shard) == (gpus // 4, zero, shard)
    with pytest.raises(InputError, match="not a multiple of the 2 replicas"):
        complete_layout(got, gpus=12, global_batch=12)


def test_megatron_optimizer_instances_wait_for_the_gpus() -> None:
    """Replicas of a sharded optimizer whose size follows from GPUs that the script doesn't state."""
    flags = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 64 --micro-batch-size 1 "
    flags += (
        "--tensor-model-parallel-size 2 --use-distributed-optimizer --num-distributed-optimizer-instances 2"
    )
    got = import_text(flags, "", "megatron-args").value
    layout = complete_layout(got, gpus=16, global_batch=16)
    assert (layout.dp, layout.zero, layout.hsdp_shard) == (8, 1, 4)


@pytest.mark.parametrize(
    ("stated", "wanted"),
    [
        ('(mode="selective")', Recompute(granularity=Granularity.SELECTIVE, modules=("op",))),
        ("()", Recompute(granularity=Granularity.SELECTIVE, modules=("op",))),
        ('(mode="full")', Recompute(granularity=Granularity.FULL)),
        ('(mode="none")', Recompute()),
    ],
)
def test_torchtitan_checkpointing_by_mode(stated: str, wanted: Recompute) -> None:
    """Registries before 2026-06-15: one class, the policy is its mode."""
    got = titan(f"cfg = llama3_70b()\ncfg.activation_checkpoint = ActivationCheckpointConfig{stated}")
    assert got.layout.recompute == wanted
