"""Find the gateway that holds a session: this one, another one, or none.

The home of a session is a row in the store. A session whose home has died is adopted by the gateway that receives the next request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from taskgate import clock
from taskgate.core.identity.caller import Caller
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.requests.session import Session
from taskgate.gateway.services.transports import TransportServices
from taskgate.store.operations.shared_sessions import FindSession

WAIT_S: Final = 8.0
"""How long to look for a responding home: longer than a lease takes to expire and a session to be adopted."""
RETRY_S: Final = 0.05
_MAX_CACHED: Final = 50_000


class _RetryLater(Exception):
    """The session has no responsive home at the moment."""


class SessionHomes:
    def __init__(self, gateway: TransportServices, shared: SharedSessions, attach: Callable[[Session], None]) -> None:
        """`attach` adds the event streams to an adopted session."""
        self._gateway = gateway
        self._shared = shared
        self._rows = shared.rows
        self._attach = attach
        self._homes: OrderedDict[str, tuple[str, str, str]] = OrderedDict()
        """Home, principal and scope of sessions, as last read from the store."""

    async def locate(self, session_id: str, caller: Caller) -> Session | str | None:
        """Return the session if this gateway holds it, the name of its home, or None if the caller has no such session.

        Raises GatewayFault if the store cannot be read.
        """
        until = clock.monotonic() + WAIT_S
        while True:
            try:
                return await self._locate(session_id, caller)
            except _RetryLater:
                if clock.monotonic() > until:
                    return None
                await clock.sleep(RETRY_S)

    async def _locate(self, session_id: str, caller: Caller) -> Session | str | None:
        session = await self.find_local(session_id, caller)
        if session is not None:
            return session
        cached = self.cached_home(session_id, caller)
        if cached is not None:
            return cached
        kept = await self._rows.ask(FindSession(session_id))
        if kept is None or (kept.principal, kept.scope) != (caller.principal, caller.scope):
            return None
        if kept.home == self._rows.ownership.owner:
            raise _RetryLater
        # A released lease is gone at once, even if the home was alive when its lease was last read.
        if kept.internal is not None and self._rows.is_alive(kept.home):
            return self._cache(session_id, kept.home, caller) if kept.internal else None
        adopted = await self._gateway.sessions.adopt(session_id, kept.home)
        if adopted is None:
            raise _RetryLater
        self._attach(adopted)
        return adopted

    def cached_home(self, session_id: str, caller: Caller) -> str | None:
        """Return the home as last read, if it is alive. It may no longer hold the session."""
        cached = self._homes.get(session_id)
        if cached is None or cached[1] != caller.principal or cached[2] != caller.scope:
            return None
        return cached[0] if self._rows.is_alive(cached[0]) else None

    def _cache(self, session_id: str, home: str, caller: Caller) -> str:
        self._homes[session_id] = (home, caller.principal, caller.scope)
        if len(self._homes) > _MAX_CACHED:
            self._homes.popitem(last=False)
        return home

    def forget(self, session_id: str) -> None:
        """Drop a cached home that does not hold the session any more."""
        self._homes.pop(session_id, None)

    async def find_local(self, session_id: str, caller: Caller) -> Session | None:
        """Return the session if this gateway certainly holds it. Raises GatewayFault if that cannot be verified."""
        if not self._shared.certain:
            await self._shared.verify()
        return self._gateway.sessions.table.find(session_id, caller, clock.monotonic())
