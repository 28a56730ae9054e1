"""Requests between gateways on one store: how one proves that it may speak for a caller, and streams on their way back."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import itertools
import secrets
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

import msgspec

from taskgate.access.proof import HopProof
from taskgate.core.identity.caller import Caller, CredentialFacts
from taskgate.inbound.http.asgi import Headers, Send
from taskgate.inbound.http.post import Post
from taskgate.mcp.http.reader import HttpHead, HttpReply
from taskgate.mcp.sse import format_event

HOP: Final = b"taskgate-hop"
WINDOW_MS: Final = 10_000
"""How old a request may be, and how far ahead its time."""
MOST_NUMBERS: Final = 200_000
"""Numbers remembered for as long as their requests could be sent again; beyond that nothing is let in."""
_VERSION: Final = b"1"
"""Of how the claims are written, as `HopSigner.sign` does."""
_BLOCK: Final = 64
"""Of SHA-256, in bytes."""
_UNSIGNED: Final = frozenset({HOP, b"host", b"user-agent", b"content-length"})
"""What our HTTP client writes by itself."""
_KEPT_BACK: Final = (
    frozenset(
        {
            b"accept-encoding",
            b"authorization",
            b"connection",
            b"cookie",
            b"expect",
            b"forwarded",
            b"http2-settings",
            b"keep-alive",
            b"proxy-authorization",
            b"te",
            b"trailer",
            b"transfer-encoding",
            b"upgrade",
            b"x-forwarded-for",
        }
    )
    | _UNSIGNED
)


class _Named(msgspec.Struct, array_like=True):
    principal: str
    roles: list[str]
    scope: str
    place: str
    address: str
    facts: CredentialFacts | None = None
    digest: str = ""
    issued_at: int | None = None


class HopRefused(Exception):
    """Why a request is not from a gateway of this store; for our log, not for the peer."""


class HopNotTaken(HopRefused):
    """It is from a gateway of this store and was not executed: meant for one that had our address before, too late, too
    much at once, or written in a way that we do not read. Whoever sent it looks again whose the session is, and may sign
    it anew.
    """


def hop_key(secret: bytes) -> bytes:
    """Of the secret that the gateways of a store share."""
    return hmac.new(secret, b"taskgate requests between gateways", hashlib.sha256).digest()


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a caller that its session's home must see: neither its credentials nor what frames a message."""
    return [header for header in headers if header[0] not in _KEPT_BACK]


class Keyed:
    """HMAC-SHA256 with one key. What depends on the key alone is worked out once, which is half of the work for a short text."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (key if len(key) <= _BLOCK else hashlib.sha256(key).digest()).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def hex_digest(self, text: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.hexdigest().encode("ascii")


class HopSigner:
    def __init__(self, key: bytes, owner: str, now_ms: Callable[[], int]) -> None:
        self._keyed = Keyed(key)
        self._owner = owner
        self._now_ms = now_ms
        self._start = secrets.token_hex(12)
        self._count = itertools.count()
        """With `_start` a number that nobody else uses, and we use once. It need not be secret: it is signed."""

    def sign(self, method: bytes, url: bytes, headers: Headers, body: bytes, *, home: str, proof: HopProof) -> bytes:
        """The value of the header. `headers` are those that will be sent, as from `passed_on`."""
        number = f"{self._start}{next(self._count):x}"
        claims = f"1 {self._owner} {home} {self._now_ms()} {number} {_said(proof)}".encode("ascii")
        return claims + b" " + _signature(self._keyed, claims, method, url, headers=headers, body=body)


class HopVerifier:
    """Lets each request in once, within a short time, and only if it was meant for this gateway."""

    def __init__(self, key: bytes, owner: str, now_ms: Callable[[], int]) -> None:
        self._keyed = Keyed(key)
        self._owner = owner
        self._now_ms = now_ms
        self._seen: set[bytes] = set()
        self._seen_before: set[bytes] = set()
        self._turned_ms = 0

    def verify(self, method: bytes, url: bytes, headers: Headers, body: bytes) -> HopProof:
        """What another gateway has signed: the caller that it authorized. Raises HopRefused."""
        given = [value for name, value in headers if name == HOP]
        if len(given) != 1:
            raise HopRefused("it has no signature")
        claims, _, signature = given[0].rpartition(b" ")
        signed = [header for header in headers if header[0] not in _UNSIGNED]
        if not hmac.compare_digest(signature, _signature(self._keyed, claims, method, url, headers=signed, body=body)):
            raise HopRefused("its signature is wrong")
        # Signed by one of us: from here on it says what it was meant to say.
        home, at_ms, number, said = _read_claims(claims)
        if home != self._owner.encode("ascii"):
            raise HopNotTaken("it is meant for another gateway")
        now = self._now_ms()
        if abs(now - at_ms) > WINDOW_MS:
            raise HopNotTaken("its time is over, or has not come yet")
        self._use_once(number, now)
        return _proof(said)

    def _use_once(self, number: bytes, now: int) -> None:
        """Two generations of numbers: a request is in one of them for at least as long as its time allows."""
        if now - self._turned_ms > 2 * WINDOW_MS:
            self._seen_before, self._seen, self._turned_ms = self._seen, set(), now
        if number in self._seen or number in self._seen_before:
            raise HopRefused("it came before")
        if len(self._seen) >= MOST_NUMBERS:
            raise HopNotTaken("too many came in a short time")
        self._seen.add(number)


def _signature(keyed: Keyed, claims: bytes, method: bytes, url: bytes, *, headers: Headers, body: bytes) -> bytes:
    lines = b"".join([b"%b:%b\n" % header for header in headers])
    digest = hashlib.sha256(body).hexdigest().encode("ascii")
    return keyed.hex_digest(b"%b\n%b\n%b\n%b\n%b" % (claims, method, url, digest, lines))


def _read_claims(claims: bytes) -> tuple[bytes, int, bytes, bytes]:
    """Home, time, number and caller. A gateway of another version may write them in another way."""
    parts = claims.split(b" ")
    if parts[0] != _VERSION or len(parts) != 6 or not parts[3].isdigit():
        raise HopNotTaken("it is from a gateway of another version")
    return parts[2], int(parts[3]), parts[4], parts[5]


@lru_cache(maxsize=4096)
def _said(proof: HopProof) -> str:
    caller = proof.caller
    named = _Named(
        caller.principal,
        sorted(caller.roles),
        caller.scope,
        caller.place,
        caller.address,
        caller.facts,
        proof.digest,
        proof.issued_at,
    )
    return base64.urlsafe_b64encode(msgspec.json.encode(named)).decode("ascii")


@lru_cache(maxsize=4096)
def _proof(said: bytes) -> HopProof:
    try:
        named = msgspec.json.decode(base64.urlsafe_b64decode(said), type=_Named)
    except (binascii.Error, msgspec.DecodeError) as error:
        raise HopRefused("its caller cannot be read") from error
    caller = Caller(named.principal, frozenset(named.roles), named.scope, named.place, named.address, named.facts)
    return HopProof(caller, named.digest, named.issued_at)


# Event streams that come from another gateway, on their way to the caller: piece by piece, unread, as fast as the
# caller reads.

NOT_HERE: Final = 421
"""What a gateway answers another one when it does not hold the session (any more), or is not the one that was meant. Whoever
asked looks into the store again: only that says whose the session is."""
_KEPT: Final = frozenset({b"content-type", b"cache-control", b"x-accel-buffering", b"retry-after", b"www-authenticate"})
"""Headers of an answer that are about what it says, not about how it is framed."""
_UNREAD_BYTES: Final = 1024 * 1024


class PostRelay:
    """Writes the home's event stream into the caller's connection."""

    __slots__ = ("_tail", "begun", "post")

    def __init__(self, post: Post) -> None:
        self.post = post
        self.begun = False
        self._tail = b"\n\n"

    def on_head(self, head: HttpHead) -> None:
        if head.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self.begun = True
            self.post.begin_stream([])

    def on_chunk(self, chunk: bytes) -> asyncio.Future[None] | None:
        self._tail = (self._tail + chunk)[-2:]
        return self.post.pass_on(chunk)

    def end(self, last: bytes | None) -> None:
        """The stream ends here, perhaps with one message more; in the middle of an event it can only be cut."""
        if last is not None and self._tail != b"\n\n":
            self.post.cut()
            return
        if last is not None:
            self.post.pass_on(format_event(last))
        self.post.end_stream()


class StreamRelay:
    """A session's stream between the hop, which is never kept waiting, and a caller that may read slowly."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0
        self._news = asyncio.Event()
        self._room: asyncio.Future[None] | None = None
        self._head: HttpHead | None = None

    def on_head(self, head: HttpHead) -> None:
        self._head = head
        self._news.set()

    def on_chunk(self, chunk: bytes) -> asyncio.Future[None] | None:
        self._parts.append(chunk)
        self._bytes += len(chunk)
        self._news.set()
        if self._bytes > _UNREAD_BYTES and self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def over(self, _work: asyncio.Task[HttpReply]) -> None:
        self._news.set()

    async def pump(self, send: Send, work: asyncio.Task[HttpReply]) -> bool:
        """Until the home or the caller ends it. False if the home could not be reached, or has no such session."""
        while self._head is None and not work.done():
            await self._wait()
        if self._head is None or self._head.status == NOT_HERE:
            return False
        kept = [header for header in self._head.header_list if header[0] in _KEPT]
        await send({"type": "http.response.start", "status": self._head.status, "headers": kept})
        while True:
            parts, self._parts, self._bytes = self._parts, [], 0
            for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            room, self._room = self._room, None
            if room is not None:
                room.set_result(None)
            if not self._parts and work.done():
                break
            await self._wait()
        rest = work.result().body if not work.cancelled() and work.exception() is None else b""
        await send({"type": "http.response.body", "body": rest})
        return True

    async def _wait(self) -> None:
        await self._news.wait()
        self._news.clear()
