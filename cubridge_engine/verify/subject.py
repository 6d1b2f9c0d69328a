"""What is verified, and what the user can choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..compile import Contract
from ..ir.nodes import Kernel
from ..spec.attention import Attention
from .explain import Binding

if TYPE_CHECKING:
    from ..spec.dropin import DropIn


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What the user can choose. `archs` empty: the default ones. `rounds`: runs of the grid on a device, each with
    other inputs. `use_simulator`: False stops at level ``compiled`` (and goes on to a GPU, if there is one).
    """

    archs: tuple[str, ...] = ()
    empty_rows: str = "keep"
    seed: int = 0
    use_gpu: bool = True
    use_simulator: bool = True
    rounds: int = 2


@dataclass(frozen=True, slots=True)
class Variant:
    """The kernel and the spec at one head dimension: a scale such as 1/sqrt(D) makes both depend on it."""

    kernel: Kernel
    attention: Attention
    program: Any
    binding: Binding


@dataclass(frozen=True, slots=True)
class Subject:
    """The kernel under test: its text, the program lifted from that text, how it is called, and its contract if there
    is one.

    `drop_in` is the function around the kernel, where the spec is more than the attention.
    `at_head_dim` gives the same at another head dimension, or None where kernel or spec have no such form.
    """

    path: str
    text: bytes
    kernel: Kernel
    binding: Binding
    contract: Contract | None = None
    at_head_dim: Callable[[int], Variant | None] | None = None
    drop_in: DropIn | None = None
