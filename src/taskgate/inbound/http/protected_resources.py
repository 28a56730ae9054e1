"""Each scope as an OAuth resource: its identifier, its metadata (RFC 9728), and the challenge that leads a client to them.

The identifier is the scope's address, `/mcp` for the default one. A token is good for the resource it was issued for and for no
other, so a token of one scope does not open the next.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

from taskgate.core import wire
from taskgate.gateway.gateway import Gateway
from taskgate.inbound.identity import CallerIdentifier

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class ProtectedResources:
    def __init__(self, gateway: Gateway, caller_identifier: CallerIdentifier) -> None:
        self._gateway = gateway
        self._doorkeeper = caller_identifier

    def of_scope(self, scope: str) -> str:
        return f"{self._gateway.address.base().rstrip('/')}{self._path(scope)}"

    def challenge(self, path: bytes, error: str = "") -> tuple[bytes, bytes]:
        """The header that says what is missing and where a client finds out how to get it."""
        said = ['realm="taskgate"']
        if error:
            said.append(f'error="{error}"')
        if self._doorkeeper.issuers:
            scope = scope_in(path) or self._gateway.default_scope
            wanted = self._doorkeeper.requirement(scope).oauth_scopes
            if wanted:
                said.append(f'scope="{" ".join(sorted(wanted))}"')
            said.append(f'resource_metadata="{self._metadata_url(scope)}"')
        return b"www-authenticate", f"Bearer {', '.join(said)}".encode("latin-1", "replace")

    def metadata(self, path: str) -> bytes | None:
        """The document at an address below the well-known one; None where there is none.

        Names of scopes that do not exist are answered like those that do: the document must not tell which there are.
        """
        rest = path.removeprefix(WELL_KNOWN)
        if not self._doorkeeper.issuers or not path.startswith(WELL_KNOWN):
            return None
        if rest not in ("", "/", "/mcp") and not rest.startswith("/mcp/"):
            return None
        scope = scope_in(rest.encode("latin-1", "replace")) if rest.startswith("/mcp") else ""
        scope = scope or self._gateway.default_scope
        document: dict[str, Any] = {
            "resource": self.of_scope(scope),
            "resource_name": "Taskgate",
            "authorization_servers": list(self._doorkeeper.issuers),
            "bearer_methods_supported": ["header"],
        }
        wanted = self._doorkeeper.requirement(scope).oauth_scopes
        if wanted:
            document["scopes_supported"] = sorted(wanted)
        return wire.encode(document)

    def _path(self, scope: str) -> str:
        return "/mcp" if scope == self._gateway.default_scope else f"/mcp/{quote(scope, safe='')}"

    def _metadata_url(self, scope: str) -> str:
        return f"{self._gateway.address.base().rstrip('/')}{WELL_KNOWN}{self._path(scope)}"


@lru_cache(maxsize=1024)
def scope_in(path: bytes) -> str:
    """The scope that an address names; empty for `/mcp` and `/mcp/v1`."""
    asked = unquote(path[len(b"/mcp") :].decode("latin-1")).strip("/")
    return "" if asked == "v1" else asked
