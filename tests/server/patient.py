"""The server as it is, but for how long it waits before it answers with what it has: that is for people at a screen.

Here a slow or busy machine shall change no answer. `bench.latency` measures how long the answers really take.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

WAITS = ("WAIT_S", "CHECK_WAIT_S", "UNTOLD_WAIT_S", "INCLUDES_S", "LIFT_S")
SECONDS = 120.0


def wait_longer() -> int:
    """Give the limits of all modules of the server the same long time; how many there were."""
    import server

    changed = 0
    for found in pkgutil.iter_modules(server.__path__):
        if found.name == "__main__":
            continue
        module = importlib.import_module(f"server.{found.name}")
        for name in WAITS:
            if hasattr(module, name):
                setattr(module, name, SECONDS)
                changed += 1
    return changed


if __name__ == "__main__":
    from server.__main__ import main

    assert wait_longer() > len(WAITS)
    sys.exit(main())
