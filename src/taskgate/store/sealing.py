"""Encryption at rest: values are encrypted if `store.key` is set."""

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
KEY_RECORD: Final = "store_key:"
"""Prefix of the names under which the store records which keys were used."""
_PURPOSE: Final = b"taskgate values at rest, version 1"
_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_BODY: Final = len(MARK) + _ID_BYTES
_MEMBER: Final = b',"sealed":"'
"""Cannot occur within a JSON string, where quotes are escaped."""


class Sealing:
    """Encrypts and decrypts values. Without keys, values are stored unchanged."""

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
        """The name under which the store records the encrypting key; None without keys."""
        return KEY_RECORD + self._first.hex() if self._first is not None else None

    def missing(self, records: Iterable[str]) -> list[bytes]:
        """Return the prefixes of values that were encrypted with keys that are not configured, given the recorded names."""
        ids = (bytes.fromhex(name.removeprefix(KEY_RECORD)) for name in records)
        return [MARK + known for known in ids if known not in self._ciphers]

    @property
    def seals(self) -> bool:
        return self._first is not None

    def is_current(self, value: bytes) -> bool:
        """Return whether the value is stored as it would be written now."""
        return self._first is None or value.startswith(MARK + self._first)

    def seal_into(self, document: bytes, part: bytes, name: str) -> bytes:
        """Return a non-empty JSON object with an encrypted part appended as its last member."""
        return document[:-1] + _MEMBER + b64encode(self.seal(part, name)) + b'"}'

    def open_in(self, document: bytes, name: str) -> bytes | None:
        """Return the decrypted last member of a JSON object, or None if it has no encrypted part."""
        at = document.rfind(_MEMBER)
        return None if at < 0 else self.open(b64decode(document[at + len(_MEMBER) : -2]), name)

    def seal(self, value: bytes, name: str) -> bytes:
        if self._first is None:
            return value
        nonce = os.urandom(_NONCE_BYTES)
        return MARK + self._first + nonce + self._ciphers[self._first].encrypt(nonce, value, name.encode())

    def open(self, value: bytes, name: str) -> bytes:
        """Decrypt the value of the row with this id. Raises GatewayFault if the key is missing or the value was changed."""
        if not value.startswith(MARK):
            return value
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(value[len(MARK) : _BODY])
        if cipher is None:
            raise GatewayFault(
                "store_unavailable", f"The record {name} is encrypted with a key that `store.key` does not list."
            )
        nonce, body = value[_BODY : _BODY + _NONCE_BYTES], value[_BODY + _NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, body, name.encode())
        except (InvalidTag, ValueError):
            raise GatewayFault(
                "store_unavailable", f"The record {name} was changed in the store: decryption failed."
            ) from None


def within_json(prefix: bytes) -> bytes:
    """Return how an encrypted part of a JSON object begins, for the key with this prefix."""
    whole = len(prefix) // 3 * 3
    return _MEMBER + b64encode(prefix[:whole])


def key_needed(what: str) -> GatewayFault:
    return GatewayFault(
        "store_unavailable",
        f"The store {what} contains values that were encrypted with a key that `store.key` does not list. Nothing was changed. "
        "Add that key to `store.key`: the first key encrypts, all of them decrypt.",
    )
