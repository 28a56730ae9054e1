"""Start a gateway that refuses late calls even while other programs use the CPU: the control of `little_cpu.py`."""

from __future__ import annotations

from taskgate.cli.main import main
from taskgate.core import lateness

if __name__ == "__main__":
    lateness.BUSY_SHARE = -1.0  # type: ignore[misc]
    main()
