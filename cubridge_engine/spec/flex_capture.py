"""What modifications of FlexAttention capture: tensors that become arguments, and BlockMasks made for one length.

A `score_mod` reads slopes, document ids or a table of biases from a global, a closure or an object. Such a tensor is
an operand of the kernel, so the spec gets it as an argument: each call puts the value it is given where the original
is, and takes it out again.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ..ir.expr import Var
from .constants import constant_element
from .flex_run import FlexCall, is_block_mask
from .nodes import Algebra

if TYPE_CHECKING:
    from .program import Program

_DEEPEST = 8  # functions that capture functions that capture ...


@dataclass(frozen=True)
class Place:
    """Somewhere a captured tensor is kept, under the name it has there."""

    name: str
    put: Callable[[Any], None]


@dataclass
class Captured:
    """One captured tensor and everywhere it was found."""

    tensor: Any
    places: list[Place] = field(default_factory=list[Place])


def captured_by(functions: Iterable[Callable[..., Any]]) -> dict[int, Captured]:
    """The tensors that functions capture, by identity: through globals, closures, defaults, partials and objects."""
    found: dict[int, Captured] = {}
    seen: set[int] = set()
    for function in functions:
        _look(function, found, seen, _DEEPEST)
    return found


def _look(value: Any, found: dict[int, Captured], seen: set[int], depth: int) -> None:
    """Into a function or an object that may hold tensors."""
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    for name, held, put in _held(value):
        if _is_tensor(held):
            found.setdefault(id(held), Captured(held)).places.append(Place(name, put))
        elif isinstance(held, (list, tuple)):
            for item in held:  # of functions, as and_masks has them; tensors in lists stay constants
                if not _is_tensor(item):
                    _look(item, found, seen, depth - 1)
        else:
            _look(held, found, seen, depth - 1)


def _held(value: Any) -> Generator[tuple[str, Any, Callable[[Any], None]]]:
    """(name, value, setter) of what a function or object refers to."""
    if isinstance(value, MethodType):
        yield from _held(value.__func__)
        yield from _held(value.__self__)
    elif isinstance(value, FunctionType):
        yield from _held_by_function(value)
    elif isinstance(value, functools.partial):
        for name, item in value.keywords.items():
            yield name, item, functools.partial(value.keywords.__setitem__, name)
        yield "function", value.func, _never
        for item in value.args:
            if not _is_tensor(item):
                yield "argument", item, _never
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not _is_library(value):
        for name, item in list(vars(value).items()):
            if name in ("_buffers", "_parameters") and isinstance(item, dict):
                for inner in item:
                    yield inner, item[inner], functools.partial(item.__setitem__, inner)
            else:
                yield name, item, functools.partial(_set_attribute, value, name)
        call = getattr(type(value), "__call__", None)  # noqa: B004 - the function itself, to look into
        if isinstance(call, FunctionType):
            yield from _held_by_function(call)


def _held_by_function(function: FunctionType) -> Generator[tuple[str, Any, Callable[[Any], None]]]:
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name], functools.partial(function.__globals__.__setitem__, name)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield name, content, functools.partial(setattr, cell, "cell_contents")
    defaults: dict[str, Any] = function.__kwdefaults__ or {}
    for name, item in defaults.items():
        yield name, item, functools.partial(defaults.__setitem__, name)


def _names(code: CodeType) -> Generator[str]:
    """Global names that code, and the functions defined in it, look up."""
    yield from dict.fromkeys(i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    object.__setattr__(owner, name, value)  # in a frozen dataclass too


def _never(_value: Any) -> None:
    raise AssertionError("no tensor is kept here")


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_library(value: Any) -> bool:
    """A module of Python, or something of torch itself: no place for a user's tensors."""
    return isinstance(value, types.ModuleType) or type(value).__module__.split(".")[0] == "torch"


def with_captured(program: Program, calls: Sequence[Sequence[FlexCall]]) -> Program:
    """`program`, which calls flex_attention, with the tensors its modifications capture as further arguments.

    `calls` are those of two runs: what a run makes itself is another object in the next, and is no argument. Single
    numbers and matrices that a formula gives (a causal mask) stay constants; so do the parameters of a module.
    """
    runs = [captured_by([f for c in run for f in (c.score_mod, c.mask_mod)]) for run in calls]
    own = {id(t) for t in program.example}
    module = program.module
    weights = set[int]() if module is None else {id(t) for t in (*module.parameters(), *module.buffers())}
    kept = [
        c
        for key, c in runs[0].items()
        if all(key in run for run in runs) and key not in own | weights and not _is_formula(c.tensor)
    ]
    if not kept:
        return replace(program, flex=True)
    names = list(program.names)
    for one in kept:
        names.append(_fresh(one.places[0].name, names))
    count = len(program.names)

    def function(*values: Any) -> Any:
        with _placed(kept, values[count:]):
            return program.function(*values[:count])

    return replace(
        program,
        function=function,
        names=tuple(names),
        arguments=(*program.arguments, *(c.tensor.detach() for c in kept)),
        captured=tuple(names[count:]),
        flex=True,
    )


def _is_formula(tensor: Any) -> bool:
    if tensor.numel() < 2 or tensor.dim() < 2:
        return tensor.numel() < 2
    index = [Var(f"x{n}") for n in range(tensor.dim())]
    return constant_element(Algebra(), tensor, index) is not None and len([n for n in tensor.shape if n > 1]) > 1


def _fresh(name: str, taken: Sequence[str]) -> str:
    free, n = name, 1
    while free in taken:
        n += 1
        free = f"{name}_{n}"
    return free


@contextmanager
def _placed(captured: Sequence[Captured], values: Sequence[Any]) -> Generator[None]:
    with ExitStack() as stack:
        for one, value in zip(captured, values, strict=True):
            for place in one.places:
                stack.callback(place.put, one.tensor)
                place.put(value)
        yield


def block_masks(values: Iterable[Any]) -> list[Any]:
    """The BlockMasks among values, and in the lists, dicts and objects among them."""
    found: dict[int, Any] = {}
    todo = [(value, 3) for value in values]
    seen: set[int] = set()
    while todo:
        value, depth = todo.pop()
        if id(value) in seen or _is_tensor(value):
            continue
        seen.add(id(value))
        if is_block_mask(value):
            found[id(value)] = value
            continue
        if depth == 0 or _is_library(value) or isinstance(value, type):
            continue
        inner: Iterable[Any] = ()
        if isinstance(value, dict):
            inner = list(value.values())
        elif isinstance(value, (list, tuple, set)):
            inner = list(value)
        elif hasattr(value, "__dict__"):
            inner = list(vars(value).values())
        todo += [(item, depth - 1) for item in inner]
    return list(found.values())
