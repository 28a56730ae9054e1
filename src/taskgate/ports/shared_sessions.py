"""Sessions of stateful callers that gateways of one store share.

The *home* of a session is the gateway that has its live state: upstream links, streams, requests in flight. Other gateways
forward to a home that is alive; the session of a dead one is adopted by one gateway only. The body is opaque to the store.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec


class KeptSession(msgspec.Struct, frozen=True):
    """A session as stored. `moves` counts the changes of its home."""

    id: str
    principal: str
    scope: str
    home: str
    moves: int
    body: bytes
    internal: str | None = None
    """The address at which other gateways reach the home; None if it has no lease (any more)."""


CONVERSATION: Final = "conversation "
"""Prefix of the ids of rows that store the home of a stateless client's conversation, before the name of its stream."""


class SessionLimits(NamedTuple):
    """How many sessions one caller, known to limits as `limited_as`, and all callers of its tenant may have at all gateways."""

    limited_as: str
    of_caller: int
    of_tenant: int | None


class TooManySessions(StrEnum):
    """Which limit is reached."""

    OF_CALLER = "caller"
    OF_TENANT = "tenant"


class SessionStore(Protocol):
    @property
    def is_fresh(self) -> bool:
        """Whether the lease of this gateway is certainly valid, so that no other gateway can adopt its sessions."""
        ...

    @property
    def unbroken_since(self) -> float:
        """Since when the lease was renewed without a gap. It changes if the lease may have expired in between."""
        ...

    @property
    def owner(self) -> str:
        """The name of this gateway."""
        ...

    @property
    def may_declare_dead(self) -> bool:
        """Whether the leases of others have been read long enough to know which of them are alive."""
        ...

    def is_alive(self, owner: str) -> bool:
        """Return whether another gateway's lease is valid. A gateway whose lease is not known counts as alive."""
        ...

    def address_of(self, owner: str) -> str:
        """Return the internal address of a gateway that has a lease; empty if it has none."""
        ...

    def now_ms(self) -> int:
        """The database's clock, which all gateways share."""
        ...

    async def open_session(self, session: KeptSession, limits: SessionLimits) -> TooManySessions | None:
        """Store a session, or return the limit that prevents it. Raises GatewayFault."""
        ...

    async def begin_conversation(self, session: KeptSession) -> None:
        """Become the home of a conversation, unless it has one. It counts towards no limit. Raises GatewayFault."""
        ...

    async def find_session(self, session_id: str) -> KeptSession | None: ...

    async def adopt_session(self, session_id: str, former: str) -> KeptSession | None:
        """Become its home if `former` still is and is dead. Returns None otherwise; then its home must be read again."""
        ...

    async def change_session(self, session_id: str, body: bytes) -> bool:
        """Store a new body; returns when it is durable. False if this gateway is not its home (any more)."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Delete it if this gateway is its home."""
        ...

    async def release_session(self, session_id: str) -> None:
        """Give up being its home: the next gateway that gets a request adopts it."""
        ...

    async def release_sessions(self) -> None:
        """The same for all sessions of this gateway."""
        ...

    async def sessions_elsewhere(self) -> frozenset[str]:
        """Return the ids of all sessions whose home is another gateway, alive or dead."""
        ...

    async def own_sessions(self) -> frozenset[str]:
        """Return the ids of sessions whose home is this gateway."""
        ...

    async def sessions_seen(self, forget_before_ms: int) -> None:
        """Confirm the sessions of this gateway, and delete those that no gateway has confirmed since that time."""
        ...
