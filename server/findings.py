"""What jobs found: diagnostics that live until the kernel or the spec they speak of changes, or a file beside them that
decides what is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cubridge_engine.diagnostics import Diagnostic

from . import convert


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one job on one (kernel, spec) pair, tied to the texts it was computed from."""

    job: str  # adapt | verify
    kernel: str  # path
    spec: str  # path
    kernel_sha: str
    spec_sha: str
    level: str  # lifted | ir | compiled | simulated | gpu; '' when none was reached
    passed: bool
    diagnostics: tuple[Diagnostic, ...]
    kernel_name: str = ""  # '' when the job got to no kernel
    beside: tuple[tuple[str, str], ...] = ()  # (path, digest) of the contract, even of one that is missing; settings

    def replaces(self, older: Finding) -> bool:
        """True for the same job on the same kernel and spec; a job that got to no kernel is about all of the file."""
        same_kernel = self.kernel_name == older.kernel_name or "" in (self.kernel_name, older.kernel_name)
        return (self.job, self.kernel, self.spec) == (older.job, older.kernel, older.spec) and same_kernel

    def current(self, path: str, sha: str) -> bool:
        """False when `path` is one of its files and no longer has the text this finding is about."""
        known = ((self.kernel, self.kernel_sha), (self.spec, self.spec_sha), *self.beside)
        return not any(path == file and sha != digest for file, digest in known)


@dataclass(slots=True)
class Findings:
    """One finding per job, kernel and spec; the newest wins."""

    _kept: dict[tuple[str, str, str, str], Finding] = field(default_factory=dict)

    def put(self, finding: Finding) -> set[str]:
        """Keep `finding`; returns the paths whose diagnostics changed."""
        before = [key for key, kept in self._kept.items() if finding.replaces(kept)]
        changed = _paths(finding) | {path for key in before for path in _paths(self._kept[key])}
        for key in before:
            del self._kept[key]
        self._kept[finding.job, finding.kernel, finding.spec, finding.kernel_name] = finding
        return changed

    def changed(self, path: str, data: bytes) -> set[str]:
        """`path` has a new text: forget what was about the old one; returns the paths whose diagnostics changed."""
        sha = convert.sha256(data)
        gone = {key: finding for key, finding in self._kept.items() if not finding.current(path, sha)}
        for key in gone:
            del self._kept[key]
        return {path for finding in gone.values() for path in _paths(finding)}

    def diagnostics(self, path: str) -> list[Diagnostic]:
        """Diagnostics located in `path`, each once (adapt and verify may find the same).

        One without a place belongs to the kernel's first line.
        """
        found: dict[tuple[object, ...], Diagnostic] = {}
        for finding in self._kept.values():
            for item in finding.diagnostics:
                if (item.span.path if item.span else finding.kernel) == path:
                    found.setdefault((item.code, item.message, item.span), item)
        return list(found.values())

    def of_kernel(self, path: str) -> list[Finding]:
        """Findings about the kernel at `path`, oldest first."""
        return [finding for finding in self._kept.values() if finding.kernel == path]


def _paths(finding: Finding) -> set[str]:
    return {finding.kernel, finding.spec} | {item.span.path for item in finding.diagnostics if item.span}
