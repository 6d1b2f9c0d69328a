"""The spec executed: in its own dtypes (`eager`), and with all floating-point arithmetic in float64 (`reference`).

For `reference` every floating-point tensor of the run holds float64 data while it reports the dtype the user's code
expects, so that ``torch.finfo(q.dtype).min``, ``.to(v.dtype)`` and dtype assertions keep their meaning, and no cast
rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .program import Program
from .trace import flatten_outputs, make_mode


def eager(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """The user's function on `inputs` (tensors, in argument order), in its own dtypes. Raises what it raises."""
    import torch

    if program.prepare is not None:
        program.prepare(inputs)
    with torch.no_grad(), make_mode(program.path):
        return flatten_outputs(program.call(inputs))


def reference(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """The user's function on `inputs` with float64 arithmetic throughout; floating outputs are float64. Any sizes.

    Tensors the module brought along (weights, buffers) enter with the values they have. Raises what it raises.
    """
    if program.prepare is not None:
        program.prepare(inputs)
    return in_float64(lambda tensors: flatten_outputs(program.call(tensors)), program.path, inputs)


def in_float64(function: Callable[[Sequence[Any]], Sequence[Any]], path: str, inputs: Sequence[Any]) -> list[Any]:
    """What `function` returns for `inputs` when every floating-point tensor in it holds float64 data."""
    import torch

    double = _double()
    wrapped = [double.wrap(t, t.dtype) for t in inputs]
    with torch.no_grad(), make_mode(path), double.functions(), double.dispatch():
        outputs = function(wrapped)
    return [double.unwrap(t) for t in outputs]


def array_of(tensor: Any) -> NDArray[Any]:
    """Inside `in_float64`: the values of `tensor`."""
    with _disabled():
        return np.array(_double().unwrap(tensor).numpy())


def named_like(array: NDArray[Any], dtype: Any) -> Any:
    """Inside `in_float64`: float64 values under the name of another dtype."""
    import torch

    with _disabled():
        return _double().wrap(torch.from_numpy(np.ascontiguousarray(array)), dtype)


@contextmanager
def _disabled() -> Generator[None]:
    """Without the modes of `in_float64`: NumPy cannot look into their tensors."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

    with _disable_current_modes(), torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage]
        yield


@cache
def _double() -> Any:
    """Build the tensor class and its modes (torch is imported here, on first use)."""
    import torch
    import torch.nn.functional as functional
    from torch.overrides import TorchFunctionMode
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes  # pyright: ignore[reportPrivateUsage]

    class Double(torch.Tensor):
        """float64 data under another dtype's name."""

        data64: torch.Tensor

        @staticmethod
        def __new__(cls: type[Double], data: torch.Tensor, nominal: torch.dtype) -> Double:
            made = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
                cls,
                data.shape,
                strides=data.stride(),
                storage_offset=data.storage_offset(),
                dtype=nominal,
                device=data.device,
            )
            made.data64 = data
            return made

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return run(func, args, kwargs or {})

    def wrap(t: Any, nominal: Any = None) -> Any:
        if not isinstance(t, torch.Tensor) or isinstance(t, Double) or not t.dtype.is_floating_point:
            return t
        return Double(t.double(), nominal or t.dtype)

    def unwrap(t: Any) -> Any:
        if isinstance(t, Double):
            return t.data64
        return t.double() if isinstance(t, torch.Tensor) and t.dtype.is_floating_point else t

    def widened(t: Any) -> Any:
        integer = isinstance(t, torch.Tensor) and not t.dtype.is_floating_point and t.dtype is not torch.bool
        return t.double() if integer else t

    def nominal_of(leaves: Sequence[Any]) -> torch.dtype | None:
        """The dtype type promotion gives: tensors with dimensions win over scalars."""
        floats = [t for t in leaves if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
        ranked = [t for t in floats if t.dim()] or floats
        result: torch.dtype | None = None
        for t in ranked:
            result = t.dtype if result is None else torch.promote_types(result, t.dtype)
        return result

    def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        nominal = nominal_of(leaves)
        asked = kwargs.get("dtype")
        inner_args, inner = pytree.tree_map(unwrap, (args, kwargs))
        if isinstance(asked, torch.dtype) and asked.is_floating_point:
            nominal, inner["dtype"] = asked, torch.float64
        name = func._schema.name
        if name in ("aten::_softmax", "aten::_log_softmax") and inner_args[2]:
            inner_args = (*inner_args[:2], False)
            nominal = torch.float32
        out = func(*inner_args, **inner)
        made_float = (
            isinstance(out, torch.Tensor)
            and out.dtype is torch.float32
            and "dtype" in {a.name for a in func._schema.arguments}
        )
        if made_float and not any(isinstance(t, torch.Tensor) for t in leaves):
            nominal = torch.float32  # a factory in the default dtype: make it again in float64
            out = func(*inner_args, **{**inner, "dtype": torch.float64})
        elif isinstance(out, torch.Tensor) and out.dtype is torch.float32:
            # Integers and numbers alone give the default dtype, rounded: positions times a frequency, say.
            nominal = nominal or torch.float32
            out = func(*pytree.tree_map(widened, inner_args), **pytree.tree_map(widened, inner))
        if func._schema.arguments and _writes(func) and isinstance(args[0], torch.Tensor):
            return args[0]
        return pytree.tree_map(lambda t: wrap(t, nominal), out)

    def _writes(func: Any) -> bool:
        info = func._schema.arguments[0].alias_info
        return info is not None and info.is_write

    class Functions(TorchFunctionMode):
        """Keep scaled_dot_product_attention whole: torch's own float64 kernel decides what an empty row gives."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is functional.scaled_dot_product_attention:
                nominal = args[0].dtype if args else kwargs["query"].dtype
                with _disable_current_modes():
                    args, kwargs = pytree.tree_map(unwrap, (args, kwargs))
                    return wrap(func(*args, **kwargs), nominal)
            return func(*args, **kwargs)

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return run(func, args, dict(kwargs or {}))

    return _Namespace(wrap, unwrap, Functions, Dispatch)


class _Namespace:
    def __init__(self, wrap: Callable[..., Any], unwrap: Callable[..., Any], functions: Any, dispatch: Any) -> None:
        self.wrap, self.unwrap, self.functions, self.dispatch = wrap, unwrap, functions, dispatch
