"""``cubridge-lsp``: serve over stdin and stdout (the default), or over TCP for a debugger or a container."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import BinaryIO

from cubridge_engine import __version__

LEVELS = ("debug", "info", "warning", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until the client says ``exit``. Returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="cubridge-lsp", description="The CuBridge language server.")
    parser.add_argument("--stdio", action="store_true", help="talk over stdin and stdout (the default)")
    parser.add_argument(
        "--tcp",
        nargs="?",
        const="127.0.0.1:8731",
        type=_address,
        metavar="[HOST:]PORT",
        help="listen on a TCP port instead (default: 127.0.0.1:8731)",
    )
    parser.add_argument("--log-level", choices=LEVELS, default="warning", help="what goes to stderr")
    parser.add_argument("--version", action="version", version=f"cubridge-lsp {__version__}")
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=options.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    # pygls logs every message it sends at INFO, with whole documents in it: only for those who ask for everything.
    logging.getLogger("pygls").setLevel(logging.DEBUG if options.log_level == "debug" else logging.ERROR)

    # Reading is Python in a thread: the event loop shall get its turn sooner than after the usual 5 ms.
    sys.setswitchinterval(0.001)
    from .app import create_server  # after the arguments: --help and --version answer at once

    server = create_server()
    if options.tcp:
        server.start_tcp(*options.tcp)
    else:
        server.start_io(sys.stdin.buffer, _protocol_stdout())
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not [HOST:]PORT")
    return host or "127.0.0.1", int(port)


def _protocol_stdout() -> BinaryIO:
    """The real stdout, for the protocol alone; whatever else prints (a library, a debug line) lands on stderr."""
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return protocol


if __name__ == "__main__":
    sys.exit(main())
