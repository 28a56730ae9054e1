"""Conversations: events, questions and lists are kept per conversation.

A conversation is a session of the stateful generation, or all requests of a stateless client with the same
`_meta["taskgate/client"]`. A principal may have several at once. Events of a call go to the conversation that made the
call, and to the principal's other conversations only after it has ended. A caller without an identity has exactly one
conversation and is known by nothing else.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_BETWEEN: Final = "\x1f"
"""Occurs neither in the name of a principal nor in that of a conversation."""
SESSION: Final = "session:"
"""Prefix of the conversation name of a stateful session."""
ALL_CONVERSATIONS: Final = "*"
"""Addresses all conversations of a caller."""


class ConversationKey(NamedTuple):
    """Identifies a conversation."""

    caller: str
    """The principal, or the conversation itself for callers without an identity."""
    name: str = ""
    """The conversation of the principal; empty for stateless calls that do not name their client."""

    @property
    def stream(self) -> str:
        """Key of its stored events."""
        return f"{self.caller}{_BETWEEN}{self.name}" if self.name else self.caller

    @property
    def session_id(self) -> str | None:
        return self.name.removeprefix(SESSION) if self.name.startswith(SESSION) else None


def conversation_of(stream: str) -> ConversationKey:
    caller, _, name = stream.partition(_BETWEEN)
    return ConversationKey(caller, name)


def streams_between(caller: str) -> tuple[str, str]:
    """Return an exclusive lower and upper bound of the stream keys of a caller's named conversations."""
    return caller + _BETWEEN, caller + chr(ord(_BETWEEN) + 1)
