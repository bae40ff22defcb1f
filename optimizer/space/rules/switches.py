"""Rules on launch switches, whether a layout states them, a launch file does, or the space declares them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.frameworks.preset import preset_of_release, preset_value
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of
from layoutopt.optimizer.frameworks.switches import BY_NAME, combination_fault, switch_text
from layoutopt.optimizer.space.rule import FREEST, MEGATRONS, Rule, everywhere, says
from layoutopt.optimizer.space.switch_sets import kernels_run, sized, stated
from layoutopt.optimizer.specs.vocabulary import CpComm, CudaGraph, Dispatcher, Granularity, Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import Codebook, LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors, Holds
    from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches

    IntArray = NDArray[np.int64]

_CONFIG = "NVIDIA/Megatron-LM core/transformer/transformer_config.py"
_ARGUMENTS = "NVIDIA/Megatron-LM training/arguments.py"
_SEARCHED = MEGATRONS | FREEST


@dataclass(frozen=True, slots=True)
class OnlyWhere:
    """A predicate of rows: ``legal`` where the switches are ``used`` so, else True.

    What a launch states counts where a layout states nothing, unless the predicate is about a layout's ``own``.
    """

    used: Callable[[Switches, Context], bool]
    legal: Callable[[LayoutBatch, Context], BoolArray]
    own: bool = False

    def of_codes(self, book: Codebook, ctx: Context) -> BoolArray:
        """Tell which precision codes (p,) use the switches so."""
        sets = [book.switches_of(code) for code in range(len(book.precisions))]
        sets = sets if self.own else [stated(switches, ctx.options) for switches in sets]
        return np.array([self.used(switches, ctx) for switches in sets], dtype=bool)

    def __call__(self, rows: LayoutBatch, ctx: Context) -> BoolArray:
        used = self.of_codes(rows.codebook, ctx)[rows.precision]
        return ~used | self.legal(rows, ctx) if used.any() else everywhere(rows)


def _wide(rows: LayoutBatch) -> BoolArray:
    """Tell which rows (n,) multiply in 16 bits."""
    wide = [precision in (Precision.FP16, Precision.BF16) for precision in rows.codebook.precisions]
    result: BoolArray = np.array(wide)[rows.precision]
    return result


def _never(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return np.zeros(len(rows), dtype=bool)


def _recomputes(used: Callable[[Switches, Context], bool], fits: Callable[[Recompute], bool]) -> OnlyWhere:
    def legal(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) have a recompute entry that fits."""
        result: BoolArray = np.array([fits(entry) for entry in rows.codebook.recomputes], dtype=bool)[
            rows.recompute
        ]
        return result

    return OnlyWhere(used, legal)


def _on(name: str) -> Callable[[Switches, Context], bool]:
    return lambda switches, ctx: bool(getattr(switches, name))


def _lacking(switches: Switches, ctx: Context) -> list[str]:
    """Name what a layout switches on that the release has not."""
    has = abilities_of(ctx.framework, ctx.release).switches
    preset = preset_of_release(ctx.framework, ctx.release).with_training(ctx.training)
    return [
        f"{name}={switch_text(value)}"
        for name, value in switches.stated().items()
        if value != preset_value(preset, BY_NAME[name])
        and value not in has.get(name, ())
        and not (name == "loss_chunks" and has.get(name))
    ]


def _supported_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    lacking = _lacking(layout.switches, ctx)
    names = [text.partition("=")[0] for text in lacking]
    has = abilities_of(ctx.framework, ctx.release).switches
    offers = [f"{name}: {', '.join(map(switch_text, has.get(name, ()))) or 'not there'}" for name in names]
    return f"this release can't have {', '.join(lacking)}; {'; '.join(offers)}", {
        "switches": ", ".join(lacking)
    }


def _without_unsupported(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    names = [text.partition("=")[0] for text in _lacking(layout.switches, ctx)]
    return replace(layout, switches=replace(layout.switches, **dict.fromkeys(names)))


def _switched_off(*names: str) -> Callable[[Rule, Layout, Context], Layout]:
    """Build a repair that leaves switches at their plain value."""

    def repair(rule: Rule, layout: Layout, ctx: Context) -> Layout:
        """Return the layout with the switches' first values."""
        own: dict[str, Any] = {
            name: BY_NAME[name].values[0] for name in names if getattr(layout.switches, name) is not None
        }
        return replace(layout, switches=replace(layout.switches, **own))

    return repair


def _together_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return combination_fault(stated(layout.switches, ctx.options)), {}


def _merged_passes(rows: LayoutBatch, ctx: Context) -> BoolArray:
    chunks = (rows.pp == 1) | (rows.vp > 1)
    result: BoolArray = (rows.ep > 1) & chunks & (ctx.model.mtp_layers <= 1)
    return result


def _merged_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    broken = [
        text
        for text, bad in (
            (f"ep {layout.ep} (needs > 1)", layout.ep == 1),
            (f"vp {layout.vp} with pp {layout.pp} (needs vp > 1)", layout.pp > 1 and layout.vp == 1),
            (f"{ctx.model.mtp_layers} prediction layers (at most 1)", ctx.model.mtp_layers > 1),
        )
        if bad
    ]
    text = f"overlap of expert all-to-all with {', '.join(broken)}"
    return text, {"ep": layout.ep, "pp": layout.pp, "vp": layout.vp}


def _ends_whole(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = (rows.sp == 1) | (rows.tp == 1)
    return result


def _unsized(switches: Switches, ctx: Context) -> bool:
    """Whether a graph of the whole iteration would hold kernels whose sizes the router decides."""
    return switches.cuda_graph is CudaGraph.FULL and not sized(switches.dispatcher, ctx)


def _sized_by_exchange(switches: Switches, ctx: Context) -> bool:
    """Whether a graph of the whole iteration takes the sizes of experts from their dispatcher."""
    return switches.cuda_graph is CudaGraph.FULL and not sized(None, ctx)


def _deepep_pads(switches: Switches, ctx: Context) -> bool:
    """Whether DeepEP would have to exchange rows that hold no token."""
    # A dispatcher that nobody states is the release's own.
    chosen = switches.dispatcher or preset_of_release(ctx.framework, ctx.release).dispatcher
    capacity = None if ctx.model.moe is None else ctx.model.moe.capacity_factor
    return capacity is not None and chosen is Dispatcher.DEEPEP


def cp_kind(switches: Switches, ctx: Context) -> CpComm:
    """Return how context parallelism communicates: as the switches or the launch say, else as the trainer does."""
    return stated(switches, ctx.options).cp_kind or preset_of_release(ctx.framework, ctx.release).cp_comm


def _all_to_all(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    return replace(layout, switches=replace(layout.switches, dispatcher=Dispatcher.ALLTOALL))


def _rule(name: str, reads: set[str], holds: Holds, detail: Any, **more: Any) -> Rule:
    """Build a rule of the trainers whose switches are searched."""
    fields: dict[str, Any] = {"frameworks": _SEARCHED, "source": _CONFIG, "axis": "switches"}
    return Rule(
        name=name, reads=frozenset({"switches", *reads}), holds=holds, detail=detail, **(fields | more)
    )


def _hybrid_domains(
    fits: Callable[[IntArray, int], BoolArray], *, name: str = "ep_within_nvlink", **more: Any
) -> Rule:
    """Build a rule on the ranks that HybridEP exchanges among: those of an expert and its tensor-parallel group."""

    def detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
        """Say how many ranks of what NVLink domains exchange."""
        domain = ctx.cluster.nvlink_domain
        text = f"hybridep among {layout.ep * layout.etp} ranks with NVLink domains of {domain}; others have no such rule"
        return text, {"ep": layout.ep, "etp": layout.etp, "nvlink_domain": domain}

    used = OnlyWhere(
        lambda switches, ctx: switches.dispatcher is Dispatcher.HYBRIDEP,
        lambda rows, ctx: fits(rows.ep * rows.etp, ctx.cluster.nvlink_domain),
    )
    return _rule(name, {"ep", "etp"}, used, detail, axis="", **more)


RULES: tuple[Rule, ...] = (
    Rule(
        name="switch_supported",
        formula="launch switches in the release's list, or as it has them anyway",
        reason="the release has no flag for it",
        source="argument and configuration files of every release",
        reads=frozenset({"switches"}),
        holds=OnlyWhere(lambda switches, ctx: bool(_lacking(switches, ctx)), _never, own=True),
        detail=_supported_detail,
        repair=_without_unsupported,
        axis="switches",
    ),
    _rule(
        "switches_together",
        set(),
        OnlyWhere(lambda switches, ctx: bool(combination_fault(switches)), _never),
        _together_detail,
        formula="delay_wgrad => ep_overlap; not ep_overlap and shared_expert_overlap; neither with allgather",
        reason="weight gradients are delayed into merged passes; one stream hides an exchange",
        repair=_switched_off("delay_wgrad", "shared_expert_overlap"),
    ),
    _rule(
        "moe_batch_overlap",
        {"ep", "pp", "vp"},
        OnlyWhere(_on("ep_overlap"), _merged_passes),
        _merged_detail,
        formula="ep > 1; pp > 1 => vp > 1; MTP <= 1",
        reason="two micro-batches' passes are merged, which these would break",
        repair=_switched_off("ep_overlap", "delay_wgrad"),
        axis="",
    ),
    _rule(
        "moe_batch_overlap",
        {"recompute"},
        _recomputes(
            _on("ep_overlap"),
            lambda r: r.granularity is not Granularity.FULL and "moe" not in r.modules,
        ),
        says("overlap of expert all-to-all with full recomputation, or recomputation of moe"),
        formula="no full recomputation, no recomputation of moe",
        reason=(
            "merged passes call the parts of a layer: core 0.17 refuses recomputation of moe, 0.14 to 0.16 start and "
            "recompute nothing"
        ),
        source=f"{_CONFIG}; core/models/gpt/fine_grained_callables.py beside MoELayer.forward, core 0.14 to 0.16",
        repair=_switched_off("ep_overlap", "delay_wgrad"),
        axis="",
    ),
    _rule(
        "mtp_batch_overlap",
        {"pp"},
        OnlyWhere(_on("ep_overlap"), lambda rows, ctx: (rows.pp > 1) | (ctx.model.mtp_layers == 0)),
        says("overlap of expert all-to-all with a prediction layer needs a pipeline", "pp"),
        formula="MTP => pp > 1",
        reason="core 0.16 and 0.17 merge the passes of a prediction layer in pipelines alone",
        source=f"{_CONFIG}, core 0.16 and 0.17",
        repair=_switched_off("ep_overlap", "delay_wgrad"),
        axis="",
        frameworks=MEGATRONS,
        since=(0, 16),
        until=(0, 18),
    ),
    _rule(
        "full_graph_batch_overlap",
        set(),
        OnlyWhere(lambda s, ctx: bool(s.ep_overlap) and s.cuda_graph is CudaGraph.FULL, _never),
        says("overlap of expert all-to-all with a graph of the whole iteration"),
        formula="cuda_graph = full_iteration => no ep_overlap",
        reason="core 0.16 and 0.17 merge passes with Transformer Engine's graphs of parts of a layer alone",
        source=f"{_CONFIG}, core 0.16 and 0.17",
        repair=_switched_off("cuda_graph"),
        frameworks=MEGATRONS,
        since=(0, 16),
        until=(0, 18),
    ),
    _rule(
        "shared_overlap_recompute",
        {"recompute"},
        _recomputes(
            _on("shared_expert_overlap"),
            lambda recompute: "shared_experts" not in recompute.modules,
        ),
        says("shared-expert overlap with recomputed shared experts"),
        formula="shared-expert overlap => no shared_experts recomputation",
        reason="the overlapped shared expert runs outside the recomputed region",
        repair=_switched_off("shared_expert_overlap"),
        axis="",
    ),
    _rule(
        "shared_overlap_dispatcher",
        set(),
        OnlyWhere(
            lambda s, ctx: (
                bool(s.shared_expert_overlap) and s.dispatcher is not None and s.dispatcher.deduplicates
            ),
            _never,
        ),
        says("shared-expert overlap with a dispatcher other than alltoall"),
        formula="shared-expert overlap => dispatcher = alltoall",
        reason="the flexible dispatcher runs shared experts beside its exchange from core 0.18 on",
        repair=_switched_off("shared_expert_overlap"),
        frameworks=MEGATRONS,
        until=(0, 18),
    ),
    _rule(
        "tp_overlap_needs_sp",
        {"tp", "sp"},
        OnlyWhere(_on("tp_overlap"), _ends_whole),
        says("tp_comm_overlap needs sequence parallelism", "sp", "tp"),
        formula="tp_comm_overlap and tp > 1 => sp",
        reason="the overlapped collectives are those of sequence parallelism",
        source=_ARGUMENTS,
        repair=_switched_off("tp_overlap"),
        axis="",
    ),
    _rule(
        "fp8_gather_needs_zero",
        {"zero", "precision"},
        OnlyWhere(_on("fp8_param_gather"), lambda rows, ctx: (rows.zero >= 1) | _wide(rows)),
        says("weights in 8 bits alone need a distributed optimizer", "zero"),
        formula="fp8_param_gather and 8 or 4 bits => zero >= 1",
        reason="the 32-bit weights are the distributed optimizer's, from which the 8-bit ones are gathered",
        source=_ARGUMENTS,
        repair=_switched_off("fp8_param_gather"),
        axis="",
        launch_only=True,
    ),
    _rule(
        "full_graph_shapes",
        set(),
        OnlyWhere(_unsized, _never),
        says("a graph of the whole iteration needs token counts that are known before it"),
        formula="cuda_graph = full_iteration => no experts, a capacity, or dispatcher = hybridep (core 0.18)",
        reason="a captured kernel can't be sized by what the router decides",
        repair=_switched_off("cuda_graph"),
    ),
    _rule(
        "full_graph_shapes",
        {"ep"},
        OnlyWhere(_sized_by_exchange, lambda rows, ctx: rows.ep > 1),
        says("a graph of the whole iteration needs token counts that are known before it", "ep"),
        formula="cuda_graph = full_iteration and no capacity => ep > 1",
        reason="HybridEP, which sizes experts, exchanges nothing in one rank",
        source="NVIDIA/Megatron-LM core/transformer/moe/token_dispatcher.py, MoEFlexTokenDispatcher",
        repair=_switched_off("cuda_graph"),
        axis="",
    ),
    _rule(
        "dispatcher_alone",
        {"ep", "etp"},
        OnlyWhere(
            lambda s, ctx: s.dispatcher is not None and s.dispatcher.deduplicates,
            lambda rows, ctx: rows.ep * rows.etp > 1,
        ),
        says("a flexible dispatcher with nobody to exchange tokens with", "ep", "etp"),
        formula="dispatcher in (deepep, hybridep) => ep * etp > 1",
        reason="the flexible dispatcher asserts a group of several ranks",
        source="NVIDIA/Megatron-LM core/transformer/moe/token_dispatcher.py, MoEFlexTokenDispatcher, core 0.12 on",
        repair=_all_to_all,
    ),
    _rule(
        "capacity_dispatcher",
        {"ep"},
        OnlyWhere(_deepep_pads, lambda rows, ctx: rows.ep == 1),
        says("DeepEP with experts padded to a capacity", "ep"),
        formula="capacity_factor and ep > 1 => dispatcher is not deepep",
        reason="DeepEP sends tokens that there are, no rows that fill up a capacity",
        repair=_all_to_all,
    ),
    _rule(
        "full_graph_recompute",
        {"recompute"},
        _recomputes(
            lambda s, ctx: s.cuda_graph is CudaGraph.FULL, lambda r: r.granularity is Granularity.NONE
        ),
        says("a graph of the whole iteration with recomputation"),
        formula="cuda_graph = full_iteration => no recomputation",
        reason="core 0.15 captures no recomputation with its whole-iteration graphs",
        source=_CONFIG,
        repair=_switched_off("cuda_graph"),
        axis="",
        frameworks=MEGATRONS,
        until=(0, 16),
    ),
    _rule(
        "partial_graph_recompute",
        {"recompute"},
        _recomputes(
            lambda s, ctx: s.cuda_graph is CudaGraph.PARTIAL,
            lambda r: r.granularity is not Granularity.FULL and "moe" not in r.modules,
        ),
        says("graphs of parts of a layer with recomputation of whole layers, or of moe"),
        formula="cuda_graph = partial => no full recomputation, no recomputation of moe",
        reason="what is recomputed lies inside a graph or outside of it, and the router is captured",
        repair=_switched_off("cuda_graph"),
        axis="",
    ),
    _hybrid_domains(
        lambda group, domain: group <= domain,
        formula="hybridep => ep * etp <= NVLink domain",
        reason="its exchange between NVLink domains came later, and containers were built without it",
        source="NVIDIA-NeMo/Megatron-Bridge#6043, #6020, #2883; docker files of 2026-03 set HYBRID_EP_MULTINODE",
        frameworks=MEGATRONS,
        until=(0, 17),
    ),
    _hybrid_domains(
        lambda group, domain: (group <= domain) | (group % domain == 0),
        formula="hybridep => ep * etp <= NVLink domain or whole domains",
        reason="the kernel counts its ranks in whole NVLink domains",
        source="deepseek-ai/DeepEP branch hybrid-ep, deep_ep/hybrid_ep_buffer.py",
        frameworks=frozenset(Framework),
    ),
    _rule(
        "dispatch_kernels_searched",
        set(),
        OnlyWhere(lambda switches, ctx: not kernels_run(switches.dispatcher, ctx), _never, own=True),
        says("a dispatcher without kernels for these GPUs"),
        formula="searched where dispatchers are named: deepep, hybridep where their kernels run",
        reason="DeepEP and HybridEP are NVIDIA's, with NVLink inside a node",
        source="deepseek-ai/DeepEP README.md; NVIDIA/Megatron-LM core/transformer/moe/README.md",
        frameworks=frozenset(Framework),
        search_only=True,
        unless_named="dispatcher",
    ),
    _hybrid_domains(
        lambda group, domain: group <= domain,
        name="hybrid_domains_searched",
        formula="searched where dispatchers are named: hybridep among several NVLink domains",
        reason="its kernels hold more SMs than DeepEP's, which takes the same way",
        source="NVIDIA-NeMo/Megatron-Bridge recipes",
        frameworks=frozenset(Framework),
        search_only=True,
        unless_named="dispatcher",
    ),
)
