"""Find this user's running gateways, and the operator token, in the state folder."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from taskgate.bridge.gateway_files import read_record
from taskgate.cli.found_file import say_found_file
from taskgate.folders import find_config, gateway_key, state_folder

DEFAULT_GATEWAY = "http://127.0.0.1:7467"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class SeveralGateways(Exception):
    """Several gateways are running, and no option selects one."""


def running_gateways() -> list[dict[str, Any]]:
    """Return the records of this state folder's running gateways, without their keys; crashed ones are omitted."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(state_folder(os.environ)), "run", "*.json"))):
        record = read_record(path)
        if record is not None and _alive(record.get("pid")):
            kept = {name: value for name, value in record.items() if name != "key"}
            found.append({**kept, "log": path.removesuffix(".json") + ".log"})
    return found


def default_gateway() -> str:
    """Return the gateway that commands use by default: the one for the configuration found here, or the only one."""
    running = running_gateways()
    config = find_config(None, os.environ)
    own = gateway_key(state_folder(os.environ), config)
    for record in running:
        if os.path.basename(record["log"]) == f"{own}.log":
            say_found_file(config)
            return str(record["url"])
    if len(running) > 1:
        known = ", ".join(f"{record['url']} ({record['config'] or 'demo'})" for record in running)
        raise SeveralGateways(f"Several gateways are running: {known}. Select one with --gateway or $TASKGATE_URL.")
    return str(running[0]["url"]) if running else DEFAULT_GATEWAY


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def operator_token(host: str | None) -> str | None:
    """Return the operator's token from the state folder, for loopback hosts only."""
    if host not in _LOOPBACK:
        return None
    try:
        return (Path(state_folder(os.environ)) / "operator-token").read_text().strip() or None
    except OSError:
        return None
