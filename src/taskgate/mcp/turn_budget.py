"""How much one peer may make a reader do before everyone else has a turn.

Every reader of bytes that a peer sends (an HTTP connection in either direction, the pipes of a child process, standard input)
counts the bytes, the lines and the messages that it has read. When one of the three is used up it stops reading, also in the middle
of what has already arrived, and goes on in a later turn of the event loop.

What counts is the work since the last pause and not the time of one turn: some event loops read the same socket up to 32 times in
one turn, so a limit for one read would be multiplied by that.
"""

from __future__ import annotations

from typing import Final

TURN_BYTES: Final = 256 * 1024
TURN_LINES: Final = 4_000
"""Lines of any kind, comments and empty ones included, and pieces of a body: the smallest things a peer can make us look at."""
TURN_MESSAGES: Final = 32
SLICE_BYTES: Final = 64 * 1024
"""How much a parser gets at once: it cannot be stopped in the middle of what it was given."""


class TurnBudget:
    """What is left for one reader in this turn. Whoever reads stops when it is `spent`."""

    __slots__ = ("bytes", "lines", "messages")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Everyone else has had a turn."""
        self.bytes = TURN_BYTES
        self.lines = TURN_LINES
        self.messages = TURN_MESSAGES

    @property
    def spent(self) -> bool:
        return self.bytes <= 0 or self.lines <= 0 or self.messages <= 0

    def spend_bytes(self, count: int) -> None:
        self.bytes -= count

    def spend_lines(self, count: int = 1) -> None:
        self.lines -= count

    def spend_message(self) -> None:
        self.messages -= 1
