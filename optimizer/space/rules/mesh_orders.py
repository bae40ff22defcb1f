"""Rules on mesh orders: which ranks are neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework, abilities_of
from layoutopt.optimizer.space.orders import same_order
from layoutopt.optimizer.space.repairs import default_order
from layoutopt.optimizer.space.rule import FREEST, MEGATRONS, Rule, everywhere, mask
from layoutopt.optimizer.space.rules.experts import expert_dp
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Axis
from layoutopt.optimizer.topology.mesh import mesh_valid

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout


def _known_order(rows: LayoutBatch, ctx: Context) -> BoolArray:
    orders = abilities_of(ctx.framework, ctx.release).orders
    # Any of the framework's orders that numbers the ranks alike will do.
    known: BoolArray = np.any(same_order(rows, orders), axis=1)
    return known if ctx.framework in FREEST else known & ~(_outside(rows) & (rows.ep > 1))


def _outside(rows: LayoutBatch) -> BoolArray:
    """Mask the rows whose order numbers expert-data-parallel ranks inside expert-parallel ones."""
    names = [order.split("-") for order in rows.codebook.orders]
    outside = [Axis.EP in axes and axes.index(Axis.EP) > axes.index(Axis.DP) for axes in names]
    mask: BoolArray = np.array(outside, dtype=bool)[rows.order]
    return mask


def _order_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    orders = abilities_of(ctx.framework, ctx.release).orders
    known = ", ".join(orders) if len(orders) < 4 else f"the {len(orders)} orders of tp, cp, ep-dp and pp"
    return f"mesh order {layout.mesh_order}; valid: {known}", {"mesh_order": layout.mesh_order}


def _same_dp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    # With the pipeline outermost, expert and dense groups lie within one stage anyhow.
    last = np.array([order.endswith("pp") for order in rows.codebook.orders], dtype=bool)[rows.order]
    return mask(last | (rows.pp == 1) | (expert_dp(rows, ctx) == rows.dp))


def _same_dp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    etp = layout.etp if ctx.experts else layout.tp
    expert_dp = layout.tp * layout.cp * layout.dp // (etp * layout.ep)
    text = f"expert dp {expert_dp} differs from dp {layout.dp} in the order {layout.mesh_order}"
    return text, {"expert_dp": expert_dp, "dp": layout.dp}


def _plain_ranks(rows: LayoutBatch, ctx: Context) -> BoolArray:
    default = np.array([order.endswith("pp") for order in rows.codebook.orders], dtype=bool)[rows.order]
    return mask(default | (rows.pp == 1) | ((rows.cp == 1) & (rows.ep == 1)))


def _plain_ranks_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    text = f"cp {layout.cp} and ep {layout.ep} in the order {layout.mesh_order}"
    return text, {"cp": layout.cp, "ep": layout.ep}


def _grid_nests(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result = everywhere(rows)
    if ctx.experts:
        degrees = {axis: getattr(rows, axis) for axis in ("tp", "cp", "pp", "dp", "ep", "etp")}
        for code in np.unique(rows.order).tolist():
            valid = mesh_valid(rows.codebook.orders[code], **degrees)
            result &= (rows.order != code) | valid
    return result


def _grid_nests_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    text = f"etp {layout.etp} x ep {layout.ep} straddles the pipeline axis in the order {layout.mesh_order}"
    return text, {"etp": layout.etp, "ep": layout.ep}


def _fsdp_order(rows: LayoutBatch, ctx: Context) -> BoolArray:
    default = np.array([order == DEFAULT_MESH_ORDER for order in rows.codebook.orders], dtype=bool)[
        rows.order
    ]
    return mask((rows.zero < 2) | default | (rows.pp == 1))


def _fsdp_order_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"ZeRO-{layout.zero} in the order {layout.mesh_order}", {"zero": layout.zero}


_EP_GRID = frozenset({"tp", "cp", "dp", "ep", "etp"})

RULES: tuple[Rule, ...] = (
    Rule(
        name="order_supported",
        formula="mesh order in the framework's list",
        reason="the framework has to number ranks in this order",
        source=(
            "NVIDIA/Megatron-LM arguments.py (--use-tp-pp-dp-mapping); torchtitan parallel_dims.py; "
            "nanotron parallel/context.py"
        ),
        reads=frozenset({"tp", "cp", "dp", "pp", "ep", "order"}),
        holds=_known_order,
        detail=_order_detail,
        repair=default_order,
    ),
    Rule(
        name="order_without_cp_or_ep",
        formula="pp not outermost and pp > 1 => cp = 1 and ep = 1",
        reason="this release numbers pipeline ranks inside data-parallel ones for dense models without context parallelism",
        source="NVIDIA/Megatron-LM training/arguments.py (--use-tp-pp-dp-mapping), core 0.7 to 0.10",
        reads=frozenset({"pp", "cp", "ep", "order"}),
        holds=_plain_ranks,
        detail=_plain_ranks_detail,
        repair=default_order,
        frameworks=frozenset({Framework.MEGATRON}),
        until=(0, 11),
    ),
    Rule(
        name="expert_dp_equals_dp",
        formula="pp not outermost and pp > 1 => expert dp = dp",
        reason="dense and expert groups must agree on the pipeline stages",
        source="NVIDIA/Megatron-LM core/parallel_state.py",
        reads=_EP_GRID | {"pp", "order"},
        holds=_same_dp,
        detail=_same_dp_detail,
        repair=default_order,
        frameworks=MEGATRONS,
    ),
    Rule(
        name="expert_grid_nests",
        formula="expert axes divide, or are multiples of, the ranks inside the pipeline axis",
        reason="expert groups are cut out of a stage's ranks; the pipeline axis may part only whole groups",
        source="NVIDIA/Megatron-LM core/parallel_state.py (RankGenerator)",
        reads=_EP_GRID | {"pp", "order"},
        holds=_grid_nests,
        detail=_grid_nests_detail,
        repair=default_order,
        frameworks=FREEST,
    ),
    Rule(
        name="fsdp_mesh_order",
        formula="zero >= 2 => the default mesh order",
        reason="it refuses Megatron-FSDP with use_tp_pp_dp_mapping",
        source="NVIDIA-NeMo/Megatron-Bridge training/config.py",
        reads=frozenset({"zero", "order", "pp"}),
        holds=_fsdp_order,
        detail=_fsdp_order_detail,
        repair=default_order,
        frameworks=frozenset({Framework.MEGATRON_BRIDGE}),
        launch_only=True,
    ),
)
