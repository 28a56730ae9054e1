"""Parse large messages and documents in slices: generators that yield between slices and return the value."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, Final, TypeVar

from taskgate.core import wire
from taskgate.core.checked_parts import members_of_response
from taskgate.core.strict_scan import StrictScan
from taskgate.core.wire import InvalidMessage, Message, Raw

_Read = TypeVar("_Read")

_QUICK_BYTES: Final = 16 * 1024
_QUICK_VALUES: Final = 8_192
TOO_LARGE: Final = f"it has more than {wire.LARGE_BYTES} bytes or {_QUICK_VALUES} values"
"""Why a message cannot be parsed at once."""


def reads_quickly(body: bytes) -> bool:
    """Whether a message can be parsed at once, within a few milliseconds: it is short and cannot have many values."""
    size = len(body)
    if size <= _QUICK_BYTES:
        return True
    # Each value but the first follows a comma or begins an array or object. Characters in strings are counted as well.
    return size < wire.LARGE_BYTES and not wire.has_more(body, (b",", b"{", b"["), _QUICK_VALUES)


def message_in_slices(body: bytes, max_depth: int, max_nodes: int) -> Generator[None, None, Message]:
    """`MessageReader.read` in slices. Raises the same errors."""
    members = yield from members_of_response(body, max_depth, max_nodes)
    if members is not None:
        return wire.undecoded_response(members)
    scan = StrictScan(body, max_depth, max_nodes)
    while not scan.step():
        yield
    if scan.is_result:
        return scan.response()
    value = yield from scan.decoded()
    return wire.message_of(value, scan.copied_members())


def result_in_slices(body: bytes) -> Generator[None, None, Message | None]:
    """Return the response in a body that exceeds the limits of a message, with its result not decoded. None if it has
    no result.
    """
    scan = StrictScan(body, len(body), len(body))
    while not scan.step():
        yield
    return scan.response() if scan.is_result else None


def members_in_slices(body: bytes) -> Generator[None, None, dict[str, Raw]]:
    """Return the members of an object of any depth; empty if it is not an object."""
    scan = StrictScan(body, len(body), len(body))
    while not scan.step():
        yield
    return scan.copied_members()


def elements_in_slices(body: bytes) -> Generator[None, None, list[Raw]]:
    """Return the elements of an array of any depth; empty if it is not an array."""
    scan = StrictScan(body, len(body), len(body))
    while not scan.step():
        yield
    return [Raw(bytes(element)) for element in scan.elements()]


def finished(slices: Generator[None, None, _Read]) -> _Read:
    """Run a generator to its end without pauses and return its value, for small documents."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            read: _Read = end.value
            return read


def batch_in_slices(body: bytes, max_depth: int, max_nodes: int) -> Generator[None, None, list[Message]]:
    """`MessageReader.read_batch` in slices."""
    if not wire.is_batch(body):
        raise InvalidMessage("a batch is an array")
    scan = StrictScan(body, max_depth, max_nodes)
    while not scan.step():
        yield
    raw = scan.elements()
    wire.check_batch(raw)
    values = yield from scan.decoded()
    return [wire.message_of(value, _members(text)) for value, text in zip(values, raw, strict=True)]


def value_in_slices(document: bytes) -> Generator[None, None, Any]:
    """`wire.parse_strictly` in slices, without limits: for parts of an accepted message."""
    scan = StrictScan(document, wire.DEEPEST, sys.maxsize)
    while not scan.step():
        yield
    return (yield from scan.decoded())


def _members(text: Raw) -> dict[str, Raw]:
    return wire.members_of(text) if bytes(memoryview(text)[:1]) == b"{" else {}
