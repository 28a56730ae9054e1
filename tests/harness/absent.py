"""Which optional peers this machine lacks, and why: read by the tests and told at the end of every run.

`tools/peers.py` installs them and records what it could not. A test that needs an absent peer is left out of the run
by `tests/conftest.py`, and the run ends by naming the peer, the reason and the number of tests: never a silent skip.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent.parent / ".peers"
KNOWN = ("mcp130", "mcp23", "fastmcp", "ts1", "ts2", "conformance", "everything", "inspector", "browser")
BROWSER = ("chromium", "chromedriver")


def reason_for(name: str) -> str | None:
    """Why this peer is not here, or None when it is."""
    if name == "browser":
        missing = [program for program in BROWSER if shutil.which(program) is None]
        return (
            f"{' and '.join(missing)} not installed; Debian: apt-get install chromium chromium-driver"
            if missing
            else None
        )
    if (HOME / name / ".installed").exists():
        return None
    return recorded().get(name, "not installed; run `python tools/peers.py`")


def recorded() -> dict[str, str]:
    try:
        reasons: dict[str, str] = json.loads((HOME / "absent.json").read_text())
    except (OSError, ValueError):
        return {}
    return reasons


def all_absent() -> dict[str, str]:
    return {name: reason for name in KNOWN if (reason := reason_for(name)) is not None}
