"""Which arguments to call a launcher with, and its launches as samples.

Tensors are tried in several layouts and dtypes, with padded rows first: strides that are no product of sizes cannot be
taken for one. The first way in which every call leads to a launch of the kernel is the one that is kept.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from . import hints
from .recorder import Given, Launcher, RawCall, RawLaunch, Recorder
from .samples import PROBLEMS, RAGGED, SCALES, Leaf, Memory, Pointer, Sample, Value, dense, shape_of, strides_of

DTYPES = ("float16", "float32", "bfloat16")
LAYOUTS = ("bhsd", "bshd", "hsd", "sd")
HEAD_DIMS = (64, 128, 32, 16)
PADS = {"q": 8, "k": 16, "v": 24, "o": 32}  # elements behind a row; each tensor has strides of its own
_ALIKE = {"q": 8, "k": 16, "v": 16, "o": 32}  # for a launcher that wants one layout for K and V
_NONE = {"q": 0, "k": 0, "v": 0, "o": 0}
_ORDER = ("q", "k", "v", "o")
_DTYPE_WORDS = {"float32*": "float32", "float16*": "float16", "bfloat16*": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Way:
    """How tensors are given: layout, dtype, elements behind each row, whether K and V have heads and rows of their own,
    the head dimension.
    """

    layout: str
    dtype: str
    pads: Mapping[str, int]
    own_heads: bool
    own_rows: bool
    head_dim: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The samples of one launcher in one way, all of the same kernel."""

    launcher: Launcher
    way: Way
    samples: tuple[Sample, ...]
    ragged: bool  # lengths that are no multiple of anything were accepted
    refusal: str = ""


def record_samples(
    recorder: Recorder, kernel: str, dtypes: Sequence[str], answers: Mapping[str, str]
) -> tuple[tuple[Recorded, ...], tuple[str, ...]]:
    """Call the launchers until one launches `kernel` (part of its name in the PTX): its samples in each layout that it
    takes, since most launchers cannot tell rows from heads. Reasons when none does.
    """
    reasons: list[str] = []
    for launcher in _ordered(recorder.launchers):
        found: list[Recorded] = []
        if launcher.name == "main":
            call = recorder.call("main", ())
            own = _own_sizes(call, launcher, kernel)
            found += [own] if own is not None else []
        else:
            tensors = any("Tensor" in t for t in launcher.types)
            call = RawCall((), {})
            for layout in LAYOUTS if tensors else LAYOUTS[:1]:
                one, last = _call_in_ways(recorder, launcher, layout, kernel, dtypes, answers)
                call = last if not call.error else call
                found += [one] if one is not None else []
        if found:
            return tuple(found), ()
        reasons.append(f"{launcher.name}: {call.error or 'it launches nothing of that name'}")
    return (), tuple(reasons)


def _ordered(launchers: Sequence[Launcher]) -> list[Launcher]:
    return sorted(launchers, key=lambda item: (item.name == "main", "?" in item.types, not item.arguments))


def _call_in_ways(
    recorder: Recorder, launcher: Launcher, layout: str, kernel: str, dtypes: Sequence[str], answers: Mapping[str, str]
) -> tuple[Recorded | None, RawCall]:
    refused = RawCall((), {})
    for dims in (HEAD_DIMS[:1], HEAD_DIMS[1:]):
        ways = list(_ways(launcher, layout, dims, dtypes))
        calls = [_Call(launcher, way, _sizes(way, PROBLEMS[0]), SCALES[0]) for way in ways]
        probes = _made(recorder, launcher, calls, kernel, answers)
        # The first refusal is the one that speaks of what a caller would pass.
        refused = refused if refused.error or not probes else probes[0][0]
        for way, (_, sample) in zip(ways, probes, strict=True):
            found = _whole(recorder, launcher, way, kernel, answers) if sample is not None else None
            if found is not None:
                return found, refused
    return None, refused


def _whole(
    recorder: Recorder, launcher: Launcher, way: Way, kernel: str, answers: Mapping[str, str]
) -> Recorded | None:
    """The samples of a way: every problem must lead to the kernel of the first; ragged lengths and another head
    dimension may.
    """
    other = replace(way, head_dim=32 if way.head_dim != 32 else 64)
    rows = [*((way, p) for p in PROBLEMS), (way, RAGGED), (other, PROBLEMS[0])]
    calls = [_Call(launcher, w, _sizes(w, p), SCALES[n]) for n, (w, p) in enumerate(rows)]
    made = [sample for _, sample in _made(recorder, launcher, calls, kernel, answers)]
    first = made[0]
    if first is None or any(s is None or s.kernel != first.kernel for s in made[: len(PROBLEMS)]):
        return None
    same = [s for s in made if s is not None and s.kernel == first.kernel]
    return Recorded(launcher, way, tuple(same), made[len(PROBLEMS)] in same)


@dataclass(frozen=True, slots=True)
class _Call:
    launcher: Launcher
    way: Way
    sizes: Mapping[str, int]
    scale: float


def _made(
    recorder: Recorder, launcher: Launcher, calls: Sequence[_Call], kernel: str, answers: Mapping[str, str]
) -> list[tuple[RawCall, Sample | None]]:
    """Each call, and its launch of the kernel as a sample."""
    given = [arguments_of(launcher, c.way, c.sizes, c.scale, answers) for c in calls]
    found: list[tuple[RawCall, Sample | None]] = []
    for one, call in zip(calls, recorder.calls(launcher.name, given), strict=True):
        launch = next((item for item in call.launches if kernel in item.kernel), None)
        sample = (
            None if launch is None or call.error else sample_of(call, launch, one.sizes, _strides(one, call), one.scale)
        )
        found.append((call, sample))
    return found


def _strides(one: _Call, call: RawCall) -> dict[str, int]:
    strides: dict[str, int] = {}
    # O is made by the launcher where it is not among its arguments: it has no padding then.
    given_o = any(m.role == "o" for m in call.memories.values())
    for role in ("q", "k", "v", "o"):
        pad = one.way.pads[role] if role != "o" or given_o else 0
        strides |= strides_of(role, one.sizes, one.way.layout, pad)
    return strides


def _sizes(way: Way, problem: Mapping[str, int]) -> dict[str, int]:
    sizes = {**problem, "D": way.head_dim}
    if not way.own_heads:
        sizes["Hkv"] = sizes["H"]
    if not way.own_rows:
        sizes["Sk"] = sizes["Sq"]
    return sizes | {"B": 1, "H": 1, "Hkv": 1} if way.layout == "sd" else sizes


def _ways(launcher: Launcher, layout: str, dims: Sequence[int], dtypes: Sequence[str]) -> Iterator[Way]:
    """The richest first: strides that tell tensors apart, K and V with heads and rows of their own."""
    tensors = any("Tensor" in t for t in launcher.types)
    for head_dim, dtype in itertools.product(dims, dtypes):
        for heads, rows in itertools.product((True, False), (True, False)):
            for pads in (PADS, _ALIKE, _NONE) if tensors else (_NONE,):
                yield Way(layout, dtype, pads, heads, rows, head_dim)


def arguments_of(
    launcher: Launcher, way: Way, sizes: Mapping[str, int], scale: float, answers: Mapping[str, str]
) -> list[Given]:
    """The arguments of one call, by type and name; tensors without a telling name are q, k, v, o in order."""
    roles = tensor_roles(launcher, answers)
    given: list[Given] = []
    for index, kind in enumerate(launcher.types):
        name = launcher.arguments[index].name if index < len(launcher.arguments) else ""
        role = answers.get(name, roles[index])
        if "Tensor" in kind or kind.endswith("*"):
            given.append(_tensor(kind, role, name, way, sizes))
        elif kind == "bool":
            given.append(Given("number", number=0.0))
        elif kind in ("int", "int?"):
            given.append(_whole_number(kind, name, sizes, answers))
        elif kind in ("float", "float?"):
            off = hints.is_off_by_default(name)
            given.append(Given("number", number=0.0 if off else scale))
        else:
            given.append(Given("none"))
    return given


def _whole_number(kind: str, name: str, sizes: Mapping[str, int], answers: Mapping[str, str]) -> Given:
    text = answers.get(name, "")
    if text.lstrip("-").isdigit():
        return Given("number", number=float(text))
    role = text or hints.size_role(name)
    if role == "group":
        return Given("number", number=float(sizes["H"] // sizes["Hkv"]))
    if role in sizes:
        return Given("number", number=float(sizes[role]))
    if role == "Dv":
        return Given("number", number=float(sizes["D"]))
    return Given("none") if kind == "int?" else Given("number", number=-1.0 if "window" in name.lower() else 0.0)


def tensor_roles(launcher: Launcher, answers: Mapping[str, str]) -> list[str]:
    """A role for each parameter that is a tensor or a pointer; ``extra:NAME`` for one that is neither of the five."""
    names = [a.name for a in launcher.arguments] + [""] * (len(launcher.types) - len(launcher.arguments))
    roles = [answers.get(name) or hints.tensor_role(name) for name in names]
    holds = ["Tensor" in kind or kind.endswith("*") for kind in launcher.types]
    taken = {role for role, tensor in zip(roles, holds, strict=True) if tensor}
    free = [role for role in _ORDER if role not in taken]
    for index, tensor in enumerate(holds):
        plain = launcher.types[index] == "Tensor" or launcher.types[index].endswith("*")
        if tensor and not roles[index]:
            untold = not names[index] or not hints.OPTIONAL.fullmatch(names[index].lower())
            roles[index] = free.pop(0) if free and plain and untold else f"extra:{names[index] or index}"
    return roles


def _tensor(kind: str, role: str, name: str, way: Way, sizes: Mapping[str, int]) -> Given:
    if role.startswith("extra:"):
        optional = kind.endswith("?") or hints.OPTIONAL.fullmatch(name.lower())
        return Given("none") if optional else Given("tensor", role, "float32", *_flat(sizes["B"] * sizes["H"] * 8192))
    if kind == "Tensor?" and role not in ("o", "lse"):
        return Given("none")
    if kind == "Tensor?" and role == "lse":
        return Given("none")
    dtype = _DTYPE_WORDS.get(kind, "float32" if role == "lse" else way.dtype)
    shape = shape_of(role, sizes, way.layout)
    return Given("tensor", role, dtype, shape, dense(shape, way.pads.get(role, 0)))


def _flat(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (count,), (1,)


# ---- launches as samples


def sample_of(
    call: RawCall, launch: RawLaunch, sizes: Mapping[str, int], strides: Mapping[str, int], scale: float
) -> Sample:
    """A launch with its pointers resolved; what is no pointer stays bytes of words (see `leaves`)."""
    results = [number for number, _ in call.results]
    memories: dict[int, Memory] = {}
    q = next((m for m in call.memories.values() if m.role == "q"), None)
    given_o = any(m.role == "o" for m in call.memories.values())
    for number, raw in call.memories.items():
        width = {"float16": 2, "bfloat16": 2, "int64": 8, "float64": 8, "bool": 1, "uint8": 1}.get(raw.dtype, 4)
        count = raw.size // width
        role = raw.role
        if not role and number in results:
            first = results.index(number) == 0
            rows = sizes["B"] * sizes["H"] * sizes["Sq"]
            role = "o" if first and not given_o and q is not None else "lse" if count == rows else ""
        memories[number] = Memory(f"memory {number}", role, count, raw.dtype, launch.fills.get(number, ""))

    def pointer(value: int) -> Pointer | None:
        for number, raw in call.memories.items():
            if raw.address <= value < raw.address + max(raw.size, 1):
                return Pointer(memories[number], value - raw.address)
        return None

    args = tuple(_value(data, pointer) for data in launch.args)
    return Sample(sizes, launch.grid, launch.block, launch.shared, args, strides, scale, launch.kernel)


def _value(data: bytes, pointer: Callable[[int], Pointer | None]) -> Value | tuple[Leaf, ...]:
    if len(data) == 8:
        number = int.from_bytes(data, "little", signed=True)
        return pointer(number) or number
    if len(data) in (1, 2, 4):
        return int.from_bytes(data, "little", signed=True)
    return tuple(leaves(data, pointer))


def leaves(data: bytes, pointer: Callable[[int], Pointer | None]) -> Iterator[Leaf]:
    """The words of a struct: eight bytes where they are an address, else four."""
    at = 0
    while at + 4 <= len(data):
        if at % 8 == 0 and at + 8 <= len(data):
            found = pointer(int.from_bytes(data[at : at + 8], "little"))
            if found is not None:
                yield at, found
                at += 8
                continue
        yield at, int.from_bytes(data[at : at + 4], "little", signed=True)
        at += 4


def as_float(word: int) -> float:
    """The float whose bits a four-byte word is."""
    return struct.unpack("<f", struct.pack("<i", word))[0]


def _own_sizes(call: RawCall, launcher: Launcher, kernel: str) -> Recorded | None:
    """The launch of a main(), whose sizes are its own: one sample without roles."""
    launch = next((item for item in call.launches if kernel in item.kernel), None)
    if launch is None:
        return None
    sizes: dict[str, int] = dict.fromkeys(("B", "H", "Hkv", "Sq", "Sk", "D"), 0)
    way = Way("bhsd", "", _NONE, False, False, 0)
    return Recorded(launcher, way, (sample_of(call, launch, sizes, {}, 0.0),), False)
