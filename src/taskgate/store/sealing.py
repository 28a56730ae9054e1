"""Arguments, results, questions, answers, and what servers say about a task, encrypted at rest, where `store.key` is given.

AES-256-GCM with a random nonce; the id of the task or approval is bound to each value, so that nobody who can write rows can give
one task the bytes of another. A sealed value begins with a mark and the id of its key; everything that was ever written plainly is
JSON and does not begin so, which is why both can stand side by side. The first key seals, all of them open. Where only a part of a
JSON object is to be hidden, because the database looks into the rest, the part stands in it as a member of its own.

The store remembers the ids of keys that were used. A start without one of them is refused for as long as rows need it, and changes
nothing.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

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
