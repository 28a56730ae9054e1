"""Build the credentials that the gateway accepts: its own tokens, and issuers whose tokens are verified."""

from __future__ import annotations

from taskgate.access.credentials import NEVER, Credentials, ScopeOfToken, Token, operator_identity
from taskgate.assembly.channels import Outbound
from taskgate.core.identity.identity import ANONYMOUS_IDENTITY, Identity, principal_name
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.identity import Issued
from taskgate.core.settings.identity import OidcLogin as OidcConfig
from taskgate.identity.documents import Documents
from taskgate.identity.introspection import Introspection
from taskgate.identity.oidc_login import OidcLogin
from taskgate.identity.signed_tokens import Issuer
from taskgate.identity.signing_keys import SigningKeys
from taskgate.identity.verifier import Verifier
from taskgate.late_imports import SIGNING, load_now
from taskgate.ports.caller_credentials import CredentialRecords


def build_credentials(
    root: GatewayFile,
    operator_token: str,
    verifier: Verifier | None,
    scope_of_token: ScopeOfToken,
    records: CredentialRecords,
    *,
    local: bool,
) -> Credentials:
    """`local`: a gateway that a client started serves only that user; its loopback port requires a token."""
    tokens = _tokens(root)
    requirements = {name: scope.require for name, scope in root.scopes.items() if scope.require is not None}
    operator = operator_identity(operator_token)
    return Credentials(
        tokens,
        operator,
        root.auth.anonymous,
        verifier,
        requirements,
        scope_of_token=scope_of_token,
        records=records,
        certificates=_certificates(root),
        private=local,
    )


def _tokens(root: GatewayFile) -> tuple[Token, ...]:
    return tuple(
        Token(
            id=token.id,
            sha256=token.sha256.lower(),
            roles=frozenset(token.roles),
            scope=token.scope,
            may_call=token.may_call,
            tenant=token.tenant or "",
            expires=NEVER if token.expires is None else token.expires.timestamp(),
        )
        for token in root.tokens
    )


def configured_identities(root: GatewayFile) -> list[Identity]:
    """Return the callers that the configuration names: tokens, certificates, and anonymous callers if they are served."""
    found = [token.credential.identity for token in _tokens(root)]
    found += _certificates(root).values()
    if root.auth.anonymous is not None:
        return [*found, Identity(scope=root.auth.anonymous)]
    return found if root.requires_identity else [*found, ANONYMOUS_IDENTITY]


def _certificates(root: GatewayFile) -> dict[str, Identity]:
    """Return the callers by the names in their certificates."""
    return {
        each.name: Identity(
            principal_name(each.tenant or "", each.id), frozenset(each.roles), each.scope, tenant=each.tenant or ""
        )
        for each in root.auth.certificates
    }


def build_verifier(root: GatewayFile, outbound: Outbound) -> Verifier | None:
    """Return None if no issuer is configured; then nothing of this is imported."""
    auth = root.auth
    if not auth.jwt and auth.introspection is None:
        return None
    load_now(*SIGNING)
    documents = Documents(outbound.client)
    outbound.client()
    issuers = [
        Issuer(each, frozenset(each.algorithms), SigningKeys(each.issuer, each.jwks_url, documents))
        for each in auth.jwt
    ]
    settings = auth.introspection
    introspection = None
    if settings is not None:
        remember_s = settings.remember
        introspection = Introspection(
            url=settings.url,
            rules=settings,
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            remember_s=remember_s,
        )
    return Verifier(issuers, introspection, documents)


def _of_id_tokens(login: OidcConfig) -> Issued:
    """Return the requirements for ID tokens, which are issued for the client."""
    return Issued(
        issuer=login.issuer,
        audiences=(login.client_id,),
        skew=login.skew,
        claims=login.claims,
        require=login.require,
        roles=login.roles,
    )


class ConfiguredLogin:
    """The login provider of the configuration, created again when its settings change."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self._made: tuple[OidcConfig, OidcLogin] | None = None
        self._retired: list[OidcLogin] = []

    def by(self, root: GatewayFile) -> OidcLogin | None:
        settings = root.auth.login
        if settings is None:
            return None
        if self._made is None or self._made[0] != settings:
            if self._made is not None:
                self._retired.append(self._made[1])
            load_now(*SIGNING)
            self._outbound.client()
            documents = Documents(self._outbound.client)
            keys = SigningKeys(settings.issuer, settings.jwks_url, documents)
            rules = _of_id_tokens(settings)
            issuer = Issuer(rules, frozenset(settings.algorithms), keys)
            login = OidcLogin(issuer, settings.client_id, settings.client_secret, tuple(settings.scopes), documents)
            self._made = (settings, login)
        return self._made[1]

    async def close(self) -> None:
        for login in (*self._retired, *([self._made[1]] if self._made is not None else [])):
            await login.close()


async def close_verifiers(verifiers: list[Verifier | None]) -> None:
    for verifier in verifiers:
        if verifier is not None:
            await verifier.close()
