"""Sending a message again whose refusal proves that it was not executed: only after the cause was cured, each cause once.

Called by the links when a message failed. What the failure proves is decided by `core.evidence`; here the causes that a link can do
something about are cured: a session that the server lost, a token that ended, and a server that asks for patience.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from taskgate import clock
from taskgate.core.errors import UpstreamError
from taskgate.core.evidence import Cure, judge
from taskgate.ports.upstream import CallFailed, Reply, UpstreamCall, never_sent

_USUAL_PAUSE_S: Final = 1.0
_CURABLE: Final = frozenset({Cure.SESSION, Cure.CREDENTIALS, Cure.WAIT})


class Patient(Protocol):
    """A link whose messages are refused."""

    @property
    def server(self) -> str: ...

    async def new_session(self) -> None:
        """Greet the server again; raises UpstreamError if it does not answer."""
        ...

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """Whether there is other proof of who we are than the one that was refused. Raises LoginNeeded."""
        ...

    async def ping_is_refused(self) -> bool:
        """Whether a ping in the present session is refused like a message in a session that the server does not know."""
        ...


class SessionLink(Protocol):
    """A link that speaks in sessions."""

    @property
    def server(self) -> str: ...

    @property
    def session_id(self) -> str | None: ...

    async def new_session_after(self, lost: str | None) -> None: ...

    async def renew_credentials(self, refused: CallFailed) -> bool: ...

    async def ping_is_refused(self) -> bool: ...


class InSession:
    """The link as the cures of one message see it: in the session that the message was sent in."""

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
        return await self._link.ping_is_refused()


async def send_again(
    link: Patient, request: UpstreamCall, failure: CallFailed, send: Callable[[UpstreamCall], Awaitable[Reply]]
) -> Reply:
    """The reply to a message that failed once, if its causes can be cured. Raises what cannot be."""
    due = clock.monotonic() + request.timeout_s
    cured: set[Cure] = set()
    while True:
        failure = await _diagnosed(link, failure)
        cure = judge(failure.evidence).cure
        if cure is None or cure not in _CURABLE or cure in cured:
            raise failure
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


async def _diagnosed(link: Patient, failure: CallFailed) -> CallFailed:
    if judge(failure.evidence).cure is not Cure.ASK:
        return failure
    return failure.after_ping(await link.ping_is_refused())


async def _apply(cure: Cure, link: Patient, failure: CallFailed, due: float) -> None:
    if cure is Cure.WAIT:
        pause_s = failure.evidence.retry_after_s or _USUAL_PAUSE_S
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
