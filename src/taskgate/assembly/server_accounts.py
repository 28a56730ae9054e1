"""Accounts of users at upstream servers (OAuth), and where their tokens are stored."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import assert_never
from urllib.parse import urlsplit

from taskgate.assembly.channels import Outbound
from taskgate.assembly.shared_store import agreed_secrets, shared_account_rows, shared_url
from taskgate.config.load import LoadedConfig
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.servers import Server as ServerConfig
from taskgate.identity.account_file import FileRows
from taskgate.identity.account_logins import AccountLogins
from taskgate.identity.assertions import Assertions
from taskgate.identity.documents import Documents, GuardedDocuments
from taskgate.identity.login_store import LoginStore
from taskgate.identity.server_tokens import ServerTokens, TokenDeps
from taskgate.identity.token_settings import ClientCredentials, ForwardedIdentity, Settings, StoredLogin, TokenExchange
from taskgate.inbound.gateway_secrets import gateway_secret, operator_token
from taskgate.late_imports import SIGNING, load_now
from taskgate.ports.upstream_credentials import FIXED_HEADERS, ServerCredentials


class ServerAccounts:
    """The credentials of each server that needs them, with one HTTP client and one login store."""

    def __init__(self, outbound: Outbound, loaded: LoadedConfig, secret: bytes, base: Callable[[], str]) -> None:
        assertions, logins = Assertions(secret, base), open_login_store(loaded, secret)
        self._outbound = outbound
        self._deps = TokenDeps(self._documents, logins, assertions)
        self.connector = AccountLogins(logins, self._documents, assertions, base)
        self.adopt(loaded.root)

    def adopt(self, root: GatewayFile) -> None:
        """Apply a configuration: which servers people can log in to."""
        settings = {name: server_settings(name, server) for name, server in root.servers.items() if server.enabled}
        self.connector.adopt({name: each for name, each in settings.items() if isinstance(each, StoredLogin)})

    def of(self, name: str, server: ServerConfig) -> ServerCredentials:
        settings = server_settings(name, server)
        if settings is None:
            return FIXED_HEADERS
        load_now(*SIGNING)
        return ServerTokens(settings, self._deps)

    def _documents(self, settings: Settings, known: str | None = None) -> Documents:
        """Hosts in the configuration may be private; those that a server names must be public."""
        given = () if isinstance(settings, ForwardedIdentity) else (settings.issuer,)
        token_url = settings.token_url if isinstance(settings, (ClientCredentials, TokenExchange)) else None
        named = [urlsplit(url).hostname or "" for url in (settings.resource, *given, token_url, known) if url]
        return GuardedDocuments(self._outbound.client, named)


def server_settings(name: str, server: ServerConfig) -> Settings | None:
    """Return how the gateway authenticates to this server; None if only configured headers are used."""
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
                server=name,
                resource=url,
                issuer=auth.issuer,
                client_id=auth.client_id,
                client_secret=auth.client_secret,
                scope=auth.scope,
                per_principal=auth.per_user,
            )
        case _:
            assert_never(auth.type)


def open_login_store(loaded: LoadedConfig, secret: bytes) -> LoginStore:
    """Return the logins in the shared database, or in a file of this installation."""
    url = shared_url(loaded)
    return LoginStore(FileRows(loaded.state_dir / "server-logins") if url is None else shared_account_rows(url), secret)


def accounts_of(loaded: LoadedConfig, outbound: Outbound) -> ServerAccounts:
    """Build the accounts for commands that connect to servers without a gateway."""
    base = str(loaded.root.public_url or "").rstrip("/")
    needed = any(server_settings(name, server) is not None for name, server in loaded.root.servers.items())
    # Otherwise nothing is stored, and a command that only looks must not create the secret.
    secret = installation_secret(loaded) if needed else secrets.token_bytes(32)
    return ServerAccounts(outbound, loaded, secret, lambda: base)


def installation_secret(loaded: LoadedConfig) -> bytes:
    """Return the secret of this installation, or of all gateways on its shared store."""
    secret, url = gateway_secret(loaded.state_dir), shared_url(loaded)
    return secret if url is None else agreed_secrets(loaded, url, operator_token(loaded.state_dir), secret)[1]
