"""Responses that stay open, each bound to the credential that it was opened with.

A stream lives no longer than its credential: it ends when that expires or is revoked, or when the configuration no longer allows
the request. A reply in progress may end its work after the credential has expired, but not after it was revoked. Each response is
authorized again, by the same function as a new request, when its credential is due (its expiry, or the next introspection of an
opaque token) and whenever something changed that decisions depend on. Nothing is done for a response in between.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from taskgate import clock
from taskgate.access.authorize import AccessRefused, Authorized, Authorizer
from taskgate.access.credentials import NotVerifiedYet
from taskgate.access.proof import NeedsLookup, SessionProof
from taskgate.core.identity.access import AccessRefusal
from taskgate.telemetry.logs import log
from taskgate.turns import let_others_run

LOOK_EVERY_S: Final = 1.0
AT_ONCE: Final = 200
"""As many responses are looked at in one turn of the loop."""
LOOKUPS_AT_ONCE: Final = 4
SESSION_EVERY_S: Final = 2.0
"""How often console sessions are read where another gateway may have ended them."""
RETRY_S: Final = 5.0
CLOCK_JUMP_S: Final = 0.5
REPLY_AFTER_S: Final = 1.0
"""Replies that take longer than this are watched."""


class EndReason(StrEnum):
    CREDENTIAL_EXPIRED = "credential_expired"
    CREDENTIAL_REVOKED = "credential_revoked"
    ACCESS_CHANGED = "access_changed"


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a response that was open is ended."""

    reason: EndReason
    text: str

    @property
    def event(self) -> bytes:
        """The last event of a stream. Its name is none that MCP clients read as a message."""
        data = msgspec.json.encode({"error_type": self.reason.value, "message": self.text})
        return b"event: ended\ndata: " + data + b"\n\n"


EXPIRED: Final = Ended(
    EndReason.CREDENTIAL_EXPIRED, "The credential of this request has expired. Connect again with a new one."
)
REVOKED: Final = Ended(
    EndReason.CREDENTIAL_REVOKED, "The credential of this request was revoked. Ask the operator for another one."
)
CHANGED: Final = Ended(
    EndReason.ACCESS_CHANGED, "What this credential may do has changed. Connect again to go on with what it may do now."
)
_NOT_GOOD: Final = frozenset({AccessRefusal.REVOKED, AccessRefusal.UNKNOWN_CREDENTIAL, AccessRefusal.NO_CREDENTIAL})


class Hold:
    """One open response. `release` when it has ended by itself."""

    __slots__ = ("_responses", "asking", "authorized", "end", "survives_expiry")

    def __init__(
        self, responses: OpenResponses, authorized: Authorized, end: Callable[[Ended], None], survives_expiry: bool
    ) -> None:
        self._responses = responses
        self.authorized = authorized
        self.end = end
        self.survives_expiry = survives_expiry
        self.asking = False
        """Whether its issuer or the store is being asked just now."""

    def release(self) -> None:
        self._responses.released(self)


class ReplyInProgress(Protocol):
    """A reply that is being worked on. It is watched once it takes long."""

    def watch(self, responses: OpenResponses, now: float) -> None: ...


class OpenResponses:
    def __init__(self, authorizer: Authorizer, *, shared_store: bool) -> None:
        """`shared_store`: other gateways may end console sessions."""
        self._authorizer = authorizer
        self._shared_store = shared_store
        self._holds: dict[Hold, None] = {}
        self._due: list[tuple[float, int, Hold]] = []
        self._numbers = itertools.count()
        self._to_look_at: deque[Hold] = deque()
        self._woken = asyncio.Event()
        self._offset = clock.wall() - clock.monotonic()
        self._places = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._lookups: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._holds)

    def hold(self, authorized: Authorized, end: Callable[[Ended], None], *, survives_expiry: bool = False) -> Hold:
        """Bind a response to the credential of its request. `end` is called at most once, if the credential ends first."""
        hold = Hold(self, authorized, end, survives_expiry)
        self._holds[hold] = None
        self._schedule(hold)
        # Something may have changed since it was authorized.
        self._look_at(hold)
        return hold

    def released(self, hold: Hold) -> None:
        self._holds.pop(hold, None)

    def look_again(self) -> None:
        """Something changed that decisions depend on. A turn's worth of responses is looked at now, the others soon."""
        if self._holds:
            self._to_look_at = deque(self._holds)
            self._look_at_some()
            self._woken.set()

    async def run(self, replies: Callable[[], Iterable[ReplyInProgress]]) -> None:
        """Until cancelled. `replies` are those in progress."""
        while True:
            await self._wait()
            try:
                now = clock.monotonic()
                for reply in replies():
                    reply.watch(self, now)
                self._note_clock_jumps()
                self._take_due(now)
                while self._to_look_at:
                    self._look_at_some()
                    await let_others_run()
            except (
                Exception
            ) as fault:  # one round of a background loop: without the next ones streams would outlive credentials
                log.error("open responses could not be checked; this is tried again", exc_info=fault)

    async def close(self) -> None:
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)

    async def _wait(self) -> None:
        due = self._due[0][0] - clock.monotonic() if self._due else LOOK_EVERY_S
        try:
            async with asyncio.timeout(min(LOOK_EVERY_S, max(0.0, due))):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _note_clock_jumps(self) -> None:
        offset = clock.wall() - clock.monotonic()
        if abs(offset - self._offset) > CLOCK_JUMP_S:
            self._offset = offset
            self._to_look_at = deque(self._holds)

    def _take_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            hold = heapq.heappop(self._due)[2]
            if hold in self._holds:
                self._to_look_at.append(hold)

    def _look_at_some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._to_look_at))):
            hold = self._to_look_at.popleft()
            if hold in self._holds:
                self._look_at(hold)

    # One response

    def _look_at(self, hold: Hold) -> None:
        if hold.asking:
            return
        try:
            self._stays(hold, self._authorizer.again_now(hold.authorized))
        except AccessRefused as refused:
            self._refused(hold, refused)
        except (NotVerifiedYet, NeedsLookup):
            hold.asking = True
            lookup = asyncio.get_running_loop().create_task(self._ask(hold))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)

    async def _ask(self, hold: Hold) -> None:
        try:
            async with self._places:
                authorized = await self._authorizer.again(hold.authorized)
        except AccessRefused as refused:
            if hold in self._holds:
                self._refused(hold, refused)
        except Exception as fault:  # the store of console sessions: it is asked again
            log.warning("whether a response may stay open could not be found out", why=str(fault))
            self._schedule(hold, clock.monotonic() + RETRY_S)
        else:
            if hold in self._holds:
                self._stays(hold, authorized)
        finally:
            hold.asking = False

    def _stays(self, hold: Hold, authorized: Authorized) -> None:
        if authorized.credential.identity.roles != hold.authorized.credential.identity.roles:
            self._end(hold, CHANGED)
            return
        is_new = authorized.credential is not hold.authorized.credential
        hold.authorized = authorized
        if is_new or self._is_polled(hold):
            self._schedule(hold)

    def _refused(self, hold: Hold, refused: AccessRefused) -> None:
        if refused.reason is AccessRefusal.UNVERIFIABLE:
            self._schedule(hold, clock.monotonic() + RETRY_S)
            return
        expiry = hold.authorized.credential.expiry
        expired = refused.reason is AccessRefusal.EXPIRED or (
            refused.reason in (AccessRefusal.UNKNOWN_CREDENTIAL, AccessRefusal.NO_CREDENTIAL)
            and expiry is not None
            and expiry.passed
        )
        if expired and hold.survives_expiry:
            return
        if expired:
            self._end(hold, EXPIRED)
        elif refused.reason in _NOT_GOOD and not hold.authorized.credential.identity.anonymous:
            self._end(hold, REVOKED)
        else:
            self._end(hold, CHANGED)

    def _end(self, hold: Hold, ended: Ended) -> None:
        del self._holds[hold]
        log.info(
            "an open response was ended",
            principal=hold.authorized.caller.principal,
            scope=hold.authorized.scope,
            why=ended.reason.value,
        )
        hold.end(ended)

    def _schedule(self, hold: Hold, at: float | None = None) -> None:
        """When it is to be looked at again although nothing happens."""
        credential = hold.authorized.credential
        moments = [each.monotonic for each in (credential.expiry, credential.fresh) if each is not None]
        if self._is_polled(hold):
            moments.append(clock.monotonic() + SESSION_EVERY_S)
        if at is not None or moments:
            heapq.heappush(self._due, (at if at is not None else min(moments), next(self._numbers), hold))
        if len(self._due) > 2 * len(self._holds) + AT_ONCE:
            self._due = [entry for entry in self._due if entry[2] in self._holds]
            heapq.heapify(self._due)

    def _is_polled(self, hold: Hold) -> bool:
        return self._shared_store and isinstance(hold.authorized.proof, SessionProof)
