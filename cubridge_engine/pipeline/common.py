"""What `adapt` and `verify` share: loading both files up to the spec's meaning, and the form of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..compile import Contract
from ..diagnostics import Diagnostic, Severity, diagnostic_to_json, make
from ..ir.nodes import Kernel
from ..source import SourceFile
from ..spec import read_spec
from ..spec.attention import Attention, widths_of
from ..verify.bindings import Given, bind_kernel
from ..verify.fitting import demanded
from ..verify.stages import Stages
from ..verify.subject import Variant
from ..verify.targets import archs_of
from .files import Options, contract_of, parse_kernel_file, read_file
from .widths import as_given, fit_widths, lift_at, widths_of_kernel

ENVIRONMENT_CODES = frozenset({"CB600", "CB007", "CB650"})


@dataclass(slots=True)
class Loaded:
    """Both files, read. `lifted` and `attention` are None where reading failed; `failed` says that the job must
    stop.
    """

    data: bytes
    source: SourceFile
    spec_path: str
    spec_data: bytes | None = None
    lifted: Any = None
    attention: Attention | None = None
    program: Any = None
    core: Any = None  # spec.core.Core, where the attention is a part of the spec's function
    contract: Contract | None = None
    failed: bool = False

    @property
    def given(self) -> Attention:
        """The attention on what the kernel is given."""
        assert self.attention is not None
        return as_given(self.attention, self.lifted.kernel)

    @property
    def padded(self) -> bool:
        """True when the kernel is wider than the spec."""
        return self.given is not self.attention

    def at_head_dim(
        self, text: SourceFile, given: Callable[[int], Given], options: Options
    ) -> Callable[[int], Variant | None]:
        """The kernel text `text` and the spec at another head dimension; a GPU runs all instantiations."""

        def at(d: int) -> Variant | None:
            if self.core is not None and d != self.core.template.sizes["D"]:
                return None  # the function around an attention gives it one width: CB239
            kernel = lift_at(text, self.lifted.kernel.name, d).kernel
            if kernel is None:
                return None
            spec = read_spec(self.spec_path, **options.reading(), head_dim=d)
            if spec.attention is None:
                return None
            attention = demanded(spec.attention, self.contract, kernel)
            if widths_of(attention, (d, d)) != widths_of_kernel(kernel):
                return None
            bound = bind_kernel(kernel, attention, given(d))
            return Variant(kernel, attention, spec.program, bound.binding)

        return at


def load(
    kernel_path: str,
    spec_path: str,
    options: Options,
    archs: Sequence[str],
    stages: Stages,
    diagnostics: list[Diagnostic],
) -> Loaded | None:
    """Parse and lift the kernel, read the spec, find the contract. None when the kernel file cannot be read."""
    loaded: Loaded | None = None
    with stages.run("parse") as stage:
        data, problems = read_file(kernel_path)
        diagnostics.extend(problems)
        if data is None:
            stage.fail("the file cannot be read")
            return None
        source = parse_kernel_file(kernel_path, data)
        diagnostics.extend(source.diagnostics)
        loaded = Loaded(data, source, spec_path)
    with stages.run("lift") as stage:
        if not _lift(loaded, options, diagnostics):
            loaded.failed = True
            stage.fail("no attention kernel was understood")
            return loaded
    with stages.run("spec") as stage:
        if not _spec(loaded, spec_path, options, diagnostics):
            loaded.failed = True
            stage.fail("the spec was not understood")
            return loaded
    _match_widths(loaded, options, archs, diagnostics)
    return loaded


def _lift(loaded: Loaded, options: Options, diagnostics: list[Diagnostic]) -> bool:
    names = [f.name for f in loaded.source.kernels()]
    if options.kernel_name is not None and options.kernel_name not in names:
        have = ", ".join(names) or "none"
        diagnostics.append(make("CB025", loaded.source.span_of(0, 0), want=options.kernel_name, have=have))
        return False
    lifted = lift_at(loaded.source, options.kernel_name, options.head_dim)
    if lifted.kernel is None:
        diagnostics.extend(d for d in lifted.diagnostics if d not in diagnostics)
        span = loaded.source.span_of(0, 0)
        diagnostics.append(make("CB023", span, path=loaded.source.path))
        return False
    if not lifted.coverage.complete:
        diagnostics.extend(d for d in lifted.diagnostics if d not in diagnostics)
        diagnostics.append(make("CB027", lifted.kernel.origin.span, what=lifted.coverage.sentence()))
        return False
    loaded.lifted = lifted
    loaded.contract, problems = contract_of(loaded.source.path, lifted.kernel)
    diagnostics.extend(problems)
    return True


def _spec(loaded: Loaded, spec_path: str, options: Options, diagnostics: list[Diagnostic]) -> bool:
    loaded.spec_data, problems = read_file(spec_path)
    diagnostics.extend(problems)
    if loaded.spec_data is None:
        return False
    result = read_spec(spec_path, **options.reading(), head_dim=options.head_dim)
    diagnostics.extend(result.diagnostics)
    loaded.program, loaded.core = result.program, result.core
    if result.attention is not None:
        loaded.attention = demanded(result.attention, loaded.contract, loaded.lifted.kernel)
    return result.attention is not None


def _match_widths(loaded: Loaded, options: Options, archs: Sequence[str], diagnostics: list[Diagnostic]) -> None:
    """Lift again at the spec's widths, or the next ones; refuse widths that the kernel is not made for."""
    assert loaded.attention is not None
    arch = archs_of(archs, loaded.contract, loaded.source.data)[0]
    want = widths_of(loaded.attention, widths_of_kernel(loaded.lifted.kernel))
    found = fit_widths(loaded.source, loaded.lifted, loaded.contract, want, arch, options.kernel_name)
    loaded.lifted, problems = found
    diagnostics.extend(problems)
    loaded.failed = loaded.failed or any(d.severity is Severity.ERROR for d in problems)
    diagnostics.extend(d for d in loaded.lifted.diagnostics if d not in diagnostics)


def exit_code(diagnostics: Sequence[Diagnostic]) -> int:
    """0 ok, 1 findings, 3 when the environment is the reason."""
    errors = [d for d in diagnostics if d.severity is Severity.ERROR]
    if errors and all(d.code in ENVIRONMENT_CODES for d in errors):
        return 3
    return 1 if errors else 0


def without_scales(values: Mapping[str, float | int], kernel: Kernel) -> dict[str, float | int]:
    """`values` without those of scale parameters: a scale depends on the head dimension, a switch does not."""
    scales = {p.name for p in kernel.params if p.role in ("scale", "scale_log2")}
    return {name: value for name, value in values.items() if name not in scales}


def diagnostic_dicts(diagnostics: Sequence[Diagnostic]) -> tuple[dict[str, Any], ...]:
    """The JSON form of diagnostics, worst first, each once."""
    unique: list[Diagnostic] = []
    for item in sorted(diagnostics, key=lambda d: -int(d.severity)):
        if item not in unique:
            unique.append(item)
    return tuple(diagnostic_to_json(item) for item in unique)
