"""Merging and paging: a fixed order, unique names, and cursors that cannot be forged."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.merge import merge
from taskgate.core.catalog.names import NameStyle
from taskgate.core.catalog.pages import EntryList, InvalidCursor, LateEntries, page
from taskgate.core.raw_json import Raw


def entry(kind: EntryKind, server: str, name: str) -> CatalogEntry:
    return CatalogEntry(kind, server, name, Raw(b"{}"))


def listed(kind: EntryKind, **names: list[str]) -> dict[str, list[CatalogEntry]]:
    return {server: [entry(kind, server, name) for name in found] for server, found in names.items()}


def test_servers_come_in_the_order_given_and_entries_in_their_own() -> None:
    merged = merge(EntryKind.TOOL, listed(EntryKind.TOOL, b=["z", "a"], a=["z"]))
    assert list(merged.entries) == ["b__z", "b__a", "a__z"]
    assert merged.entries["a__z"].server == "a"
    assert merged.notes == ()


def test_a_collision_omits_both_and_is_reported() -> None:
    merged = merge(EntryKind.TOOL, listed(EntryKind.TOOL, a=["x", "y"], b=["x"]), NameStyle.PLAIN)
    assert list(merged.entries) == ["y"]
    assert "none is served" in merged.notes[0]


def test_reserved_names_are_for_tools_only() -> None:
    assert not merge(EntryKind.TOOL, listed(EntryKind.TOOL, a=["get_task"]), NameStyle.PLAIN).entries
    assert merge(EntryKind.PROMPT, listed(EntryKind.PROMPT, a=["get_task"]), NameStyle.PLAIN).entries
    assert merge(EntryKind.TOOL, listed(EntryKind.TOOL, a=["get_task"]), NameStyle.PLAIN, reserved=()).entries


def test_repeated_and_excessive_entries_are_omitted_and_reported() -> None:
    merged = merge(EntryKind.TOOL, listed(EntryKind.TOOL, a=["x", "x", "y", "z", "w"], b=["x"]), per_server=2)
    assert list(merged.entries) == ["a__x", "a__y", "b__x"]
    assert [note.split(";")[0] for note in merged.notes] == [
        "Server 'a' lists the tool 'x' twice",
        "Server 'a' lists more than 2 tools",
    ]


@pytest.mark.parametrize("kind", [EntryKind.RESOURCE, EntryKind.TEMPLATE])
def test_uris_are_kept_and_the_first_server_wins(kind: EntryKind) -> None:
    merged = merge(kind, listed(kind, a=["file:///x"], b=["file:///x", "file:///y"]))
    assert {uri: found.server for uri, found in merged.entries.items()} == {"file:///x": "a", "file:///y": "b"}
    assert merged.notes == ("Both 'a' and 'b' offer 'file:///x'; that of 'a' is used.",)
    assert merged.names is None


@given(st.integers(0, 40), st.integers(0, 20), st.integers(1, 12))
def test_pages_together_are_the_list(length: int, added: int, size: int) -> None:
    """The entries of the first part are encoded when their page is read, those of the second are encoded already."""
    items = [b"%d" % number for number in range(length + added)]
    seen: list[bytes] = []
    cursor: str | None = None
    for _ in range(length + added + 2):
        encoded: list[int] = []

        def encode(place: int, encoded: list[int] = encoded) -> bytes:
            encoded.append(place)
            return items[place]

        entries = EntryList(LateEntries(length, encode, b"1")).plus(items[length:])
        begin, end = len(seen), len(seen) + size
        assert entries.are_encoded(begin, end) == (begin >= length)
        found = page(entries, cursor, size)
        assert entries.are_encoded(begin, end)
        assert entries.between(begin, end) == found.items
        assert encoded == [place for place in range(begin, end) if place < length]
        assert len(found.items) <= size
        seen += found.items
        cursor = found.next_cursor
        if cursor is None:
            break
    assert seen == items


@pytest.mark.parametrize(
    "cursor",
    [
        *("", "abc", "!!!", "é", 5, [], {}, "A" * 10_000),
        base64.urlsafe_b64encode(b"1.0123456789abcdef").decode(),
        base64.urlsafe_b64encode(b"\xff").decode(),
        base64.urlsafe_b64encode(b"-1." + b"0" * 16).decode(),
    ],
)
def test_a_made_up_cursor_is_refused(cursor: Any) -> None:
    with pytest.raises(InvalidCursor) as caught:
        page(EntryList([b"1", b"2", b"3"]), cursor, 1)
    assert caught.value.error_type == "invalid_cursor"


def test_a_cursor_does_not_outlive_its_list() -> None:
    cursor = page(EntryList([b"1", b"2", b"3"]), None, 1).next_cursor
    assert page(EntryList([b"1", b"2", b"3"]), cursor, 1).items == [b"2"]
    for other in ([], [b"1", b"2", b"4"], [b"0", b"1", b"2", b"3"]):
        with pytest.raises(InvalidCursor):
            page(EntryList(other), cursor, 1)


def test_an_entry_is_encoded_once_when_its_page_is_read() -> None:
    encoded: list[int] = []

    def encode(place: int) -> bytes:
        encoded.append(place)
        return b"%d" % place

    entries = EntryList(LateEntries(3, encode, b"1")).plus([b"3"])
    for _ in range(2):
        assert page(entries, None, 2).items == [b"0", b"1"]
    assert (entries.are_encoded(0, 2), entries.are_encoded(0, 3), entries.are_encoded(3, 4)) == (True, False, True)
    assert entries.between(1, 4) == [b"1", b"2", b"3"]
    assert encoded == [0, 1, 2]


def test_entries_that_are_added_change_the_digest_of_a_list() -> None:
    listed = EntryList([b"1", b"2"])
    more, other = listed.plus([b"3"]), listed.plus([b"4"])
    assert more.between(0, len(more)) == [b"1", b"2", b"3"]
    assert len({listed.digest, more.digest, other.digest}) == 3
    assert more.digest == listed.plus([b"3"]).digest
    late = [EntryList(LateEntries(1, lambda _: b"1", mark)).digest for mark in (b"x", b"y", b"x")]
    assert late[0] == late[2] != late[1]
