"""What the process returns to the shell."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command.

    ``REJECTED`` says that nothing fits, a layout is invalid or does not fit, or a plan is refuted. ``INTERNAL`` is
    EX_SOFTWARE of sysexits.h; the last two are 128 plus the number of the signal, as shells report them.
    """

    OK = 0
    BASELINE_EXCEEDED = 1
    BAD_INPUT = 2
    REJECTED = 3
    STOPPED = 4
    INTERNAL = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


OF_VERDICT = {
    "fits": ExitCode.OK,
    # It runs, and how near the limit is stands in the answer.
    "borderline": ExitCode.OK,
    "does_not_fit": ExitCode.REJECTED,
    "invalid": ExitCode.REJECTED,
}
OF_STATUS = {
    "optimal": ExitCode.OK,
    "within_gap": ExitCode.OK,
    "stopped": ExitCode.STOPPED,
    "infeasible": ExitCode.REJECTED,
}
