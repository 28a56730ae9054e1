"""A configured server, independent of its transport and generation."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from taskgate.core.generations.generation import Generation
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import Link, LinkKey
from taskgate.ports.upstream_call import SendLog


class ServerState(Enum):
    IDLE = "idle"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    DEGRADED = "degraded"
    RECONNECTING = "reconnecting"
    STOPPED = "stopped"


class ServerStatus(msgspec.Struct, frozen=True):
    state: ServerState
    generations: tuple[Generation, ...] = ()
    """The generations that the server is known to support: of a server that supports both, only those needed so far."""
    reconnect_attempt: int = 0
    next_retry_ms: int | None = None
    last_error: str | None = None
    stderr: tuple[str, ...] = ()
    printed: str = ""
    """The first line that a stdio server wrote to stdout and that is not a message."""


class Upstream(Protocol):
    """One configured server."""

    @property
    def id(self) -> str: ...

    @property
    def transport(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Changes when the configuration refers to another server; contains no secret."""
        ...

    async def listening_link(self) -> Link:
        """Return the link that fetches lists and receives `list_changed`."""
        ...

    async def link(self, caller: LinkKey, profile: ClientProfile) -> Link: ...

    def common_link(self, generation: Generation) -> Link | None:
        """Return the open link that serves every caller of this generation, if the server needs only one."""
        ...

    def mark_long_lived(self, sent_as: SendLog) -> None:
        """The call with this send log has become a task: its connection no longer counts as a plain call's."""
        ...

    def open_link(self, caller: LinkKey) -> Link | None:
        """Return the caller's link if it is open."""
        ...

    async def watch(self, uri: str, caller: LinkKey) -> None:
        """Subscribe to a resource for callers that cannot subscribe themselves; shared and reference-counted."""
        ...

    async def unwatch(self, uri: str, caller: LinkKey) -> None: ...

    def separate_conversations(self) -> bool:
        """Give new conversations their own link from now on. False if the configuration decides, or if they have one."""
        ...

    async def end_idle(self) -> None:
        """Close links of single conversations that have been idle for long. Called periodically."""
        ...

    async def release(self, session: str) -> None:
        """A caller's session ended: close what was open for it alone."""
        ...

    async def reconnect(self) -> None:
        """Connect now, regardless of the back-off. Raises if the server does not answer."""
        ...

    def status(self) -> ServerStatus: ...

    def stderr(self, caller: LinkKey) -> tuple[str, ...]:
        """Return the last lines that this caller's own process wrote, if it has one."""
        ...

    async def close(self) -> None: ...
