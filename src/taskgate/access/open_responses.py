"""Open responses, each bound to the credential of its request.

A stream ends when its credential expires or is revoked, or when the configuration no longer allows the request. A reply
in progress may finish after the credential has expired, but not after it was revoked. Each response is authorized
again, by the same function as a new request, when its credential is due (its expiry, or the next introspection of an
opaque token) and whenever an input of the decision has changed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
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

CHECK_EVERY_S: Final = 1.0
AT_ONCE: Final = 200
"""Responses checked in one iteration of the event loop."""
LOOKUPS_AT_ONCE: Final = 4
SESSION_EVERY_S: Final = 2.0
"""How often console sessions are read, if another gateway may end them."""
RETRY_S: Final = 5.0
CLOCK_JUMP_S: Final = 0.5
REPLY_AFTER_S: Final = 1.0
"""Replies that take longer than this are bound to their credential."""


class EndReason(StrEnum):
    CREDENTIAL_EXPIRED = "credential_expired"
    CREDENTIAL_REVOKED = "credential_revoked"
    ACCESS_CHANGED = "access_changed"


class Ended(msgspec.Struct, frozen=True):
    """Why an open response was ended."""

    reason: EndReason
    text: str

    @property
    def event(self) -> bytes:
        """The last event of a stream. MCP clients do not read an event of this name as a message."""
        data = msgspec.json.encode({"error_type": self.reason.value, "message": self.text})
        return b"event: ended\ndata: " + data + b"\n\n"


EXPIRED: Final = Ended(
    EndReason.CREDENTIAL_EXPIRED, "The credential of this request has expired. Connect again with a new one."
)
REVOKED: Final = Ended(
    EndReason.CREDENTIAL_REVOKED, "The credential of this request was revoked. Ask the operator for another one."
)
CHANGED: Final = Ended(
    EndReason.ACCESS_CHANGED, "The permissions of this credential have changed. Connect again to use the current ones."
)
_REVOKED_REASONS: Final = frozenset(
    {AccessRefusal.REVOKED, AccessRefusal.UNKNOWN_CREDENTIAL, AccessRefusal.NO_CREDENTIAL}
)


class Hold:
    """One open response. Call `release` when it has ended."""

    __slots__ = ("_responses", "authorized", "end", "in_lookup", "survives_expiry")

    def __init__(
        self, responses: OpenResponses, authorized: Authorized, end: Callable[[Ended], None], survives_expiry: bool
    ) -> None:
        self._responses = responses
        self.authorized = authorized
        self.end = end
        self.survives_expiry = survives_expiry
        self.in_lookup = False
        """Whether a lookup at its issuer or in the store is in progress."""

    def release(self) -> None:
        self._responses.released(self)


class ReplyInProgress(Protocol):
    """A reply in progress. It is bound to its credential once it takes long."""

    def watch(self, responses: OpenResponses, now: float) -> None: ...


class OpenResponses:
    def __init__(self, authorizer: Authorizer, *, shared_store: bool) -> None:
        """`shared_store`: other gateways may end console sessions."""
        self._authorizer = authorizer
        self._shared_store = shared_store
        self._holds: dict[Hold, None] = {}
        self._due: list[tuple[float, int, Hold]] = []
        self._numbers = itertools.count()
        self._to_check: deque[Hold] = deque()
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
        # An input may have changed since it was authorized.
        self._check(hold)
        return hold

    def released(self, hold: Hold) -> None:
        self._holds.pop(hold, None)

    def recheck(self) -> None:
        """Check all responses again, because an input of decisions has changed: some now, the others soon."""
        if self._holds:
            self._to_check = deque(self._holds)
            self._check_some()
            self._woken.set()

    async def run(self, replies: Callable[[], Iterable[ReplyInProgress]]) -> None:
        """Check responses until cancelled. `replies` returns those in progress."""
        while True:
            await self._wait()
            try:
                now = clock.monotonic()
                for reply in replies():
                    reply.watch(self, now)
                self._note_clock_jumps()
                self._take_due(now)
                while self._to_check:
                    self._check_some()
                    await let_others_run()
            except (
                Exception
            ) as fault:  # one round of a background loop: without the next ones streams would outlive credentials
                log.error("checking open responses failed; it is retried", exc_info=fault)

    async def close(self) -> None:
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)

    async def _wait(self) -> None:
        due = self._due[0][0] - clock.monotonic() if self._due else CHECK_EVERY_S
        try:
            async with asyncio.timeout(min(CHECK_EVERY_S, max(0.0, due))):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _note_clock_jumps(self) -> None:
        offset = clock.wall() - clock.monotonic()
        if abs(offset - self._offset) > CLOCK_JUMP_S:
            self._offset = offset
            self._to_check = deque(self._holds)

    def _take_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            hold = heapq.heappop(self._due)[2]
            if hold in self._holds:
                self._to_check.append(hold)

    def _check_some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._to_check))):
            hold = self._to_check.popleft()
            if hold in self._holds:
                self._check(hold)

    # One response

    def _check(self, hold: Hold) -> None:
        if hold.in_lookup:
            return
        try:
            self._keep(hold, self._authorizer.again_now(hold.authorized))
        except AccessRefused as refused:
            self._refused(hold, refused)
        except (NotVerifiedYet, NeedsLookup):
            hold.in_lookup = True
            lookup = asyncio.get_running_loop().create_task(self._look_up(hold))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)

    async def _look_up(self, hold: Hold) -> None:
        try:
            async with self._places:
                authorized = await self._authorizer.again(hold.authorized)
        except AccessRefused as refused:
            if hold in self._holds:
                self._refused(hold, refused)
        except Exception as fault:  # the store of console sessions; retried
            log.warning("authorization of an open response could not be checked; it is retried", why=str(fault))
            self._schedule(hold, clock.monotonic() + RETRY_S)
        else:
            if hold in self._holds:
                self._keep(hold, authorized)
        finally:
            hold.in_lookup = False

    def _keep(self, hold: Hold, authorized: Authorized) -> None:
        if _rights(authorized) != _rights(hold.authorized):
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
        elif refused.reason in _REVOKED_REASONS and not hold.authorized.credential.identity.anonymous:
            self._end(hold, REVOKED)
        else:
            self._end(hold, CHANGED)

    def _end(self, hold: Hold, ended: Ended) -> None:
        del self._holds[hold]
        log.info(
            "open response ended",
            principal=hold.authorized.caller.principal,
            scope=hold.authorized.scope,
            why=ended.reason.value,
        )
        hold.end(ended)

    def _schedule(self, hold: Hold, at: float | None = None) -> None:
        """Schedule the next check of a response."""
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


def _rights(authorized: Authorized) -> tuple[frozenset[str], str | None]:
    """The roles of the holder of a credential, and the tenant to which they are limited."""
    person = authorized.person
    return authorized.credential.identity.roles, None if person is None else person.tenant
