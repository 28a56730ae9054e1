"""Which server a URI came from that a caller was given in a result: servers need not list what they link to.

Remembered for each principal and scope, the latest first, and gone after a restart. What may be read is decided elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from taskgate.core.catalog.entry import MARK, uris_between, uris_in
from taskgate.turns import let_others_run

MAX_REMEMBERED: Final = 20_000
_PART_BYTES: Final = 1 << 20


class HandedOut:
    def __init__(self) -> None:
        self._servers: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def note(self, principal: str, scope: str, server: str, result: bytes) -> None:
        """A result of this server goes to this caller. Almost free where it holds no URI."""
        if MARK in result:
            self._keep(principal, scope, server, uris_in(result))

    async def note_large(self, principal: str, scope: str, server: str, result: bytes) -> None:
        """The same for a result that is too large to be read in one go."""
        for begin in range(0, len(result), _PART_BYTES):
            self._keep(principal, scope, server, uris_between(result, begin, begin + _PART_BYTES))
            await let_others_run()

    def _keep(self, principal: str, scope: str, server: str, uris: list[str]) -> None:
        for uri in uris:
            key = (principal, scope, uri)
            self._servers[key] = server
            self._servers.move_to_end(key)
        while len(self._servers) > MAX_REMEMBERED:
            self._servers.popitem(last=False)

    def owner(self, principal: str, scope: str, uri: str) -> str | None:
        return self._servers.get((principal, scope, uri))
