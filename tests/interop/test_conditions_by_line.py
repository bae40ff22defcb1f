"""Conditions that ask for a file or a program are decided by their line, where no variable can."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.interop.sources import Around, import_text
from layoutopt.optimizer.specs.errors import InputError

COMMAND = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --vocab-size 32000 --micro-batch-size 1 "
    "--global-batch-size 128 --tensor-model-parallel-size $TP\n"
)
FILE = "#!/bin/bash\nif [ -f /data/x ]; then TP=8; elif [ -d /scratch ]; then TP=4; else TP=2; fi\n" + COMMAND
PROGRAM = "#!/bin/bash\nif command -v nvidia-smi >/dev/null; then TP=8; else TP=2; fi\n" + COMMAND


def tp(text: str, **variables: str) -> int:
    """Return the tensor parallelism of a script under variables from outside."""
    degree: int = import_text(text, "t.sh", around=Around(variables=variables)).value.layout.tp
    return degree


@pytest.mark.parametrize("text", [FILE, PROGRAM])
def test_the_message_says_how_it_is_decided(text: str) -> None:
    """No variable stands in the condition."""
    with pytest.raises(
        InputError, match=r"TP set in one of several branches .* --set LINE_2=1 .*--set LINE_2=2"
    ):
        tp(text)


@pytest.mark.parametrize(
    ("text", "stated", "degree"),
    [(PROGRAM, "1", 8), (PROGRAM, "2", 2), (FILE, "1", 8), (FILE, "2", 2), (FILE, "2,1", 4)],
)
def test_a_line_decides(text: str, stated: str, degree: int) -> None:
    """The first branch, the other, and each of two conditions in one line."""
    assert tp(text, LINE_2=stated) == degree


def test_what_decides_nothing_is_refused() -> None:
    """A line without an open condition, and a branch that is not there."""
    with pytest.raises(InputError, match="nothing reads the variable LINE_3"):
        tp(PROGRAM, LINE_2="1", LINE_3="1")
    with pytest.raises(InputError, match="LINE_2=3 is no branch of line 2"):
        tp(PROGRAM, LINE_2="3")
    with pytest.raises(InputError, match="is no branch of line 2"):
        tp(PROGRAM, LINE_2="9" * 5000)
