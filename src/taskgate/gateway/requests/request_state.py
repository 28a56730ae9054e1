"""Signed request state: what a stateless caller carries for us between two rounds of one call.

The caller can read it but not change it: it is signed, bound to the principal, the method and the name that was called, and it
expires. Nothing secret belongs inside.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Any

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError

LIFETIME_S = 3600


class State(msgspec.Struct, array_like=True):
    """`kind`: relay (an upstream's own state inside), held (a suspended call of ours), again (just call again)."""

    kind: str
    principal: str
    method: str
    name: str
    server: str
    body: str
    expires: int
    nonce: str = ""


class RequestStateSigner:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def close(self, kind: str, principal: str, method: str, name: str, server: str, *, body: str) -> str:
        state = State(kind, principal, method, name, server, body, int(clock.wall()) + LIFETIME_S, secrets.token_hex(6))
        payload = msgspec.json.encode(state)
        return _b64(payload + self._sign(payload))

    def open(self, text: Any, principal: str, method: str, name: str) -> State:
        """The state again, or a clear refusal; it never says which check failed."""
        refusal = CallerError("invalid_params", "The requestState is not valid here, or it has expired; call again.")
        if type(text) is not str:
            raise refusal
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            payload, signature = signed[:-32], signed[-32:]
            if not hmac.compare_digest(signature, self._sign(payload)):
                raise refusal
            state = msgspec.json.decode(payload, type=State)
        except (binascii.Error, ValueError, msgspec.DecodeError, UnicodeError):
            raise refusal from None
        bound = (state.principal, state.method, state.name) == (principal, method, name)
        if not bound or state.expires < clock.wall():
            raise refusal
        return state

    def held_id_in(self, text: Any) -> str | None:
        """The name of the suspended call that a state of ours leads back to; None if it is none, or not signed by us.

        Whether it may be used here and now is for `open` to say.
        """
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if type(text) is str else b""
            if not hmac.compare_digest(signed[-32:], self._sign(signed[:-32])):
                return None
            state = msgspec.json.decode(signed[:-32], type=State)
        except (binascii.Error, ValueError, msgspec.DecodeError, UnicodeError):
            return None
        return state.body if state.kind == "held" else None

    def mark(self, *parts: str) -> str:
        """A short signature of a few words, for what must not expire."""
        return self._sign(b"mark" + msgspec.json.encode(parts)).hex()[:32]

    def _sign(self, payload: bytes) -> bytes:
        return hmac.new(self._key, payload, hashlib.sha256).digest()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def text_of(raw: wire.Raw | None) -> str | None:
    value = wire.parse_strictly(bytes(raw)) if raw is not None else None
    return value if type(value) is str else None
