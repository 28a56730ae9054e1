"""Parses signed tokens (JWT, RFC 7519; access tokens by RFC 9068) and verifies their signatures.

The configuration chooses the algorithms, never the token; keys come only from the issuer's key set, never from the token's header.
Header and claims are parsed strictly.
"""

from __future__ import annotations

import base64
import binascii
import warnings
from typing import Any, Final

import msgspec

from taskgate.core.identity.claims import TokenProblem, TokenRefused
from taskgate.core.settings.identity import Issued
from taskgate.identity.signing_keys import SigningKeys
from taskgate.identity.strict_json import NotStrict, strict_object
from taskgate.turns import let_others_run

MAX_SIGNED_BYTES: Final = 16_384
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})


class Issuer(msgspec.Struct, frozen=True):
    """An issuer whose signed tokens are accepted."""

    rules: Issued
    algorithms: frozenset[str]
    keys: SigningKeys


class Unverified(msgspec.Struct, frozen=True):
    """A parsed token whose signature has not been verified."""

    text: str
    header: dict[str, Any]
    claims: dict[str, Any]

    @property
    def issuer(self) -> str:
        return str(self.claims.get("iss", ""))


def looks_signed(credential: bytes) -> bool:
    """Whether this is a signed token by its form: three parts, of which the first is a JSON object."""
    return credential.count(b".") == 2 and credential.startswith(b"eyJ")


def parse_token(credential: bytes) -> Unverified:
    """Raises TokenRefused."""
    if len(credential) > MAX_SIGNED_BYTES:
        raise TokenRefused(TokenProblem.TOO_LONG)
    parts = credential.split(b".")
    if len(parts) != 3 or not all(parts[:2]) or not credential.isascii():
        raise TokenRefused(TokenProblem.NOT_SIGNED)
    header, claims = _object(parts[0]), _object(parts[1])
    if "crit" in header or "b64" in header:
        raise TokenRefused(TokenProblem.EXTENSIONS)
    if "cty" in header or "zip" in header or "enc" in header:
        raise TokenRefused(TokenProblem.NESTED)
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused(TokenProblem.NOT_ACCESS_TOKEN)
    return Unverified(credential.decode("ascii"), header, claims)


async def check_signature(token: Unverified, issuer: Issuer) -> None:
    """Raises TokenRefused, and IssuerUnavailable if the issuer's keys cannot be fetched."""
    algorithm, key_id = token.header.get("alg"), token.header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
        raise TokenRefused(TokenProblem.ALGORITHM)
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > 256):
        raise TokenRefused(TokenProblem.KEY_ID)
    for key in await issuer.keys.candidates(key_id, algorithm):
        if _verifies(token.text, key, algorithm):
            return
        # A token without a key id is tried with each key.
        await let_others_run()
    raise TokenRefused(TokenProblem.SIGNATURE)


def _verifies(text: str, key: Any, algorithm: str) -> bool:
    from joserfc import jws
    from joserfc.errors import JoseError

    try:
        with warnings.catch_warnings():
            # Most issuers still use EdDSA where RFC 9864 requires Ed25519; the operator allowed it by name.
            warnings.simplefilter("ignore")
            jws.deserialize_compact(text, key, algorithms=[algorithm])
    except (JoseError, ValueError, TypeError):
        return False
    return True


def _object(part: bytes) -> dict[str, Any]:
    try:
        raw = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
        return strict_object(raw)
    except (binascii.Error, NotStrict):
        raise TokenRefused(TokenProblem.UNREADABLE) from None
