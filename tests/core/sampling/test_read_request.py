"""Reading sampling requests: what older and newer servers send, and what is refused with which error."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.core.sampling.errors import SamplingError
from taskgate.core.sampling.read_request import read_preferences, read_request
from taskgate.core.sampling.request import Audio, Image, Preferences, SamplingMessage, Text, Tool, ToolResult, ToolUse

USER = {"role": "user", "content": {"type": "text", "text": "hello"}}
USE = {"type": "tool_use", "id": "u1", "name": "look", "input": {"q": 1}}
RESULT = {"type": "tool_result", "toolUseId": "u1", "content": [{"type": "text", "text": "found"}]}


def test_a_full_request_is_read() -> None:
    request = read_request(
        {
            "messages": [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}],
            "maxTokens": 50,
            "systemPrompt": "Be brief.",
            "temperature": 0.5,
            "stopSequences": ["END"],
            "tools": [{"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}}, {"name": "bare"}],
            "toolChoice": {"mode": "required"},
            "modelPreferences": {"hints": [{"name": "small"}, {}], "costPriority": 1, "speedPriority": 0.5},
            "includeContext": True,
        }
    )
    assert request.messages == (
        SamplingMessage("user", (Text("hello"),)),
        SamplingMessage("assistant", (ToolUse("u1", "look", {"q": 1}),)),
        SamplingMessage("user", (ToolResult("u1", (Text("found"),)),)),
    )
    assert (request.max_tokens, request.system, request.temperature) == (50, "Be brief.", 0.5)
    assert request.stop_sequences == ("END",)
    assert request.tools == (Tool("look", "Looks.", {"type": "object"}), Tool("bare", "", {"type": "object"}))
    assert request.tool_choice == "required"
    assert request.preferences == Preferences(("small",), 1.0, 0.5, 0.0)


def test_older_forms_are_understood() -> None:
    request = read_request(
        {
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "plain words"},
                {"role": "user", "content": [{"type": "resource", "resource": {"uri": "x:y", "text": "inside"}}]},
                {"role": "user", "content": {"type": "resource_link", "uri": "x:y"}},
            ],
            "systemPrompt": "Be brief.",
        },
        default_max_tokens=77,
    )
    assert request.system == "Be brief.\n\nBe kind."
    assert [message.content for message in request.messages] == [
        (Text("plain words"),),
        (Text("inside"),),
        (Text("x:y"),),
    ]
    assert request.max_tokens == 77
    assert request.tool_choice == "auto"


def test_images_and_audio_are_parsed_and_required_of_the_model() -> None:
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    seen = read_request({"messages": [{"role": "user", "content": [image, audio]}]})
    assert seen.messages[0].content == (Image("AAAA", "image/png"), Audio("AAAA", "audio/wav"))
    assert seen.needs(Image)
    assert seen.needs(Audio)
    assert not seen.needs(ToolUse)
    received = [
        USER,
        {"role": "assistant", "content": USE},
        {"role": "user", "content": {**RESULT, "content": image, "isError": True}},
    ]
    inside = read_request({"messages": received})
    assert inside.needs(Image)
    assert inside.messages[2].content[0] == ToolResult("u1", (Image("AAAA", "image/png"),), True)


def sampling_request(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({}, "messages must be an array"),
        (sampling_request(), "messages must be an array"),
        (sampling_request(*[USER] * 1001), "1 to 1000"),
        (sampling_request(5), "messages[0] needs the role"),
        (sampling_request({"role": "tool", "content": "x"}), "messages[0] needs the role"),
        (sampling_request({"role": "system", "content": "x"}), "no message of a user"),
        (sampling_request(USER, {"role": "user", "content": []}), "messages[1] has no content"),
        (sampling_request({"role": "user"}), "content of an unsupported type"),
        (sampling_request({"role": "user", "content": {"type": "video"}}), "content of an unsupported type"),
        (
            sampling_request({"role": "user", "content": {"type": "resource", "resource": {"blob": "x"}}}),
            "of an unsupported type",
        ),
        (sampling_request({"role": "user", "content": {"type": "text"}}), "text must be a string"),
        (sampling_request({"role": "user", "content": {"type": "image", "data": "x"}}), "mimeType must be a string"),
        (sampling_request({"role": "user", "content": USE}), "only be in a message of the assistant"),
        (sampling_request(USER, {"role": "assistant", "content": USE}), "the last tool use is not answered"),
        (sampling_request(USER, {"role": "assistant", "content": USE}, USER), "every tool use must be answered"),
        (sampling_request({"role": "user", "content": RESULT}), "every tool use must be answered"),
        (sampling_request({"role": "assistant", "content": RESULT}), "may only be in a user message"),
        (
            sampling_request(
                {"role": "assistant", "content": USE},
                {"role": "user", "content": [RESULT, {"type": "text", "text": "x"}]},
            ),
            "without other content",
        ),
        (
            sampling_request({"role": "assistant", "content": [USE, USE]}, {"role": "user", "content": RESULT}),
            "have the same id",
        ),
        (
            sampling_request({"role": "assistant", "content": USE}, {"role": "user", "content": [RESULT, RESULT]}),
            "every tool use",
        ),
        (sampling_request(USER, maxTokens=0), "maxTokens must be a whole number from 1"),
        (sampling_request(USER, maxTokens=1.5), "maxTokens must be a whole number"),
        (sampling_request(USER, maxTokens=True), "maxTokens must be a whole number"),
        (sampling_request(USER, maxTokens="5"), "maxTokens must be a whole number"),
        (sampling_request(USER, temperature=2.1), "temperature must be a number from 0 to 2"),
        (sampling_request(USER, temperature="hot"), "temperature must be a number"),
        (sampling_request(USER, stopSequences="END"), "stopSequences must be an array"),
        (sampling_request(USER, stopSequences=[""]), "stopSequences must be an array"),
        (sampling_request(USER, systemPrompt=5), "systemPrompt must be a string"),
        (sampling_request(USER, tools={}), "tools must be an array"),
        (sampling_request(USER, tools=[5]), "tools must hold objects"),
        (sampling_request(USER, tools=[{}]), "name must be a string"),
        (sampling_request(USER, toolChoice={"mode": "maybe"}), "toolChoice.mode must be"),
        (sampling_request(USER, toolChoice=5), "toolChoice.mode must be"),
    ],
)
def test_a_request_that_no_provider_supports_is_refused_before_it_is_sent(params: dict[str, Any], problem: str) -> None:
    with pytest.raises(SamplingError) as caught:
        read_request(params)
    assert caught.value.error_type == "invalid_sampling_request"
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (5, "must be an object"),
        ({"hints": "small"}, "hints must be an array"),
        ({"hints": ["small"]}, "hints must be an array"),
        ({"hints": [{}] * 33}, "hints must be an array"),
        ({"costPriority": 1.1}, "costPriority must be a number from 0 to 1"),
        ({"speedPriority": -0.1}, "speedPriority"),
        ({"intelligencePriority": "high"}, "intelligencePriority"),
        ({"costPriority": True}, "costPriority"),
        ({"costPriority": float("nan")}, "costPriority"),
    ],
)
def test_bad_preferences_have_their_own_error(given: Any, problem: str) -> None:
    with pytest.raises(SamplingError) as caught:
        read_preferences(given)
    assert (caught.value.error_type, caught.value.data) == ("invalid_model_preferences", {"legacy_code": -32048})
    assert problem in caught.value.message


def test_integral_numbers_are_integers() -> None:
    assert read_request(sampling_request(USER, maxTokens=5.0)).max_tokens == 5
