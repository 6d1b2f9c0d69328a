"""Labels on the lines of a kernel that is written with a library of tensors, and what stood in the way."""

from __future__ import annotations

from dataclasses import dataclass

from ...diagnostics import Span
from ...source import SourceFile
from .calls import call
from .find import Defined, Definitions
from .kinds import NONE, Kinds, Value
from .walk import Event, Scope, TooLarge, Walk

# Step -> its words, and what its lines hold. Those of `coverage.LANDMARKS` keep their names.
STEPS: dict[str, tuple[str, str]] = {
    "kv_loop": ("the loop over KV tiles", "KV loop"),
    "load_q": ("the loads of Q", "Q"),
    "load_k": ("the loads of K", "K"),
    "load_v": ("the loads of V", "V"),
    "qk": ("the product Q K^T", "S"),
    "softcap": ("the cap on the scores", "S, capped"),
    "scale": ("a factor on the scores", "S * factor"),
    "mask": ("the mask", "S, masked"),
    "row_max": ("the row maximum", "m"),
    "correction": ("the correction exp(m_old - m)", "exp(m_old - m)"),
    "exp": ("the exponential P = exp(S - m)", "P"),
    "row_sum": ("the row sum", "l"),
    "l_rescale": ("the rescaling of l", "l * exp(m_old - m)"),
    "rescale": ("the rescaling of O", "O * exp(m_old - m)"),
    "pv": ("the product P V", "O, not divided"),
    "normalise": ("the normalisation O / l", "O"),
    "lse": ("the log-sum-exp", "LSE"),
    "store": ("the store of O", "O"),
    "wait": ("waits and barriers", "wait"),
}
MAX_CANDIDATES = 6


@dataclass(frozen=True, slots=True)
class CuteStep:
    """A step, with the places of the text where it is done. A place is the calls that lead there, outermost first,
    then the statement.
    """

    name: str
    words: str
    holds: str
    places: tuple[tuple[Span, ...], ...]

    @property
    def span(self) -> Span:
        """The outermost line of the first place: in the function that was read."""
        return self.places[0][0]

    @property
    def innermost(self) -> tuple[Span, ...]:
        """The statements themselves."""
        return tuple(dict.fromkeys(chain[-1] for chain in self.places))


@dataclass(frozen=True, slots=True)
class CuteReading:
    """`function`: whose body was read. `unknown`: calls that were given scores, weights or O and are not known. `why`:
    why there are no labels.
    """

    function: str = ""
    span: Span | None = None
    steps: tuple[CuteStep, ...] = ()
    unknown: tuple[tuple[str, Span], ...] = ()
    why: str = ""

    def step(self, name: str) -> CuteStep | None:
        """A step by name."""
        return next((one for one in self.steps if one.name == name), None)


def read_cute(source: SourceFile, kernel: str | None = None) -> CuteReading:
    """The labels of the kernel `kernel`, or of the first function that has both products. Raises budget.OutOfTime."""
    if not any(b"gemm" in text.code for text in (source, *(h.source for h in source.headers))):
        return CuteReading()
    definitions = Definitions(source)
    best = CuteReading()
    for one in _candidates(definitions, kernel)[:MAX_CANDIDATES]:
        found = _read(definitions, one)
        if len(found.steps) > len(best.steps) or not best.function:
            best = found
        if found.step("qk") is not None and found.step("pv") is not None:
            break
    return best


def _candidates(definitions: Definitions, kernel: str | None) -> list[Defined]:
    """Kernels first, then functions in whose own text products are; of them those that are no part of a product."""
    every = definitions.all()
    kernels = [d for d in every if d.is_kernel and kernel in (None, d.name)]
    if kernel is not None and kernels:
        return kernels
    having = [d for d in every if not d.is_kernel and d.text.count("gemm") > 1 and "gemm" not in d.name]
    return [*kernels, *having]


def _read(definitions: Definitions, one: Defined) -> CuteReading:
    walk = Walk(definitions, call)
    scope = Scope(one.source, names={name: Value() for name, _ in one.parameters})
    walk.stack.append(one.body)
    start = one.source.span_of(one.body.start, one.body.start + 1)
    try:
        walk.run(one.body, scope)
    except (TooLarge, RecursionError):
        return CuteReading(one.name, start, why="it is larger than what is read")
    unknown = tuple(walk.unknown.items())
    why = _refused(walk.events)
    if why:
        return CuteReading(one.name, start, (), unknown, why)
    return CuteReading(one.name, start, tuple(_steps(walk.events)), unknown)


def _refused(events: list[Event]) -> str:
    """Why nothing is said: a forward pass has one product that gives S and one that takes P, on the same operands."""
    by_step = {name: {e.origins for e in events if e.step == name} for name in ("qk", "pv", "other")}
    if not by_step["qk"]:
        return "no product of two tensors was read"
    if not by_step["pv"]:
        return "no product takes the exponential of another's result"
    if by_step["other"]:
        return "it has products that are neither Q K^T nor P V"
    if any(not o for origins in by_step["qk"] | by_step["pv"] for o in origins[-1:]):
        return "where the operands of its products come from was not read"
    if len(by_step["qk"]) > 1 or len({origins[1:] for origins in by_step["pv"]}) > 1:
        return "its products have different operands"
    return ""


def _steps(events: list[Event]) -> list[CuteStep]:
    products = [e for e in events if e.step in ("qk", "pv")]
    placed: dict[str, list[tuple[tuple[Span, ...], str]]] = {}
    for event in events:
        name = event.step
        if name == "copy":  # what goes to global memory is no load
            name = "" if event.holds.endswith("g") else _loaded(event, events)
        if name in STEPS:
            placed.setdefault(name, []).append((event.chain, event.holds))
    loops = _kv_loops(products)
    if loops:
        placed["kv_loop"] = [((loop,), "") for loop in loops]
    made: list[CuteStep] = []
    for name, (words, holds) in STEPS.items():
        if name in placed:
            chains = tuple(dict.fromkeys(chain for chain, _ in placed[name]))
            made.append(CuteStep(name, words, holds, chains))
    return made


def _loaded(event: Event, events: list[Event]) -> str:
    """Which operand a copy moves: V is the second of P V; of Q and K, K is the one that is copied in the KV loop."""
    (origin,) = event.origins
    first = next(e for e in events if e.step == "qk").origins
    value = next(e for e in events if e.step == "pv").origins[1]
    roles = {"load_v": value}
    inside = _copied_inside(events)
    keys = [o for o in first if o and o in inside]
    if len(keys) == 1:
        roles["load_k"] = keys[0]
        roles["load_q"] = next((o for o in first if o != keys[0]), NONE)
    if len({o for o in roles.values() if o}) != len(roles):
        return ""
    return next((role for role, o in roles.items() if len(o) == 1 and o == origin), "")


def _copied_inside(events: list[Event]) -> set[Kinds]:
    loops = set(_kv_loops([e for e in events if e.step in ("qk", "pv")]))
    copies = [e for e in events if e.step == "copy" and e.holds.startswith("g->")]
    return {e.origins[0] for e in copies if loops & set(e.loops)}


def _kv_loops(products: list[Event]) -> list[Span]:
    """The innermost loops that have both products in them."""
    first = [e.loops for e in products if e.step == "qk"]
    second = {loop for e in products if e.step == "pv" for loop in e.loops}
    shared = [[loop for loop in loops if loop in second] for loops in first]
    return list(dict.fromkeys(loops[-1] for loops in shared if loops))
