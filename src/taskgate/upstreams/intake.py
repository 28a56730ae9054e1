"""Limits on messages from servers: size, depth and number of nodes.

All servers of a gateway share one `Intake`, so that a reload changes the limits of open connections too.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from taskgate.core.wire import MessageReader

MIB = 1024 * 1024


class BufferedWire(Protocol):
    """A wire with a buffer of its own, which needs the limit."""

    def adopt(self, max_bytes: int) -> None: ...


class Intake:
    __slots__ = ("max_bytes", "reader", "wires")

    def __init__(self, max_bytes: int = 16 * MIB, reader: MessageReader | None = None) -> None:
        self.max_bytes = max_bytes
        self.reader = reader or MessageReader()
        self.wires: WeakSet[BufferedWire] = WeakSet()

    def adopt(self, max_bytes: int, max_depth: int, max_nodes: int) -> None:
        self.max_bytes = max_bytes
        self.reader.adopt(max_depth, max_nodes)
        for wire in self.wires:
            wire.adopt(max_bytes)
