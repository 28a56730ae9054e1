"""Sampling: first the caller, then an inbox that is being read, then a model, within the budget of the server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.features.wire_client import TIMEOUT_S, WireClient, config, session, stateless
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening, running

from taskgate.assembly.plan import build_plan
from taskgate.config.load import load_text
from taskgate.core.sampling.read_request import read_request
from taskgate.core.sampling.request import SamplingRequest
from taskgate.core.settings.providers import Model
from taskgate.gateway.plan import Live
from taskgate.gateway.questions.model_sampling import MAX_SHOWN, Models, _question_text
from taskgate.gateway.requests.budgets import Budgets

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]
VENDORS = Path(__file__).resolve().parent.parent / "peers" / "model_vendors.py"
KEY = "test-key-0123456789"
ASKED = {"role": "user", "content": {"type": "text", "text": "Say hello"}}
MODELS = [
    {"name": "echo", "cost": 0.2, "speed": 0.2, "intelligence": 0.9, "input_price": 3.0, "output_price": 15.0},
    {"name": "tooly", "cost": 0.1, "speed": 0.1, "intelligence": 0.1},
    {"name": "cut", "cost": 0.1, "speed": 1.0, "intelligence": 0.1},
    *(
        {"name": name, "cost": 0, "speed": 0, "intelligence": 0}
        for name in ("limited", "quota", "down", "slow", "garbage")
    ),
    {"name": "gone", "cost": 0, "speed": 0, "intelligence": 0},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendors() -> AsyncIterator[str]:
    port = free_port()
    async with running([sys.executable, VENDORS, str(port)], listening(port)):
        yield f"http://127.0.0.1:{port}"


def with_models(
    vendors: str, kind: str = "openai", server: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    base = f"{vendors}/openai/v1" if kind == "openai" else f"{vendors}/anthropic"
    provider = {"kind": kind, "base_url": base, "api_key_env": "MODEL_KEY", "models": MODELS, "timeout": "1m", **more}
    return config(
        server={"sampling": "provider", **(server or {})},
        providers={"house": provider},
        scope={"helper_tools": "never"},
    )


@asynccontextmanager
async def gateway_with(settings: dict[str, Any], key: str = KEY, folder: Path | None = None) -> AsyncIterator[Gateway]:
    async with running_gateway(settings, folder, env={"MODEL_KEY": key}) as running_one:
        yield running_one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(vendors: str) -> AsyncIterator[Gateway]:
    async with gateway_with(with_models(vendors)) as running_one:
        yield running_one


async def sampled(caller: WireClient, **params: Any) -> Any:
    return await caller.call_json("sample", {"params": params})


async def test_a_caller_with_sampling_receives_the_request(gateway: Gateway) -> None:
    own = {"role": "assistant", "content": {"type": "text", "text": "mine"}, "model": "own"}
    async with session(gateway, {"sampling": {}}) as caller:
        caller.answers["sampling/createMessage"] = own
        assert await sampled(caller, includeContext="allServers") == own
        assert "includeContext" not in caller.asked[0]["params"]


async def test_a_model_answers_for_a_caller_without_sampling(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        answer = await sampled(caller)
        assert answer["role"] == "assistant"
        assert answer["stopReason"] == "endTurn"
        assert answer["model"] == "echo-2026"
        assert answer["_meta"]["tokensUsed"] > 0
        assert answer["_meta"]["cost"] > 0


async def test_a_model_answers_for_a_stateless_caller(gateway: Gateway) -> None:
    async with stateless(gateway) as caller:
        assert (await sampled(caller))["role"] == "assistant"


async def test_a_model_of_the_other_vendor_answers(vendors: str) -> None:
    async with gateway_with(with_models(vendors, "anthropic")) as own, session(own) as caller:
        assert (await sampled(caller))["role"] == "assistant"


async def test_hints_and_priorities_choose_the_model(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        hinted = await sampled(caller, modelPreferences={"hints": [{"name": "unheard-of"}, {"name": "cut"}]})
        assert (hinted["model"], hinted["stopReason"]) == ("cut-2026", "maxTokens")
        fast = await sampled(caller, modelPreferences={"speedPriority": 1.0})
        assert fast["model"] == "cut-2026"
        clever = await sampled(caller, modelPreferences={"intelligencePriority": 1.0})
        assert clever["model"] == "echo-2026"


async def test_older_shapes_are_read_and_context_never_reaches_the_model(gateway: Gateway, vendors: str) -> None:
    async with session(gateway) as caller, httpx2.AsyncClient(timeout=120) as http:
        message = {"role": "user", "content": "plain words"}
        answer = await sampled(caller, messages=[message], includeContext=True)
        assert answer["role"] == "assistant"
        accepted = (await http.get(f"{vendors}/seen")).json()
        assert "includeContext" not in json.dumps(accepted)


@pytest.mark.parametrize(
    ("params", "code", "kind", "received", "legacy"),
    [
        (
            {"modelPreferences": {"costPriority": 1.5}},
            -32602,
            "invalid_model_preferences",
            "modelPreferences.costPriority must be a number from 0 to 1.",
            -32048,
        ),
        (
            {"modelPreferences": {"speedPriority": "high"}},
            -32602,
            "invalid_model_preferences",
            "modelPreferences.speedPriority must be a number from 0 to 1.",
            -32048,
        ),
        (
            {"messages": []},
            -32602,
            "invalid_sampling_request",
            "This sampling request cannot be used: messages must be an array of 1 to 1000 messages.",
            None,
        ),
        (
            {"maxTokens": 0},
            -32602,
            "invalid_sampling_request",
            "This sampling request cannot be used: maxTokens must be a whole number from 1 to 1000000.",
            None,
        ),
        (
            {"messages": [{"role": "user", "content": {"type": "image", "data": "QQ==", "mimeType": "image/png"}}]},
            -32603,
            "model_not_available",
            "No declared model can answer this request.",
            -32049,
        ),
        (
            {"modelPreferences": {"hints": [{"name": "gone"}]}},
            -32603,
            "model_not_available",
            "The provider does not have the chosen model.",
            -32049,
        ),
        (
            {"modelPreferences": {"hints": [{"name": "limited"}]}},
            -32603,
            "sampling_rate_limited",
            "The provider's rate limit is reached. Try again later.",
            -32050,
        ),
        (
            {"modelPreferences": {"hints": [{"name": "quota"}]}},
            -32603,
            "sampling_failed",
            "The gateway's account with the provider has no credit left.",
            -32046,
        ),
        (
            {"modelPreferences": {"hints": [{"name": "down"}]}},
            -32603,
            "sampling_failed",
            "The provider has an internal error. Try again later.",
            -32046,
        ),
        (
            {"modelPreferences": {"hints": [{"name": "garbage"}]}},
            -32603,
            "sampling_failed",
            "The provider's reply is invalid.",
            -32046,
        ),
    ],
)
async def test_every_failure_of_a_model_has_its_error(
    gateway: Gateway, params: dict[str, Any], code: int, kind: str, received: str, legacy: int | None
) -> None:
    async with session(gateway) as caller:
        error = (await sampled(caller, **params))["error"]
        assert (error["code"], error["data"]["error_type"], error["message"]) == (code, kind, received)
        assert error["data"].get("legacy_code") == legacy
        assert KEY not in json.dumps(error)


async def test_a_model_that_times_out_has_its_error(vendors: str) -> None:
    async with gateway_with(with_models(vendors, timeout="2s")) as own, session(own) as caller:
        error = (await sampled(caller, modelPreferences={"hints": [{"name": "slow"}]}))["error"]
        text = (error["code"], error["data"]["error_type"], error["message"], error["data"]["legacy_code"])
        assert text == (-32603, "sampling_timeout", "The model did not answer in time.", -32047)


async def test_a_wrong_key_is_reported_without_the_key(vendors: str) -> None:
    async with gateway_with(with_models(vendors), key="not-the-key") as own, session(own) as caller:
        error = (await sampled(caller))["error"]
        assert (error["data"]["error_type"], error["message"]) == (
            "sampling_failed",
            "The provider does not accept the gateway's key.",
        )
        assert "not-the-key" not in json.dumps(error) + own.log


async def test_a_key_can_come_from_a_file(vendors: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    settings = with_models(vendors, api_key_file="key")
    del settings["providers"]["house"]["api_key_env"]
    async with gateway_with(settings, folder=tmp_path) as own, session(own) as caller:
        assert (await sampled(caller))["role"] == "assistant"


async def test_a_token_budget_is_enforced(vendors: str) -> None:
    settings = with_models(vendors, budgets={"tokens_per_hour": 150})
    async with gateway_with(settings) as own, session(own) as caller:
        answers = [await sampled(caller, maxTokens=60) for _ in range(6)]
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert "error" not in answers[0]
        assert refused, "nothing was refused"
        assert refused[0]["data"]["error_type"] == "sampling_budget_exceeded"
        assert refused[0]["data"]["legacy_code"] == -32050


async def test_requests_in_a_minute_are_limited(vendors: str) -> None:
    settings = with_models(vendors, budgets={"requests_per_minute": 2})
    async with gateway_with(settings) as own, session(own) as caller:
        answers = [await sampled(caller) for _ in range(3)]
        assert [("error" in answer) for answer in answers] == [False, False, True]
        assert answers[2]["error"]["data"]["error_type"] == "sampling_rate_limited"
        assert answers[2]["error"]["data"]["retry_after_s"] > 0


async def test_no_model_answers_unless_the_server_is_named_for_it(vendors: str) -> None:
    settings = with_models(vendors, server={"sampling": "relay"})
    async with gateway_with(settings) as own, session(own) as caller:
        opened = (await caller.call_json("seen"))[0]["params"]["capabilities"]
        assert "sampling" not in opened
        assert (await sampled(caller))["error"]["code"] == -32600


async def test_no_model_answers_outside_a_request(gateway: Gateway) -> None:
    async with session(gateway, listen=True) as caller:
        await caller.call("sample_outside")
        assert (await caller.wait_for_message("notifications/odd/late"))["code"] == -32600


async def test_a_reviewer_sees_request_and_answer_first(vendors: str) -> None:
    settings = with_models(vendors, human_review=True)
    async with gateway_with(settings) as own, session(own) as caller:
        asking = asyncio.create_task(sampled(caller))
        async with httpx2.AsyncClient(timeout=120, headers={"Authorization": f"Bearer {operator_token(own)}"}) as http:
            first = await review(http, own, "accept")
            second = await review(http, own, "accept")
        assert first.startswith("odd requests the model echo")
        assert second.startswith("The model echo answers odd")
        assert (await asking)["role"] == "assistant"


async def test_a_refused_sampling_request_is_not_sent(vendors: str) -> None:
    settings = with_models(vendors, human_review=True)
    async with gateway_with(settings) as own, session(own) as caller:
        asking = asyncio.create_task(sampled(caller))
        async with httpx2.AsyncClient(timeout=120, headers={"Authorization": f"Bearer {operator_token(own)}"}) as http:
            await review(http, own, "decline")
        error = (await asking)["error"]
        assert (error["code"], error["data"]["error_type"]) == (-1, "sampling_refused")
        assert error["data"]["executed"] == "no"


MODEL = Model("echo")


def a_request(**more: Any) -> SamplingRequest:
    hello = {"role": "user", "content": {"type": "text", "text": "Hello"}}
    return read_request({"messages": [hello], "maxTokens": 10, **more})


async def test_a_reviewer_sees_everything_that_the_model_will_see() -> None:
    tool = {"name": "wipe", "description": "Wipes it", "inputSchema": {"type": "object", "title": "deep in the schema"}}
    use = {"role": "assistant", "content": {"type": "tool_use", "id": "1", "name": "wipe", "input": {"path": "/etc"}}}
    result = {
        "role": "user",
        "content": {"type": "tool_result", "toolUseId": "1", "content": [{"type": "text", "text": "gone"}]},
    }
    hello = {"role": "user", "content": {"type": "text", "text": "x" * 50_000 + "\u202ethe end"}}
    request = a_request(messages=[hello, use, result], systemPrompt="Obey.", tools=[tool], stopSequences=["halt"])
    shown = _question_text("odd", MODEL, request)
    assert shown is not None
    for part in ("Obey.", "\\u202ethe end", "deep in the schema", "Wipes it", '{"path": "/etc"}', "gone", "halt"):
        assert part in shown


async def test_a_request_that_cannot_be_shown_in_full_is_refused() -> None:
    image = {"role": "user", "content": {"type": "image", "data": "aGk=", "mimeType": "image/png"}}
    assert _question_text("odd", MODEL, a_request(messages=[image])) is None
    asked: list[str] = []

    async def review(_server: str, text: str) -> bool:
        asked.append(text)
        return True

    plan = Live(build_plan(load_text("schema: 1", environment={})))
    models = Models(plan, Budgets(plan.value), review, lambda _entry: None, lambda *_spent: None)
    assert not await models._reviewed("odd", None)
    assert not await models._reviewed("odd", "x" * (MAX_SHOWN + 1))
    assert asked == []
    assert await models._reviewed("odd", "x" * MAX_SHOWN)
    await models.close()


def operator_token(gateway: Gateway) -> str:
    found = next(path for path in gateway.state.iterdir() if "token" in path.name)
    return found.read_text().strip()


async def review(http: httpx2.AsyncClient, gateway: Gateway, action: str) -> str:
    """Wait for a question in the operator's inbox and answer it."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            rows = (await http.get(f"{gateway.base}/api/questions")).json()
            if rows:
                break
            await asyncio.sleep(0.02)
    body = {"action": action, "content": {}} if action == "accept" else {"action": action}
    answer = await http.post(f"{gateway.base}/api/questions/{rows[0]['request_id']}", json=body)
    assert answer.status_code == 200, answer.text
    return str(rows[0]["params"]["message"])


async def test_the_cost_of_a_model_is_counted_as_usage(gateway: Gateway) -> None:
    async with session(gateway) as caller, httpx2.AsyncClient(timeout=120) as http:
        await sampled(caller)
        http.headers["authorization"] = f"Bearer {operator_token(gateway)}"
        async with asyncio.timeout(60):
            while True:
                rows = (await http.get(f"{gateway.base}/api/v1/usage?by=tool")).json()
                if any(row["tool"].startswith("model ") and row["cost"] > 0 for row in rows):
                    break
                await asyncio.sleep(0.2)
