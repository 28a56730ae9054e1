"""Read and edit large results without decoding them completely, and let other requests run in between."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.truncate_result import CutResult, cut_string, truncate_result
from taskgate.core.placeholders import PlaceholderObject
from taskgate.core.strict_scan import StrictScan
from taskgate.core.wire import DEEPEST, Raw
from taskgate.turns import LARGE_BYTES, let_others_run

_elements = msgspec.json.Decoder(list[Raw]).decode
_NONE: Final = Raw(b"[]")
_BLOCKS_AT_ONCE: Final = 1_000
_SEPARATED_BYTES: Final = 2 << 20
"""The parts of a checked document up to this size are separated at once, in about a millisecond for each megabyte."""
_SHOWN: Final = 500
_LONGEST_CHARACTER: Final = 12


async def edited(result: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Edit the members of an object. `edit` must not read `content` or other large members: they may be placeholders."""
    if len(result) < LARGE_BYTES:
        return edit(result)
    small_copy = await with_placeholders(result)
    filled = small_copy.refill(edit(small_copy.small))
    await let_others_run()
    return filled


async def summarized(result: bytes) -> bytes:
    """The same object with placeholders for its large members, for code that reads only the small ones."""
    return result if len(result) < LARGE_BYTES else (await with_placeholders(result)).small


async def with_placeholders(result: bytes) -> PlaceholderObject:
    return (await _scanned(result)).with_placeholders(secrets.token_hex(16))


async def members_of(result: bytes | Raw) -> dict[str, Raw]:
    """The members of an object, each as its exact bytes."""
    if len(result) <= _SEPARATED_BYTES:
        return wire.members_of(result)
    return (await _scanned(bytes(result))).members()


async def elements_of(array: Raw) -> list[Raw]:
    """The elements of an array, each as its exact bytes; empty if the value is no array."""
    if len(array) <= _SEPARATED_BYTES:
        text = bytes(array)
        return _elements(text) if text.startswith(b"[") else []
    return (await _scanned(bytes(array))).elements()


async def truncated(result: bytes, limit: int) -> bytes:
    """Truncate a result, unless it contains questions: a truncated question cannot be answered."""
    if len(result) < LARGE_BYTES:
        asks = b'"inputRequests"' in result and "inputRequests" in wire.members_of(result)
        return result if asks else truncate_result(result, limit)
    members = await members_of(result)
    if "inputRequests" in members:
        return result
    cut = CutResult(members, await elements_of(members.pop("content", _NONE)), len(result), limit)
    last = {} if cut.last is None else await _object(cut.last)
    await let_others_run()
    return cut.finish(last)


async def first_text(result: bytes) -> str | None:
    """The beginning of the first text of a result. Clients that stop at a failed task show only this."""
    blocks = await elements_of((await members_of(result)).get("content", _NONE))
    for number, block in enumerate(blocks, 1):
        text = memoryview((await _object(block)).get("text", b""))
        if bytes(text[:1]) == b'"':
            return str(wire.parse_strictly(cut_string(text, _SHOWN * _LONGEST_CHARACTER)))[:_SHOWN]
        if number % _BLOCKS_AT_ONCE == 0:
            await let_others_run()
    return None


async def _object(value: Raw) -> dict[str, Raw]:
    return await members_of(value) if bytes(memoryview(value)[:1]) == b"{" else {}


async def _scanned(document: bytes) -> StrictScan:
    scan = StrictScan(document, DEEPEST, sys.maxsize)
    while not scan.step():
        await let_others_run()
    return scan
