"""The `tokens` and `auth` sections: how callers authenticate, and what a scope requires of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from taskgate.config.model.values import Duration, HttpUrl, Name, ScopeName, Sha256, Strings
from taskgate.config.sections import AfterValidator, AwareDatetime, Field, Section


def _issuer(text: str) -> str:
    if "?" in text or "#" in text:
        raise ValueError("is not an issuer (it contains ? or #); copy the `iss` claim of a token")
    return text


Issuer = Annotated[HttpUrl, AfterValidator(_issuer)]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]


class ClaimNames(Section):
    """Which claims of a token hold which information: a claim name, or a path such as `realm_access.roles`."""

    groups: str = Field(
        default="groups", description="Claim with groups or roles. Used by Cedar, `require` and `roles`."
    )
    tenant: str | None = Field(
        default=None,
        description="Claim with the tenant. When set, every token must have it, and tenants are isolated from each other.",
    )
    scopes: str = Field(default="scope", description="Claim with the OAuth scopes, as a list or separated by spaces.")


class Issued(Section):
    """Requirements for the tokens of one issuer."""

    issuer: Issuer = Field(description="Issuer URL, exactly as in the tokens.")
    audiences: Strings | None = Field(
        default=None,
        description="Accepted audiences. Default: only the URL of the requested scope.",
    )
    skew: Duration = Field(default=timedelta(seconds=60), description="Tolerated clock difference.")
    claims: ClaimNames = Field(default_factory=ClaimNames.model_construct, description="Names of claims.")
    require: dict[str, Strings] = Field(
        default_factory=dict, description="Claims that every token must have, each with its accepted values."
    )
    roles: dict[Literal["viewer", "approver", "operator", "admin"], Strings] = Field(
        default_factory=dict, description="Roles of this gateway, each with the groups that have it."
    )


class Jwt(Issued):
    """An issuer whose JWTs are verified with its public keys."""

    jwks_url: HttpUrl | None = Field(
        default=None, description="URL of the public keys. Default: from the issuer's metadata."
    )
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256"), min_length=1, description="Accepted signature algorithms."
    )


class Introspection(Issued):
    """An issuer that validates opaque tokens by introspection (RFC 7662)."""

    url: HttpUrl = Field(description="Introspection endpoint.")
    client_id: str = Field(description="Client id of the gateway at the issuer.")
    client_secret: str = Field(repr=False, description="Client secret, by reference, for example `${env:SECRET}`.")
    remember: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=5))] = Field(
        default=timedelta(seconds=5),
        description="How long a result is cached. A revoked token stays valid for up to this time.",
    )


class OidcLogin(Jwt):
    """An OpenID Connect provider for logins to the web console."""

    audiences: None = Field(default=None, description="Not used: an ID token is issued for `client_id`.")
    client_id: str = Field(
        description="Client id of the gateway. Register `PUBLIC_URL/login/callback` as its redirect URI."
    )
    client_secret: str | None = Field(
        default=None,
        repr=False,
        description="Client secret, by reference, for example `${env:SECRET}`. Without one, PKCE alone is used.",
    )
    scopes: Strings = Field(
        default=("openid", "profile"), description="OAuth scopes to request. Must include `openid`."
    )


class Certificate(Section):
    """A caller that is identified by a client certificate, verified with `listen.tls.client_ca` or by a trusted proxy."""

    name: Annotated[str, Field(pattern=r"^(dns|uri|email|cn):.+")] = Field(
        description="Name in the certificate: `dns:HOST`, `uri:URI`, `email:ADDRESS` or `cn:COMMON NAME`."
    )
    id: Name = Field(description="Name of the principal.")
    roles: Strings = Field(default=(), description="Roles and groups.")
    scope: ScopeName | None = Field(default=None, description="The only scope that it may use.")
    tenant: Name | None = Field(default=None, description="Tenant of the principal.")


class Auth(Section):
    """How callers authenticate.

    Without `tokens` and issuers no authentication is required, and the gateway listens on loopback only.
    """

    none: bool = Field(
        default=False,
        description="Written as `auth: none`: listen beyond loopback without authentication. Anyone who can reach the address "
        "may call.",
    )
    anonymous: ScopeName | None = Field(
        default=None, description="The one scope that requires no token although others do."
    )
    anonymous_tasks: Literal["id", "session"] = Field(
        default="id",
        description="What opens a task of a caller without an identity: its `id`, with which others can read and cancel it too; or "
        "only the `session` that started it (2025), or a request with the same `taskgate/client` (2026), which is not a secret.",
    )
    jwt: tuple[Jwt, ...] = Field(default=(), description="Issuers whose JWTs are accepted.")
    login: OidcLogin | None = Field(
        default=None, description="OpenID Connect login to the web console, in addition to login links."
    )
    certificates: tuple[Certificate, ...] = Field(
        default=(), description="Callers that are identified by a client certificate."
    )
    introspection: Introspection | None = Field(default=None, description="An issuer that validates opaque tokens.")


class ScopeRequirement(Section):
    """What a caller needs to use a scope. Every given condition must hold."""

    groups: Strings = Field(default=(), description="At least one of these groups or roles.")
    oauth_scopes: Strings = Field(
        default=(), description="All of these OAuth scopes. A client without them gets HTTP 403 and can request them."
    )
    claims: dict[str, Strings] = Field(
        default_factory=dict, description="Each of these claims, with one of the given values."
    )


class Token(Section):
    """A caller or approver that is identified by a bearer token."""

    id: Name = Field(description="Name of the principal.")
    sha256: Sha256 = Field(
        repr=False, description="SHA-256 digest of the token. `taskgate tokens new NAME` prints one."
    )
    roles: Strings = Field(
        default=(),
        description="`viewer`, `approver`, `operator`, `admin`, or your own groups. Cedar receives all of them.",
    )
    scope: ScopeName | None = Field(default=None, description="The only scope that this token may use.")
    may_call: bool = Field(
        default=True,
        description="Whether this token may call tools. A token that may not call can also approve calls of anonymous callers.",
    )
    tenant: Name | None = Field(
        default=None, description="Tenant of the principal. Tenants are isolated from each other."
    )
    expires: AwareDatetime | None = Field(
        default=None, description="The token is refused from this time on, for example `2027-01-31T00:00:00Z`."
    )
