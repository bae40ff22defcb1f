"""Further changes of plans: figures of another kind, figures exchanged or left out, figures that no plan has."""

from __future__ import annotations

from checks.forging import (
    Forgery,
    Json,
    Right,
    both,
    bound,
    exchanged,
    inputs,
    invented,
    moved,
    plus,
    put,
    times,
    without,
)

READ = Right.UNREADABLE


def fractions(plan: Json) -> None:
    """Write every whole number as a fraction of the same value, but for the inputs."""

    def changed(value: object) -> object:
        if isinstance(value, dict):
            return {key: changed(item) for key, item in value.items()}
        if isinstance(value, list):
            return [changed(item) for item in value]
        return float(value) if type(value) is int else value

    plan |= {key: changed(value) for key, value in plan.items() if key != "inputs"}


def as_counts_of_fractions(counts: Json) -> Json:
    """Write numbers by name as fractions."""
    return {name: float(count) for name, count in counts.items()}


def backwards(values: list[object]) -> list[object]:
    """Turn a list around."""
    return values[::-1]


KINDS: dict[str, Forgery] = {
    "tp as a fraction": Forgery(put("layout/tp", float), READ),
    "micro-batches as a fraction": Forgery(put("layout/micro_batches", float), READ),
    "runner-up's dp as a fraction": Forgery(put("alternatives/0/layout/dp", float), READ),
    "layers as a fraction": Forgery(put("layout/stages/0/layers", float), READ),
    "layers by kind as fractions": Forgery(put("layout/stages/0/kinds", as_counts_of_fractions), READ),
    "all whole numbers as fractions": Forgery(fractions, READ),
    "idle GPUs as a fraction": Forgery(put("idle_gpus", float)),
    "runs behind the interval as a fraction": Forgery(put("error_band/rows", plus(1e-8))),
    "layouts compared as a fraction": Forgery(put("choice/layouts", float)),
    "draws as a fraction": Forgery(put("choice/draws", float)),
    "value as text": Forgery(put("objective/value", str)),
    "verdict in capitals": Forgery(put("verdict", str.upper)),
    "status in capitals": Forgery(put("status", str.upper)),
    "one rank's memory as an object": Forgery(put("estimate/memory/stages", lambda ranks: ranks[0])),
    "what carries a gain as an object": Forgery(put("alternatives/0/carried_by", {})),
}
"""Values of another kind than the plan's."""

WITHOUT_LAYOUT: dict[str, Forgery] = {
    "tuples as a fraction": Forgery(put("certificate/tuples", float), READ),
    "joint assignments as a fraction": Forgery(put("certificate/joint_assignments", float), READ),
    "rules' counts as fractions": Forgery(put("certificate/removed_by_rule", as_counts_of_fractions), READ),
    "one rule's count left out": Forgery(
        lambda plan: plan["certificate"]["removed_by_rule"].pop(
            next(iter(plan["certificate"]["removed_by_rule"]))
        )
    ),
    "numpy's version left out": Forgery(without("certificate/versions/numpy"), READ),
    "warnings left out": Forgery(without("warnings")),
    "a second goal": Forgery(put("objective/then", {"name": "memory", "value": 1.0})),
    "an unknown time limit": Forgery(inputs("search/time_limit_s", 1.0)),
    "an entry of the vocabulary": Forgery(inputs("workload/model/vocab", plus(1))),
}
"""Forgeries that a plan without a layout admits too."""

FURTHER: dict[str, Forgery] = {
    **KINDS,
    **WITHOUT_LAYOUT,
    "estimate of the runner-up": Forgery(exchanged("estimate", "alternatives/0/estimate")),
    "memory of the runner-up": Forgery(exchanged("estimate/memory", "alternatives/0/estimate/memory")),
    "interval of no width": Forgery(put("estimate/interval_s/50", lambda ends: [sum(ends) / 2] * 2)),
    "intervals exchanged": Forgery(exchanged("estimate/interval_s/50", "estimate/interval_s/80")),
    "interval backwards": Forgery(put("estimate/interval_s/50", backwards)),
    "interval of memory": Forgery(put("estimate/memory/interval_bytes/95/1", times(0.9))),
    "intervals left out": Forgery(without("estimate/interval_s")),
    "nothing binds": Forgery(put("binds", [])),
    "more runs carry a gain": Forgery(put("alternatives/0/carried_by/0/rows", plus(1000))),
    "nothing carries a gain": Forgery(put("alternatives/0/carried_by", [])),
    "runner-up's distinction left out": Forgery(without("alternatives/0/distinguishable")),
    "runner-up's micro-batch": Forgery(put("alternatives/0/layout/micro_batch", times(2))),
    "savers twice": Forgery(put("layout/savers", ["offload-optimizer", "offload-optimizer"])),
    "shard groups of one": Forgery(put("layout/hsdp_shard", 1)),
    "no expert-tensor degree": Forgery(put("layout/etp", None), READ),
    "a layout with room of nothing": Forgery(put("comfortable", {})),
    "a robust choice of nothing": Forgery(put("robust", {})),
    "an explanation that was cut short": Forgery(
        put("infeasibility", {"binding": "none", "cut_short": True})
    ),
    "reasons of one's own": Forgery(put("reasons", ["it is the best"])),
    "no gain of the freest trainer": Forgery(put("freer_gain", -0.001)),
    "bound below the rounding": Forgery(bound(1 - 1e-6)),
    "excluded by memory after all": Forgery(moved("removed_by_bound", "removed_by_memory", 1)),
    "nearer runners-up were asked for": Forgery(inputs("search/near", 1e-5)),
    "fewer layouts were asked for": Forgery(inputs("search/top", 1)),
    "another seed": Forgery(both(inputs("search/seed", 7), put("choice/chance_best", times(1.001)))),
}
"""Further forgeries that any plan with a layout and a runner-up admits."""

INVENTED: tuple[Forgery, ...] = (
    invented("certificate/confidence", 0.99),
    invented("solve_time_saved", 1e9),
    invented("reasons_of_mine", ["it is the best"]),
    invented("certificate/versions/torch", "2.9"),
    invented("layouts", [{"tp": 1}]),
    invented("note\naccepted", 1, "note\\naccepted"),
    invented("\x1b[2Jnote", 1, "\\x1b[2Jnote"),
    invented("certificate/removed_by_rule/of my own", 0),
)
"""Statements under keys that no plan has, of any plan."""

INVENTED_OF_LAYOUTS: tuple[Forgery, ...] = (
    invented("estimate/cost_usd", 5.0),
    invented("estimate/breakdown_s/free_lunch", -1.0),
    invented("estimate/memory/stages/0/components_bytes/slack", -1e9),
    invented("error_band/ratios/99", [0.99, 1.01], "error_band.ratios.99"),
    invented("alternatives/0/speedup", 3.0),
    invented("layout/stages/0/speedup", 3.0),
    invented("choice/regret", 0.0),
    invented("objective/unit", "ms"),
)
"""Such statements of plans with a layout and a runner-up."""
