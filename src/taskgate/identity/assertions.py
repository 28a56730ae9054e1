"""Short-lived signed assertions (JWT) about callers, for servers and token exchange, with public keys to verify them.

An assertion names one principal and one audience, is valid for a minute, and never contains a credential that the caller sent.
The key is derived from the installation's secret, so all gateways on a store sign with the same key and nothing is stored.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from taskgate import clock

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey


_ASSERTIONS_PURPOSE: Final = b"taskgate statements about callers, version 1"
VALID_FOR_S: Final = 60
RENEW_AFTER_S: Final = 30.0
MAX_REMEMBERED: Final = 10_000
GATEWAY_SUBJECT: Final = "taskgate"


class Assertions:
    """`base` returns the public address of the gateway."""

    def __init__(self, secret: bytes, base: Callable[[], str]) -> None:
        self._seed = hashlib.blake2b(_ASSERTIONS_PURPOSE, key=secret[:64], digest_size=32).digest()
        self._base = base
        self._known: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._made: tuple[OKPKey, str] | None = None

    def about(self, principal: str, audience: str) -> str:
        """An assertion that this principal calls this audience; a new one is signed at most twice a minute."""
        now = clock.monotonic()
        known = self._known.get((principal, audience))
        if known is not None and now < known[1]:
            return known[0]
        text = self._signed(principal, audience)
        self._known[principal, audience] = (text, now + RENEW_AFTER_S)
        self._known.move_to_end((principal, audience))
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return text

    def public_keys(self) -> dict[str, Any]:
        key, key_id = self._key()
        return {"keys": [{**key.as_dict(private=False), "kid": key_id, "use": "sig", "alg": "EdDSA"}]}

    def _signed(self, principal: str, audience: str) -> str:
        from joserfc import jws

        key, key_id = self._key()
        now = int(clock.wall())
        claims = {
            "iss": self._base(),
            "sub": principal or GATEWAY_SUBJECT,
            "aud": audience,
            "iat": now,
            "exp": now + VALID_FOR_S,
            "jti": secrets.token_urlsafe(12),
        }
        head = {"alg": "EdDSA", "typ": "JWT", "kid": key_id}
        return jws.serialize_compact(head, json.dumps(claims), key, algorithms=["EdDSA"])

    def _key(self) -> tuple[OKPKey, str]:
        if self._made is None:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
            from joserfc.jwk import OKPKey

            private = Ed25519PrivateKey.from_private_bytes(self._seed)
            pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            key = OKPKey.import_key(pem)
            self._made = (key, key.thumbprint()[:16])
        return self._made
