"""The client library passes questions in the caller's inbox at a gateway to its callbacks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, until, virtual_time

from taskgate.client import Question, Session, accept, connect

SERVER = Path(__file__).parents[1] / "upstreams" / "question_server.py"
ANN = {"tokens": [{"id": "ann", "sha256": hashlib.sha256(b"ann-token").hexdigest()}]}


def config(instances: str, **more: Any) -> dict[str, Any]:
    server = {"command": sys.executable, "args": [str(SERVER)], "instances": instances}
    return {"servers": {"shop": server}, **more}


class User:
    """Answers with one colour, and records the questions."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def elicit(self, question: Question) -> dict[str, Any]:
        self.asked.append(question)
        return accept({"value": "blue"})

    def sample(self, question: Question) -> str:
        self.asked.append(question)
        return "Hello"


async def asked_beside(staying: Session, asking: Session) -> str:
    async with asyncio.TaskGroup() as group:
        stays = group.create_task(staying.call_tool("shop__stay"))
        answer = group.create_task(asking.call_tool("shop__ask", {"company": 1}))
    assert stays.result().text == "stayed"
    return answer.result().text


@pytest.mark.parametrize("generation", ["stateful", "stateless"])
@virtual_time
async def test_questions_in_the_principals_inbox_reach_the_callback(generation: str) -> None:
    async with Gateway(config("per_principal", **ANN)) as gate:
        user = User()
        async with (
            connect(gate.url, token="ann-token", generation=generation, meta={"taskgate/client": "one"}) as one,
            connect(
                gate.url,
                token="ann-token",
                generation=generation,
                elicitation=user.elicit,
                meta={"taskgate/client": "two"},
            ) as two,
        ):
            answer = json.loads(await asked_beside(one, two))
        assert answer == {"action": "accept", "content": {"value": "blue"}}
        assert [question.message for question in user.asked] == ["Which colour?"]


@virtual_time
async def test_questions_of_an_anonymous_stateless_client_reach_its_conversation() -> None:
    async with Gateway(config("shared")) as gate:
        user = User()
        async with connect(gate.url, generation="stateless", elicitation=user.elicit, tasks=False) as session:
            answer = json.loads(await asked_beside(session, session))
        assert answer == {"action": "accept", "content": {"value": "blue"}}
        assert len(user.asked) == 1


@virtual_time
async def test_sampling_that_waits_in_the_inbox_reaches_the_callback() -> None:
    shop = Upstream("2025")

    @shop.tool("stay")
    async def stay(call: Call) -> str:
        await call.sleep(30)
        return "stayed"

    async def ask_beside() -> dict[str, Any]:
        stream, _ = shop._streams[-1]
        message = {"role": "user", "content": {"type": "text", "text": "Hi"}}
        return await shop._ask(stream, "sampling/createMessage", {"messages": [message], "maxTokens": 5})

    async with Gateway({"servers": {"shop": {"instances": "shared"}}, **ANN}, {"shop": shop}) as gate:
        user = User()
        settings: dict[str, Any] = {"token": "ann-token", "generation": "stateful"}
        async with connect(gate.url, **settings) as one, connect(gate.url, **settings, sampling=user.sample) as two:
            calls = [asyncio.create_task(session.call_tool("shop__stay")) for session in (one, two)]
            await until(lambda: shop.count("stay") == 2, "the calls")
            answer = await ask_beside()
            assert answer["content"]["text"] == "Hello"
            await asyncio.gather(*calls)


@virtual_time
async def test_inbox_tools_are_not_called_on_servers_that_are_no_gateway() -> None:
    shop = Upstream("2025")

    @shop.tool("stay")
    async def stay(call: Call) -> str:
        await call.sleep(30)
        return "stayed"

    async with Gateway({}, {"shop": shop}):
        async with connect(shop.url, generation="stateful", elicitation=User().elicit) as session:
            await session.call_tool("stay")
        assert shop.methods["tools/call"] == 1
