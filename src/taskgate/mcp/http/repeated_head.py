"""Recognize a message whose head equals one that was parsed before, so that it is not parsed again.

A peer repeats the head of its messages on a connection, and only the length of the body differs. A head that is equal byte for
byte, except for the digits of that length, has the same meaning to the parser that has read the first one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
MAX_DIGITS: Final = 9
"""Longer numbers are left to the parser, which checks for overflows."""


class RepeatedHead:
    """The bytes of a parsed head around the digits of its length."""

    __slots__ = ("_after", "_before", "_begin", "_message_size", "_size", "_whole")

    def __init__(self, before: bytes, after: bytes, whole: bytes, message_size: int) -> None:
        self._before, self._after, self._size = before, after, len(before)
        self._whole, self._begin, self._message_size = whole, len(whole), message_size
        """The head of the last message with its length, and the size of both: messages of one kind often have the same."""

    @classmethod
    def of(
        cls, data: bytes, body_size: int, header_list: Sequence[object], fields: Mapping[bytes, bytes]
    ) -> RepeatedHead | None:
        """Return the head of `data`, which is one complete message on a connection that stays open.

        The parser has found these headers, with lower-case names, and a body of this size. Returns None for a head that
        cannot be recognized: one with repeated names, or without a length.
        """
        end = data.find(b"\r\n\r\n") + 4
        found = _LENGTH.search(data, 0, end)
        if (
            found is None
            or len(fields) != len(header_list)
            or b"transfer-encoding" in fields
            or not 0 < body_size == len(data) - end
            or len(found[1]) > MAX_DIGITS
            or int(found[1]) != body_size
        ):
            return None
        return cls(data[: found.start(1)], data[found.end(1) : end], data[:end], len(data))

    def body_in(self, data: bytes) -> bytes | None:
        """Return the body if `data` is exactly one message with this head; otherwise None, and the parser must read it."""
        if len(data) == self._message_size and data[: self._begin] == self._whole:
            return data[self._begin :]
        if data[: self._size] != self._before:
            return None
        after = data.find(b"\r", self._size, self._size + MAX_DIGITS + 1)
        length = data[self._size : after]
        begin = after + len(self._after)
        if not length.isdigit() or not data.startswith(self._after, after) or not 0 < int(length) == len(data) - begin:
            return None
        self._whole, self._begin, self._message_size = data[:begin], begin, len(data)
        return data[begin:]
