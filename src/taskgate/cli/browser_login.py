"""Log in with the browser (`--login`), and keep the logins in a file that only its owner can read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from taskgate import operating_system
from taskgate.atomic_files import replace_file
from taskgate.cli.printing import note


class LoginFile(dict[str, Any]):
    """Logins by server. Every change is written atomically to a file that only its owner can read."""

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
        """Add a login. The file is read again under a lock, because another command may have changed it."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path.with_suffix(".lock").open("a") as lock:
            operating_system.lock(lock.fileno(), wait=True)
            self.update(self._read())
            super().__setitem__(server, login)
            replace_file(self._path, json.dumps(self).encode())


def show_in_browser(address: str) -> None:
    """Open a page, and print its address for machines without a browser.

    In a thread, because some browsers block until they are closed, and the redirect comes to this process.
    """
    import threading
    import webbrowser

    note(f"Log in to continue. If no browser opens, visit:\n  {address}")
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def browser_auth() -> Any:
    """Return an OAuth login that uses the user's browser and stores its tokens."""
    from taskgate.client.oauth import browser_login

    folder = Path(os.environ.get("TASKGATE_STATE_DIR") or "~/.local/state/taskgate").expanduser()
    return browser_login(show=show_in_browser, storage=LoginFile(folder / "logins.json"), client_name="taskgate")
