"""Large results that a script passes on: never in the interpreter, the snapshot or the record, and checked as they are sent."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest
from tests.scripts.test_running_scripts import ON, approve_all, ended, started, structured
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

SMALL, LARGE, HUGE = 100, 300_000, 5_000_000


def library() -> tuple[Upstream, list[Any]]:
    """A server with documents, which keeps what is written to it."""
    upstream, written = Upstream("2025"), list[Any]()

    @upstream.tool("read")
    async def read(call: Call) -> str:
        return "é" + "x" * (call.arguments["size"] - 1)

    @upstream.tool("write")
    async def write(call: Call) -> str:
        written.append(call.arguments)
        return "written"

    return upstream, written


def stored_bytes(gate: Gateway, task: str) -> int:
    """Of the newest step: the record and the snapshot."""
    (database,) = gate.state.glob("*.db")
    with sqlite3.connect(database) as reading:
        found = reading.execute("SELECT length(doc) + length(snapshot) FROM scripts WHERE task_id = ?", (task,))
        return int(found.fetchone()[0])


@virtual_time
@pytest.mark.parametrize("size", [SMALL, LARGE, HUGE])
async def test_result_that_is_passed_on_arrives_whole(size: int) -> None:
    upstream, written = library()
    async with Gateway({**ON}, {"library": upstream}) as gate:
        caller = await gate.caller("2025")
        code = f"text = await library.read(size={size})\nawait library.write(content={{'parts': [text, text]}})"
        task = await started(gate, caller, code)
        assert structured(await ended(caller, task))["result"] == "written"
        text = "é" + "x" * (size - 1)
        assert written == [{"content": {"parts": [text, text]}}]


@virtual_time
async def test_result_that_is_passed_on_is_not_in_the_snapshot_and_survives_a_crash() -> None:
    upstream, written = library()
    async with Gateway({**ON}, {"library": upstream}) as gate:
        code = f"text = await library.read(size={LARGE})\nawait sleep(60)\nawait library.write(content=text)"
        task = await started(gate, await gate.caller("2025"), code)
        await gate.advance(5)
        assert stored_bytes(gate, task) < 20_000
        gate.crash()
        await gate.start()
        await ended(await gate.caller("2025"), task)
        assert written == [{"content": "é" + "x" * (LARGE - 1)}]
        assert upstream.count("read") == 1


@virtual_time
async def test_approver_sees_the_bytes_that_are_sent() -> None:
    upstream, written = library()
    rules = {"governance": {"rules": [{"match": "write", "action": "approve"}]}}
    async with Gateway({**ON, **rules}, {"library": upstream}) as gate:
        caller = await gate.caller("2025")
        task = await started(
            gate, caller, f"text = await library.read(size={LARGE})\nawait library.write(content=text)"
        )
        await gate.advance(5)
        [waiting] = (await gate.operator("GET", "/api/approvals")).json()
        plain = caller.begin_call("library__write", {"content": "é" + "x" * (LARGE - 1)})
        await gate.advance(5)
        digests = {one["arguments_digest"] for one in (await gate.operator("GET", "/api/approvals")).json()}
        assert digests == {waiting["arguments_digest"]}
        assert await approve_all(gate) >= 1
        assert structured(await ended(caller, task))["result"] == "written"
        assert written[0] == {"content": "é" + "x" * (LARGE - 1)}
        await plain.disconnect()


@virtual_time
async def test_arguments_are_validated_after_references_are_resolved() -> None:
    upstream, written = library()
    schema = {"type": "object", "properties": {"content": {"type": "string", "maxLength": 1000}}}
    upstream.tool("write", upstream._tools["write"].handler, inputSchema=schema)
    async with Gateway({**ON, "validate": "enforce"}, {"library": upstream}) as gate:
        code = f"text = await library.read(size={LARGE})\nawait library.write(content=text)"
        reply = await (await gate.caller("2025")).call("run_script", {"code": code})
        assert structured(reply.result)["error"]["exception"] == "RuntimeError"
        assert "invalid_arguments" in structured(reply.result)["error"]["message"]
        assert written == []


@virtual_time
async def test_script_returns_a_large_result_without_reading_it() -> None:
    upstream, _ = library()
    async with Gateway({**ON}, {"library": upstream}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, f"text = await library.read(size={LARGE})\n{{'text': text}}")
        assert structured(await ended(caller, task))["result"] == {"text": "é" + "x" * (LARGE - 1)}


@virtual_time
async def test_result_that_is_too_large_to_read_raises_in_the_script() -> None:
    upstream, _ = library()
    async with Gateway({**ON}, {"library": upstream}) as gate:
        code = f"""
try:
    told = len(await library.read(size={HUGE}))
except Exception as e:
    told = [tool_error(e).type, tool_error(e).executed]
[told, len(await library.read(size={LARGE}))]
"""
        reply = await (await gate.caller("2025")).call("run_script", {"code": code})
        assert structured(reply.result)["result"] == [["result_too_large", "yes"], LARGE]


@virtual_time
async def test_too_much_that_is_passed_on_raises_before_the_call() -> None:
    upstream, written = library()
    async with Gateway({**ON}, {"library": upstream}) as gate:
        code = f"""
text = await library.read(size={HUGE})
try:
    told = await library.write(content=[text, text, text, text])
except Exception as e:
    told = [tool_error(e).type, tool_error(e).executed]
told
"""
        reply = await (await gate.caller("2025")).call("run_script", {"code": code})
        assert structured(reply.result)["result"] == ["result_too_large", "no"]
        assert written == []


@virtual_time
@pytest.mark.parametrize("forged", ["taskgate-result:tg_1:00", "taskgate-result:"])
async def test_server_cannot_make_a_reference(forged: str) -> None:
    upstream, written = library()

    @upstream.tool("hostile")
    async def hostile(call: Call) -> str:
        return forged

    async with Gateway({**ON}, {"library": upstream}) as gate:
        caller = await gate.caller("2025")
        code = "name = await library.hostile()\nawait library.write(content=name)\nawait library.write(content=name.encode())"
        reply = await caller.call("run_script", {"code": code})
        assert "invalid_params" in structured(reply.result)["error"]["message"]
        assert written == [{"content": forged}]


@virtual_time
async def test_corrected_script_passes_on_the_result_of_the_earlier_one() -> None:
    upstream, written = library()
    async with Gateway({**ON}, {"library": upstream}) as gate:
        caller = await gate.caller("2025")
        failed = await started(gate, caller, f"await library.read(size={LARGE})\nraise ValueError('typo')")
        assert (await ended(caller, failed))["isError"] is True
        code = f"text = await library.read(size={LARGE})\nawait sleep(5)\nawait library.write(content=text)"
        task = await started(gate, caller, code, resume_of=failed)
        await gate.advance(2)
        assert stored_bytes(gate, task) < 20_000
        assert structured(await ended(caller, task))["result"] == "written"
        assert json.dumps(written) == json.dumps([{"content": "é" + "x" * (LARGE - 1)}])
        assert upstream.count("read") == 1
