"""Exported modules of the bundled kernels and of adapted ones, imported."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cubridge_engine.pipeline.export import export_kernel
from cubridge_engine.pipeline.files import Options

KERNELS = Path(__file__).parents[2] / "expert_kernels"
_COUNT = itertools.count()
Importer = Callable[..., ModuleType]


def load(path: Path) -> ModuleType:
    """The file as a module of its own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def exported(tmp_path: Path) -> Importer:
    """(kernel file, options) -> the exported module; its operator is `module.OPERATOR`, its function `module.call`."""

    def make(kernel: Path, options: Options | None = None) -> ModuleType:
        name = f"exported_{next(_COUNT)}"
        result = export_kernel(str(kernel), f"{name}.py", None, options or Options())
        assert result.text is not None, result.diagnostics
        (tmp_path / f"{name}.py").write_text(result.text)
        module = load(tmp_path / f"{name}.py")
        vars(module)["call"] = getattr(module, name)
        return module

    return make
