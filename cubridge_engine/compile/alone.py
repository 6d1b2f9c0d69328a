"""``compiled_alone``: the kernels of any .cu file as PTX, without the libraries that its host code needs.

Host functions are blanked (hostcode.py: offsets and lines stay), headers are looked up around the file and in packages
(search.py), those of host libraries are stubs (stubs/torch.h). NVRTC is tried first; what only a whole C++ library
makes compile is left to nvcc, where there is one. Never raises for what the user wrote.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..diagnostics import Diagnostic, Severity, Span, make
from .build import compile_source
from .cache import cache_dir
from .checkout import Doubt, Place, roots
from .hostcode import blank_host_code, includes
from .log import line_span
from .macros import macros_wanted
from .model import Compiled
from .nvcc import entries
from .owners import missing_header
from .prelude import HEADERS
from .search import Build, build_of, find_header, stub_for, usual_dirs, write_stubs
from .toolchain import cuda_include_dirs, find_nvcc, toolkit_include_dirs

MOST_TRIES = 12  # compilations that each find one more header
_NVCC = ("-lineinfo", "-w", "-DNDEBUG", "--expt-relaxed-constexpr", "--expt-extended-lambda")
_NVRTC = ("-lineinfo", "-w")
_HEADER_MISSING = frozenset({"CB606"})
_MOST_HEADERS = 600
_TOO_OLD = re.compile(r"for this GPU architecture|only (?:available|supported) (?:on|for) sm_9")
_ANY_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.M)
# Headers that NVRTC has no use for and a host compiler has: an empty one is right for device code.
_STANDARD_NAMES = """
    algorithm any array atomic bitset cassert cctype cerrno cfloat chrono cinttypes climits cmath complex concepts
    condition_variable csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime deque exception filesystem
    fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator limits list locale map
    memory mutex new numeric optional ostream queue random ratio regex set shared_mutex span sstream stack stdexcept
    streambuf string string_view thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
    valarray variant vector assert.h complex.h ctype.h errno.h fcntl.h inttypes.h limits.h math.h omp.h pthread.h
    signal.h stdarg.h stdbool.h stdio.h stdlib.h string.h sys/time.h sys/types.h sys/stat.h time.h unistd.h
    cuda_profiler_api.h helper_cuda.h
"""
_STANDARD = frozenset(_STANDARD_NAMES.split())


@dataclass(frozen=True, slots=True)
class AloneOptions:
    """How to compile: architecture, template instances to make, folders and macros besides those found by themselves,
    and the settings of the project (``include``, ``define``, ``std`` of cubridge.toml in folder `base`).
    """

    arch: str = "sm_80"
    expressions: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict[str, object], hash=False)
    base: Path | None = None
    backend: str = "auto"
    use_cache: bool = True


@dataclass(frozen=True, slots=True)
class Alone:
    """The PTX of a file's kernels, or why there is none. `lowered` maps expressions and plain kernels to names in the
    PTX; `missing` are headers that were found nowhere, `stubbed` those that a stub stands for; `include_dirs` the
    folders that were searched, the user's first; `found` says in words what was found by itself, and how.
    """

    path: str
    arch: str
    compiler: str
    ptx: str | None
    lowered: Mapping[str, str] = field(hash=False)
    missing: tuple[str, ...]
    stubbed: tuple[str, ...]
    include_dirs: tuple[Path, ...]
    defines: tuple[str, ...]
    notes: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    cached: bool = False
    found: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when there is PTX."""
        return self.ptx is not None

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels in the PTX."""
        return entries(self.ptx or "")


@dataclass(slots=True)
class Search:
    """The headers of one file, as far as they are known: folders that have some, and those that stubs stand for."""

    path: Path
    dirs: list[Path]
    build: Build
    stubbed: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    doubts: dict[str, Doubt] = field(default_factory=dict[str, Doubt])
    found: dict[Path, tuple[str, str]] = field(default_factory=dict[Path, tuple[str, str]])

    def include_dirs(self) -> tuple[Path, ...]:
        """All folders to search, the stubs last."""
        stubs = write_stubs(self.stubbed) if self.stubbed else None
        return (*self.dirs, *([stubs] if stubs is not None else []))

    def words(self) -> tuple[str, ...]:
        """What was found by itself, and how, a line each."""
        base = project_of(self.path)
        rows = [
            f"{header}{f' and others of {near}' if near else ''}: {why}"
            for folder, (header, why) in self.found.items()
            for near in [os.path.relpath(folder, base).replace(os.sep, "/") if base in folder.parents else ""]
        ]
        return (*rows, *(f"flags: {text}" for text in self.build.read))

    def learn(self, header: str, hosted: bool) -> bool:
        """Find one more header, or a stub for it. False when it stays missing. `hosted`: the compiler has the standard
        library, which no stub may stand for.
        """
        place = find_header(self.path, header)
        if isinstance(place, Place) and place.folder not in self.dirs:
            self.dirs.append(place.folder)
            self.found[place.folder] = (header, place.why)
            return True
        if isinstance(place, Doubt):
            self.doubts[header] = place
        standard = not hosted and header in _STANDARD
        if (stub_for(header) is not None or standard) and header not in self.stubbed:
            self.stubbed.append(header)
            return True
        if header not in self.missing:
            self.missing.append(header)
        return False


def project_of(path: Path) -> Path:
    """The outermost root of the project that the file lies in."""
    return roots(path.absolute())[-1]


def header_search(path: Path, data: bytes, options: AloneOptions) -> Search:
    """The folders of a file's headers, followed through the headers that are found."""
    build = build_of(path, options.settings, options.base)
    dirs = dict.fromkeys((*options.include_dirs, *build.include_dirs, *usual_dirs(path)))
    search = Search(path, list(dirs), build)
    system = (*cuda_include_dirs(), *toolkit_include_dirs())
    seen: set[Path] = set()
    todo = [(data, path.parent)]
    while todo and len(seen) < _MOST_HEADERS:
        text, where = todo.pop()
        for match in _ANY_INCLUDE.finditer(text):
            header = match[1].decode("utf-8", "replace")
            found = _resolve(header, (where, *search.dirs))
            if found is None and header not in HEADERS and _resolve(header, system) is None:
                if find_header(path, header) is not None:
                    search.learn(header, hosted=True)
                    found = _resolve(header, (where, *search.dirs))
                elif stub_for(header) is not None:
                    search.stubbed += [header] if header not in search.stubbed else []
                elif header not in _STANDARD and header not in search.missing:
                    search.missing.append(header)
            if found is None or found in seen:
                continue
            seen.add(found)
            # A library's own headers find each other, and are many.
            if not header.startswith(("cute/", "cutlass/", "cuda/", "cub/", "thrust/")):
                try:
                    todo.append((found.read_bytes(), found.parent))
                except OSError:
                    continue
    return search


def _resolve(header: str, dirs: Sequence[Path]) -> Path | None:
    for folder in dirs:
        try:
            if (folder / header).is_file():
                return (folder / header).resolve()
        except (OSError, ValueError):
            continue
    return None


def compiled_alone(path: str | Path, data: bytes | None = None, options: AloneOptions | None = None) -> Alone:
    """Compile the kernels of the file at `path` (its text is `data` where that is given) for one architecture.

    What stays missing is named: CB606 for each header, CB607 where nothing is generated since all kernels are templates
    without an instance, CB608 for an expression that fits no kernel, CB615 when the file cannot be read.
    """
    options = options or AloneOptions()
    file = Path(path)
    if data is None:
        try:
            data = file.read_bytes()
        except OSError as error:
            return _unread(str(path), options, error)
    search = header_search(file, data, options)
    tried: list[Compiled] = []
    backends = ("nvrtc", "nvcc") if options.backend == "auto" else (options.backend,)
    for backend in backends:
        if backend == "nvcc" and find_nvcc() is None and tried:
            break
        tried.append(_compiled(file, data, options, search, backend))
        if tried[-1].ptx is not None:
            break
        if backend == "nvcc" and {d.code for d in tried[-1].diagnostics if d.severity >= Severity.ERROR} == {"CB603"}:
            # What was left out may be missed (a macro that instantiates a host template): nvcc can read it, too.
            whole = _compiled(file, data, options, search, backend, whole=True)
            tried += [whole] if whole.ptx is not None else []
    # The last compiler knows most of C++: its messages are the ones to read.
    return _alone(str(path), data, options, search, tried[-1])


def _compiled(
    file: Path, data: bytes, options: AloneOptions, search: Search, backend: str, whole: bool = False
) -> Compiled:
    hosted = backend == "nvcc"
    flags = (*(_NVCC if hosted else _NVRTC), *((f"-std={search.build.std}",) if search.build.std else ()))
    defines = tuple(dict.fromkeys((*search.build.defines, *options.defines)))
    system = (*cuda_include_dirs(), *toolkit_include_dirs())
    for remaining in reversed(range(MOST_TRIES)):
        dirs = search.include_dirs()
        found = _Resolver((file.parent, *dirs, *system), frozenset(search.stubbed), hosted)
        result = compile_source(
            data if whole else blank_host_code(data, found.resolves).text,
            path=str(file),
            arch=options.arch,
            name_expressions=options.expressions,
            defines=defines,
            want=("ptx",),
            backend=backend,
            include_dirs=(*dirs, *(toolkit_include_dirs() if not hosted else ())),
            options=(*flags, f"-DCUBRIDGE_HEADERS={_headers_key(data, file.parent, dirs)}"),
            use_cache=options.use_cache,
        )
        lacking = [header for d in result.diagnostics if d.code in _HEADER_MISSING and (header := _header_of(d))]
        learned = [search.learn(header, hosted) for header in lacking]
        if result.ptx is not None or not any(learned) or not remaining:
            return result
    raise AssertionError("the last try returns")


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Which headers the compiler will find; nvcc names those that it does not, so that none is blanked for it."""

    places: tuple[Path, ...]
    stubs: frozenset[str]
    hosted: bool

    def resolves(self, header: str) -> bool:
        return self.hosted or header in self.stubs or header in HEADERS or _resolve(header, self.places) is not None


def _header_of(diagnostic: Diagnostic) -> str:
    match = re.match(r"The header (\S+) was not found", diagnostic.message)
    return match[1] if match else ""


def _headers_key(data: bytes, folder: Path, dirs: Sequence[Path]) -> str:
    """A hash of all headers that are found, ``<...>`` too: the cache must notice an edited one."""
    digest = hashlib.sha256()
    seen: set[Path] = set()
    todo = [(data, folder)]
    while todo and len(seen) < _MOST_HEADERS:
        text, where = todo.pop()
        for match in _ANY_INCLUDE.finditer(text):
            found = _resolve(match[1].decode("utf-8", "replace"), (where, *dirs))
            if found is None or found in seen:
                continue
            seen.add(found)
            try:
                content = found.read_bytes()
            except OSError:
                continue
            digest.update(content)
            todo.append((content, found.parent))
    return digest.hexdigest()[:16]


def _alone(path: str, data: bytes, options: AloneOptions, search: Search, result: Compiled) -> Alone:
    found = list(result.diagnostics)
    if result.ptx is None and cache_dir() is None and search.stubbed:
        found.append(make("CB616", line_span(path, data, 0), headers=", ".join(search.stubbed)))
    if result.ptx is None:
        # An include that resolves nowhere was blanked for NVRTC; what it defines is missing all the same. nvcc names
        # what it lacks itself. Headers of headers may stand in branches that this build does not take.
        said = {_header_of(d) for d in found}
        lines = {header: data.count(b"\n", 0, start) for start, header in includes(data)}
        blanked = [] if result.compiler.startswith("nvcc") else [h for h in search.missing if h in lines]
        unsaid = [header for header in blanked if header not in said]
        found = [missing_header(h, line_span(path, data, lines[h])) for h in unsaid] + found
        found = [_doubted(d, search) for d in found]
        if result.arch != "sm_90a" and (newer := next((d for d in found if _TOO_OLD.search(d.message)), None)):
            who, arch = "This kernel", result.arch
            found.append(make("CB617", newer.span, instructions=who, verb="needs", needed="sm_90a", arch=arch))
        found += macros_wanted(Path(path), data, search.include_dirs(), search.build, found)
    else:
        found = [d for d in found if d.code not in _HEADER_MISSING]
    return Alone(
        path=path,
        arch=result.arch,
        compiler=result.compiler,
        ptx=result.ptx,
        lowered=dict(result.lowered),
        missing=tuple(search.missing),
        stubbed=tuple(search.stubbed),
        include_dirs=search.include_dirs(),
        defines=tuple(dict.fromkeys((*search.build.defines, *options.defines))),
        notes=result.notes,
        diagnostics=tuple(d for d in found if d.severity >= Severity.NOTE),
        cached=result.cached,
        found=search.words(),
    )


def _doubted(diagnostic: Diagnostic, search: Search) -> Diagnostic:
    """CB618 in place of CB606 where the project has the header more than once."""
    doubt = search.doubts.get(_header_of(diagnostic))
    if doubt is None:
        return diagnostic
    base = project_of(search.path)
    names = [os.path.relpath(folder, base).replace(os.sep, "/") for folder in doubt.folders]
    header, count = _header_of(diagnostic), len(names)
    return make("CB618", diagnostic.span, header=header, count=count, folders=", ".join(names), first=names[0])


def _unread(path: str, options: AloneOptions, error: OSError) -> Alone:
    found = make("CB615", Span(path, 0, 0, 0, 0, 0, 0), path=path, reason=error.strerror or str(error))
    return Alone(path, options.arch, "", None, {}, (), (), (), (), (), (found,))
