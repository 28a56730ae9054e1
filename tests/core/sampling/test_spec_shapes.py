"""What older servers send as sampling requests reaches clients in the shapes of the specification."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskgate.core import wire
from taskgate.core.sampling.spec_shapes import spec_shapes


def shaped(given: dict[str, Any]) -> dict[str, Any]:
    made = spec_shapes(wire.raw(given))
    assert made is not None
    found: dict[str, Any] = json.loads(bytes(made))
    return found


TEXT = {"type": "text", "text": "Hello"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Hello", TEXT),
        (["Hello", {"type": "image", "data": "aa", "mimeType": "image/png"}], None),
        ({"type": "resource", "text": "Hello"}, TEXT),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "Hello"}}, TEXT),
        (TEXT, TEXT),
    ],
)
def test_content_has_the_shape_of_the_specification(content: Any, expected: Any) -> None:
    made = shaped({"messages": [{"role": "user", "content": content}], "maxTokens": 5})
    expected = expected if expected is not None else [TEXT, content[1]]
    assert made["messages"] == [{"role": "user", "content": expected}]


def test_system_messages_become_the_system_prompt() -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": TEXT}]
    made = shaped({"messages": messages, "systemPrompt": "Be brief.", "maxTokens": 5})
    assert made == {
        "messages": [{"role": "user", "content": TEXT}],
        "systemPrompt": "Be brief.\n\nBe kind.",
        "maxTokens": 5,
    }


def test_a_missing_limit_is_added_and_include_context_is_removed() -> None:
    made = shaped({"messages": [{"role": "user", "content": TEXT}], "includeContext": True, "x": 1})
    assert made == {"messages": [{"role": "user", "content": TEXT}], "maxTokens": 1024, "x": 1}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": [{"role":"user","content":{"type":"text","text":"a"}}],  "maxTokens":12345678901234567890}',
        b'{"messages": 5}',
        b"[1]",
    ],
)
def test_valid_and_unrepairable_requests_pass_byte_for_byte(raw: bytes) -> None:
    assert spec_shapes(wire.Raw(raw)) == wire.Raw(raw)
    assert spec_shapes(None) is None


def test_unknown_messages_are_passed_on() -> None:
    odd = [5, {"role": "user"}, {"role": "user", "content": {"type": "resource", "blob": "aa"}}]
    system: dict[str, Any] = {"role": "system", "content": [{"type": "image"}, 3]}
    assert shaped({"messages": [*odd, system], "maxTokens": 5})["messages"] == odd
