"""Conversations: events, questions and lists are kept per conversation.

A conversation is a session of the stateful generation, or all requests of a stateless client with the same
`_meta["taskgate/client"]`. A principal may have several at once. Events of a call go to the conversation that made the
call, and to the principal's other conversations only after it has ended. A caller without an identity has exactly one
conversation and is known by nothing else.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_BETWEEN: Final = "\x1f"
"""Stands in no principal's name, nor in that of a conversation."""
SESSION: Final = "session:"
"""How the name of a stateful session's conversation begins."""
EVERY: Final = "*"
"""What may concern any conversation of a caller."""


class ConversationKey(NamedTuple):
    caller: str
    """The principal, or for callers without an identity the conversation itself."""
    name: str = ""
    """Which of the principal's conversations; empty for the one of all its stateless calls that do not name their client."""

    @property
    def stream(self) -> str:
        """Under which name its events are stored."""
        return f"{self.caller}{_BETWEEN}{self.name}" if self.name else self.caller

    @property
    def session_id(self) -> str | None:
        return self.name.removeprefix(SESSION) if self.name.startswith(SESSION) else None


def conversation_of(stream: str) -> ConversationKey:
    caller, _, name = stream.partition(_BETWEEN)
    return ConversationKey(caller, name)


def streams_between(caller: str) -> tuple[str, str]:
    """The names of all streams of a caller's named conversations are greater than the first and less than the second."""
    return caller + _BETWEEN, caller + chr(ord(_BETWEEN) + 1)
