"""Whom a question is for that its server did not tie to a call.

A server on standard streams sends its questions beside its calls, and nothing in them names one. What is known is which
conversations have calls open there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from taskgate.core.identity.conversation import EVERY, ConversationKey

NO_CONVERSATION: Final = "request:"
"""How the names begin under which requests without a conversation are kept: of callers with neither an identity nor a name."""
OPERATORS_INBOX: Final = ConversationKey("(operator)")
"""Whose inbox holds the questions that no caller may see; no principal has this name."""


def addressee(asking: Collection[ConversationKey]) -> ConversationKey:
    """Who is asked, given the conversations that have calls open where the question came from (at least one).

    The conversation if there is only one; all conversations of the principal if they are one principal's; otherwise the operator,
    because no caller may see a question that may be meant for another. A caller without an identity has one conversation, so two of
    them are never one principal's.
    """
    if len(asking) == 1:
        return next(iter(asking))
    callers = {key.caller for key in asking}
    return ConversationKey(callers.pop(), EVERY) if len(callers) == 1 else OPERATORS_INBOX


def has_conversation(stream: str) -> bool:
    """Whether the conversation of this name goes on after the call that it was seen with."""
    return not stream.startswith(NO_CONVERSATION)
