"""Log in with the browser (`--login`), and keep the logins in a file that only its owner can read."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from taskgate.atomic_files import replace_file
from taskgate.cli.printing import note


class LoginFile(dict[str, Any]):
    """Logins by server; every change is written at once, in one step, to a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(self._read())

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}

    def __setitem__(self, server: str, login: Any) -> None:
        """Another command may have added a login since this one read the file: it is read again under a lock."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.update(self._read())
            super().__setitem__(server, login)
            replace_file(self._path, json.dumps(self).encode())


def show_in_browser(address: str) -> None:
    """Open a page; the address is shown too, for machines without a browser.

    In a thread: some browsers are not left before their user is done, and the page comes back to this very process.
    """
    import threading
    import webbrowser

    note(f"Log in to go on. If no browser opens, visit:\n  {address}")
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def browser_auth() -> Any:
    """Log in with the user's browser."""
    from taskgate.client.oauth import browser_login

    folder = Path(os.environ.get("TASKGATE_STATE_DIR") or "~/.local/state/taskgate").expanduser()
    return browser_login(show=show_in_browser, storage=LoginFile(folder / "logins.json"), client_name="taskgate")
