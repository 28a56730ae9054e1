"""The pages of the console: titles, JSON routes with the same data, and topics of live updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from taskgate.core.identity.access import Access


@dataclass(frozen=True, slots=True)
class About:
    """One page of the console: its name, who may open it, where scripts read the same, and the command that prints it."""

    title: str
    path: str
    access: Access
    api: str
    topics: tuple[str, ...] = ()
    """Page content that changes; an update of one of these topics makes an open page fetch itself again."""
    in_menu: bool = True


ABOUT: Final[Mapping[str, About]] = {
    "now": About("Now", "/now", Access.LOGIN, "/api/v1/now", ("tasks", "inbox", "servers")),
    "tasks": About("Tasks", "/tasks", Access.LOGIN, "/api/v1/tasks", ("tasks",)),
    "inbox": About("Inbox", "/inbox", Access.LOGIN, "/api/v1/inbox", ("inbox", "tasks")),
    "servers": About("Servers", "/servers", Access.SEE, "/api/v1/servers", ("servers",)),
    "scopes": About("Scopes", "/scopes", Access.ACT, "/api/v1/scopes", ("scopes",)),
    "rules": About("Rules", "/rules", Access.SEE, "/api/v1/rules"),
    "usage": About("Usage", "/usage", Access.LOGIN, "/api/v1/usage"),
    "waterfall": About("Waterfall", "/waterfall", Access.SEE, "/api/v1/waterfall"),
    "audit": About("Audit", "/audit", Access.SEE, "/api/v1/audit"),
    "system": About("System", "/system", Access.SEE, "/api/v1/system"),
    "try": About("Try", "/try", Access.LOGIN, "/api/v1/tools"),
    "approvals": About("Approvals", "/approvals", Access.SEE, "/api/v1/approvals", ("inbox",), False),
    "grants": About("Grants", "/grants", Access.SEE, "/api/v1/grants", (), False),
    "definitions": About("Definitions", "/definitions", Access.SEE, "/api/v1/pins", ("definitions",), False),
}
