"""Strict check of a large response by its parts, for responses in compact JSON.

`StrictScan` accepts every way to write a document, and reads it token by token. Most servers write compact JSON, and then there is
a quicker way: the parser separates the members of an object or the elements of an array without decoding them. If they are joined
to the same bytes again, no key appears twice and nothing is between them. Each small part is then parsed by `wire.parse_strictly`,
and each large one is separated in turn.

This module only accepts: a response that it cannot decide on, or would reject, is left to `StrictScan`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.wire import Members, Raw
from taskgate.mcp.json_errors import UNDECODABLE

MAX_BYTES: Final = 2 << 20
"""Larger documents are not separated at once; that takes about a millisecond for each megabyte."""
PART_BYTES: Final = 16 * 1024
"""Arrays and objects up to this size are parsed at once."""
STEP_BYTES: Final = 32 * 1024
"""How much is parsed between two pauses."""
_SEPARATED_TIMES: Final = 8
"""How often each byte may be separated on average. Deeply nested large parts are left to the scan."""


def members_of_response(body: bytes, max_depth: int, max_nodes: int) -> Generator[None, None, Members | None]:
    """Return the members of a strictly valid response with a result, as views of the body; None if `StrictScan` must decide."""
    if len(body) > MAX_BYTES:
        return None
    try:
        members = _joined_alike(body)
        if not isinstance(members, dict) or "result" not in members or "method" in members or "error" in members:
            return None
        return (
            members if (yield from _Check(max_nodes - 1, len(body)).accepts(members.values(), max_depth - 1)) else None
        )
    except (TaskgateError, *UNDECODABLE):
        return None


def _joined_alike(document: bytes) -> dict[str, Raw] | list[Raw] | None:
    """Separate an object or array; None if it is neither, or not written in the only compact way."""
    first = document[:1]
    if first == b"{":
        members = wire.members_of(document)
        return members if wire.encode(members) == document else None
    if first == b"[":
        elements = wire.elements_of(document)
        return elements if wire.encode(elements) == document else None
    return None


class _Check:
    """The check of one document: its limits, and the work that was done for it."""

    def __init__(self, nodes_left: int, size: int) -> None:
        self._nodes_left = nodes_left
        self._separable = size * _SEPARATED_TIMES
        self._since_pause = 0

    def accepts(self, parts: Iterable[Raw], depth_left: int) -> Generator[None, None, bool]:
        """Whether all parts are valid and within the limits, none of them nested deeper than `depth_left`."""
        for raw in parts:
            part = bytes(raw)
            if len(part) > PART_BYTES and part[:1] in (b"{", b"["):
                accepted = yield from self._accepts_large(part, depth_left)
            else:
                # Upper bounds: characters in strings are counted as well.
                opened = part.count(b"{") + part.count(b"[")
                self._nodes_left -= 1 + part.count(b",") + opened
                accepted = self._nodes_left >= 0 and depth_left >= 0
                if opened > depth_left or not wire.is_encoded_alike(part):
                    wire.parse_strictly(part, depth_left)
            if not accepted:
                return False
            self._since_pause += len(part)
            if self._since_pause > STEP_BYTES:
                self._since_pause = 0
                yield
        return True

    def _accepts_large(self, part: bytes, depth_left: int) -> Generator[None, None, bool]:
        self._separable -= len(part)
        self._nodes_left -= 1
        separated = _joined_alike(part) if self._separable > 0 and depth_left > 0 else None
        yield
        if separated is None:
            return False
        inner = separated.values() if isinstance(separated, dict) else separated
        return (yield from self.accepts(inner, depth_left - 1))
