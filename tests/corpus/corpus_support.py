"""What generated spec files import: random inputs, stand-ins for packages the mathematics does not need, weights with
values. It lies beside the packages' cache on sys.path, so that a generated file also runs on its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

__all__ = ["Draw", "by_path", "part", "shaken", "stand_in"]


class _Nothing(type):
    """A class whose every attribute is another such class: enough to be imported, decorated with, or derived from."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Nothing(name, (cls,), {})
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # As a decorator it gives back what it decorates.
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else cls

    def __getitem__(cls, item: Any) -> Any:
        return cls


class Nothing(metaclass=_Nothing):
    """The value of every name in a stand-in."""


class _StandIn(ModuleType):
    __path__ = ()
    __version__ = "0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Nothing(name, (Nothing,), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in(*names: str) -> None:
    """Let packages be imported that import `names` for purposes other than attention (images, training, kernels)."""
    absent = tuple(n for n in names if n not in sys.modules and importlib.util.find_spec(n) is None)
    if absent:
        sys.meta_path.append(_Finder(absent))


def by_path(relative: str) -> ModuleType:
    """A file of the packages' folder as a module of its own, without its package's __init__."""
    folder = next(p for p in map(Path, sys.path) if (p / relative).is_file())
    name = "corpus_" + relative.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, folder / relative)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def part(**attributes: Any) -> SimpleNamespace:
    """The few attributes of a module that a function asks for."""
    return SimpleNamespace(**{"training": False, **attributes})


def shaken(module: torch.nn.Module, *, afresh: bool = False, seed: int = 0) -> torch.nn.Module:
    """`module` in eval mode with weights that are nowhere constant: a table of zeros would hide that it is added.

    `afresh` draws all weights, for a class that leaves them uninitialised.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if afresh:
                weight.copy_(0.2 * torch.randn(weight.shape, generator=generator))
            if weight.numel() and (weight.numel() == 1 or bool((weight == weight.flatten()[0]).all())):
                weight.add_(0.5 * torch.randn(weight.shape, generator=generator))
    module.eval()
    module.requires_grad_(False)
    return module


class Draw:
    """Random tensors by one seed. All float tensors are float32."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def randn(self, *shape: int) -> torch.Tensor:
        """Normal values."""
        return torch.randn(shape, generator=self.generator)

    def positive(self, *shape: int) -> torch.Tensor:
        """Values in (0.05, 1.05)."""
        return torch.rand(shape, generator=self.generator) + 0.05

    def keep(self, *shape: int) -> torch.Tensor:
        """A bool mask with about a third False; the first key of each row is kept."""
        mask = torch.rand(shape, generator=self.generator) > 0.35
        mask[..., 0] = True
        return mask

    def additive(self, *shape: int) -> torch.Tensor:
        """0 where kept, the least float32 elsewhere: the mask transformers makes."""
        return torch.zeros(shape).masked_fill(~self.keep(*shape), torch.finfo(torch.float32).min)

    def lengths(self, batch: int, longest: int) -> torch.Tensor:
        """int64 numbers from 1 to `longest`, one per batch."""
        return torch.randint(1, longest + 1, (batch,), generator=self.generator)

    def ids(self, *shape: int, count: int = 3) -> torch.Tensor:
        """Sorted int64 ids below `count` along the last axis."""
        return torch.randint(0, count, shape, generator=self.generator).sort(-1).values

    def numbers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """int64 numbers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator)
