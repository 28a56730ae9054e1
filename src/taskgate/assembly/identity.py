"""Configuration -> who is let in: our own tokens, issuers whose tokens are verified, and what scopes require."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

from taskgate.access.arrival import Arrivals, is_loopback
from taskgate.access.credentials import NEVER, Credentials, ScopeOfToken, Token, operator_identity
from taskgate.access.guard import Guard
from taskgate.assembly.governing import Outbound
from taskgate.assembly.shared_store import agreed_secrets, shared_account_rows, shared_url
from taskgate.config.load import LoadedConfig
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.identity import Issued, ScopeRequirement
from taskgate.config.model.identity import OidcLogin as OidcConfig
from taskgate.config.model.servers import Server as ServerConfig
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.identity.claims import ClaimRules
from taskgate.core.identity.identity import Identity, Requirement, principal_name
from taskgate.identity.account_file import FileRows
from taskgate.identity.account_logins import AccountLogins
from taskgate.identity.assertions import Assertions
from taskgate.identity.documents import Documents, GuardedDocuments
from taskgate.identity.introspection import Introspection
from taskgate.identity.kept_logins import KeptLogins
from taskgate.identity.oidc_login import OidcLogin
from taskgate.identity.server_tokens import Means, ServerTokens
from taskgate.identity.signed_tokens import Issuer
from taskgate.identity.signing_keys import SigningKeys
from taskgate.identity.token_settings import ClientCredentials, ForwardedIdentity, Settings, StoredLogin, TokenExchange
from taskgate.identity.verifier import Verifier
from taskgate.inbound.gateway_secrets import gateway_secret, operator_token
from taskgate.inbound.http.tls import ListenerTls, TlsFiles
from taskgate.late_imports import SIGNING, load_now
from taskgate.ports.credentials import FIXED_HEADERS, CredentialRecords, ServerCredentials
from taskgate.telemetry.logs import log


def build_credentials(
    root: GatewayFile,
    operator_token: str,
    verifier: Verifier | None,
    scope_of_token: ScopeOfToken,
    records: CredentialRecords,
    *,
    local: bool,
) -> Credentials:
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
    """Callers by the names in their certificates."""
    return {
        each.name: Identity(
            principal_name(each.tenant or "", each.id), frozenset(each.roles), each.scope, tenant=each.tenant or ""
        )
        for each in root.auth.certificates
    }


def build_verifier(root: GatewayFile, outbound: Outbound) -> Verifier | None:
    """None where no issuer is configured: then nothing of this is loaded."""
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
    asked = auth.introspection
    introspection = None
    if asked is not None:
        remember_s = asked.remember.total_seconds()
        introspection = Introspection(asked.url, _rules(asked), asked.client_id, asked.client_secret, remember_s)
    return Verifier(issuers, introspection, documents)


class ServerAccounts:
    """The credentials of each server that wants some, all over one HTTP client and one place where logins are kept."""

    def __init__(self, outbound: Outbound, loaded: LoadedConfig, secret: bytes, base: Callable[[], str]) -> None:
        assertions, logins = Assertions(secret, base), kept_logins(loaded, secret)
        self._outbound = outbound
        self._means = Means(self._documents, logins, assertions)
        self.connector = AccountLogins(logins, self._documents, assertions, base)
        self.adopt(loaded.root)

    def adopt(self, root: GatewayFile) -> None:
        """The configuration in force: which servers people can log in to."""
        settings = {name: server_settings(name, server) for name, server in root.servers.items() if server.enabled}
        self.connector.adopt({name: each for name, each in settings.items() if isinstance(each, StoredLogin)})

    def of(self, name: str, server: ServerConfig) -> ServerCredentials:
        settings = server_settings(name, server)
        if settings is None:
            return FIXED_HEADERS
        load_now(*SIGNING)
        return ServerTokens(settings, self._means)

    def _documents(self, settings: Settings, known: str | None = None) -> Documents:
        """Hosts that the operator named are trusted to be where they are; those that a server names must be public."""
        given = () if isinstance(settings, ForwardedIdentity) else (settings.issuer,)
        token_url = settings.token_url if isinstance(settings, (ClientCredentials, TokenExchange)) else None
        named = [urlsplit(url).hostname or "" for url in (settings.resource, *given, token_url, known) if url]
        return GuardedDocuments(self._outbound.client, named)


def server_settings(name: str, server: ServerConfig) -> Settings | None:
    """How this server is to be shown who we are; None where headers of the configuration are all there is."""
    auth, url = server.auth, server.url
    if auth is None or url is None:
        return None
    match auth.type:
        case "client_credentials" | "token_exchange":
            kind = ClientCredentials if auth.type == "client_credentials" else TokenExchange
            given = (auth.client_id or "", auth.client_secret or "", auth.issuer, auth.token_url, auth.scope)
            return kind(name, url, *given)
        case "forward_identity":
            return ForwardedIdentity(name, url, auth.header)
        case "authorization_code":
            return StoredLogin(
                name, url, auth.issuer, auth.client_id, auth.client_secret, auth.scope, per_principal=auth.per_user
            )
        case _:
            assert_never(auth.type)


def kept_logins(loaded: LoadedConfig, secret: bytes) -> KeptLogins:
    """In the database that gateways share, else in a file of this installation."""
    url = shared_url(loaded)
    return KeptLogins(FileRows(loaded.state_dir / "server-logins") if url is None else shared_account_rows(url), secret)


def accounts_of(loaded: LoadedConfig, outbound: Outbound) -> ServerAccounts:
    """For commands that reach servers without a gateway."""
    base = str(loaded.root.public_url or "").rstrip("/")
    return ServerAccounts(outbound, loaded, installation_secret(loaded), lambda: base)


def installation_secret(loaded: LoadedConfig) -> bytes:
    """The secret of this installation, or of all gateways on the store that it shares."""
    secret, url = gateway_secret(loaded.state_dir), shared_url(loaded)
    return secret if url is None else agreed_secrets(loaded, url, operator_token(loaded.state_dir), secret)[1]


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
    """Where people log in: made anew when the configuration says something else."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self._made: tuple[OidcConfig, OidcLogin] | None = None
        self._retired: list[OidcLogin] = []

    def by(self, root: GatewayFile) -> OidcLogin | None:
        wanted = root.auth.login
        if wanted is None:
            return None
        if self._made is None or self._made[0] != wanted:
            if self._made is not None:
                self._retired.append(self._made[1])
            load_now(*SIGNING)
            self._outbound.client()
            documents = Documents(self._outbound.client)
            keys = SigningKeys(wanted.issuer, wanted.jwks_url, documents)
            rules = replace(_rules(wanted), audiences=frozenset({wanted.client_id}))
            issuer = Issuer(rules, frozenset(wanted.algorithms), keys)
            login = OidcLogin(issuer, wanted.client_id, wanted.client_secret, tuple(wanted.scopes), documents)
            self._made = (wanted, login)
        return self._made[1]

    async def close(self) -> None:
        for login in (*self._retired, *([self._made[1]] if self._made is not None else [])):
            await login.close()


async def close_verifiers(verifiers: list[Verifier | None]) -> None:
    for verifier in verifiers:
        if verifier is not None:
            await verifier.close()


def arrivals_by(root: GatewayFile) -> Arrivals:
    return Arrivals(root.listen.trusted_proxies, root.listen.client_certificate_header)


def listener_tls(root: GatewayFile) -> ListenerTls | None:
    """None where plain HTTP is served. Raises ConfigError where the files are no certificate and key."""
    tls = root.listen.tls
    if tls is None:
        return None
    client_ca = None if tls.client_ca is None else Path(tls.client_ca)
    try:
        return ListenerTls(TlsFiles(Path(tls.cert), Path(tls.key), client_ca, tls.require_client_cert))
    except (OSError, ssl.SSLError) as fault:
        hint = "give a PEM certificate with its chain, and the key that belongs to it"
        problem = Problem("configuration", 0, 0, "listen.tls", f"cannot be used: {fault}", hint)
        raise ConfigError([problem]) from None


# Whether a configuration may be served on an address: beyond loopback only with identity, or with `auth: none` spelled
# out.
#
# Asked before the port is opened and before a reload is taken over, because either may change the answer.

BANNER = "NO AUTHENTICATION: anybody who can reach this address may call every tool (auth: none)."


def check_exposure(root: GatewayFile, host: str) -> None:
    """Raises ConfigError for a gateway that would serve strangers without anybody having said so."""
    if is_loopback(host) or root.requires_identity or root.auth.none:
        return
    message = f"{host} is reachable from other machines, and nobody would have to say who they are"
    hint = "`taskgate token new NAME` makes a token for `tokens`; or name an issuer under `auth.jwt`, or write `auth: none`"
    raise ConfigError([Problem("configuration", 0, 0, "listen.host", message, hint)])


def is_open_to_strangers(root: GatewayFile, host: str) -> bool:
    """Whether the banner is due: strangers are served, because somebody spelled it out."""
    return root.auth.none and not is_loopback(host)


def warn_of_exposure(root: GatewayFile, host: str) -> None:
    if is_open_to_strangers(root, host):
        log.warning(BANNER, host=host)


def guard(root: GatewayFile) -> Guard:
    hosts = list(root.allowed_hosts)
    origins = list(root.allowed_origins)
    if root.public_url is not None:
        origins.append(str(root.public_url))
        hosts.append(str(root.public_url).split("://", 1)[-1].split("/", 1)[0])
    if root.listen.host not in ("0.0.0.0", "::"):
        hosts.append(root.listen.host)
    return Guard(hosts, origins, open_to_all=not root.requires_identity and root.auth.anonymous is None)
