"""Who is at the transport: a bearer token names a principal, and the operator has one of its own."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taskgate import clock
from taskgate.atomic_files import create_file, replace_file
from taskgate.core.governance.approval import Approver
from taskgate.core.identity import (
    NO_REQUIREMENT,
    NOBODY,
    OWNER_ROLES,
    Identity,
    Requirement,
    TokenRefused,
    principal_name,
)
from taskgate.ports.credentials import CredentialRecords, CredentialVerifier, IssuerUnavailable

OPERATOR = "operator"
NEVER = float("inf")

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
    tenant: str = ""
    expires: float = NEVER

    @property
    def identity(self) -> Identity:
        name = principal_name(self.tenant, self.id)
        return Identity(name, self.roles, self.scope, self.may_call, self.tenant)


TEMPORARY_PREFIX: Final = b"tgs_"


class WrongToken(Exception):
    """A credential was given and is not one of ours, or not good any more."""


class TokenNeeded(Exception):
    """No credential was given, and anonymous callers are not served here."""


class NotVerifiedYet(Exception):
    """The credential may be an issuer's: `verify` finds out, after which `identify` knows it."""

    def __init__(self, credential: bytes) -> None:
        super().__init__()
        self.credential = credential


def token_digest(token: str | bytes) -> str:
    return hashlib.sha256(token.encode("utf-8") if isinstance(token, str) else token).hexdigest()


def operator_identity(token: str) -> Token:
    """The operator's token as the transport keeps it."""
    return Token(OPERATOR, token_digest(token), OWNER_ROLES)


class CallerIdentifier:
    """`operator` is the token of whoever owns the gateway; knowing it does not make other tokens necessary.

    `anonymous` is the only scope that needs no identity; without it and without credentials every scope is open, unless the
    gateway is `private`: then only its owner and the holders of credentials may come.
    """

    def __init__(
        self,
        tokens: tuple[Token, ...],
        operator: Token | None,
        anonymous: str | None,
        verifier: CredentialVerifier | None,
        requirements: Mapping[str, Requirement],
        *,
        scope_of_token: ScopeOfToken,
        records: CredentialRecords,
        certificates: Mapping[str, Identity],
        private: bool = False,
    ) -> None:
        known = (*tokens, operator) if operator is not None else tokens
        # Found by digest: how long that takes says nothing about a token, because nobody can aim at a digest.
        self._known = {token.sha256: (token.identity, token.expires) for token in known}
        self._verifier = verifier
        self._requirements = requirements
        self._scope_of_token = scope_of_token
        self._records = records
        self._certificates = certificates
        known_by_us = bool(tokens or certificates)
        self.requires_identity = known_by_us or verifier is not None or anonymous is not None or private
        if not self.requires_identity:
            self._nobody: Identity | None = NOBODY
        else:
            self._nobody = Identity(scope=anonymous) if anonymous is not None else None

    @property
    def issuers(self) -> tuple[str, ...]:
        """Where callers can get a credential; empty if only our own tokens count."""
        return self._verifier.issuers if self._verifier is not None else ()

    def requirement(self, scope: str) -> Requirement:
        return self._requirements.get(scope, NO_REQUIREMENT)

    def identify(self, authorization: bytes | None, certificate: tuple[str, ...] = ()) -> Identity:
        """`certificate`: the names that a client proved by one. Raises WrongToken, TokenNeeded and NotVerifiedYet."""
        if authorization is None:
            by_certificate = self._by_certificate(certificate) if certificate else None
            return by_certificate or self._without_token()
        scheme, _, credential = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            credential = credential.strip()
            if credential.startswith(TEMPORARY_PREFIX):
                return self._in_temporary_scope(credential)
            digest = hashlib.sha256(credential).hexdigest()
            known = self._known.get(digest)
            if known is not None and self._is_good(digest, known[1]):
                return known[0]
            if known is None and self._verifier is not None:
                identity = self._verifier.remembered(credential)
                if identity is None:
                    raise NotVerifiedYet(credential)
                if self._records.is_recalled(identity):
                    raise WrongToken
                return identity
        if self.requires_identity:
            raise WrongToken
        return NOBODY

    async def verify(self, credential: bytes) -> None:
        """Find out about a credential that is not known yet. Raises TokenRefused and IssuerUnavailable."""
        if self._verifier is None:
            raise TokenRefused("it is not known")
        self._records.note(await self._verifier.verify(credential))

    def _is_good(self, digest: str, expires: float) -> bool:
        return (expires == NEVER or clock.wall() < expires) and not self._records.is_revoked(digest)

    def _by_certificate(self, names: tuple[str, ...]) -> Identity | None:
        """Names of two callers in one certificate prove neither."""
        known = {name: self._certificates[name] for name in names if name in self._certificates}
        one = len({identity.principal for identity in known.values()}) == 1
        return next(iter(known.values())) if one else None

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


async def holder_at(caller_identifier: CallerIdentifier, authorization: bytes) -> Approver | None:
    """The person behind a bearer token, whatever they may do. Nobody behind a token that is not known."""
    try:
        try:
            identity = caller_identifier.identify(authorization)
        except NotVerifiedYet as unverified:
            await caller_identifier.verify(unverified.credential)
            identity = caller_identifier.identify(authorization)
    except (WrongToken, TokenNeeded, TokenRefused, NotVerifiedYet, IssuerUnavailable):
        return None
    if identity.anonymous:
        return None
    return Approver(identity.principal, identity.roles, identity.may_call)


# The operator's token and the gateway's own secret: made at first start, kept in the state directory, readable by its
# owner only.
#
# Whoever can read the token file is the operator. Where agents run as the same user, a passphrase can be asked for
# besides: it is kept only as a hash, and read once at the start, so that taking the file away opens nothing in a
# running gateway. The secret signs what Taskgate hands out for itself (sessions of the pages, signed request state); it
# stays the same over restarts.

TOKEN_FILE: Final = "operator-token"
SECRET_FILE: Final = "secret"
PASSPHRASE_FILE: Final = "passphrase"
_PREFIX: Final = "tgop_"
_MOST: Final = 4096
Maker = Callable[[], str]


def operator_token(state_dir: Path) -> str:
    """The token, made if there is none yet."""
    return kept(state_dir / TOKEN_FILE, lambda: _PREFIX + secrets.token_urlsafe(32))


def replace_operator_token(state_dir: Path, token: str) -> None:
    """Gateways that share a store have one token; what was made here for nobody else gives way to it."""
    _replace(state_dir / TOKEN_FILE, token)


def house_secret(state_dir: Path) -> bytes:
    return kept(state_dir / SECRET_FILE, lambda: secrets.token_hex(32)).encode("ascii")


def kept(path: Path, make: Maker) -> str:
    """The content of the file; if there is none, a new value. Of several processes that start at once, one makes it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            create_file(path, f"{make()}\n".encode("ascii"))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "r", encoding="ascii") as file:
        # Others may have been able to read it if somebody changed its rights.
        os.fchmod(file.fileno(), 0o600)
        value = file.read(_MOST).strip()
    if len(value) < 32:
        raise OSError(f"{path} is damaged; remove it, and a new one will be made at the next start")
    return value


def _replace(path: Path, value: str) -> None:
    """In one step: there is no moment, and no crash, after which the file is missing and a start would do without it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, f"{value}\n".encode("ascii"))


def set_passphrase(state_dir: Path, passphrase: str) -> None:
    """Keep the hash of a new passphrase; the next start of the gateway asks for it."""
    salt = secrets.token_hex(16)
    _replace(state_dir / PASSPHRASE_FILE, f"scrypt:{salt}:{_stretched(passphrase, salt)}")


def stored_passphrase(state_dir: Path) -> str | None:
    path = state_dir / PASSPHRASE_FILE
    return kept(path, str) if path.exists() else None


def passphrase_with_time(state_dir: Path) -> bytes:
    """What gateways that share a store compare: when it was set (milliseconds), and its hash. Empty where none was set."""
    stored = stored_passphrase(state_dir)
    if stored is None:
        return b""
    return f"{(state_dir / PASSPHRASE_FILE).stat().st_mtime_ns // 1_000_000} {stored}".encode("ascii")


def set_at(passphrase: bytes) -> int:
    return int(passphrase.partition(b" ")[0] or 0)


def adopt_passphrase(state_dir: Path, agreed: bytes) -> None:
    """The one that was set at another gateway takes the place of what was set here before, with its time."""
    path = state_dir / PASSPHRASE_FILE
    _replace(path, agreed.partition(b" ")[2].decode("ascii"))
    os.utime(path, ns=(set_at(agreed) * 1_000_000,) * 2)


def passphrase_fits(stored: str, given: str) -> bool:
    _, salt, digest = stored.split(":")
    return hmac.compare_digest(_stretched(given, salt), digest)


def _stretched(passphrase: str, salt: str) -> str:
    return hashlib.scrypt(passphrase.encode("utf-8", "replace"), salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()
