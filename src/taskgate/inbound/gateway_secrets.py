"""The operator token, the gateway's secret and the passphrase: created at the first start and kept in the state folder,
readable by its owner only.

A user who can read the token file is the operator. Where agents run as the same user, a passphrase can be required in
addition. Only its hash is stored, and it is read once at start, so that removing the file does not disable it in a
running gateway. The secret signs console sessions and request state, and stays the same across restarts.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from taskgate.atomic_files import create_file, replace_file

TOKEN_FILE: Final = "operator-token"
SECRET_FILE: Final = "secret"
PASSPHRASE_FILE: Final = "passphrase"
_PREFIX: Final = "tgop_"
_MAX_BYTES: Final = 4096
Maker = Callable[[], str]


def operator_token(state_dir: Path) -> str:
    """Return the operator token. It is created if there is none."""
    return read_or_create(state_dir / TOKEN_FILE, lambda: _PREFIX + secrets.token_urlsafe(32))


def replace_operator_token(state_dir: Path, token: str) -> None:
    """Replace the token by the one that the gateways of a store share."""
    _replace(state_dir / TOKEN_FILE, token)


def gateway_secret(state_dir: Path) -> bytes:
    return read_or_create(state_dir / SECRET_FILE, lambda: secrets.token_hex(32)).encode("ascii")


def read_or_create(path: Path, make: Maker) -> str:
    """Return the content of the file, or create it with a new value. Safe with several processes starting at once."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            create_file(path, f"{make()}\n".encode("ascii"))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "r", encoding="ascii") as file:
        # Restore the mode if it was changed.
        os.fchmod(file.fileno(), 0o600)
        value = file.read(_MAX_BYTES).strip()
    if len(value) < 32:
        raise OSError(f"{path} is damaged. Remove it; the next start creates a new one.")
    return value


def _replace(path: Path, value: str) -> None:
    """Replace the file atomically, so that it is never missing after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, f"{value}\n".encode("ascii"))


def set_passphrase(state_dir: Path, passphrase: str) -> None:
    """Store the hash of a new passphrase, which applies from the next start."""
    salt = secrets.token_hex(16)
    _replace(state_dir / PASSPHRASE_FILE, f"scrypt:{salt}:{_stretched(passphrase, salt)}")


def stored_passphrase(state_dir: Path) -> str | None:
    path = state_dir / PASSPHRASE_FILE
    return read_or_create(path, str) if path.exists() else None


def passphrase_with_time(state_dir: Path) -> bytes:
    """Return when the passphrase was set (milliseconds) and its hash, for comparison between gateways. Empty if not set."""
    stored = stored_passphrase(state_dir)
    if stored is None:
        return b""
    return f"{(state_dir / PASSPHRASE_FILE).stat().st_mtime_ns // 1_000_000} {stored}".encode("ascii")


def set_at(passphrase: bytes) -> int:
    return int(passphrase.partition(b" ")[0] or 0)


def adopt_passphrase(state_dir: Path, agreed: bytes) -> None:
    """Replace the passphrase by a newer one of another gateway, with its time."""
    path = state_dir / PASSPHRASE_FILE
    _replace(path, agreed.partition(b" ")[2].decode("ascii"))
    os.utime(path, ns=(set_at(agreed) * 1_000_000,) * 2)


def passphrase_matches(stored: str, given: str) -> bool:
    _, salt, digest = stored.split(":")
    return hmac.compare_digest(_stretched(given, salt), digest)


def _stretched(passphrase: str, salt: str) -> str:
    return hashlib.scrypt(passphrase.encode("utf-8", "replace"), salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()
