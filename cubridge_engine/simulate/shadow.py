"""Shadow of shared memory: who wrote and read each granule, when, and what every warp knows of the others.

Time is a vector clock per warp (FastTrack with one read entry per warp). Agents are the warps of the cluster and one
per mbarrier, on behalf of which bulk copies are completed. An entry packs ``clock << 32 | site << 13 | lane << 8 |
agent``; a clock ``PENDING`` means in flight: no one may touch the granule before the copy is waited for. The granule
is the smallest shared access of the kernel, so neighbours written by different warps are never confused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .findings import Findings, access_name, bare
from .model import Instruction

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[Any]

TICK = np.int64(1) << np.int64(32)
LOW = TICK - 1
PENDING = np.int64(0x7FFF_FFF0) << np.int64(32)
AGENT_MASK = np.int64(0xFF)
MAX_AGENTS = 256
_NONE = np.zeros(0, np.int64)  # no access has these rows or lanes
MAX_BARRIERS = 64  # agents that complete copies for mbarriers; with more barriers than these, several share one


def site_of(entry: int) -> int:
    """The instruction of an entry."""
    return (entry >> 13) & 0x7FFFF


class Shadow:
    """One batch of CTAs: `ctas` x `size` bytes of shared memory, `warps` per CTA, `team` CTAs per cluster.

    Accesses are given per lane: `row` is ``cta * warps + warp``. ``limit[row, agent]`` is the greatest entry of the
    agent that is ordered before what the warp does now; of the warp itself these are its past epochs, so that accesses
    of the present epoch are looked at too: another lane may have made them.
    """

    def __init__(
        self, ctas: int, warps: int, team: int, size: int, granule: int, barriers: bool, findings: Findings
    ) -> None:
        self.ctas, self.warps, self.team, self.size, self.granule = ctas, warps, team, size, granule
        self.findings = findings
        self.threads = team * warps  # agents that are warps
        self.agents = min(self.threads + (MAX_BARRIERS if barriers else 0), MAX_AGENTS)
        # With an asynchronous proxy, a second half of `limit` holds what is known to be visible to it.
        self.width = self.agents * (2 if barriers else 1)
        self._shift = granule.bit_length() - 1  # a granule is a power of two, as all widths of accesses are
        cells = ctas * size // granule
        self.write = np.zeros(cells, np.int64)
        self.reads = np.zeros((cells, self.threads), np.int64)
        rows = np.arange(ctas * warps)
        self.agent_of = rows // warps % team * warps + rows % warps
        self.clock = np.full(ctas * warps, TICK, np.int64)
        self._stamp = self.clock + self.agent_of
        self.limit = np.full((ctas * warps, self.width), LOW, np.int64)
        self.gathered = np.full(ctas * warps, LOW, np.int64)  # own reads before the last shuffle of the whole warp
        self._rows = self._of_rows(rows)  # of the last access: most have the same lanes
        self._moment = _NONE, _NONE, _NONE  # rows, lanes, and their entries at site 0; gone with the next epoch
        self.name_at: Callable[[int], str] = lambda offset: f"shared memory at byte {offset}"

    # -- lanes
    def _of_rows(self, row: Array) -> tuple[Array, Array, Array]:
        """The rows, the start of each in ``limit`` and its agent, as columns."""
        return row, (row * self.width)[:, None], self.agent_of[row][:, None]

    def _starts(self, row: Array) -> Array:
        """Where each row starts in ``limit``, a column. No array of rows is written to: it is known by identity."""
        if row is not self._rows[0]:
            self._rows = self._of_rows(row)
        return self._rows[1]

    def _agents(self, row: Array) -> Array:
        """The agent of each row, a column."""
        if row is not self._rows[0]:
            self._rows = self._of_rows(row)
        return self._rows[2]

    # -- time
    def now(self, row: Array, lane: Array, site: int) -> Array:
        """The entries of accesses made now by these lanes."""
        if row is not self._moment[0] or lane is not self._moment[1]:
            self._moment = row, lane, self._stamp[row] + (lane << 8)
        return self._moment[2] + (site << 13)

    def _next_epoch(self, rows: Array) -> None:
        self.clock[rows] += TICK
        self._stamp[rows] += TICK
        self._moment = _NONE, _NONE, _NONE

    def tick(self, rows: Array) -> None:
        """Start a new epoch of the (distinct) warps; what they did up to now is in their ``limit`` afterwards."""
        self.limit[rows, self.agent_of[rows]] = self.clock[rows] + LOW
        self._next_epoch(rows)

    def gather(self, rows: Array) -> None:
        """A shuffle of all lanes of the (distinct) warps: each lane has read what it read before any lane goes on, so
        that a write behind it overtakes no read. It makes no write visible: that takes a __syncwarp().
        """
        self.gathered[rows] = self.clock[rows] + LOW
        self._next_epoch(rows)

    def learn(self, rows: Array, known: Array) -> None:
        """Give the (distinct) warps the knowledge `known` (rows, width)."""
        self.limit[rows] = np.maximum(self.limit[rows], known)

    def fence(self, rows: Array) -> None:
        """fence.proxy.async of these warps: what they know becomes visible to the asynchronous proxy."""
        self.tick(rows)
        known = self.limit[rows]
        known[:, self.agents :] = np.maximum(known[:, self.agents :], known[:, : self.agents])
        self.limit[rows] = known

    # -- cells
    def cells(self, offset: Array, nbytes: int) -> Array:
        """Granules of accesses of `nbytes` at byte offsets into the batch: shape (lanes, granules)."""
        first = offset >> self._shift
        count = max(nbytes // self.granule, 1)
        return first[:, None] + np.arange(count) if count > 1 else first[:, None]

    def _last_write(self, cells: Array, row: Array, lane: Array, site: int) -> Array:
        """The entries of the last writes; those that are not ordered before are reported."""
        entry = self.write[cells]
        known = self.limit.reshape(-1)[self._starts(row) + (entry & AGENT_MASK)]
        suspicious = entry > known
        if suspicious.any():
            self._report(suspicious, entry, cells, row, lane, site)
        return entry

    def read(self, cells: Array, row: Array, lane: Array, site: int) -> Array:
        """Check and note reads by lanes (cells: (lanes, granules)); returns the entries of the writes read."""
        entry = self._last_write(cells, row, lane, site)
        if not entry.all():
            self._uninitialised(entry == 0, cells, row, site)
        self.reads.reshape(-1)[cells * self.threads + self._agents(row)] = self.now(row, lane, site)[:, None]
        return entry

    def store(self, cells: Array, row: Array, lane: Array, site: int, pending: bool = False) -> Array:
        """Check and note writes by lanes; `pending` ones are in flight. Returns the entries noted, one per lane."""
        self._last_write(cells, row, lane, site)
        read = self.reads[cells]
        suspicious = read > self.limit[row, None, : self.threads]
        if suspicious.any():
            mine = np.arange(len(row)), slice(None), self.agent_of[row]
            suspicious[mine] &= read[mine] > self.gathered[row][:, None]
            for other in range(self.threads):
                if suspicious[..., other].any():
                    self._report(suspicious[..., other], read[..., other], cells, row, lane, site)
        noted = self.now(row, lane, site)
        if pending:
            noted = (noted & LOW) | PENDING
        self.write[cells] = noted[:, None]
        return noted

    def complete(self, cells: Array, noted: Array, entry: Array) -> None:
        """Turn in-flight writes (still those `noted`) into completed ones with `entry`, one per row of cells."""
        mine = self.write[cells] == noted[:, None]
        if mine.all():
            self.write[cells] = entry[:, None]
        else:
            self.write[cells[mine]] = np.broadcast_to(entry[:, None], cells.shape)[mine]

    def hold(self, cells: Array, row: Array, lane: Array, site: int, group: Array) -> Array:
        """Note reads of the asynchronous proxy (wgmma operands, bulk stores), in flight until ``release``.

        `cells` (lanes, granules); `group` is what will be waited for. Returns the entries noted, one per lane.
        """
        entry = self._last_write(cells, row, lane, site)
        self._check_held(entry, cells, row, site)
        noted = self._in_flight(row, lane, site, group)
        self.reads.reshape(-1)[cells * self.threads + self._agents(row)] = noted[:, None]
        return noted

    def hold_shared(self, cells: Array, row: Array, lane: Array, site: int, group: Array) -> Array:
        """Like ``hold`` for cells (groups, granules) that four neighbouring warps read: `row`, `lane`: (groups, 4).

        Most operands come from one copy, so that the newest entry speaks for all.
        """
        entry = self.write[cells]
        newest = entry.max(1)[:, None]
        agent = newest & AGENT_MASK
        known = self.limit.reshape(-1)
        first = row * self.width + agent
        quick = bool(entry.all()) and not ((entry ^ newest) & AGENT_MASK).any() and (newest <= known[first]).all()
        quick = quick and ((agent >= self.threads) | (newest <= known[first + self.agents])).all()
        if not quick:
            every = np.repeat(cells, row.shape[1], axis=0)
            self._check_held(self._last_write(every, row.ravel(), lane.ravel(), site), every, row.ravel(), site)
        noted = self._in_flight(row, lane, site, group)
        self._quads()[self._quad_index(cells, row)] = noted[:, None, :]
        return noted

    def read_by_engine(self, cells: Array, row: Array, lane: Array, site: int) -> None:
        """Check reads that the asynchronous proxy makes at once (the old values of a reduction)."""
        self._check_held(self._last_write(cells, row, lane, site), cells, row, site)

    def _quads(self) -> Array:
        """The read entries, by four neighbouring warps."""
        return self.reads.reshape(-1, 4)

    def _quad_index(self, cells: Array, row: Array) -> Array:
        return cells * (self.threads // 4) + (self.agent_of[row[:, 0]] // 4)[:, None]

    def _in_flight(self, row: Array, lane: Array, site: int, group: Array) -> Array:
        """Entries of reads in flight: the clock also tells the last groups apart, which are waited for one by one."""
        return (self.now(row, lane, site) & LOW) | (PENDING + ((group & np.int64(0xF)) << np.int64(32)))

    def _check_held(self, entry: Array, cells: Array, row: Array, site: int) -> None:
        """Report what is uninitialised, and generic writes that no proxy fence has made visible."""
        if not entry.all():
            self._uninitialised(entry == 0, cells, row, site)
        agent = entry & AGENT_MASK
        visible = self.limit.reshape(-1)[(row * self.width + self.agents)[:, None] + agent]
        unfenced = (agent < self.threads) & (entry > visible) & (entry < PENDING) & (entry != 0)
        if unfenced.any():
            i, j = (int(x[0]) for x in np.nonzero(unfenced))
            e = int(entry[i, j])
            self.findings.add(
                "CB530", site, int(unfenced.sum()), site_of(e), access=access_name(self.findings.code[site]),
                buffer=self.where(int(cells[i, j])), other_warp=self.agent_name(e & 0xFF),
            )  # fmt: skip

    def release(self, cells: Array, row: Array, noted: Array) -> None:
        """End in-flight reads (those still `noted`): they become reads made at the present time of the warp."""
        index = cells * self.threads + self._agents(row)
        self._let_go(self.reads.reshape(-1), index, noted[:, None], ((noted & LOW) | self.clock[row])[:, None])

    def release_at(self, cells: Array, row: Array, noted: Array, clock: int) -> None:
        """Like ``release``, but they become reads of an earlier epoch of the warp."""
        index = cells * self.threads + self._agents(row)
        self._let_go(self.reads.reshape(-1), index, noted[:, None], ((noted & LOW) | np.int64(clock))[:, None])

    def release_shared(self, cells: Array, row: Array, noted: Array) -> None:
        """The end of ``hold_shared``."""
        done = ((noted & LOW) | self.clock[row])[:, None, :]
        self._let_go(self._quads(), self._quad_index(cells, row), noted[:, None, :], done)

    @staticmethod
    def _let_go(reads: Array, index: Array, noted: Array, done: Array) -> None:
        entry = reads[index]
        mine = entry == noted
        reads[index] = np.broadcast_to(done, entry.shape) if mine.all() else np.where(mine, done, entry)

    def agent_name(self, agent: int) -> str:
        """An agent in words."""
        if agent >= self.threads:
            return "the copy engine"
        rank, warp = divmod(agent, self.warps)
        return f"warp {warp} of CTA {rank} of the cluster" if self.team > 1 else f"warp {warp}"

    # -- findings
    def where(self, cell: int) -> str:
        """The shared buffer a cell belongs to."""
        return self.name_at(cell * self.granule % self.size)

    def _report(self, bad: Array, entry: Array, cells: Array, row: Array, lane: Array, site: int) -> None:
        """Sort suspicious entries into in-flight data, races between warps and races inside a warp."""
        own = (entry & AGENT_MASK) == self._agents(row)
        in_flight = bad & (entry >= PENDING)
        between = bad & ~in_flight & ~own
        inside = bad & ~in_flight & own & ((entry >> 8) & 31 != lane[:, None])
        code = self.findings.code
        access = access_name(code[site])
        for kind, where in (("flight", in_flight), ("between", between), ("inside", inside)):
            if not where.any():
                continue
            for source in np.unique((entry[where] >> 13) & 0x7FFFF).tolist():
                if _atomic(code[site]) and _atomic(code[source]):
                    continue
                chosen = where & (((entry >> 13) & 0x7FFFF) == source)
                i, j = (int(x[0]) for x in np.nonzero(chosen))
                e, what = int(entry[i, j]), access_name(code[source])
                count, place = int(chosen.sum()), self.where(int(cells[i, j]))
                warp = self.agent_name(int(self.agent_of[row[i]]))
                if kind == "flight":
                    self.findings.add("CB517", site, count, source, access=access, buffer=place, other=bare(what))
                elif kind == "between":
                    self.findings.add(
                        "CB516", site, count, source, access=f"{access} by {warp}", buffer=place, other=bare(what),
                        other_warp=self.agent_name(e & 0xFF),
                    )  # fmt: skip
                else:
                    self.findings.add(
                        "CB527", site, count, source, warp=warp, access=access, buffer=place, lane=int(lane[i]),
                        other=what, other_lane=e >> 8 & 31,
                    )  # fmt: skip

    def _uninitialised(self, bad: Array, cells: Array, row: Array, site: int) -> None:
        i, j = (int(x[0]) for x in np.nonzero(bad))
        warp = self.agent_name(int(self.agent_of[row[i]]))
        self.findings.add(
            "CB518", site, int(bad.sum()), access=f"{access_name(self.findings.code[site])} by {warp}",
            buffer=self.where(int(cells[i, j])),
        )  # fmt: skip


def _atomic(ins: Instruction) -> bool:
    if ins.parts[0] == "cp" and "reduce" in ins.parts:
        return True
    return ins.parts[0] in ("atom", "red") or (ins.parts[0] == "mbarrier" and not ins.has("init", "inval"))
