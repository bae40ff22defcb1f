"""What a profile of one rank holds, whatever wrote it: device events, collectives, groups, steps, the host's ranges.

Times are whole nanoseconds on the rank's own clock; arrays of one table share their length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.vocabulary import Axis

    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """Ranks that communicate; ``axis`` is None while nobody said whose traffic it carries.

    ``ranks`` is empty where the profile does not list them; ``size`` is how many there are, 0 where it says neither.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    axis: Axis | None = None
    size: int = 0

    @property
    def members(self) -> int:
        """How many ranks there are, 0 where that is not known."""
        return len(self.ranks) or self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Everything that ran on the device, ordered by start.

    ``part`` is the place of the event's ``Activity`` in that enum, ``phase`` a ``Phase``. ``launch_ns`` is when the host had
    launched it, -1 where unknown, ``name`` an index into the profile's names, ``call`` one into ``Calls`` or -1.
    """

    start_ns: IntArray
    end_ns: IntArray
    stream: IntArray
    part: IntArray
    phase: IntArray
    launch_ns: IntArray
    name: IntArray
    call: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Collective calls of a rank in the order issued.

    ``kind`` indexes ``RankProfile.kinds`` (all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv),
    ``group`` ``RankProfile.groups`` (-1: unknown); ``bytes`` is the whole tensor, -1 where unknown. ``peer`` is the other
    rank of a send or recv, else -1.
    """

    kind: IntArray
    group: IntArray
    bytes: IntArray
    peer: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The shape of a matrix multiplication: ``batch`` times ``m`` by ``k`` times ``k`` by ``n``."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flop(self) -> int:
        """Multiplications and additions of one call."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def words(self) -> str:
        """The shape as ``8192x1024x4096`` (m, n, k), the batch before it where there is one."""
        return "x".join(str(size) for size in (self.batch, self.m, self.n, self.k)[self.batch == 1 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRange:
    """A stretch of the host's time that a trainer named."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """One rank's profile.

    ``steps`` (n, 2) are windows of whole optimizer steps that follow one another on the device, ``begun_ns`` (n,) is when
    the host began each. ``stalls`` are host ranges that may keep the device waiting, by what they are, ``host`` the machine
    whose clock the times are of. ``launches`` counts kernels launched one by one, ``graphs`` replays of CUDA graphs,
    ``world`` the job's ranks, 0 where the file does not say. ``products`` are the shapes of multiplications by the number of
    their name, which stands once for each of its shapes. ``device`` names the GPU; in a run without one it is ``cpu``,
    and events are the operators themselves.
    """

    rank: int
    source: str
    host: str
    device: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    groups: tuple[ProcessGroup, ...]
    events: Events
    calls: Calls
    steps: IntArray
    begun_ns: IntArray
    stalls: dict[str, tuple[HostRange, ...]] = field(default_factory=dict)
    launches: int = 0
    graphs: int = 0
    world: int = 0
    products: dict[int, Product] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
