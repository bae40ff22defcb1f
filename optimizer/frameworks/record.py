"""One framework as a record: everything that the rooms above know of it, but for its rules and its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.frameworks.abilities import Abilities
    from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Optimizer

Release = tuple[int, ...]
"""A release as numbers, comparable: megatron-core's for the Megatron frameworks, eras for torchtitan, else its own, or
year and month."""

NEWEST: Release = (9999,)


class TrainerFamily(StrEnum):
    """Frameworks that run the same code of parallelism and share its validity rules; ``OWN`` shares nobody's."""

    MEGATRON_CORE = "megatron-core"
    PYTORCH_PIPELINES = "pytorch-pipelines"
    DEEPSPEED_ENGINE = "deepspeed-engine"
    PLAIN_FSDP = "plain-fsdp"
    OWN = "own"
    FREEST = "freest"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRelease:
    """A release: its number, the day from which it could be had (``2024-10``, ``2021-08-10``), what it can launch."""

    number: Release
    date: str
    abilities: Abilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """A numbering that people use beside the framework's own, such as that of containers.

    ``inside`` maps its releases to the framework's, and reads versions whose first number is at least ``first``,
    unless the string they stand in holds the word ``unless``.
    """

    first: int
    inside: Mapping[Release, Release]
    unless: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFormat:
    """A kind of launch file that a framework's importer reads.

    ``reader`` is the function in ``interop/FOLDER/read.py``. A text is of this kind if the regular expression ``sign``
    is in it, a JSON object if it has one of ``json_keys``. ``shared``: other frameworks' files hold the sign too, so that
    it is asked for last.
    """

    kind: str
    reader: str
    sign: str = ""
    json_keys: frozenset[str] = frozenset()
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstated:
    """What a launch of a framework means where it does not say.

    ``zero`` stage, ``tied`` embeddings, ``mesh_order``, the ``modules`` of selective recomputation (empty: it has to
    say), ``etp_is_tp``: experts are sharded as the dense layers are, ``always`` or ``without ep``, where that is
    no choice; ``equal_stages``: every stage gets the same layers; ``dropout``: a published run dropped out.
    """

    zero: int = 1
    tied: bool = False
    mesh_order: str = DEFAULT_MESH_ORDER
    modules: tuple[str, ...] = ()
    etp_is_tp: Literal["never", "always", "without ep"] = "never"
    equal_stages: bool = False
    dropout: bool = False

    def etp(self, tp: int, ep: int) -> int:
        """Return the ranks that each expert is split over."""
        return tp if self.etp_is_tp == "always" or (self.etp_is_tp == "without ep" and ep == 1) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRecord:
    """A trainer.

    ``releases`` go from the oldest to the newest. ``names`` are words for releases (``era a``), ``numberings`` the
    other ways to count them, tried in order. ``dated``: releases are months, and other numbers say nothing.
    ``exports`` is the release that its exporter writes for when none is asked for, the newest one checked; None: it has
    no exporter in ``interop``. ``imports`` are the launch files that its importer there reads.
    ``fp8_recipes`` are its words for the ways to choose FP8 scales, ``optimizers`` those for optimizers.
    ``loads_models``: it loads the Hugging Face model, whatever its layers are, and its launch files describe none.
    """

    name: str
    family: TrainerFamily
    releases: tuple[PublishedRelease, ...]
    exports: str | None
    imports: tuple[LaunchFormat, ...]
    aliases: tuple[str, ...] = ()
    names: Mapping[str, Release] = field(default_factory=dict)
    numberings: tuple[Numbering, ...] = ()
    dated: bool = False
    unstated: Unstated = field(default_factory=Unstated)
    fp8_recipes: Mapping[Fp8Recipe, str] = field(default_factory=dict)
    optimizers: Mapping[Optimizer, str] = field(default_factory=dict)
    loads_models: bool = False

    @property
    def folder(self) -> str:
        """Name of its files: ``frameworks/FOLDER.py`` and ``.yaml``, ``interop/FOLDER/``, ``space/rules/FOLDER.py``."""
        return self.name.replace("-", "_")

    def abilities(self, release: Release = NEWEST) -> Abilities:
        """Return what a release can launch: what the newest one up to it can, of older ones the oldest."""
        had = [one for one in self.releases if one.number <= release]
        return (had[-1] if had else self.releases[0]).abilities
