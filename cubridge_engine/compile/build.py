"""``compile_source``: CUDA text -> PTX, machine code and ptxas figures; every failure is a diagnostic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..diagnostics import Diagnostic, Severity, make
from . import cache
from .codes import PIP_INSTALL
from .contract import Contract, Instance
from .hostcode import HOST_HEADER, blank_host_code, includes
from .limits import Arch, parse_arch, shared_limit
from .log import NAME_MAP, entry_names, line_span, read_log
from .model import Compiled, KernelFigures, Raw
from .nvcc import TIMEOUT_S, NvccTimeout, compile_with_nvcc, entries
from .nvrtc import load_nvrtc
from .owners import missing_header
from .prelude import DEFINES, HEADERS
from .toolchain import cuda_include_dirs, find_nvcc, find_nvrtc, nvcc_version

WANT = ("ptx", "cubin")
_INPUT_NAME = re.compile(r'Input name expression was: "([^"]*)"')
_UNSUPPORTED = re.compile(r"Unsupported gpu architecture")
_PLAIN_MANGLED = re.compile(r"_Z(\d+)(\w+)$")


@dataclass(frozen=True, slots=True)
class _Job:
    """One compilation: the text and all that decides how it is compiled."""

    source: bytes
    path: str
    arch: Arch
    expressions: tuple[str, ...]
    defines: tuple[str, ...]
    want: tuple[str, ...]
    include_dirs: tuple[Path, ...]
    options: tuple[str, ...]

    @property
    def search(self) -> tuple[Path, ...]:
        return (*self.include_dirs, Path(self.path).parent, *cuda_include_dirs())

    def resolves(self, header: str) -> bool:
        """True when NVRTC will find the header."""
        return header in HEADERS or any((folder / header).is_file() for folder in self.search)

    def nvrtc_options(self) -> list[str]:
        # Without machine code to make, PTX for the virtual architecture spares ptxas.
        target = self.arch.name if "cubin" in self.want else self.arch.name.replace("sm_", "compute_")
        implied = [f"{k}={v}" for k, v in DEFINES.items() if not re.search(rf"define\s+{k}\b".encode(), self.source)]
        return [
            f"--gpu-architecture={target}",
            "-std=c++17",
            *(["--ptxas-options=-v"] if "cubin" in self.want else []),
            *(f"--define-macro={d}" for d in (*implied, *self.defines)),
            *(f"--include-path={folder}" for folder in self.search),
            *self.options,
        ]

    def nvcc_options(self) -> list[str]:
        return [
            f"-arch={self.arch.name}",
            "-std=c++17",
            *(f"-D{d}" for d in self.defines),
            *(f"-I{folder}" for folder in (*self.include_dirs, Path(self.path).parent)),
            *self.options,
        ]


def _failed(arch: str, backend: str, compiler: str, *diagnostics: Diagnostic) -> Compiled:
    return Compiled(arch, backend, compiler, None, None, {}, (), (), diagnostics)


def _choose(backend: str) -> tuple[str, Diagnostic | None]:
    """The backend to use, or the diagnostic that none can be."""
    nvrtc, nvcc = load_nvrtc(), find_nvcc()
    have = {"nvrtc": nvrtc is not None, "nvcc": nvcc is not None}
    if backend == "auto":
        chosen = next((name for name, there in have.items() if there), "")
        return chosen, None if chosen else make("CB600", None, install=PIP_INSTALL)
    if have.get(backend):
        return backend, None
    if backend not in have:
        reason = "there is no such backend; choose nvrtc, nvcc or auto"
    elif backend == "nvrtc" and find_nvrtc() is not None:
        reason = "its library does not load"
    else:
        reason = "it was not found"
    return "", make("CB601", None, backend=backend, reason=reason, install=PIP_INSTALL)


def _cached(job: _Job, compiler: str, options: Sequence[str], use_cache: bool) -> tuple[str, Raw | None]:
    if not use_cache:
        return "", None
    key = cache.cache_key(job.source, job.path, (compiler, *options, *job.expressions, *job.want), job.search)
    return key, cache.load(key)


def _plain(name: str) -> str:
    """The function's name in a mangled name without namespaces (``_Z1kPf`` -> ``k``), else the name as it is."""
    match = _PLAIN_MANGLED.match(name)
    return match[2][: int(match[1])] if match else name


def _finish(
    job: _Job, backend: str, compiler: str, raw: Raw, extra: tuple[Diagnostic, ...] = (), cached: bool = False
) -> Compiled:
    names = entries(raw.ptx) if raw.ptx is not None else entry_names(raw.log)
    lowered = {_plain(name): name for name in names if name not in raw.lowered.values()} | raw.lowered
    expressions = {mangled: expression for expression, mangled in lowered.items()}
    found = read_log(raw.log, path=job.path, source=job.source, arch=job.arch.name, expressions=expressions)
    diagnostics = [*found.diagnostics, *extra]
    if not raw.ok and _UNSUPPORTED.search(raw.log):
        supported = f"run {compiler.partition(' ')[0]} --list-gpu-arch"
        diagnostics.append(make("CB602", None, compiler=compiler, arch=job.arch.name, supported=supported))
    if not raw.ok and not any(d.severity is Severity.ERROR for d in diagnostics):
        last = raw.log.strip().splitlines()[-1:] or ["no message"]
        diagnostics.append(make("CB613", line_span(job.path, job.source, 0), compiler=compiler, message=last[0]))
    if raw.ok and not lowered:
        diagnostics.append(make("CB607", line_span(job.path, job.source, 0)))
    if not raw.ok:
        return _failed(job.arch.name, backend, compiler, *diagnostics)
    return Compiled(
        job.arch.name,
        backend,
        compiler,
        raw.ptx,
        raw.cubin,
        lowered,
        found.kernels,
        found.notes,
        tuple(diagnostics),
        cached,
    )


def _bad_expressions(job: _Job, raw: Raw) -> tuple[Diagnostic, ...]:
    """NVRTC reports a name expression that does not resolve in a place the user has not got; say which one it is."""
    if raw.ok:
        return ()
    lines = job.source.count(b"\n") + 1
    beyond = [int(n) for n in re.findall(rf"^{re.escape(job.path)}\((\d+)\)", raw.log, re.M) if int(n) > lines]
    if not beyond and NAME_MAP not in raw.log:
        return ()
    where = line_span(job.path, job.source, 0)
    undefined = [e for e in job.expressions if e.partition("<")[0].split("::")[-1].encode() not in job.source]
    quoted = {"".join(q.split()) for q in _INPUT_NAME.findall(raw.log)}
    wrong = undefined or [e for e in job.expressions if "".join(e.split()) in quoted] or list(job.expressions[:1])
    reason = "the file does not define it" if undefined else "it does not fit a kernel template of the file"
    return tuple(make("CB608", where, expression=e, message=reason) for e in wrong)


def _missing_headers(job: _Job) -> tuple[Diagnostic, ...]:
    """CB606 for each include that does not resolve and may hold device code."""
    found: list[Diagnostic] = []
    for start, header in includes(job.source):
        if not job.resolves(header) and not HOST_HEADER.match(header):
            line = job.source.count(b"\n", 0, start)
            found.append(missing_header(header, line_span(job.path, job.source, line)))
    return tuple(found)


def _with_nvrtc(job: _Job, use_cache: bool) -> Compiled:
    nvrtc = load_nvrtc()
    assert nvrtc is not None, "chosen only when it loads"
    compiler = f"NVRTC {nvrtc.version}"
    if job.arch.capability not in nvrtc.capabilities:
        supported = ", ".join(f"sm_{c}" for c in nvrtc.capabilities)
        return _failed(
            job.arch.name,
            "nvrtc",
            compiler,
            make("CB602", None, compiler=compiler, arch=job.arch.name, supported=supported),
        )
    options = job.nvrtc_options()
    key, hit = _cached(job, compiler, options, use_cache)
    if hit is not None:
        note = _host_note(job, hit)
        return _finish(job, "nvrtc", compiler, hit, note, cached=True)
    raw = nvrtc.compile(job.source, job.path, options, job.expressions, job.want)
    if not raw.ok:
        blanked = blank_host_code(job.source, job.resolves)
        if blanked.parts:
            helpers = ["--device-as-default-execution-space"] if blanked.host_helpers else []
            again = nvrtc.compile(blanked.text, job.path, [*options, *helpers], job.expressions, job.want)
            # The second log speaks of device code alone: that is what the user must look at, compiled or not.
            raw = replace(again, log=f"{again.log}\n{_MARK}{len(blanked.parts)}") if again.ok else again
    if raw.ok and key:
        cache.store(key, raw)
    headers = () if raw.ok else _missing_headers(job)
    return _finish(job, "nvrtc", compiler, raw, (*headers, *_host_note(job, raw), *_bad_expressions(job, raw)))


_MARK = "cubridge: host parts left out: "


def _host_note(job: _Job, raw: Raw) -> tuple[Diagnostic, ...]:
    match = re.search(rf"^{_MARK}(\d+)", raw.log, re.M)
    return (make("CB612", line_span(job.path, job.source, 0), count=int(match[1])),) if match else ()


def _with_nvcc(job: _Job, use_cache: bool) -> Compiled:
    nvcc = find_nvcc()
    assert nvcc is not None, "chosen only when it is there"
    compiler = f"nvcc {nvcc_version(nvcc)}".strip()
    options = job.nvcc_options()
    key, hit = _cached(job, compiler, options, use_cache)
    if hit is not None:
        return _finish(job, "nvcc", compiler, hit, cached=True)
    try:
        raw = compile_with_nvcc(nvcc, job.source, job.path, options, job.expressions, job.want)
    except NvccTimeout:
        return _failed(job.arch.name, "nvcc", compiler, make("CB614", None, compiler=compiler, seconds=int(TIMEOUT_S)))
    if raw.ok and key:
        cache.store(key, raw)
    return _finish(job, "nvcc", compiler, raw, _bad_expressions(job, raw))


def compile_source(
    source: str | bytes,
    *,
    path: str,
    arch: str = "sm_80",
    name_expressions: Sequence[str] = (),
    defines: Sequence[str] = (),
    want: Sequence[str] = WANT,
    backend: str = "auto",
    include_dirs: Sequence[str | Path] = (),
    options: Sequence[str] = (),
    use_cache: bool = True,
) -> Compiled:
    """Compile a CUDA file for one architecture. Never raises for what the user wrote: see ``Compiled.diagnostics``.

    `path` names the file in messages and finds its quoted includes; it need not exist. `name_expressions` are the
    template instances to generate (``flash_fwd<__half, 64>``). `defines` are ``NAME`` or ``NAME=VALUE``. `want` is a
    choice of 'ptx' and 'cubin'; without 'cubin' there are no register figures. `backend` is 'auto' (NVRTC, else nvcc),
    'nvrtc' or 'nvcc'. `options` go to the compiler as they are.
    """
    text = source.encode() if isinstance(source, str) else source
    parsed = parse_arch(arch)
    if parsed is None:
        supported = "sm_80, sm_86, sm_89, sm_90, sm_90a"
        return _failed(arch, "", "", make("CB602", None, compiler="CuBridge", arch=arch, supported=supported))
    chosen, missing = _choose(backend)
    if missing is not None:
        return _failed(parsed.name, "", "", missing)
    job = _Job(
        text,
        path,
        parsed,
        tuple(name_expressions),
        tuple(defines),
        tuple(want),
        tuple(Path(d) for d in include_dirs),
        tuple(options),
    )
    return _with_nvrtc(job, use_cache) if chosen == "nvrtc" else _with_nvcc(job, use_cache)


def check_shared(figures: KernelFigures, dynamic_bytes: int, arch: str) -> Diagnostic | None:
    """CB610 when static plus `dynamic_bytes` of shared memory exceed what a CTA can have on `arch`; else None."""
    limit = shared_limit(arch)
    needed = figures.shared_bytes + dynamic_bytes
    if limit is None or needed <= limit:
        return None
    return make(
        "CB610",
        None,
        kernel=figures.expression,
        needed=needed,
        static=figures.shared_bytes,
        dynamic=dynamic_bytes,
        arch=arch,
        limit=limit,
    )


def compile_contract(
    contract: Contract,
    source: str | bytes | None = None,
    *,
    arch: str = "sm_80",
    instances: Sequence[Instance] | None = None,
    path: str | None = None,
    **options: object,
) -> Compiled:
    """Compile the instances of a contract (all, or those given) and check their shared memory against `arch`.

    `source` is the text to compile in place of the contract's file (an adapted kernel); `options` as in
    `compile_source`.
    Raises OSError when `source` is None and the file cannot be read.
    """
    chosen = contract.instances if instances is None else tuple(instances)
    text = contract.source_path.read_bytes() if source is None else source
    settings: Mapping[str, object] = {"name_expressions": tuple(i.expression for i in chosen), **options}
    compiled = compile_source(text, path=path or str(contract.source_path), arch=arch, **settings)  # type: ignore[arg-type]
    over: list[Diagnostic] = []
    for instance in chosen:
        figures = compiled.figures(instance.expression)
        finding = check_shared(figures, contract.dynamic_shared(instance), arch) if figures else None
        if finding is not None:
            over.append(finding)
    return replace(compiled, diagnostics=(*compiled.diagnostics, *over))
