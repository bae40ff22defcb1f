"""The frameworks: the one list of them, and what the other rooms ask their records."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Self

from layoutopt.optimizer.frameworks import (
    accelerate,
    deepseek_internal,
    deepspeed,
    llm_foundry,
    megatron,
    megatron_bridge,
    megatron_deepspeed,
    meta_internal,
    nanotron,
    nemo_automodel,
    torchtitan,
)
from layoutopt.optimizer.frameworks import any as freest
from layoutopt.optimizer.frameworks.record import NEWEST
from layoutopt.optimizer.frameworks.releases import read_release
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Saver

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.abilities import Abilities
    from layoutopt.optimizer.frameworks.record import FrameworkRecord, Release, TrainerFamily
    from layoutopt.optimizer.specs.model import ModelSpec


class Framework(StrEnum):
    """The trainer that has to launch the layout; a member is its name and carries its record.

    What is no record is a type error here, and so is a record that lacks a field.
    """

    record: FrameworkRecord

    def __new__(cls, record: FrameworkRecord) -> Self:
        """Make the member that is called by the record's name."""
        member = str.__new__(cls, record.name)
        member._value_ = record.name
        member.record = record
        return member

    MEGATRON = megatron.RECORD
    MEGATRON_BRIDGE = megatron_bridge.RECORD
    MEGATRON_DEEPSPEED = megatron_deepspeed.RECORD
    TORCHTITAN = torchtitan.RECORD
    DEEPSPEED = deepspeed.RECORD
    NANOTRON = nanotron.RECORD
    LLM_FOUNDRY = llm_foundry.RECORD
    NEMO_AUTOMODEL = nemo_automodel.RECORD
    ACCELERATE = accelerate.RECORD
    META_INTERNAL = meta_internal.RECORD
    DEEPSEEK_INTERNAL = deepseek_internal.RECORD
    ANY = freest.RECORD


EXPORTED = tuple(framework for framework in Framework if framework.record.exports is not None)
"""Frameworks with an exporter."""

FRAMEWORK_ALIASES = {alias: framework for framework in Framework for alias in framework.record.aliases}


_NAMED = {framework.value: framework for framework in Framework} | FRAMEWORK_ALIASES


def find_framework(name: str) -> Framework | None:
    """Return the framework of a name or alias, in any case; None for other words."""
    return _NAMED.get(name.lower())


def framework_named(name: str) -> Framework:
    """Return the framework of a name or alias, in any case; raises ``InputError`` for other words."""
    known = find_framework(name)
    if known is None:
        raise input_error(f"{name!r} is unknown", ", ".join(Framework), key="framework")
    return known


def of_family(*families: TrainerFamily) -> frozenset[Framework]:
    """Return the frameworks of some families."""
    return frozenset(framework for framework in Framework if framework.record.family in families)


def parse_release(framework: Framework, software: str | None) -> Release:
    """Read a software string, see ``read_release``."""
    return read_release(framework.record, software)


@cache
def abilities_of(framework: Framework, release: Release = NEWEST) -> Abilities:
    """Return what a release can launch; an unknown release counts as the newest."""
    return framework.record.abilities(release)


def savers_of(framework: Framework, release: Release, model: ModelSpec) -> tuple[Saver, ...]:
    """Return the memory savers of a release that work for a model, in the vocabulary's order."""
    abilities = abilities_of(framework, release)
    known = (*abilities.savers, *(abilities.expert_savers if model.is_moe else ()))
    return tuple(saver for saver in Saver if saver in known)
