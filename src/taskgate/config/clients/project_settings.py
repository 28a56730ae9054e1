"""What leaves a client's settings file in a project, for the user who allows it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from taskgate.config.clients.client import Client, Host, Reach
from taskgate.config.clients.found_servers import gather, shared_files
from taskgate.config.leaving import Leaving


def leaving_of_settings(path: Path, clients: Iterable[Client]) -> list[Leaving] | None:
    """Return what leaves the servers of a settings file; None if it is not one of a project."""
    file, known = path.absolute(), list(clients)
    for folder in (file.parent, file.parent.parent):
        host = replace(Host.here(), folder=folder)
        if file in shared_files(known, host):
            found = [item for item in gather(known, host, Reach.SHARED).found if item.path == file]
            return [thing for item in found for thing in item.leaving(folder)]
    return None
