"""The `tokens` and `auth` sections: how callers authenticate, and what a scope requires of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from taskgate.config.model.values import Duration, HttpUrl, Name, ScopeName, Section, Sha256, Words


def _issuer(text: str) -> str:
    if "?" in text or "#" in text:
        raise ValueError("an issuer has neither ? nor #; write it exactly as its tokens do")
    return text


Issuer = Annotated[HttpUrl, AfterValidator(_issuer)]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]


class ClaimNames(Section):
    """Where an issuer's tokens hold which fact: a claim's name, or a path such as realm_access.roles."""

    groups: str = Field(default="groups", description="Groups or roles; Cedar and `require` see them.")
    tenant: str | None = Field(
        default=None, description="The tenant. With it every token must name one, and tenants are kept apart."
    )
    scopes: str = Field(default="scope", description="OAuth scopes, as a list or with spaces between.")


class Issued(Section):
    """What tokens of one issuer must say, whoever verifies them."""

    issuer: Issuer = Field(description="The issuer, exactly as its tokens name it.")
    audiences: Words | None = Field(
        default=None,
        description="Audiences to accept. Default: the address of the scope that is asked for, and nothing else.",
    )
    skew: Duration = Field(default=timedelta(seconds=60), description="How far clocks may be apart.")
    claims: ClaimNames = Field(default_factory=ClaimNames, description="Where the facts stand.")
    require: dict[str, Words] = Field(
        default_factory=dict, description="Claims that every token must have, each with the values that are accepted."
    )
    roles: dict[Literal["viewer", "approver", "operator", "admin"], Words] = Field(
        default_factory=dict, description="Roles of this gateway, each with the groups whose members have it."
    )


class Jwt(Issued):
    """An issuer whose signed tokens are verified with its public keys."""

    jwks_url: HttpUrl | None = Field(default=None, description="Where its keys are. Default: its metadata tell.")
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256"), min_length=1, description="The only algorithms that are accepted."
    )


class Introspection(Issued):
    """An issuer that is asked about each opaque token (RFC 7662)."""

    url: HttpUrl = Field(description="Its introspection endpoint.")
    client_id: str = Field(description="Who we are to it.")
    client_secret: str = Field(repr=False, description="Our secret there, such as ${env:SECRET}.")
    remember: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=5))] = Field(
        default=timedelta(seconds=5), description="How long an answer is good; a revoked token works until then."
    )


class OidcLogin(Jwt):
    """An OpenID provider where people log in to the pages. Their ID tokens say who they are."""

    audiences: None = Field(default=None, description="Not used: an ID token is issued for `client_id`.")
    client_id: str = Field(description="Who we are to it; its redirect address is PUBLIC_URL/login/callback.")
    client_secret: str | None = Field(
        default=None,
        repr=False,
        description="Our secret there, such as ${env:SECRET}; without one PKCE alone proves it.",
    )
    scopes: Words = Field(default=("openid", "profile"), description="What is asked for; openid must be among it.")


class Certificate(Section):
    """Whoever shows a certificate with this name, signed by `listen.tls.client_ca` or named by a trusted proxy."""

    name: Annotated[str, Field(pattern=r"^(dns|uri|email|cn):.+")] = Field(
        description="A name in the certificate: dns:HOST, uri:ADDRESS, email:ADDRESS or cn:COMMON NAME."
    )
    id: Name = Field(description="The principal's name.")
    roles: Words = Field(default=(), description="Roles and groups.")
    scope: ScopeName | None = Field(default=None, description="The only scope it may use.")
    tenant: Name | None = Field(default=None, description="The tenant it belongs to.")


class Auth(Section):
    """Who must say who they are. Without `tokens` and issuers nobody must, and the gateway listens on loopback only."""

    none: bool = Field(
        default=False,
        description="Written as `auth: none`: listen beyond loopback although anybody who reaches the address may call.",
    )
    anonymous: ScopeName | None = Field(
        default=None, description="The one scope that may be used without a token although others need one."
    )
    jwt: tuple[Jwt, ...] = Field(default=(), description="Issuers whose signed tokens are accepted.")
    login: OidcLogin | None = Field(default=None, description="Where people log in to the pages, beside login links.")
    certificates: tuple[Certificate, ...] = Field(default=(), description="Callers known by their certificate.")
    introspection: Introspection | None = Field(default=None, description="An issuer that is asked about tokens.")


class ScopeRequirement(Section):
    """What a scope requires of whoever uses it. All of it must hold."""

    groups: Words = Field(default=(), description="At least one of these groups or roles.")
    oauth_scopes: Words = Field(default=(), description="All of these OAuth scopes; a client may ask for them (403).")
    claims: dict[str, Words] = Field(
        default_factory=dict, description="Each of these claims with one of the values given."
    )


class Token(Section):
    """A caller or approver, known by the digest of a token."""

    id: Name = Field(description="The principal's name.")
    sha256: Sha256 = Field(repr=False, description="Digest of the token; `taskgate token new NAME` makes one.")
    roles: Words = Field(
        default=(), description="viewer, approver, operator, admin, or groups of your own; Cedar sees them all."
    )
    scope: ScopeName | None = Field(default=None, description="The only scope this token may use.")
    may_call: bool = Field(
        default=True,
        description="Whether this token may call tools. One that may not can also decide what anonymous callers ask.",
    )
    tenant: Name | None = Field(default=None, description="The tenant it belongs to; tenants are kept apart.")
    expires: AwareDatetime | None = Field(
        default=None, description="From when on it is refused, such as 2027-01-31T00:00:00Z."
    )
