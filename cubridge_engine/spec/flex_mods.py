"""A spec file that only defines modifications for FlexAttention: score_mod(score, b, h, q_idx, kv_idx), mask_mod."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .flex_capture import captured_by
from .flex_run import any_length, load_flex

# kind -> number of arguments
KINDS: dict[str, int] = {"score_mod": 5, "mask_mod": 4}
_LENGTH, _HEADS, _BATCH, _DIM = 128, 4, 2, 64
_LONGEST = 4096  # a made-up example runs at most at this length: its scores are a square of it


class NoModification(Exception):
    """Why the modifications of a file cannot be used: a diagnostic code, its fields, and a name with a line."""

    def __init__(self, code: str, at: str = "", **fields: object) -> None:
        super().__init__(code)
        self.code, self.at, self.fields = code, at, fields


@dataclass(frozen=True)
class Modified:
    """flex_attention with the modifications of a file; call it with q, k, v of [B, H, S, D]."""

    score_mod: Callable[..., Any] | None
    mask_mod: Callable[..., Any] | None
    name: str  # of the modification that stands for the spec
    block_mask: Any  # of any length, with this mask_mod

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        flex = load_flex()
        return flex.flex_attention(q, k, v, score_mod=self.score_mod, block_mask=self.block_mask, enable_gqa=True)

    def example(self) -> tuple[list[Any], str]:
        """q, k and v at sizes that fit what the modifications read, and these sizes in words."""
        import torch

        b, h, i, j = self._extents()
        generator = torch.Generator().manual_seed(0)
        shapes = ((b, h, i, _DIM), (b, h, j, _DIM), (b, h, j, _DIM))
        values = [torch.randn(shape, generator=generator).half() for shape in shapes]
        lengths = f"q, k, v of {list(shapes[0])}" if i == j else f"q of {list(shapes[0])}, k and v of {list(shapes[1])}"
        return values, f"{lengths} in float16"

    def _extents(self) -> tuple[int, int, int, int]:
        """Batch, heads and lengths: those of the tensors that are read at these indices, else usual ones.

        Raises NoModification where the tensors are too long to try them out.
        """
        mods = [m for m in (self.score_mod, self.mask_mod) if m is not None]
        sizes = {int(n) for c in captured_by(mods).values() for n in c.tensor.shape if n > 1}
        ends = [_end(lambda x, a=axis: self._runs(*(x if a == n else 0 for n in range(4))), sizes) for axis in range(4)]
        batch, heads, rows, keys = ends
        longest = max(rows or 0, keys or 0)
        if longest > _LONGEST:
            raise NoModification("CB206", self.name, reason=f"the modification reads a tensor of {longest} positions")
        length = _LENGTH
        while length > 8 and not all(self._runs(0, 0, i, j) for i in (0, length - 1) for j in (0, length - 1)):
            length //= 2  # a table by distance, that ends before the usual length
        rows, keys = rows or keys or length, keys or rows or length
        return batch or _BATCH, heads or _HEADS, rows, keys

    def _runs(self, *index: int) -> bool:
        """False where an index is beyond a tensor."""
        import torch

        at = [torch.tensor(n) for n in index]
        try:
            if self.score_mod is not None:
                self.score_mod(torch.tensor(0.0), *at)
            if self.mask_mod is not None:
                self.mask_mod(*at)
        except IndexError:
            return False
        except Exception:
            return True  # the example run says what is wrong
        return True


def _end(runs: Callable[[int], bool], sizes: set[int]) -> int | None:
    """The size among `sizes` at which an index goes beyond a tensor; None where it never does."""
    return next((n for n in sorted(sizes) if not runs(n) and runs(n - 1)), None)


def names_in(entry: str) -> dict[str, str] | None:
    """The modifications that an entry ``score_mod=NAME,mask_mod=NAME`` names; None for the name of a function."""
    if "=" not in entry:
        return None
    pairs = (part.partition("=") for part in entry.split(","))
    return {kind.strip(): name.strip() for kind, _, name in pairs}


def entry_of(score_mod: str | None, mask_mod: str | None) -> str | None:
    """The inverse of `names_in`; None when nothing is named."""
    named = (("score_mod", score_mod), ("mask_mod", mask_mod))
    return ",".join(f"{kind}={name}" for kind, name in named if name) or None


def find_modifications(module: Any, tree: ast.Module, chosen: Mapping[str, str] | None) -> Modified | None:
    """The modifications of a loaded file: those `chosen` by name, else ``score_mod`` and ``mask_mod``, else the only
    one whose name ends so. None where the file has none. Raises NoModification.
    """
    names = chosen or {}
    found: dict[str, tuple[str, Callable[..., Any]]] = {}
    for kind, count in KINDS.items():
        name = names.get(kind) if chosen is not None else _default_name(kind, module, tree)
        if name is None:
            continue
        value = getattr(module, name, None)
        if not callable(value):
            raise NoModification("CB251", "", name=name, kind=kind, reason="the file defines no such function")
        taken = _arity(value)
        if taken not in (count, None):
            raise NoModification("CB251", name, name=name, kind=kind, reason=f"it takes {taken} arguments, not {count}")
        found[kind] = (name, value)
    if not found:
        return None
    load_flex()
    score, mask = found.get("score_mod"), found.get("mask_mod")
    return Modified(
        score and score[1], mask and mask[1], (score or mask or ("", None))[0], mask and _block_mask(mask[1])
    )


def _block_mask(mask_mod: Callable[..., Any]) -> Any:
    import torch

    blocks = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    mask = load_flex().BlockMask.from_kv_blocks(blocks[..., 0] + 1, blocks, mask_mod=mask_mod)
    any_length(mask)
    return mask


def _default_name(kind: str, module: Any, tree: ast.Module) -> str | None:
    if callable(getattr(module, kind, None)):
        return kind
    own = [
        n for n in lines_of_names(tree) if n.endswith(f"_{kind}") and _arity(getattr(module, n, None)) == KINDS[kind]
    ]
    if len(own) > 1:
        raise NoModification("CB252", own[1], kind=kind, names=", ".join(own), flag=f"--{kind.replace('_', '-')}")
    return own[0] if own else None


def _arity(function: Any) -> int | None:
    """How many arguments a function must be given; None where that cannot be known."""
    if not callable(function) or isinstance(function, type):
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)


def lines_of_names(tree: ast.Module) -> dict[str, int]:
    """The line on which each name of a file is defined or assigned."""
    lines: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            lines[node.name] = node.lineno
        elif isinstance(node, ast.Assign):
            lines.update({t.id: node.lineno for t in node.targets if isinstance(t, ast.Name)})
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.update({(a.asname or a.name): node.lineno for a in node.names})
    return lines
