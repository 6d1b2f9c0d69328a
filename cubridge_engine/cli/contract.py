"""`cubridge contract KERNEL`: how is this kernel called, and where is that known from?"""

from __future__ import annotations

import argparse

from ..bind.model import SOURCES
from ..results import Bound, QuestionResult
from . import codes as codes
from .arguments import BadArgument, job_params
from .job import JobFailed, run_job
from .output import diagnostics_of, print_diagnostics, print_json
from .render import console

_MOST_ASKED = 4
_SHORTER = "a kernel with so many is called by its launcher; name the file that has the launch, or write contract.toml."


def run(args: argparse.Namespace) -> int:
    """0 known as a whole, 1 something is open or wrong, 2 usage, 3 environment."""
    try:
        params = job_params(args)
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    archs = params.pop("archs", None)
    params.pop("spec_time_limit", None)
    params |= {
        "answers": dict(_pair(text) for text in args.answers),
        "record": not args.no_run,
        "trial": not args.no_trial,
        "again": args.again,
        "write": args.write,
        "force": args.force,
        # The rest is for what comes after the search.
        "seconds": max(args.time_limit * 0.8, 1.0),
        **({"arch": archs[0]} if archs else {}),
    }
    try:
        result = Bound.model_validate(run_job("contract", params, args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    if args.format == "json":
        print_json(result)
    else:
        _show(result)
    return result.exit_code


def _pair(text: str) -> tuple[str, str]:
    """``NAME=VALUE``; a text without one is an answer to nothing, which binding says."""
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def _show(result: Bound) -> None:
    out = console()
    rows = [(f.what, f.value, _where(f.source, f.where)) for f in result.facts]
    widths = [max((len(row[n]) for row in rows), default=0) for n in range(2)]
    for what, value, where in rows:
        out.print(f"{what:<{widths[0]}}  {value:<{min(widths[1], 44)}}  {where}".rstrip(), markup=False, soft_wrap=True)
    if result.tried:
        out.print(f"tried: {result.tried}", markup=False)
    for question in result.questions[:_MOST_ASKED]:
        out.print(_asked(question), markup=False, soft_wrap=True)
    if (more := len(result.questions) - _MOST_ASKED) > 0:
        out.print(f"? and {more} more, as --format json lists them: {_SHORTER}", markup=False, soft_wrap=True)
    out.file.flush()
    print_diagnostics(diagnostics_of(result))
    if result.written is not None:
        out.print(f"written: {result.written}", markup=False)
    elif result.contract is not None and not result.exists:
        out.print("Pass --write to keep it as contract.toml beside the kernel.", markup=False)


def _where(source: str, where: str) -> str:
    return where if source in ("contract", "launch", "recorded", "comment") else f"{SOURCES[source]}: {where}"


def _asked(question: QuestionResult) -> str:
    key = question.subject or question.what
    if question.what == "kernel":
        return f"? {question.text}\n" + "\n".join(f"  --kernel {name}" for name in question.candidates)
    choices = f" ({', '.join(question.candidates)})" if question.candidates else ""
    return f"? {question.text}{choices}\n  answer with --set {key}=..."
