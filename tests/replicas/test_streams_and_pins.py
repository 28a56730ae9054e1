"""Two gateways in one process: what a session follows and resumes, which definitions were accepted, and who is there, at either."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.harness.raw_client import RawClient
from tests.replicas.in_process import DEADLINE_S, HeldGateway, gateways, until
from tests.replicas.test_forwarding import SLOWLY, events

FOLLOWED = """
import json, sys
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
followed = set()
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    result = {}
    if method == "initialize":
        able = {"tools": {}, "resources": {"subscribe": True}}
        info = {"name": "followed", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": [{"name": "touch", "inputSchema": {"type": "object"}}]}
    elif method == "resources/list":
        result = {"resources": [{"uri": "file:///notes", "name": "notes"}]}
    elif method == "resources/subscribe":
        followed.add(params["uri"])
    elif method == "tools/call":
        token = (params.get("_meta") or {}).get("progressToken")
        for step in (1, 2, 3) if token is not None else ():
            send(method="notifications/progress", params={"progressToken": token, "progress": step, "total": 3})
        for uri in followed:
            send(method="notifications/resources/updated", params={"uri": uri})
        result = {"content": []}
    if "id" in message:
        send(id=message["id"], result=result)
"""
SERVERS = {"own": {"command": sys.executable, "args": ["-c", FOLLOWED]}}


async def gets_an_update(client: RawClient) -> None:
    """In the session's stream at the gateway that the client is connected to, after a call there."""
    headers = {"accept": "text/event-stream", **client.headers}
    async with client.http.stream("GET", client.url, headers=headers) as stream:
        events_stream = events(stream.aiter_lines())
        assert "result" in (await client.call("own__touch")).reply
        while (await anext(events_stream))["method"] != "notifications/resources/updated":
            pass


async def test_subscriptions_of_a_session_work_at_any_gateway_and_continue_at_the_next_home(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        gateways(tmp_path, servers=SERVERS, tasks=SLOWLY) as setup,
        setup.a.caller(stateless=False) as client,
    ):
        client.url = setup.b.url
        listed = (await client.request("resources/list")).result["resources"]
        (uri,) = [one["uri"] for one in listed if one["name"].endswith("notes")]
        assert (await client.request("resources/subscribe", {"uri": uri})).result == {}
        await gets_an_update(client)
        await setup.a.stop()
        assert (await client.request("ping")).result == {}
        await gets_an_update(client)


async def test_a_broken_stream_is_resumed_through_another_gateway(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        gateways(tmp_path, servers=SERVERS, tasks=SLOWLY) as setup,
        setup.a.caller(stateless=False) as client,
    ):
        params = {"name": "own__touch", "arguments": {}, "_meta": {"progressToken": "p"}}
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
        sent = {"content-type": "application/json", "accept": "application/json, text/event-stream", **client.headers}
        reply = await client.http.post(setup.b.url, content=json.dumps(body).encode(), headers=sent)
        ids = [line[3:].strip() for line in reply.text.splitlines() if line.startswith("id:")]
        assert reply.text.count("notifications/progress") == 3, reply.text
        again = {**client.headers, "accept": "text/event-stream", "last-event-id": ids[-2]}
        rest = await client.http.get(setup.b.url, headers=again)
        assert '"id":9' in rest.text
        assert "notifications/progress" not in rest.text, "what was seen is not sent again"


async def shown(gateway: HeldGateway) -> list[str]:
    async with gateway.caller() as caller:
        listed = (await caller.request("tools/list", {})).result["tools"]
        return [tool["name"] for tool in listed if tool["name"].startswith("own__")]


async def test_a_definition_that_was_accepted_at_one_gateway_is_out_of_quarantine_at_the_other(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), gateways(tmp_path, servers=SERVERS, pins="strict") as setup:
        rows: list[dict[str, Any]] = []
        for gateway in setup.gateways:
            assert await shown(gateway) == []
            rows = [row for row in (await gateway.operator("GET", "/api/pins")).json() if row["server"] == "own"]
            assert [row["quarantined"] for row in rows] == [True]
        accepted = {"server": "own", "tool": "touch", "digest": rows[0]["digest"]}
        assert (await setup.a.operator("POST", "/api/pins/accept", accepted)).status_code == 200

        async def known_to_b() -> bool:
            return await shown(setup.b) == ["own__touch"]

        await until(known_to_b)


async def test_every_gateway_has_the_same_operator_token_and_the_console_names_them_all(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), gateways(tmp_path) as setup:
        tokens = {(gateway.folder / "state" / "operator-token").read_text() for gateway in setup.gateways}
        assert len(tokens) == 1
        owners = {gateway.store.ownership.owner for gateway in setup.gateways}
        assert len(owners) == 2

        async def named(gateway: HeldGateway) -> bool:
            reply = (await gateway.operator("GET", "/api/v1/system")).json()
            return {one["owner"] for one in reply["replicas"]} == owners

        for gateway in setup.gateways:
            await until(lambda gateway=gateway: named(gateway))  # type: ignore[misc]
