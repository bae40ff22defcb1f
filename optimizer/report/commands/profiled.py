"""What commands do with profiles: read them with progress, hold them against a plan, read constants from their terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layoutopt.optimizer.ask.planned import Planned
    from layoutopt.optimizer.diagnose.constants import TermCalibration
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis
    from layoutopt.optimizer.report.commands.options import OutputOptions
    from layoutopt.optimizer.report.commands.profile_options import ProfileChoices


def diagnosed(
    profiles: Sequence[Path], planned: Planned, choices: ProfileChoices, output: OutputOptions
) -> Diagnosis | LogDiagnosis:
    """Read profiles, or a log, and hold them against the plan that ran."""
    from layoutopt.optimizer.diagnose.diagnosis import diagnose_run
    from layoutopt.optimizer.interop.profiles.read import read_run
    from layoutopt.optimizer.report.progress import reading_progress

    # Whoever asks for JSON pipes it on, and looks at no bar.
    with reading_progress(quiet=output.quiet or output.json) as on_progress:
        read = read_run(profiles, choices.options(), on_progress)
    return diagnose_run(read, planned.cost, planned.layout)


def constants_of(found: Diagnosis | LogDiagnosis, planned: Planned) -> TermCalibration:
    """Read the constants of the plan's cluster from what was measured."""
    from layoutopt.optimizer.diagnose.constants import calibrate_terms
    from layoutopt.optimizer.diagnose.predicted import expectation

    return calibrate_terms(
        found,
        lambda values: expectation(planned.repriced(values), planned.layout),
        planned.question.options.framework,
        planned.question.cluster.calibration,
    )
