"""Verify a plan as it was written: all that ``solve`` writes is written again and compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.evidence.observed import check_observations
from layoutopt.optimizer.evidence.parameters import check_calibration
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.verify.api import verify_written

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.solve.verify.rebuilt import Tree
    from layoutopt.optimizer.solve.verify.report import VerifyReport
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


def verify_plan(
    plain: object, *, file: str = "", workload: Workload | None = None, cluster: ClusterSpec | None = None
) -> VerifyReport:
    """Check the parsed JSON of a plan; see ``verify_written``."""
    return verify_written(plain, write_again, file=file, workload=workload, cluster=cluster)


def write_again(plan: Plan, question: Question, stated: Tree) -> Tree:
    """Write a rebuilt plan as parsed JSON, with error band and robust choice where ``stated`` has them.

    Raises InputError for a constant that there is not, or of a value that no machine has.
    """
    check_calibration(question.cluster.calibration)  # as of a cluster file
    check_observations(question.cluster, file="")
    honesty = None
    if "error_band" in stated:
        robust = "robust" in stated
        honesty = assess(plan, question.workload, question.cluster, question.options, robust=robust)
    written: Tree = json.loads(json.dumps(plan_to_plain(plan, honesty)))
    return written
