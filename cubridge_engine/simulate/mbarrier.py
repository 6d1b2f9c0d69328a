"""mbarriers: phases, pending arrivals and transaction bytes per CTA, who waits, and what waiting teaches.

A barrier is known by its byte offset in shared memory. Its phase completes when no arrival and no byte is pending; a
lane whose ``try_wait`` fails is blocked on (CTA, barrier) in place of spinning, which gives deadlock detection. When
nothing else can move, blocked lanes get a few false answers (the hardware's time limit), so that code that only looks
is not taken for a deadlock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .shadow import LOW, MAX_BARRIERS, TICK
from .sync import SyncOps

if TYPE_CHECKING:
    from .machine import Machine

Array = NDArray[Any]
OBJECT_BYTES = 8
FALSE_ANSWERS = 4  # before a wait that leads to nothing is a deadlock


class MBarriers:
    """All mbarriers of a batch of CTAs; arrays are (CTAs, barriers)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.slots: dict[int, int] = {}
        shape = (machine.ctas, MAX_BARRIERS)
        self.ready = np.zeros(shape, bool)
        self.phase = np.zeros(shape, np.int64)
        self.pending = np.zeros(shape, np.int64)
        self.count = np.zeros(shape, np.int64)
        self.bytes = np.zeros(shape, np.int64)
        width = machine.shadow.width if machine.shadow else 1
        self.known = np.full((*shape, width), LOW, np.int64)  # released by arrivals so far
        self.done = np.full((*shape, width), LOW, np.int64)  # the same when the last phase completed
        self.clock = np.full(shape, TICK, np.int64)  # of the copy engine on behalf of this barrier
        self.waits_for = np.full(machine.lanes, -1, np.int32)
        self.waits_cta = np.zeros(machine.lanes, np.int32)
        self.expired = np.zeros(machine.lanes, bool)  # lanes that get a false answer next
        self.false_answers = np.zeros(machine.lanes, np.int64)  # since a phase was last completed
        self.events = 0  # completed phases
        self._expired_at = -1

    def slot(self, offset: int) -> int:
        """The number of the barrier at a byte offset; beyond ``MAX_BARRIERS`` they share the last."""
        found = self.slots.get(offset)
        if found is None:
            found = self.slots[offset] = min(len(self.slots), MAX_BARRIERS - 1)
        return found

    def offset_of(self, slot: int) -> int:
        """The inverse of ``slot``."""
        return next((o for o, s in self.slots.items() if s == slot), -1)

    def problem(self, site: int, slot: int, text: str, count: int = 1) -> None:
        """Report misuse."""
        self.machine.findings.add("CB525", site, count, address=self.offset_of(slot), problem=text)

    def init(self, ctas: Array, slot: int, count: Array) -> None:
        """Set the number of arrivals per phase."""
        self.ready[ctas, slot] = True
        self.phase[ctas, slot] = 0
        self.count[ctas, slot] = self.pending[ctas, slot] = count
        self.bytes[ctas, slot] = 0

    def update(self, ctas: Array, slot: int, arrivals: Array, nbytes: Array, site: int) -> None:
        """Subtract arrivals and add expected bytes for distinct CTAs; completes phases."""
        blank = ~self.ready[ctas, slot]
        if blank.any():
            self.problem(site, slot, "it was never initialised", int(blank.sum()))
            ctas, arrivals, nbytes = ctas[~blank], arrivals[~blank], nbytes[~blank]
        left = self.pending[ctas, slot] - arrivals
        if (left < 0).any():
            first = int(np.flatnonzero(left < 0)[0])
            text = f"more arrivals than the {int(self.count[ctas[first], slot])} of a phase"
            self.problem(site, slot, text, int((left < 0).sum()))
            left = np.maximum(left, 0)
        self.pending[ctas, slot] = left
        self.bytes[ctas, slot] += nbytes
        done = ctas[(left == 0) & (self.bytes[ctas, slot] == 0)]
        if len(done):
            self._complete(done, slot)

    def _complete(self, ctas: Array, slot: int) -> None:
        self.phase[ctas, slot] += 1
        self.pending[ctas, slot] = self.count[ctas, slot]
        self.done[ctas, slot] = np.maximum(self.done[ctas, slot], self.known[ctas, slot])
        self.events += 1
        waiting = np.flatnonzero(self.machine.blocked & (self.waits_for == slot))
        gid = waiting[np.isin(self.waits_cta[waiting], ctas)]
        if len(gid):
            self.waits_for[gid] = -1
            self.machine.wake(gid)

    def release(self, rows: Array, ctas: Array, slot: int) -> None:
        """Arrivals of warps `rows` at the barrier of `ctas`: what they did becomes known to those who wait."""
        shadow = self.machine.shadow
        if shadow is not None:
            shadow.tick(np.unique(rows))
            np.maximum.at(self.known, (ctas, np.full(len(ctas), slot)), shadow.limit[rows])

    def copied(self, cta: int, slot: int, nbytes: int, site: int) -> Any:
        """A bulk copy of `nbytes` has completed; returns the clock its writes get."""
        clock = self.clock[cta, slot]
        shadow = self.machine.shadow
        if shadow is not None:
            self.known[cta, slot, shadow.threads + slot] = clock + LOW
        self.clock[cta, slot] += TICK
        self.update(np.array([cta]), slot, np.array([0]), np.array([-nbytes]), site)
        return clock

    def expire(self) -> bool:
        """Give every blocked lane a false answer; False when some of them have led to nothing."""
        if self._expired_at != self.events:
            self._expired_at = self.events
            self.false_answers[:] = 0
        gid = np.flatnonzero(self.machine.blocked & (self.waits_for >= 0))
        fresh = gid[self.false_answers[gid] < FALSE_ANSWERS]
        if not len(fresh):
            return False
        self.expired[fresh] = True
        self.false_answers[fresh] += 1
        self.waits_for[fresh] = -1
        self.machine.wake(fresh)
        return True

    def describe(self, gid: int) -> str:
        """What a blocked lane waits for."""
        slot, cta = int(self.waits_for[gid]), int(self.waits_cta[gid])
        name = self.machine.launch.kernel.name_shared(self.offset_of(slot))
        return (
            f"mbarrier {name} is in phase {int(self.phase[cta, slot])} with {int(self.pending[cta, slot])} of "
            f"{int(self.count[cta, slot])} arrivals and {int(self.bytes[cta, slot])} bytes outstanding"
        )


class MBarrierOps(SyncOps):
    """mbarrier and cluster-barrier instructions."""

    def _barriers(self, address: Array, m: Array | None, site: int, write: bool) -> tuple[Array, Array, Array]:
        """Lanes, target CTAs and byte offsets of barrier objects, checked."""
        lanes, flat = self._shared_offsets(address, OBJECT_BYTES, m, site)
        chosen = np.arange(self.count) if lanes is None else lanes
        shadow = self.machine.shadow
        if shadow is not None and len(flat):
            cells = shadow.cells(flat, OBJECT_BYTES)
            (shadow.store if write else shadow.read)(cells, self.row[chosen], self.lane[chosen], site)
        return chosen, flat // self.machine.shared_size, flat % self.machine.shared_size

    def mbarrier_init(self, address: Array, count: Array, m: Array | None, site: int) -> None:
        """Prepare barriers for `count` arrivals per phase."""
        lanes, cta, offset = self._barriers(address, m, site, True)
        for at in np.unique(offset).tolist():
            here = offset == at
            self.machine.mbarriers.init(cta[here], self.machine.mbarriers.slot(at), count[lanes[here]].astype(np.int64))

    def mbarrier_inval(self, address: Array, m: Array | None, site: int) -> None:
        """The object is ordinary memory again."""
        _, cta, offset = self._barriers(address, m, site, True)
        for at in np.unique(offset).tolist():
            self.machine.mbarriers.ready[cta[offset == at], self.machine.mbarriers.slot(at)] = False

    def mbarrier_arrive(
        self, address: Array, count: Array | None, nbytes: Array | None, drop: bool, m: Array | None, site: int
    ) -> Array:
        """Arrive `count` times per lane (None: expect bytes only); returns the phase of each lane's barrier before."""
        barriers = self.machine.mbarriers
        lanes, cta, offset = self._barriers(address, m, site, False)
        state = np.zeros(self.count, np.uint64)
        ctas = self.machine.ctas
        for at in np.unique(offset).tolist():
            here = offset == at
            slot, target, who = barriers.slot(at), cta[here], lanes[here]
            state[who] = barriers.phase[target, slot]
            arrivals = np.zeros(ctas, np.int64)
            expected = np.zeros(ctas, np.int64)
            if count is not None:
                np.add.at(arrivals, target, count[who].astype(np.int64))
            if nbytes is not None:
                np.add.at(expected, target, nbytes[who].astype(np.int64))
            touched = np.unique(target)
            if count is not None:
                pair = np.unique(self.row[who] * ctas + target)
                barriers.release(pair // ctas, pair % ctas, slot)
            if drop:
                barriers.count[touched, slot] -= arrivals[touched]
            barriers.update(touched, slot, arrivals[touched], expected[touched], site)
        return state

    def mbarrier_complete(self, address: Array, nbytes: Array, m: Array | None, site: int) -> None:
        """mbarrier.complete_tx."""
        self.mbarrier_arrive(address, None, (-nbytes.astype(np.int64)), False, m, site)

    def mbarrier_wait(
        self, address: Array, phase: Array, parity: bool, m: Array | None, site: int
    ) -> tuple[Array, Array]:
        """(lanes that go on, the answer they get); the others are blocked and execute the instruction again."""
        barriers, machine = self.machine.mbarriers, self.machine
        lanes, cta, offset = self._barriers(address, m, site, False)
        go = np.ones(self.count, bool)
        answer = np.ones(self.count, bool)
        wanted = phase[lanes].astype(np.int64)
        for at in np.unique(offset).tolist():
            here = offset == at
            slot, target, who = barriers.slot(at), cta[here], lanes[here]
            blank = ~barriers.ready[target, slot]
            if blank.any():
                barriers.problem(site, slot, "it was never initialised", int(blank.sum()))
            current = barriers.phase[target, slot]
            open_ = ((current & 1) != (wanted[here] & 1)) if parity else (current != wanted[here])
            open_ |= blank
            self._learn(who[open_], target[open_], slot)
            shut, gid = who[~open_], self.gid[who[~open_]]
            tired = barriers.expired[gid]
            answer[shut[tired]] = False
            barriers.expired[gid[tired]] = False
            wait = ~tired
            go[shut[wait]] = False
            barriers.waits_for[gid[wait]] = slot
            barriers.waits_cta[gid[wait]] = target[~open_][wait]
            if wait.any():
                machine.wait(gid[wait], site)
            barriers.expired[self.gid[who[open_]]] = False
        return go, answer

    def _learn(self, who: Array, target: Array, slot: int) -> None:
        shadow = self.machine.shadow
        if shadow is not None and len(who):
            pair = np.unique(self.row[who] * self.machine.ctas + target)
            rows, ctas = pair // self.machine.ctas, pair % self.machine.ctas
            np.maximum.at(shadow.limit, rows, self.machine.mbarriers.done[ctas, slot])

    def cp_arrive(self, address: Array, noinc: bool, m: Array | None, site: int) -> None:
        """cp.async.mbarrier.arrive: arrives when the copies of the lane are complete, which is now.

        Without ``.noinc`` the instruction adds the arrival it makes, so that the barrier does not change.
        """
        self.cp_wait(-1, m)
        if noinc:
            self.mbarrier_arrive(address, np.ones(self.count, np.int64), None, False, m, site)
        elif self.machine.shadow is not None:
            lanes, cta, offset = self._barriers(address, m, site, False)
            for at in np.unique(offset).tolist():
                here = offset == at
                pair = np.unique(self.row[lanes[here]] * self.machine.ctas + cta[here])
                slot = self.machine.mbarriers.slot(at)
                self.machine.mbarriers.release(pair // self.machine.ctas, pair % self.machine.ctas, slot)

    # -- clusters
    def cluster_barrier(self, kind: str, m: Array | None, site: int) -> None:
        """barrier.cluster.arrive and .wait."""
        machine = self.machine
        mask = self.active(m)
        gid = self.gid[mask]
        if not len(gid):
            return
        cluster = self.cta[mask] // machine.team
        if kind == "arrive":
            machine.cluster_phase_of[gid] = machine.cluster_phase[cluster]
            rows = np.unique(self.row[mask])
            if machine.shadow is not None:
                machine.shadow.tick(rows)
                np.maximum.at(machine.cluster_known, rows // machine.warps // machine.team, machine.shadow.limit[rows])
            machine.cluster_arrived += np.bincount(cluster, minlength=len(machine.cluster_arrived))
            machine.complete_clusters()
            return
        machine.cluster_waits[gid] = True
        machine.wait(gid, site)
        machine.release_clusters()
