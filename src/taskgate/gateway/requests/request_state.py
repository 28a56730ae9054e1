"""Signed request state: what a stateless caller carries for the gateway between two rounds of one call.

The caller can read it but not change it: it is signed, bound to principal, method and name, and it expires. It contains no
secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import (
    CallerError,
)
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.shown_fields import repr_without

LIFETIME_S = 3600
_INVALID_STATE: Final = (
    "The requestState is not valid here, or it has expired. What the call did before may have taken effect."
)


class RequestState(msgspec.Struct, array_like=True):
    """`kind`: relay (contains the server's state), held (a suspended call), again (repeat the call)."""

    kind: str
    principal: str
    method: str
    name: str
    server: str
    body: str
    expires: int
    nonce: str = ""
    home: str = ""
    """The gateway that the caller must be forwarded to, if only that one can continue the call."""


class RequestStateSigner(msgspec.Struct, eq=False):
    """`now_ms` is the store's clock: the next round may reach another gateway, whose own clock may differ."""

    _key: bytes
    _now_ms: Callable[[], int]

    __repr__ = repr_without("_key")

    def sign(self, kind: str, principal: str, method: str, name: str, server: str, *, body: str, home: str = "") -> str:
        expires, nonce = self._now_ms() // 1000 + LIFETIME_S, secrets.token_hex(6)
        state = RequestState(
            kind=kind,
            principal=principal,
            method=method,
            name=name,
            server=server,
            body=body,
            expires=expires,
            nonce=nonce,
            home=home,
        )
        payload = msgspec.json.encode(state)
        return _b64(payload + self._sign(payload))

    def verify(self, text: Any, principal: str, method: str, name: str) -> RequestState:
        """Return the state. Raises CallerError, without revealing which check failed."""
        refusal = CallerError("invalid_params", _INVALID_STATE)
        if type(text) is not str:
            raise refusal
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            payload, signature = signed[:-32], signed[-32:]
            if not hmac.compare_digest(signature, self._sign(payload)):
                raise refusal
            state = msgspec.json.decode(payload, type=RequestState)
        except (binascii.Error, ValueError, *UNDECODABLE):
            raise refusal from None
        bound = (state.principal, state.method, state.name) == (principal, method, name)
        if not bound or state.expires * 1000 < self._now_ms():
            raise refusal
        return state

    def home_in(self, text: Any) -> tuple[str, bool]:
        """The gateway that the state names, or an empty string, and whether a suspended call waits there.

        Only the signature is checked here; `verify` checks whether the state may be used.
        """
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if type(text) is str else b""
            if not hmac.compare_digest(signed[-32:], self._sign(signed[:-32])):
                return "", False
            state = msgspec.json.decode(signed[:-32], type=RequestState)
        except (binascii.Error, ValueError, *UNDECODABLE):
            return "", False
        return state.home, state.kind == "held"

    def sign_permanently(self, *parts: str) -> str:
        """A short signature of these parts that does not expire."""
        return self._sign(b"mark" + msgspec.json.encode(parts)).hex()[:32]

    def _sign(self, payload: bytes) -> bytes:
        return hmac.new(self._key, payload, hashlib.sha256).digest()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def text_of(raw: wire.Raw | None) -> str | None:
    value = wire.parse_strictly(bytes(raw)) if raw is not None else None
    return value if type(value) is str else None
