"""NVRTC through ctypes: compiles CUDA C++ in this process with no GPU, no driver and no host compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .model import Raw
from .prelude import HEADERS
from .toolchain import NvrtcFiles, find_nvrtc

_ERROR_COMPILATION = 6
_ERROR_BAD_NAME_EXPRESSION = 9


class Nvrtc:
    """A loaded NVRTC library. `load_nvrtc` makes the one of this process."""

    def __init__(self, files: NvrtcFiles) -> None:
        """Load the library. Raises OSError when it does not load."""
        if files.builtins is not None:
            # NVRTC opens its builtins by bare name, which finds a wheel's copy only if it is loaded already.
            ctypes.CDLL(str(files.builtins), mode=ctypes.RTLD_GLOBAL)
        self._lib = ctypes.CDLL(str(files.nvrtc))
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._lib.nvrtcGetErrorString.argtypes = [ctypes.c_int]
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"
        count = ctypes.c_int()
        self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._lib.nvrtcGetSupportedArchs(archs)
        self.capabilities = tuple(int(a) for a in archs)

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        if getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) or not size.value:
            return b""
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._lib, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def _string(self, status: int) -> str:
        text: Any = self._lib.nvrtcGetErrorString(status)
        return text.decode() if isinstance(text, bytes) else f"error {status}"

    def compile(
        self, source: bytes, name: str, options: Sequence[str], expressions: Sequence[str], want: Sequence[str]
    ) -> Raw:
        """Compile `source` under the file name `name`. Compile errors are in the log; nothing is raised for them."""
        names = [key.encode() for key in HEADERS]
        texts = [text.encode() for text in HEADERS.values()]
        headers, includes = (ctypes.c_char_p * len(texts))(*texts), (ctypes.c_char_p * len(names))(*names)
        program = ctypes.c_void_p()
        status = self._lib.nvrtcCreateProgram(
            ctypes.byref(program), source.replace(b"\0", b" "), name.encode(), len(names), headers, includes
        )
        if status:
            return Raw(False, self._string(status))
        try:
            return self._compile(program, options, expressions, want)
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _compile(
        self, program: ctypes.c_void_p, options: Sequence[str], expressions: Sequence[str], want: Sequence[str]
    ) -> Raw:
        for expression in expressions:
            self._lib.nvrtcAddNameExpression(program, expression.encode())
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = self._lib.nvrtcCompileProgram(program, len(options), array)
        log = self._text(program, "ProgramLog").replace(b"\0", b"\n").decode("utf-8", "replace")
        if status:
            named = status in (_ERROR_COMPILATION, _ERROR_BAD_NAME_EXPRESSION)
            return Raw(False, log if named and log.strip() else f"{log}\n{self._string(status)}".strip())
        lowered: dict[str, str] = {}
        for expression in expressions:
            out = ctypes.c_char_p()
            if not self._lib.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(out)) and out.value:
                lowered[expression] = out.value.decode()
        ptx = self._text(program, "PTX").rstrip(b"\0").decode() if "ptx" in want else None
        cubin = self._text(program, "CUBIN") if "cubin" in want else None
        return Raw(True, log, ptx or None, cubin or None, lowered)


@lru_cache(maxsize=1)
def load_nvrtc() -> Nvrtc | None:
    """The NVRTC of this environment, loaded once; None when there is none or it does not load."""
    files = find_nvrtc()
    if files is None:
        return None
    try:
        return Nvrtc(files)
    except (OSError, AttributeError):
        return None
