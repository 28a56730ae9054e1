"""Which gateway keeps the timers, notifications and log lines of a stateless client's conversation.

The first gateway of a store that needs any of them becomes the home of the conversation, stored as a row like that of a session;
the others forward to it. If the home has died, the next gateway that gets a request becomes the home and starts with empty state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Final

from taskgate import clock
from taskgate.core.identity.caller import Caller
from taskgate.gateway.plan import Live
from taskgate.ports.store import SharedStore
from taskgate.store.operations.shared_sessions import (
    CONVERSATION,
    AdoptSession,
    BeginConversation,
    FindSession,
    KeptSession,
)

_HOME_TRIES: Final = 40
_PAUSE_S: Final = 0.05


class ConversationHomes:
    def __init__(
        self, rows: SharedStore, elsewhere: Live[frozenset[str]], streams: Callable[[], Iterable[str]]
    ) -> None:
        """`elsewhere`: the ids of rows whose home is another gateway. `streams`: conversations that this gateway keeps
        something for.
        """
        self._rows = rows
        self._elsewhere = elsewhere
        self._streams = streams
        self._ours: set[str] = set()
        """Rows that named this gateway as their home when they were last read."""
        self.any_elsewhere = False

    def refresh(self) -> None:
        """The rows of other gateways were read again."""
        self.any_elsewhere = any(row_id.startswith(CONVERSATION) for row_id in self._elsewhere.value)

    def is_elsewhere(self, stream: str) -> bool:
        return CONVERSATION + stream in self._elsewhere.value

    def rows_here(self) -> set[str]:
        return {CONVERSATION + stream for stream in self._streams()}

    def retain(self, rows: Set[str]) -> None:
        """Forget all rows but these."""
        self._ours &= rows

    async def home(self, stream: str, caller: Caller, *, certain: bool) -> str:
        """The name of the home gateway. This gateway becomes the home if there is none or it has died. Raises GatewayFault.

        `certain`: the lease of this gateway has not ended since the rows were last read.
        """
        row_id, ours = CONVERSATION + stream, self._rows.ownership.owner
        if certain and row_id in self._ours:
            return ours
        for _ in range(_HOME_TRIES):
            kept = await self._rows.ask(FindSession(row_id))
            if kept is None:
                kept = KeptSession(
                    id=row_id, principal=caller.principal, scope=caller.scope, home="", moves=0, body=b""
                )
                await self._rows.do(BeginConversation(kept))
                continue
            if kept.home != ours and kept.internal and self._rows.is_alive(kept.home):
                return kept.home
            if kept.home == ours or await self._rows.do(AdoptSession(row_id, kept.home)) is not None:
                break
            await clock.sleep(_PAUSE_S)
        self._ours.add(row_id)
        return ours
