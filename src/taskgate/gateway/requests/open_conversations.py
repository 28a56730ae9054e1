"""Which conversations are still open, and which sessions are notified of what a conversation caused.

A stateful conversation lasts as long as its session; a stateless one until it has been idle for `IDLE_S`. What a conversation
caused is reported to it alone while it is open, and afterwards to all other conversations of the same caller.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from taskgate import clock
from taskgate.core.identity.conversation import EVERY, ConversationKey
from taskgate.gateway.plan import Live
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.ports.replicas import CONVERSATION

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
        return key in self._heard or CONVERSATION + key.stream in self._elsewhere.value

    def may_hear(self, who: ConversationKey, whose: ConversationKey) -> bool:
        """Whether one conversation is told what another of the same caller has caused."""
        return whose.name in (who.name, EVERY) or not self.is_open(whose)

    def sessions_told_of(self, whose: ConversationKey) -> list[Session]:
        """The sessions that are told what a conversation of a principal has caused: its own, or once it has ended all of them."""
        if whose.name == EVERY or not self.is_open(whose):
            return self._sessions.of_principal(whose.caller)
        own = self._sessions.get(whose.session_id) if whose.session_id is not None else None
        return [own] if own is not None and own.conversation == whose else []

    def idle(self, now: float) -> list[ConversationKey]:
        """Those that count as ended from now on."""
        ended = []
        while self._heard and now - next(iter(self._heard.values())) > IDLE_S:
            ended.append(self._heard.popitem(last=False)[0])
        return ended
