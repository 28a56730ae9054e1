"""A conversation's key: the name under which its events are stored, encoded and decoded."""

from __future__ import annotations

import pytest

from taskgate.core.identity.conversation import SESSION, ConversationKey, conversation_of, streams_between

KEYS = [ConversationKey("ann"), ConversationKey("ann", "laptop"), ConversationKey("ann", SESSION + "s1")]


@pytest.mark.parametrize("key", KEYS)
def test_the_name_of_a_stream_identifies_its_conversation(key: ConversationKey) -> None:
    assert conversation_of(key.stream) == key


def test_only_a_stateful_conversation_has_a_session() -> None:
    assert [key.session_id for key in KEYS] == [None, None, "s1"]


def test_the_named_conversations_of_a_caller_share_a_prefix_that_others_lack() -> None:
    after, before = streams_between("ann")
    assert all(after < key.stream < before for key in KEYS if key.name)
    assert not any(
        after < ConversationKey(caller, "laptop").stream < before for caller in ("an", "ann2", "anna", "bob")
    )
