"""The user's own launcher, called on our shapes against a CUDA runtime that writes down what it is asked.

The file is compiled whole with nvcc, behind compile/stubs/record.h, and linked against no CUDA library. What comes out
is a program that calls the launchers named in a request. It is user code: it runs in a process of its own, under limits
of time, memory and file size, and only where the caller allows it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compile.alone import AloneOptions, header_search
from ..compile.nvcc import entries
from ..compile.search import STUBS
from ..compile.toolchain import find_nvcc
from ..source import Function, SourceFile
from .signature import Argument, qualified_name, signature_of

CALL_SECONDS = 20  # of work
_WAITING = 3  # times as long by the clock: on a busy machine a call gets only a part of it
MEMORY_BYTES = 8 << 30
FILE_BYTES = 16 << 20
_FLAGS = ("-std=c++17", "-w", "-lineinfo", "-DNDEBUG", "--expt-relaxed-constexpr", "--expt-extended-lambda")
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]\d+)\s+(?:\.ptr\s+(?:\.\w+\s+|\d+\s+)*)?[\w$]+(?:\[(\d+)\])?"
)
_REGISTERED = re.compile(r"\b(?:def|impl)\s*\(\s*\"(\w+)[^\"]*\"\s*,(?:\s*\w+(?:::k\w+)\s*,)?\s*&?\s*([\w:]+)")
_LAUNCHES = re.compile(r"<<<|\bcuda\w*Launch\w*\s*\(")
_HEADER = re.compile(r"fatal error: ([^:\n]+): No such file|cannot open source file \"([^\"]+)\"")


@dataclass(frozen=True, slots=True)
class Launcher:
    """A host function that leads to a launch: its name in requests, its parameters' types as the recorder names them,
    and their names where the syntax has them.
    """

    name: str
    types: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """One argument of a call: ``tensor`` (role, dtype, shape, strides), ``number``, or ``none``."""

    kind: str
    role: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    number: float = 0.0

    def words(self) -> str:
        """The argument as a line of a request."""
        if self.kind == "tensor":
            numbers = " ".join(map(str, (len(self.shape), *self.shape, *self.strides)))
            return f"tensor {self.role} {self.dtype} {numbers}"
        return f"number {self.number!r}" if self.kind == "number" else "none"


@dataclass(frozen=True, slots=True)
class RawLaunch:
    """A launch as written down: the bytes of each argument, and the memories known at that time."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: tuple[bytes, ...]
    fills: Mapping[int, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class RawMemory:
    """An allocation: where it is, its size, its element type where it is a tensor's, its role where it was given."""

    number: int
    address: int
    size: int
    dtype: str
    role: str


@dataclass(frozen=True, slots=True)
class RawCall:
    """All that one call of a launcher did. `results` are (memory, shape) of the tensors that it returned."""

    launches: tuple[RawLaunch, ...]
    memories: Mapping[int, RawMemory] = field(hash=False)
    results: tuple[tuple[int, tuple[int, ...]], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Recorder:
    """The compiled program, and the PTX of the same compilation. Use as a context: it lives in a temporary folder."""

    program: Path
    ptx: str
    launchers: tuple[Launcher, ...]

    def calls(self, launcher: str, many: Sequence[Sequence[Given]]) -> list[RawCall]:
        """Call a launcher, once for each list of arguments. One call that ends the process ends no other: the rest go
        on in a fresh one.
        """
        kernels = _kernel_lines(self.ptx)
        found: list[RawCall] = []
        while len(found) < len(many):
            lines = [
                f"call {launcher}\n" + "\n".join((*(g.words() for g in given), "end")) for given in many[len(found) :]
            ]
            rows, died = run_program(self.program, [*kernels, *lines])
            starts = [n for n, row in enumerate(rows) if "call" in row]
            parts = [rows[a:b] for a, b in zip(starts, [*starts[1:], len(rows)], strict=False)]
            found += [_raw_call(part, "") for part in parts[:-1]]
            found.append(_raw_call(parts[-1] if parts else [], died))
        return found

    def call(self, launcher: str, arguments: Sequence[Given]) -> RawCall:
        """Call a launcher once."""
        return self.calls(launcher, [arguments])[0]


class CannotRecord(Exception):
    """There is no recorder; the text says why. `missing` are headers that were not found."""

    def __init__(self, reason: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.missing = missing


@contextlib.contextmanager
def recorder(source: SourceFile, kernel: str, options: AloneOptions, extra: Sequence[str] = (), seconds: float = 300.0):
    """Compile `source` with the launchers that lead to `kernel` ('' for all kernels). `extra` are C++ expressions of
    template launchers to call, such as ``launch<64>``. Raises CannotRecord.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise CannotRecord("recording a launcher needs nvcc and a host compiler, and there is none")
    if sys.platform == "win32":
        raise CannotRecord("recording a launcher needs Linux: its limits are those of a POSIX process")
    functions = host_functions(source, kernel)
    names = [*dict.fromkeys([qualified_name(file, f) for file, f in functions]), *extra]
    with tempfile.TemporaryDirectory(prefix="cubridge-record-") as folder:
        base = Path(folder)
        program, ptx = _build(base, source, names, options, seconds)
        rows, died = run_program(program, ["list"])
        if died:
            raise CannotRecord(f"the host code ends before any launcher is called: {died}")
        by_name = {f.name: signature_of(file, f).arguments for file, f in functions}
        # m.def("name", &function): the name that a module gives it.
        for file in files_of(source):
            for name, function in _REGISTERED.findall(file.data.decode("utf-8", "replace")):
                by_name.setdefault(name, by_name.get(_last(function), ()))
        launchers = tuple(
            Launcher(row["launcher"], tuple(row["types"]), by_name.get(_last(row["launcher"]), ()))
            for row in rows
            if "launcher" in row
        )
        yield Recorder(program, ptx, launchers)


def _last(name: str) -> str:
    return name.partition("<")[0].split("::")[-1]


def files_of(source: SourceFile) -> tuple[SourceFile, ...]:
    """The file and the headers that were read along."""
    return (source, *(header.source for header in source.headers))


def has_registry(source: SourceFile) -> bool:
    """True when a module of the file registers functions, which then are launchers by name."""
    return any(re.search(rb"\b(PYBIND11_MODULE|TORCH_LIBRARY\w*)\s*\(", file.data) for file in files_of(source))


def host_functions(source: SourceFile, kernel: str) -> list[tuple[SourceFile, Function]]:
    """Host functions outside templates and classes that lead to a launch of `kernel`, the outermost first, each with
    the file that it is in.
    """
    functions = [(s, f) for s in files_of(source) for group in s.functions().values() for f in group if _is_host(f)]
    counts = Counter(f.name for _, f in functions)
    texts = {id(f): s.clean_text(f.body) for s, f in functions}
    leads = {id(f) for _, f in functions if _LAUNCHES.search(texts[id(f)])}
    if kernel and any(kernel in texts[i] for i in leads):
        leads = {i for i in leads if kernel in texts[i]}
    names = {f.name for _, f in functions if id(f) in leads}
    while more := {
        f.name for _, f in functions if f.name not in names and any(_calls(texts[id(f)], name) for name in names)
    }:
        names |= more
    chosen = [(s, f) for s, f in functions if f.name in names and f.template is None and counts[f.name] == 1]
    called = {
        f.name for _, f in chosen for _, g in chosen if g is not f and g.name != "main" and _calls(texts[id(g)], f.name)
    }
    # A main() has sizes of its own; what takes ours is better.
    return sorted(chosen, key=lambda pair: (pair[1].name == "main", pair[1].name in called, pair[1].node.start_byte))


def _calls(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\s*(<[^;{{}}()]*>)?\s*\(", text) is not None


def _is_host(function: Function) -> bool:
    words = function.qualifiers | set(function.attributes)
    inside = function.node.parent
    while inside is not None and inside.type not in ("struct_specifier", "class_specifier"):
        inside = inside.parent
    return inside is None and not words & {"__global__", "__device__"} and "::" not in function.qualified_name


def _build(
    base: Path, source: SourceFile, names: Sequence[str], options: AloneOptions, seconds: float
) -> tuple[Path, str]:
    path = Path(source.path)
    search = header_search(path, source.data, options)
    nvcc = find_nvcc()
    assert nvcc is not None, "asked before"
    quoted = str(path).replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        f"cubridge::add_main(&{name});" if name == "main" else f'cubridge::add_function("{name}", &{name});'
        for name in names
    ]
    adders = "".join(f"static int cubridge_add_{i} = [] {{ {line} return 0; }}();\n" for i, line in enumerate(lines))
    file, program = base / "user.cu", base / "program"
    file.write_bytes(f'#line 1 "{quoted}"\n'.encode() + source.data + b"\n" + adders.encode())
    arch = options.arch.replace("sm_", "compute_")
    for _ in range(12):
        dirs = (path.parent, *search.include_dirs())
        command = [
            str(nvcc), *_FLAGS, "-include", str(STUBS / "record.h"), f"-I{base}", *(f"-I{d}" for d in dirs),
            *(f"-D{d}" for d in (*search.build.defines, *options.defines)), "-cudart", "none",
            f"-gencode=arch={arch},code={arch}", "-Xlinker", "--unresolved-symbols=ignore-all", "--keep",
            f"--keep-dir={base}", str(file), "-o", str(program),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, cwd=base)
        except subprocess.TimeoutExpired as error:
            raise CannotRecord(f"nvcc was stopped after {int(seconds)} s") from error
        log = (done.stderr + done.stdout).decode("utf-8", "replace")
        if done.returncode == 0:
            return program, (base / "user.ptx").read_text("utf-8", "replace")
        missing = [a or b for a, b in _HEADER.findall(log)]
        if not missing or not any([search.learn(header, True) for header in missing]):  # noqa: C419 - all are learnt
            raise CannotRecord(_first_error(log), tuple(search.missing))
    raise CannotRecord("its headers lead to more and more others", tuple(search.missing))


def _first_error(log: str) -> str:
    errors = [line.strip() for line in log.splitlines() if "error" in line.lower()]
    return (errors or log.strip().splitlines()[-1:] or ["nvcc gave no message"])[0][:300]


# ---- running it


def _limits() -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (CALL_SECONDS, CALL_SECONDS + 1))  # the first limit has a signal of its own
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_program(program: Path, lines: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """Run a recorder on a request: what it wrote, and how it died ('' when it did not)."""
    with tempfile.TemporaryDirectory(prefix="cubridge-call-") as folder:
        request, answer = Path(folder) / "request", Path(folder) / "answer"
        request.write_text("\n".join(lines) + "\n")
        process = subprocess.Popen(
            [str(program), str(request), str(answer)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", ""), "HOME": folder, "LC_ALL": "C"},
            preexec_fn=_limits,
        )
        try:
            code = process.wait(_WAITING * CALL_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # The whole group: host code may have started processes of its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        died = f"it waits for more than {_WAITING * CALL_SECONDS} s" if code is None else _death(code)
        return _rows(answer), died


def _death(code: int) -> str:
    if code >= 0:
        return "" if code == 0 else f"it ends with code {code}"
    try:
        return f"it ends by {signal.Signals(-code).name}"
    except ValueError:
        return f"it ends by signal {-code}"


def _rows(answer: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        for line in answer.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):  # the last line of a program that was stopped
                rows.append(json.loads(line))
    return rows


def parameter_bytes(ptx: str) -> dict[str, tuple[int, ...]]:
    """Bytes of each parameter of each kernel of a PTX text."""
    found: dict[str, tuple[int, ...]] = {}
    for name in entries(ptx):
        at = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)", ptx)
        rows = _PARAM.findall(at[1]) if at else []
        found[name] = tuple(int(kind[1:]) // 8 * int(count or 1) for kind, count in rows)
    return found


def _kernel_lines(ptx: str) -> list[str]:
    return [f"kernel {n} {len(sizes)} {' '.join(map(str, sizes))}" for n, sizes in parameter_bytes(ptx).items()]


def _raw_call(rows: Sequence[Mapping[str, Any]], died: str) -> RawCall:
    roles = {row["given"]: row["role"] for row in rows if "given" in row}
    memories = {
        row["memory"]: RawMemory(
            row["memory"], row["address"], row["bytes"], row["dtype"], roles.get(row["memory"], "")
        )
        for row in rows
        if "memory" in row
    }
    launches = tuple(
        RawLaunch(
            row["launch"],
            _triple(row["grid"]),
            _triple(row["block"]),
            row["shared"],
            tuple(bytes.fromhex(text) for text in row["args"]),
            {int(number): fill for number, fill in row["fills"].items()},
        )
        for row in rows
        if "launch" in row
    )
    results = tuple((row["result"], tuple(row["shape"])) for row in rows if "result" in row)
    error = next((row["error"] for row in rows if "error" in row), "")
    return RawCall(launches, memories, results, error or died)


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z
