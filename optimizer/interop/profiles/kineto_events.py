"""The events of a PyTorch profile (Kineto, libkineto/src/output_json.cpp), sorted into columns as they come."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.diagnose.profile import Product
from layoutopt.optimizer.interop.profiles.columns import Columns, Numbered

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.profiles.trace_file import Event

MOST_NS = 2**61
"""Nanoseconds that no event is away from the file's base, which may be 1970: the year 2043."""

LONGEST_NS = 24 * 3600 * 10**9
"""Nanoseconds, a day, that no event lasts: a profile is of minutes, and traffic that hangs is ended within the hour."""

MOST_ELEMENTS = 2**42
"""Elements that no tensor on a GPU has: a byte for each is 4 TiB."""

MOST_WHOLE = 2**62
"""What columns of 64 bits hold, added to a time of that size."""

ONE, GRAPH = 1, 2
"""What a launch starts: one kernel, or all of a graph."""

MEMCPY = {"HtoD": 1, "DtoH": 2}
_LAUNCHES = ("cudaLaunch", "cuLaunch", "hipLaunch", "hipExt", "hipModuleLaunch")
_ENGINE = "autograd::engine::evaluate_function"
_STEP = "ProfilerStep#"
DTYPE_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "c10::bfloat16": 2, "c10::half": 2, "long": 8, "long int": 8,
    "int": 4, "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "short": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element by torch's names of scalar types, in lower case."""


MATRICES = {
    "aten::mm": 0, "aten::_scaled_mm": 0, "aten::bmm": 0, "aten::matmul": 0, "aten::linear": 0, "aten::addmm": 1,
    "aten::baddbmm": 1,
}  # fmt: skip
"""Torch's multiplications, by the place of the first matrix among their inputs; the second follows it."""


@dataclass(slots=True)
class CallTexts:
    """What the events say of one collective: its kind, group, type and ranks as written."""

    kind: str
    group_name: str
    group_text: str
    ranks: str
    members: int
    sent: int
    received: int
    dtype: str
    source: int
    target: int


@dataclass(slots=True)
class KinetoEvents:
    """One file's events. Times are nanoseconds on the file's own base.

    ``device``: everything on a GPU. ``launched``: the runtime's launches. ``forward`` and ``engine``: operators that took
    part in the forward pass, and the autograd engine's functions. ``operators``: torch's operators, which are the device of
    a run without a GPU. ``shaped``: the numbers of ``products``, shapes of multiplications, by their operator's external id.
    ``called``: collectives that ran without a kernel, ``asked``: the operators that asked for them.
    """

    names: Numbered = field(default_factory=Numbered)
    texts: Numbered = field(default_factory=Numbered)
    device: Columns = field(
        default_factory=lambda: Columns(
            ("start", "end", "stream", "name", "copy", "link", "outer", "call", "gpu")
        )
    )
    launched: Columns = field(default_factory=lambda: Columns(("link", "start", "end", "thread", "graph")))
    engine: Columns = field(default_factory=lambda: Columns(("start", "end", "thread")))
    forward: Columns = field(default_factory=lambda: Columns(("start", "end", "thread")))
    operators: Columns = field(default_factory=lambda: Columns(("start", "end", "thread", "name", "outer")))
    called: Columns = field(default_factory=lambda: Columns(("start", "end", "thread", "name", "call")))
    asked: Columns = field(default_factory=lambda: Columns(("start", "end")))
    annotations: Columns = field(default_factory=lambda: Columns(("start", "end", "thread", "name")))
    outer: dict[int, int] = field(default_factory=dict)
    products: dict[Product, int] = field(default_factory=dict)
    shaped: dict[int, int] = field(default_factory=dict)
    calls: dict[tuple[Any, ...], int] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)
    odd: int = 0
    oversized: int = 0

    def add(self, event: Event) -> None:
        """Sort an event in; what does not matter here is left out, what has no name or an impossible time is counted."""
        # Complete events alone have a length; arrows, counters and names of threads have not.
        if event.get("ph") != "X":
            return
        try:
            self._sort_in(event, event.get("cat"))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            self.odd += 1

    def _sort_in(self, event: Event, category: Any) -> None:
        if not isinstance(event["name"], str):
            raise TypeError
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            self._on_device(event)
        elif category == "cpu_op":
            self._operator(event)
        elif category in ("cuda_runtime", "cuda_driver"):
            self._runtime(event)
        elif category == "user_annotation":
            self._annotation(event)

    def _on_device(self, event: Event) -> None:
        args, name = event.get("args") or {}, event["name"]
        start, end = _times(event)
        words = MEMCPY if event["cat"] == "gpu_memcpy" else {}
        copy = next((code for word, code in words.items() if word in name), 0)
        self.device.add(
            start, end, whole(args.get("stream", event.get("tid"))), self.names.number(name), copy,
            whole(args.get("correlation")), _link(args), self._call(args),
            whole(args.get("device", event.get("pid"))),
        )  # fmt: skip

    def _operator(self, event: Event) -> None:
        name, args = event["name"], event.get("args") or {}
        self.processes.add(whole(event.get("pid")))
        start, end = _times(event)
        thread = whole(event.get("tid"))
        if name.startswith(_ENGINE):
            self.engine.add(start, end, thread)
            return
        if name == "record_param_comms":
            call = self._call(args)
            if call >= 0:
                self.outer[_link(args)] = call
            return
        # A sequence number ties an operator to its backward function; that one has the forward's thread, this one 0.
        if args.get("Sequence number") is not None and args.get("Fwd thread id") == 0:
            self.forward.add(start, end, thread)
        if name.startswith("c10d::"):
            self.asked.add(start, end)
        elif name.startswith("aten::"):
            link = _link(args)
            self.operators.add(start, end, thread, self.names.number(name), link)
            if name in MATRICES and (product := product_of(name, args.get("Input Dims"))):
                self.shaped[link] = self.products.setdefault(product, len(self.products))

    def _runtime(self, event: Event) -> None:
        name = event["name"]
        graph = "GraphLaunch" in name
        if graph or name.startswith(_LAUNCHES) or "Memcpy" in name or "Memset" in name:
            start, end = _times(event)
            link = whole((event.get("args") or {}).get("correlation"))
            counted = GRAPH if graph else ONE * name.startswith(_LAUNCHES)
            self.launched.add(link, start, end, whole(event.get("tid")), counted)

    def _annotation(self, event: Event) -> None:
        name, args = event["name"], event.get("args") or {}
        start, end = _times(event)
        thread = whole(event.get("tid"))
        self.processes.add(whole(event.get("pid")))
        if name.startswith("gloo:"):
            call = self._gloo_call(name, args)
            self.called.add(start, end, thread, self.names.number(name), call)
        elif not name.startswith("nccl:"):
            self.annotations.add(start, end, thread, self.names.number(name))

    def _call(self, args: dict[str, Any]) -> int:
        """Return the number of a collective's texts, -1 where the event is none."""
        if "Collective name" not in args:
            return -1
        key = (
            str(args["Collective name"]), str(args.get("Process Group Name", "")),
            str(args.get("Process Group Description", "")), str(args.get("Process Group Ranks", "")),
            whole(args.get("Group size"), 0), self._count(args, "In msg nelems"), self._count(args, "Out msg nelems"),
            str(args.get("dtype", "")), whole(args.get("Src Rank")), whole(args.get("Dst Rank")),
        )  # fmt: skip
        return self.calls.setdefault(key, len(self.calls))

    def _count(self, args: dict[str, Any], key: str) -> int:
        """Return a tensor's elements, -1 where they are not told or are more than a GPU holds."""
        found = whole(args.get(key))
        try:
            impossible = int(args.get(key, 0)) > MOST_ELEMENTS
        except (OverflowError, TypeError, ValueError):
            impossible = False
        self.oversized += impossible
        return -1 if impossible else found

    def _gloo_call(self, name: str, args: dict[str, Any]) -> int:
        """Return the number of a collective of gloo, which tells its tensor alone."""
        dims, types = args.get("Input Dims") or [], args.get("Input type") or [""]
        elements = _elements(dims[0]) if dims else -1
        key = (name.removeprefix("gloo:"), "", "", "", 0, elements, elements, str(types[0]), -1, -1)
        return self.calls.setdefault(key, len(self.calls))

    def call_texts(self) -> tuple[CallTexts, ...]:
        """Return what is said of each collective, by number."""
        return tuple(CallTexts(*key) for key in self.calls)


def _link(args: dict[str, Any]) -> int:
    """Return the number that operators share with what they launched; up to torch 2.0 kernels spell it small."""
    return whole(args.get("External id", args.get("external id")))


def product_of(name: str, dims: Any) -> Product | None:
    """Return the shape of one of torch's multiplications by the sizes of its inputs; None where they are no such."""
    first = MATRICES[name]
    if not isinstance(dims, list) or len(dims) < first + 2:
        return None
    pair = dims[first : first + 2]
    left, right = ([whole(size, 0) for size in one] if isinstance(one, list) else [] for one in pair)
    if min(len(left), len(right)) < 2 or min(*left, *right) < 1:
        return None
    # aten::linear takes its weight transposed: out by in.
    inner, columns = (right[-1], right[-2]) if name == "aten::linear" else (right[-2], right[-1])
    batch, rows = prod(right[:-2]), prod(left[:-1])
    if inner != left[-1] or rows % batch:
        return None
    return Product(batch=batch, m=rows // batch, n=columns, k=inner)


def _elements(shape: Any) -> int:
    """Count the elements of a tensor or of a list of tensors."""
    if not isinstance(shape, list):
        return -1
    if shape and isinstance(shape[0], list):
        return sum(_elements(one) for one in shape)
    return prod(whole(size, 0) for size in shape)


def _times(event: Event) -> tuple[int, int]:
    """Return start and end in nanoseconds; the file has microseconds."""
    # Three digits behind the point (output_json.cpp): rounded, since products of such fractions are not whole.
    start, duration = round(event["ts"] * 1000), round(event.get("dur", 0) * 1000)
    if not -MOST_NS < start < MOST_NS or not 0 <= duration < LONGEST_NS:
        raise ValueError
    return start, start + duration


def whole(value: Any, other: int = -1) -> int:
    """Return a whole number that may be written as text."""
    try:
        found = int(value)
    except (OverflowError, TypeError, ValueError):
        return other
    return found if -MOST_WHOLE < found < MOST_WHOLE else hash(found)  # told apart all the same
