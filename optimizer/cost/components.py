"""The components of a step time: one record each, with all that any room says about it.

The order is that of a breakdown. A new component is a member here, and the place in ``cost`` that puts seconds under it into
``TermParts``; what is forgotten in its record is a type error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self

from layoutopt.optimizer.specs.vocabulary import Axis

Hue = Literal["blue", "sky", "green", "orange", "plum", "grey", "gold", "red", "slate"]
"""Colours that pages know on white and on black (``report/html/palette.py``)."""


class Group(StrEnum):
    """What one measurement settles: components that a near-tie is told apart by."""

    COMPUTE = "compute"
    TENSOR = "tp"
    CONTEXT = "cp"
    EXPERT = "ep"
    HOST = "host"
    OFFLOAD = "offload"
    PIPELINE = "pipeline"
    DATA = "data"


class Ablation(StrEnum):
    """What leaving out some components switches off, in the order in which it is reported."""

    BUBBLE = "pipeline bubble"
    TENSOR = "tensor-parallel traffic"
    EXPERT = "expert traffic"
    DATA = "data-parallel traffic"
    SENDS = "pipeline sends"
    CONTEXT = "context-parallel traffic"
    HOST = "host time"
    OPTIMIZER = "optimizer step"
    SYNC = "waiting for the slowest GPU"

    @property
    def components(self) -> tuple[Component, ...]:
        """The components that are left out."""
        return tuple(part for part in Component if part.record.ablation is self)


class Place(StrEnum):
    """When a component takes its time: while the pipeline runs, or once per step before or after it."""

    PIPELINE = "pipeline"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRecord:
    """What is known of a component beside its seconds.

    ``key`` is its name in JSON, ``words`` its name for people. ``axis`` is the axis whose traffic it is, ``loss`` tells
    whether it is named as what limits a layout, ``ablation`` is None where compute would have to be priced otherwise.
    """

    key: str
    words: str
    hue: Hue
    group: Group
    place: Place
    ablation: Ablation | None
    axis: Axis | None
    loss: bool


class Component(StrEnum):
    """A component of a step time; as text it is its key."""

    record: ComponentRecord

    def __new__(cls, record: ComponentRecord) -> Self:
        member = str.__new__(cls, record.key)
        member._value_ = record.key
        member.record = record
        return member

    @property
    def key(self) -> str:
        """The component's name in JSON."""
        return self.record.key

    @property
    def words(self) -> str:
        """The component's name for people."""
        return self.record.words

    FORWARD = ComponentRecord(
        key="forward", words="forward compute", hue="blue", group=Group.COMPUTE, place=Place.PIPELINE,
        ablation=None, axis=None, loss=False,
    )  # fmt: skip
    BACKWARD = ComponentRecord(
        key="backward", words="backward compute", hue="sky", group=Group.COMPUTE, place=Place.PIPELINE,
        ablation=None, axis=None, loss=False,
    )  # fmt: skip
    RECOMPUTE = ComponentRecord(
        key="recompute", words="recomputation", hue="plum", group=Group.COMPUTE, place=Place.PIPELINE,
        ablation=None, axis=None, loss=True,
    )  # fmt: skip
    OFFLOAD = ComponentRecord(
        key="offload", words="exposed moves of activations to host memory", hue="gold", group=Group.OFFLOAD,
        place=Place.PIPELINE, ablation=None, axis=None, loss=True,
    )  # fmt: skip
    HOST = ComponentRecord(
        key="host", words="host launches", hue="slate", group=Group.HOST, place=Place.PIPELINE,
        ablation=Ablation.HOST, axis=None, loss=True,
    )  # fmt: skip
    TP = ComponentRecord(
        key="tp", words="exposed tensor-parallel traffic", hue="orange", group=Group.TENSOR, place=Place.PIPELINE,
        ablation=Ablation.TENSOR, axis=Axis.TP, loss=False,
    )  # fmt: skip
    CP = ComponentRecord(
        key="cp", words="exposed context-parallel traffic", hue="gold", group=Group.CONTEXT, place=Place.PIPELINE,
        ablation=Ablation.CONTEXT, axis=Axis.CP, loss=False,
    )  # fmt: skip
    EP = ComponentRecord(
        key="ep", words="exposed expert traffic", hue="red", group=Group.EXPERT, place=Place.PIPELINE,
        ablation=Ablation.EXPERT, axis=Axis.EP, loss=False,
    )  # fmt: skip
    FSDP = ComponentRecord(
        key="fsdp", words="exposed FSDP gathers", hue="green", group=Group.DATA, place=Place.PIPELINE,
        ablation=Ablation.DATA, axis=Axis.DP, loss=False,
    )  # fmt: skip
    PP = ComponentRecord(
        key="pp", words="exposed pipeline sends", hue="slate", group=Group.PIPELINE, place=Place.PIPELINE,
        ablation=Ablation.SENDS, axis=Axis.PP, loss=False,
    )  # fmt: skip
    BUBBLE = ComponentRecord(
        key="bubble", words="pipeline bubble", hue="grey", group=Group.PIPELINE, place=Place.PIPELINE,
        ablation=Ablation.BUBBLE, axis=None, loss=True,
    )  # fmt: skip
    DP = ComponentRecord(
        key="dp", words="exposed data-parallel traffic", hue="green", group=Group.DATA, place=Place.OUTSIDE,
        ablation=Ablation.DATA, axis=Axis.DP, loss=False,
    )  # fmt: skip
    OPTIMIZER = ComponentRecord(
        key="optimizer", words="optimizer step", hue="green", group=Group.DATA, place=Place.OUTSIDE,
        ablation=Ablation.OPTIMIZER, axis=None, loss=False,
    )  # fmt: skip
    STEP = ComponentRecord(
        key="step", words="fixed time per step", hue="slate", group=Group.HOST, place=Place.OUTSIDE,
        ablation=Ablation.HOST, axis=None, loss=False,
    )  # fmt: skip
    SYNC = ComponentRecord(
        key="sync", words="waiting for the slowest GPU of the job", hue="slate", group=Group.COMPUTE, place=Place.OUTSIDE,
        ablation=Ablation.SYNC, axis=None, loss=True,
    )  # fmt: skip


TRAFFIC = tuple(part for part in Component if part.record.axis is not None)
"""What the network takes."""


def in_group(group: Group) -> tuple[Component, ...]:
    """Return the components of a group, in order."""
    return tuple(part for part in Component if part.record.group is group)
