"""Build the credentials that the gateway accepts: its own tokens, and issuers whose tokens are verified."""

from __future__ import annotations

from dataclasses import replace

from taskgate.access.credentials import NEVER, Credentials, ScopeOfToken, Token, operator_identity
from taskgate.assembly.channels import Outbound
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.identity import Issued, ScopeRequirement
from taskgate.config.model.identity import OidcLogin as OidcConfig
from taskgate.core.identity.claims import ClaimRules
from taskgate.core.identity.identity import Identity, Requirement, principal_name
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
    tokens = tuple(
        Token(
            token.id,
            token.sha256.lower(),
            frozenset(token.roles),
            token.scope,
            token.may_call,
            token.tenant or "",
            NEVER if token.expires is None else token.expires.timestamp(),
        )
        for token in root.tokens
    )
    requirements = {
        name: _requirement(scope.require) for name, scope in root.scopes.items() if scope.require is not None
    }
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
        Issuer(_rules(each), frozenset(each.algorithms), SigningKeys(each.issuer, each.jwks_url, documents))
        for each in auth.jwt
    ]
    settings = auth.introspection
    introspection = None
    if settings is not None:
        remember_s = settings.remember.total_seconds()
        introspection = Introspection(
            settings.url, _rules(settings), settings.client_id, settings.client_secret, remember_s
        )
    return Verifier(issuers, introspection, documents)


def _rules(issued: Issued) -> ClaimRules:
    return ClaimRules(
        issued.issuer,
        None if issued.audiences is None else frozenset(issued.audiences),
        int(issued.skew.total_seconds()),
        tuple((path, frozenset(values)) for path, values in issued.require.items()),
        issued.claims.groups,
        issued.claims.tenant,
        issued.claims.scopes,
        tuple((role, frozenset(groups)) for role, groups in issued.roles.items()),
    )


def _requirement(require: ScopeRequirement) -> Requirement:
    claims = tuple((path, frozenset(values)) for path, values in require.claims.items())
    return Requirement(frozenset(require.groups), frozenset(require.oauth_scopes), claims)


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
            rules = replace(_rules(settings), audiences=frozenset({settings.client_id}))
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
