"""The `tokens` and `auth` sections: how callers authenticate, and what a scope requires of them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import SECRET, Section, read_by
from taskgate.core.settings.values import Duration, HttpUrl, Moment, Name, ScopeName, Sha256, Strings


def _issuer(text: str) -> str:
    if "?" in text or "#" in text:
        raise ValueError("is not an issuer (it contains ? or #); copy the `iss` claim of a token")
    return text


Issuer = Annotated[HttpUrl, read_by(_issuer)]
Role = Literal["viewer", "approver", "operator", "admin"]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]


class ClaimNames(Section):
    """Which claims of a token hold which information: a claim name, or a path such as `realm_access.roles`."""

    groups: Annotated[str, Meta(description="Claim with groups or roles. Used by Cedar, `require` and `roles`.")] = (
        "groups"
    )
    tenant: Annotated[
        str | None,
        Meta(
            description="Claim with the tenant. When set, every token must have it, and tenants are isolated from each other."
        ),
    ] = None
    scopes: Annotated[str, Meta(description="Claim with the OAuth scopes, as a list or separated by spaces.")] = "scope"


class Issued(Section):
    """Requirements for the tokens of one issuer."""

    issuer: Annotated[Issuer, Meta(description="Issuer URL, exactly as in the tokens.")]
    audiences: Annotated[
        Strings | None, Meta(description="Accepted audiences. Default: only the URL of the requested scope.")
    ] = None
    skew: Annotated[Duration, Meta(description="Tolerated clock difference.")] = duration("60s")
    claims: Annotated[ClaimNames, Meta(description="Names of claims.")] = ClaimNames()
    require: Annotated[
        dict[str, Strings], Meta(description="Claims that every token must have, each with its accepted values.")
    ] = field(default_factory=dict)
    roles: Annotated[
        dict[Role, Strings],
        Meta(description="Roles of this gateway, each with the groups that have it."),
    ] = field(default_factory=dict)


class Jwt(Issued):
    """An issuer whose JWTs are verified with its public keys."""

    jwks_url: Annotated[
        HttpUrl | None, Meta(description="URL of the public keys. Default: from the issuer's metadata.")
    ] = None
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1, description="Accepted signature algorithms.")] = (
        "RS256",
        "ES256",
    )


class Introspection(Issued, kw_only=True):
    """An issuer that validates opaque tokens by introspection (RFC 7662)."""

    url: Annotated[HttpUrl, Meta(description="Introspection endpoint.")]
    client_id: Annotated[str, Meta(description="Client id of the gateway at the issuer.")]
    client_secret: Annotated[
        str, Meta(extra=SECRET, description="Client secret, by reference, for example `${env:SECRET}`.")
    ]
    remember: Annotated[
        Duration,
        Meta(ge=1, le=300, description="How long a result is cached. A revoked token stays valid for up to this time."),
    ] = duration("5s")


class OidcLogin(Jwt, kw_only=True):
    """An OpenID Connect provider for logins to the web console."""

    audiences: Annotated[None, Meta(description="Not used: an ID token is issued for `client_id`.")] = None
    client_id: Annotated[
        str, Meta(description="Client id of the gateway. Register `PUBLIC_URL/login/callback` as its redirect URI.")
    ]
    client_secret: Annotated[
        str | None,
        Meta(
            extra=SECRET,
            description="Client secret, by reference, for example `${env:SECRET}`. Without one, PKCE alone is used.",
        ),
    ] = None
    scopes: Annotated[Strings, Meta(description="OAuth scopes to request. Must include `openid`.")] = (
        "openid",
        "profile",
    )


class Certificate(Section):
    """A caller that is identified by a client certificate, verified with `listen.tls.client_ca` or by a trusted proxy."""

    name: Annotated[
        str,
        Meta(
            pattern="^(dns|uri|email|cn):.+",
            description="Name in the certificate: `dns:HOST`, `uri:URI`, `email:ADDRESS` or `cn:COMMON NAME`.",
        ),
    ]
    id: Annotated[Name, Meta(description="Name of the principal.")]
    roles: Annotated[Strings, Meta(description="Roles and groups.")] = ()
    scope: Annotated[ScopeName | None, Meta(description="The only scope that it may use.")] = None
    tenant: Annotated[Name | None, Meta(description="Tenant of the principal.")] = None


class Auth(Section):
    """How callers authenticate.

    Without `tokens` and issuers no authentication is required, and the gateway listens on loopback only.
    """

    none: Annotated[
        bool,
        Meta(
            description="Written as `auth: none`: listen beyond loopback without authentication. Anyone who can reach the "
            "address may call."
        ),
    ] = False
    anonymous: Annotated[
        ScopeName | None, Meta(description="The one scope that requires no token although others do.")
    ] = None
    anonymous_tasks: Annotated[
        Literal["id", "session"],
        Meta(
            description="What opens a task of a caller without an identity: its `id`, with which others can read and cancel "
            "it too; or only the `session` that started it (2025), or a request with the same `taskgate/client` "
            "(2026), which is not a secret."
        ),
    ] = "id"
    jwt: Annotated[tuple[Jwt, ...], Meta(description="Issuers whose JWTs are accepted.")] = ()
    login: Annotated[
        OidcLogin | None, Meta(description="OpenID Connect login to the web console, in addition to login links.")
    ] = None
    certificates: Annotated[
        tuple[Certificate, ...], Meta(description="Callers that are identified by a client certificate.")
    ] = ()
    introspection: Annotated[Introspection | None, Meta(description="An issuer that validates opaque tokens.")] = None


class ScopeRequirement(Section):
    """What a caller needs to use a scope. Every given condition must hold."""

    groups: Annotated[Strings, Meta(description="At least one of these groups or roles.")] = ()
    oauth_scopes: Annotated[
        Strings,
        Meta(description="All of these OAuth scopes. A client without them gets HTTP 403 and can request them."),
    ] = ()
    claims: Annotated[dict[str, Strings], Meta(description="Each of these claims, with one of the given values.")] = (
        field(default_factory=dict)
    )


class Token(Section):
    """A caller or approver that is identified by a bearer token."""

    id: Annotated[Name, Meta(description="Name of the principal.")]
    sha256: Annotated[
        Sha256,
        Meta(extra=SECRET, description="SHA-256 digest of the token. `taskgate tokens new NAME` prints one."),
    ]
    roles: Annotated[
        Strings,
        Meta(description="`viewer`, `approver`, `operator`, `admin`, or your own groups. Cedar receives all of them."),
    ] = ()
    scope: Annotated[ScopeName | None, Meta(description="The only scope that this token may use.")] = None
    may_call: Annotated[
        bool,
        Meta(
            description="Whether this token may call tools. A token that may not call can also approve calls of anonymous "
            "callers."
        ),
    ] = True
    tenant: Annotated[
        Name | None, Meta(description="Tenant of the principal. Tenants are isolated from each other.")
    ] = None
    expires: Annotated[
        Moment | None,
        Meta(description="The token is refused from this time on, for example `2027-01-31T00:00:00Z`."),
    ] = None
