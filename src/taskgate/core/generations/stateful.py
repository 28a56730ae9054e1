"""The stateful generation (2025-11-25 and earlier): the handshake, and which revisions have tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import NEWEST_STATEFUL, OLD_STDIO_REVISION, STATEFUL_REVISIONS

# The 2025-11-25 generation and its elders: the handshake, and which methods a session may use.
#
# Pure translation only; sessions themselves live in the gateway.


@dataclass(frozen=True, slots=True)
class Opening:
    """What a caller says of itself in `initialize`."""

    version: str
    capabilities: Mapping[str, Any]
    client_info: Mapping[str, Any]


def read_opening(params: Any, old_stdio: bool = False) -> Opening:
    """Check `initialize` and settle on a revision: the asked one if we speak it, else our newest (lifecycle)."""
    if type(params) is not dict or type(params.get("protocolVersion")) is not str:
        raise CallerError("invalid_params", 'initialize needs "protocolVersion", "capabilities" and "clientInfo".')
    asked = params["protocolVersion"]
    known = (*STATEFUL_REVISIONS, OLD_STDIO_REVISION) if old_stdio else STATEFUL_REVISIONS
    capabilities, info = params.get("capabilities"), params.get("clientInfo")
    return Opening(
        asked if asked in known else NEWEST_STATEFUL,
        capabilities if type(capabilities) is dict else {},
        info if type(info) is dict else {},
    )


def speaks_tasks(version: str) -> bool:
    """Tasks, URL elicitation and sampling tools exist only in the newest revision of this generation."""
    return version == NEWEST_STATEFUL


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    """A caller is task-aware when it declared any `tasks` capability."""
    return isinstance(capabilities.get("tasks"), Mapping)
