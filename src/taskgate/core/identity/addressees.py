"""The addressee of a question that its server did not tie to a call.

A server on standard streams sends questions without naming a call. Known are the conversations that have calls open at
that server.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from taskgate.core.identity.conversation import ALL_CONVERSATIONS, ConversationKey

NO_CONVERSATION: Final = "request:"
"""Prefix of the names of requests without a conversation: of callers with neither an identity nor a client name."""
OPERATORS_INBOX: Final = ConversationKey("(operator)")
"""The inbox for questions that no caller may see; no principal has this name."""


def addressee(asking: Collection[ConversationKey]) -> ConversationKey:
    """Return the recipient of the question, given the conversations that have calls open at the server (at least one).

    The conversation if there is only one; all conversations of the principal if they belong to one principal; otherwise the
    operator, because a caller must not see a question that may be meant for another. A caller without an identity has one
    conversation, so two such conversations never belong to one principal.
    """
    if len(asking) == 1:
        return next(iter(asking))
    callers = {key.caller for key in asking}
    return ConversationKey(callers.pop(), ALL_CONVERSATIONS) if len(callers) == 1 else OPERATORS_INBOX


def may_be_asked(asking: ConversationKey, asked: ConversationKey) -> bool:
    """Whether the second conversation is the one that made the call that asks.

    Calls without a conversation are known by the ids of their tasks alone, so a caller that presents one, without a conversation as
    well, counts as the caller.
    """
    return asked == asking or not (has_conversation(asked.stream) or has_conversation(asking.stream))


def has_conversation(stream: str) -> bool:
    """Whether the conversation of this name continues after the call."""
    return not stream.startswith(NO_CONVERSATION)
