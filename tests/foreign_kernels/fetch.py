"""Run by itself: ``python fetch.py NAME FILE FOLDER`` lays a file of a package into FOLDER; the interpreter has pip.

``pip download`` would run the setup.py of an sdist, which imports torch and looks for a GPU; pip's own finder and
session only look the file up and fetch it, with the user's settings.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pip._internal.commands import create_command


def main(name: str, file: str, folder: Path) -> int:
    """Returns 1, with a line on stderr, when the index has no such file."""
    command = create_command("download")
    with command.main_context():
        options, _ = command.parse_args(["--retries", "1"])
        session = command.get_default_session(options)  # type: ignore[attr-defined]
        finder = command._build_package_finder(options, session)  # type: ignore[attr-defined]
        links = [c.link for c in finder.find_all_candidates(name) if c.link.filename == file]
        if not links:
            print(f"the index has no file {file} of {name}", file=sys.stderr)
            return 1
        answer = session.get(links[0].url_without_fragment, timeout=60)
        answer.raise_for_status()
        (folder / file).write_bytes(answer.content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
