"""The user's spec file as something callable: its entry, its example inputs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..diagnostics import Diagnostic, Span, make
from ..source import read_bytes
from .flex_capture import block_masks
from .flex_mods import Modified, NoModification, find_modifications, lines_of_names, names_in
from .flex_run import any_length, left_out, load_flex
from .guard import guarded
from .state import Memory
from .trace import Line, flatten_outputs, make_mode

_EXAMPLES = ("example_inputs", "get_inputs")


class SpecError(Exception):
    """Reading stopped; carries the diagnostic to show, and the number of the output it is about, if it is about one."""

    def __init__(self, diagnostic: Diagnostic, output: int | None = None) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic
        self.output = output


@dataclass(frozen=True)
class Program:
    """A loaded spec. `function` takes all arguments; `arguments` are the example's values, `names` their parameters.

    Only the tensors among the arguments vary; `call` fills in the others.
    """

    path: str
    source: str
    entry: str
    function: Callable[..., Any]
    names: tuple[str, ...]
    arguments: tuple[Any, ...]
    line: int  # of the entry, from 1
    made_up: str = ""  # the shapes, when there was no example_inputs()
    module: Any = None  # the module behind `function`; for a plain function one that holds those it may use
    is_module: bool = False  # `function` is the module itself
    outputs: tuple[int, ...] | None = None  # which of the returned tensors count; None: all
    flex: bool = False  # it calls flex_attention
    captured: tuple[str, ...] = ()  # those of `names` that are no parameters: tensors that its modifications capture
    notes: tuple[Diagnostic, ...] = ()  # what loading it has to say
    prepare: Callable[[Sequence[Any]], None] | None = None  # what `function` needs to do for these tensors before it
    memory: Memory | None = None  # of the modules, before their first call

    @property
    def tensor_positions(self) -> tuple[int, ...]:
        """Positions of the tensor arguments."""
        return tuple(n for n, a in enumerate(self.arguments) if hasattr(a, "dtype") and hasattr(a, "shape"))

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Parameter names of the tensor arguments."""
        return tuple(self.names[n] for n in self.tensor_positions)

    @property
    def example(self) -> list[Any]:
        """The example's tensors."""
        return [self.arguments[n] for n in self.tensor_positions]

    def call(self, tensors: Sequence[Any]) -> Any:
        """Run the spec on these tensors, the other arguments as in the example."""
        values = list(self.arguments)
        for position, tensor in zip(self.tensor_positions, tensors, strict=True):
            values[position] = tensor
        result = self.function(*values)
        if self.outputs is None:
            return result
        tensors = flatten_outputs(result)
        return tuple(tensors[n] for n in self.outputs)


def span_of(path: str, source: str, line: Line | int | None) -> Span | None:
    """The span of a line (1-based), or of the columns within it; None for no line."""
    if line is None:
        return None
    place = (line,) if isinstance(line, int) else line
    rows = source.encode().split(b"\n")
    number = min(max(place[0], 1), len(rows)) - 1
    text = rows[number]
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    if len(place) == 4:
        first, last = min(place[2], len(text)), min(place[3], len(text))
    offset = sum(len(r) + 1 for r in rows[:number])
    return Span(path, offset + first, offset + last, number, first, number, last)


def raised_line(path: str, error: BaseException) -> Line | None:
    """The line of the spec an exception passed through last."""
    found: Line | None = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == path:
            found = (number,)
    return found


def brief(error: BaseException) -> str:
    """One line: the type and the first line of the message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def load(path: str, entry: str, seconds: float) -> Program:
    """Import the spec and find its entry and example inputs. Raises SpecError, TimeUp."""
    source = _source(path)

    def fail(code: str, line: Line | int | None, **fields: object) -> SpecError:
        return SpecError(make(code, span_of(path, source, line), related=(), **fields))

    try:
        tree = ast.parse(source, path)
    except (SyntaxError, ValueError) as error:
        raise fail("CB202", getattr(error, "lineno", None) or 1, reason=getattr(error, "msg", str(error))) from None
    _warm()
    if "flex_attention" in source:
        load_flex()
    module = _import(path, source, seconds, fail)
    defined = {n.name: n.lineno for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    with guarded(path, seconds):
        name, found = _entry(module, entry, defined, tree, fail)
    line = defined.get(name) or lines_of_names(tree).get(name, 1)
    function, names, arguments, made_up = _arguments(module, path, name, found, line, defined, seconds, fail)
    is_module = isinstance(found, _module_type())
    owner: Any = found if is_module else _holder(module)
    notes: list[Diagnostic] = []
    for mask in block_masks([*vars(module).values(), *arguments, *(owner.modules() if owner is not None else ())]):
        rows, keys = mask.shape[-2:]
        if reason := left_out(mask.mask_mod, mask.as_tuple()):
            raise fail("CB250", line, reason=reason)
        any_length(mask)
        notes.append(make("CB249", span_of(path, source, line), rows=rows, keys=keys))
    memory = Memory(tuple(owner.modules())) if owner is not None else None
    return Program(
        path,
        source,
        name,
        function,
        names,
        arguments,
        line,
        made_up,
        owner,
        is_module,
        notes=tuple(notes),
        memory=memory,
    )


def _holder(module: ModuleType) -> Any:
    """A module that holds the modules among the globals of the spec, under their names; None where there are none."""
    import torch

    found = {n: v for n, v in vars(module).items() if isinstance(v, torch.nn.Module)}
    if not found:
        return None
    holder = torch.nn.Module()
    for name, value in found.items():
        holder.add_module(name, value)
    return holder


def _module_type() -> Any:
    import torch

    return torch.nn.Module


def _warm() -> None:
    """Import torch before any clock runs: its first import takes seconds that are not the user's."""
    import torch
    from torch import export
    from torch.nn import functional

    with make_mode(""):
        functional.relu(torch.zeros(1))
    export.default_decompositions()


def _source(path: str) -> str:
    try:
        return read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise SpecError(make("CB201", reason=error.strerror or str(error))) from None
    except UnicodeDecodeError:
        raise SpecError(make("CB201", reason="it is not UTF-8 text")) from None


def _import(path: str, source: str, seconds: float, fail: Callable[..., SpecError]) -> ModuleType:
    name = f"cubridge_user_spec_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise fail("CB201", None, reason="it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and torch look a function's module up there
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        with guarded(path, seconds), make_mode(path):
            # Compiled from the text in hand: a cached .pyc could be of an older text.
            exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise fail("CB203", raised_line(path, error), reason=brief(error), file=Path(path).name) from None
    finally:
        sys.path.remove(folder)
    return module


def _entry(
    module: ModuleType, entry: str, defined: dict[str, int], tree: ast.Module, fail: Callable[..., SpecError]
) -> tuple[str, Callable[..., Any]]:
    import torch

    def is_module(value: Any) -> bool:
        return (
            isinstance(value, type)
            and issubclass(value, torch.nn.Module)
            and value.forward is not torch.nn.Module.forward
        )

    found: Any = getattr(module, entry, None)
    if found is None:
        modules = [n for n in defined if is_module(getattr(module, n, None))]
        modules = [n for n in modules if n.lower() == entry.lower()] or _outermost(modules, tree)
        if len(modules) == 1:
            entry, found = modules[0], getattr(module, modules[0])
        elif modified := _modifications(module, entry, tree, fail):
            return modified
    if isinstance(found, torch.nn.Module):
        return entry, found.eval()
    if is_module(found):
        try:
            built = _build(found, getattr(module, "get_init_inputs", None))
        except Exception as error:
            raise fail("CB205", defined.get(entry), entry=entry, reason=brief(error)) from None
        return entry, built.eval()
    if not callable(found):
        listed = ", ".join(f"`{n}`" for n in defined) or "nothing"
        raise fail("CB204", min(defined.values(), default=1), entry=entry, defined=listed)
    return entry, found


def _outermost(modules: list[str], tree: ast.Module) -> list[str]:
    """The modules that no other one is built of."""
    inner: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in modules:
            inner |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id != node.name}
    return [n for n in modules if n not in inner]


def _build(cls: Any, arguments: Any) -> Any:
    """An instance of a module class, with what `get_init_inputs()` gives or without arguments."""
    return cls(*(arguments() if arguments is not None else ()))


def _modifications(
    module: ModuleType, entry: str, tree: ast.Module, fail: Callable[..., SpecError]
) -> tuple[str, Callable[..., Any]] | None:
    """A FlexAttention-style file: flex_attention with its score_mod, its mask_mod, or both."""
    try:
        found = find_modifications(module, tree, names_in(entry))
    except NoModification as error:
        raise fail(error.code, lines_of_names(tree).get(error.at, 1), **error.fields) from None
    return None if found is None else (found.name, found)


def _arguments(
    module: ModuleType,
    path: str,
    name: str,
    function: Callable[..., Any],
    line: int,
    defined: dict[str, int],
    seconds: float,
    fail: Callable[..., SpecError],
) -> tuple[Callable[..., Any], tuple[str, ...], tuple[Any, ...], str]:
    target = getattr(function, "forward", function)
    parameters = [
        p for p in inspect.signature(target).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    source_name = next((n for n in _EXAMPLES if callable(getattr(module, n, None))), None)
    if source_name is None:
        values, shapes = _made_up_for(function, parameters, line, fail)
        return function, tuple(p.name for p in parameters), tuple(values), shapes
    try:
        with guarded(path, seconds), make_mode(path):
            given = module.__dict__[source_name]()
    except Exception as error:
        raise fail("CB207", raised_line(path, error) or defined.get(source_name), reason=brief(error)) from None
    signature = str(inspect.signature(target))

    def unfit(reason: str) -> SpecError:
        return fail("CB208", defined.get(source_name, line), entry=name, signature=signature, reason=reason)

    try:
        if isinstance(given, dict):
            bound = inspect.signature(target).bind(**given)
        else:
            bound = inspect.signature(target).bind(*(given if isinstance(given, (tuple, list)) else (given,)))
    except TypeError as error:
        raise unfit(str(error)) from None
    if any(p.kind is p.KEYWORD_ONLY for p in parameters):
        function = _positional(function, parameters)
    bound.apply_defaults()
    values = [bound.arguments[p.name] for p in parameters]
    _check_tensors(parameters, values, unfit, isinstance(function, _module_type()) or _holder(module) is not None)
    return function, tuple(p.name for p in parameters), tuple(values), ""


def _positional(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        keywords = {p.name: v for p, v in zip(parameters, values, strict=True) if p.kind is p.KEYWORD_ONLY}
        return function(*values[: len(values) - len(keywords)], **keywords)

    return call


def _check_tensors(
    parameters: Sequence[inspect.Parameter], values: Sequence[Any], unfit: Callable[[str], SpecError], module: bool
) -> None:
    """q, k and v may be computed from one tensor; of a module with an embedding, from token ids."""
    import torch

    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not any(v.dtype.is_floating_point or module for v in tensors):
        raise unfit("none of the values is a floating-point tensor, and q, k and v need one at least")
    for p, v in zip(parameters, values, strict=True):
        if isinstance(v, torch.Tensor) and v.numel() == 0:
            raise unfit(f"`{p.name}` is empty, with shape {tuple(v.shape)}")
        if _holds_tensor(v):
            # They would stay those of the example: only arguments that are tensors vary.
            raise unfit(f"`{p.name}` holds tensors in a {type(v).__name__}; make each an argument of its own")


def _holds_tensor(value: Any) -> bool:
    """True for a list, tuple or dict with a tensor somewhere in it."""
    import torch

    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(item, torch.Tensor) or _holds_tensor(item) for item in items)


def _made_up_for(
    function: Callable[..., Any], parameters: Sequence[inspect.Parameter], line: int, fail: Callable[..., SpecError]
) -> tuple[list[Any], str]:
    if not isinstance(function, Modified):
        return _made_up(parameters, line, fail)
    try:
        return function.example()
    except NoModification as error:
        raise fail(error.code, line, **error.fields) from None


def _made_up(
    parameters: Sequence[inspect.Parameter], line: int, fail: Callable[..., SpecError]
) -> tuple[list[Any], str]:
    """q, k, v of [2, 4, 128, 64] when nothing else needs a value."""
    import torch

    required = [p for p in parameters if p.default is p.empty]
    if len(required) != 3:
        listed = ", ".join(f"`{p.name}`" for p in required)
        raise fail("CB206", line, reason=f"the required parameters are {listed or 'none'}, not three tensors")
    generator = torch.Generator().manual_seed(0)
    shape = (2, 4, 128, 64)
    tensors = iter(torch.randn(shape, generator=generator).half() for _ in range(3))
    values = [next(tensors) if p.default is p.empty else p.default for p in parameters]
    return values, "q, k, v of [2, 4, 128, 64] in float16"
