"""Parse large messages and documents in slices: generators that yield between slices and return the value."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, Final, TypeVar

from taskgate.core import wire
from taskgate.core.strict_scan import StrictScan
from taskgate.core.wire import InvalidMessage, Message, Raw

_Read = TypeVar("_Read")

_QUICK_BYTES: Final = 16 * 1024
_QUICK_VALUES: Final = 8_192
_LARGE_BYTES: Final = 256 * 1024
TOO_LARGE: Final = f"it has more than {_LARGE_BYTES} bytes or {_QUICK_VALUES} values"
"""Why a message cannot be read in one go."""


def reads_quickly(body: bytes) -> bool:
    """Whether a message can be read in one go, within a few milliseconds: it is neither long nor can it hold many values."""
    size = len(body)
    if size <= _QUICK_BYTES:
        return True
    # Each value but the first stands behind a comma or begins an array or object. Those in texts are counted, too.
    return size < _LARGE_BYTES and body.count(b",") + body.count(b"{") + body.count(b"[") <= _QUICK_VALUES


def message_in_slices(body: bytes, max_depth: int, max_nodes: int) -> Generator[None, None, Message]:
    """`MessageReader.read` in slices: yields between them and returns the message. Raises what that raises."""
    scan = StrictScan(body, max_depth, max_nodes)
    while not scan.step():
        yield
    if scan.is_result:
        return scan.response()
    value = yield from scan.decoded()
    return wire.message_of(value, scan.copied_members())


def result_in_slices(body: bytes) -> Generator[None, None, Message | None]:
    """The response in a body that is deeper or fuller than a message may be, with its result unread. None if it holds no result."""
    scan = StrictScan(body, len(body), len(body))
    while not scan.step():
        yield
    return scan.response() if scan.is_result else None


def members_in_slices(body: bytes) -> Generator[None, None, dict[str, Raw]]:
    """The members of an object of any depth; nothing where it is no object."""
    scan = StrictScan(body, len(body), len(body))
    while not scan.step():
        yield
    return scan.copied_members()


def elements_in_slices(body: bytes) -> Generator[None, None, list[Raw]]:
    """The elements of an array of any depth; nothing where it is no array."""
    scan = StrictScan(body, len(body), len(body))
    while not scan.step():
        yield
    return [Raw(bytes(element)) for element in scan.elements()]


def finished(slices: Generator[None, None, _Read]) -> _Read:
    """What the slices return, without a pause between them; for what is small enough to be read in one go."""
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
    """`wire.parse_strictly` in slices, without limits: for parts of a message that was let in."""
    scan = StrictScan(document, wire.DEEPEST, sys.maxsize)
    while not scan.step():
        yield
    return (yield from scan.decoded())


def _members(text: Raw) -> dict[str, Raw]:
    return wire.members_of(text) if bytes(memoryview(text)[:1]) == b"{" else {}
