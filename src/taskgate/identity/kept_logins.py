"""Logins to servers, kept in one file: encrypted, readable by its owner only, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from taskgate.identity.server_tokens import Login
from taskgate.telemetry.logs import log

_PURPOSE: Final = b"taskgate logins to servers, version 1"


class KeptLogins:
    """`secret` is the installation's own; the key for this file is made from it."""

    def __init__(self, file: Path, secret: bytes) -> None:
        self._file = file
        self._key = hashlib.blake2b(_PURPOSE, key=secret[:64], digest_size=32).digest()

    def load(self, server: str) -> Login | None:
        kept = self._read().get(server)
        try:
            return Login(**kept) if isinstance(kept, dict) else None
        except TypeError:
            return None

    def keep(self, server: str, login: Login) -> None:
        self._write({**self._read(), server: asdict(login)})

    def forget(self, server: str) -> bool:
        kept = self._read()
        found = kept.pop(server, None) is not None
        if found:
            self._write(kept)
        return found

    def _read(self) -> dict[str, Any]:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            value = json.loads(AESGCM(self._key).decrypt(data[:12], data[12:], _PURPOSE))
        except (InvalidTag, ValueError):
            log.warning("the logins to servers cannot be read; log in again", file=str(self._file))
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, kept: dict[str, Any]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(12)
        data = nonce + AESGCM(self._key).encrypt(nonce, json.dumps(kept).encode(), _PURPOSE)
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self._file.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(self._file)
