"""Flow control of a caller's connection: when its bytes are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl


class ReadingFlow(FlowControl):
    """Flow control that pauses reading at uvicorn's request (an unconsumed body, a pipelined request) and while the
    connection is `behind`, which means that received data is not parsed yet.
    """

    def __init__(self, transport: Any, catch_up: Callable[[], None]) -> None:
        super().__init__(transport)
        self.behind = False
        self._catch_up: Callable[[], None] | None = catch_up

    def end(self) -> None:
        """The connection is lost. Without a reference to it, no cycle keeps what it had received."""
        self._catch_up = None

    def pause_reading(self) -> None:
        self.read_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if self.behind and self._catch_up is not None:
                self._catch_up()
            elif not self._transport.is_closing():
                self._transport.resume_reading()

    def rest(self) -> None:
        """Read nothing until `caught_up`."""
        self.behind = True
        self._transport.pause_reading()

    def caught_up(self) -> None:
        if self.behind:
            self.behind = False
            if not self.read_paused and not self._transport.is_closing():
                self._transport.resume_reading()
