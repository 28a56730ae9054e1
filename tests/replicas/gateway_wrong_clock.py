"""Runs `taskgate ARGUMENTS...` on a machine whose clock is five hours ahead."""

from __future__ import annotations

import time

from taskgate import clock
from taskgate.cli.main import main

if __name__ == "__main__":
    clock.install(time.monotonic, lambda: time.time() + 5 * 3600)
    main()
