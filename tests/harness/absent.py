"""Which optional peers this machine lacks, and why: read by the tests and reported at the end of every run.

`tools/peers.py` installs them and records what it could not. A test that needs an absent peer is skipped by
`tests/conftest.py`, and the run ends with a report of the peer, the reason and the number of tests.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent.parent / ".peers"
KNOWN = (
    "mcp130",
    "mcp23",
    "fastmcp",
    "ts1",
    "ts2",
    "conformance",
    "oidc",
    "axe",
    "everything",
    "inspector",
    "apps",
    "browser",
    "keyring",
    "deployment",
    "official23",
    "official-ts2",
    "servers-python",
    "servers-npm",
    "haproxy",
    "nginx",
    "systemd-analyze",
    "promtool",
    "kubectl",
)
PROGRAMS = {
    "haproxy": "haproxy",
    "nginx": "nginx",
    "systemd-analyze": "systemd",
    "promtool": "prometheus",
    "kubectl": "kubernetes-client",
}
"""Programs of the system that example files are tried with, and Debian's names of their packages."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVERS = ("chromedriver", "chromium.chromedriver", "/usr/lib/chromium/chromedriver")
PLAYWRIGHT = ("chromium-*/chrome-linux*/chrome", "chromium_headless_shell-*/chrome-linux*/headless_shell")
GET_BROWSER = (
    "Debian: apt-get install chromium chromium-driver; elsewhere: a Chromium and the chromedriver of its version"
)


def find_browser() -> str | None:
    """Debian's Chromium, Chrome, or the newest one that Playwright has fetched."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is not None:
        return found
    kept = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    fetched = [str(path) for pattern in PLAYWRIGHT for path in sorted(kept.glob(pattern), reverse=True)]
    return fetched[0] if fetched else None


def find_driver() -> str | None:
    """The driver program, under any of its names."""
    return next((path for name in DRIVERS if (path := shutil.which(name))), None)


def find_program(name: str) -> str | None:
    """Debian installs servers in folders that are only in the superuser's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def _browser_reason() -> str | None:
    there = {"a Chromium": find_browser(), "its chromedriver": find_driver()}
    missing = [what for what, path in there.items() if path is None]
    return f"{' and '.join(missing)} not installed; {GET_BROWSER}" if missing else None


def reason_for(name: str) -> str | None:
    """Why this peer is absent, or None if it is installed."""
    if name == "browser":
        return _browser_reason()
    if name in PROGRAMS:
        return None if find_program(name) else f"not installed; Debian: apt-get install {PROGRAMS[name]}"
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
