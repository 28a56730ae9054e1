"""How to reach the one who asked while its request is open, or a session outside any request."""

from __future__ import annotations

from typing import Protocol


class Outlet(Protocol):
    def send(self, message: bytes) -> None:
        """Hand over one whole JSON-RPC message. Never blocks; a full buffer drops the stream, not the process."""
        ...
