"""Accounts of people at servers: connect, list and disconnect them, and the rows they are stored in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from taskgate.replies.servers import AccountRow


class ConnectRequest(msgspec.Struct, frozen=True):
    """The account that a person is asked to connect: at a server, for one principal."""

    server: str
    principal: str
    resource: str
    scope: str | None = None


class AccountLoginRefused(Exception):
    """A login that cannot begin or finish. The message is shown in the browser."""


class AccountConnector(Protocol):
    """Connects accounts of people at servers, and lists them."""

    async def page(self, server: str, principal: str, scope: str | None) -> str:
        """Return the URL of the console page where the person connects the account; the same one while it is valid."""
        ...

    async def wait(self, server: str, principal: str, scope: str | None, within_s: float) -> bool:
        """Wait until the account is connected with at least these scopes, here or at another gateway on the same store. Return
        False after a timeout.
        """
        ...

    async def request_of(self, ticket: str) -> ConnectRequest | None:
        """Return the request of a page; None if the ticket is unknown or has expired."""
        ...

    async def begin(self, ticket: str, browser: str) -> str:
        """Return the URL for this browser, and remember the browser. Raises AccountLoginRefused."""
        ...

    async def begin_shared(self, server: str, browser: str) -> str:
        """The same for the account that all callers share, which has no page. Raises AccountLoginRefused."""
        ...

    async def finish(
        self, query: Mapping[str, str], browser: str, may_connect: Callable[[str], bool]
    ) -> ConnectRequest:
        """Connect the account with the code that the browser returned with, if the person may do so for its principal (empty: the
        shared account). Raises AccountLoginRefused.
        """
        ...

    async def accounts(self, server: str) -> list[AccountRow] | None:
        """Return the connected accounts and their state; None for a server without accounts."""
        ...

    async def accounts_of(self, principal: str) -> dict[str, AccountRow]:
        """Return a principal's own accounts and their state, by server."""
        ...

    async def disconnect(self, server: str, principal: str) -> bool:
        """Remove an account. It is no longer used for requests: here at once, at other gateways on the store within a second."""
        ...

    async def reload_accounts(self) -> None:
        """Read the accounts again: another gateway on the same store may have disconnected some."""
        ...

    def client_document(self) -> dict[str, Any]:
        """Return the client id metadata document of the gateway."""
        ...

    async def signing_keys(self) -> dict[str, Any]:
        """Return the public keys of the gateway's signatures (RFC 7517)."""
        ...


class AccountRows(Protocol):
    """The storage of accounts: a file beside the store, or the store itself where gateways share one. Every method blocks."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes, expires_at: float | None = None) -> None: ...

    def replace(self, key: str, value: bytes) -> bool:
        """Replace an existing value; return False if it was removed meanwhile."""
        ...

    def take(self, key: str) -> bytes | None:
        """Remove and return a value; only one of several callers gets it."""
        ...

    def remove(self, key: str) -> bool:
        """Remove a value and notify every gateway that shares the rows; return whether there was one."""
        ...

    def listed(self, prefix: str) -> dict[str, bytes]: ...

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        """Acquire an exclusive claim on this name until it is released or expires; return whether that succeeded."""
        ...

    def release(self, key: str, owner: str) -> None: ...
