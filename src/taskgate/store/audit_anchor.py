"""A signed note of where the audit chain stands, outside the table: it shows a cut tail, an emptied table, a rewritten chain.

The chain alone cannot: what is left after its end was cut is a whole chain, and whoever may write the table can compute a new one.
Each mark is signed with a key that only the gateway has. Somebody who can read that key, or put back an old copy of both files, is
beyond this; `audit.export` sends the rows somewhere else as they happen.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Final, Literal

import msgspec

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
        """Replace the file as a whole, so that nobody ever finds half of it."""
        signed = Marks(
            self._signed(marks.began),
            self._signed(marks.head),
            self._signed(marks.cut),
            tuple(mark for mark in map(self._signed, marks.problems[-MOST_PROBLEMS:]) if mark is not None),
        )
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(signed))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)

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
