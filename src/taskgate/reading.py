"""Parse messages of peers: small ones in one step, large ones in slices between which other work runs."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.sliced_reading import (
    batch_in_slices,
    elements_in_slices,
    members_in_slices,
    message_in_slices,
    reads_quickly,
    result_in_slices,
    value_in_slices,
)
from taskgate.core.wire import Members, Message, MessageReader, Raw
from taskgate.turns import let_others_run

_Read = TypeVar("_Read")


async def read_message(reader: MessageReader, body: bytes) -> Message:
    """Raises what `MessageReader.read` raises."""
    if reads_quickly(body):
        return reader.read(body)
    return await _in_turns(message_in_slices(body, reader.max_depth, reader.max_nodes))


async def read_batch(reader: MessageReader, body: bytes) -> list[Message]:
    """Raises what `MessageReader.read_batch` raises."""
    if reads_quickly(body):
        return reader.read_batch(body)
    return await _in_turns(batch_in_slices(body, reader.max_depth, reader.max_nodes))


async def read_value(document: bytes) -> Any:
    """Return the value of a document that was validated before as part of a message."""
    if reads_quickly(document):
        return wire.parse_strictly(document)
    return await _in_turns(value_in_slices(document))


async def read_unread_result(body: bytes) -> Message | None:
    """Return the response in a message that exceeds the limits, with its result unparsed; None if it cannot be read."""
    try:
        return await _in_turns(result_in_slices(body))
    except TaskgateError:
        return None


async def members_of_any_depth(body: bytes) -> Members:
    return await _in_turns(members_in_slices(body))


async def elements_of_any_depth(body: bytes) -> list[Raw]:
    return await _in_turns(elements_in_slices(body))


async def _in_turns(slices: Generator[None, None, _Read]) -> _Read:
    while True:
        await let_others_run()
        try:
            next(slices)
        except StopIteration as end:
            read: _Read = end.value
            return read
