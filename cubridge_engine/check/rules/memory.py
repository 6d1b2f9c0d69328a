"""Sizes and alignments: shared memory against the launch and the target, wide accesses against what is promised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...compile.limits import parse_arch
from ...ir.validate import SHARED_LIMIT
from ...lift.observed import DYNAMIC, Access
from ..model import Finding
from ..subject import Subject, every, finding


def _accesses(subject: Subject) -> Iterator[Access]:
    for step in every(subject.observed.steps):
        if isinstance(step, Access) and step.address is not None:
            yield step


def shared_bytes(subject: Subject) -> Iterator[Finding]:
    """CB856 and CB857: the last byte of dynamic shared memory that is touched, against the launch and the target."""
    last: tuple[int, Access] | None = None
    for access in _accesses(subject):
        if access.space != "shared" or access.slot != 0 or access.address is None:
            continue
        active = access.address if access.active is None else access.address[access.active]
        if access.active is None and access.write is False:
            continue  # who reads it is not known, nor whether
        if active.size and int(active.max()) >= DYNAMIC:
            end = int(active.max()) + access.size - DYNAMIC
            last = max(last or (0, access), (end, access), key=lambda pair: pair[0])
    used = last[0] if last is not None else 0
    given = _launched(subject)
    if last is not None and given is not None and used > given:
        where = f" (dynamic_shared_bytes of the contract gives {given})"
        yield finding("CB856", subject.span(last[1].place), "memory", used=used, given=given, where=where)
    arch, limit = _target(subject)
    total = used + subject.observed.static_bytes
    if limit is not None and total > limit:
        span = subject.span(last[1].place) if last is not None else None
        yield finding("CB857", span, "memory", used=total, arch=arch, limit=limit)


def _launched(subject: Subject) -> int | None:
    """Bytes of dynamic shared memory that the contract says the launch gives."""
    contract, kernel = subject.contract, subject.kernel
    if contract is None or kernel is None:
        return None
    sizes = {"B": 1, "H": 1, "Hkv": 1, "Sq": 256, "Sk": 256, "D": kernel.D, "Dv": kernel.Dv}
    dtype = next((i.dtype for i in contract.instances if i.widths == (kernel.D, kernel.Dv)), None)
    if dtype is None:
        return None
    return contract.launch(sizes, dtype).dynamic_shared_bytes


def _target(subject: Subject) -> tuple[str, int | None]:
    """The architecture with the most shared memory that the kernel is said to be for."""
    names = (subject.config.arch,) if subject.config.arch else tuple(subject.contract.archs if subject.contract else ())
    known = [(name, SHARED_LIMIT[name]) for name in names if name in SHARED_LIMIT and parse_arch(name) is not None]
    return max(known, key=lambda pair: pair[1], default=("", None))


def alignment(subject: Subject) -> Iterator[Finding]:
    """CB858: addresses that are no multiple of what an access needs, for a thread, or for a promised alignment."""
    seen: set[int] = set()
    for access in _accesses(subject):
        site = access.place.site[0]
        if access.size not in (4, 8, 16) or site in seen or access.address is None:
            continue
        why = _crooked(access) or (_promised(subject, access) if access.space == "global" else "")
        if why:
            seen.add(site)
            way = f"let every index be a multiple of {access.size} bytes, or use a narrower access"
            related = subject.inside(access.place, "in the function called there")
            yield finding(
                "CB858", subject.span(access.place), "memory", related=related, size=access.size, why=why, way=way
            )


def _crooked(access: Access) -> str:
    """Some thread's own numbers make it crooked in the first block, whatever sizes and strides are."""
    assert access.address is not None
    here = access.plain if access.active is None else access.plain & access.active
    off = np.flatnonzero(here & (access.address % access.size != 0))
    if not off.size or (access.active is None and access.space == "shared"):
        return ""
    number = int(access.address[off[0]]) % access.size
    return f"for thread {int(off[0])} of the first block it is {number} bytes off"


def _promised(subject: Subject, access: Access) -> str:
    """What the contract promises of pointers and strides is less than the access needs."""
    contract = subject.contract
    if contract is None or access.root is None or access.root >= len(contract.parameters):
        return ""
    parameter = contract.parameters[access.root]
    if parameter.role not in ("q", "k", "v", "o") or contract.alignment_bytes >= access.size:
        return ""
    return f"the contract promises {contract.alignment_bytes} bytes for {parameter.name}"
