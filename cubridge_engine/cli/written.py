"""Writing an adaptation: to a file, or to a folder with every file that changes and what these include."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..diagnostics import Diagnostic, make
from ..pipeline.folder import Plan, plan_folder
from ..results import Adaptation
from . import codes as codes
from .arguments import BadArgument


def check_target(output: Path, kernel: Path, force: bool) -> None:
    """Refuse the kernel itself and, without --force, any existing file. Raises BadArgument."""
    if output.exists():
        if kernel.exists() and output.samefile(kernel):
            raise BadArgument(make("CB003", path=str(output)))
        if not force:
            raise BadArgument(make("CB002", path=str(output)))


def is_folder(output: str) -> bool:
    """True for a folder, and for a new name that ends in a slash or has no suffix."""
    path = Path(output)
    return path.is_dir() or (not path.exists() and (output.endswith(("/", os.sep)) or not path.suffix))


def check_output(output: str, kernel: Path, force: bool) -> None:
    """What can be said of ``-o`` before the job runs. Raises BadArgument."""
    if not is_folder(output):
        check_target(Path(output), kernel, force)
    elif os.path.realpath(output) == os.path.realpath(kernel.parent):
        raise BadArgument(make("CB003", path=os.path.join(output, kernel.name)))


def write_result(output: str, kernel: Path, result: Adaptation, force: bool) -> tuple[list[str], list[Diagnostic]]:
    """Write the texts of `result`; returns the paths, the kernel's first, and what went wrong."""
    assert result.text is not None
    own = result.text.encode(result.encoding)
    if not is_folder(output):
        if result.files:
            return [], [make("CB013", path=output, files=", ".join(f.name for f in result.files))]
        return _written(Plan(Path(output), {Path(output): own}, {}))
    others = {f.path: f.text.encode(f.encoding) for f in result.files}
    plan = plan_folder(Path(output), kernel, own, others)
    for path in plan.texts:
        try:
            check_target(path, kernel, force)
        except BadArgument as bad:
            return [], [bad.diagnostic]
    done, problems = _written(plan)
    if plan.outside:
        problems.append(make("CB014", path=output, files=", ".join(plan.outside)))
    return done, problems


def _written(plan: Plan) -> tuple[list[str], list[Diagnostic]]:
    done: list[str] = []
    for path, data in {**plan.texts, **plan.copies}.items():
        try:
            if path in plan.copies and path.exists() and path.read_bytes() != data:
                return done, [make("CB002", path=str(path))]
            write_atomically(path, data)
        except OSError as error:
            return done, [make("CB004", path=str(path), why=error.strerror or str(error))]
        done.append(str(path))
    return done, []


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: into a neighbour first, then renamed. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
