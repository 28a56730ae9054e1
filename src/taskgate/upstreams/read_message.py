"""Reading what a server sent: small messages at once, large ones a slice at a time, with everybody else's turn in between."""

from __future__ import annotations

from taskgate.core.errors import TaskgateError
from taskgate.core.strict_scan import StrictScan
from taskgate.core.wire import Kind, Message, Reader
from taskgate.turns import LARGE_BYTES, let_others_run


async def read_message(reader: Reader, body: bytes) -> Message:
    """Raises what `Reader.read` raises."""
    if len(body) < LARGE_BYTES:
        return reader.read(body)
    scan = StrictScan(body, reader.max_depth, reader.max_nodes)
    while not scan.step():
        await let_others_run()
    message = scan.message()
    await let_others_run()
    return message


def response_in(reader: Reader, body: bytes) -> Message | None:
    """The JSON-RPC response in a JSON body, whoever it is to."""
    try:
        message = reader.read(body)
    except TaskgateError:
        return None
    return message if message.kind is Kind.RESPONSE else None
