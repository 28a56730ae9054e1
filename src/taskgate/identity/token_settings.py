"""How the gateway obtains access tokens for a server; one class for each kind of `auth` in the configuration."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from taskgate.shown_fields import repr_without


class ClientCredentials(msgspec.Struct, frozen=True):
    """The gateway's own client credentials at the issuer of a server (RFC 6749, section 4.4)."""

    server: str
    resource: str
    client_id: str
    client_secret: str
    issuer: str | None = None
    """None: from the metadata of the server."""
    token_url: str | None = None
    scope: str | None = None
    per_principal: ClassVar = False

    __repr__ = repr_without("client_secret")


class StoredLogin(msgspec.Struct, frozen=True):
    """A person's login: one that all callers share, or one for each principal."""

    server: str
    resource: str
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    per_principal: bool = False

    __repr__ = repr_without("client_secret")


class TokenExchange(msgspec.Struct, frozen=True):
    """Tokens in the name of each caller, exchanged for an assertion of the gateway (RFC 8693)."""

    server: str
    resource: str
    client_id: str
    client_secret: str
    issuer: str | None = None
    token_url: str | None = None
    scope: str | None = None
    per_principal: ClassVar = True

    __repr__ = repr_without("client_secret")


class ForwardedIdentity(msgspec.Struct, frozen=True):
    """No issuer: the server accepts the gateway's own assertions about the caller."""

    server: str
    resource: str
    header: str = "authorization"
    per_principal: ClassVar = True


Settings = ClientCredentials | StoredLogin | TokenExchange | ForwardedIdentity
