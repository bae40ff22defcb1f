"""The axes of the declared space and their ranges."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.frameworks.abilities import ALL_ORDERS
from layoutopt.optimizer.frameworks.registry import abilities_of
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.space.recompute_sets import WHOLE_LAYERS, recompute_choices, recompute_text
from layoutopt.optimizer.space.savers import saver_sets
from layoutopt.optimizer.space.switch_sets import declared_switches, dominated_switches, switch_sets
from layoutopt.optimizer.specs.layer_runs import MAX_LAYERS
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import (
    OP_MODULE,
    RECOMPUTE_MODULES,
    Granularity,
    Precision,
    Schedule,
)
from layoutopt.optimizer.topology.mesh import dense_axes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from layoutopt.optimizer.frameworks.abilities import Abilities
    from layoutopt.optimizer.frameworks.switches import Value as SwitchValue
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.options import SpaceOptions, Value
    from layoutopt.optimizer.specs.layout import Switches
    from layoutopt.optimizer.specs.vocabulary import Saver

MICRO_BATCHES = (1, 2, 4, 8, 16)
DEFAULT_SCHEDULES = (Schedule.NONE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroChoice:
    """A ZeRO stage, sharded over the whole data-parallel group, over fixed groups, or inside a level.

    ``level_gpus`` is the size in GPUs of the node, NVLink domain or pod that a shard group must tile,
    ``shard`` a fixed number of ranks; both 0 mean the whole group.
    """

    stage: int
    level: str = ""
    level_gpus: int = 0
    shard: int = 0

    def __str__(self) -> str:
        inside = (
            f" in groups of {self.shard}" if self.shard else f" in the {self.level}" if self.level else ""
        )
        return f"{self.stage}{inside}"


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Declared ranges.

    ``dp`` is None where it follows from the GPU count; ``gpus`` is the least and the most GPUs. ``savers`` are the sets
    of memory savers; every one is tried with every precision. So is every set of launch ``switches``; ``switch_values`` are
    the values of each, ``dominated`` those that others are never slower or larger than.
    """

    ctx: Context
    options: SpaceOptions
    gpus: tuple[int, int]
    tp: tuple[int, ...]
    cp: tuple[int, ...]
    pp: tuple[int, ...]
    ep: tuple[int, ...]
    dp: tuple[int, ...] | None
    micro_batch: tuple[int, ...]
    zero: tuple[ZeroChoice, ...]
    recomputes: tuple[Recompute, ...]
    orders: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    precisions: tuple[Precision, ...]
    savers: tuple[tuple[Saver, ...], ...]
    switches: tuple[Switches, ...] = ()
    switch_values: Mapping[str, tuple[SwitchValue, ...]] = field(default_factory=dict)
    dominated: Mapping[str, tuple[SwitchValue, ...]] = field(default_factory=dict)

    @cached_property
    def abilities(self) -> Abilities:
        """What the framework's release can launch."""
        return abilities_of(self.ctx.framework, self.ctx.release)

    def sp_of(self, tp: int) -> tuple[int, ...]:
        """Return the sequence-parallel settings at a tensor degree: on whenever tp > 1 unless restricted."""
        # One rank has the whole sequence: there is nothing to shard along it.
        if tp == 1:
            return (0,) if any(self.options.allows("sp", value) for value in (0, 1)) else ()
        # What a user fixes is searched even where the trainer would choose otherwise; rules still judge it.
        if "sp" in self.options.fix:
            return tuple(int(value) for value in self.options.fix["sp"] if self.options.allows("sp", value))
        # A framework's own setting, or the plain one where that is restricted; neither where both are.
        usual = dict.fromkeys((int(self.abilities.sp), 0))
        return tuple(value for value in usual if self.options.allows("sp", value))[:1]

    def etp_of(self, tp: int) -> tuple[int, ...]:
        """Return the expert-tensor degrees: divisors of tp."""
        # Experts' tensor ranks are taken out of tp's: nothing else divides them.
        # Without experts, or where a trainer splits none, another degree would have nothing to divide.
        if not self.ctx.experts:
            return tuple(etp for etp in (1,) if self.options.allows("etp", etp))
        if not self.abilities.etp or "etp" in self.abilities.fixed_axes:
            return _ints(self.options, "etp", (1,))
        return _ints(self.options, "etp", divisors(tp))

    def vp_of(self, pp: int) -> tuple[int, ...]:
        """Return the chunks per rank, up to one block each, as far as a schedule runs them."""
        # Two more than blocks: the first chunk may hold the embedding alone, the last one the head.
        top = max((self.ctx.blocks + 2) // pp, 1) if pp > 1 else 1
        top = 1 if "vp" in self.abilities.fixed_axes else top
        return tuple(vp for vp in _ints(self.options, "vp", range(1, top + 1)) if self.schedules_of(pp, vp))

    def schedules_of(self, pp: int, vp: int) -> tuple[Schedule, ...]:
        """Return the listed schedules that run so many chunks per rank."""
        if pp == 1:
            return (Schedule.NONE,) if Schedule.NONE in self.schedules else ()
        fitting = (s for s in self.schedules if s is not Schedule.NONE)
        return tuple(s for s in fitting if SCHEDULES[s].min_chunks <= vp <= (SCHEDULES[s].max_chunks or vp))


def declare_axes(ctx: Context, options: SpaceOptions) -> Axes:
    """Derive the declared ranges from workload, cluster, framework and restrictions."""
    abilities = abilities_of(ctx.framework, ctx.release)
    training, most = ctx.training, ctx.gpus
    idle = options.allow_idle
    sequence = training.sequence_length

    def degrees(axis: str, idle_range: Iterable[int], limit: int) -> tuple[int, ...]:
        """Return an axis's values: one where the framework has none, any up to a limit where GPUs may stand idle."""
        if axis in abilities.fixed_axes:
            return _ints(options, axis, (1,))
        return _ints(options, axis, idle_range if idle is not None else divisors(most, limit))

    # Tensor parallelism exchanges every layer twice: beyond the fast links it has no use.
    # As in ``vp_of``: the first stage may hold the embedding alone, the last one the head.
    domain, slots = min(ctx.cluster.tensor_domain, most), ctx.blocks + 2
    dividing = _micro_batches(training.global_batch, options)
    expert_degrees = divisors(ctx.experts) if ctx.experts and "ep" not in abilities.fixed_axes else (1,)
    return Axes(
        ctx=ctx,
        options=options,
        gpus=(most if idle is None else max(1, _least_gpus(most, idle)), most),
        tp=degrees("tp", range(1, domain + 1), domain),
        # A rank takes an early and a late slice, so that causal masks leave all ranks the same work.
        cp=degrees("cp", divisors(sequence, max(sequence // 2, 1)), max(sequence // 2, 1)),
        pp=degrees("pp", range(1, slots + 1), slots),
        ep=_ints(options, "ep", expert_degrees),
        dp=None if idle is None else _ints(options, "dp", divisors(training.global_batch)),
        micro_batch=_ints(options, "micro_batch", dividing),
        zero=_zero_choices(ctx, options, abilities),
        recomputes=_recomputes(ctx, options, abilities),
        orders=_orders(options, abilities),
        schedules=_schedules(ctx, options),
        precisions=_precisions(ctx, options),
        savers=saver_sets(ctx, options),
        switches=switch_sets(ctx, options),
        switch_values=declared_switches(ctx, options),
        dominated=dominated_switches(ctx, options),
    )


def _micro_batches(batch: int, options: SpaceOptions) -> tuple[int, ...]:
    """Return the listed sizes that divide the batch, by default ``MICRO_BATCHES``; of a batch that not all of these divide,
    every divisor up to the largest, since the powers of two in 30 are no choice."""
    sizes = options.micro_batches or MICRO_BATCHES
    dividing = tuple(size for size in sizes if batch % size == 0)
    # Sizes that a user lists are a wish: where some do not divide, no others take their place.
    whole = options.micro_batches or len(dividing) == len(sizes)
    return dividing if whole else tuple(divisors(batch, sizes[-1]))


def _least_gpus(most: int, idle: float) -> int:
    """Return the fewest GPUs a layout may use: at least (1 - idle) of all, rounded up."""
    # 0.29 * 100 is 28.999999999999996 in floats.
    return most - int(idle * most + 1e-9)


def _ints(options: SpaceOptions, axis: str, default: Iterable[int]) -> tuple[int, ...]:
    """Return the fixed values, or the default range, within the limits.

    A fixed value may exceed the default range.
    """
    # Of a wish beyond the range, rules say why it fails, which an empty axis could not.
    values: Iterable[Value] = options.fix.get(axis) or default
    return tuple(sorted({int(v) for v in values if options.allows(axis, v)}))


def _zero_choices(ctx: Context, options: SpaceOptions, abilities: Abilities) -> tuple[ZeroChoice, ...]:
    """Every stage over the whole group, then inside the node, the NVLink domain and the pod."""
    # Shard groups are tried beside whole ones: they trade memory for traffic that stays inside a level.
    stages = _ints(options, "zero", abilities.zero)
    whole = [ZeroChoice(stage=stage) for stage in stages]
    # Groups need replicas of shards, which some trainers have for ZeRO-3 alone.
    inside = [stage for stage in stages if stage in abilities.hsdp_zero]
    if "hsdp_shard" in options.fix:
        sizes = _ints(options, "hsdp_shard", ())
        fixed = [ZeroChoice(stage=stage, shard=size) for stage in inside for size in sizes if size]
        # 0 is how the whole group is written among sizes.
        return tuple((whole if 0 in sizes else []) + fixed)
    if not options.allows("hsdp_shard", 0):
        whole = []
    grouped = [
        ZeroChoice(stage=stage, level=level, level_gpus=gpus)
        for stage in inside
        for level, gpus in shard_levels(ctx).items()
    ]
    return tuple(sorted(whole + grouped, key=lambda choice: choice.stage))


def shard_levels(ctx: Context) -> dict[str, int]:
    """Return the levels that can hold a shard group and their GPUs: node, NVLink domain, pod."""
    cluster = ctx.cluster
    # The largest pod below the cluster: groups in smaller ones cross no slower links.
    pods = [level.gpus for level in cluster.levels if cluster.nvlink_domain < level.gpus < cluster.gpu_count]
    sizes = {
        "node": cluster.gpus_per_node,
        "NVLink domain": cluster.nvlink_domain,
        "pod": max(pods, default=0),
    }
    levels: dict[str, int] = {}
    for name, gpus in sizes.items():
        # A node that is one NVLink domain is one level, and the whole cluster is no level inside of it.
        if 1 < gpus < cluster.gpu_count and gpus not in levels.values():
            levels[name] = gpus
    return levels


def _recomputes(ctx: Context, options: SpaceOptions, abilities: Abilities) -> tuple[Recompute, ...]:
    """Return the default choices, the listed ones, or those that the user fixed by name."""
    choices = options.recomputes or recompute_choices(ctx, abilities)
    # What is fixed wins over what is listed: it is the narrower wish.
    if "recompute" in options.fix:
        choices = tuple(parse_recompute(str(text)) for text in options.fix["recompute"])
    forbidden = {recompute_text(parse_recompute(str(text))) for text in options.forbid.get("recompute", ())}
    left = tuple(r for r in choices if recompute_text(r) not in forbidden)
    # Whole layers are any number of them: without them, layers that recompute nothing are still allowed.
    bare = WHOLE_LAYERS in choices and WHOLE_LAYERS not in left and "none" not in forbidden
    return (*left, Recompute()) if bare and Recompute() not in left else left


def parse_recompute(text: str) -> Recompute:
    """Read a choice as ``recompute_text`` writes it.

    Raises
    ------
    InputError
        If a module isn't known.
    """
    from layoutopt.optimizer.specs.errors import input_error

    if text in ("none", "full"):
        return Recompute(granularity=Granularity(text))
    head, _, group = text.partition(":")
    if head == "uniform" and group.isascii() and group.isdecimal() and 1 <= int(group[:6]) <= MAX_LAYERS:
        return Recompute(granularity=Granularity.FULL, group=int(group) if int(group) > 1 else 0)
    # Sorted, so that one set has one spelling whatever the order in which it was typed.
    modules = tuple(sorted(text.split("+")))
    known = (*RECOMPUTE_MODULES, OP_MODULE)
    unknown = [name for name in modules if name not in known]
    if unknown:
        raise input_error(f"no module {unknown[0]!r}", ", ".join(("none", "full", *known)), key="recompute")
    return Recompute(granularity=Granularity.SELECTIVE, modules=modules)


def _orders(options: SpaceOptions, abilities: Abilities) -> tuple[str, ...]:
    """Return the framework's mesh orders, or the fixed ones in the spelling of the 24."""
    # A user's order may leave experts out or name them elsewhere: what counts are the four dense axes.
    spelling = {dense_axes(order): order for order in ALL_ORDERS}

    def listed(given: Iterable[Value]) -> tuple[str, ...]:
        """Spell orders as ``ALL_ORDERS`` does."""
        return tuple(spelling[dense_axes(str(order))] for order in given)

    forbidden = listed(options.forbid.get("mesh_order", ()))
    orders = listed(options.fix.get("mesh_order", ())) or abilities.orders
    return tuple(order for order in dict.fromkeys(orders) if order not in forbidden)


def _schedules(ctx: Context, options: SpaceOptions) -> tuple[Schedule, ...]:
    """Return 1F1B and interleaved, or the listed schedules, as far as the framework launches them."""
    if "schedule" in options.fix:
        fixed = map(str, options.fix["schedule"])
        return tuple(Schedule(name) for name in fixed if options.allows("schedule", name))
    listed = options.schedules or DEFAULT_SCHEDULES
    launched = abilities_of(ctx.framework, ctx.release).schedules
    # NONE is for a single stage, which every list of schedules needs.
    launchable = [s for s in dict.fromkeys((Schedule.NONE, *listed)) if s in launched]
    return tuple(s for s in launchable if options.allows("schedule", s.value))


def _precisions(ctx: Context, options: SpaceOptions) -> tuple[Precision, ...]:
    """Return the workload's own precision, or the listed ones."""
    if "precision" in options.fix:
        fixed = map(str, options.fix["precision"])
        return tuple(Precision(name) for name in fixed if options.allows("precision", name))
    # Formats change convergence: only what is asked for by name is compared.
    listed = options.precisions or (ctx.training.precision,)
    return tuple(p for p in dict.fromkeys(listed) if options.allows("precision", p.value))
