"""The label that a stateless client sets in `_meta`, and the conversation that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskgate.core.identity.caller import Caller
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.meta import META

CLIENT_META: Final = "taskgate/client"
"""The `_meta` key with the label of a stateless client."""


def client_label(params: Mapping[str, Any]) -> str:
    """The label of a stateless client, or an empty string."""
    meta = params.get(META)
    client = meta.get(CLIENT_META) if type(meta) is dict else None
    if type(client) is not str:
        return ""
    label = "".join(letter for letter in client[:200] if letter.isprintable())
    return f"client:{label}" if label else ""


def stateless_stream(caller: Caller, params: Mapping[str, Any]) -> str:
    """The name of a stateless caller's conversation; empty without an identity and a client name."""
    label = client_label(params)
    return label if caller.anonymous else ConversationKey(caller.principal, label).stream
