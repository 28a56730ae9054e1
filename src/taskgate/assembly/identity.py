"""Configuration -> who is let in: our own tokens, issuers whose tokens are verified, and what scopes require."""

from __future__ import annotations

from pathlib import Path

from taskgate.assembly.channels import Outbound
from taskgate.config.gateway_file import GatewayFile
from taskgate.config.identity import Issued, ScopeRequirement
from taskgate.config.load import LoadedConfig
from taskgate.config.servers import Server as ServerConfig
from taskgate.core.identity.claims import ClaimRules
from taskgate.core.identity.identity import Requirement
from taskgate.identity.documents import Documents
from taskgate.identity.introspection import Introspection
from taskgate.identity.kept_logins import KeptLogins
from taskgate.identity.server_tokens import ClientCredentials, ServerTokens, StoredLogin
from taskgate.identity.signed_tokens import Issuer
from taskgate.identity.signing_keys import SigningKeys
from taskgate.identity.verifier import Verifier
from taskgate.inbound.identity import NEVER, CallerIdentifier, ScopeOfToken, Token, operator_identity
from taskgate.inbound.operator import house_secret
from taskgate.ports.credentials import CredentialRecords
from taskgate.ports.upstream_credentials import FIXED_HEADERS, UpstreamCredentials


def build_doorkeeper(
    root: GatewayFile,
    operator_token: str,
    verifier: Verifier | None,
    scope_of_token: ScopeOfToken,
    records: CredentialRecords,
    *,
    local: bool,
) -> CallerIdentifier:
    """`local`: a gateway that a client started serves its own user; what it has on a loopback port is not for everybody."""
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
    return CallerIdentifier(
        tokens,
        operator,
        root.auth.anonymous,
        verifier,
        requirements,
        scope_of_token=scope_of_token,
        records=records,
        private=local,
    )


def build_verifier(root: GatewayFile, outbound: Outbound) -> Verifier | None:
    """None where no issuer is configured: then nothing of this is loaded."""
    auth = root.auth
    if not auth.jwt and auth.introspection is None:
        return None
    documents = Documents(outbound.client)
    issuers = [
        Issuer(_rules(each), frozenset(each.algorithms), SigningKeys(each.issuer, each.jwks_url, documents))
        for each in auth.jwt
    ]
    asked = auth.introspection
    introspection = None
    if asked is not None:
        remember_s = asked.remember.total_seconds()
        introspection = Introspection(asked.url, _rules(asked), asked.client_id, asked.client_secret, remember_s)
    return Verifier(issuers, introspection, documents)


class ServerAccounts:
    """The credentials of each server that wants OAuth, all over one HTTP client and one file of logins."""

    def __init__(self, outbound: Outbound, logins: KeptLogins) -> None:
        self._outbound = outbound
        self._logins = logins

    def of(self, name: str, server: ServerConfig) -> UpstreamCredentials:
        auth, url = server.auth, server.url
        if auth is None or url is None:
            return FIXED_HEADERS
        settings: ClientCredentials | StoredLogin = StoredLogin(name, url)
        if auth.type == "client_credentials":
            given = (auth.client_id or "", auth.client_secret or "", auth.issuer, auth.token_url, auth.scope)
            settings = ClientCredentials(name, url, *given)
        return ServerTokens(settings, lambda: Documents(self._outbound.client), self._logins)


def kept_logins(state_dir: Path, secret: bytes) -> KeptLogins:
    return KeptLogins(state_dir / "server-logins", secret)


def accounts_of(loaded: LoadedConfig, outbound: Outbound) -> ServerAccounts:
    """For commands that reach servers without a gateway."""
    return ServerAccounts(outbound, kept_logins(loaded.state_dir, house_secret(loaded.state_dir)))


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


async def close_verifiers(verifiers: list[Verifier | None]) -> None:
    for verifier in verifiers:
        if verifier is not None:
            await verifier.close()
