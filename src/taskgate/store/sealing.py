"""What keys guard in a store: contents encrypted at rest where `store.key` is given, and a note of where the audit chain stands."""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from taskgate.atomic_files import replace_file
from taskgate.core.errors import GatewayFault

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MARK: Final = b"tg-sealed-1:"
KEEPSAKE: Final = "store_key:"
"""How the names of the keepsakes begin that say which keys were used."""
_PURPOSE: Final = b"taskgate values at rest, version 1"
_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_BODY: Final = len(MARK) + _ID_BYTES
_MEMBER: Final = b',"sealed":"'
"""Cannot stand within a JSON string, where quotes are escaped."""


class Sealing:
    """Without keys everything stays as it is."""

    __slots__ = ("_ciphers", "_first")

    def __init__(self, keys: Sequence[str]) -> None:
        self._ciphers: dict[bytes, AESGCM] = {}
        for key in keys:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            derived = hashlib.blake2b(key.encode(), digest_size=32, person=b"taskgate-rows").digest()
            self._ciphers[hashlib.blake2b(_PURPOSE, key=derived, digest_size=_ID_BYTES).digest()] = AESGCM(derived)
        self._first = next(iter(self._ciphers), None)

    @property
    def used(self) -> str | None:
        """The keepsake of the key that seals."""
        return KEEPSAKE + self._first.hex() if self._first is not None else None

    def missing(self, keepsakes: Iterable[str]) -> list[bytes]:
        """How values begin that were sealed with keys that were not given."""
        ids = (bytes.fromhex(name.removeprefix(KEEPSAKE)) for name in keepsakes)
        return [MARK + known for known in ids if known not in self._ciphers]

    @property
    def seals(self) -> bool:
        return self._first is not None

    def is_current(self, value: bytes) -> bool:
        """Whether it stands as it would be written now."""
        return self._first is None or value.startswith(MARK + self._first)

    def seal_into(self, document: bytes, part: bytes, name: str) -> bytes:
        """A JSON object that is not empty, with a sealed part as its last member."""
        return document[:-1] + _MEMBER + b64encode(self.seal(part, name)) + b'"}'

    def open_in(self, document: bytes, name: str) -> bytes | None:
        """The sealed part of a JSON object, if it has one."""
        at = document.rfind(_MEMBER)
        return None if at < 0 else self.open(b64decode(document[at + len(_MEMBER) : -2]), name)

    def seal(self, value: bytes, name: str) -> bytes:
        if self._first is None:
            return value
        nonce = os.urandom(_NONCE_BYTES)
        return MARK + self._first + nonce + self._ciphers[self._first].encrypt(nonce, value, name.encode())

    def open(self, value: bytes, name: str) -> bytes:
        """The value of the row with this id. Raises GatewayFault if it cannot be had."""
        if not value.startswith(MARK):
            return value
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(value[len(MARK) : _BODY])
        if cipher is None:
            raise GatewayFault(
                "store_unavailable", f"What is kept of {name} needs a key that `store.key` does not name."
            )
        nonce, body = value[_BODY : _BODY + _NONCE_BYTES], value[_BODY + _NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, body, name.encode())
        except (InvalidTag, ValueError):
            raise GatewayFault("store_unavailable", f"What is kept of {name} was changed in the store.") from None


def within_json(prefix: bytes) -> bytes:
    """How a sealed part of a JSON object begins that was sealed with the key of this prefix."""
    whole = len(prefix) // 3 * 3
    return _MEMBER + b64encode(prefix[:whole])


def key_needed(what: str) -> GatewayFault:
    return GatewayFault(
        "store_unavailable",
        f"The store {what} holds values that were encrypted with a key that `store.key` does not name. Nothing was changed. "
        "Name that key, too: the first one encrypts, all of them decrypt.",
    )


# A signed note of where the audit chain stands, outside the table: it shows a cut tail, an emptied table, a rewritten
# chain.
#
# The chain alone cannot: what is left after its end was cut is a whole chain, and whoever may write the table can
# compute a new one. Each mark is signed with a key that only the gateway has. Somebody who can read that key, or put
# back an old copy of both files, is beyond this; `audit.export` sends the rows somewhere else as they happen.

MOST_BYTES: Final = 1 << 20
MOST_PROBLEMS: Final = 100
Kind = Literal["began", "head", "cut", "problem"]


class BadAnchor(ValueError):
    """The anchor cannot be believed."""


class Mark(msgspec.Struct, frozen=True):
    """The chain had this row then. `cut`: it and everything before it was forgotten on purpose."""

    kind: Kind
    number: int
    hash: str
    at_ms: int
    note: str = ""
    mac: str = ""


class Marks(msgspec.Struct, frozen=True):
    began: Mark | None = None
    head: Mark | None = None
    cut: Mark | None = None
    problems: tuple[Mark, ...] = ()


def anchor_path(store: Path) -> Path:
    return store.with_name(store.name + ".audit-anchor")


def audit_key(secret: bytes) -> bytes:
    return hmac.new(secret, b"taskgate audit anchor", hashlib.sha256).digest()


class AuditAnchor:
    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        self._key = key

    def read(self) -> Marks | None:
        """What is noted; None if there is no anchor. Raises BadAnchor if somebody else wrote it."""
        try:
            with self._path.open("rb") as file:
                raw = file.read(MOST_BYTES)
        except FileNotFoundError:
            return None
        try:
            marks = msgspec.json.decode(raw, type=Marks)
        except msgspec.DecodeError:
            raise BadAnchor("it is damaged") from None
        for mark in (marks.began, marks.head, marks.cut, *marks.problems):
            if mark is not None and not hmac.compare_digest(mark.mac, self._sign(mark)):
                raise BadAnchor("its signature is wrong")
        if marks.began is None or marks.head is None:
            raise BadAnchor("it is not complete")
        return marks

    def write(self, marks: Marks) -> None:
        """Replace the file as a whole. Raises OSError."""
        signed = Marks(
            self._signed(marks.began),
            self._signed(marks.head),
            self._signed(marks.cut),
            tuple(mark for mark in map(self._signed, marks.problems[-MOST_PROBLEMS:]) if mark is not None),
        )
        replace_file(self._path, msgspec.json.encode(signed))

    def signed_mark(self, mark: Mark, chain: str) -> bytes:
        """A cut of one of several chains, to be kept beside its rows."""
        signed = msgspec.structs.replace(mark, note=chain)
        return msgspec.json.encode(self._signed(signed))

    def read_mark(self, raw: bytes, chain: str) -> Mark:
        """Raises BadAnchor if somebody else wrote it, or about another chain."""
        try:
            mark = msgspec.json.decode(raw, type=Mark)
        except msgspec.DecodeError:
            raise BadAnchor("it is damaged") from None
        if mark.note != chain or not hmac.compare_digest(mark.mac, self._sign(mark)):
            raise BadAnchor("its signature is wrong")
        return mark

    def _signed(self, mark: Mark | None) -> Mark | None:
        return None if mark is None else msgspec.structs.replace(mark, mac=self._sign(mark))

    def _sign(self, mark: Mark) -> str:
        content = msgspec.json.encode([mark.kind, mark.number, mark.hash, mark.at_ms, mark.note])
        return hmac.new(self._key, content, hashlib.sha256).hexdigest()
