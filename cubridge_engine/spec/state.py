"""What outlives a call of the user's code: what its modules remember, and levels of vmap.

Modules make tables at their first call, or make them again for a longer sequence.
A trace must not find the table of another length (its values would be data where the code has a formula), and must
leave none of its own tensors behind, which have no values.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable
from typing import Any

_PLAIN = (bool, int, float, str, type(None))


class Memory:
    """Buffers, tensors and plain values of modules, as they were when this was made."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self._buffers = [(m._buffers, dict(m._buffers)) for m in modules]
        self._modules = [(m, _remembered(m)) for m in modules]

    def restore(self) -> None:
        """Give the modules what they had."""
        for buffers, before in self._buffers:
            buffers.clear()
            buffers.update(before)
        for module, before in self._modules:
            own = module.__dict__
            for name in _remembered(module).keys() - before.keys():
                del own[name]
            own.update(before)

    @contextlib.contextmanager
    def apart(self) -> Generator[None]:
        """Run something as if nothing had been called before; afterwards it never was."""
        self.restore()
        try:
            yield
        finally:
            self.restore()


def _remembered(module: Any) -> dict[str, Any]:
    """The attributes of a module that are tensors or plain values; its parameters, buffers and parts are none."""
    import torch

    return {n: v for n, v in vars(module).items() if isinstance(v, (*_PLAIN, torch.Tensor))}


def leave_vmap() -> None:
    """Leave every vmap that an exception cut short on its way in or out.

    An alarm can arrive between torch's entering a level and its own clean-up; all later code of this process would
    then run inside that vmap (``randn`` refuses to, for one).
    """
    functorch = sys.modules.get("torch._C._functorch")
    if functorch is None:
        return
    with contextlib.suppress(RuntimeError):  # a level of another kind, which we never enter
        while functorch.maybe_current_level() is not None:
            functorch._vmap_decrement_nesting()
