"""A tensor that an adapted kernel takes and the spec does not have: what a drop-in needs to know to make it."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .attention import TensorInput


@dataclass(frozen=True, slots=True)
class Derived:
    """The tensor `name` (described by `what`), made by `function` from q, k and the operands `reads`, in this order.

    `source` is the text of the function and of what it uses, `names` are all names it defines. `table` is the argument
    of the spec that names the pages of k and v, where they lie in such: the function then is given the cache for k, and
    the table behind it.
    """

    name: str
    what: str
    function: str
    reads: tuple[str, ...]
    source: str
    names: tuple[str, ...]
    table: str = ""

    def call(self, name_of: Mapping[str, str], q: str, k: str, table: str = "") -> str:
        """The function's call; `name_of` has the operands' names in the calling code, `table` is that of the table."""
        pages = [table or self.table] if self.table else []
        return f"{self.function}({', '.join((q, k, *pages, *(name_of[n] for n in self.reads)))})"


CALL = "call_with_tiles"


def call_function(derived: Derived, inputs: Sequence[TensorInput]) -> str:
    """A function that makes the tensor and calls the kernel with it."""
    pages = [derived.table] if derived.table else []
    names = argument_names([*(i.name for i in inputs), *pages], {"kernel", CALL, *derived.names})
    name_of = {i.name: n for i, n in zip(inputs, names[: len(inputs)], strict=True)}
    q, k = (name_of[next(i.name for i in inputs if i.role == role)] for role in "qk")
    given = ", ".join(names)
    return (
        f"def {CALL}(kernel, {given}):\n"
        f'    """The kernel with {derived.name}, built for this call."""\n'
        f"    return kernel({given}, {derived.call(name_of, q, k, names[-1])})\n"
    )


def argument_names(names: Sequence[str], reserved: Collection[str] = ()) -> list[str]:
    """The names as parameters of a Python function: those that are none, or reserved, are replaced."""
    found: list[str] = []
    for n, name in enumerate(names):
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"x{n}"
        while name in reserved or name in found:
            name += "_"
        found.append(name)
    return found
