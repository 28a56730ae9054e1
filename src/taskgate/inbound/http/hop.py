"""Signed requests between gateways on one store: how one gateway proves which caller it has authorized."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import itertools
import secrets
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from taskgate.access.proof import HopProof
from taskgate.core.identity.caller import Caller, CredentialFacts
from taskgate.inbound.http.asgi import Headers
from taskgate.mcp.json_errors import UNDECODABLE

HOP: Final = b"taskgate-hop"
NOT_HERE: Final = 421
"""The status that a gateway returns to another one if it does not hold the session, or is not the intended target. The sender then
reads the home of the session from the store again."""
WINDOW_MS: Final = 10_000
"""Maximum difference between the time of a request and the current time."""
MAX_NONCES: Final = 200_000
"""Nonces kept while their requests could be replayed. Further requests are not accepted."""
_VERSION: Final = b"1"
"""Version of the claims format."""
_BLOCK: Final = 64
"""Block size of SHA-256 in bytes."""
_UNSIGNED: Final = frozenset({HOP, b"host", b"user-agent", b"content-length"})
"""Headers that the HTTP client writes itself."""
_NOT_FORWARDED: Final = (
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


class _SignedCaller(msgspec.Struct, array_like=True):
    principal: str
    roles: list[str]
    scope: str
    place: str
    address: str
    facts: CredentialFacts | None = None
    digest: str = ""
    issued_at: int | None = None


class HopProblem(StrEnum):
    """Why a request of another gateway is rejected. The value is the text for the log."""

    UNSIGNED = "missing signature"
    SIGNATURE = "invalid signature"
    OTHER_TARGET = "the target is another gateway"
    NOT_IN_TIME = "expired, or not valid yet"
    REPLAYED = "replayed"
    TOO_MANY = "too many requests in a short time"
    OTHER_VERSION = "claims format of another version"
    CALLER = "invalid caller in the claims"
    ENDING = "the gateway is ending"


class HopRefused(Exception):
    """The request is not from a gateway of this store. The reason is logged and not sent to the peer."""

    def __init__(self, problem: HopProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class HopNotAccepted(HopRefused):
    """The request is from a gateway of this store and was not executed: it is for a previous owner of this address,
    expired, over the limit, or in another format. The sender looks up the home again and may sign a new request.
    """


def hop_key(secret: bytes) -> bytes:
    """Derive the signing key from the secret that the gateways of a store share."""
    return hmac.new(secret, b"taskgate requests between gateways", hashlib.sha256).digest()


def forwarded_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the caller's headers to forward: without credentials and without message framing."""
    return [header for header in headers if header[0] not in _NOT_FORWARDED]


class Keyed:
    """HMAC-SHA256 with a precomputed key state, which saves half of the work for a short text."""

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
        """Together with `_start` a unique nonce. It is signed, so it need not be secret."""

    def sign(self, method: bytes, url: bytes, headers: Headers, body: bytes, *, home: str, proof: HopProof) -> bytes:
        """Return the value of the signature header. `headers` are those to send, from `forwarded_headers`."""
        number = f"{self._start}{next(self._count):x}"
        claims = f"1 {self._owner} {home} {self._now_ms()} {number} {_encode_caller(proof)}".encode("ascii")
        return claims + b" " + _signature(self._keyed, claims, method, url, headers=headers, body=body)


class HopVerifier:
    """Accepts each signed request once, within a short time, and only if this gateway is its target."""

    def __init__(self, key: bytes, owner: str, now_ms: Callable[[], int]) -> None:
        self._keyed = Keyed(key)
        self._owner = owner
        self._now_ms = now_ms
        self._seen: set[bytes] = set()
        self._seen_before: set[bytes] = set()
        self._rotated_ms = 0

    def verify(self, method: bytes, url: bytes, headers: Headers, body: bytes) -> HopProof:
        """Return the caller that the other gateway has authorized. Raises HopRefused."""
        given = [value for name, value in headers if name == HOP]
        if len(given) != 1:
            raise HopRefused(HopProblem.UNSIGNED)
        claims, _, signature = given[0].rpartition(b" ")
        signed = [header for header in headers if header[0] not in _UNSIGNED]
        if not hmac.compare_digest(signature, _signature(self._keyed, claims, method, url, headers=signed, body=body)):
            raise HopRefused(HopProblem.SIGNATURE)
        # The signature is valid: the claims can be trusted from here on.
        home, at_ms, number, text = _read_claims(claims)
        if home != self._owner.encode("ascii"):
            raise HopNotAccepted(HopProblem.OTHER_TARGET)
        now = self._now_ms()
        if abs(now - at_ms) > WINDOW_MS:
            raise HopNotAccepted(HopProblem.NOT_IN_TIME)
        self._use_once(number, now)
        return _proof(text)

    def _use_once(self, number: bytes, now: int) -> None:
        """Reject a replayed nonce. Two generations of nonces cover at least the validity of a request."""
        if now - self._rotated_ms > 2 * WINDOW_MS:
            self._seen_before, self._seen, self._rotated_ms = self._seen, set(), now
        if number in self._seen or number in self._seen_before:
            raise HopRefused(HopProblem.REPLAYED)
        if len(self._seen) >= MAX_NONCES:
            raise HopNotAccepted(HopProblem.TOO_MANY)
        self._seen.add(number)


def _signature(keyed: Keyed, claims: bytes, method: bytes, url: bytes, *, headers: Headers, body: bytes) -> bytes:
    lines = b"".join([b"%b:%b\n" % header for header in headers])
    digest = hashlib.sha256(body).hexdigest().encode("ascii")
    return keyed.hex_digest(b"%b\n%b\n%b\n%b\n%b" % (claims, method, url, digest, lines))


def _read_claims(claims: bytes) -> tuple[bytes, int, bytes, bytes]:
    """Return home, time, nonce and caller. Gateways of other versions may use another format."""
    parts = claims.split(b" ")
    if parts[0] != _VERSION or len(parts) != 6 or not parts[3].isdigit():
        raise HopNotAccepted(HopProblem.OTHER_VERSION)
    return parts[2], int(parts[3]), parts[4], parts[5]


@lru_cache(maxsize=4096)
def _encode_caller(proof: HopProof) -> str:
    caller = proof.caller
    named = _SignedCaller(
        principal=caller.principal,
        roles=sorted(caller.roles),
        scope=caller.scope,
        place=caller.place,
        address=caller.address,
        facts=caller.facts,
        digest=proof.digest,
        issued_at=proof.issued_at,
    )
    return base64.urlsafe_b64encode(msgspec.json.encode(named)).decode("ascii")


@lru_cache(maxsize=4096)
def _proof(text: bytes) -> HopProof:
    try:
        named = msgspec.json.decode(base64.urlsafe_b64decode(text), type=_SignedCaller)
    except (binascii.Error, *UNDECODABLE) as error:
        raise HopRefused(HopProblem.CALLER) from error
    caller = Caller(
        principal=named.principal,
        roles=frozenset(named.roles),
        scope=named.scope,
        place=named.place,
        address=named.address,
        facts=named.facts,
    )
    return HopProof(caller, named.digest, named.issued_at)
