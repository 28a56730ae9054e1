"""What we keep and say towards servers: logins, encrypted one by one, and short signed statements about our callers."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskgate import clock
from taskgate.atomic_files import replace_file
from taskgate.ports.credentials import AccountRows
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey

_LOGINS_PURPOSE: Final = b"taskgate logins to servers, version 2"
_MARK: Final = "\x1f"


@dataclass(frozen=True, slots=True)
class Login:
    """What a person's login left: how to get further tokens without them."""

    issuer: str
    client_id: str
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    client_secret: str | None = field(repr=False, default=None)
    scope: str | None = None
    expires_at: float | None = None
    ended: bool = False
    """The issuer takes it no more: only the person can help."""
    secret_in_form: bool = False
    """The issuer wants our secret beside the rest, not in a header (client_secret_post)."""

    def prove(self, form: dict[str, str]) -> tuple[str, str] | None:
        """What proves to the issuer that it is us, where that is a header; else it is added to the form."""
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


class KeptLogins:
    """`secret` is the installation's own, or that of all gateways on a store; the key is made from it."""

    def __init__(self, rows: AccountRows, secret: bytes) -> None:
        self._rows = rows
        self._key = hashlib.blake2b(_LOGINS_PURPOSE, key=secret[:64], digest_size=32).digest()
        self._in_use: dict[str, object] = {}
        """Logins that were loaded here, so that tokens of theirs may be in memory, and that nobody has disconnected since."""
        self._last_removal = object()

    def load(self, server: str, principal: str = "") -> Login | None:
        """Every method that asks the rows runs in a thread of its own, so a login may be removed while it is loaded."""
        name = _name(server, principal)
        while True:
            before, row = self._last_removal, self._rows.get(name)
            if row is not None:
                self._in_use.setdefault(name, object())
            if before is self._last_removal:
                return self._login(name, row)

    def in_use(self, server: str, principal: str = "") -> object | None:
        """The same thing for as long as what was loaded may be used; another or None once it was disconnected. Asks nobody."""
        return self._in_use.get(_name(server, principal))

    def keep(self, server: str, login: Login, principal: str = "") -> None:
        name = _name(server, principal)
        self._rows.put(name, self._closed(name, asdict(login)))

    def update(self, server: str, login: Login, principal: str = "") -> bool:
        """What has become of a login that is there; whether it still is."""
        name = _name(server, principal)
        return self._rows.replace(name, self._closed(name, asdict(login)))

    def forget(self, server: str, principal: str = "") -> bool:
        name = _name(server, principal)
        gone = self._rows.remove(name)
        self._drop({name})
        return gone

    def look_again(self) -> None:
        """Others may have removed some of the logins that are in use here."""
        used = set(self._in_use)
        servers = {name.split(_MARK)[0] for name in used}
        self._drop(used.difference(*(self._rows.listed(_name(server, "")) for server in servers)))

    def _drop(self, names: set[str]) -> None:
        self._last_removal = object()
        for name in names:
            self._in_use.pop(name, None)

    def of_server(self, server: str) -> dict[str, Login]:
        """By principal; the empty one is the account that all share."""
        prefix = _name(server, "")
        found = {name: self._login(name, row) for name, row in self._rows.listed(prefix).items()}
        return {name.removeprefix(prefix): login for name, login in found.items() if login is not None}

    def keep_note(self, name: str, value: dict[str, Any], good_for_s: float | None = None) -> None:
        """Something small that belongs to a login that is under way, or to our registration at an issuer."""
        until = None if good_for_s is None else clock.wall() + good_for_s
        self._rows.put(f"note{_MARK}{name}", self._closed(f"note{_MARK}{name}", value), until)

    def note(self, name: str) -> dict[str, Any] | None:
        row = self._rows.get(f"note{_MARK}{name}")
        return self._opened(f"note{_MARK}{name}", row) if row is not None else None

    def take_note(self, name: str) -> dict[str, Any] | None:
        """The same, for one user only: it is gone afterwards."""
        row = self._rows.take(f"note{_MARK}{name}")
        return self._opened(f"note{_MARK}{name}", row) if row is not None else None

    def claim(self, server: str, principal: str, owner: str, seconds: float) -> bool:
        """Whether renewing this login is ours alone now."""
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
            log.warning("a login to a server cannot be read; log in again", server=name.split(_MARK)[0])
            return None
        return value if isinstance(value, dict) else None

    def _closed(self, name: str, value: dict[str, Any]) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(12)
        return nonce + AESGCM(self._key).encrypt(nonce, json.dumps(value).encode(), _LOGINS_PURPOSE + name.encode())


def _name(server: str, principal: str) -> str:
    return f"{server}{_MARK}{principal}"


class FileRows:
    """Rows in one file: readable by its owner only, written whole or not at all, one writer at a time. One gateway uses it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._claimed: dict[str, tuple[str, float]] = {}

    def get(self, key: str) -> bytes | None:
        return self._read().get(key)

    def put(self, key: str, value: bytes, expires_at: float | None = None) -> None:
        with self._alone():
            self._write({**self._read_all(), key: [base64.b64encode(value).decode(), expires_at]})

    def replace(self, key: str, value: bytes) -> bool:
        with self._alone():
            kept = self._read_all()
            if key not in kept:
                return False
            self._write({**kept, key: [base64.b64encode(value).decode(), kept[key][1]]})
            return True

    def remove(self, key: str) -> bool:
        return self.take(key) is not None

    def take(self, key: str) -> bytes | None:
        with self._alone():
            found, kept = self._read().get(key), self._read_all()
            if kept.pop(key, None) is not None:
                self._write(kept)
            return found

    def listed(self, prefix: str) -> dict[str, bytes]:
        return {key: value for key, value in self._read().items() if key.startswith(prefix)}

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        holder, until = self._claimed.get(key, (owner, 0.0))
        if holder != owner and clock.monotonic() < until:
            return False
        self._claimed[key] = (owner, clock.monotonic() + seconds)
        return True

    def release(self, key: str, owner: str) -> None:
        if self._claimed.get(key, ("", 0.0))[0] == owner:
            del self._claimed[key]

    def _read(self) -> dict[str, bytes]:
        now = clock.wall()
        return {
            key: base64.b64decode(value)
            for key, (value, expires_at) in self._read_all().items()
            if expires_at is None or now < expires_at
        }

    def _read_all(self) -> dict[str, list[Any]]:
        try:
            value = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            log.warning("the logins to servers cannot be read; log in again", file=str(self._file))
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, kept: dict[str, list[Any]]) -> None:
        now = clock.wall()
        good = {key: row for key, row in kept.items() if row[1] is None or now < row[1]}
        replace_file(self._file, json.dumps(good).encode())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A command may log in while the gateway renews."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


# What we say about our callers to servers: short signed statements of ours (JWT), with public keys for everybody to
# check them.
#
# A statement names one principal and one server, is good for a minute, and never holds anything that the caller sent as
# a credential. The key is made from the secret of the installation, so that all gateways on a store sign alike and
# nothing has to be kept.

_ASSERTIONS_PURPOSE: Final = b"taskgate statements about callers, version 1"
GOOD_FOR_S: Final = 60
RENEW_AFTER_S: Final = 30.0
MOST_REMEMBERED: Final = 10_000
OURSELVES: Final = "taskgate"


class Assertions:
    """`base` is the address that others know us by."""

    def __init__(self, secret: bytes, base: Callable[[], str]) -> None:
        self._seed = hashlib.blake2b(_ASSERTIONS_PURPOSE, key=secret[:64], digest_size=32).digest()
        self._base = base
        self._known: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._made: tuple[OKPKey, str] | None = None

    def about(self, principal: str, audience: str) -> str:
        """A statement that this principal is calling the server with this address. Made at most twice a minute."""
        now = clock.monotonic()
        known = self._known.get((principal, audience))
        if known is not None and now < known[1]:
            return known[0]
        text = self._signed(principal, audience)
        self._known[principal, audience] = (text, now + RENEW_AFTER_S)
        self._known.move_to_end((principal, audience))
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return text

    def public_keys(self) -> dict[str, Any]:
        key, key_id = self._key()
        return {"keys": [{**key.as_dict(private=False), "kid": key_id, "use": "sig", "alg": "EdDSA"}]}

    def _signed(self, principal: str, audience: str) -> str:
        from joserfc import jws

        key, key_id = self._key()
        now = int(clock.wall())
        claims = {
            "iss": self._base(),
            "sub": principal or OURSELVES,
            "aud": audience,
            "iat": now,
            "exp": now + GOOD_FOR_S,
            "jti": secrets.token_urlsafe(12),
        }
        head = {"alg": "EdDSA", "typ": "JWT", "kid": key_id}
        return jws.serialize_compact(head, json.dumps(claims), key, algorithms=["EdDSA"])

    def _key(self) -> tuple[OKPKey, str]:
        if self._made is None:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
            from joserfc.jwk import OKPKey

            private = Ed25519PrivateKey.from_private_bytes(self._seed)
            pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            key = OKPKey.import_key(pem)
            self._made = (key, key.thumbprint()[:16])
        return self._made
