"""An exported program in ATen's core operators, but for those that are easier to read whole.

`ExportedProgram.run_decompositions` prepares each of some 500 composite operators anew on every call, which takes three
quarters of the time of tracing a small function. Here only those are prepared that the graph has or that are treated in
a way of their own; the others are taken apart as PyTorch does it by itself. A test compares the graphs of the two.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

# What stands before and after an attention, and reads better whole.
_LAYERS = (
    "linear.default conv1d.default conv2d.default conv3d.default layer_norm.default rms_norm.default "
    "group_norm.default silu.default gelu.default softplus.default log_sigmoid.default"
)


def decomposed(exported: Any, layers: bool = False) -> Any:
    """The program with its operators taken apart. `layers`: those of a network are kept whole too."""
    import torch

    operators = torch._C._dispatch_get_all_op_names()  # pyright: ignore[reportPrivateUsage]
    split = _split(layers, len(operators))
    if split is None:
        return exported.run_decompositions(_table(layers, len(operators)))
    composite, own, other = split
    present = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    prepared = {op: how for op, how in composite.items() if op in own or op in present}
    return _run(exported, prepared, other)


def _run(exported: Any, composite: dict[Any, Any], other: dict[Any, Any]) -> Any:
    """The second half of `run_decompositions`."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.export import exported_program as torch_side

    with unset_fake_temporarily():
        return torch_side._decompose_exported_program(  # pyright: ignore[reportPrivateUsage]
            exported,
            cia_to_decomp=composite,
            python_decomp_table=dict(other),
            joint_loss_index=None,
            decompose_custom_triton_ops=False,
        )


@functools.lru_cache(maxsize=4)
def _split(layers: bool, operators: int) -> tuple[dict[Any, Any], frozenset[Any], dict[Any, Any]] | None:
    """What `run_decompositions` does with the table first: composite operators, those of them that do not just call
    their own kernel, and all others. None where this PyTorch has no such parts: they are not its public interface.
    """
    try:
        importlib.import_module("torch._subclasses.fake_tensor").unset_fake_temporarily  # noqa: B018
        from torch.export.exported_program import (
            _decompose_exported_program,  # pyright: ignore[reportPrivateUsage]
            _split_decomp_table_to_cia_and_python_decomp,  # pyright: ignore[reportPrivateUsage]
        )

        taken = set(inspect.signature(_decompose_exported_program).parameters)
        composite, other = _split_decomp_table_to_cia_and_python_decomp(dict(_table(layers, operators)))
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
    if taken != {"ep", "cia_to_decomp", "python_decomp_table", "joint_loss_index", "decompose_custom_triton_ops"}:
        return None
    own = frozenset(op for op, how in composite.items() if not _is_its_own(op, how))
    return composite, own, other


def _is_its_own(op: Any, how: Any) -> bool:
    """True where taking the operator apart is calling the composite kernel it has."""
    return isinstance(how, functools.partial) and how.keywords.get("kernel") is op


@functools.lru_cache(maxsize=4)
def _table(layers: bool, _operators: int) -> dict[Any, Any]:
    """The default table, keeping whole what is easier to read whole, for as many operators as are registered: a spec
    may import a library with operators of its own. Making it takes a good part of the time of a trace.
    """
    import torch

    table: Any = torch.export.default_decompositions()
    aten = torch.ops.aten
    for op in (
        aten.scaled_dot_product_attention.default,
        aten.logsumexp.default,
        aten.nan_to_num.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
    ):
        table.pop(op, None)
    for name in _LAYERS.split() if layers else ():
        packet, overload = name.split(".")
        if hasattr(aten, packet):
            table.pop(getattr(getattr(aten, packet), overload), None)
    return dict(table.items())
