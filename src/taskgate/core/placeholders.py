"""A large object with placeholders for its large members, so that editing it takes time only for the small ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate.core import wire
from taskgate.core.wire import Raw

_KEPT_BYTES: Final = 16 * 1024


class PlaceholderObject:
    """A large object in which each large member is replaced by a small value of the same type.

    Code that reads or edits members can then work on a few bytes; `refill` puts the large members back.
    """

    __slots__ = ("_aside", "small")

    def __init__(self, body: bytes, spans: Mapping[str, tuple[int, int]], nonce: str) -> None:
        self._aside: dict[bytes, memoryview] = {}
        view = memoryview(body)
        members: dict[str, Raw] = {}
        for number, (name, (begin, end)) in enumerate(spans.items()):
            if end - begin <= _KEPT_BYTES:
                members[name] = Raw(body[begin:end])
                continue
            mark = wire.encode(f"{nonce}{number}")
            placeholder = {b"{": b'{"large":%b}', b"[": b"[%b]"}.get(body[begin : begin + 1], b"%b") % mark
            self._aside[placeholder] = view[begin:end]
            members[name] = Raw(placeholder)
        self.small = wire.join(members)

    def refill(self, edited: bytes) -> bytes:
        """Return the edited object with its large members. A member that was removed stays removed."""
        parts: list[bytes | memoryview] = []
        places = sorted((edited.find(mark), mark) for mark in self._aside)
        end = 0
        for at, mark in places:
            if at >= 0:
                parts += [edited[end:at], self._aside[mark]]
                end = at + len(mark)
        return b"".join([*parts, edited[end:]])
