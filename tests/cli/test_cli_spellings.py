"""Numbers and releases as people write them in options."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.interop.files import assumed_of
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.report.commands.values import QuantityText, Release
from layoutopt.optimizer.specs.errors import InputError


def test_tokens_take_commas_between_thousands() -> None:
    """As ``--seq 8,192`` does; other commas stay wrong."""
    tokens = QuantityText("TOKENS", "TOKENS")
    assert tokens.convert("4,194,304", None, None) == 4_194_304
    with pytest.raises(InputError, match="unknown"):
        tokens.convert("4,19", None, None)


@pytest.mark.parametrize("text", ["A", "c", "era A"])
def test_an_era_is_named_by_its_letter(text: str) -> None:
    """The documents say: era A or C."""
    assert Release().convert(text, None, None) == f"era {text[-1].upper()}"


VERL = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=1024 data.max_prompt_length=512 "
    "data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "
    "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True actor_rollout_ref.rollout.n=5 "
    "trainer.n_gpus_per_node=8 trainer.nnodes={}\n"
)


def test_strict_refuses_what_is_assumed_and_no_information() -> None:
    """What a file states by its trainer's name, or what lies outside the step, is no assumption."""
    assert assumed_of(import_text(VERL.format(2), "v.sh")) == ()
    assert any("NNODES" in note for note in assumed_of(import_text(VERL.format("${NNODES:-2}"), "v.sh")))
