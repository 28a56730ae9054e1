"""Send a rejected message again after its cause was removed.

A message whose rejection proves that it was not executed is sent again only after the cause was removed, once per
cause: a session that the server lost, an expired token, or a server that requests a pause. `core.errors` decides what a
failure proves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from taskgate import clock
from taskgate.core.errors import UpstreamError
from taskgate.core.evidence import Cure, failure_verdict
from taskgate.ports.call_failure import CallFailed, never_sent
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import Reply
from taskgate.upstreams.http_failures import MIN_RETRY_S
from taskgate.upstreams.session_renewal import SessionRenewal

_PING_S: Final = 5.0
_CURABLE: Final = frozenset({Cure.SESSION, Cure.CREDENTIALS, Cure.WAIT})


class Resender(Protocol):
    """The interface of a link whose message was rejected."""

    @property
    def server(self) -> str: ...

    async def new_session(self) -> None:
        """Perform a new handshake. Raises UpstreamError if it fails."""
        ...

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """Obtain credentials other than the rejected ones. Return False if there are none. Raises LoginNeeded."""
        ...

    async def ping_is_refused(self) -> bool:
        """Return whether a ping in the current session is rejected like a message in an unknown session."""
        ...


class SessionLink(Protocol):
    """The interface of a link with sessions."""

    renewal: SessionRenewal
    refuses_pings: bool
    """The server rejects pings even in a new session, so a rejected ping proves nothing."""

    @property
    def server(self) -> str: ...

    @property
    def session_id(self) -> str | None: ...

    async def new_session_after(self, lost: str | None) -> None: ...

    async def renew_credentials(self, refused: CallFailed) -> bool: ...

    async def ping_refused(self, timeout_s: float) -> bool: ...


class InSession:
    """A link together with the session that a rejected message was sent in."""

    __slots__ = ("_link", "_session", "server")

    def __init__(self, link: SessionLink, session: str | None) -> None:
        self.server = link.server
        self._link = link
        self._session = session

    async def new_session(self) -> None:
        await self._link.new_session_after(self._session)
        self._session = self._link.session_id

    async def renew_credentials(self, refused: CallFailed) -> bool:
        return await self._link.renew_credentials(refused)

    async def ping_is_refused(self) -> bool:
        """As declared. If the session was replaced meanwhile, return whether a ping in the new one succeeds."""
        link = self._link
        try:
            await link.renewal.over()
            is_present = link.session_id == self._session
            return not link.refuses_pings and await link.ping_refused(_PING_S) is is_present
        except CallFailed:
            return False


async def send_again(
    link: Resender, request: UpstreamCall, failure: CallFailed, send: Callable[[UpstreamCall], Awaitable[Reply]]
) -> Reply:
    """Remove the cause of a failure and send the message again. Raises the failure if that is not possible."""
    due = clock.monotonic() + request.timeout_s
    cured: set[Cure] = set()
    while True:
        failure = await _diagnose(link, failure)
        cure = failure_verdict(failure.evidence).cure
        if cure is None or cure not in _CURABLE or cure in cured:
            try:
                raise failure
            finally:
                # Its traceback refers to this frame: a cycle for the garbage collector with everything that belongs to the call.
                del failure
        cured.add(cure)
        if request.send_log is not None:
            await request.send_log.refused()
        await _apply(cure, link, failure, due)
        if request.send_log is not None:
            await request.send_log.sends_again()
        try:
            return await send(request)
        except CallFailed as again:
            failure = again


async def _diagnose(link: Resender, failure: CallFailed) -> CallFailed:
    if failure_verdict(failure.evidence).cure is not Cure.ASK:
        return failure
    return failure.after_ping(await link.ping_is_refused())


async def _apply(cure: Cure, link: Resender, failure: CallFailed, due: float) -> None:
    if cure is Cure.WAIT:
        pause_s = failure.evidence.retry_after_s or MIN_RETRY_S
        if clock.monotonic() + pause_s > due:
            raise failure
        await clock.sleep(pause_s)
        return
    if cure is Cure.CREDENTIALS:
        if not await link.renew_credentials(failure):
            raise failure
        return
    try:
        await link.new_session()
    except UpstreamError as problem:
        raise never_sent(link.server, problem) from None
