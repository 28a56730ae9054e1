"""Which conversations go on. A stateful one lasts as long as its session; a stateless one until nothing was heard of it for long.

What a conversation caused is told to it alone while it goes on, and to all others of the same caller afterwards.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from taskgate import clock
from taskgate.core.identity import EVERY, ConversationKey
from taskgate.gateway.plan.plan import Live
from taskgate.gateway.requests.sessions import SessionTable

IDLE_S: Final = 1800.0
REMEMBERED: Final = 10_000


class OpenConversations:
    def __init__(self, sessions: SessionTable, elsewhere: Live[frozenset[str]]) -> None:
        """`elsewhere`: the ids of sessions that other gateways on the same store hold."""
        self._sessions = sessions
        self._elsewhere = elsewhere
        self._heard: OrderedDict[ConversationKey, float] = OrderedDict()
        """When something was last heard of each stateless conversation, longest ago first."""

    def heard(self, key: ConversationKey) -> bool:
        """A stateless client has called. True if its conversation was not known to go on."""
        if key.session_id is not None:
            return False
        new = key not in self._heard
        self._heard[key] = clock.monotonic()
        self._heard.move_to_end(key)
        if len(self._heard) > REMEMBERED:
            self._heard.popitem(last=False)
        return new

    def is_open(self, key: ConversationKey) -> bool:
        if key.session_id is not None:
            return self._sessions.get(key.session_id) is not None or key.session_id in self._elsewhere.value
        return key in self._heard

    def may_hear(self, who: ConversationKey, whose: ConversationKey) -> bool:
        """Whether one conversation is told what another of the same caller has caused."""
        return whose.name in (who.name, EVERY) or not self.is_open(whose)

    def idle(self, now: float) -> list[ConversationKey]:
        """Those that count as ended from now on."""
        ended = []
        while self._heard and now - next(iter(self._heard.values())) > IDLE_S:
            ended.append(self._heard.popitem(last=False)[0])
        return ended
