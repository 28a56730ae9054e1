"""Convert the forms of `sampling/createMessage` that older servers send into those of the specification.

A client that follows the specification rejects a `system` role, a plain string as content, a resource among the
content, and a request without `maxTokens`. A request that conforms passes unchanged, byte for byte.
"""

from __future__ import annotations

from typing import Any, Final

from taskgate.core import wire
from taskgate.core.wire import Raw

DEFAULT_MAX_TOKENS: Final = 1024


def spec_shapes(params: Raw | None) -> Raw | None:
    """Return the params in the forms of the specification; unchanged if they conform."""
    given = wire.parse_strictly(bytes(params)) if params is not None else None
    if params is None or type(given) is not dict or type(given.get("messages")) is not list:
        return params
    changed: dict[str, Any] = {}
    messages = [_message(message) for message in given["messages"]]
    system = [_text_of(message) for message in messages if _is_system(message)]
    kept = [message for message in messages if not _is_system(message)]
    if kept != given["messages"]:
        changed["messages"] = kept
    if any(system):
        first = given.get("systemPrompt")
        changed["systemPrompt"] = "\n\n".join(
            [*([first] if type(first) is str and first else []), *filter(None, system)]
        )
    if given.get("maxTokens") is None:
        changed["maxTokens"] = DEFAULT_MAX_TOKENS
    members = wire.members_of(params)
    if type(given.get("includeContext")) is bool:
        # A boolean does not name a context, and a caller may only be asked for none without its consent.
        del members["includeContext"]
    elif not changed:
        return params
    return Raw(wire.join({**members, **{key: wire.raw(value) for key, value in changed.items()}}))


def _is_system(message: Any) -> bool:
    return type(message) is dict and message.get("role") == "system"


def _message(message: Any) -> Any:
    if type(message) is not dict or "content" not in message:
        return message
    content = message["content"]
    shaped = [_block(block) for block in content] if type(content) is list else _block(content)
    return message if shaped == content else {**message, "content": shaped}


def _block(block: Any) -> Any:
    if type(block) is str:
        return {"type": "text", "text": block}
    if type(block) is not dict or block.get("type") != "resource":
        return block
    inner = block.get("resource")
    holder = inner if type(inner) is dict else block
    text = holder.get("text")
    return {"type": "text", "text": text} if type(text) is str else block


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    blocks = content if type(content) is list else [content]
    texts = [block.get("text") for block in blocks if type(block) is dict]
    return "\n".join(text for text in texts if type(text) is str)
