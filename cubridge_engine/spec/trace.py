"""Tracing: the user's function, at given inputs, as a functional ATen graph that remembers the user's lines."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from .decompose import decomposed
from .flex_run import dense, is_flex, uncompiled
from .state import Memory, leave_vmap

Line = tuple[int, ...]  # line, end line, column, end column: as in Python's code objects (1-based lines, byte columns)
_KEY = "spec_line"


def caller_line(path: str) -> Line | None:
    """Where the innermost frame of the file `path` stands now."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename != path:
        frame = frame.f_back
    if frame is None:
        return None
    return frame_line(frame)


def frame_line(frame: Any) -> Line:
    """Line and columns of the instruction a frame is executing."""
    if hasattr(frame.f_code, "co_positions"):
        positions = list(frame.f_code.co_positions())
        place = positions[frame.f_lasti // 2]
        if place[0] is not None and place[1] == place[0] and place[2] is not None:
            return (place[0], place[1], place[2], place[3])
    return (frame.f_lineno,)


def on_cpu(value: Any) -> Any:
    """A device argument, moved to the CPU: specs say device="cuda" where there is no GPU."""
    import torch

    if isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in ("cuda", "mps", "xpu")):
        return torch.device("cpu")
    return value


def _is_position(index: Any) -> bool:
    """True for a tensor that is one whole number."""
    import torch

    return isinstance(index, torch.Tensor) and index.dim() == 0 and index.dtype in (torch.int32, torch.int64)


def make_mode(path: str) -> Any:
    """A TorchFunctionMode that marks each operation with the user's line, keeps everything on the CPU, and runs
    flex_attention and compiled functions as plain Python.
    """
    import torch
    from torch.fx import traceback
    from torch.overrides import TorchFunctionMode

    _plain: list[ExitStack] = []

    class Mode(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.idle: list[Line] = []  # where a dropout that drops nothing was called

        def __enter__(self) -> Any:
            inner = ExitStack()
            inner.enter_context(uncompiled())
            _plain.append(inner)
            return super().__enter__()

        def __exit__(self, *raised: Any) -> None:
            super().__exit__(*raised)
            _plain.pop().close()

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if is_flex(func):
                with self:
                    return dense(*args, **kwargs)
            if "device" in kwargs:
                kwargs["device"] = on_cpu(kwargs["device"])
            if func is torch.Tensor.cuda:
                return args[0]
            if func is torch.Tensor.__getitem__ and _is_position(args[1]):
                # As an operator: the tracer would ask for the number, which under vmap is one for each index.
                func, args = torch.ops.aten.index.Tensor, (args[0], [args[1]])
            if func is torch.Tensor.to:
                args = tuple(on_cpu(a) for a in args)
            line = caller_line(path)
            if line is None:
                return func(*args, **kwargs)
            if func is torch.nn.functional.dropout and not (kwargs.get("p") and kwargs.get("training")):
                self.idle.append(line)
            with traceback.annotate({_KEY: line}):
                return func(*args, **kwargs)

    return Mode()


class Graph:
    """A functional graph of ATen operators. `names` are the tensor arguments, `constants` what the spec brought."""

    def __init__(self, exported: Any, names: Sequence[str]) -> None:
        import torch

        self.names = list(names)
        self.nodes = list(exported.graph.nodes)
        self.constants: dict[str, Any] = {}
        self.targets: dict[str, str] = {}  # parameters and buffers: their names in the module
        self.weights: set[str] = set()  # those that are trained: whatever values they have now, they will have others
        self.types: dict[str, str] = {}
        self.qkv_like: frozenset[str] = frozenset()
        self.flex = False  # flex_attention was called
        self.packed = False  # q of three axes is [T, H, D] where the user has it
        self.idle: tuple[Line, ...] = ()  # where a dropout that drops nothing was called
        self._node_type = torch.fx.Node
        self._input: dict[Any, str] = {}
        self._dependence: dict[Any, frozenset[str]] = {}
        user = iter(self.names)
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        for node, spec in zip(placeholders, exported.graph_signature.input_specs, strict=True):
            if spec.kind.name == "USER_INPUT":
                self._input[node] = next(user)
            else:
                self._input[node] = node.name
                stored = exported.state_dict if spec.target in exported.state_dict else exported.constants
                self.constants[node.name] = stored[spec.target].detach()
                if isinstance(stored[spec.target], torch.nn.Parameter):
                    self.weights.add(node.name)
                self.targets[node.name] = str(spec.target)
            self.types[self._input[node]] = self.kind_of(node)
        self.outputs: list[Any] = []
        self.refresh()
        self.input_shapes = {name: tuple(int(n) for n in node.meta["val"].shape) for node, name in self._input.items()}

    def refresh(self) -> None:
        """Take up what a rewriting changed: nodes, what they depend on, outputs."""
        self.nodes = list(self.nodes[0].graph.nodes)
        for node in self.nodes:
            own = frozenset((self._input[node],)) if node in self._input else frozenset[str]()
            self._dependence[node] = own.union(*(self._dependence[n] for n in node.all_input_nodes))
        self.outputs = list(self.nodes[-1].args[0])

    def is_node(self, value: Any) -> bool:
        """True for a graph node, False for a number or None."""
        return isinstance(value, self._node_type)

    def input_name(self, node: Any) -> str | None:
        """The name of an input or constant; None for an operation."""
        return self._input.get(node)

    def depends(self, node: Any) -> frozenset[str]:
        """Inputs and constants a node is computed from."""
        return self._dependence[node]

    def used(self) -> frozenset[str]:
        """Inputs that some output depends on."""
        return frozenset[str]().union(*(self.depends(o) for o in self.outputs if self.is_node(o)))

    def kind_of(self, node: Any) -> str:
        """'bool', 'int' or 'float'."""
        dtype = node.meta["val"].dtype
        return "float" if dtype.is_floating_point else "bool" if str(dtype) == "torch.bool" else "int"

    def op_name(self, node: Any) -> str:
        """Schema name of an operator (`add`, `_softmax`); 'getitem' for picking one of several results."""
        schema = getattr(node.target, "_schema", None)
        return schema.name.split("::")[1] if schema is not None else getattr(node.target, "__name__", str(node.target))

    def arguments(self, node: Any) -> dict[str, Any]:
        """Arguments by schema name, defaults filled in."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return dict(enumerate(node.args))  # type: ignore[arg-type]
        values: dict[str, Any] = {}
        for n, argument in enumerate(schema.arguments):
            if n < len(node.args):
                values[argument.name] = node.args[n]
            else:
                values[argument.name] = node.kwargs.get(
                    argument.name, argument.default_value if argument.has_default_value() else None
                )
        return values

    def line(self, node: Any) -> Line | None:
        """The user's line a node comes from."""
        return (node.meta.get("custom") or {}).get(_KEY)

    def use_line(self, name: str) -> Line | None:
        """The line of the first operation on an input or constant."""
        for node in self.nodes:
            if any(self._input.get(n) == name for n in node.all_input_nodes) and self.line(node):
                return self.line(node)
        return None


def trace(
    function: Callable[..., Any],
    path: str,
    names: Sequence[str],
    inputs: Sequence[Any],
    *,
    module: Any = None,
    layers: bool = False,
    flex: bool = False,
    memory: Memory | None = None,
) -> Graph:
    """Trace `function(*inputs)` (tensors only) at these sizes. Raises what the user's code or the tracer raises.

    `module` is the module whose parameters the function uses: they keep their names. `layers` keeps linear layers and
    their like whole. `flex`: flex_attention applies its modifications by vmap, which is no operator; below the
    dispatch of autograd it is resolved into operators (and scaled_dot_product_attention is not kept whole).
    `memory`: what the modules remember is as at their first call.
    """
    import torch
    from torch.fx import traceback

    mode = make_mode(path)

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if module is not None:
                self.user = module

        def forward(self, *tensors: Any) -> Any:
            with mode:
                result = function(*tensors)
            return tuple(flatten_outputs(result))

    with ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(torch.no_grad())
        stack.callback(leave_vmap)  # the tracer leaves one that raised where it was
        if memory is not None:
            stack.enter_context(memory.apart())
        stack.enter_context(traceback.preserve_node_meta())
        exported = _export(Wrapper(), tuple(inputs), not flex)
        exported = decomposed(exported, layers)
    graph = Graph(exported, names)
    graph.flex, graph.idle = flex, tuple(mode.idle)
    return graph


def _export(module: Any, inputs: tuple[Any, ...], keeps_whole: bool) -> Any:
    import torch
    from torch.export import _trace

    if keeps_whole:
        return torch.export.export(module, inputs, strict=False)
    return _trace._export(module, inputs, strict=False, pre_dispatch=False)  # pyright: ignore[reportPrivateUsage]


@contextmanager
def quiet() -> Generator[None]:
    """No warnings and no log: a size that the spec does not accept is no news."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def flatten_outputs(result: Any) -> list[Any]:
    """The returned tensors, in order, of a tensor, tuple, list or dict (nested; None is dropped). Raises TypeError."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    if result is None:
        return []
    if isinstance(result, dict):
        return [t for value in result.values() for t in flatten_outputs(value)]
    if isinstance(result, (tuple, list)):
        return [t for value in result for t in flatten_outputs(value)]
    raise TypeError(f"a value of type {type(result).__name__}")
