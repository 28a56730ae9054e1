"""The stateful generation (2025-11-25 and earlier): the handshake, and which revisions have tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import NEWEST_STATEFUL, OLD_STDIO_REVISION, STATEFUL_REVISIONS


class InitializeParams(msgspec.Struct, frozen=True):
    """What a caller declares in `initialize`."""

    version: str
    capabilities: Mapping[str, Any]
    client_info: Mapping[str, Any]


def read_initialize(params: Any, old_stdio: bool = False) -> InitializeParams:
    """Check `initialize` and select a revision: the requested one if it is supported, else the newest (lifecycle)."""
    if type(params) is not dict or type(params.get("protocolVersion")) is not str:
        raise CallerError("invalid_params", 'initialize needs "protocolVersion", "capabilities" and "clientInfo".')
    requested = params["protocolVersion"]
    known = (*STATEFUL_REVISIONS, OLD_STDIO_REVISION) if old_stdio else STATEFUL_REVISIONS
    capabilities, info = params.get("capabilities"), params.get("clientInfo")
    return InitializeParams(
        requested if requested in known else NEWEST_STATEFUL,
        capabilities if type(capabilities) is dict else {},
        info if type(info) is dict else {},
    )


def supports_tasks(version: str) -> bool:
    """Whether the revision has tasks, URL elicitation and sampling tools: only the newest of this generation does."""
    return version == NEWEST_STATEFUL


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Whether the caller declared any `tasks` capability."""
    return isinstance(capabilities.get("tasks"), Mapping)
