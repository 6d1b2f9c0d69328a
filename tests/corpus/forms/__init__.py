"""The forms, by package."""

from __future__ import annotations

from importlib import import_module

from ..form import Form

_MODULES = (
    "own",
    "own_tricks",
    "own_again",
    "attn_gym",
    "eager",
    "transformers",
    "x_transformers",
    "timm",
    "vit_pytorch",
    "fla",
    "diffusers",
    "litgpt",
)


def all_forms() -> list[Form]:
    """Every form, in the order of the table. Raises ValueError when two have one name."""
    forms = [form for name in _MODULES for form in import_module(f"{__name__}.{name}").FORMS]
    names = [form.name for form in forms]
    if len(set(names)) != len(names):
        raise ValueError(f"two forms are called {next(n for n in names if names.count(n) > 1)!r}")
    return forms
