"""Scopes as OAuth protected resources: identifiers, metadata (RFC 9728), and the authentication challenge.

The identifier of a scope is its URL, `/mcp` for the default scope. A token is valid for calls in the scope it was
issued for. A token for the URL of the default scope, or for `public_url` itself, is also valid for the API and the
console.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from taskgate.access.credentials import Credentials
from taskgate.core import wire
from taskgate.gateway.services.access import AccessServices

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class ProtectedResources(msgspec.Struct, eq=False):
    _gateway: AccessServices
    _credentials: Credentials

    def of_scope(self, scope: str) -> str:
        return f"{self._base()}{self._path(scope)}"

    def of_gateway(self) -> frozenset[str]:
        """The audiences of tokens for the API and the console."""
        base = self._base()
        return frozenset({base, f"{base}/", f"{base}/mcp"})

    def challenge(self, scope: str, error: str = "") -> tuple[bytes, bytes]:
        """Return the `WWW-Authenticate` header with the error and the location of the metadata."""
        parts = ['realm="taskgate"']
        if error:
            parts.append(f'error="{error}"')
        if self._credentials.issuers:
            scope = scope or self._gateway.default_scope
            required = self._credentials.requirement(scope).oauth_scopes
            if required:
                parts.append(f'scope="{" ".join(sorted(set(required)))}"')
            parts.append(f'resource_metadata="{self._base()}{WELL_KNOWN}{self._path(scope)}"')
        return b"www-authenticate", f"Bearer {', '.join(parts)}".encode("latin-1", "replace")

    def metadata(self, path: str) -> bytes | None:
        """Return the metadata document of a path, or None.

        Unknown scopes are answered like existing ones, so that the document does not reveal which scopes exist.
        """
        rest = path.removeprefix(WELL_KNOWN)
        if not self._credentials.issuers or not path.startswith(WELL_KNOWN):
            return None
        if rest not in ("", "/", "/mcp") and not rest.startswith("/mcp/"):
            return None
        scope = scope_in(rest.encode("latin-1", "replace")) if rest.startswith("/mcp") else ""
        scope = scope or self._gateway.default_scope
        document: dict[str, Any] = {
            "resource": self.of_scope(scope),
            "resource_name": "Taskgate",
            "authorization_servers": list(self._credentials.issuers),
            "bearer_methods_supported": ["header"],
        }
        required = self._credentials.requirement(scope).oauth_scopes
        if required:
            document["scopes_supported"] = sorted(set(required))
        return wire.encode(document)

    def _base(self) -> str:
        return self._gateway.address.base().rstrip("/")

    def _path(self, scope: str) -> str:
        return "/mcp" if scope == self._gateway.default_scope else f"/mcp/{quote(scope, safe='')}"


@lru_cache(maxsize=1024)
def scope_in(path: bytes) -> str:
    """Return the scope in a path; empty for `/mcp` and `/mcp/v1`."""
    scope = unquote(path[len(b"/mcp") :].decode("latin-1")).strip("/")
    return "" if scope == "v1" else scope
