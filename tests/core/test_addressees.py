"""The addressee of a question that its server did not tie to a call."""

from __future__ import annotations

import pytest

from taskgate.core.identity.addressees import OPERATORS_INBOX, addressee, has_conversation, may_be_asked
from taskgate.core.identity.conversation import ALL_CONVERSATIONS, ConversationKey

ANN_1, ANN_2 = ConversationKey("ann", "session:1"), ConversationKey("ann", "client:desk")
BOB = ConversationKey("bob", "session:3")
ANONYMOUS_1, ANONYMOUS_2 = ConversationKey("session:8"), ConversationKey("session:9")
NAMELESS_1, NAMELESS_2 = ConversationKey("request:a-1"), ConversationKey("request:a-2")


@pytest.mark.parametrize(
    ("asking", "expected"),
    [
        ({ANN_1}, ANN_1),
        ({ANONYMOUS_1}, ANONYMOUS_1),
        ({NAMELESS_1}, NAMELESS_1),
        ({ANN_1, ANN_2}, ConversationKey("ann", ALL_CONVERSATIONS)),
        ({ANN_1, BOB}, OPERATORS_INBOX),
        ({ANN_1, ANN_2, BOB}, OPERATORS_INBOX),
        ({ANN_1, ANONYMOUS_1}, OPERATORS_INBOX),
        ({ANONYMOUS_1, ANONYMOUS_2}, OPERATORS_INBOX),
        ({NAMELESS_1, NAMELESS_2}, OPERATORS_INBOX),
    ],
)
def test_addressee_of_question_without_call(asking: set[ConversationKey], expected: ConversationKey) -> None:
    assert addressee(asking) == expected


def test_call_without_conversation_is_distinguished_from_conversations() -> None:
    assert not has_conversation(NAMELESS_1.stream)
    assert all(has_conversation(key.stream) for key in (ANN_1, ANN_2, ANONYMOUS_1))


@pytest.mark.parametrize(
    ("asking", "asked", "expected"),
    [
        (ANN_1, ANN_1, True),
        (ANN_1, ANN_2, False),
        (ANN_1, BOB, False),
        (ANONYMOUS_1, NAMELESS_1, False),
        (NAMELESS_1, ANONYMOUS_1, False),
        (NAMELESS_1, NAMELESS_2, True),
    ],
)
def test_question_of_a_task_is_carried_to_the_conversation_of_its_call(
    asking: ConversationKey, asked: ConversationKey, expected: bool
) -> None:
    assert may_be_asked(asking, asked) is expected
