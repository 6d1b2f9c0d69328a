"""mbarriers: phases, pending arrivals and transaction bytes per CTA, who waits, and what waiting teaches.

A barrier is known by its byte offset in shared memory. Its phase completes when no arrival and no byte is pending; a
lane whose ``try_wait`` fails is blocked on (CTA, barrier) in place of spinning, which gives deadlock detection. When
nothing else can move, blocked lanes get a few false answers (the hardware's time limit), so that code that only looks
is not taken for a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .findings import access_name
from .shadow import AGENT_MASK, LOW, TICK, site_of
from .sync import SyncOps

if TYPE_CHECKING:
    from .machine import Machine

Array = NDArray[Any]
OBJECT_BYTES = 8
FIRST_SLOTS = 16  # mbarriers per CTA there is room for at first
TO_ENGINE, TO_CLUSTER = 1, 2  # who sees that a barrier was initialised
FALSE_ANSWERS = 4  # before a wait that leads to nothing is a deadlock


class MBarriers:
    """All mbarriers of a batch of CTAs; arrays are (CTAs, barriers)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.slots: dict[int, int] = {}
        shape = (machine.ctas, FIRST_SLOTS)
        self.ready = np.zeros(shape, bool)
        self.phase = np.zeros(shape, np.int64)
        self.pending = np.zeros(shape, np.int64)
        self.count = np.zeros(shape, np.int64)
        self.bytes = np.zeros(shape, np.int64)
        shadow = machine.shadow
        width = shadow.width if shadow else 1
        self.known = np.full((*shape, width), LOW, np.int64)  # released by arrivals so far
        self.done = np.full((*shape, width), LOW, np.int64)  # the same when the last phase completed
        self.initialised_by = np.full(shape, -1, np.int64)  # row of the warp
        self.published = np.zeros(shape, np.int8)  # TO_ENGINE and TO_CLUSTER, since the initialisation
        # Copies are completed by agents behind the warps. There may be more barriers than agents.
        self.agents = shadow.agents - shadow.threads if shadow else 1
        self.clock = np.full((machine.ctas // machine.team, self.agents), TICK, np.int64)
        self.waits_for = np.full(machine.lanes, -1, np.int32)
        self.waits_cta = np.zeros(machine.lanes, np.int32)
        self.expired = np.zeros(machine.lanes, bool)  # lanes that get a false answer next
        self.false_answers = np.zeros(machine.lanes, np.int64)  # since a phase was last completed
        self.events = 0  # completed phases
        self.held: list[tuple[int, int, Callable[[], None]]] = []  # CTA, barrier, what the end of its phase lets go
        self._expired_at = -1

    def slot(self, offset: int) -> int:
        """The number of the barrier at a byte offset."""
        found = self.slots.get(offset)
        if found is None:
            found = self.slots[offset] = len(self.slots)
            if found >= self.ready.shape[1]:
                self._grow()
        return found

    def _grow(self) -> None:
        """Room for twice as many barriers."""

        def wider(x: Array, fill: Any) -> Array:
            return np.concatenate([x, np.full_like(x, fill)], axis=1)

        self.ready, self.published = wider(self.ready, False), wider(self.published, 0)
        self.phase, self.pending = wider(self.phase, 0), wider(self.pending, 0)
        self.count, self.bytes = wider(self.count, 0), wider(self.bytes, 0)
        self.known, self.done = wider(self.known, LOW), wider(self.done, LOW)
        self.initialised_by = wider(self.initialised_by, -1)

    def agent(self, ctas: Array, slot: int) -> Array:
        """The agents that complete copies for the barriers of CTAs; those of one cluster are told apart."""
        team = self.machine.team
        first = self.machine.shadow.threads if self.machine.shadow else 0
        return first + (slot * team + ctas % team) % max(self.agents, 1)

    def time(self, ctas: Array, slot: int) -> Array:
        """The clock of these agents."""
        first = self.machine.shadow.threads if self.machine.shadow else 0
        return self.clock[ctas // self.machine.team, self.agent(ctas, slot) - first]

    def offset_of(self, slot: int) -> int:
        """The inverse of ``slot``."""
        return next((o for o, s in self.slots.items() if s == slot), -1)

    def problem(self, site: int, slot: int, text: str, count: int = 1) -> None:
        """Report misuse."""
        self.machine.findings.add("CB525", site, count, address=self.offset_of(slot), problem=text)

    def init(self, ctas: Array, slot: int, count: Array, rows: Array) -> None:
        """Set the number of arrivals per phase; `rows` are the warps that do it."""
        self.initialised_by[ctas, slot], self.published[ctas, slot] = rows, 0
        self.ready[ctas, slot] = True
        self.phase[ctas, slot] = 0
        self.count[ctas, slot] = self.pending[ctas, slot] = count
        self.bytes[ctas, slot] = 0

    def publish(self, rows: Array, to: int) -> None:
        """Warps publish the barriers that they have initialised."""
        self.published[np.isin(self.initialised_by, rows)] |= to

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
        for cta, number, let_go in self.held:
            if number == slot and cta in ctas:
                let_go()
        self.held = [h for h in self.held if h[1] != slot or h[0] not in ctas]
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

    def copied(self, ctas: Array, slot: int, nbytes: int, site: int) -> None:
        """Bulk copies of `nbytes` each, counted by the barriers of distinct CTAs, have completed."""
        shadow = self.machine.shadow
        if shadow is not None:
            agent = self.agent(ctas, slot)
            self.known[ctas, slot, agent] = self.time(ctas, slot) + LOW
            self.clock[ctas // self.machine.team, agent - shadow.threads] += TICK
        self.update(ctas, slot, np.zeros(len(ctas), np.int64), np.full(len(ctas), -nbytes), site)

    def hand_on(self, ctas: Array, offset: int, agent: int, clock: int) -> None:
        """What waits for the barriers learns of an agent's accesses up to `clock`."""
        known = self.known[ctas, self.slot(offset), agent]
        self.known[ctas, self.slot(offset), agent] = np.maximum(known, np.int64(clock) + LOW)

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
            who = lanes[here]
            slot = self.machine.mbarriers.slot(at)
            self.machine.mbarriers.init(cta[here], slot, count[who].astype(np.int64), self.row[who])

    def mbarrier_fence(self, m: Array | None) -> None:
        """fence.mbarrier_init: other CTAs of the cluster and the copy engine see what the warp has initialised."""
        rows = self.warp_row[self.active(m).reshape(-1, 32).any(1)]
        self.machine.mbarriers.publish(rows, TO_ENGINE | TO_CLUSTER)
        self.cluster_fence(m)

    def cluster_fence(self, m: Array | None) -> None:
        """A fence of cluster scope or wider: what a relaxed arrival at the cluster barrier hands on later."""
        machine = self.machine
        if machine.shadow is not None and machine.team > 1:
            rows = self.warp_row[self.active(m).reshape(-1, 32).any(1)]
            machine.shadow.tick(rows)
            machine.cluster_fenced[rows] = machine.shadow.limit[rows]
            machine.mbarriers.publish(rows, TO_CLUSTER)

    def check_published(self, ctas: Array, offset: int, lanes: Array, engine: bool, site: int) -> None:
        """Report barriers (of `ctas`, at a byte offset) whose initialisation who uses them need not see.

        Users are `lanes` of other CTAs, or the copy `engine` on behalf of them.
        """
        barriers, shadow = self.machine.mbarriers, self.machine.shadow
        if shadow is None or not len(ctas):
            return
        slot, row = barriers.slot(offset), self.row[lanes]
        entry = shadow.write[shadow.cells(offset + ctas * self.machine.shared_size, OBJECT_BYTES)[:, 0]]
        agent = entry & AGENT_MASK
        fresh = barriers.ready[ctas, slot] & (agent < shadow.threads)
        state, remote = barriers.published[ctas, slot], ctas != self.cta[lanes]
        # fence.proxy.async on the way to this warp does as well.
        visible = entry <= shadow.limit.reshape(-1)[row * shadow.width + shadow.width - shadow.agents + agent]
        checks = [("CB543", remote & (state & TO_CLUSTER == 0))]
        if engine:
            checks.append(("CB545", ~remote & (state & TO_ENGINE == 0) & ~visible))
        for code, missing in checks:
            found = missing & fresh
            if found.any():
                self.machine.findings.add(
                    code, site, int(found.sum()), site_of(int(entry[found][0])),
                    access=access_name(self.machine.code[site]), buffer=self.machine.launch.kernel.name_shared(offset),
                )  # fmt: skip

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
            state[who] = barriers.phase[target, slot] | barriers.pending[target, slot] << 32
            arrivals = np.zeros(ctas, np.int64)
            expected = np.zeros(ctas, np.int64)
            if count is not None:
                np.add.at(arrivals, target, count[who].astype(np.int64))
            if nbytes is not None:
                np.add.at(expected, target, nbytes[who].astype(np.int64))
            touched = np.unique(target)
            if self.machine.team > 1:
                self.check_published(target, at, who, False, site)
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
        wanted = phase[lanes].astype(np.int64) & 0xFFFFFFFF  # of a state, the phase
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
    def cluster_barrier(self, kind: str, m: Array | None, site: int, relaxed: bool = False) -> None:
        """barrier.cluster.arrive and .wait; a `relaxed` arrival hands on what was fenced before."""
        machine = self.machine
        mask = self.active(m)
        gid = self.gid[mask]
        if not len(gid):
            return
        cluster = self.cta[mask] // machine.team
        if kind == "arrive":
            machine.cluster_phase_of[gid] = machine.cluster_phase[cluster]
            rows = np.unique(self.row[mask])
            if not relaxed:
                machine.mbarriers.publish(rows, TO_CLUSTER)
            if machine.shadow is not None:
                machine.shadow.tick(rows)
                known = machine.cluster_fenced[rows] if relaxed else machine.shadow.limit[rows]
                np.maximum.at(machine.cluster_known, rows // machine.warps // machine.team, known)
            machine.cluster_arrived += np.bincount(cluster, minlength=len(machine.cluster_arrived))
            machine.complete_clusters()
            return
        machine.cluster_waits[gid] = True
        machine.wait(gid, site)
        machine.release_clusters()
