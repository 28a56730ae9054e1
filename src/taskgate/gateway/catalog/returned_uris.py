"""Remember which server returned a URI to a caller: servers need not list the resources they link to.

The latest URIs are kept in memory, per caller and scope; for anonymous callers per conversation, or per address if there is
none, so that a result for one caller does not decide where a URI leads for another. Whether it may be read is decided
elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from taskgate.core.catalog.links import uris_between, uris_in
from taskgate.turns import let_others_run

MAX_REMEMBERED: Final = 20_000
_PART_BYTES: Final = 1 << 20


class ReturnedUris:
    def __init__(self) -> None:
        self._servers: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def note(self, caller: str, scope: str, server: str, result: bytes) -> None:
        """Note the URIs in a result of this server for this caller (a `fair_key`)."""
        self.note_uris(caller, scope, server, uris_in(result))

    async def note_large(self, caller: str, scope: str, server: str, result: bytes) -> None:
        """Note the URIs in a large result, which is parsed in parts."""
        for begin in range(0, len(result), _PART_BYTES):
            self.note_uris(caller, scope, server, uris_between(result, begin, begin + _PART_BYTES))
            await let_others_run()

    def note_uris(self, caller: str, scope: str, server: str, uris: list[str]) -> None:
        for uri in uris:
            key = (caller, scope, uri)
            self._servers[key] = server
            self._servers.move_to_end(key)
        while len(self._servers) > MAX_REMEMBERED:
            self._servers.popitem(last=False)

    def owner(self, caller: str, scope: str, uri: str) -> str | None:
        return self._servers.get((caller, scope, uri))
