"""The operator's token and the gateway's own secret: made at the first start and kept in the state directory, for its owner only.

A user who can read the token file is the operator. Where agents run as the same user, a passphrase can be required besides: only
its hash is kept, and it is read once at the start, so that removing the file opens nothing in a running gateway. The secret signs
what Taskgate hands out for itself (sessions of the console, signed request state); it stays the same over restarts.
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
_MOST: Final = 4096
Maker = Callable[[], str]


def operator_token(state_dir: Path) -> str:
    """The token, made if there is none yet."""
    return kept(state_dir / TOKEN_FILE, lambda: _PREFIX + secrets.token_urlsafe(32))


def replace_operator_token(state_dir: Path, token: str) -> None:
    """Gateways that share a store have one token; what was made here for nobody else gives way to it."""
    _replace(state_dir / TOKEN_FILE, token)


def house_secret(state_dir: Path) -> bytes:
    return kept(state_dir / SECRET_FILE, lambda: secrets.token_hex(32)).encode("ascii")


def kept(path: Path, make: Maker) -> str:
    """The content of the file; if there is none, a new value. Of several processes that start at once, one makes it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            create_file(path, f"{make()}\n".encode("ascii"))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "r", encoding="ascii") as file:
        # Others may have been able to read it if somebody changed its rights.
        os.fchmod(file.fileno(), 0o600)
        value = file.read(_MOST).strip()
    if len(value) < 32:
        raise OSError(f"{path} is damaged; remove it, and a new one will be made at the next start")
    return value


def _replace(path: Path, value: str) -> None:
    """In one step: there is no moment, and no crash, after which the file is missing and a start would do without it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, f"{value}\n".encode("ascii"))


def set_passphrase(state_dir: Path, passphrase: str) -> None:
    """Keep the hash of a new passphrase; the next start of the gateway asks for it."""
    salt = secrets.token_hex(16)
    _replace(state_dir / PASSPHRASE_FILE, f"scrypt:{salt}:{_stretched(passphrase, salt)}")


def stored_passphrase(state_dir: Path) -> str | None:
    path = state_dir / PASSPHRASE_FILE
    return kept(path, str) if path.exists() else None


def passphrase_with_time(state_dir: Path) -> bytes:
    """What gateways that share a store compare: when it was set (milliseconds), and its hash. Empty where none was set."""
    stored = stored_passphrase(state_dir)
    if stored is None:
        return b""
    return f"{(state_dir / PASSPHRASE_FILE).stat().st_mtime_ns // 1_000_000} {stored}".encode("ascii")


def set_at(passphrase: bytes) -> int:
    return int(passphrase.partition(b" ")[0] or 0)


def adopt_passphrase(state_dir: Path, agreed: bytes) -> None:
    """The one that was set at another gateway takes the place of what was set here before, with its time."""
    path = state_dir / PASSPHRASE_FILE
    _replace(path, agreed.partition(b" ")[2].decode("ascii"))
    os.utime(path, ns=(set_at(agreed) * 1_000_000,) * 2)


def passphrase_fits(stored: str, given: str) -> bool:
    _, salt, digest = stored.split(":")
    return hmac.compare_digest(_stretched(given, salt), digest)


def _stretched(passphrase: str, salt: str) -> str:
    return hashlib.scrypt(passphrase.encode("utf-8", "replace"), salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()
