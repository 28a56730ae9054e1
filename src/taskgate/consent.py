"""What this user has allowed of configuration files to which only a working folder leads.

A client starts `taskgate stdio` in the folder that is open in it. A `taskgate.yaml` there may come from anyone, so what it starts,
contacts and reads is used only after `taskgate allow`. A file that was named (`-c`, `$TASKGATE_CONFIG`) and the user's own file
need no record here. `config.leaving` computes what is bound; the records hold digests of it.

Standard library only and cheap to import, because the bridge of every client on stdio uses it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from taskgate import operating_system
from taskgate.atomic_files import replace_file
from taskgate.folders import CONFIG_VARIABLE, FOUND_NAME, STATE_VARIABLE, find_config, state_folder, user_config

_OTHERS_MAY_WRITE = 0o022


class NotAllowedHere(Exception):
    """Only the working folder leads to the file, and the user has not allowed it."""


class ClientFile(NamedTuple):
    """The configuration that a program uses which a client started."""

    path: str | None
    is_found: bool = False
    """Whether only the working folder led to it: it is used within the user's consent."""
    note: str = ""
    """What the person who reads the client's log should know."""


def place_of(path: str) -> str:
    """Return the name by which a file is recorded: links in its folder are resolved, the file itself may be a link.

    Relative paths in a file start at the folder of the link, so consent to its target says nothing about it.
    """
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def file_for_client(explicit: str | None, environment: Mapping[str, str]) -> ClientFile:
    """Return the file to use, as `find_config` does, but without one that only the working folder leads to and that is not
    allowed. Raises NotAllowedHere if there is no other, and OSError."""
    found = find_config(explicit, environment)
    if found is None or not is_found_by_folder(found, explicit, environment):
        return ClientFile(found)
    is_of_folder = not os.path.isabs(os.path.expanduser(environment.get(STATE_VARIABLE) or os.sep))
    if not is_of_folder and Allowed(state_folder(environment)).digests(found) is not None:
        return ClientFile(found, is_found=True)
    why = f"{os.path.abspath(found)} is not used, because you have not allowed what it starts and contacts"
    if is_of_folder:  # the records of consent could come with the file
        why = f"{os.path.abspath(found)} is not used, because {STATE_VARIABLE} is not an absolute path"
    command = f"taskgate allow {shlex.quote(os.path.abspath(found))}"
    own = user_config(environment)
    if not os.path.exists(own):
        raise NotAllowedHere(f"{why}. Read the file, then run: {command}")
    return ClientFile(own, note=f"{why} ({command}). Using {own}.")


def is_found_by_folder(path: str, explicit: str | None, environment: Mapping[str, str]) -> bool:
    """Whether nothing but the working folder leads to the file that `find_config` returned."""
    named = explicit or environment.get(CONFIG_VARIABLE)
    return not named and path == FOUND_NAME and place_of(path) != place_of(user_config(environment))


class Allowed:
    """The records of one state folder, in a file that only its user can change."""

    def __init__(self, state: str) -> None:
        self._folder = os.path.join(state, "consent")
        self.path = os.path.join(self._folder, "allowed.json")

    def files(self) -> dict[str, dict[str, Any]]:
        """Return the records by file. Raises OSError if another user can change them; an unreadable file has none."""
        try:
            with open(self.path, encoding="utf-8") as file:
                found = os.fstat(file.fileno())
                if found.st_uid != operating_system.own_user() or found.st_mode & _OTHERS_MAY_WRITE:
                    raise PermissionError(
                        13, f"{self.path} must belong to you and not be writable by others (chmod 600)"
                    )
                value = json.load(file)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        files = value.get("files") if isinstance(value, dict) else None
        return {name: record for name, record in files.items() if _is_record(record)} if isinstance(files, dict) else {}

    def digests(self, path: str) -> frozenset[str] | None:
        """Return what is allowed of a file; None if the file is not allowed at all."""
        record = self.files().get(place_of(path))
        return None if record is None else frozenset(record["digests"])

    def allow(self, path: str, digests: frozenset[str], now: float) -> None:
        """Record exactly these digests for a file."""
        with self._changed() as files:
            files[place_of(path)] = {"digests": sorted(digests), "at": now}

    def add(self, path: str, digests: frozenset[str], now: float) -> None:
        """Record further digests for a file."""
        with self._changed() as files:
            known = files.get(place_of(path), {}).get("digests", ())
            files[place_of(path)] = {"digests": sorted(digests.union(known)), "at": now}

    def revoke(self, path: str) -> bool:
        """Remove the record of a file. Return whether there was one."""
        with self._changed() as files:
            return files.pop(place_of(path), None) is not None

    @contextmanager
    def _changed(self) -> Iterator[dict[str, dict[str, Any]]]:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        descriptor = os.open(os.path.join(self._folder, "lock"), operating_system.PRIVATE_FILE_FLAGS, 0o600)
        try:
            operating_system.lock(descriptor, wait=True)
            files = self.files()
            yield files
            replace_file(self.path, json.dumps({"version": 1, "files": files}, indent=1).encode(), 0o600)
        finally:
            os.close(descriptor)


def _is_record(record: object) -> bool:
    return isinstance(record, dict) and isinstance(record.get("digests"), list)


class Consent:
    """The consent within which one file is used. The records are read each time, so that a reload finds changes of them."""

    def __init__(self, state: str, path: str) -> None:
        self._allowed = Allowed(state)
        self._path = path
        self.watch = self._allowed.path
        self.command = f"taskgate allow {shlex.quote(os.path.abspath(path))}"

    def checker(self) -> Callable[[str], bool]:
        """Return a function that tells whether something with this digest is allowed."""
        return (self._allowed.digests(self._path) or frozenset()).__contains__
