"""Three gateways behind a balancer without stickiness: a session, its streams and its questions work on any of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from tests.harness.plain_http import NO_TLS
from tests.harness.raw_client import RawClient
from tests.replicas.three_gateways import LONG_LEASE, Internal, Replicas, on_port, on_socket, three_replicas

DEADLINE_S = 60
SLOWLY = {"grace_ms": 60_000, "promote_after_ms": 60_000}
"""Plain calls stay plain."""
ASKS: dict[str, Any] = {"elicitation": {"form": {}}}


async def events(lines: Any) -> Any:
    """The messages of an event stream, as they come."""
    async for line in lines:
        if line.startswith("data:") and line[5:].strip():
            yield json.loads(line[5:])


async def answer_question(url: str, client: RawClient, number: int, word: str) -> None:
    async with httpx2.AsyncClient(timeout=60, verify=NO_TLS) as http:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        body = {"jsonrpc": "2.0", "id": number, "result": {"action": "accept", "content": {"word": word}}}
        reply = await http.post(url, json=body, headers={**headers, **client.headers})
        assert reply.status_code == 202, (reply.headers, reply.text)


async def ask_and_answer(balancer: str, word: str, url: str) -> dict[str, Any]:
    """A call at the balancer that asks its caller: the question comes in the call's stream, the answer goes to `url`."""
    async with asyncio.timeout(DEADLINE_S), RawClient(balancer, capabilities=ASKS) as client:
        body = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "tells__ask", "arguments": {}}}
        headers = {"accept": "application/json, text/event-stream", **client.headers}
        async with client.http.stream("POST", balancer, json=body, headers=headers) as reply:
            async for message in events(reply.aiter_lines()):
                if message.get("method") == "elicitation/create":
                    await answer_question(url, client, message["id"], word)
                elif message.get("id") == 77:
                    return dict(message)
    raise AssertionError("the stream ended without an answer")


async def end_session(url: str, client: RawClient) -> int:
    return (await client.http.delete(url, headers=client.headers)).status_code


@pytest.mark.parametrize("internal", [on_port, on_socket])
async def test_a_session_works_at_every_gateway(tmp_path: Path, internal: Internal) -> None:
    async with three_replicas(tmp_path, internal=internal, launcher=LONG_LEASE, tasks=SLOWLY) as replicas:
        async with RawClient(replicas.url) as client:
            for number in range(6):
                answer = await client.call("books__read", {"call": f"c{number}"})
                assert answer.status == 200
                assert "error" not in answer.reply
            assert [replicas.ledger.count(f"c{number}") for number in range(6)] == [1] * 6
            assert (await client.request("logging/setLevel", {"level": "error"})).result == {}
            for gateway in replicas.gateways:
                assert (await client.request("tools/list")).result["tools"]
                assert (await client.post({"jsonrpc": "2.0", "method": "notifications/x"})).status == 202, gateway
            await another_session_is_not_found(replicas)
            assert await end_session(replicas.url, client) == 200
            for gateway in replicas.gateways:
                client.url = gateway.url
                assert (await client.request("ping")).status == 404
        for gateway in replicas.gateways:
            answered = await ask_and_answer(replicas.url, f"w{gateway.port}", gateway.url)
            assert f"w{gateway.port}" in json.dumps(answered["result"]), answered


async def another_session_is_not_found(replicas: Replicas) -> None:
    unauthorized = RawClient(replicas.url, headers={"mcp-session-id": "x" * 32})
    for gateway in replicas.gateways:
        unauthorized.url = gateway.url
        assert (await unauthorized.request("ping")).status == 404
    await unauthorized.http.aclose()


async def test_a_sessions_own_stream_and_progress_pass_through_another_gateway(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, launcher=LONG_LEASE, tasks=SLOWLY) as replicas:
        async with RawClient(replicas.gateways[0].url) as client:
            far = replicas.gateways[1].url
            body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call"}
            body["params"] = {"name": "tells__steps", "arguments": {"count": 3}, "_meta": {"progressToken": "p"}}
            headers = {"accept": "application/json, text/event-stream", **client.headers}
            async with client.http.stream("POST", far, json=body, headers=headers) as reply:
                events_stream = [message async for message in events(reply.aiter_lines())]
            assert [message["method"] for message in events_stream[:-1]].count("notifications/progress") >= 2
            assert events_stream[-1]["id"] == 5
            headers = {"accept": "text/event-stream", **client.headers}
            async with asyncio.timeout(DEADLINE_S), client.http.stream("GET", far, headers=headers) as stream:
                assert stream.status_code == 200
                lines = stream.aiter_lines()
                async for line in lines:
                    if line.startswith("id:"):
                        assert line.removeprefix("id:").strip() == "g.0"
                        break
                # A reload changes the tools that the home offers, and its sessions are notified.
                home = replicas.gateways[0]
                await home.reload(without_books(home))
                async for message in events(lines):
                    if message["method"] == "notifications/tools/list_changed":
                        break


def without_books(gateway: Any) -> dict[str, Any]:
    config = yaml.safe_load(gateway.config.read_text())
    del config["servers"]["books"]
    return dict(config)


async def test_a_stateless_call_between_two_rounds_continues_at_its_home(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, launcher=LONG_LEASE, tasks=SLOWLY) as replicas:
        async with RawClient(replicas.gateways[0].url, stateless=True, capabilities=ASKS) as client:
            for far in (*replicas.gateways[1:], replicas.gateways[0]):
                client.url = replicas.gateways[0].url
                asked = (await client.call("tells__ask")).result
                assert asked["resultType"] == "input_required"
                client.url = far.url
                answers = {key: {"action": "accept", "content": {"word": "w"}} for key in asked["inputRequests"]}
                done = await client.call("tells__ask", inputResponses=answers, requestState=asked["requestState"])
                assert '"w"' in json.dumps(done.result) or "w" in done.result["content"][0]["text"]
                twice = await client.call("tells__ask", inputResponses=answers, requestState=asked["requestState"])
                assert twice.error["code"] == -32602


async def test_a_stateless_call_whose_home_crashed_may_have_been_executed(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, number=2, tasks=SLOWLY) as replicas:
        async with RawClient(replicas.gateways[0].url, stateless=True, capabilities=ASKS) as client:
            asked = (await client.call("tells__ask")).result
            await replicas.gateways[0].kill()
            client.url = replicas.gateways[1].url
            answers = {key: {"action": "accept", "content": {"word": "w"}} for key in asked["inputRequests"]}
            lost = await client.call("tells__ask", inputResponses=answers, requestState=asked["requestState"])
            assert lost.error["data"]["executed"] == "maybe"
            assert lost.error["data"]["error_type"] == "outcome_unknown"


async def test_lost_task_request_states_nothing_about_its_call(tmp_path: Path) -> None:
    """The gateway that holds the session dies while it answers a helper tool that another gateway has forwarded."""
    beating = {**SLOWLY, "heartbeat_ms": 200}
    async with asyncio.timeout(DEADLINE_S * 2), three_replicas(tmp_path, number=2, tasks=beating) as replicas:
        async with RawClient(replicas.gateways[0].url, capabilities={"tasks": {}}) as client:
            handle = (await client.call("books__once", {"call": "c1", "seconds": 60}, task={"ttl": 600_000})).result
            asks = {
                "name": "get_task_result",
                "arguments": {"task_id": handle["taskId"]},
                "_meta": {"progressToken": 1},
            }
            body = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": asks}
            headers = {"accept": "application/json, text/event-stream", **client.headers}
            async with client.http.stream("POST", replicas.gateways[1].url, json=body, headers=headers) as reply:
                coming = events(reply.aiter_lines())
                assert (await anext(coming))["method"] == "notifications/progress", "its home answers it"
                await replicas.gateways[0].kill()
                lost = [message async for message in coming if message.get("id") == 77]
            assert "executed" not in lost[0]["error"]["data"], lost
