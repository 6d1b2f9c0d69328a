"""A text for a value that no variable holds: sums over what is in scope at a place.

``tile * 8`` for the first row of a tile, ``q0 + warp * 16 + lane / 4`` for the row of a thread. Whatever is spelled
here goes into the user's text by lowering, which reads it back: a text that meant something else would be found there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .addresses import Ints
from .state import Emission
from .values import Node, Poly, Value

Scope = Mapping[str, Value]  # what the visible variables hold
_MOST_BITS = 11  # of a thread index


def spell(e: Emission, scope: Scope, value: Value, later: tuple[Scope, Value] | None = None) -> str | None:
    """An expression for `value`, or None. `later` is the same place at another element: what differs there is made of
    variables that differ as well.
    """
    if value is None or isinstance(value, float | bool):
        return None
    if isinstance(value, int):
        return _numbers(e, scope, value, later) or str(value)
    if not isinstance(value, Node | Poly):
        return None
    found = sorted(_sums(e, scope, value, later), key=_cost)
    return found[0] if found else None


def enclosed(text: str) -> str:
    """`text` in parentheses, if it is more than a name and has none around it."""
    if " " not in text:
        return text
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text if at == len(text) - 1 and at > 0 else f"({text})"
    return f"({text})"


def _cost(text: str) -> tuple[int, int]:
    return sum(text.count(c) for c in "+*/%.") + 2 * text.count("(int)"), len(text)


def _sums(e: Emission, scope: Scope, value: Value, later: tuple[Scope, Value] | None) -> Iterator[str]:
    """Texts of ``variable * k + numbers``, else of a sum of monomials."""
    store = e.machine.store
    terms = store.poly(value).terms
    first = next(((m, c) for m, c in terms.items() if m), None)
    if first is None:
        text = _numbers(e, scope, value, later)
        if text is not None:
            yield text
        return
    for name, held in scope.items():
        if not isinstance(held, Node | Poly) or not _is_name(name):
            continue
        own = store.poly(held).terms.get(first[0])
        factor = _ratio(first[1], own)
        if factor is None:
            continue
        rest = store.add(value, store.mul(held, factor), -1)
        yield from _with_rest(e, scope, name if factor == 1 else f"{name} * {factor}", rest, later, (name, factor))
    if later is None or _symbols_alike(e, value, later[1]):
        parts = [_monomial(e, scope, m, c) for m, c in terms.items() if m]
        if all(p is not None for p in parts):
            rest = store.lower({(): terms[()]} if () in terms else {})
            yield from _with_rest(e, scope, " + ".join(p for p in parts if p), rest, later, None)


def _with_rest(
    e: Emission, scope: Scope, head: str, rest: Value, later: tuple[Scope, Value] | None, used: tuple[str, int] | None
) -> Iterator[str]:
    """``head + rest`` where what is left are numbers."""
    store = e.machine.store
    if not isinstance(rest, int) and (not isinstance(rest, Poly) or rest.numeric() is None):
        return
    after = None
    if later is not None:
        held = later[0].get(used[0]) if used is not None else None
        left = (
            later[1]
            if used is None
            else store.add(later[1], store.mul(held, used[1]), -1)
            if held is not None
            else None
        )
        if used is None:
            left = store.lower({(): store.poly(later[1]).terms[()]} if () in store.poly(later[1]).terms else {})
        if left is None or (not isinstance(left, int) and (not isinstance(left, Poly) or left.numeric() is None)):
            return
        after = (later[0], left)
    if rest == 0 and (after is None or after[1] == 0):
        yield head
        return
    text = _numbers(e, scope, rest, after)
    if text is not None:
        yield f"{head} - {text[1:]}" if text.startswith("-") else f"{head} + {text}"


def _symbols_alike(e: Emission, a: Value, b: Value) -> bool:
    x, y = (e.machine.store.poly(v).terms for v in (a, b))
    return {m: c for m, c in x.items() if m} == {m: c for m, c in y.items() if m}


def _ratio(wanted: Any, have: Any) -> int | None:
    if not isinstance(wanted, int) or not isinstance(have, int) or have == 0 or wanted % have:
        return None
    return wanted // have if wanted // have > 0 else None


def _is_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _monomial(e: Emission, scope: Scope, atoms: tuple[Node, ...], count: Any) -> str | None:
    if not isinstance(count, int) or count < 0:
        return None
    texts = [_atom(e, scope, a) for a in atoms]
    if any(t is None for t in texts):
        return None
    return " * ".join([*(t for t in texts if t), *([str(count)] if count != 1 else [])])


def _atom(e: Emission, scope: Scope, node: Node) -> str | None:
    held = next((name for name, value in scope.items() if value is node and _is_name(name)), None)
    if held is not None:
        return held
    if node.op in ("block", "grid"):  # unsigned, and what is made of it may be negative
        return f"(int){'blockIdx' if node.op == 'block' else 'gridDim'}.{node.data}"
    if node.op in ("tdiv", "tmod", "floordiv", "mod") and len(node.args) == 2:
        sides = [spell(e, scope, a) for a in node.args]
        if None not in sides:
            left, right = (f"({s})" if s and " " in s else s for s in sides)
            return f"({left} {'/' if node.op.endswith('div') else '%'} {right})"
    return None


# ---- numbers per thread and per element -----------------------------------------------------------------------------


def _numbers(e: Emission, scope: Scope, value: Value, later: tuple[Scope, Value] | None) -> str | None:
    """A text for numbers per thread; with `later`, for the element's own part by a variable that counts elements."""
    here = _array(e, value)
    if later is None:
        return thread_text(e, scope, here)
    step = _array(e, later[1]) - here
    if not (step == step[0]).all():
        return None
    if step[0] == 0:
        return thread_text(e, scope, here)
    for name, first in scope.items():
        second = later[0].get(name)
        if not isinstance(first, int) or not isinstance(second, int) or first == second or not _is_name(name):
            continue
        factor, rest = divmod(int(step[0]), second - first)
        if rest == 0 and factor > 0:
            own = thread_text(e, scope, here - factor * first)
            text = name if factor == 1 else f"{name} * {factor}"
            if own is not None:
                return text if own == "0" else f"{own} + {text}"
    return None


def over_elements(
    e: Emission, scope: Scope, base: Value, numbers: Sequence[Ints], places: Sequence[Mapping[str, int]]
) -> str | None:
    """``base + numbers[k]`` at every element k of an array, whose subscripts there are ``places[k]``; None where that
    is no sum of digits of the subscripts.
    """
    start = next((n for n, p in enumerate(places) if not any(p.values())), None)
    if start is None:
        return None
    steps: dict[tuple[int, ...], int] = {}
    for n, place in zip(numbers, places, strict=True):
        step = n - numbers[start]
        if not (step == step[0]).all():
            return None
        steps[tuple(place.values())] = int(step[0])
    names = tuple(places[start])
    parts: list[str] = []
    alone: list[dict[int, int]] = []
    for axis, name in enumerate(names):
        own = {p[axis]: s for p, s in steps.items() if not any(p[:axis] + p[axis + 1 :])}
        alone.append(own)
        counts = np.arange(max(own) + 1)
        if sorted(own) != counts.tolist():
            return None
        fields = _fields(np.array([own[n] for n in counts.tolist()]))
        digits = [_digit({name: counts}, f) for f in fields] if fields is not None else [None]
        if None in digits:
            return None
        parts += [d for d in digits if d]
    if any(sum(own[n] for own, n in zip(alone, p, strict=True)) != s for p, s in steps.items()):
        return None
    outer = {n: v for n, v in scope.items() if n not in names}
    head = spell(e, outer, e.machine.store.add(base, e.machine.store.array(numbers[start])))
    return None if head is None else " + ".join([*([] if head == "0" and parts else [head]), *parts])


def _array(e: Emission, value: Value) -> Ints:
    if isinstance(value, int):
        return np.full(e.machine.store.threads, value, dtype=np.int64)
    numbers = value.numeric() if isinstance(value, Poly) else None
    assert numbers is not None, "asked for numbers only"
    return numbers


def thread_text(e: Emission, scope: Scope, numbers: Ints) -> str | None:
    """``warp * 16 + lane / 4 + 8``: per-thread numbers as a sum of digits of what is in scope; None if they are
    none.
    """
    start = int(numbers[0])
    fields = _fields(numbers - start)
    if fields is None:
        return None
    names = dict(_thread_names(e, scope))
    whole = _digit(names, numbers - start) if len(fields) > 1 else None
    parts = [whole] if whole is not None else [_digit(names, f) for f in fields]
    if any(p is None for p in parts):
        return None
    text = " + ".join(p for p in parts if p)
    if start == 0 or not text:
        return text or str(start)
    return f"{text} + {start}" if start > 0 else f"{text} - {-start}"


def _thread_names(e: Emission, scope: Scope) -> Iterator[tuple[str, Ints]]:
    for name, held in scope.items():
        numbers = held.numeric() if isinstance(held, Poly) else None
        if numbers is not None and _is_name(name):
            yield name, numbers
    for axis, value in e.machine.thread.items():
        numbers = value.numeric() if isinstance(value, Poly) else None
        if numbers is not None:
            yield f"(int)threadIdx.{axis}", numbers


def _fields(numbers: Ints) -> list[Ints] | None:
    """`numbers` as a sum of digits of the thread index: consecutive bits that double. None where they are no such
    sum.
    """
    threads = len(numbers)
    ids = np.arange(threads)
    bits = [k for k in range(_MOST_BITS) if 1 << k < threads]
    steps = [int(numbers[1 << k]) for k in bits]
    if not np.array_equal(sum((ids >> k & 1) * c for k, c in zip(bits, steps, strict=True)), numbers):
        return None
    found: list[tuple[int, Ints]] = []  # the step that would continue the digit, and the digit
    for k, c in zip(bits, steps, strict=True):
        if c == 0:
            continue
        if found and found[-1][0] == c and steps[k - 1] != 0:
            found[-1] = (2 * c, found[-1][1] + (ids >> k & 1) * c)
        else:
            found.append((2 * c, (ids >> k & 1) * c))
    return [f for _, f in reversed(found)]


def _digit(names: Mapping[str, Ints], wanted: Ints) -> str | None:
    """``name / d % n * k`` for the least d and n that do."""
    found: list[str] = []
    top = int(wanted.max())
    for name, numbers in names.items():
        if int(numbers.min()) < 0:
            continue
        most = int(numbers.max())
        for d in (1 << k for k in range(_MOST_BITS) if 1 << k <= most):
            for n in (0, *(1 << k for k in range(1, _MOST_BITS) if 1 << k <= most // d)):
                digit = numbers // d % n if n else numbers // d
                factor = top // int(digit.max()) if digit.max() > 0 else 0
                if factor >= 1 and np.array_equal(digit * factor, wanted):
                    steps = [name, *([f"/ {d}"] if d > 1 else []), *([f"% {n}"] if n else [])]
                    found.append(" ".join([*steps, *([f"* {factor}"] if factor > 1 else [])]))
    return min(found, key=_cost) if found else None
