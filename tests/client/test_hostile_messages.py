"""Arbitrary JSON in every place of a server's messages: a typed error or nothing, never another exception."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.any_json import any_json, any_object

from taskgate.client import ClientError, Options
from taskgate.client.messages import decode_messages, encode, is_reply_to
from taskgate.client.results import Listed, Tool, ToolResult, read_questions
from taskgate.client.session import Session
from taskgate.client.stateful import Stateful
from taskgate.client.stateless import Stateless
from taskgate.mcp.param_headers import InvalidParamHeader, param_headers_of

WORDS = """
    jsonrpc id method params result error code message data task taskId status ttl ttlMs pollInterval _meta name
    content type text inputRequests inputResponses requestState resultType nextCursor progressToken progress total
    execution taskSupport inputSchema properties x-mcp-header requestId elicitationId url mode requestedSchema
    notifications/progress notifications/tasks/status notifications/tasks notifications/cancelled elicitation/create
    sampling/createMessage roots/list tasks/get tasks/result ping working completed input_required
    """.split()  # noqa: SIM905 - a list of words reads better as words
METHODS = [word for word in WORDS if "/" in word or word == "ping"]
JSON = any_json(WORDS)
OBJECTS = any_object(WORDS)


def message(body: dict[str, Any], method: str | None, number: Any, params: Any) -> dict[str, Any]:
    """Something that looks enough like a message to be read further."""
    named = {"jsonrpc": "2.0", "method": method, "params": params} if method is not None else {}
    return {**body, **named, **({"id": number} if number is not None else {})}


IDS: st.SearchStrategy[Any] = st.sampled_from([None, None, None, 1, "a", [], 1.5])
MESSAGES = st.builds(message, OBJECTS, st.none() | st.sampled_from(METHODS), IDS, JSON)


class Silent:
    """A transport that drops all answers."""

    closing_cancels = True
    session_id = None

    async def post(self, body: bytes, timeout: float) -> None:
        return None


@given(st.lists(MESSAGES, max_size=5))
@settings(max_examples=200, deadline=None)
def test_no_unsolicited_server_message_breaks_the_session(messages: list[dict[str, Any]]) -> None:
    async def take() -> None:
        session = Session(Options(elicitation=lambda question: {"action": "accept"}, question_timeout=0.05))
        await session.begin(Silent(), Stateful({"protocolVersion": "2025-11-25"}))  # type: ignore[arg-type]
        for message in messages:
            session.deliver(message)
        await asyncio.sleep(0)
        await session.close()

    asyncio.run(take())


@pytest.mark.parametrize("data", [b'{"a":"\xff"}', b'{"\xf6":1}', b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_json_are_an_invalid_reply(data: bytes) -> None:
    with pytest.raises(ClientError):
        decode_messages(data)


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_no_value_breaks_a_reader(value: Any) -> None:
    readers = (
        Stateful({"protocolVersion": "2025-11-25"}).task,
        Stateless(Options()).task,
        Tool.from_wire,
        Listed.from_wire,
        lambda raw: Stateful({"protocolVersion": "2025-11-25", "capabilities": raw}).runs_tasks(),
        lambda raw: Stateless(Options(), raw if isinstance(raw, dict) else None).runs_tasks(),
        lambda raw: read_questions(raw) if isinstance(raw, dict) else None,
        lambda raw: param_headers_of(raw) if isinstance(raw, dict) else None,
        lambda raw: Stateful({"protocolVersion": ""}).created_task(raw) if isinstance(raw, dict) else None,
        lambda raw: (
            (ToolResult(raw).text, ToolResult(raw).is_error, ToolResult(raw).meta) if isinstance(raw, dict) else None
        ),
        lambda raw: is_reply_to(raw, 1) if isinstance(raw, dict) else None,
    )
    for reader in readers:
        with contextlib.suppress(ClientError, InvalidParamHeader):
            reader(value)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    with contextlib.suppress(ClientError):
        decode_messages(data)


@given(OBJECTS)
def test_what_is_encoded_is_decoded_unchanged(message: dict[str, Any]) -> None:
    assert decode_messages(encode(message)) == [message]


class RecordingServer(Silent):
    """Keeps the ids of the answers."""

    def __init__(self) -> None:
        self.answered: list[Any] = []

    async def post(self, body: bytes, timeout: float) -> None:
        self.answered.append(decode_messages(body)[0]["id"])


async def test_every_request_is_answered_but_one_whose_id_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    server = RecordingServer()
    session = Session(Options())
    await session.begin(server, Stateful({"protocolVersion": "2025-11-25"}))  # type: ignore[arg-type]
    for number in (1, "1", "\ud800", 2):
        session.deliver({"jsonrpc": "2.0", "id": number, "method": "ping"})
    async with asyncio.timeout(30):
        while 2 not in server.answered:
            await asyncio.sleep(0)
    await session.close()
    assert server.answered == [1, "1", 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
