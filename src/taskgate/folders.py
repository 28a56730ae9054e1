"""Where this user's Taskgate keeps its files: the XDG base directories, with our own variables first.

Standard library only and cheap to import, because `taskgate stdio` is started by every client and must not load the gateway to find
it. Configuration, command line and gateway use the same functions.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping

STATE_VARIABLE = "TASKGATE_STATE_DIR"
CONFIG_VARIABLE = "TASKGATE_CONFIG"
FOUND_NAME = "taskgate.yaml"
"""The file that is used in a working folder without being named. What a client starts uses it after `taskgate allow` only."""
SOCKET_PATH_BYTES = 100
"""Linux takes 107 bytes for the path of a Unix socket, macOS and the BSDs 103."""


def home(environment: Mapping[str, str]) -> str:
    """The home directory according to the given environment."""
    return environment.get("HOME") or os.path.expanduser("~")


def _base(environment: Mapping[str, str], variable: str, *default: str) -> str:
    """Return a base directory. Relative ones are ignored, as the XDG specification requires."""
    given = environment.get(variable, "")
    return given if os.path.isabs(given) else os.path.join(home(environment), *default)


def state_folder(environment: Mapping[str, str]) -> str:
    """`$TASKGATE_STATE_DIR`, else `taskgate` in `$XDG_STATE_HOME`, else `~/.local/state/taskgate`."""
    given = environment.get(STATE_VARIABLE)
    if given:
        return os.path.abspath(os.path.expanduser(given))
    return os.path.join(_base(environment, "XDG_STATE_HOME", ".local", "state"), "taskgate")


def user_config(environment: Mapping[str, str]) -> str:
    """The user's own file: `taskgate/taskgate.yaml` in `$XDG_CONFIG_HOME`, else in `~/.config`."""
    return os.path.join(_base(environment, "XDG_CONFIG_HOME", ".config"), "taskgate", "taskgate.yaml")


def find_config(explicit: str | None, environment: Mapping[str, str]) -> str | None:
    """The file to use: the explicit one, `$TASKGATE_CONFIG`, `./taskgate.yaml`, the user's own, or none.

    For commands that a person types; `consent.file_for_client` finds the file for what a client starts. A file that was named is
    returned even if it is missing, so that loading it raises a clear error.
    """
    named = explicit or environment.get(CONFIG_VARIABLE)
    if named:
        return os.path.expanduser(named)
    for path in (FOUND_NAME, user_config(environment)):
        if os.path.exists(path):
            return path
    return None


def gateway_key(state: str, config: str | None) -> str:
    """Return the key of a local gateway: there is one for each state folder and configuration file."""
    file = os.path.realpath(config) if config is not None else ""
    return hashlib.sha256(f"{os.path.realpath(state)}\0{file}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


def local_gateways_folder(state: str) -> str:
    """Return the folder in which the gateways of a state folder publish their addresses; create it if needed. It depends only on
    the state folder: clients start bridges with different environments, and all must find the same gateway.

    Raises OSError if the folder belongs to another user or is accessible to others: they could impersonate the gateway.
    """
    os.makedirs(state, mode=0o700, exist_ok=True)
    return _private(os.path.join(state, "run"))


def socket_folder(environment: Mapping[str, str], state: str) -> str:
    """Return the folder for a gateway's socket; create it if needed: `$XDG_RUNTIME_DIR/taskgate`; without that the folder
    of the addresses; where that path is too long for a socket, a folder of this user's among the temporary files."""
    given = environment.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given) and _fits(os.path.join(given, "taskgate")) and _is_private(given):
        return _private(os.path.join(given, "taskgate"))
    if _fits(os.path.join(state, "run")):
        return local_gateways_folder(state)
    return _private(os.path.join("/tmp", f"taskgate-{os.getuid()}"))


def _fits(folder: str) -> bool:
    return len(os.fsencode(os.path.join(folder, "0123456789abcdef.sock"))) <= SOCKET_PATH_BYTES


def _is_private(folder: str) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _private(folder: str) -> str:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not _is_private(folder):
            raise PermissionError(
                13, f"{folder} must be a folder that belongs to you and is not accessible to others (chmod 700)"
            ) from None
    return folder
