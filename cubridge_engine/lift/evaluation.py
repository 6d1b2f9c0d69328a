"""Floats of a trace as numbers per thread, on random numbers for whatever is no arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arithmetic import compare, logical, negate
from .conditions import numbers, per_thread
from .machine import Machine, bare
from .values import Node, Poly, Value, is_uniform

Floats = NDArray[np.float64]


def float_like(value: Value) -> bool:
    """True for floats, and for registers that hold some."""
    return isinstance(value, float) or (isinstance(value, Node) and value.kind in ("float", "reg", "wide"))


class Random:
    """Random numbers by name: the same name gives the same numbers."""

    def __init__(self, threads: int, seed: int) -> None:
        self.threads = threads
        self.seed = seed
        self._known: dict[Any, Any] = {}

    def normal(self, name: Any) -> Floats:
        return self._get(name, lambda rng: rng.normal(size=self.threads))

    def scores(self, name: Any) -> Floats:
        """Raw scores; in the second run every other row has none."""
        lowest = -np.inf if self.seed == 1 else 0.0
        return self.normal(name) + np.where(np.arange(self.threads) // 4 % 2, lowest, 0.0)

    def condition(self, name: Any, uniform: bool) -> NDArray[np.bool_]:
        """Conditions of the block hold but in the first run; of others each holds for most threads, in the second run
        for none: a row without keys.
        """
        share = 0.8 if self.seed != 1 else 0.0
        return self._get(name, lambda rng: (rng.random(self.threads) < share) | (uniform and self.seed > 0))

    def flag(self, name: Any) -> Floats:
        """0 for some threads, 1 for most."""
        return self._get(name, lambda rng: (rng.random(self.threads) < 0.8).astype(np.float64))

    def positive(self, name: Any) -> Floats:
        return self._get(name, lambda rng: np.full(self.threads, rng.uniform(0.2, 1.0)))

    def carried(self, name: Any) -> Floats:
        return self._get(("state", name), lambda rng: rng.uniform(0.5, 4.0, size=self.threads))

    def factor(self, name: Any) -> Floats:
        """How far a row's factor lies above its largest score: the same for the threads of a row."""
        return self._get(("factor", name), lambda rng: np.repeat(rng.uniform(-12.0, 4.0, size=self.threads // 4), 4))

    def _get(self, name: Any, make: Any) -> Any:
        if name not in self._known:
            self._known[name] = make(np.random.default_rng([self.seed, len(self._known)]))
        return self._known[name]


class Evaluator:
    """Floats of a trace as numbers per thread. What is no arithmetic is a random number, named after what it is."""

    def __init__(self, m: Machine, shared: Random, tile: Any) -> None:
        self.m = m
        self.shared = shared
        self.tile = tile
        self._known: dict[int, Any] = {}
        self._decided: dict[int, NDArray[np.bool_]] = {}

    def give(self, known: dict[Node, Floats]) -> None:
        """Values of nodes."""
        self._known.update({n.uid: v for n, v in known.items()})

    def decide(self, condition: Node, holds: NDArray[np.bool_]) -> None:
        """For which threads a condition holds."""
        self._decided[condition.uid] = holds

    def parts(self, value: Value) -> list[Floats]:
        """The numbers of a value: one, or those packed into a register."""
        inner = bare(value)
        if isinstance(inner, Node) and inner.op in ("pack", "vec"):
            return [x for a in inner.args for x in self.parts(a)]
        return [self.one(inner)]

    def one(self, value: Value) -> Floats:
        """A float for every thread."""
        if isinstance(value, bool | int | float):
            return np.full(self.shared.threads, float(value))
        if isinstance(value, Poly):
            return self.shared.normal(("integer", self._name(value)))
        assert isinstance(value, Node)
        if value.uid not in self._known:
            self._known[value.uid] = self._compute(value)
        return self._known[value.uid]

    def _compute(self, node: Node) -> Floats:
        if node.op == "ver":
            return self.one(node.args[0])
        if node.op == "float" and (whole := numbers(self.m.store, self._substituted(node.args[0]))) is not None:
            return whole.astype(np.float64)
        if node.op in ("select", "join"):
            return np.where(self._holds(node.args[0]), self.one(node.args[1]), self.one(node.args[2]))
        if node.op in _FLOAT:
            return _FLOAT[node.op](*(self.one(a) for a in node.args))
        if node.op == "shfl" and node.data[0] == "xor":
            return self.one(node.args[0])[np.arange(self.shared.threads) ^ node.data[1]]
        if node.op == "param":
            return self.shared.positive(("param", node.data))
        if node.kind == "bool":  # read from memory, and counted with: (1 - keep) * -10000
            return self.shared.flag(("flag", self._name(node)))
        return self.shared.normal(("other", self._name(node)))

    def _holds(self, value: Value) -> NDArray[np.bool_]:
        if isinstance(value, bool):
            return np.full(self.shared.threads, value)
        assert isinstance(value, Node)
        if value.uid in self._decided:
            return self._decided[value.uid]
        if value.op in _COMPARE and any(isinstance(a, float) or float_like(a) for a in value.args):
            return _COMPARE[value.op](*(self.one(a) for a in value.args))
        if value.op == "not":
            return ~self._holds(value.args[0])
        if value.op in ("and", "or") and self._is_decided(value):
            return (np.logical_and if value.op == "and" else np.logical_or)(*(self._holds(a) for a in value.args))
        return self._decided.setdefault(value.uid, self._at_tile(value))

    def _is_decided(self, value: Value) -> bool:
        if not isinstance(value, Node):
            return isinstance(value, bool)
        return value.uid in self._decided or (value.op in _LOGIC and all(map(self._is_decided, value.args)))

    def _at_tile(self, condition: Node) -> NDArray[np.bool_]:
        """A condition as it is at the tile: by numbers where these decide it (``col % 2 == 0``), else a random one."""
        found = self._settled(condition)
        known = per_thread(self.m.store, found)
        return (
            known if known is not None else self.shared.condition(("condition", self._name(found)), is_uniform(found))
        )

    def _settled(self, value: Value) -> Value:
        if not isinstance(value, Node):
            return value
        if value.op in ("and", "or"):
            return logical(self.m, value.op, *(self._settled(a) for a in value.args))
        if value.op == "not":
            return negate(self.m, self._settled(value.args[0]))
        if value.op in _COMPARE:
            return compare(self.m, value.op, *(self._substituted(a) for a in value.args))
        return self._substituted(value)

    def _substituted(self, value: Value) -> Value:
        return value if self.tile is None else self.m.store.substitute(value, self.tile)

    def _name(self, value: Value) -> Any:
        value = self._substituted(value)
        return value.uid if isinstance(value, Node) else value.key if isinstance(value, Poly) else value


def _f32(operation: Any) -> Any:
    return lambda *a: operation(*(x.astype(np.float32) for x in a)).astype(np.float64)


_FLOAT: dict[str, Any] = {
    "add": _f32(np.add),
    "sub": _f32(np.subtract),
    "mul": _f32(np.multiply),
    "div": _f32(np.divide),
    "neg": np.negative,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "fp16": lambda x: x,  # where P is rounded is the same on both sides, and small P lose their digits
    "bf16": lambda x: x,
}
_LOGIC = frozenset({"and", "or", "not"})
_COMPARE: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
