"""Who is at the door: a bearer token names a principal, no token is anonymous, a wrong one is refused."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from taskgate.core.caller import ANONYMOUS
from taskgate.core.governance.approval import Approver

OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Token:
    """A known token: who it stands for. Only its digest is kept."""

    id: str
    sha256: str
    roles: frozenset[str] = frozenset()
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    principal: str = ANONYMOUS
    roles: frozenset[str] = frozenset()
    scope: str | None = None

    @property
    def is_operator(self) -> bool:
        return OPERATOR in self.roles


NOBODY = Identity()


class WrongToken(Exception):
    """A credential was given and is not one of ours."""


def token_digest(token: str | bytes) -> str:
    return hashlib.sha256(token.encode("utf-8") if isinstance(token, str) else token).hexdigest()


def operator_identity(token: str) -> Token:
    """The operator's token as the door keeps it."""
    return Token(OPERATOR, token_digest(token), frozenset({OPERATOR}))


class Doorkeeper:
    """`operator` is the token of whoever owns the gateway; knowing it does not make other tokens necessary."""

    def __init__(self, tokens: tuple[Token, ...] = (), operator: Token | None = None) -> None:
        self._tokens = tokens
        self._all = (*tokens, operator) if operator is not None else tokens

    def identify(self, authorization: bytes | None) -> Identity:
        if authorization is None:
            return NOBODY
        scheme, _, credential = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            if self._tokens:
                raise WrongToken
            return NOBODY
        digest = hashlib.sha256(credential.strip()).hexdigest()
        found: Token | None = None
        for token in self._all:
            # Every token is compared, so the time taken tells nothing about which one was near.
            if hmac.compare_digest(token.sha256, digest):
                found = token
        if found is None:
            if self._tokens:
                raise WrongToken
            return NOBODY
        return Identity(found.id, found.roles, found.scope)


def holder_at(doorkeeper: Doorkeeper, authorization: bytes) -> Approver | None:
    """The person behind a bearer token, whatever they may do. Nobody behind a token that is not known."""
    try:
        identity = doorkeeper.identify(authorization)
    except WrongToken:
        return None
    if identity.principal == ANONYMOUS:
        return None
    return Approver(identity.principal, identity.roles, identity.is_operator)
