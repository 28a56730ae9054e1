"""Who is at the door: a bearer token names a principal.

As soon as one token is configured, a request without a token is refused, except in the one scope that `auth.anonymous` names.
Where none is configured everybody is anonymous. Other kinds of credential (signed tokens of an issuer, a login) are to become
further ways to an `Identity`; nothing behind the door asks how somebody was identified.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from taskgate.core.caller import ANONYMOUS
from taskgate.core.governance.approval import Approver

OPERATOR = "operator"

ScopeOfToken = Callable[[str], str | None]
"""The temporary scope that the token of this digest was made for."""


@dataclass(frozen=True, slots=True)
class Token:
    """A known token: who it stands for. Only its digest is kept."""

    id: str
    sha256: str
    roles: frozenset[str] = frozenset()
    scope: str | None = None
    may_call: bool = True


@dataclass(frozen=True, slots=True)
class Identity:
    principal: str = ANONYMOUS
    roles: frozenset[str] = frozenset()
    scope: str | None = None
    """The only scope that it opens."""
    may_call: bool = True

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS

    @property
    def is_operator(self) -> bool:
        return OPERATOR in self.roles


NOBODY = Identity()
TEMPORARY_PREFIX: Final = b"tgs_"


class WrongToken(Exception):
    """A credential was given and is not one of ours."""


class TokenNeeded(Exception):
    """No credential was given, and anonymous callers are not served here."""


def token_digest(token: str | bytes) -> str:
    return hashlib.sha256(token.encode("utf-8") if isinstance(token, str) else token).hexdigest()


def operator_identity(token: str) -> Token:
    """The operator's token as the door keeps it."""
    return Token(OPERATOR, token_digest(token), frozenset({OPERATOR}))


class Doorkeeper:
    """`operator` is the token of whoever owns the gateway; knowing it does not make other tokens necessary.

    `anonymous` is the only scope that needs no identity; without it and without tokens every scope is open, unless the gateway
    is `private`: then only its owner and the holders of tokens may come.
    """

    def __init__(
        self,
        tokens: tuple[Token, ...],
        operator: Token | None,
        anonymous: str | None,
        *,
        scope_of_token: ScopeOfToken,
        private: bool = False,
    ) -> None:
        self._scope_of_token = scope_of_token
        self._all = (*tokens, operator) if operator is not None else tokens
        self.requires_identity = bool(tokens) or anonymous is not None or private
        if not self.requires_identity:
            self._nobody: Identity | None = NOBODY
        else:
            self._nobody = Identity(scope=anonymous) if anonymous is not None else None

    def identify(self, authorization: bytes | None) -> Identity:
        """Raises WrongToken, and TokenNeeded where nobody may come without one."""
        if authorization is None:
            return self._without_token()
        scheme, _, credential = authorization.partition(b" ")
        credential = credential.strip() if scheme.lower() == b"bearer" else b""
        if credential.startswith(TEMPORARY_PREFIX):
            return self._in_temporary_scope(credential)
        found = self._holder(credential) if credential else None
        if found is not None:
            return Identity(found.id, found.roles, found.scope, found.may_call)
        if self.requires_identity:
            raise WrongToken
        return NOBODY

    def _in_temporary_scope(self, credential: bytes) -> Identity:
        """Its bearer is known by the name of the scope. One whose scope has ended is nobody, also where nobody needs a token."""
        scope = self._scope_of_token(hashlib.sha256(credential).hexdigest())
        if scope is None:
            raise WrongToken
        return Identity(scope, scope=scope)

    def _without_token(self) -> Identity:
        if self._nobody is None:
            raise TokenNeeded
        return self._nobody

    def _holder(self, credential: bytes) -> Token | None:
        digest = hashlib.sha256(credential).hexdigest()
        found: Token | None = None
        for token in self._all:
            # Every token is compared, so the time taken tells nothing about which one was near.
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found


def holder_at(doorkeeper: Doorkeeper, authorization: bytes) -> Approver | None:
    """The person behind a bearer token, whatever they may do. Nobody behind a token that is not known."""
    try:
        identity = doorkeeper.identify(authorization)
    except (WrongToken, TokenNeeded):
        return None
    if identity.principal == ANONYMOUS:
        return None
    return Approver(identity.principal, identity.roles, identity.is_operator, identity.may_call)
