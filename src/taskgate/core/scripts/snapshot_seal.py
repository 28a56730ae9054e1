"""Authenticate snapshots of scripts.

The interpreter loads changed bytes without noticing, and a snapshot of another script or another step is intact and still
wrong. The seal is an HMAC-SHA256 over the snapshot, its task, its step and the version of the interpreter. Each part is
preceded by its length, so that no two different sets of parts have the same input.
"""

from __future__ import annotations

import hmac
from typing import Final

from taskgate.lazy_dataclass import dataclass

_DOMAIN: Final = b"taskgate script snapshot 1"
"""Separates these codes from every other use of the same key."""
_MINIMUM_KEY: Final = 16


class WeakKeyError(ValueError):
    """The key is too short to authenticate anything."""


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """Which snapshot it is."""

    task: str
    step: int
    interpreter: str


def seal(key: bytes, snapshot: bytes, place: SnapshotPlace) -> bytes:
    """Return the code to store with a snapshot: 32 bytes."""
    if len(key) < _MINIMUM_KEY:
        raise WeakKeyError(f"a key for snapshots has at least {_MINIMUM_KEY} bytes, not {len(key)}")
    code = hmac.new(key, digestmod="sha256")
    for part in (_DOMAIN, place.task.encode(), str(place.step).encode(), place.interpreter.encode(), snapshot):
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.digest()


def verify(key: bytes, snapshot: bytes, place: SnapshotPlace, sealed: bytes) -> bool:
    """Whether this is the snapshot that was sealed at this place. Takes the same time wherever the codes differ."""
    return hmac.compare_digest(seal(key, snapshot, place), sealed)
