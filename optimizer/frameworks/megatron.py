"""NVIDIA Megatron-LM (``pretrain_gpt.py``), counted in releases of megatron-core."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.abilities import (
    MEGATRON_ORDERS,
    MODULES,
    SIXTEEN_BIT,
    WHOLE_LAYERS,
    Abilities,
)
from layoutopt.optimizer.frameworks.record import (
    FrameworkRecord,
    LaunchFormat,
    Numbering,
    PublishedRelease,
    TrainerFamily,
    Unstated,
)
from layoutopt.optimizer.frameworks.stage_rule import MEGATRON, Recomputation, Split
from layoutopt.optimizer.frameworks.switches import OFF_ON, Value
from layoutopt.optimizer.specs.vocabulary import (
    DEFAULT_MESH_ORDER,
    CpComm,
    CudaGraph,
    Dispatcher,
    Fp8Recipe,
    Optimizer,
    Precision,
    Saver,
    Schedule,
)

# As docs of flags by release have them (arguments.py and transformer_config.py of the tags).
_SWITCHES_4: dict[str, tuple[Value, ...]] = {
    "tp_overlap": OFF_ON,
    "dp_overlap": OFF_ON,
    "param_overlap": OFF_ON,
}
_SWITCHES_6 = _SWITCHES_4 | {"dispatcher": (Dispatcher.ALLTOALL, Dispatcher.ALLGATHER)}
_SWITCHES_9 = _SWITCHES_6 | {"fp8_param_gather": OFF_ON}
_SWITCHES_10 = _SWITCHES_9 | {"cp_kind": tuple(CpComm), "shared_expert_overlap": OFF_ON}
_SWITCHES_12 = _SWITCHES_10 | {"dispatcher": (*_SWITCHES_10["dispatcher"], Dispatcher.DEEPEP)}
_SWITCHES_14 = _SWITCHES_12 | {"ep_overlap": OFF_ON, "delay_wgrad": OFF_ON}
# The scope of core 0.15 is one word: a whole layer, its attention, or the iteration.
_SWITCHES_15 = _SWITCHES_14 | {"cuda_graph": (CudaGraph.NONE, CudaGraph.FULL)}
_SWITCHES_16 = _SWITCHES_15 | {"cuda_graph": tuple(CudaGraph), "dispatcher": tuple(Dispatcher)}

# Newest first: what each release lacks that the one behind it has. Flags were searched in the argument and
# configuration files of the tags v1.0 to core_v0.19.0 and of main where a tag is years away.
_CORE_16 = Abilities(
    schedules=(Schedule.NONE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),  # 1F1B when vp is 1
    orders=MEGATRON_ORDERS,
    hsdp_zero=(1, 2, 3),
    modules=MODULES,
    savers=(Saver.BF16_MOMENTS, Saver.OFFLOAD_OPTIMIZER),
    optimizers=(Optimizer.ADAMW, Optimizer.SGD, Optimizer.MUON),
    expert_savers=(Saver.OFFLOAD_ACTIVATIONS,),  # --offload-modules name none of a dense MLP
    switches=_SWITCHES_16,
    stage_rule=MEGATRON,
)
_CORE_17 = replace(_CORE_16, optimizers=(*_CORE_16.optimizers, Optimizer.LION))  # --optimizer lion
# No --fine-grained-activation-offloading, no --optimizer muon and dist_muon.
_CORE_15 = replace(
    _CORE_16,
    hsdp_zero=(1,),
    expert_savers=(),
    optimizers=_CORE_16.optimizers[:-1],
    switches=_SWITCHES_15,
)
# No --fp4-format.
_CORE_14 = replace(_CORE_15, precisions=(*SIXTEEN_BIT, Precision.FP8, Precision.MXFP8), switches=_SWITCHES_14)
_CORE_13 = replace(_CORE_14, modules=_CORE_14.modules[:-1], switches=_SWITCHES_12)
# No layout string, which takes any list: --decoder-first-pipeline-num-layers, or --account-for-*-in-pipeline-split.
# --exp-avg-dtype takes fp32, fp16 and fp8.
_CORE_12 = replace(
    _CORE_13,
    stage_rule=replace(MEGATRON, split=Split.EQUAL_MIDDLE, empty_stages=False),
    savers=(Saver.OFFLOAD_OPTIMIZER,),
)
# No Megatron-FSDP (then "custom FSDP"), no --fp8-recipe, selective recomputation of core attention alone.
_CORE_11 = replace(
    _CORE_12,
    zero=(0, 1),
    modules=("core_attn",),
    savers=(),
    precisions=(*SIXTEEN_BIT, Precision.FP8),
    switches=_SWITCHES_10,
)
# The first and the last rank differ without chunks only; no --account-for-*.
_CORE_10 = replace(_CORE_11, stage_rule=replace(_CORE_11.stage_rule, split=Split.EQUAL_MIDDLE_UNCHUNKED))
_CORE_9 = replace(_CORE_10, hsdp_zero=(), switches=_SWITCHES_9)  # no --num-distributed-optimizer-instances
# No --decoder-first-pipeline-num-layers.
_CORE_7 = replace(_CORE_9, stage_rule=replace(_CORE_9.stage_rule, split=Split.EQUAL), switches=_SWITCHES_6)
_CORE_6 = replace(_CORE_7, orders=(DEFAULT_MESH_ORDER,))  # no --use-tp-pp-dp-mapping
_CORE_4 = replace(_CORE_6, switches=_SWITCHES_4)  # no --moe-token-dispatcher-type
_V23 = replace(_CORE_4, fixed_axes=("cp", "ep", "etp"), precisions=(*SIXTEEN_BIT, Precision.FP8), switches={})
_V3 = replace(_V23, precisions=SIXTEEN_BIT)  # Transformer Engine came to main on 2022-12-21
# No --sequence-parallel, --recompute-granularity selective, --use-distributed-optimizer (2022-02-10 to 05-16).
_V2_6 = replace(_V3, sp=False, zero=(0,), modules=(), granularities=WHOLE_LAYERS)
# --checkpoint-activations alone: no --activations-checkpoint-method block.
_V2_5 = replace(_V2_6, stage_rule=replace(_V2_6.stage_rule, recomputation=Recomputation.ALL_OR_NONE))
_V2 = replace(_V2_5, fixed_axes=("cp", "ep", "etp", "vp"), schedules=_V2_5.schedules[:2])
_V1 = replace(_V2, fixed_axes=("cp", "ep", "etp", "vp", "pp"), schedules=_V2.schedules[:1])

RELEASES = tuple(
    PublishedRelease(number=number, date=date, abilities=abilities)
    for number, date, abilities in (
        # Tags of Megatron-LM itself, before there was a megatron-core: they sort in front of core 0.1.
        ((0, 0, 1, 0), "2020-04-21", _V1),
        ((0, 0, 2, 0), "2021-01-12", _V2),
        ((0, 0, 2, 5), "2021-08-10", _V2_5),
        ((0, 0, 2, 6), "2021-08-27", _V2_6),
        ((0, 0, 3, 0), "2022-05-16", _V3),
        ((0, 0, 23, 4), "2023-04", _V23),
        ((0, 4), "2023-12", _CORE_4),
        ((0, 5), "2024-02", _CORE_4),
        ((0, 6), "2024-04", _CORE_6),
        ((0, 7), "2024-05", _CORE_7),
        ((0, 8), "2024-08", _CORE_7),
        ((0, 9), "2024-10", _CORE_9),
        ((0, 10), "2025-02", _CORE_10),
        ((0, 11), "2025-03", _CORE_11),
        ((0, 12), "2025-05", _CORE_12),
        ((0, 13), "2025-07", _CORE_13),
        ((0, 14), "2025-10", _CORE_14),
        ((0, 15), "2025-12", _CORE_15),
        ((0, 16), "2026-02", _CORE_16),
        ((0, 17), "2026-04", _CORE_17),
        ((0, 18), "2026-06", _CORE_17),
        ((0, 19), "2026-08", _CORE_17),
    )
)

CONTAINERS = Numbering(
    first=23,
    # NVIDIA NeMo framework containers (year, month) and the megatron-core inside, from the containers' release notes;
    # for those before 24.07 the newest one of their month.
    # 25.01 carried a development state of 0.11: the MLPerf 5.0 run of 405B on it (results/eos-dfw_n64_ngc25.01_nemo)
    # counts embedding and loss as layers, which core_v0.10.0 cannot.
    inside={
        (23, 4): (0, 0, 23, 4),  # tags of Megatron-LM itself
        (24, 1): (0, 5),
        (24, 4): (0, 6),
        (24, 7): (0, 8),
        (24, 9): (0, 9),
        (24, 12): (0, 10),
        (25, 1): (0, 11),
        (25, 4): (0, 12),
        (25, 7): (0, 13),
        (25, 9): (0, 14),
        (25, 11): (0, 15),
        (26, 2): (0, 16),
        (26, 4): (0, 17),
        (26, 6): (0, 18),
        (26, 8): (0, 19),
    },
)

RECORD = FrameworkRecord(
    name="megatron",
    aliases=("megatron-lm",),
    family=TrainerFamily.MEGATRON_CORE,
    releases=RELEASES,
    unstated=Unstated(
        tied=True, modules=("core_attn",), etp_is_tp="always", equal_stages=True
    ),  # --untie-embeddings-and-output-weights
    fp8_recipes={  # --fp8-recipe
        Fp8Recipe.DELAYED: "delayed",
        Fp8Recipe.CURRENT: "tensorwise",
        Fp8Recipe.BLOCKWISE: "blockwise",
        Fp8Recipe.MX: "mxfp8",
    },
    optimizers={  # --optimizer
        Optimizer.ADAMW: "adam",
        Optimizer.SGD: "sgd",
        Optimizer.LION: "lion",
        Optimizer.MUON: "muon",
    },
    exports="core 0.19",
    imports=(
        LaunchFormat(kind="megatron-test", reader="import_test", sign=r"^MODEL_ARGS(_\d+)?:"),
        LaunchFormat(
            kind="megatron-args",
            reader="import_arguments",
            sign=r"--(tensor|pipeline)-model-parallel-size\b|--num-layers\b|--micro-batch-size\b",
            shared=True,  # every trainer that grew out of Megatron-LM
        ),
    ),
    numberings=(
        CONTAINERS,
        Numbering(first=1, inside={one.number[2:]: one.number for one in RELEASES[:5]}, unless="core"),
    ),
)
