"""No trainer in particular: whatever some trainer could launch, counted by the month in which it came."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.abilities import FREEST, SIXTEEN_BIT, WHOLE_LAYERS
from layoutopt.optimizer.frameworks.record import FrameworkRecord, PublishedRelease, TrainerFamily, Unstated
from layoutopt.optimizer.specs.vocabulary import OP_MODULE, Schedule

_SCHEDULES = tuple(Schedule)

# Newest first: what could not be had before each month.
_2025 = replace(
    FREEST, modules=("core_attn", OP_MODULE), switches={}
)  # --recompute-modules: megatron-core 0.12
# DeepSeek-V3's DualPipe (arXiv:2412.19437) and its cut-in-half V shape (deepseek-ai/DualPipe, 2025-02).
_2024 = replace(
    _2025, schedules=tuple(s for s in _SCHEDULES if s not in (Schedule.DUALPIPE, Schedule.DUALPIPE_V))
)
# Zero-bubble schedules: arXiv:2401.10241.
_2023_10 = replace(
    _2024, schedules=tuple(s for s in _2024.schedules if s not in (Schedule.ZB_H1, Schedule.ZB_V))
)
_2023_05 = replace(_2023_10, fixed_axes=("cp",))  # context parallelism: Megatron-LM main of 2023-10-12
_2022_12 = replace(_2023_05, hsdp_zero=())  # sharding in groups: DeepSpeed 0.9.2 (MiCS), 2023-05-03
_2022_05 = replace(_2022_12, precisions=SIXTEEN_BIT)  # FP8: Transformer Engine in Megatron-LM, 2022-12-21
# Sequence parallelism and selective recomputation: Megatron-LM main of 2022-05-16.
_2021_08 = replace(_2022_05, sp=False, modules=(), granularities=WHOLE_LAYERS)
# Interleaving: Megatron-LM v2.5, 2021-08-10. Experts on own ranks: DeepSpeed 0.5, 2021-08-17.
_2021_03 = replace(
    _2021_08,
    fixed_axes=("cp", "vp", "ep", "etp"),
    schedules=(Schedule.NONE, Schedule.GPIPE, Schedule.ONE_F_ONE_B),
)
_2020 = replace(_2021_03, zero=(0, 1, 2), savers=())  # ZeRO-3 and its offload: DeepSpeed 0.3.12, 2021-03-12

RECORD = FrameworkRecord(
    name="any",
    family=TrainerFamily.FREEST,
    releases=tuple(
        PublishedRelease(number=(int(date[:4]), int(date[5:])), date=date, abilities=abilities)
        for date, abilities in (
            ("2020-01", _2020),
            ("2021-03", _2021_03),
            ("2021-08", _2021_08),
            ("2022-05", _2022_05),
            ("2022-12", _2022_12),
            ("2023-05", _2023_05),
            ("2023-10", _2023_10),
            ("2024-01", _2024),
            ("2024-12", _2025),
            ("2025-05", FREEST),
        )
    ),
    unstated=Unstated(modules=("core_attn",)),
    exports=None,
    imports=(),
    dated=True,
)
