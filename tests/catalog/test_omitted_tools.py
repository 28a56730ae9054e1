"""A tool that is too deep or too large, or beyond `tools_per_upstream`, is omitted alone, named in the log, and not callable."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

PLAIN: Final = {"scopes": {"default": {"default_servers": ["*"], "names": "plain"}}}


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def definition(name: str, schema: str = '{"type":"object"}') -> str:
    return f'{{"name":"{name}","inputSchema":{schema}}}'


def response(message_id: object, result: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":{json.dumps(message_id)},"result":{result}}}'.encode()


def answer(call: Call, result: str, *, streamed: bool) -> dict[str, Any]:
    """Send this result as it stands: many programs cannot write JSON of such a depth."""
    body = response(call.message["id"], result)
    if streamed:
        call.reply.open_stream()
        call.reply.chunk(b"data: " + body + b"\n\n")
    else:
        call.reply.send(200, body, {"content-type": "application/json"})
    return {}


def server(*definitions: str, streamed: bool = False, generation: str = "2025") -> Upstream:
    upstream = Upstream(generation)

    async def listed(call: Call) -> dict[str, Any]:
        return answer(call, f'{{"tools":[{",".join(definitions)}],"resultType":"complete"}}', streamed=streamed)

    async def ran(call: Call) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": f"ran {call.params['name']}"}], "resultType": "complete"}

    upstream.tool("unused", ran)
    upstream.on("tools/list", listed)
    upstream.on("tools/call", ran)
    return upstream


def calls_of(upstream: Upstream, name: str) -> int:
    return sum(each.get("params", {}).get("name") == name for each in upstream.received)


async def listed_names(caller: Any) -> list[str]:
    return [tool["name"] for tool in await caller.tools() if tool["name"].startswith("tool_")]


@virtual_time
@pytest.mark.parametrize("levels", [140, 300, 3_000])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_only_the_tool_that_is_too_deep_is_omitted(generation: str, streamed: bool, levels: int) -> None:
    deep = definition("tool_deep", nested(levels))
    upstream = server(definition("tool_0"), deep, definition("tool_1"), streamed=streamed, generation=generation)
    async with Gateway(PLAIN, {"a": upstream}) as gate:
        caller = await gate.caller(generation)
        assert await listed_names(caller) == ["tool_0", "tool_1"]
        note = next(str(line) for line in gate.log if "tool_deep" in str(line))
        assert "json_depth" in note
        assert (await caller.call("tool_0")).text == "ran tool_0"


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_omitted_tool_cannot_be_called(generation: str) -> None:
    large = json.dumps({"type": "object", "properties": {f"p{number}": {} for number in range(20_000)}})
    tools = (definition("tool_0"), definition("tool_deep", nested(160)), definition("tool_large", large))
    upstream = server(*tools, generation=generation)
    async with Gateway(PLAIN, {"a": upstream}) as gate:
        caller = await gate.caller(generation)
        assert await listed_names(caller) == ["tool_0"]
        for name in ("tool_deep", "tool_large", "TOOL_DEEP"):
            assert (await caller.call(name)).error["data"]["error_type"] == "unknown_tool"
            assert calls_of(upstream, name) == 0
        # The control: what the server does not list at all still reaches it.
        assert (await caller.call("tool_unlisted")).text == "ran tool_unlisted"


@virtual_time
async def test_tool_beyond_the_limit_cannot_be_called() -> None:
    upstream = server(*(definition(f"tool_{number}") for number in range(5)))
    async with Gateway({**PLAIN, "limits": {"tools_per_upstream": 2}}, {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        assert await listed_names(caller) == ["tool_0", "tool_1"]
        note = next(str(line) for line in gate.log if "tools_per_upstream" in str(line))
        assert "tool_2" in note
        for name in ("tool_2", "tool_4"):
            assert (await caller.call(name)).error["data"]["error_type"] == "unknown_tool"
            assert calls_of(upstream, name) == 0


@virtual_time
async def test_omitted_tools_stay_omitted_in_lists_from_the_last_run() -> None:
    upstream = server(definition("tool_0"), definition("tool_deep", nested(160)))
    async with Gateway(PLAIN, {"a": upstream}) as gate:
        assert await listed_names(await gate.caller("2025")) == ["tool_0"]

        async def hangs(_call: Call) -> Any:
            await asyncio.Event().wait()

        upstream.on("tools/list", hangs)
        await gate.restart()
        caller = await gate.caller("2025")
        assert await listed_names(caller) == ["tool_0"]
        assert (await caller.call("tool_deep")).error["data"]["error_type"] == "unknown_tool"
        assert calls_of(upstream, "tool_deep") == 0


@virtual_time
@pytest.mark.parametrize("levels", [1, 160])
async def test_held_call_of_an_unlisted_tool_is_not_sent_after_the_tool_was_omitted(levels: int) -> None:
    """No tool of that name was listed when a person was asked, so no definition differs: the omission alone stops it. The control
    lists another tool instead, and the call is sent."""
    upstream = server(definition("tool_0"))
    rules = {"governance": {"rules": [{"match": "tool_x", "action": "approve"}]}, "limits": {"list_max_age": "5s"}}
    async with Gateway({**PLAIN, **rules}, {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        waiting = caller.begin_call("tool_x")
        await gate.advance(50)
        task_id = re.findall(r"tg_\w+", waiting.reply.text)[0]

        async def listed(call: Call) -> dict[str, Any]:
            name = "tool_x" if levels > 64 else "tool_y"
            return answer(call, f'{{"tools":[{definition(name, nested(levels))}]}}', streamed=False)

        upstream.on("tools/list", listed)
        await gate.advance(30)
        await caller.tools()
        await gate.advance(30)
        (row,) = (await gate.operator("GET", "/api/approvals")).json()
        await caller.request("tasks/get", {"taskId": task_id})
        await gate.operator("POST", f"/api/approvals/{row['id']}/approve", {"reason": "agreed"})
        await gate.advance(30)
        await caller.request("tasks/get", {"taskId": task_id})
        await gate.advance(30)
        assert calls_of(upstream, "tool_x") == (0 if levels > 64 else 1)


@virtual_time
async def test_lower_limit_after_a_reload_makes_the_rest_uncallable() -> None:
    upstream = server(*(definition(f"tool_{number}") for number in range(3)))
    async with Gateway(PLAIN, {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        assert len(await listed_names(caller)) == 3
        await gate.reload({**PLAIN, "limits": {"tools_per_upstream": 2}})
        again = await gate.caller("2025")
        assert await listed_names(again) == ["tool_0", "tool_1"]
        assert (await again.call("tool_2")).error["data"]["error_type"] == "unknown_tool"
        assert calls_of(upstream, "tool_2") == 0


@virtual_time
async def test_ten_thousand_tools_are_listed_with_default_limits() -> None:
    schema = json.dumps({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3)}})
    upstream = server(*(definition(f"tool_{number}", schema) for number in range(10_000)))
    async with Gateway({}, {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        found, cursor = 0, None
        for _ in range(20):
            page = (await caller.request("tools/list", {"cursor": cursor} if cursor else {})).result
            found += sum(tool["name"].startswith("a__") for tool in page["tools"])
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        assert found == 10_000
        assert (await caller.call("a__tool_9999")).text == "ran tool_9999"


@virtual_time
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("levels", [140, 3_000])
async def test_result_that_is_too_deep_fails_and_names_the_limit(levels: int, streamed: bool) -> None:
    upstream = server(definition("tool_0"))

    async def deep(call: Call) -> dict[str, Any]:
        return answer(call, f'{{"content":[],"structuredContent":{nested(levels)}}}', streamed=streamed)

    upstream.on("tools/call", deep)
    async with Gateway(PLAIN, {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        failed = await caller.call("tool_0")
        error = failed.result["_meta"]["taskgate/error"]
        assert (error["error_type"], error["executed"]) == ("upstream_protocol", "maybe")
        assert "json_depth" in failed.text


STDIO_SERVER: Final = """
import asyncio, json, sys

deep = '{"a":' * 3000 + "1" + "}" * 3000
about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
listed = '{"tools":[{"name":"tool_0","inputSchema":{"type":"object"}},{"name":"tool_deep","inputSchema":%s}]}' % deep


def say(line):
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()


def result_of(method, params):
    if method == "initialize":
        return json.dumps({"protocolVersion": "2025-11-25", **about})
    if method == "tools/list":
        return listed
    if method == "tools/call" and params.get("arguments"):
        return '{"content":[],"structuredContent":%s}' % deep
    return '{"content":[{"type":"text","text":"ran"}]}'


async def main():
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        asked = json.loads(line)
        number, method = json.dumps(asked.get("id")), asked["method"]
        if method == "server/discover":
            say('{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}' % number)
        elif "id" in asked:
            result = result_of(method, asked.get("params") or {})
            say('{"jsonrpc":"2.0","id":%s,"result":%s}' % (number, result))


if __name__ == "__main__":
    asyncio.run(main())
"""


@virtual_time
async def test_stdio_server_with_a_tool_that_is_too_deep(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(STDIO_SERVER)
    config = {**PLAIN, "servers": {"s": {"command": sys.executable, "args": [str(script)]}}}
    async with Gateway(config, {}) as gate:
        caller = await gate.caller("2025")
        assert await listed_names(caller) == ["tool_0"]
        assert (await caller.call("tool_0")).text == "ran"
        failed = await caller.call("tool_0", {"deep": True})
        assert failed.result["_meta"]["taskgate/error"]["error_type"] == "upstream_protocol"
        assert "json_depth" in failed.text
        assert (await caller.call("tool_deep")).error["data"]["error_type"] == "unknown_tool"


def paged_server(pages: list[list[str]], generation: str) -> Upstream:
    """A server whose pages of tools can be changed."""
    upstream = server(generation=generation)

    async def listed(call: Call) -> dict[str, Any]:
        at = int(call.params.get("cursor") or 0)
        more = f',"nextCursor":"{at + 1}"' if at + 1 < len(pages) else ""
        return answer(call, f'{{"tools":[{",".join(pages[at])}],"resultType":"complete"{more}}}', streamed=False)

    upstream.on("tools/list", listed)
    return upstream


LARGE: Final = definition("tool_large", '{"type":"object","description":"' + "x" * 30_000 + '"}')
SMALL_RESULTS: Final = {**PLAIN, "limits": {"result_bytes": 20_000, "list_max_age": "10s"}}


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_pages_before_one_that_is_too_large_are_kept(generation: str) -> None:
    pages = [[definition("tool_0")], [definition("tool_1")], [LARGE], [definition("tool_3")]]
    upstream = paged_server(pages, generation)
    async with Gateway(SMALL_RESULTS, {"a": upstream}) as gate:
        caller = await gate.caller(generation)
        assert await listed_names(caller) == ["tool_0", "tool_1"]
        note = next(str(line) for line in gate.log if "result_bytes" in str(line))
        assert "tools/list of a" in note
        assert "number 3" in note
        assert (await caller.call("tool_0")).text == "ran tool_0"
        # No rule was evaluated for what was not read, so it cannot be called.
        await caller.call("tool_3")
        assert calls_of(upstream, "tool_3") == 0


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_last_known_tools_are_kept_if_the_first_page_becomes_too_large(generation: str) -> None:
    pages = [[definition("tool_0")], [definition("tool_1")]]
    upstream = paged_server(pages, generation)
    async with Gateway(SMALL_RESULTS, {"a": upstream}) as gate:
        caller = await gate.caller(generation)
        assert await listed_names(caller) == ["tool_0", "tool_1"]
        pages[:] = [[LARGE], [definition("tool_1")]]
        # The server announces changes, so its lists are fetched again after ten times `list_max_age`.
        await gate.advance(200)
        assert await listed_names(caller) == ["tool_0", "tool_1"]
        lists = (await gate.operator("GET", "/api/v1/servers/a")).json()["lists"]
        assert "first page of tools/list of the server a" in lists["problem"]


@virtual_time
async def test_schema_of_32_nested_objects_is_listed() -> None:
    """Each of them takes two levels of JSON, and a third one beside it."""
    schema = '{"type":"object","properties":{"a":' * 32 + '{"type":"string"}' + "}}" * 32
    async with Gateway(PLAIN, {"a": server(definition("tool_0", schema))}) as gate:
        assert await listed_names(await gate.caller("2025")) == ["tool_0"]


@virtual_time
async def test_name_that_a_server_lists_twice_is_noted_once() -> None:
    """The two definitions would differ from the pinned one by turns, at each fetch."""
    first, second = (f'{{"name":"tool_0","description":"{text}","inputSchema":{{"type":"object"}}}}' for text in "ab")
    async with Gateway(PLAIN, {"a": server(first, second, definition("tool_1"))}) as gate:
        caller = await gate.caller("2025")
        for _ in range(10):
            tools = [tool for tool in await caller.tools() if tool["name"].startswith("tool_")]
            assert [(tool["name"], tool.get("description")) for tool in tools] == [("tool_0", "a"), ("tool_1", None)]
            await asyncio.sleep(400)
        assert sum("twice" in str(line) for line in gate.log) == 1
        assert not any("definition changed" in str(line) for line in gate.log)


@virtual_time
async def test_unchanged_lists_with_a_short_lifetime_are_fetched_less_often() -> None:
    """A server may declare that its lists are outdated at once. They are fetched every few seconds only while they change."""
    twice = [definition("tool_0"), definition("tool_0", '{"type":"object","title":"other"}')]
    # A server that announces no changes: of others the lifetime does not count.
    upstream = Upstream("2026", capabilities={"tools": {}})

    async def listed(call: Call) -> dict[str, Any]:
        return answer(call, f'{{"tools":[{",".join(twice)}],"resultType":"complete","ttlMs":0}}', streamed=False)

    upstream.on("tools/list", listed)

    def fetches() -> int:
        return sum(each.get("method") == "tools/list" for each in upstream.received)

    async with Gateway({**PLAIN, "limits": {"list_max_age": "5m"}}, {"a": upstream}) as gate:
        caller = await gate.caller("2026")
        assert await listed_names(caller) == ["tool_0"]
        await gate.advance(3_600)
        assert 12 <= fetches() <= 24
        twice.append(definition("tool_1"))
        await gate.advance(310)
        assert await listed_names(caller) == ["tool_0", "tool_1"]
        # After a change, another one is found soon.
        before = fetches()
        for number in range(2, 12):
            twice.append(definition(f"tool_{number}"))
            await gate.advance(7)
        assert fetches() - before >= 9
        assert "tool_10" in await listed_names(caller)
