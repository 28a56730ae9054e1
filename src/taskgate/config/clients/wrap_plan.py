"""Compute the changes for one run of an agent behind the gateway.

The agent's servers go into a temporary configuration: a copy of the user's file with them added, in the same folder so
that relative paths stay valid, or a separate file when the user has none.
"""

from __future__ import annotations

from pathlib import Path

from taskgate.config.clients.client import Client, Gateway, Host
from taskgate.config.clients.found_servers import Gathered, read_settings
from taskgate.config.clients.gateway_command import gateway_command
from taskgate.config.clients.import_plan import plan_import
from taskgate.config.clients.install_plan import FileChange, plan_takeover


class NothingToWrap(Exception):
    """Neither the client nor the configuration has a server."""


def plan_wrap(client: Client, host: Host, gathered: Gathered, config: Path | None, folder: Path) -> list[FileChange]:
    """Return the changes for one run of an agent with the servers that were found in its settings. `folder` is for the temporary
    configuration if the user has none."""
    before = read_settings(config) if config else ""
    plan = plan_import(gathered.found, before, str(config or "taskgate.yaml"))
    temporary = (config.absolute().parent if config else folder) / f".taskgate-wrap-{client.name}.yaml"
    changes = plan_takeover(client, host, Gateway(gateway_command(temporary if plan.added else config)))
    if plan.added:
        return [FileChange(path=temporary, before="", after=plan.after, existed=False, places=()), *changes]
    if config is None:
        raise NothingToWrap(
            f"{client.title} has no servers, and no taskgate.yaml was found; add a server to one of them"
        )
    return changes
