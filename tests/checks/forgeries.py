"""Changes of plans, by name: those that once passed or were tried, and further ones for any plan."""

from __future__ import annotations

import copy

from checks.forging import (
    Forgery,
    Json,
    Others,
    Right,
    another_rule,
    between_rules,
    both,
    bound,
    extra_keys,
    false_words,
    fewer_tuples,
    hidden_restriction,
    impossible,
    inputs,
    moved,
    plus,
    put,
    slower_answer,
    stage_layers,
    steps,
    swapped_parts,
    times,
    twice,
)

HUGE = 10**400

LISTED: dict[str, Forgery] = {
    "objective lower 1ppm": Forgery(put("objective/step_time_s", times(1 - 1e-6))),
    "objective and estimate lower": Forgery(steps(0.999)),
    "all times scaled": Forgery(steps(0.9, all_times=True)),
    "bound raised": Forgery(bound(1.01)),
    "bound lowered consistent": Forgery(bound(0.9)),
    "bound lowered gap target": Forgery(bound(0.9, target=0.1)),
    "bound lowered 50pct gap target 99": Forgery(bound(0.5, target=0.99)),
    "layout swapped alternative optimal": Forgery(lambda p: slower_answer(p, honest_bound=False)),
    "slower layout gap target honest bound": Forgery(lambda p: slower_answer(p, honest_bound=True)),
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
    "inputs batch changed rehash": Forgery(inputs("workload/training/global_batch", 1024)),
    "verdict changed": Forgery(put("verdict", lambda old: "fits" if old == "borderline" else "borderline")),
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
    "huge int": Forgery(put("certificate/joint_assignments", HUGE)),
    "rounding large": Forgery(put("certificate/rounding_s", 0.004)),
    "rounding hides faster": Forgery(both(bound(0.9999), put("certificate/rounding_s", 0.004))),
    "extra keys": Forgery(extra_keys, Right.ACCEPTED),
    "solve time": Forgery(put("solve_time_s", 0.001), Right.ACCEPTED),
    "framework changed rehash": Forgery(inputs("framework", "any")),
    "layout equiv zero any": Forgery(put("layout/zero", 2)),
}
"""Forgeries that once passed or were once tried, by the names that they were recorded under."""


def listed(others: Others) -> dict[str, Forgery]:
    """Return the recorded forgeries, with those that borrow from other plans."""
    return LISTED | {
        "faster impossible layout reserve0": Forgery(impossible(others)),
        "space restriction hidden from inputs": Forgery(hidden_restriction(others)),
    }


READ = Right.UNREADABLE

SHARED: dict[str, Forgery] = {
    "rounding none": Forgery(put("certificate/rounding_s", 0.0)),
    "solve time as text": Forgery(put("solve_time_s", "short"), READ),
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
    "status a number": Forgery(put("status", 1), READ),
    "solver status of another word": Forgery(put("certificate/solver_status", "PERFECT")),
    "runner-up twice": Forgery(lambda p: p["alternatives"].append(copy.deepcopy(p["alternatives"][0]))),
    "answer as its own runner-up": Forgery(twice),
    "thousands of runners-up": Forgery(put("alternatives", lambda listed: listed[:1] * 5000)),
    "runner-up without layout": Forgery(lambda p: p["alternatives"][0].pop("layout"), READ),
    "runner-up null": Forgery(put("alternatives/0", None), READ),
    "runner-up's reason": Forgery(put("alternatives/0/why", "slower in every way")),
    "runner-up's estimate": Forgery(put("alternatives/0/estimate/mfu_causal", times(0.5))),
    "runner-up's memory": Forgery(put("alternatives/0/estimate/memory/peak_bytes", times(1.2))),
    "runner-up not distinguishable": Forgery(put("alternatives/0/distinguishable", lambda told: not told)),
    "runner-up's measurement": Forgery(put("alternatives/0/measurement", "none")),
    "alternatives an object": Forgery(put("alternatives", {}), READ),
    "mfu doubled": Forgery(put("estimate/mfu_causal", times(2))),
    "mfu of full attention": Forgery(put("estimate/mfu_full", times(1.01))),
    "hfu": Forgery(put("estimate/hfu", times(1.01))),
    "tflops": Forgery(put("estimate/tflops_per_gpu", times(1.01))),
    "a figure beyond all numbers": Forgery(put("estimate/mfu_causal", float("inf"))),
    "a figure as text": Forgery(put("estimate/hfu", str)),
    "a figure as true": Forgery(put("idle_gpus", False)),
    "a figure as a huge whole number": Forgery(put("estimate/tflops_per_gpu", HUGE)),
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
    "count negative": Forgery(put("certificate/solved", -1), READ),
    "count huge": Forgery(put("certificate/solved", HUGE)),
    "certificate not sealed again": Forgery(moved("removed_by_bound", "solved", 1), sealed=False),
    "seal": Forgery(put("certificate/record_sha256", "0" * 64), sealed=False),
    "certificate null": Forgery(put("certificate", None), READ),
    "a rule's count as text": Forgery(put("certificate/removed_by_rule", {"of my own": "5"}), READ),
    "rules missing": Forgery(put("certificate/removed_by_rule", {})),
    "tp of another degree": Forgery(put("layout/tp", 17)),
    "tp huge": Forgery(put("layout/tp", 10**25), READ),
    "tp beyond all numbers": Forgery(put("layout/tp", HUGE), READ),
    "tp negative": Forgery(put("layout/tp", -1), READ),
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
    "schedule unknown": Forgery(put("layout/schedule", "magic"), READ),
    "precision": Forgery(put("layout/precision", "fp8")),
    "memory savers": Forgery(put("layout/savers", ["offload-optimizer"])),
    "stages missing": Forgery(put("layout/stages", [])),
    "stage null": Forgery(put("layout/stages/0", None), READ),
    "stage's rank": Forgery(put("layout/stages/0/rank", 5)),
    "stage's chunk": Forgery(put("layout/stages/0/chunk", 5)),
    "stage's embedding": Forgery(put("layout/stages/0/embedding", False)),
    "stage's kind": Forgery(put("layout/stages/0/kinds", {"mamba": 1})),
    "stage of a huge number of layers": Forgery(put("layout/stages/0/layers", 10**25), READ),
    "layout null": Forgery(put("layout", None)),
    "layout a list": Forgery(put("layout", []), READ),
    "gain of the freest trainer a little": Forgery(put("freer_gain", 0.001)),
    "gain of more than all": Forgery(put("freer_gain", 2.0)),
    "robust choice": Forgery(put("robust", {"chosen": 0, "worst_regret": [0.0]})),
    "error band of another family": Forgery(put("error_band/family", "all")),
    "GPUs of the cluster": Forgery(inputs("cluster/gpu_count", 32)),
    "GPUs of the cluster, not hashed": Forgery(inputs("cluster/gpu_count", 32, hashed=False)),
    "constants of the cluster": Forgery(inputs("cluster/calibration", {"time_scale": 0.5})),
    "an unknown constant": Forgery(inputs("cluster/calibration", {"luck": 2.0}), READ),
    "the simple cost model": Forgery(inputs("cost", "simple")),
    "an unknown cost model": Forgery(inputs("cost", "kind"), READ),
    "an unknown trainer": Forgery(inputs("framework", "none"), READ),
    "a restriction of one's own": Forgery(inputs("space/forbid", {"tp": [1]})),
    "a restriction of an unknown axis": Forgery(inputs("space/fix", {"luck": [1]}), READ),
    "a release that is a number": Forgery(inputs("space/software", 12), READ),
    "a seed beyond the solver's": Forgery(inputs("search/seed", 10**11), READ),
    "space a list": Forgery(inputs("space", []), READ),
    "search a list": Forgery(inputs("search", []), READ),
    "warm start below the answer": Forgery(inputs("search/warm_start_s", 0.001)),
    "workers as text": Forgery(inputs("search/workers", "many"), READ),
    "an unknown input": Forgery(inputs("note", "approved")),
    "layers of the model": Forgery(inputs("workload/model/runs/0/count", times(2))),
    "no layers": Forgery(inputs("workload/model/runs", []), READ),
    "layers beyond all memory": Forgery(inputs("workload/model/runs/0/count", 10**18), READ),
    "GPUs beyond all memory": Forgery(inputs("cluster/gpu_count", 10**18), READ),
    "workload null": Forgery(inputs("workload", None), READ),
    "inputs null": Forgery(put("inputs", None), READ),
    "inputs missing": Forgery(lambda p: p.pop("inputs"), READ),
}
"""Further forgeries that any plan with a layout and a runner-up admits."""

OF_INFEASIBLE: dict[str, Forgery] = {
    "status optimal": Forgery(put("status", "optimal")),
    "status within gap": Forgery(put("status", "within_gap")),
    "a step time": Forgery(put("objective/step_time_s", 1.0)),
    "a bound": Forgery(both(put("objective/bound_s", 1.0), put("certificate/bound_s", 1.0))),
    "a gap": Forgery(put("objective/gap", 0.0)),
    "a verdict": Forgery(put("verdict", "fits")),
    "a gain over nothing": Forgery(put("freer_gain", 0.3)),
    "an estimate": Forgery(put("estimate", {"step_time_s": 1.0})),
    "runner-up of nothing": Forgery(put("alternatives", [{"step_time_s": 1.0}]), READ),
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
    "certificate a list": Forgery(put("certificate", []), READ),
    "solve time": Forgery(put("solve_time_s", 0.001), Right.ACCEPTED),
}
"""Forgeries of a plan that says nothing fits."""


def comfortable_answer(plan: Json) -> None:
    """Name the answer itself as the layout with memory to spare."""
    step_s = plan["objective"]["step_time_s"]
    plan["comfortable"] |= {
        "layout": plan["layout"],
        "estimate": plan["estimate"],
        "step_time_s": step_s,
        "slower": 0.0,
    }


OF_SWITCHED: dict[str, Forgery] = {
    "another dispatcher": Forgery(put("layout/switches/dispatcher", "alltoall")),
    "an unknown dispatcher": Forgery(put("layout/switches/dispatcher", "luck"), READ),
    "overlap switched on": Forgery(put("layout/switches/ep_overlap", True)),
    "graphs switched on": Forgery(put("layout/switches/cuda_graph", "partial")),
    "no switches": Forgery(put("layout/switches", {})),
    "a switch that the space leaves alone": Forgery(
        lambda p: p["layout"]["switches"].update(fp8_param_gather=True)
    ),
    "an unknown switch": Forgery(lambda p: p["layout"]["switches"].update(luck=True), Right.ACCEPTED),
    "switches a list": Forgery(put("layout/switches", ["dispatcher"]), READ),
    "switches of a runner-up": Forgery(put("alternatives/0/layout/switches/dispatcher", "alltoall")),
    "worth of a switch": Forgery(put("switches_worth/dispatcher", times(2))),
    "worth of what is off": Forgery(lambda p: p["switches_worth"].update(ep_overlap=0.1), Right.ACCEPTED),
    "worth nothing": Forgery(put("switches_worth", {})),
    "switch forbidden in the inputs": Forgery(inputs("space/forbid", {"dispatcher": ["hybridep"]})),
    "switch fixed in the inputs": Forgery(inputs("space/fix", lambda fix: fix | {"cuda_graph": ["partial"]})),
    "unknown value fixed in the inputs": Forgery(
        inputs("space/fix", lambda fix: fix | {"dispatcher": ["luck"]}), READ
    ),
    "another layout with room": Forgery(put("comfortable/layout/zero", lambda zero: 3 - zero)),
    "time of the layout with room": Forgery(put("comfortable/step_time_s", times(0.99))),
    "memory of the layout with room": Forgery(put("comfortable/estimate/memory/peak_bytes", times(0.9))),
    "layout with room no slower": Forgery(put("comfortable/slower", 0.0)),
    "words of the layout with room": Forgery(put("comfortable/why", "it is better")),
    "no layout with room": Forgery(put("comfortable", None)),
    "the answer as layout with room": Forgery(comfortable_answer),
    "certain to be the best": Forgery(put("choice/chance_best", 0.99)),
    "loses nothing": Forgery(put("choice/expected_loss", 0.0)),
    "compared with more": Forgery(put("choice/layouts", 30)),
    "more draws": Forgery(put("choice/draws", 10_000)),
    "no chance told": Forgery(put("choice", None)),
    "narrower interval": Forgery(put("error_band/ratios/80", [0.99, 1.01])),
    "no interval": Forgery(put("error_band/ratios", {})),
    "interval of seen runs": Forgery(put("error_band/seen_ratios/95", [0.99, 1.01])),
    "more runs behind the interval": Forgery(put("error_band/rows", plus(1000))),
    "nothing indistinct": Forgery(put("error_band/indistinct", 0.0)),
    "near-ties left open": Forgery(put("open_ties", plus(5))),
}
"""Forgeries of what an answer states of its launch switches, of a roomier layout, and of how sure it is."""

OF_GOAL: dict[str, Forgery] = {
    "less energy": Forgery(put("objective/value", times(0.99))),
    "less energy, bound too": Forgery(
        both(put("objective/value", times(0.99)), put("objective/value_bound", times(0.99)))
    ),
    "a lower bound of energy": Forgery(put("objective/value_bound", times(0.9))),
    "more energy at first": Forgery(put("objective/first_value", times(1.5))),
    "another unit": Forgery(put("objective/unit", "MWh")),
    "another meaning": Forgery(put("objective/meaning", "energy of one step")),
    "another objective": Forgery(put("objective/name", "cost")),
    "not proven": Forgery(put("objective/proven", False)),
    "over constants": Forgery(put("objective/samples", 32)),
    "asked for time": Forgery(inputs("minimize", "time")),
    "asked for memory": Forgery(inputs("minimize", "memory")),
    "asked for luck": Forgery(inputs("minimize", "luck"), READ),
    "slower answer": Forgery(lambda p: slower_answer(p, honest_bound=False)),
}
"""Forgeries of an answer in another objective than time."""
