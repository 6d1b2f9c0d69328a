"""The `cubridge` command: parse the line, hand over to one module per command.

Nothing heavy is imported here: torch and the reading of specs live in a worker process (see `job`).
Exit codes: 0 ok, 1 findings, 2 usage, 3 environment.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from .. import __version__

OK, FINDINGS, USAGE, ENVIRONMENT = 0, 1, 2, 3

# command -> (module, one line of help, formats)
COMMANDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "explain": ("explain", "say what a kernel computes and how, in words and as mathematics", ("text", "json", "md")),
    "diff": ("diff", "compare two kernels: what they compute, apart from how", ("text", "json")),
    "lift": ("lift", "show what a kernel does, as CuIR", ("text", "json")),
    "spec": ("spec", "show what a PyTorch spec means", ("text", "json", "sarif", "github")),
    "adapt": ("adapt", "change a kernel to mean a spec, and verify it", ("text", "json", "diff", "sarif", "github")),
    "verify": ("verify", "check any kernel against a spec", ("text", "json", "sarif", "github")),
    "check": ("check", "find what is wrong with a kernel, without a spec", ("text", "json", "sarif", "github")),
    "contract": ("contract", "find out how a kernel is called, and write its contract.toml", ("text", "json")),
    "export": ("export", "write a kernel as a PyTorch operator, in one Python file", ("text", "json")),
    "bench": ("bench", "measure a kernel against what else computes its spec, on a GPU", ("text", "json")),
    "eval": ("evaluate", "measure what rules do alone on a suite of tasks, and what a model adds", ("text", "json")),
    "doctor": ("doctor", "show what is installed, and how to install what is missing", ("text", "json")),
    "lsp": ("lsp", "start the language server on stdin and stdout", ()),
}


# sizes of a tile map -> words
TILES = {
    "Sq": "queries",
    "Sk": "keys",
    "Br": "rows of a tile",
    "Bc": "columns of a tile",
    "b": "batch",
    "h": "head",
}


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="cubridge",
        description="Adapt expert CUDA attention kernels to a PyTorch spec in small hunks, and verify the result.",
        epilog="exit codes: 0 ok, 1 findings (a refusal, a failed verification), 2 usage, 3 environment",
    )
    parser.add_argument("--version", action="version", version=f"cubridge {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, text, formats) in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if formats:
            sub.add_argument("--format", choices=formats, default="text", help="form of the output (default: text)")
        if name in ("explain", "check", "contract", "lift", "adapt", "verify", "export", "bench"):
            sub.add_argument("kernel", help="the .cu file")
        if name == "diff":
            sub.add_argument("a", help="the .cu file of the first kernel")
            sub.add_argument("b", help="the .cu file of the second kernel")
            sub.add_argument("--kernel-b", dest="b_kernel_name", metavar="NAME", help="which kernel of the second file")
        if name in ("spec", "adapt", "verify", "bench"):
            sub.add_argument("spec", help="the .py file with the attention function")
        if name in ("explain", "check", "diff", "lift", "adapt", "verify", "export", "bench"):
            _kernel_options(sub)
        if name in ("spec", "adapt", "verify", "bench"):
            sub.add_argument("--entry", default="attention", metavar="NAME", help="function or class of the spec")
            sub.add_argument("--outputs", metavar="LIST", help="numbers of the returned tensors that matter")
        if name in ("adapt", "verify"):
            _verify_options(sub)
        if name in ("explain", "check", "diff", "lift", "spec", "adapt", "verify", "export", "bench"):
            _limit_options(sub)
        if name == "explain":
            sub.add_argument("--watch", action="store_true", help="compile it and run it in the simulator too")
        if name == "verify":
            sub.add_argument("--watch", action="store_true", help="where reading ends, compile and run it alone")
        if name == "check":
            _check_options(sub)
        if name == "contract":
            _contract_options(sub)
            _limit_options(sub)
        if name == "export":
            _export_options(sub)
        if name == "bench":
            _bench_options(sub)
        if name == "adapt":
            sub.add_argument("-o", "--output", metavar="OUT.cu", help="write the adapted kernel there, or to a folder")
            sub.add_argument(
                "--drop-in", metavar="OUT.py", help="write the rest of a module there (default: beside OUT.cu)"
            )
            sub.add_argument("--force", action="store_true", help="overwrite OUT.cu; write a sketch too")
            sub.add_argument("--watch", action="store_true", help="where reading ends, run it to see where scores are")
            model_options(sub)
            sub.add_argument("--transcript", metavar="OUT.jsonl", help="write every question, reply and verdict there")
            sub.add_argument("--replay", metavar="IN.jsonl", help="take the replies from a transcript, offline")
        if name == "eval":
            _eval_options(sub)
        if name == "lsp":
            sub.add_argument("--tcp", metavar="HOST:PORT", help="listen on a socket instead")
        if name == "spec":
            _page_options(sub)
        if name in ("spec", "adapt", "verify"):
            sub.add_argument("--score-mod", metavar="NAME", help="the score_mod of a file that has several")
            sub.add_argument("--mask-mod", metavar="NAME", help="the mask_mod of a file that has several")
    return parser


def _contract_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--kernel", dest="kernel_name", metavar="NAME", help="which __global__ function of the file")
    sub.add_argument(
        "--set", dest="answers", action="append", default=[], metavar="NAME=ROLE",
        help="the role of a parameter, or grid=X,Y,Z, block=X,Y,Z, shared=BYTES, instance=NAME, dim=D",
    )  # fmt: skip
    sub.add_argument("--no-run", action="store_true", help="do not compile and call the file's own host code")
    sub.add_argument("--no-trial", action="store_true", help="do not try the call in the simulator")
    sub.add_argument("--again", action="store_true", help="find out although there is a contract.toml")
    sub.add_argument("--arch", metavar="NAME", help="architecture to compile for (default: sm_80)")
    sub.add_argument("--write", action="store_true", help="write contract.toml beside the kernel")
    sub.add_argument("--force", action="store_true", help="overwrite a contract.toml")


def _check_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--watch", action="store_true", help="execute the kernel in the simulator too")
    sub.add_argument("--expect", metavar="LIST", help="what it is to compute, such as causal,gqa,window=128,softcap=30")
    sub.add_argument("--spec", metavar="SPEC.py", help="the attention function that it is to compute")
    sub.add_argument("--entry", default="attention", metavar="NAME", help="function or class of the spec")
    sub.add_argument("--baseline", metavar="FILE", help="leave out the findings that this file knows")
    sub.add_argument("--write-baseline", metavar="FILE", help="write the findings as a baseline there")
    sub.add_argument("--arch", metavar="NAME", help="architecture to check for (default: the contract's)")


def _page_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--explain", action="store_true", help="show for each line of the spec what it became")
    sub.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    sub.add_argument("--tiles", metavar="OUT.svg", help="draw which tiles of the mask are empty, partial and full")
    for name, text in TILES.items():
        sub.add_argument(f"--{name.lower()}", dest=f"tile_{name}", type=int, metavar="N", help=f"{text} of the drawing")


def _kernel_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--kernel", dest="kernel_name", metavar="NAME", help="which __global__ function of the file")
    sub.add_argument("--head-dim", type=int, metavar="D", help="head dimension to read the kernel with")


def _verify_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--arch", metavar="LIST", help="architectures to compile for (default: sm_80,sm_90)")
    sub.add_argument(
        "--empty-rows",
        choices=("keep", "exact"),
        default="keep",
        help="rows without a key: keep the kernel's 0 where the spec gives NaN, or be exact",
    )
    sub.add_argument(
        "--set", dest="bindings", action="append", default=[], metavar="NAME=VALUE", help="value of a parameter"
    )
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="choose other random inputs")
    sub.add_argument("--no-gpu", action="store_true", help="do not use a GPU")
    sub.add_argument("--no-simulator", action="store_true", help="stop at level compiled where there is no GPU")


def _export_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--torch", "-o", dest="output", metavar="OUT.py", required=True, help="write the Python module there"
    )
    sub.add_argument("--name", metavar="NAME", help="name of the function and the operator (default: that of OUT.py)")
    sub.add_argument(
        "--set", dest="bindings", action="append", default=[], metavar="NAME=VALUE", help="fix a parameter's value"
    )
    sub.add_argument("--force", action="store_true", help="overwrite OUT.py")


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _bench_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--shape", metavar="LIST", help="sizes, such as B=4,H=32,S=4096,D=128 (S: Sq and Sk)")
    sub.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), help="of q, k and v (default: the spec's)")
    sub.add_argument("--rounds", type=_positive, default=30, metavar="N", help="launches of each (default: 30)")
    sub.add_argument(
        "--set", dest="bindings", action="append", default=[], metavar="NAME=VALUE", help="value of a parameter"
    )
    sub.add_argument("--out", metavar="OUT.json", help="write the result there too")
    sub.add_argument("--force", action="store_true", help="overwrite OUT.json")


def _eval_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("suite", nargs="?", default="default", help="a suite.toml, or 'default'")
    sub.add_argument("--k", type=int, default=1, metavar="K", help="the k of pass@k (default: 1)")
    sub.add_argument("--samples", type=int, default=1, metavar="N", help="independent tries at a task (default: 1)")
    sub.add_argument("--no-gpu", action="store_true", help="do not use a GPU")
    sub.add_argument("--no-simulator", action="store_true", help="stop at level compiled where there is no GPU")
    model_options(sub)
    _limit_options(sub)


def model_options(sub: argparse.ArgumentParser) -> None:
    """Options of the commands that can ask a model."""
    group = sub.add_argument_group("where the rules end", "A model is asked only when one is named here.")
    group.add_argument("--model", metavar="NAME", help="ask this model of an OpenAI-compatible endpoint")
    group.add_argument("--model-url", metavar="URL", help="its address (default: CUBRIDGE_MODEL_BASE_URL, else OpenAI)")
    group.add_argument("--rounds", type=int, default=4, metavar="N", help="attempts at each question (default: 4)")
    group.add_argument("--candidates", type=int, default=1, metavar="N", help="replies in each round (default: 1)")
    group.add_argument("--budget-tokens", type=int, default=200_000, metavar="N", help="tokens (default: 200000)")
    group.add_argument("--budget-seconds", type=float, default=600.0, metavar="S", help="seconds (default: 600)")
    group.add_argument("--budget-usd", type=float, metavar="X", help="US dollars, with --price")
    group.add_argument("--price", metavar="IN,OUT", help="US dollars for a million tokens asked and answered")


def _limit_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--time-limit", type=float, default=300.0, metavar="S", help="seconds for the whole job (default: 300)"
    )
    sub.add_argument("--memory", type=int, default=0, metavar="MB", help="memory for the job (default: no limit)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = build_parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    module = importlib.import_module(f".{COMMANDS[args.command][0]}", "cubridge_engine.cli")
    try:
        return int(module.run(args))
    except KeyboardInterrupt:
        print("cubridge: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`cubridge ... | head`): not an error worth a traceback.
        sys.stderr.close()
        return OK


if __name__ == "__main__":
    sys.exit(main())
