"""How the gateway obtains access tokens for a server; one dataclass for each kind of `auth` in the configuration."""

from __future__ import annotations

from dataclasses import field

from taskgate.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The gateway's own client credentials at the issuer of a server (RFC 6749, section 4.4)."""

    server: str
    resource: str
    client_id: str
    client_secret: str = field(repr=False)
    issuer: str | None = None
    """None: from the metadata of the server."""
    token_url: str | None = None
    scope: str | None = None
    per_principal: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class StoredLogin:
    """A person's login: one that all callers share, or one for each principal."""

    server: str
    resource: str
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(repr=False, default=None)
    scope: str | None = None
    per_principal: bool = False


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """Tokens in the name of each caller, exchanged for an assertion of the gateway (RFC 8693)."""

    server: str
    resource: str
    client_id: str
    client_secret: str = field(repr=False)
    issuer: str | None = None
    token_url: str | None = None
    scope: str | None = None
    per_principal: bool = field(default=True, init=False)


@dataclass(frozen=True, slots=True)
class ForwardedIdentity:
    """No issuer: the server accepts the gateway's own assertions about the caller."""

    server: str
    resource: str
    header: str = "authorization"
    per_principal: bool = field(default=True, init=False)


Settings = ClientCredentials | StoredLogin | TokenExchange | ForwardedIdentity
