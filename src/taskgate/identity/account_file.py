"""Stored logins in one file of the state folder, for a gateway without a shared store."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskgate import clock, operating_system
from taskgate.atomic_files import replace_file
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    pass


class FileRows:
    """Rows in one file that only its owner can read, replaced atomically, with one writer at a time. For one gateway."""

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
            log.warning("the file of stored logins is invalid; log in again", file=str(self._file))
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, kept: dict[str, list[Any]]) -> None:
        now = clock.wall()
        good = {key: row for key, row in kept.items() if row[1] is None or now < row[1]}
        replace_file(self._file, json.dumps(good).encode())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the file: a command may log in while the gateway renews."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._file.with_suffix(".lock").open("a") as lock:
            operating_system.lock(lock.fileno(), wait=True)
            yield
