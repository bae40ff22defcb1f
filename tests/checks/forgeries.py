"""Changes of plans, by name: what somebody would write who wants a false plan to be accepted.

A change works on the parsed JSON of a plan. Numbers are moved consistently unless the name says alone. Afterwards the
certificate's own digest is made anew, as a forger would who has read how it is made, unless ``sealed`` is False.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from layoutopt.optimizer.solve.certificate import inputs_digest

Json = dict[str, Any]
Change = Callable[[Json], object]


class Right(StrEnum):
    """What verification has to say: a false plan is rejected, one that can't be read is bad input."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Forgery:
    """One change, what is right, and whether the certificate's digest is made anew."""

    change: Change
    right: Right = Right.REJECTED
    sealed: bool = True

    def made_of(self, plan: Json) -> Json:
        """Return a changed copy."""
        forged = copy.deepcopy(plan)
        self.change(forged)
        record = forged.get("certificate")
        if self.sealed and isinstance(record, dict):
            seal(record)
        return forged


@dataclass
class Others:
    """Further plans that forgeries of the dense plan borrow from, as parsed JSON."""

    roomy: Json = field(default_factory=dict)
    restricted: Json = field(default_factory=dict)


def seal(record: Json) -> None:
    """Write the digest that follows from the record's fields."""
    record["record_sha256"] = inputs_digest({k: v for k, v in record.items() if k != "record_sha256"})


def rehash(plan: Json) -> None:
    """Write the digest that follows from the inputs."""
    plan["certificate"]["inputs_sha256"] = inputs_digest(plan["inputs"])


def put(path: str, value: object) -> Change:
    """Set one value; a callable makes the new value from the old one."""

    def change(plan: Json) -> None:
        *parents, last = path.split("/")
        target: Any = plan
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        key = int(last) if isinstance(target, list) else last
        target[key] = value(target[key]) if callable(value) else value

    return change


def both(*changes: Change) -> Change:
    """Make several changes in turn."""

    def change(plan: Json) -> None:
        for each in changes:
            each(plan)

    return change


def times(factor: float) -> Callable[[Any], Any]:
    """Multiply a number, or every number of an object or a list."""

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: scaled(item) for key, item in value.items()}
        return [scaled(item) for item in value] if isinstance(value, list) else value * factor

    return scaled


def plus(number: float) -> Callable[[Any], Any]:
    """Add to a number."""
    return lambda value: value + number


def steps(factor: float, *, all_times: bool = False) -> Change:
    """Scale the step time wherever it stands, and all that follows from it."""

    def change(plan: Json) -> None:
        for part, name in (("objective", "step_time_s"), ("objective", "value"), ("estimate", "step_time_s")):
            plan[part][name] *= factor
        if all_times:
            bound(factor)(plan)
            for name in ("breakdown_s", "rank_time_s"):
                plan["estimate"][name] = times(factor)(plan["estimate"][name])
            for name in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_causal", "mfu_full", "hfu"):
                plan["estimate"][name] /= factor

    return change


def bound(factor: float, *, target: float | None = None) -> Change:
    """Scale the bound, with the gap that follows, and the gap target that would allow it."""

    def change(plan: Json) -> None:
        bound_s = plan["objective"]["bound_s"] * factor
        gap = max(0.0, 1 - bound_s / plan["objective"]["step_time_s"])
        for part in ("objective", "certificate"):
            plan[part] |= {"bound_s": bound_s, "gap": gap}
        if target is not None:
            plan["certificate"]["gap_target"] = target

    return change


def slower_answer(plan: Json, *, honest_bound: bool) -> None:
    """Present the first runner-up as the answer, with the true bound or with its own step time as bound."""
    other, *rest = plan["alternatives"]
    step_s = other["step_time_s"]
    plan["layout"], plan["estimate"], plan["alternatives"] = other["layout"], other["estimate"], rest
    plan["objective"] |= {"step_time_s": step_s, "value": step_s}
    if honest_bound:
        bound(1.0, target=0.27)(plan)
    else:
        for part in ("objective", "certificate"):
            plan[part] |= {"bound_s": step_s, "gap": 0.0}


def moved(source: str, target: str, number: int | None = None) -> Change:
    """Move tuples from one count of the certificate to another; all of them without a number."""

    def change(plan: Json) -> None:
        record = plan["certificate"]
        count = record[source] if number is None else number
        record[source] -= count
        record[target] += count

    return change


def fewer_tuples(plan: Json) -> None:
    """One tuple less, everywhere."""
    for name in ("tuples", "declared_tuples", "removed_by_bound"):
        plan["certificate"][name] -= 1


def another_rule(plan: Json) -> None:
    """A rule that removed five."""
    plan["certificate"]["removed_by_rule"]["of my own"] = 5
    plan["certificate"]["declared_tuples"] += 5


def between_rules(plan: Json) -> None:
    """Move one candidate from the first rule to the second."""
    rules = plan["certificate"]["removed_by_rule"]
    first, second, *_ = rules
    rules[first] -= 1
    rules[second] += 1


def inputs(path: str, value: object, *, hashed: bool = True) -> Change:
    """Change the inputs, and their digest."""
    change = put(f"inputs/{path}", value)
    return both(change, rehash) if hashed else change


def swapped_parts(plan: Json) -> None:
    """Exchange two parts of the step time, so that the sum stays."""
    parts = plan["estimate"]["breakdown_s"]
    parts["forward"], parts["backward"] = parts["backward"], parts["forward"]


def stage_layers(plan: Json) -> None:
    """Move one layer from the last stage that has two to the first stage."""
    stages = plan["layout"]["stages"]
    name = next(iter(stages[0]["kinds"]))
    fuller = next(stage for stage in reversed(stages) if stage["kinds"].get(name, 0) > 0)
    for stage, more in ((stages[0], 1), (fuller, -1)):
        stage["layers"] += more
        stage["kinds"][name] += more


def false_words(plan: Json) -> None:
    """What binds, warnings and reasons of one's own."""
    plan |= {"warnings": ["none needed"], "binds": ["nothing"], "reasons": ["it is the best"]}


def extra_keys(plan: Json) -> None:
    """Keys that a plan doesn't have."""
    for part in (plan, plan["objective"], plan["estimate"], plan["layout"], plan["certificate"]):
        part["note"] = "approved"
    plan["layout"]["stages"][0]["note"] = "approved"


def borrowed(plan: Json, other: Json, *names: str) -> None:
    """Take parts of another plan."""
    for name in names:
        plan[name] = copy.deepcopy(other[name])


def impossible(others: Others) -> Change:
    """The faster layout of a larger memory, said to fit."""

    def change(plan: Json) -> None:
        capacity = plan["estimate"]["memory"]["capacity_bytes"]
        borrowed(plan, others.roomy, "layout", "estimate", "objective")
        plan["certificate"] |= {name: plan["objective"][name] for name in ("bound_s", "gap")}
        plan["estimate"]["memory"]["capacity_bytes"] = capacity
        plan["alternatives"] = []

    return change


def hidden_restriction(others: Others) -> Change:
    """The plan of a restricted space, said to answer for the whole one."""

    def change(plan: Json) -> None:
        whole = plan["inputs"]
        plan.clear()
        plan.update(copy.deepcopy(others.restricted))
        plan["inputs"] = whole
        rehash(plan)

    return change


def twice(plan: Json) -> None:
    """State the answer as its own runner-up."""
    one = copy.deepcopy(plan["alternatives"][0])
    one |= {name: plan[name] for name in ("layout", "estimate")} | {"slower": 0.0}
    one["step_time_s"] = plan["objective"]["step_time_s"]
    plan["alternatives"] = [one, *plan["alternatives"]]


def listed(others: Others) -> dict[str, Forgery]:
    """The forgeries that once passed or were once tried, by the names that they were recorded under."""
    huge = 10**400
    return {
        "objective lower 1ppm": Forgery(put("objective/step_time_s", times(1 - 1e-6))),
        "objective and estimate lower": Forgery(steps(0.999)),
        "all times scaled": Forgery(steps(0.9, all_times=True)),
        "bound raised": Forgery(bound(1.01)),
        "bound lowered consistent": Forgery(bound(0.9)),
        "bound lowered gap target": Forgery(bound(0.9, target=0.1)),
        "bound lowered 50pct gap target 99": Forgery(bound(0.5, target=0.99)),
        "layout swapped alternative optimal": Forgery(lambda p: slower_answer(p, honest_bound=False)),
        "slower layout gap target honest bound": Forgery(lambda p: slower_answer(p, honest_bound=True)),
        "faster impossible layout reserve0": Forgery(impossible(others)),
        "counts moved memory to bound": Forgery(moved("removed_by_memory", "removed_by_bound", 1)),
        "counts solved zero": Forgery(moved("solved", "removed_by_bound")),
        "counts solved all": Forgery(
            both(moved("removed_by_memory", "solved"), moved("removed_by_bound", "solved"))
        ),
        "tuples minus one": Forgery(fewer_tuples),
        "degree tuples minus one": Forgery(put("certificate/degree_tuples", plus(-1))),
        "joint x10": Forgery(put("certificate/joint_assignments", times(10))),
        "rule counts moved": Forgery(between_rules),
        "rule extra": Forgery(another_rule),
        "table hash": Forgery(put("certificate/table_sha256", "0" * 64)),
        "inputs hash": Forgery(put("certificate/inputs_sha256", "0" * 64)),
        "cost hash": Forgery(put("certificate/versions/cost_model", "0" * 64)),
        "versions numpy ortools": Forgery(
            both(put("certificate/versions/numpy", "1.0"), put("certificate/versions/ortools", "1.0")),
            sealed=False,
        ),
        "solver status feasible": Forgery(put("certificate/solver_status", "FEASIBLE")),
        "status stopped": Forgery(put("status", "stopped")),
        "status infeasible": Forgery(put("status", "infeasible")),
        "inputs memory changed rehash": Forgery(inputs("cluster/gpu/memory_bytes", times(2))),
        "inputs gpu faster rehash": Forgery(inputs("cluster/gpu/dense_flops/bf16", times(2))),
        "space restriction hidden from inputs": Forgery(hidden_restriction(others)),
        "inputs batch changed rehash": Forgery(inputs("workload/training/global_batch", 1024)),
        "verdict changed": Forgery(put("verdict", "borderline")),
        "throughput forged": Forgery(put("estimate/tokens_per_s_per_gpu", times(1.1))),
        "stage memory forged": Forgery(put("estimate/memory/stages/0/total_bytes", times(0.9))),
        "device reserved bytes forged": Forgery(
            both(
                put("estimate/memory/reserved_bytes", times(0.9)),
                put("estimate/memory/device_bytes", times(0.9)),
            )
        ),
        "rank times forged": Forgery(put("estimate/rank_time_s/0", times(0.9))),
        "breakdown swapped": Forgery(swapped_parts),
        "alternatives dropped": Forgery(put("alternatives", [])),
        "alternatives time forged": Forgery(put("alternatives/0/step_time_s", times(1.001))),
        "alternatives slower forged": Forgery(put("alternatives/0/slower", times(2))),
        "idle gpus forged": Forgery(put("idle_gpus", 3)),
        "freer gain forged": Forgery(put("freer_gain", 0.3)),
        "warnings binds reasons forged": Forgery(false_words),
        "error band forged": Forgery(put("error_band/median_ape", 0.001)),
        "stage layers moved": Forgery(stage_layers),
        "stage recomputed": Forgery(put("layout/stages/0/recomputed", 1)),
        "stage mtp forged": Forgery(put("layout/stages/0/mtp", 1)),
        "mesh order swapped": Forgery(put("layout/mesh_order", "tp-cp-ep-dp-pp")),
        "mesh order unknown": Forgery(put("layout/mesh_order", "pp-dp-ep-cp-tp")),
        "micro batches double": Forgery(put("layout/micro_batches", times(2))),
        "zero null": Forgery(put("layout/zero", None), Right.UNREADABLE),
        "nan objective": Forgery(put("objective/step_time_s", float("nan")), Right.UNREADABLE),
        "huge int": Forgery(put("certificate/joint_assignments", huge)),
        "rounding large": Forgery(put("certificate/rounding_s", 0.004)),
        "rounding hides faster": Forgery(both(bound(0.9999), put("certificate/rounding_s", 0.004))),
        "extra keys": Forgery(extra_keys, Right.ACCEPTED),
        "solve time": Forgery(put("solve_time_s", 0.001), Right.ACCEPTED),
        "framework changed rehash": Forgery(inputs("framework", "any")),
        "layout equiv zero any": Forgery(put("layout/zero", 2)),
    }


def shared() -> dict[str, Forgery]:
    """Further forgeries that any plan with a layout and a runner-up admits."""
    huge, read = 10**400, Right.UNREADABLE
    return {
        "rounding none": Forgery(put("certificate/rounding_s", 0.0)),
        "solve time as text": Forgery(put("solve_time_s", "short"), read),
        "step time of the estimate alone": Forgery(put("estimate/step_time_s", times(0.999))),
        "objective value alone": Forgery(put("objective/value", times(0.999))),
        "objective name": Forgery(put("objective/name", "cost")),
        "bound of the objective alone": Forgery(put("objective/bound_s", times(0.999))),
        "bound null": Forgery(put("objective/bound_s", None)),
        "bound negative": Forgery(both(put("status", "stopped"), bound(-1.0))),
        "gap alone": Forgery(put("objective/gap", 0.01)),
        "gap target alone": Forgery(put("certificate/gap_target", 0.27)),
        "gap of the search rehash": Forgery(inputs("search/gap", 0.27)),
        "slower layout, gap of the search rehash": Forgery(
            both(
                lambda p: slower_answer(p, honest_bound=True),
                put("alternatives", []),
                inputs("search/gap", 0.27),
            )
        ),
        "status within gap": Forgery(put("status", "within_gap")),
        "status of another word": Forgery(put("status", "perfect")),
        "status a number": Forgery(put("status", 1), read),
        "solver status of another word": Forgery(put("certificate/solver_status", "PERFECT")),
        "runner-up twice": Forgery(lambda p: p["alternatives"].append(copy.deepcopy(p["alternatives"][0]))),
        "answer as its own runner-up": Forgery(twice),
        "thousands of runners-up": Forgery(put("alternatives", lambda listed: listed[:1] * 5000)),
        "runner-up without layout": Forgery(lambda p: p["alternatives"][0].pop("layout"), read),
        "runner-up null": Forgery(put("alternatives/0", None), read),
        "runner-up's reason": Forgery(put("alternatives/0/why", "slower in every way")),
        "runner-up's estimate": Forgery(put("alternatives/0/estimate/mfu_causal", times(0.5))),
        "runner-up's memory": Forgery(put("alternatives/0/estimate/memory/peak_bytes", times(1.2))),
        "runner-up not distinguishable": Forgery(
            put("alternatives/0/distinguishable", lambda told: not told)
        ),
        "runner-up's measurement": Forgery(put("alternatives/0/measurement", "none")),
        "alternatives an object": Forgery(put("alternatives", {}), read),
        "mfu doubled": Forgery(put("estimate/mfu_causal", times(2))),
        "mfu of full attention": Forgery(put("estimate/mfu_full", times(1.01))),
        "hfu": Forgery(put("estimate/hfu", times(1.01))),
        "tflops": Forgery(put("estimate/tflops_per_gpu", times(1.01))),
        "a figure beyond all numbers": Forgery(put("estimate/mfu_causal", float("inf"))),
        "a figure as text": Forgery(put("estimate/hfu", str)),
        "a figure as true": Forgery(put("idle_gpus", False)),
        "a figure as a huge whole number": Forgery(put("estimate/tflops_per_gpu", huge)),
        "a figure null": Forgery(put("estimate/mfu_full", None)),
        "estimate without memory": Forgery(lambda p: p["estimate"].pop("memory")),
        "estimate missing": Forgery(lambda p: p.pop("estimate")),
        "verdict missing": Forgery(lambda p: p.pop("verdict")),
        "peak lower": Forgery(put("estimate/memory/peak_bytes", times(0.99))),
        "capacity larger": Forgery(put("estimate/memory/capacity_bytes", times(1.1))),
        "a rank's memory missing": Forgery(put("estimate/memory/stages", lambda ranks: ranks[1:])),
        "a component of memory": Forgery(put("estimate/memory/stages/0/components_bytes/optimizer", 0.0)),
        "breakdown of an unknown part": Forgery(put("estimate/breakdown_s/bubble", times(0.0))),
        "rank times one more": Forgery(put("estimate/rank_time_s", lambda all_: [*all_, all_[-1]])),
        "removed by equivalence": Forgery(put("certificate/removed_by_equivalence", 7)),
        "declared tuples": Forgery(put("certificate/declared_tuples", plus(1000))),
        "one more solved": Forgery(moved("removed_by_bound", "solved", 1)),
        "all excluded by memory": Forgery(moved("removed_by_bound", "removed_by_memory")),
        "count negative": Forgery(put("certificate/solved", -1), read),
        "count huge": Forgery(put("certificate/solved", huge)),
        "certificate not sealed again": Forgery(moved("removed_by_bound", "solved", 1), sealed=False),
        "seal": Forgery(put("certificate/record_sha256", "0" * 64), sealed=False),
        "certificate null": Forgery(put("certificate", None), read),
        "a rule's count as text": Forgery(put("certificate/removed_by_rule", {"of my own": "5"}), read),
        "rules missing": Forgery(put("certificate/removed_by_rule", {})),
        "tp of another degree": Forgery(put("layout/tp", 17)),
        "tp huge": Forgery(put("layout/tp", 10**25), read),
        "tp beyond all numbers": Forgery(put("layout/tp", huge), read),
        "tp negative": Forgery(put("layout/tp", -1), read),
        "dp and micro-batches exchanged": Forgery(
            both(put("layout/dp", times(2)), put("layout/micro_batches", lambda count: count // 2))
        ),
        "micro-batch left out": Forgery(lambda p: p["layout"].pop("micro_batch")),
        "sequence parallelism": Forgery(put("layout/sp", lambda on: not on)),
        "shard group huge": Forgery(put("layout/hsdp_shard", 10**11)),
        "recomputation of modules": Forgery(
            put("layout/recompute", {"granularity": "selective", "modules": ["mlp"]})
        ),
        "mesh order of control characters": Forgery(put("layout/mesh_order", "\x1b[2J" * 5000)),
        "kinds without end": Forgery(put("layout/stages/0/kinds", {f"k{n}": 1 for n in range(2000)})),
        "schedule": Forgery(put("layout/schedule", "gpipe")),
        "schedule unknown": Forgery(put("layout/schedule", "magic"), read),
        "precision": Forgery(put("layout/precision", "fp8")),
        "memory savers": Forgery(put("layout/savers", ["offload-optimizer"])),
        "stages missing": Forgery(put("layout/stages", [])),
        "stage null": Forgery(put("layout/stages/0", None), read),
        "stage's rank": Forgery(put("layout/stages/0/rank", 5)),
        "stage's chunk": Forgery(put("layout/stages/0/chunk", 5)),
        "stage's embedding": Forgery(put("layout/stages/0/embedding", False)),
        "stage's kind": Forgery(put("layout/stages/0/kinds", {"mamba": 1})),
        "stage of a huge number of layers": Forgery(put("layout/stages/0/layers", 10**25), read),
        "layout null": Forgery(put("layout", None)),
        "layout a list": Forgery(put("layout", []), read),
        "gain of the freest trainer a little": Forgery(put("freer_gain", 0.001)),
        "gain of more than all": Forgery(put("freer_gain", 2.0)),
        "robust choice": Forgery(put("robust", {"chosen": 0, "worst_regret": [0.0]})),
        "error band of another family": Forgery(put("error_band/family", "all")),
        "GPUs of the cluster": Forgery(inputs("cluster/gpu_count", 32)),
        "GPUs of the cluster, not hashed": Forgery(inputs("cluster/gpu_count", 32, hashed=False)),
        "constants of the cluster": Forgery(inputs("cluster/calibration", {"time_scale": 0.5})),
        "an unknown constant": Forgery(inputs("cluster/calibration", {"luck": 2.0}), Right.ACCEPTED),
        "the simple cost model": Forgery(inputs("cost", "simple")),
        "an unknown cost model": Forgery(inputs("cost", "kind"), read),
        "an unknown trainer": Forgery(inputs("framework", "none"), read),
        "a restriction of one's own": Forgery(inputs("space/forbid", {"tp": [1]})),
        "a restriction of an unknown axis": Forgery(inputs("space/fix", {"luck": [1]}), read),
        "a release that is a number": Forgery(inputs("space/software", 12), read),
        "a seed beyond the solver's": Forgery(inputs("search/seed", 10**11), read),
        "space a list": Forgery(inputs("space", []), read),
        "search a list": Forgery(inputs("search", []), read),
        "warm start below the answer": Forgery(inputs("search/warm_start_s", 0.001)),
        "workers as text": Forgery(inputs("search/workers", "many"), read),
        "an unknown input": Forgery(inputs("note", "approved")),
        "layers of the model": Forgery(inputs("workload/model/runs/0/count", times(2))),
        "no layers": Forgery(inputs("workload/model/runs", []), read),
        "layers beyond all memory": Forgery(inputs("workload/model/runs/0/count", 10**18), read),
        "GPUs beyond all memory": Forgery(inputs("cluster/gpu_count", 10**18), read),
        "workload null": Forgery(inputs("workload", None), read),
        "inputs null": Forgery(put("inputs", None), read),
        "inputs missing": Forgery(lambda p: p.pop("inputs"), read),
    }


def of_infeasible() -> dict[str, Forgery]:
    """Forgeries of a plan that says nothing fits."""
    read = Right.UNREADABLE
    return {
        "status optimal": Forgery(put("status", "optimal")),
        "status within gap": Forgery(put("status", "within_gap")),
        "a step time": Forgery(put("objective/step_time_s", 1.0)),
        "a bound": Forgery(both(put("objective/bound_s", 1.0), put("certificate/bound_s", 1.0))),
        "a gap": Forgery(put("objective/gap", 0.0)),
        "a verdict": Forgery(put("verdict", "fits")),
        "an estimate": Forgery(put("estimate", {"step_time_s": 1.0})),
        "runner-up of nothing": Forgery(put("alternatives", [{"step_time_s": 1.0}]), read),
        "what binds": Forgery(put("infeasibility/binding", "rule tp_divides")),
        "the least memory": Forgery(put("infeasibility/least_bytes", times(0.5))),
        "the capacity": Forgery(put("infeasibility/capacity_bytes", times(0.5))),
        "the fewest GPUs": Forgery(put("infeasibility/fewest_gpus", 16)),
        "the conflict": Forgery(put("infeasibility/conflict", [])),
        "the message": Forgery(put("infeasibility/message", "it is too large")),
        "the reason": Forgery(put("reasons", ["it is too large"])),
        "no explanation": Forgery(put("infeasibility", None)),
        "idle GPUs": Forgery(put("idle_gpus", 8)),
        "solver status": Forgery(put("certificate/solver_status", "OPTIMAL")),
        "memory to bound": Forgery(moved("removed_by_memory", "removed_by_bound", 1)),
        "memory to solved": Forgery(moved("removed_by_memory", "solved")),
        "fewer tuples": Forgery(
            both(put("certificate/tuples", plus(-1)), put("certificate/declared_tuples", plus(-1)))
        ),
        "recomputation allowed after all": Forgery(inputs("space/forbid", {})),
        "more GPUs": Forgery(inputs("cluster/gpu_count", 64)),
        "more memory": Forgery(inputs("cluster/gpu/memory_bytes", times(4))),
        "less memory": Forgery(inputs("cluster/gpu/memory_bytes", times(0.5))),
        "fewer layers": Forgery(inputs("workload/model/runs/0/count", 8)),
        "certificate a list": Forgery(put("certificate", []), read),
        "solve time": Forgery(put("solve_time_s", 0.001), Right.ACCEPTED),
    }
