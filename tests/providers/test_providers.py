"""Both providers against test servers that check requests by each vendor's documented interface, in another process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace
from tests.harness.programs import free_port, listening
from tests.peers.model_vendors import KEY

from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.request import (
    Audio,
    Image,
    SamplingMessage,
    SamplingRequest,
    Text,
    Tool,
    ToolResult,
    ToolUse,
)
from taskgate.core.settings.providers import Model
from taskgate.ports.model_provider import ModelProvider
from taskgate.providers.anthropic import AnthropicProvider
from taskgate.providers.openai import OpenAiProvider

VENDORS = Path(__file__).parent.parent / "peers" / "model_vendors.py"
HELLO = SamplingRequest((SamplingMessage("user", (Text("hello"),)),), max_tokens=100)
PNG = "iVBORw0KGgo="
BOTH = pytest.mark.parametrize("vendor", ["openai", "anthropic"])


def model(name: str, **more: Any) -> Model:
    return Model(name, images=True, audio=True, **more)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    number = free_port()
    with subprocess.Popen([sys.executable, VENDORS, str(number)]) as vendors:
        deadline = time.monotonic() + 20
        while not asyncio.run(listening(number)()):  # type: ignore[arg-type]
            assert vendors.poll() is None, "the stand-ins ended at once"
            assert time.monotonic() < deadline, "the stand-ins did not start in time"
            time.sleep(0.02)
        yield number
        vendors.terminate()


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=10.0) as made:
        yield made


def provider(
    vendor: str, client: httpx2.AsyncClient, port: int, key: str = KEY, timeout_s: float = 10.0
) -> ModelProvider:
    base = f"http://127.0.0.1:{port}/{vendor}"
    if vendor == "openai":
        return OpenAiProvider("test", (model("echo"),), client, key, f"{base}/v1", timeout_s)
    return AnthropicProvider("test", (model("echo"),), client, key, f"{base}/", timeout_s)


async def seen(client: httpx2.AsyncClient, port: int) -> dict[str, Any]:
    body: dict[str, Any] = (await client.get(f"http://127.0.0.1:{port}/seen")).json()
    return body


@BOTH
async def test_a_plain_question_is_answered_with_its_usage(vendor: str, client: httpx2.AsyncClient, port: int) -> None:
    asked = provider(vendor, client, port)
    answer = await asked.create_message(HELLO, model("echo"))
    assert answer.content == (Text("You said 1 things."),)
    assert (answer.model, answer.stop_reason) == ("echo-2026", "endTurn")
    assert (answer.tokens_in, answer.tokens_out) == (11, 7)
    assert asked.available_models()[0].name == "echo"
    assert asked.estimate_cost(HELLO, model("echo", output_price=10.0)).money == pytest.approx(0.001)
    await asked.close()


@BOTH
async def test_a_conversation_is_converted_to_the_vendors_format(
    vendor: str, client: httpx2.AsyncClient, port: int
) -> None:
    request = SamplingRequest(
        (
            SamplingMessage("user", (Text("what is this?"), Image(PNG, "image/png"))),
            SamplingMessage(
                "assistant", (Text("I look."), ToolUse("u1", "look", {"q": "é"}), ToolUse("u2", "look", {}))
            ),
            SamplingMessage(
                "user", (ToolResult("u1", (Text("a"), Image(PNG, "image/png"))), ToolResult("u2", (Text("b"),), True))
            ),
            SamplingMessage("assistant", (Text("Well."),)),
            SamplingMessage("user", (Text("go on"),)),
        ),
        max_tokens=5000,
        system="Be brief.",
        temperature=1.5,
        stop_sequences=("END",),
        tools=(Tool("look", "Looks.", {"type": "object", "properties": {}}),),
        tool_choice="required",
    )
    answer = await provider(vendor, client, port).create_message(request, model("echo", max_tokens=400))
    assert answer.stop_reason == "endTurn"
    body = await seen(client, port)
    assert body["max_tokens"] == 400
    if vendor == "openai":
        assert [message["role"] for message in body["messages"]] == [
            *("system", "user", "assistant", "tool", "tool", "assistant", "user")
        ]
        assert body["messages"][3]["content"] == "a\n[image/png]"
        assert body["messages"][4]["content"] == "Error: b"
        assert (body["temperature"], body["stop"], body["tool_choice"]) == (1.5, ["END"], "required")
    else:
        assert body["system"] == "Be brief."
        assert body["messages"][2]["content"][1]["is_error"] is True
        assert (body["temperature"], body["stop_sequences"], body["tool_choice"]) == (1.0, ["END"], {"type": "any"})


@BOTH
async def test_a_tool_call_of_a_model_is_returned(vendor: str, client: httpx2.AsyncClient, port: int) -> None:
    request = replace(HELLO, tools=(Tool("look", "", {"type": "object"}),))
    answer = await provider(vendor, client, port).create_message(request, model("tooly"))
    assert answer.stop_reason == "toolUse"
    use = answer.content[-1]
    assert isinstance(use, ToolUse)
    assert (use.name, use.input) == ("look", {"q": "weather"})


@pytest.mark.parametrize(
    ("vendor", "name", "reason"),
    [
        ("openai", "cut", "maxTokens"),
        ("anthropic", "cut", "maxTokens"),
        ("anthropic", "stopped", "stopSequence"),
        ("openai", "filtered", "contentFilter"),
        ("anthropic", "filtered", "refusal"),
    ],
)
async def test_stop_reasons_are_translated(
    vendor: str, name: str, reason: str, client: httpx2.AsyncClient, port: int
) -> None:
    assert (await provider(vendor, client, port).create_message(HELLO, model(name))).stop_reason == reason


async def test_audio_is_sent_to_vendors_that_support_it(client: httpx2.AsyncClient, port: int) -> None:
    received = replace(HELLO, messages=(SamplingMessage("user", (Audio("AAAA", "audio/wav"),)),))
    await provider("openai", client, port).create_message(received, model("echo"))
    assert (await seen(client, port))["messages"][0]["content"][0]["input_audio"]["format"] == "wav"
    odd = replace(HELLO, messages=(SamplingMessage("user", (Audio("AAAA", "audio/ogg"),)),))
    for vendor, request in (("openai", odd), ("anthropic", received)):
        with pytest.raises(SamplingError) as caught:
            await provider(vendor, client, port).create_message(request, model("echo"))
        assert caught.value.problem is SamplingProblem.INVALID_REQUEST


async def test_unsupported_content_is_refused_before_it_is_sent(client: httpx2.AsyncClient, port: int) -> None:
    asked = provider("openai", client, port)
    with pytest.raises(SamplingError) as caught:
        await asked.create_message(replace(HELLO, stop_sequences=tuple("abcde")), model("echo"))
    assert (caught.value.problem, caught.value.executed) == (SamplingProblem.INVALID_REQUEST, "no")
    misplaced = replace(HELLO, messages=(SamplingMessage("user", (ToolUse("u", "t", {}),)),))
    with pytest.raises(SamplingError) as caught:
        await asked.create_message(misplaced, model("echo"))
    assert (caught.value.problem, caught.value.executed) == (SamplingProblem.INVALID_REQUEST, "no")


@BOTH
@pytest.mark.parametrize(
    ("name", "problem", "executed", "retry_after"),
    [
        ("limited", SamplingProblem.RATE_LIMITED, "no", 7.0),
        ("limited-vaguely", SamplingProblem.RATE_LIMITED, "no", None),
        ("quota", SamplingProblem.FAILED, "no", None),
        ("down", SamplingProblem.FAILED, "maybe", 3.0),
        ("overloaded", SamplingProblem.FAILED, "maybe", None),
        ("late", SamplingProblem.TIMEOUT, "maybe", None),
        ("forbidden", SamplingProblem.FAILED, "no", None),
        ("too-long", SamplingProblem.FAILED, "no", None),
        ("gone", SamplingProblem.MODEL_NOT_AVAILABLE, "no", None),
        ("hangup", SamplingProblem.FAILED, "maybe", None),
        ("garbage", SamplingProblem.FAILED, "yes", None),
        ("odd", SamplingProblem.FAILED, "yes", None),
        ("odd-tool", SamplingProblem.FAILED, "yes", None),
        ("huge", SamplingProblem.FAILED, "yes", None),
    ],
)
async def test_every_failure_has_its_type_and_possible_cost(
    vendor: str,
    name: str,
    problem: SamplingProblem,
    executed: str,
    retry_after: float | None,
    client: httpx2.AsyncClient,
    port: int,
) -> None:
    with pytest.raises(SamplingError) as caught:
        await provider(vendor, client, port).create_message(HELLO, model(name))
    assert caught.value.problem is problem
    assert caught.value.executed == executed
    assert caught.value.retry_after_s == retry_after
    assert "secret details" not in caught.value.message


@BOTH
async def test_a_wrong_key_is_reported_without_showing_it(vendor: str, client: httpx2.AsyncClient, port: int) -> None:
    asked = provider(vendor, client, port, key="wrong-key")
    with pytest.raises(SamplingError) as caught:
        await asked.create_message(HELLO, model("echo"))
    assert (caught.value.problem, caught.value.executed) == (SamplingProblem.FAILED, "no")
    assert "wrong-key" not in str(caught.value) + repr(asked)


@BOTH
async def test_a_slow_model_times_out_at_the_deadline(vendor: str, client: httpx2.AsyncClient, port: int) -> None:
    with pytest.raises(SamplingError) as caught:
        await provider(vendor, client, port, timeout_s=0.3).create_message(HELLO, model("slow"))
    assert (caught.value.problem, caught.value.executed) == (SamplingProblem.TIMEOUT, "maybe")
    assert caught.value.data["legacy_code"] == -32047


@BOTH
async def test_an_unreachable_provider_has_no_cost(vendor: str, client: httpx2.AsyncClient) -> None:
    with pytest.raises(SamplingError) as caught:
        await provider(vendor, client, free_port()).create_message(HELLO, model("echo"))
    assert (caught.value.problem, caught.value.executed) == (SamplingProblem.FAILED, "no")


async def test_local_services_are_called_without_a_key(client: httpx2.AsyncClient, port: int) -> None:
    with pytest.raises(SamplingError) as caught:
        await provider("openai", client, port, key="").create_message(HELLO, model("echo"))
    assert (caught.value.problem, caught.value.executed) == (SamplingProblem.FAILED, "no")


async def test_the_vendors_own_service_gets_its_own_parameter_for_the_limit(client: httpx2.AsyncClient) -> None:
    own = OpenAiProvider("test", (), client, KEY)
    assert "max_completion_tokens" in own._body(HELLO, model("echo"))
