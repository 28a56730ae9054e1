"""A signed record of the end of the audit chain, in a file outside the table.

The chain alone cannot show that its end was cut off: the rest is a valid chain, and anyone who can write the table can compute a
new one. Each mark is signed with a key that only the gateway has, so a cut tail, an emptied table or a rewritten chain is detected.
This does not protect against an attacker who can read that key or restore an old copy of both files; `audit.export` sends the rows
elsewhere as they are written.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final, Literal

import msgspec

from taskgate.atomic_files import replace_file
from taskgate.mcp.json_errors import UNDECODABLE

MAX_BYTES: Final = 1 << 20
MAX_PROBLEMS: Final = 100
Kind = Literal["began", "head", "cut", "problem"]


class InvalidAnchor(ValueError):
    """The anchor is damaged, or was not written by this gateway."""


class Mark(msgspec.Struct, frozen=True):
    """The chain had this row at that time. `cut`: this row and all before it were deleted by retention."""

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
        self._path, self._key = path, key

    def read(self) -> Marks | None:
        """Return the recorded marks; None if there is no anchor. Raises InvalidAnchor."""
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_BYTES)
        except FileNotFoundError:
            return None
        try:
            marks = msgspec.json.decode(raw, type=Marks)
        except UNDECODABLE:
            raise InvalidAnchor("it is damaged") from None
        for mark in (marks.began, marks.head, marks.cut, *marks.problems):
            if mark is not None and not hmac.compare_digest(mark.mac, self._sign(mark)):
                raise InvalidAnchor("its signature is wrong")
        if marks.began is None or marks.head is None:
            raise InvalidAnchor("it is not complete")
        return marks

    def write(self, marks: Marks) -> None:
        """Replace the file as a whole. Raises OSError."""
        signed = Marks(
            self._signed(marks.began),
            self._signed(marks.head),
            self._signed(marks.cut),
            tuple(mark for mark in map(self._signed, marks.problems[-MAX_PROBLEMS:]) if mark is not None),
        )
        replace_file(self._path, msgspec.json.encode(signed))

    def signed_mark(self, mark: Mark, chain: str) -> bytes:
        """Return the signed cut of one of several chains, to be stored with its rows."""
        signed = msgspec.structs.replace(mark, note=chain)
        return msgspec.json.encode(self._signed(signed))

    def read_mark(self, raw: bytes, chain: str) -> Mark:
        """Decode a signed cut. Raises InvalidAnchor if the signature is wrong or it belongs to another chain."""
        try:
            mark = msgspec.json.decode(raw, type=Mark)
        except UNDECODABLE:
            raise InvalidAnchor("it is damaged") from None
        if mark.note != chain or not hmac.compare_digest(mark.mac, self._sign(mark)):
            raise InvalidAnchor("its signature is wrong")
        return mark

    def _signed(self, mark: Mark | None) -> Mark | None:
        return None if mark is None else msgspec.structs.replace(mark, mac=self._sign(mark))

    def _sign(self, mark: Mark) -> str:
        content = msgspec.json.encode([mark.kind, mark.number, mark.hash, mark.at_ms, mark.note])
        return hmac.new(self._key, content, hashlib.sha256).hexdigest()
