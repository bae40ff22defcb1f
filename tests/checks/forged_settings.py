"""Changes of plans whose answers merge passes, recompute in groups, choose how contexts are exchanged, or meet demands."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from checks.forging import Forgery, Json, Right, both, exchanged, inputs, plus, put, times, without

if TYPE_CHECKING:
    from checks.forging import Change

READ = Right.UNREADABLE
SWITCH = "layout/switches"


def stated(switch: str, value: object) -> Change:
    """State a launch switch of the answer, whether or not it does."""
    return lambda plan: plan["layout"]["switches"].update({switch: value})


def shifted(source: str, target: str, share: float = 1.0) -> Change:
    """Move seconds from one part of the step to another, so that the sum stays."""

    def change(plan: Json) -> None:
        parts = plan["estimate"]["breakdown_s"]
        moved = parts[source] * share
        parts[source], parts[target] = parts[source] - moved, parts[target] + moved

    return change


def lighter(component: str) -> Change:
    """Leave a component of memory out on every rank, with the sums and the peak that follow."""

    def change(plan: Json) -> None:
        memory = plan["estimate"]["memory"]
        for rank in memory["stages"]:
            rank["total_bytes"] -= rank["components_bytes"].get(component, 0.0)
            rank["components_bytes"][component] = 0.0
        memory["peak_bytes"] = max(rank["total_bytes"] for rank in memory["stages"])

    return change


def exchanged_chunks(plan: Json) -> None:
    """Move a layer from one chunk of a rank to another of its chunks: no rank holds more than before."""
    stages = plan["layout"]["stages"]
    one, other = [stage for stage in stages if stage["rank"] == 0][:2]
    for stage, more in ((one, 1), (other, -1)):
        stage["layers"] += more
        stage["kinds"]["moe"] += more


def runner_up_first(plan: Json) -> None:
    """Let answer and first runner-up change places, times and objective too."""
    other = plan["alternatives"][0]
    for name in ("layout", "estimate"):
        plan[name], other[name] = other[name], plan[name]
    plan["objective"]["step_time_s"] = plan["estimate"]["step_time_s"]
    other["step_time_s"] = other["estimate"]["step_time_s"]


OF_MERGED: dict[str, Forgery] = {
    "passes apart": Forgery(put(f"{SWITCH}/ep_overlap", False)),
    "merging not said": Forgery(without(f"{SWITCH}/ep_overlap")),
    "weight gradients delayed": Forgery(put(f"{SWITCH}/delay_wgrad", True)),
    # The model has none: named as no statement of a plan.
    "shared experts beside": Forgery(stated("shared_expert_overlap", True), Right.ACCEPTED),
    "merging as a number": Forgery(put(f"{SWITCH}/ep_overlap", 1), READ),
    "graphs of layers": Forgery(put(f"{SWITCH}/cuda_graph", "partial")),
    "graphs not said": Forgery(without(f"{SWITCH}/cuda_graph")),
    "graphs of everything": Forgery(put(f"{SWITCH}/cuda_graph", "all"), READ),
    "a preset's own value": Forgery(stated("dp_overlap", True)),
    "gradients not beside compute": Forgery(stated("dp_overlap", False)),
    "a loss in parts": Forgery(stated("loss_chunks", 8)),
    "loss in no parts": Forgery(stated("loss_chunks", 0), READ),
    "expert traffic called bubble": Forgery(shifted("ep", "bubble", 0.5)),
    "no memory for graphs": Forgery(lighter("graphs")),
    "no merged micro-batch held": Forgery(put("estimate/memory/stages/0/components_bytes/activations", times(0.9))),
    "chunks uneven": Forgery(exchanged_chunks),
    "one chunk fewer": Forgery(put("layout/vp", 3)),
    "pp and vp exchanged": Forgery(both(put("layout/pp", 4), put("layout/vp", 2))),
    "plain 1F1B of chunks": Forgery(put("layout/schedule", "1f1b")),
    "merging forbidden": Forgery(inputs("space/fix/ep_overlap", ["0"])),
    "merging left open": Forgery(inputs("space/fix", lambda fix: {k: v for k, v in fix.items() if k != "ep_overlap"})),
    "worth of merging": Forgery(put("switches_worth", lambda worth: {name: 0.5 for name in worth} | {"cuda_graph": 0.5})),
}  # fmt: skip
"""Of a plan with merged passes in an interleaved pipeline under a graph of the whole iteration."""

OF_GROUPED: dict[str, Forgery] = {
    "larger groups": Forgery(put("layout/recompute/group", 4)),
    "groups of none": Forgery(put("layout/recompute/group", 0), READ),
    "groups of one": Forgery(put("layout/recompute/group", 1)),
    "groups that do not fill the model": Forgery(put("layout/recompute/group", 3)),
    "groups below none": Forgery(put("layout/recompute/group", -2), READ),
    "groups as a fraction": Forgery(put("layout/recompute/group", 2.0), READ),
    "groups not said": Forgery(without("layout/recompute/group")),
    "groups of modules": Forgery(put("layout/recompute/granularity", "selective")),
    "modules of whole layers": Forgery(put("layout/recompute/modules", ["mlp"])),
    "one layer fewer is repeated": Forgery(put("layout/stages/0/recomputed", plus(-1))),
    "nothing is repeated": Forgery(put("layout/stages/0/recomputed", 0)),
    "runner-up in other groups": Forgery(put("alternatives/0/layout/recompute/group", lambda k: 6 - k)),
    "recomputation called backward": Forgery(shifted("recompute", "backward")),
    "backward called recomputation": Forgery(shifted("backward", "recompute", 0.1)),
    "no memory for a group": Forgery(lighter("recompute_transient")),
    "other groups were allowed": Forgery(inputs("space/fix/recompute", ["uniform:4"])),
    "any recomputation was allowed": Forgery(
        inputs("space/fix", lambda fix: {k: v for k, v in fix.items() if k != "recompute"})
    ),
}
"""Of a plan that recomputes in groups of two layers."""

OF_CONTEXT: dict[str, Forgery] = {
    "keys in a ring": Forgery(put(f"{SWITCH}/cp_kind", "p2p")),
    "keys gathered": Forgery(put(f"{SWITCH}/cp_kind", "all_gather")),
    # On one node heads are exchanged alone: as fast, and as true.
    "both at once": Forgery(put(f"{SWITCH}/cp_kind", "a2a+p2p"), Right.ACCEPTED),
    "kind not said": Forgery(without(f"{SWITCH}/cp_kind")),
    "kind null": Forgery(put(f"{SWITCH}/cp_kind", None)),
    "kind in capitals": Forgery(put(f"{SWITCH}/cp_kind", "A2A"), READ),
    "kind a list": Forgery(put(f"{SWITCH}/cp_kind", ["a2a"]), READ),
    "contexts not shared": Forgery(both(put("layout/cp", 1), put("layout/tp", 4))),
    "half of the contexts": Forgery(both(put("layout/cp", 2), put("layout/dp", times(2)))),
    "exchange called forward": Forgery(shifted("cp", "forward")),
    "runner-up exchanges otherwise": Forgery(
        lambda plan: plan["alternatives"][0]["layout"]["switches"].update(cp_kind="all_gather")
    ),
    "answer and runner-up exchanged": Forgery(runner_up_first),
    "switches of the runner-up": Forgery(
        both(put("layout/switches/cp_kind", "p2p"), exchanged("estimate", "alternatives/0/estimate"))
    ),
    "another order of ranks": Forgery(put("layout/mesh_order", "tp-cp-ep-pp-dp")),
    "other kinds were forbidden": Forgery(inputs("space/forbid", {"cp_kind": ["a2a"]})),
}
"""Of a plan whose context parallelism exchanges heads."""

OF_DEMANDED: dict[str, Forgery] = {
    "more memory was allowed": Forgery(inputs("space/require/0", "peak_gb <= 75")),
    "less memory was allowed": Forgery(inputs("space/require/0", "peak_gb <= 40")),
    "a demand less": Forgery(inputs("space/require", lambda texts: texts[:1])),
    "a demand more": Forgery(inputs("space/require", lambda texts: [*texts, "tp >= 2"])),
    "a demand of its own": Forgery(inputs("space/require/0", "luck <= 60"), READ),
    "a demand of nothing": Forgery(inputs("space/require/0", ""), READ),
    "a demand as a number": Forgery(inputs("space/require/0", 60), READ),
    "demands of the same meaning": Forgery(inputs("space/require/0", "60 >= peak_gb"), Right.ACCEPTED),
    "another price": Forgery(inputs("space/gpu_hour_cost", 1.0)),
    "a price below nothing": Forgery(inputs("space/gpu_hour_cost", -2.0), READ),
    "another second goal": Forgery(both(put("objective/then/name", "memory"), inputs("then/goal", "memory"))),
    "a wider margin": Forgery(both(put("objective/then/within", 0.5), inputs("then/within", 0.5))),
    "the margin alone": Forgery(put("objective/then/within", 0.2)),
    "cheaper": Forgery(put("objective/then/value", times(0.9))),
    "dearer at first": Forgery(put("objective/then/first_value", times(1.2))),
    "more were near enough": Forgery(put("objective/then/tuples", plus(10))),
    "second goal not proven": Forgery(put("objective/then/proven", False)),
    "second goal left out": Forgery(without("objective/then")),
    "second goal was not asked for": Forgery(inputs("then", None)),
    "cost as the objective": Forgery(put("objective/name", "cost")),
    "memory just below the demand": Forgery(put("estimate/memory/peak_bytes", 6e10 - 1)),
    "narrow interval": Forgery(put("estimate/interval_s/95", lambda ends: [sum(ends) / 2 - 0.1, sum(ends) / 2 + 0.1])),
    "interval of 95 as that of 50": Forgery(exchanged("estimate/interval_s/50", "estimate/interval_s/95")),
    "memory's interval narrower": Forgery(put("estimate/memory/interval_bytes/80/0", times(1.02))),
    "ratios of seen runs": Forgery(
        lambda plan: plan["error_band"].update(ratios=copy.deepcopy(plan["error_band"]["seen_ratios"]))
    ),
    "runner-up told apart": Forgery(put("alternatives/0/distinguishable", True)),
    "runner-up no slower": Forgery(put("alternatives/0/slower", 0.0)),
    "another measurement": Forgery(put("alternatives/0/measurement", "none needed")),
    "first stage of fewer layers": Forgery(put("layout/stages/0/layers", 16)),
}  # fmt: skip
"""Of a plan with requirements, a price and a second goal."""
