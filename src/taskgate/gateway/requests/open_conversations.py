"""Which conversations are still open, and which sessions are notified of what a conversation caused.

A stateful conversation lasts as long as its session; a stateless one until it has been idle for `IDLE_S`. What a conversation
caused is reported to it alone while it is open, and afterwards to all other conversations of the same caller.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from taskgate import clock
from taskgate.core.identity.addressees import may_be_asked
from taskgate.core.identity.conversation import ALL_CONVERSATIONS, ConversationKey
from taskgate.gateway.plan import Live
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.store.operations.shared_sessions import CONVERSATION

IDLE_S: Final = 1800.0
REMEMBERED: Final = 10_000


class OpenConversations:
    def __init__(self, sessions: SessionTable, elsewhere: Live[frozenset[str]]) -> None:
        """`elsewhere`: the ids of sessions that other gateways on the same store own."""
        self._sessions = sessions
        self._elsewhere = elsewhere
        self._last_seen: OrderedDict[ConversationKey, float] = OrderedDict()
        """The time of the last request of each stateless conversation, oldest first."""

    def seen(self, key: ConversationKey) -> bool:
        """Record a request of a stateless client. Return whether its conversation was not open before."""
        if key.session_id is not None:
            return False
        new = key not in self._last_seen
        self._last_seen[key] = clock.monotonic()
        self._last_seen.move_to_end(key)
        if len(self._last_seen) > REMEMBERED:
            self._last_seen.popitem(last=False)
        return new

    def is_open(self, key: ConversationKey) -> bool:
        if key.session_id is not None:
            return self._sessions.get(key.session_id) is not None or key.session_id in self._elsewhere.value
        return key in self._last_seen or CONVERSATION + key.stream in self._elsewhere.value

    def is_left_to(self, asking: ConversationKey, reader: ConversationKey) -> bool:
        """Whether a question that the client of `asking` can show to its person is left to it, and so not answered by `reader`."""
        return not may_be_asked(asking, reader) and self.is_open(asking)

    def is_notified(self, conversation: ConversationKey, source: ConversationKey) -> bool:
        """Whether a conversation is notified of what another one of the same caller caused."""
        return source.name in (conversation.name, ALL_CONVERSATIONS) or not self.is_open(source)

    def sessions_to_notify(self, source: ConversationKey) -> list[Session]:
        """The session of this conversation or, once the conversation has ended, all sessions of its principal."""
        if source.name == ALL_CONVERSATIONS or not self.is_open(source):
            return self._sessions.of_principal(source.caller)
        own = self._sessions.get(source.session_id) if source.session_id is not None else None
        return [own] if own is not None and own.conversation == source else []

    def idle(self, now: float) -> list[ConversationKey]:
        """Remove and return the conversations that have been idle for too long."""
        ended = []
        while self._last_seen and now - next(iter(self._last_seen.values())) > IDLE_S:
            ended.append(self._last_seen.popitem(last=False)[0])
        return ended
