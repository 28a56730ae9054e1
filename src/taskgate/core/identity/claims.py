"""Check the claims of a token and derive the identity from them.

The claims have a verified signature, or were returned by the issuer itself. The message of every refusal may be shown
to the sender of the token; none repeats a value from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from taskgate.core.identity.identity import Identity, claim_at, principal_name
from taskgate.core.identity.roles import GATEWAY_ROLES
from taskgate.core.settings.identity import Issued, Role

MAX_SUBJECT: Final = 255
MAX_STRINGS: Final = 500
FAR_FUTURE: Final = 2**53
THUMBPRINT: Final = "x5t#S256"
"""The member of the claim `cnf` with the SHA-256 of a certificate (RFC 8705)."""
_KIND_CLAIMS: Final = ("typ", "token_type", "token_use", "token_usage")
"""Claims, or members of an introspection response, in which issuers name the kind of a token."""
_OTHER_KINDS: Final = frozenset({"id", "id_token", "refresh", "refresh_token", "offline", "logout", "logout_token"})
_PROVED_KINDS: Final = frozenset({"dpop", "pop", "mac"})
_TENANT: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?\Z", re.ASCII)


class TokenProblem(StrEnum):
    """Why a token is not accepted. The value is the text for logs and replies."""

    OTHER_ISSUER = "it was issued by another issuer"
    OTHER_AUDIENCE = "it was issued for another audience"
    OTHER_CLIENT = "it was issued for another client"
    CLAIM_MISSING = "it lacks a required claim"
    NO_EXPIRY = "it has no expiry"
    EXPIRED = "it has expired"
    NOT_YET_VALID = "it is not valid yet"
    ISSUED_IN_FUTURE = "it was issued in the future"
    NO_AUDIENCE = "it has no audience"
    MANY_AUDIENCES = "it was issued for too many audiences"
    NO_SUBJECT = "it does not name a subject"
    NO_TENANT = "it does not name a tenant"
    TOO_LONG = "it is too long"
    NOT_SIGNED = "it is not a signed token"
    EXTENSIONS = "it demands extensions that are not supported here"
    NESTED = "it is encrypted, compressed or holds another token"
    NOT_ACCESS_TOKEN = "it is not an access token"
    PROOF = "it must be sent with a proof of a key that is not supported here"
    ALGORITHM = "it is signed with an algorithm that is not accepted"
    KEY_ID = "its key id is invalid"
    SIGNATURE = "its signature is invalid"
    UNREADABLE = "it cannot be read"
    INACTIVE = "it is unknown, expired or revoked"
    UNKNOWN = "it is not known"
    NOT_A_TIME = "its nbf or iat is not a time"
    MANY_VALUES = f"one of its claims has more than {MAX_STRINGS} values"


class TokenRefused(Exception):
    """A token that is not accepted."""

    def __init__(self, problem: TokenProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class TokenExpired(TokenRefused):
    """A token that was valid and has expired."""


def identity_in(claims: Mapping[str, Any], rules: Issued, now: float) -> tuple[Identity, float]:
    """Return the identity and its expiry. Raises TokenRefused."""
    if claims.get("iss") != rules.issuer:
        raise TokenRefused(TokenProblem.OTHER_ISSUER)
    expires = _in_time(claims, rules.skew, now)
    audiences = _audiences(claims)
    if rules.audiences is not None:
        if audiences.isdisjoint(rules.audiences):
            raise TokenRefused(TokenProblem.OTHER_AUDIENCE)
        audiences = frozenset()
    for path, allowed in rules.require.items():
        found = claim_at(claims, path)
        if not any(_as_word(each) in allowed for each in (found if isinstance(found, list) else [found])):
            raise TokenRefused(TokenProblem.CLAIM_MISSING)
    tenant = _tenant(claims, rules.claims.tenant)
    client = claims.get("client_id", claims.get("azp"))
    return (
        Identity(
            principal_name(tenant, f"{rules.issuer}#{_subject(claims)}"),
            _roles(strings_in(claim_at(claims, rules.claims.groups)), rules.roles),
            tenant=tenant,
            audiences=None if rules.audiences is not None else audiences,
            oauth_scopes=frozenset(strings_in(claim_at(claims, rules.claims.scopes), split=True)),
            client_id=client if isinstance(client, str) else "",
            authenticated_at=_whole(claims.get("auth_time")),
            claims=claims,
        ),
        expires,
    )


def bound_certificate(claims: Mapping[str, Any]) -> str:
    """Return the thumbprint of the certificate to which an access token is bound; empty if its bearer may use it.

    Raises TokenRefused for other kinds of token, and for tokens bound to a key of which the gateway verifies no proof.
    """
    # An access token has no events: they make it a logout token or another notification of the issuer (RFC 8417).
    if "events" in claims or any(_kind(claims.get(name)) in _OTHER_KINDS for name in _KIND_CLAIMS):
        raise TokenRefused(TokenProblem.NOT_ACCESS_TOKEN)
    if "cnf" not in claims:
        if any(_kind(claims.get(name)) in _PROVED_KINDS for name in _KIND_CLAIMS):
            raise TokenRefused(TokenProblem.PROOF)
        return ""
    confirmation = claims["cnf"]
    thumbprint = confirmation.get(THUMBPRINT) if isinstance(confirmation, Mapping) else None
    if not isinstance(thumbprint, str) or not thumbprint or len(confirmation) != 1:
        raise TokenRefused(TokenProblem.PROOF)
    return thumbprint


def _kind(value: Any) -> str:
    """Return the kind in one spelling: `Refresh`, and `refresh_token` at the end of a URN."""
    return value.rpartition(":")[2].strip().lower() if isinstance(value, str) else ""


def _roles(groups: tuple[str, ...], given: Mapping[Role, tuple[str, ...]]) -> frozenset[str]:
    """Groups, and the roles that they grant. A group named like a role of the gateway grants none."""
    from_groups = {role for role, by in given.items() if not set(groups).isdisjoint(by)}
    return frozenset(from_groups | {group for group in groups if group not in GATEWAY_ROLES})


def strings_in(value: Any, *, split: bool = False) -> tuple[str, ...]:
    """Return the strings of a claim that has one or several. OAuth writes several into one string, separated by spaces."""
    if isinstance(value, str):
        found = value.split() if split else [value]
    elif isinstance(value, list):
        found = [each for each in value if isinstance(each, str)]
    else:
        return ()
    if len(found) > MAX_STRINGS:
        raise TokenRefused(TokenProblem.MANY_VALUES)
    return tuple(found)


def _in_time(claims: Mapping[str, Any], skew_s: float, now: float) -> float:
    expires = _whole(claims.get("exp"))
    if expires is None:
        raise TokenRefused(TokenProblem.NO_EXPIRY)
    if now >= expires + skew_s:
        raise TokenExpired(TokenProblem.EXPIRED)
    for name, fault in (("nbf", TokenProblem.NOT_YET_VALID), ("iat", TokenProblem.ISSUED_IN_FUTURE)):
        if name in claims:
            moment = _whole(claims[name])
            if moment is None:
                raise TokenRefused(TokenProblem.NOT_A_TIME)
            if moment > now + skew_s:
                raise TokenRefused(fault)
    return float(expires + skew_s)


def _audiences(claims: Mapping[str, Any]) -> frozenset[str]:
    value = claims.get("aud")
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise TokenRefused(TokenProblem.NO_AUDIENCE)
    if len(found) > MAX_STRINGS:
        raise TokenRefused(TokenProblem.MANY_AUDIENCES)
    return frozenset(found)


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject or len(subject) > MAX_SUBJECT or not subject.isprintable():
        raise TokenRefused(TokenProblem.NO_SUBJECT)
    return subject


def _tenant(claims: Mapping[str, Any], path: str | None) -> str:
    """If tenants are configured, a token without a tenant is refused."""
    if path is None:
        return ""
    tenant = claim_at(claims, path)
    if not isinstance(tenant, str) or not _TENANT.match(tenant):
        raise TokenRefused(TokenProblem.NO_TENANT)
    return tenant


def _whole(value: Any) -> int | None:
    """Return a time in whole seconds. The standard allows fractions; invalid values are None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < FAR_FUTURE else None


def _as_word(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int)) else None
