"""What is accepted from any server: how long a message may be, and how it is read: small ones at once, large ones a slice at a
time, with everybody else's turn in between.

All servers of a gateway share one, so that a reload changes the limits of conversations that go on.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from taskgate.core.strict_scan import StrictScan
from taskgate.core.wire import Message, Reader
from taskgate.turns import LARGE_BYTES, let_others_run

MIB = 1024 * 1024


class Line(Protocol):
    """A conversation whose own buffer must know the limit."""

    def adopt(self, max_bytes: int) -> None: ...


class Intake:
    __slots__ = ("lines", "max_bytes", "reader")

    def __init__(self, max_bytes: int = 16 * MIB, reader: Reader | None = None) -> None:
        self.max_bytes = max_bytes
        self.reader = reader or Reader()
        self.lines: WeakSet[Line] = WeakSet()

    def adopt(self, max_bytes: int, max_depth: int, max_nodes: int) -> None:
        self.max_bytes = max_bytes
        self.reader.adopt(max_depth, max_nodes)
        for line in self.lines:
            line.adopt(max_bytes)


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
