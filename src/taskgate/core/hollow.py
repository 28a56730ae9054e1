"""A large object with placeholders for its large members, so that editing it takes time only for the small ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate.core import wire
from taskgate.core.wire import Raw

_KEPT_BYTES: Final = 16 * 1024


class Hollow:
    """A large object without its large members, each of which has left a small one of the same kind in its place.

    What looks at an object or edits its members can so be applied to a few bytes; `refill` puts the large members back.
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
            stands_in = {b"{": b'{"large":%b}', b"[": b"[%b]"}.get(body[begin : begin + 1], b"%b") % mark
            self._aside[stands_in] = view[begin:end]
            members[name] = Raw(stands_in)
        self.small = wire.join(members)

    def refill(self, edited: bytes) -> bytes:
        """The edited object with its large members. One that was edited away stays away."""
        parts: list[bytes | memoryview] = []
        places = sorted((edited.find(mark), mark) for mark in self._aside)
        end = 0
        for at, mark in places:
            if at >= 0:
                parts += [edited[end:at], self._aside[mark]]
                end = at + len(mark)
        return b"".join([*parts, edited[end:]])
