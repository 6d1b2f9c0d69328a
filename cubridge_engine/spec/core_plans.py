"""At which lengths of the whole function to read its core, and to check what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..ir.evaluate import evaluate
from ..ir.expr import Read, walk
from .core import Core, Values
from .sizes import Plan

_SHORTEST = 12  # an example shorter than that leaves no room for two lengths


def core_plans(core: Core, reach: int, numbers: Sequence[int]) -> Iterator[Plan]:
    """Plans, most general first: any lengths, those up to the example's, the example's, the example's batch too.

    `reach` is the largest number in the mask; `numbers` are those of the spec that it may branch on.
    """
    base = core.whole.base
    rows = [n for n in range(len(base)) if core.slope("Sq", n) or core.slope("Sk", n)]
    far = 2 * max([300, *numbers]) + 100
    near = max(24, min(reach + 9, 300))
    longest = max((base[n] for n in rows), default=0)

    def lengths(of_row: Callable[[int, int], int], batch: int) -> Values:
        """Rows by their place and number, tables as they are beside these rows, everything else `batch` more than 1."""
        found = [of_row(n, rows.index(n)) if n in rows else 1 + batch for n in range(len(base))]
        return core.with_tables(found)

    beyond = [lengths(lambda _n, k, m=m: m + 1 + k, 1) for m in numbers]
    least = [lengths(lambda _n, _k: 1, 0)] if rows and _masks_itself(core) else []
    yield _plan(
        core,
        (
            lengths(lambda n, k: max(base[n], far) + 5 + 11 * k, 2),
            lengths(lambda n, k: max(base[n], far) + 24 + 7 * k, 1),
        ),
        (lengths(lambda _n, k: near + 7 * k, 1), lengths(lambda _n, k: near + 13 - 5 * k, 0)),
        beyond,
        least,
    )
    if rows and min(base[n] for n in rows) >= _SHORTEST:
        yield _plan(
            core,
            (lengths(lambda n, k: base[n] - k, 2), lengths(lambda n, k: base[n] - 5 - 3 * k, 1)),
            (lengths(lambda n, k: base[n] // 2 + k, 1), lengths(lambda n, k: base[n] - 3 - k, 0)),
            [v for v in beyond if all(v[n] <= base[n] for n in rows)],
            least,
            longest=longest,
        )
    same = lambda n, _k: base[n]  # noqa: E731
    yield _plan(core, (lengths(same, 2), lengths(same, 1)), (lengths(same, 1), lengths(same, 0)), [])
    yield _plan(core, (base, base), (base,), [])


def _masks_itself(core: Core) -> bool:
    """True where the only query of the only key does not attend to it: a row without keys that nothing else shows."""
    mask = core.template.mask
    if mask is None or any(isinstance(e, Read) for e in walk(mask)):
        return False
    try:
        return not evaluate(mask, {**dict.fromkeys(("b", "h", "i", "j"), 0), "H": 1, "Hkv": 1, "Sq": 1, "Sk": 1})
    except (KeyError, TypeError, ValueError):
        return False


def _plan(
    core: Core,
    read: Sequence[Values],
    check: Sequence[Values],
    beyond: Sequence[Values],
    least: Sequence[Values] = (),
    longest: int = 0,
) -> Plan:
    """Sizes that stay the same at both readings are fixed; sizes with one formula are equal. At `least` the function
    need not run: rows without keys may show there.
    """
    read_at = tuple(core.sizes_at(v) for v in read)
    check_at = tuple(core.sizes_at(v) for v in check)
    more = tuple(core.sizes_at(v) for v in beyond)
    first, last = read_at[0], read_at[-1]
    fixed = {n: first[n] for n in ("B", "H", "Hkv", "Sq", "Sk") if first[n] == last[n]}
    if "H" not in fixed or "Hkv" not in fixed:
        fixed = {n: v for n, v in fixed.items() if n not in ("H", "Hkv") or first[n] == 1}
    pairs = (("Sq", "Sk"), ("H", "Hkv"))
    equal = tuple((a, b) for a, b in pairs if a not in fixed and core.forms[a] == core.forms[b])
    sq, sk = core.forms["Sq"], core.forms["Sk"]
    ordered = (("Sq", "Sk"),) if (sq.single, sq.pairs) == (sk.single, sk.pairs) and sq.constant < sk.constant else ()
    return Plan(
        read_at,
        (*check_at, *(more if not longest else ())),
        (*check_at, *more, *(core.sizes_at(v) for v in least)),
        fixed,
        equal,
        ordered=ordered,
        step=1,
        longest=longest,
    )
