"""All sessions of the gateway, within the configured limits."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.core.generations.stateful import InitializeParams
from taskgate.core.identity.caller import Caller
from taskgate.core.identity.identity import tenant_of
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.session import UNUSED_S, Session


def too_many_sessions(message: str) -> GatewayFault:
    return GatewayFault("overloaded", f"{message}; end some, or try again later.", retry_after_s=30)


class _LimitReached(msgspec.Struct, frozen=True):
    """A limit that is reached: the error text, and which sessions count towards it."""

    message: str
    counts: Callable[[Session], bool]


class SessionTable:
    """Limits apply to all sessions, those of one caller, of one tenant, and of all anonymous callers."""

    def __init__(self, plan: Live[Plan]) -> None:
        self._plan = plan
        self._sessions: dict[str, Session] = {}
        self._of_principal: dict[str, dict[str, Session]] = {}
        self._of_caller: Counter[str] = Counter()
        self._of_tenant: Counter[str] = Counter()
        self._anonymous = 0
        self._never_used: dict[str, Session] = {}
        """Oldest first. A session that was used meanwhile is dropped when it is found, so the search stays cheap."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Any:
        return iter(list(self._sessions.values()))

    def open(self, caller: Caller, opening: InitializeParams, narrowing: SessionRequest, now: float) -> Session:
        reached = self._limit_reached(caller)
        if reached is not None:
            raise too_many_sessions(reached.message)
        session = Session(secrets.token_urlsafe(24), caller, opening, narrowing)
        self.restore(session, now)
        return session

    def restore(self, session: Session, now: float) -> None:
        """Add a session that exists already, also beyond the limits: it was admitted when it was opened."""
        session.mark_opened(now)
        self._sessions[session.id] = self._never_used[session.id] = session
        self._of_principal.setdefault(session.caller.principal, {})[session.id] = session
        self._of_caller[session.caller.limit_key] += 1
        if tenant := tenant_of(session.caller.principal):
            self._of_tenant[tenant] += 1
        self._anonymous += session.caller.anonymous

    def replaceable(self, caller: Caller) -> Session | None:
        """The oldest never-used session that can be replaced, if a limit prevents another session of this caller.

        Clients that gave up, or that only open sessions, leave such sessions behind.
        """
        reached = self._limit_reached(caller)
        return self.unused(reached.counts) if reached is not None else None

    def unused(self, counts: Callable[[Session], bool]) -> Session | None:
        """The oldest never-used session among those that `counts` selects."""
        now, found, used = clock.monotonic(), None, list[str]()
        for session in self._never_used.values():
            if session.used:
                used.append(session.id)
            elif now - session.last_used <= UNUSED_S:
                break  # the following ones are younger
            elif counts(session) and session.unused(now):
                found = session
                break
        for session_id in used:
            del self._never_used[session_id]
        return found

    def _limit_reached(self, caller: Caller) -> _LimitReached | None:
        limits, key = self._plan.value.limits, caller.limit_key
        if len(self._sessions) >= limits.sessions:
            return _LimitReached("The gateway has too many sessions", lambda _session: True)
        if self._of_caller[key] >= limits.sessions_per_caller:
            return _LimitReached("You have too many sessions", lambda session: session.caller.limit_key == key)
        tenant, maximum = tenant_of(caller.principal), limits.sessions_per_tenant
        if tenant and maximum is not None and self._of_tenant[tenant] >= maximum:
            return _LimitReached(
                "Your tenant has too many sessions", lambda session: tenant_of(session.caller.principal) == tenant
            )
        if caller.anonymous and self._anonymous >= limits.anonymous_sessions:
            return _LimitReached(
                "Callers without a token have too many sessions", lambda session: session.caller.anonymous
            )
        return None

    def find(self, session_id: str, caller: Caller, now: float) -> Session | None:
        """The session, if it belongs to this caller. A session of another caller looks like a missing one."""
        session = self._sessions.get(session_id)
        if session is None or session.caller.principal != caller.principal or session.caller.scope != caller.scope:
            return None
        session.touch(now)
        return session

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def of_principal(self, principal: str) -> list[Session]:
        """The open sessions of this principal, oldest first."""
        return list(self._of_principal.get(principal, {}).values())

    def remove(self, session: Session) -> bool:
        """Close a session. Return False if it is closed already. `methods.session_ends` closes what belongs to it."""
        if self._sessions.pop(session.id, None) is None:
            return False
        self._never_used.pop(session.id, None)
        self._forget(session)
        session.close()
        return True

    def _forget(self, session: Session) -> None:
        caller = session.caller
        of_principal = self._of_principal[caller.principal]
        del of_principal[session.id]
        if not of_principal:
            del self._of_principal[caller.principal]
        self._anonymous -= caller.anonymous
        self._of_caller[caller.limit_key] -= 1
        if not self._of_caller[caller.limit_key]:
            del self._of_caller[caller.limit_key]
        tenant = tenant_of(caller.principal)
        if tenant:
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]

    def idle(self, now: float) -> list[Session]:
        """Sessions that have been idle for too long. An open call or stream keeps a session from being idle."""
        idle_s = self._plan.value.limits.session_idle
        return [
            session
            for session in self._sessions.values()
            if not session.in_flight and not session.open_requests and now - session.last_used > idle_s
        ]
