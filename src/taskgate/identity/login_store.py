"""Stored logins at servers, each encrypted separately."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from taskgate import clock
from taskgate.ports.account_connector import AccountRows
from taskgate.shown_fields import repr_without
from taskgate.telemetry.logs import log

_LOGINS_PURPOSE: Final = b"taskgate logins to servers, version 2"
_MARK: Final = "\x1f"


class Login(msgspec.Struct, frozen=True):
    """The tokens of a person's login, and how to renew them."""

    issuer: str
    client_id: str
    access_token: str
    refresh_token: str | None
    client_secret: str | None = None
    scope: str | None = None
    expires_at: float | None = None
    ended: bool = False
    """The issuer no longer accepts it: the person has to log in again."""
    secret_in_form: bool = False
    """Whether the client secret is sent in the form instead of a header (client_secret_post)."""

    __repr__ = repr_without("access_token", "refresh_token", "client_secret")

    def prove(self, form: dict[str, str]) -> tuple[str, str] | None:
        """The client credentials for a header; otherwise they are added to the form."""
        return client_proof(form, self.client_id, self.client_secret, secret_in_form=self.secret_in_form)


def client_proof(
    form: dict[str, str], client_id: str, client_secret: str | None, *, secret_in_form: bool
) -> tuple[str, str] | None:
    if client_secret is not None and not secret_in_form:
        return client_id, client_secret
    form["client_id"] = client_id
    if client_secret is not None:
        form["client_secret"] = client_secret
    return None


class LoginStore:
    """`secret` is that of the installation, or of all gateways on a store; the encryption key is derived from it."""

    def __init__(self, rows: AccountRows, secret: bytes) -> None:
        self._rows = rows
        self._key = hashlib.blake2b(_LOGINS_PURPOSE, key=secret[:64], digest_size=32).digest()
        self._in_use: dict[str, object] = {}
        """Logins that were loaded here and not disconnected since; their tokens may be in memory."""
        self._last_removal = object()

    def load(self, server: str, principal: str = "") -> Login | None:
        """Runs in a thread, like every method that reads rows, so the login may be removed concurrently."""
        name = _name(server, principal)
        while True:
            before, row = self._last_removal, self._rows.get(name)
            if row is not None:
                self._in_use.setdefault(name, object())
            if before is self._last_removal:
                return self._login(name, row)

    def in_use(self, server: str, principal: str = "") -> object | None:
        """The same object while the loaded login is valid; another one or None after it was disconnected. Does no I/O."""
        return self._in_use.get(_name(server, principal))

    def keep(self, server: str, login: Login, principal: str = "") -> None:
        name = _name(server, principal)
        self._rows.put(name, self._closed(name, asdict(login)))

    def update(self, server: str, login: Login, principal: str = "") -> bool:
        """Replace an existing login; False if it no longer exists."""
        name = _name(server, principal)
        return self._rows.replace(name, self._closed(name, asdict(login)))

    def forget(self, server: str, principal: str = "") -> bool:
        name = _name(server, principal)
        gone = self._rows.remove(name)
        self._drop({name})
        return gone

    def reload(self) -> None:
        """Drop logins that another gateway has removed."""
        used = set(self._in_use)
        servers = {name.split(_MARK)[0] for name in used}
        self._drop(used.difference(*(self._rows.listed(_name(server, "")) for server in servers)))

    def _drop(self, names: set[str]) -> None:
        self._last_removal = object()
        for name in names:
            self._in_use.pop(name, None)

    def of_server(self, server: str) -> dict[str, Login]:
        """Logins by principal; the empty principal is the shared account."""
        prefix = _name(server, "")
        found = {name: self._login(name, row) for name, row in self._rows.listed(prefix).items()}
        return {name.removeprefix(prefix): login for name, login in found.items() if login is not None}

    def keep_note(self, name: str, value: dict[str, Any], valid_for_s: float | None = None) -> None:
        """Store a small record of a login in progress, or of the registration at an issuer."""
        until = None if valid_for_s is None else clock.wall() + valid_for_s
        self._rows.put(f"note{_MARK}{name}", self._closed(f"note{_MARK}{name}", value), until)

    def note(self, name: str) -> dict[str, Any] | None:
        row = self._rows.get(f"note{_MARK}{name}")
        return self._opened(f"note{_MARK}{name}", row) if row is not None else None

    def take_note(self, name: str) -> dict[str, Any] | None:
        """Return a record and delete it."""
        row = self._rows.take(f"note{_MARK}{name}")
        return self._opened(f"note{_MARK}{name}", row) if row is not None else None

    def claim(self, server: str, principal: str, owner: str, seconds: float) -> bool:
        """Whether this owner may renew the login now, exclusively."""
        return self._rows.claim(_name(server, principal), owner, seconds)

    def release(self, server: str, principal: str, owner: str) -> None:
        self._rows.release(_name(server, principal), owner)

    def _login(self, name: str, row: bytes | None) -> Login | None:
        kept = self._opened(name, row) if row is not None else None
        try:
            return Login(**kept) if kept is not None else None
        except TypeError:
            return None

    def _opened(self, name: str, row: bytes) -> dict[str, Any] | None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            value = json.loads(AESGCM(self._key).decrypt(row[:12], row[12:], _LOGINS_PURPOSE + name.encode()))
        except (InvalidTag, ValueError):
            log.warning("stored login cannot be decrypted; log in again", server=name.split(_MARK)[0])
            return None
        return value if isinstance(value, dict) else None

    def _closed(self, name: str, value: dict[str, Any]) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(12)
        return nonce + AESGCM(self._key).encrypt(nonce, json.dumps(value).encode(), _LOGINS_PURPOSE + name.encode())


def _name(server: str, principal: str) -> str:
    return f"{server}{_MARK}{principal}"
