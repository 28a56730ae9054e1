"""Keeps the logins of `--login` between runs, in a file that only its owner can read."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from taskgate.cli.say import note


class LoginFile(dict[str, Any]):
    """Logins by server; every change is written at once, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            kept = json.loads(path.read_text())
        except (OSError, ValueError):
            kept = {}
        super().__init__(kept if isinstance(kept, dict) else {})

    def __setitem__(self, server: str, login: Any) -> None:
        super().__setitem__(server, login)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self._path.parent)  # readable by its owner only
        with os.fdopen(handle, "w") as file:
            json.dump(self, file)
        Path(name).replace(self._path)


def browser_auth() -> Any:
    """Log in with the user's browser; the address is shown too, for machines without one."""
    import webbrowser

    from taskgate.client.oauth import browser_login

    def show(address: str) -> None:
        note(f"Log in to go on. If no browser opens, visit:\n  {address}")
        webbrowser.open(address)

    folder = Path(os.environ.get("TASKGATE_STATE_DIR") or "~/.local/state/taskgate").expanduser()
    return browser_login(show=show, storage=LoginFile(folder / "logins.json"), client_name="taskgate")
