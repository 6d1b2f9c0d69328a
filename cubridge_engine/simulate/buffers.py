"""Device memory: buffers with red zones in one heap, bounds and roles of every access, what was written and by whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .emit import GLOBAL_BASE, UNSIGNED

Array = NDArray[Any]

RED_ZONE = 1 << 16  # bytes between two allocations: rows of a whole tile past the end stay in it
PAGE_BITS = 12
ALIGN = 256


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


@dataclass(slots=True, eq=False)
class Buffer:
    """A tensor argument. Pass it to ``launch`` where the kernel takes the pointer.

    `array`: the contents (any NumPy dtype; bfloat16 as uint16 bits), C order is made if needed. `role`: ``in`` (a
    write is a finding), ``out`` (poisoned with 0xff bytes, which is NaN; unwritten elements are a finding) or
    ``inout``. `isolate`: the first `isolate` axes index slabs of their own, each followed by a red zone, so that
    reading past the rows of one head cannot land in the next. `row_pad`: unusable elements behind each row of the
    last axis. `offset`: bytes added to the 256-byte aligned start, to test weaker alignment. `strides` are the
    element strides the kernel must be given.
    """

    array: Array
    role: str = "in"
    name: str = ""
    isolate: int = 0
    row_pad: int = 0
    offset: int = 0
    strides: tuple[int, ...] = field(init=False)
    nbytes: int = field(init=False)
    slab_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.role not in ("in", "out", "inout"):
            raise ValueError(f"the role of a buffer is in, out or inout, not {self.role!r}")
        array = self.array = np.ascontiguousarray(self.array)
        if array.itemsize not in (1, 2, 4, 8):
            raise ValueError(f"elements of a buffer have 1, 2, 4 or 8 bytes, not {array.itemsize}")
        if self.isolate and self.isolate >= max(array.ndim, 1):
            raise ValueError("isolate leaves no axis for the slab")
        item = array.itemsize
        inner = array.shape[self.isolate :] or (1,)
        strides = [0] * len(inner)
        step = 1
        for axis in reversed(range(len(inner))):
            strides[axis] = step
            step *= inner[axis] + (self.row_pad if axis == len(inner) - 1 else 0)
        rows = step // (inner[-1] + self.row_pad) if inner[-1] + self.row_pad else 0
        self.slab_bytes = max(rows * (inner[-1] + self.row_pad) - self.row_pad, 0) * item
        pitch = _round_up(self.slab_bytes + RED_ZONE, ALIGN) // item if self.isolate else step
        outer: list[int] = []
        for extent in reversed(array.shape[: self.isolate]):
            outer.append(pitch)
            pitch *= extent
        self.strides = (*reversed(outer), *(strides if array.ndim else ()))
        self.nbytes = (
            (sum((n - 1) * s for n, s in zip(array.shape, self.strides, strict=True)) + 1) * item if array.size else 0
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """A contiguous part of the heap that one buffer (or one slab of it) may use."""

    buffer: int
    start: int
    end: int


class Heap:
    """All buffers of one launch in one array of bytes; addresses are ``GLOBAL_BASE`` plus an offset into it."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self.buffers = buffers
        self.starts: list[int] = []
        top = RED_ZONE
        segments: list[Segment] = []
        for index, buffer in enumerate(buffers):
            start = top + buffer.offset
            self.starts.append(start)
            for slab in range(int(np.prod(buffer.array.shape[: buffer.isolate]))):
                at = start + self._slab_offset(buffer, slab)
                if buffer.slab_bytes:
                    segments.append(Segment(index, at, at + buffer.slab_bytes))
            top = _round_up(start + buffer.nbytes, ALIGN) + RED_ZONE
        self.size = _round_up(top, 1 << PAGE_BITS)
        self.data = np.full(self.size, 0xFF, np.uint8)
        self.segments = segments
        self.seg_start = np.array([s.start for s in segments] or [0], np.int64)
        self.seg_end = np.array([s.end for s in segments] or [0], np.int64)
        self.seg_buffer = np.array([s.buffer for s in segments] or [0], np.int64)
        self.page = np.full(self.size >> PAGE_BITS, -1, np.int32)
        for number, segment in enumerate(segments):
            self.page[segment.start >> PAGE_BITS : (segment.end - 1 >> PAGE_BITS) + 1] = number
        self.writable = [b.role != "in" for b in buffers]
        self.watched = [b.role == "out" for b in buffers]
        self.gaps = self._gap_mask()
        self.written = np.zeros(self.size if any(self.watched) else 0, np.uint8)
        self.writer = np.zeros(self.size // 2 if any(self.watched) else 0, np.int32)  # CTA + 1 per two bytes
        self._views: dict[int, Array] = {}
        self._written_views: dict[int, Array] = {}
        for index, buffer in enumerate(buffers):
            if buffer.role != "out":
                self.region(index)[...] = buffer.array

    @staticmethod
    def _slab_offset(buffer: Buffer, slab: int) -> int:
        offset = 0
        for extent, stride in zip(
            reversed(buffer.array.shape[: buffer.isolate]), reversed(buffer.strides[: buffer.isolate]), strict=True
        ):
            offset += slab % extent * stride
            slab //= extent
        return offset * buffer.array.itemsize

    def _gap_mask(self) -> Array | None:
        if not any(b.row_pad for b in self.buffers):
            return None
        allowed = np.zeros(self.size, bool)
        for index, buffer in enumerate(self.buffers):
            size = buffer.array.itemsize
            self._strided(allowed.view(np.uint8), index, UNSIGNED[8 * size])[...] = int.from_bytes(
                b"\x01" * size, "little"
            )
        return allowed

    def _strided(self, data: Array, index: int, dtype: Any) -> Array:
        buffer = self.buffers[index]
        start = self.starts[index]
        strides = tuple(s * buffer.array.itemsize for s in buffer.strides)
        if not buffer.array.size:
            return np.zeros(buffer.array.shape, dtype)
        return np.ndarray(buffer.array.shape, dtype, data.data, start, strides)

    def region(self, index: int) -> Array:
        """The elements of a buffer, as a view into the heap."""
        return self._strided(self.data, index, self.buffers[index].array.dtype)

    def address(self, index: int) -> int:
        """The device address of a buffer."""
        return GLOBAL_BASE + self.starts[index]

    def view(self, size: int) -> Array:
        """The heap as unsigned integers of `size` bytes."""
        found = self._views.get(size)
        if found is None:
            found = self._views[size] = self.data.view(UNSIGNED[8 * size])
        return found

    def locate(self, offset: int) -> str:
        """Where an offset is, in words: the nearest buffer and the bytes beyond it."""
        if not self.segments:
            return "an address of no buffer"
        distance = np.maximum(np.maximum(self.seg_start - offset, offset - self.seg_end + 1), 0)
        nearest = self.segments[int(distance.argmin())]
        name = self.buffers[nearest.buffer].name or f"argument {nearest.buffer}"
        slab = ""
        isolate = self.buffers[nearest.buffer].isolate
        if isolate:
            rank = int(distance.argmin()) - int(np.flatnonzero(self.seg_buffer == nearest.buffer)[0])
            index = np.unravel_index(rank, self.buffers[nearest.buffer].array.shape[:isolate])
            slab = f"[{', '.join(str(int(i)) for i in index)}]"
        if offset >= nearest.end:
            return f"{name}{slab}, {offset - nearest.end} bytes behind its end"
        if offset < nearest.start:
            return f"{name}{slab}, {nearest.start - offset} bytes before its start"
        return f"{name}{slab}, byte {offset - nearest.start}"

    def inside(self, offset: Array, nbytes: int) -> Array:
        """Which accesses lie wholly in one segment (and not in the padding of a row)."""
        clipped = np.where((offset >= 0) & (offset + nbytes <= self.size), offset, 0)
        segment = self.page[clipped >> PAGE_BITS]
        ok = (segment >= 0) & (offset >= self.seg_start[segment]) & (offset + nbytes <= self.seg_end[segment])
        if self.gaps is not None:
            ok &= self.gaps[np.where(ok, offset, 0)] & self.gaps[np.where(ok, offset + nbytes - 1, 0)]
        return ok

    def all_inside(self, offset: Array, nbytes: int) -> int:
        """The segment that holds every access; -1 when this quick test does not find one."""
        low, high = int(offset.min()), int(offset.max())
        if self.gaps is not None or low < 0 or high + nbytes > self.size:
            return -1
        segment = int(self.page[low >> PAGE_BITS])
        if segment >= 0 and low >= self.seg_start[segment] and high + nbytes <= self.seg_end[segment]:
            return segment
        return -1

    def mark_written(self, offset: Array, size: int, count: int, cta: Array | None) -> tuple[int, int, int, int]:
        """Note stores of `count` elements of `size` bytes. `cta` None: someone else looks after who wrote them.

        Returns (elements written by another CTA before, offset, CTAs).
        """
        view = self._written_views.get(size)
        if view is None:
            view = self._written_views[size] = self.written.view(UNSIGNED[8 * size])
        index = offset // size
        ones = np.iinfo(view.dtype).max
        clash = (0, 0, 0, 0)
        for k in range(count):
            view[index + k] = ones
            if cta is None:
                continue
            cells = (offset + k * size) >> 1
            old = self.writer[cells]
            for half in range(max(size // 2, 1)):
                self.writer[cells + half] = cta + 1
            now = self.writer[cells]  # another CTA may have written in the same instruction
            other = np.where((old != 0) & (old != cta + 1), old, now)
            bad = (other != 0) & (other != cta + 1)
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                clash = (int(bad.sum()), int(offset[first]), int(cta[first]), int(other[first]) - 1)
        return clash

    def unwritten(self, index: int) -> tuple[int, tuple[int, ...]]:
        """Elements of an output that were never written, and the first one."""
        buffer = self.buffers[index]
        if not buffer.array.size:
            return 0, ()
        missing = self._strided(self.written, index, UNSIGNED[8 * buffer.array.itemsize]) == 0
        count = int(missing.sum())
        if not count:
            return 0, ()
        return count, tuple(int(i) for i in np.unravel_index(int(missing.argmax()), missing.shape))
