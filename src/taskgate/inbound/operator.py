"""The operator's token and the gateway's own secret: made at first start, kept in the state directory, readable by its owner only.

Whoever can read the token file is the operator. Where agents run as the same user, a passphrase can be asked for besides: it is
kept only as a hash, and read once at the start, so that taking the file away opens nothing in a running gateway. The secret signs
what Taskgate hands out for itself (sessions of the pages, signed request state); it stays the same over restarts.
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
    path = state_dir / TOKEN_FILE
    path.unlink(missing_ok=True)
    kept(path, lambda: token)


def house_secret(state_dir: Path) -> bytes:
    return kept(state_dir / SECRET_FILE, lambda: secrets.token_hex(32)).encode("ascii")


def kept(path: Path, make: Maker) -> str:
    """What the file holds; if it is not there, a new value, written so that nobody else ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        _write_new(path, make())
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "r", encoding="ascii") as file:
        # Others may have been able to read it if somebody changed its rights.
        os.fchmod(file.fileno(), 0o600)
        value = file.read(_MOST).strip()
    if len(value) < 32:
        raise OSError(f"{path} is damaged; remove it, and a new one will be made at the next start")
    return value


def _write_new(path: Path, value: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(value + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)
    finally:
        partial.unlink()


def set_passphrase(state_dir: Path, passphrase: str) -> None:
    """Keep the hash of a new passphrase; the next start of the gateway asks for it."""
    salt = secrets.token_hex(16)
    path = state_dir / PASSPHRASE_FILE
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    kept(path, lambda: f"scrypt:{salt}:{_stretched(passphrase, salt)}")


def stored_passphrase(state_dir: Path) -> str | None:
    path = state_dir / PASSPHRASE_FILE
    return kept(path, str) if path.exists() else None


def passphrase_fits(stored: str, given: str) -> bool:
    _, salt, digest = stored.split(":")
    return hmac.compare_digest(_stretched(given, salt), digest)


def _stretched(passphrase: str, salt: str) -> str:
    return hashlib.scrypt(passphrase.encode("utf-8", "replace"), salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()
