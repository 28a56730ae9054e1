"""Authenticate snapshots of scripts.

The interpreter loads changed bytes without noticing, and a snapshot of another script or another step is intact and still
wrong. The seal is an HMAC-SHA256 over the snapshot, its task, its step and the version of the interpreter. Each part is
preceded by its length, so that no two different sets of parts have the same input.

The record of the script (counters, printed text, outcomes) is bound by its digest, which is appended to the snapshot and sealed
with it. So it cannot be left out of a snapshot that has it; snapshots of version 0.1 have none. Gateways of that version load
these snapshots, because the interpreter's worker ignores what follows a snapshot.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

_DOMAIN: Final = b"taskgate script snapshot 1"
"""Separates these codes from every other use of the same key."""
_MINIMUM_KEY: Final = 16
_RECORD: Final = b"taskgate script record 1:"
"""Precedes the digest of the record."""
_DIGEST_BYTES: Final = 32


class WeakKeyError(ValueError):
    """The key is too short to authenticate anything."""


class SnapshotPlace(msgspec.Struct, frozen=True):
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


def bind_record(snapshot: bytes, record: bytes) -> bytes:
    """Return the snapshot with the digest of its record, to be sealed together."""
    return snapshot + _RECORD + hashlib.sha256(record).digest()


def split_record(bound: bytes) -> tuple[bytes, bytes | None]:
    """Return the snapshot and the digest of its record; None for one that was sealed without its record."""
    begin = len(bound) - _DIGEST_BYTES - len(_RECORD)
    if begin < 0 or bound[begin:-_DIGEST_BYTES] != _RECORD:
        return bound, None
    return bound[:begin], bound[-_DIGEST_BYTES:]


def is_bound(record: bytes, digest: bytes | None) -> bool:
    """Whether this is the record that was sealed with its snapshot, or none was."""
    return digest is None or hmac.compare_digest(hashlib.sha256(record).digest(), digest)
