"""Limit how much of a peer's input a reader processes before it yields to the event loop.

Every reader of a peer's bytes (an HTTP connection in either direction, the pipes of a child process, standard input) counts the
bytes, lines and messages it has read. When one of the three reaches its limit, the reader stops, even in the middle of received
data, and continues in a later iteration of the event loop.

The count covers the work since the last yield, not one read: some event loops read the same socket up to 32 times in one iteration,
which would multiply a limit per read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

TURN_BYTES: Final = 256 * 1024
TURN_LINES: Final = 4_000
"""Lines of any kind (comments and empty lines too) and body chunks: the smallest units of input that cost work."""
TURN_MESSAGES: Final = 32
SLICE_BYTES: Final = 64 * 1024
"""How much a parser is given at once, because it cannot be interrupted within its input."""
PIECE_BYTES: Final = 16 * 1024
"""How much is split into lines at once; a reader can stop between two pieces."""


def pieces_of(chunk: bytes) -> Iterator[bytes]:
    return (chunk[begin : begin + PIECE_BYTES] for begin in range(0, len(chunk), PIECE_BYTES))


class TurnBudget:
    """The remaining allowance of one reader in this iteration. The reader stops when it is `spent`."""

    __slots__ = ("bytes", "lines", "messages", "spent")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start a new iteration with the full allowance."""
        self.bytes = TURN_BYTES
        self.lines = TURN_LINES
        self.messages = TURN_MESSAGES
        self.spent = False

    def spend(self, size: int, lines: int, messages: int) -> None:
        """Subtract what was read: bytes, lines or body chunks, and messages."""
        bytes_left = self.bytes = self.bytes - size
        lines_left = self.lines = self.lines - lines
        messages_left = self.messages = self.messages - messages
        if bytes_left <= 0 or lines_left <= 0 or messages_left <= 0:
            self.spent = True
