"""Requests between gateways on one store: how one proves to another that it may speak for a caller that came to it.

A request carries one header more than the caller's: who sends it, for which gateway, when, a number used once, the caller as the
sender admitted it, and a signature over all of that, the method, the address, every header and the body. The key is the secret that
gateways of a store share; the time is the database's clock, so clocks of machines do not matter. A caller's token opens nothing
here, because nobody looks at one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

import msgspec

from taskgate.core.identity import Caller, CredentialFacts
from taskgate.inbound.http.asgi import Headers

HOP: Final = b"taskgate-hop"
WINDOW_MS: Final = 10_000
"""How old a request may be, and how far ahead its time."""
MOST_NUMBERS: Final = 200_000
"""Numbers remembered for as long as their requests could be sent again; beyond that nothing is let in."""
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


class HopRefused(Exception):
    """Why a request is not from a gateway of this store; for our log, not for the peer."""


def hop_key(secret: bytes) -> bytes:
    """Of the secret that the gateways of a store share."""
    return hmac.new(secret, b"taskgate requests between gateways", hashlib.sha256).digest()


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a caller that its session's home must see: neither its credentials nor what frames a message."""
    return [header for header in headers if header[0] not in _KEPT_BACK]


class HopSigner:
    def __init__(self, key: bytes, owner: str, now_ms: Callable[[], int]) -> None:
        self._key = key
        self._owner = owner
        self._now_ms = now_ms

    def sign(self, method: bytes, url: bytes, headers: Headers, body: bytes, *, home: str, caller: Caller) -> bytes:
        """The value of the header. `headers` are those that will be sent, as from `passed_on`."""
        claims = f"1 {self._owner} {home} {self._now_ms()} {secrets.token_hex(12)} {_said(caller)}".encode("ascii")
        return claims + b" " + _signature(self._key, claims, method, url, headers, body)


class HopVerifier:
    """Lets each request in once, within a short time, and only if it was meant for this gateway."""

    def __init__(self, key: bytes, owner: str, now_ms: Callable[[], int]) -> None:
        self._key = key
        self._owner = owner
        self._now_ms = now_ms
        self._seen: set[bytes] = set()
        self._seen_before: set[bytes] = set()
        self._turned_ms = 0

    def admit(self, method: bytes, url: bytes, headers: Headers, body: bytes) -> Caller:
        """The caller for whom another gateway speaks. Raises HopRefused."""
        given = [value for name, value in headers if name == HOP]
        if len(given) != 1:
            raise HopRefused("it has no signature")
        claims, _, signature = given[0].rpartition(b" ")
        signed = [header for header in headers if header[0] not in _UNSIGNED]
        if not hmac.compare_digest(signature, _signature(self._key, claims, method, url, signed, body)):
            raise HopRefused("its signature is wrong")
        # Signed by one of us: from here on it says what it was meant to say.
        _version, _sender, home, at_ms, number, said = claims.split(b" ")
        if home.decode("ascii") != self._owner:
            raise HopRefused("it is meant for another gateway")
        self._check_time(int(at_ms))
        self._use_once(number)
        return _caller(said)

    def _check_time(self, at_ms: int) -> None:
        if abs(self._now_ms() - at_ms) > WINDOW_MS:
            raise HopRefused("its time is over, or has not come yet")

    def _use_once(self, number: bytes) -> None:
        """Two generations of numbers: a request is in one of them for at least as long as its time allows."""
        now = self._now_ms()
        if now - self._turned_ms > 2 * WINDOW_MS:
            self._seen_before, self._seen, self._turned_ms = self._seen, set(), now
        if number in self._seen or number in self._seen_before:
            raise HopRefused("it came before")
        if len(self._seen) >= MOST_NUMBERS:
            raise HopRefused("too many came in a short time")
        self._seen.add(number)


def _signature(key: bytes, claims: bytes, method: bytes, url: bytes, headers: Headers, body: bytes) -> bytes:
    lines = b"".join([b"%b:%b\n" % header for header in headers])
    whole = b"\n".join((claims, method, url, hashlib.sha256(body).hexdigest().encode("ascii"), lines))
    return hmac.digest(key, whole, "sha256").hex().encode("ascii")


@lru_cache(maxsize=4096)
def _said(caller: Caller) -> str:
    named = _Named(caller.principal, sorted(caller.roles), caller.scope, caller.place, caller.address, caller.facts)
    return base64.urlsafe_b64encode(msgspec.json.encode(named)).decode("ascii")


@lru_cache(maxsize=4096)
def _caller(said: bytes) -> Caller:
    try:
        named = msgspec.json.decode(base64.urlsafe_b64decode(said), type=_Named)
    except (binascii.Error, msgspec.DecodeError) as error:
        raise HopRefused("its caller cannot be read") from error
    return Caller(named.principal, frozenset(named.roles), named.scope, named.place, named.address, named.facts)
