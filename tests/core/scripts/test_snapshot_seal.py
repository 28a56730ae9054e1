"""The seal of a snapshot is valid for exactly one snapshot at exactly one position."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from taskgate.core.scripts.snapshot_seal import (
    SnapshotPlace,
    WeakKeyError,
    bind_record,
    is_bound,
    seal,
    split_record,
    verify,
)

KEY = bytes(range(32))
PLACE = SnapshotPlace("task-1", 3, "monty-1.4.0")
SNAPSHOT = bytes(range(256)) * 4
SEALED = seal(KEY, SNAPSHOT, PLACE)


def test_sealed_snapshot_is_verified() -> None:
    assert len(SEALED) == 32
    assert verify(KEY, SNAPSHOT, PLACE, SEALED)


def test_every_flipped_bit_is_detected() -> None:
    for place in range(0, len(SNAPSHOT) * 8, 7):
        changed = bytearray(SNAPSHOT)
        changed[place // 8] ^= 1 << place % 8
        assert not verify(KEY, bytes(changed), PLACE, SEALED)


@pytest.mark.parametrize(
    "place",
    [replace(PLACE, task="task-2"), replace(PLACE, step=4), replace(PLACE, interpreter="monty-1.5.0")],
    ids=["other task", "other step", "other interpreter"],
)
def test_intact_snapshot_of_another_place_is_refused(place: SnapshotPlace) -> None:
    assert not verify(KEY, SNAPSHOT, place, SEALED)


def test_other_key_and_other_codes_are_refused() -> None:
    assert not verify(bytes(32), SNAPSHOT, PLACE, SEALED)
    for code in (b"", SEALED[:31], SEALED + b"\0", bytes(32)):
        assert not verify(KEY, SNAPSHOT, PLACE, code)


def test_parts_cannot_be_shifted_into_each_other() -> None:
    one = seal(KEY, b"xrest", SnapshotPlace("a", 1, "v"))
    assert one != seal(KEY, b"rest", SnapshotPlace("a", 1, "vx"))
    assert seal(KEY, b"", SnapshotPlace("a1", 2, "")) != seal(KEY, b"", SnapshotPlace("a", 12, ""))


def test_short_key_is_refused() -> None:
    with pytest.raises(WeakKeyError):
        seal(b"short", SNAPSHOT, PLACE)


def test_record_is_bound_to_its_snapshot() -> None:
    snapshot, digest = split_record(bind_record(b"state", b"record"))
    assert snapshot == b"state"
    assert is_bound(b"record", digest)
    assert not is_bound(b"another record", digest)


@pytest.mark.parametrize(
    "snapshot", [b"", b"short", b"a snapshot that was sealed without its record, by version 0.1.0 " * 3]
)
def test_snapshot_without_a_record_is_read(snapshot: bytes) -> None:
    assert split_record(snapshot) == (snapshot, None)
    assert is_bound(b"any record", None)
