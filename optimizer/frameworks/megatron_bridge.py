"""NVIDIA Megatron-Bridge, and NeMo before it: Megatron-LM under recipes, counted in releases of megatron-core."""

from __future__ import annotations

from layoutopt.optimizer.frameworks import megatron
from layoutopt.optimizer.frameworks.record import (
    FrameworkRecord,
    LaunchFormat,
    Numbering,
    PublishedRelease,
    TrainerFamily,
    Unstated,
)

# When NVIDIA/NeMo (2.x) and NVIDIA-NeMo/Megatron-Bridge (from 2025-09 on) were published with each megatron-core.
_PUBLISHED = (
    ((0, 4), "2023-08"),
    ((0, 9), "2024-11-14"),
    ((0, 10), "2025-01-03"),
    ((0, 11), "2025-03-12"),
    ((0, 12), "2025-05-08"),
    ((0, 13), "2025-07-25"),
    ((0, 14), "2025-10"),
    ((0, 15), "2025-11"),
    ((0, 16), "2026-02"),
    ((0, 17), "2026-04"),
    ((0, 18), "2026-06"),
    ((0, 19), "2026-08"),
)

RECORD = FrameworkRecord(
    name="megatron-bridge",
    aliases=("nemo",),
    family=TrainerFamily.MEGATRON_CORE,
    releases=tuple(
        PublishedRelease(number=core, date=date, abilities=megatron.RECORD.abilities(core))
        for core, date in _PUBLISHED
    ),
    unstated=Unstated(
        tied=True, modules=("core_attn",), equal_stages=True
    ),  # --untie-embeddings-and-output-weights
    fp8_recipes=megatron.RECORD.fp8_recipes,
    optimizers=megatron.RECORD.optimizers,
    exports="0.6",
    imports=(
        LaunchFormat(
            kind="bridge-command",
            reader="import_recipe_command",
            sign=r"run_recipe\.py|(^|\s)--recipe[ =]",
        ),
        LaunchFormat(
            kind="bridge-run-config", reader="import_run_config", sign=r"megatron\.bridge|ConfigContainer"
        ),
    ),
    numberings=(
        megatron.CONTAINERS,
        Numbering(
            first=1,
            # NVIDIA/NeMo Dockerfile.ci of each tag; NeMo 1.20 to 1.23 (2023-08 to 2024-02) pin commits up to core 0.5.
            inside={
                (1, 20): (0, 4),
                (2, 0): (0, 9),
                (2, 1): (0, 10),
                (2, 2): (0, 11),
                (2, 3): (0, 12),
                (2, 4): (0, 13),
                (2, 5): (0, 15),
                (2, 7): (0, 16),
            },
            unless="core",
        ),
        Numbering(
            first=0,
            # NVIDIA-NeMo/Megatron-Bridge pyproject.toml of each tag: the megatron-core it pins.
            inside={
                (0, 1): (0, 14),
                (0, 2): (0, 15),
                (0, 3): (0, 16),
                (0, 4): (0, 17),
                (0, 5): (0, 18),
            },
            unless="core",
        ),
    ),
)
