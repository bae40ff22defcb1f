"""slime scripts: Megatron's flags for the actor, GPUs and batch in slime's own (slime 624b824, 2026-08-21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.common import divided
from layoutopt.optimizer.interop.launch.keys import (
    megatron_job,
    model_path,
    note_token_batches,
    with_defaults,
)
from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from typing import Any

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.launch.flags import ArgFields
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside

OWN_FLAGS = (
    "--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-batch-size", "--tensor-model-parallel-size",
)  # fmt: skip
DEFAULTS = {"use_distributed_optimizer": True, "bf16": True}
"""What slime sets itself (slime/backends/megatron_utils/arguments.py)."""


@importer
def import_slime(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a script that submits slime's ``train.py``; the optimizer step is one of the actor."""
    return read_launch(text, OWN_FLAGS, lambda command: _job(command, file), file, outside)


def _job(command: LaunchCommand, file: str) -> ImportedJob:
    fields = command.fields(file=file)
    notes = ["other roles (rollout engines) are not part of the actor's step"]
    values = with_defaults(dict(fields.data), DEFAULTS, notes)
    values |= {"global_batch_size": _batch(fields), "seq_length": _length(fields, notes)}
    if fields.on("use_dynamic_batch_size"):
        note_token_batches(fields.required("max_tokens_per_gpu"), notes)
        # slime ignores it then (docs/en/examples/glm4-9B.md), and scripts leave it in.
        values.pop("micro_batch_size", None)
    else:
        values = with_defaults(values, {"micro_batch_size": 1}, notes)
    gpus, path = _gpus(fields, notes), model_path(fields, "hf_checkpoint")
    return megatron_job(command.fields(file=file, data=values), gpus, notes, path=path, command_line=True)


def _gpus(fields: ArgFields, notes: list[str]) -> int | None:
    nodes = fields.integer("actor_num_nodes", least=1)
    each = fields.integer("actor_num_gpus_per_node", least=1)
    if nodes is not None and each is None:
        notes.append("assumed: actor-num-gpus-per-node 8, the launcher's default")
    return None if nodes is None else nodes * (each or 8)


def _batch(fields: ArgFields) -> int | None:
    """Return samples per optimizer step: stated, or those of a rollout over its steps; both must agree."""
    keys = ("global_batch_size", "rollout_batch_size", "num_steps_per_rollout")
    stated, prompts, steps = (fields.integer(key, least=1) for key in keys)
    if prompts is None or steps is None:
        return stated
    # slime derives the batch where it is not stated, and checks it where it is (slime/utils/arguments.py).
    samples = prompts * (fields.integer("n_samples_per_prompt", least=1) or 1)
    what = "--rollout-batch-size * --n-samples-per-prompt over --num-steps-per-rollout"
    derived = divided(samples, steps, what)
    if stated is not None and stated != derived:
        what = f"{stated} is not the {derived} samples of a rollout over its steps"
        raise input_error(what, str(derived), key="--global-batch-size", file=fields.file)
    return derived


def _length(fields: ArgFields, notes: list[str]) -> Any:
    stated = fields.integer("seq_length", least=1)
    response = fields.integer("rollout_max_response_len", least=1)
    if stated is not None or response is None:
        return stated
    longest = (fields.integer("rollout_max_prompt_len", least=1) or 0) + response
    notes.append(f"sequences of {longest} tokens, the longest prompt and response: shorter ones are packed")
    return longest
