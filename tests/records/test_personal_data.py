"""One person's data: an admin exports and erases it, and after that its bytes are nowhere in the gateway's files."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.console.test_console_rules_and_usage import page
from tests.harness.commands import command
from tests.harness.raised import raises_error
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.config.problems import ConfigError

TOKEN = "{}-token-0123456789abcdef"
ARGUMENT, RESULT, ANSWER = "argumentmarker7391", "resultmarker5528", "answermarker1846"
FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}
CONFIG: dict[str, Any] = {
    "tokens": [
        {"id": name, "sha256": hashlib.sha256(TOKEN.format(name).encode()).hexdigest(), "roles": roles}
        for name, roles in (("ann", []), ("bob", []), ("root", ["admin"]), ("olga", ["operator"]))
    ],
    "tasks": {"promote_after_ms": 1000},
}


def server() -> Upstream:
    notes = Upstream("both")

    @notes.tool("paint")
    async def paint(call: Call) -> str:
        answer = await call.elicit("Which colour?", FORM)
        return f"{RESULT} {(answer.get('content') or {}).get('colour')}"

    @notes.tool("long")
    async def long(call: Call) -> str:
        return (RESULT + " ") * 100_000

    @notes.tool("sleep")
    async def sleep(call: Call) -> str:
        await call.sleep(1000)
        return "slept"

    return notes


async def painted(gate: Gateway, name: str) -> str:
    """A call that becomes a task, asks, is answered and ends."""
    caller = await gate.caller("2025", token=TOKEN.format(name))
    reply = await caller.call("notes__paint", {"what": ARGUMENT})
    task_id: str = reply.last["result"]["structuredContent"]["taskgate_notice"]["task_id"]
    (question,) = (await caller.call_json("get_task", task_id=task_id))["pending_elicitations_for_server"]
    answer = {"request_id": question["request_id"], "action": "accept", "content": {"colour": ANSWER}}
    assert (await caller.call_json("respond_to_elicitation", **answer, task_id=task_id))["success"] is True
    assert RESULT in (await caller.call("get_task_result", {"task_id": task_id})).text
    return task_id


async def asleep(gate: Gateway, name: str) -> str:
    caller = await gate.caller("2025", token=TOKEN.format(name))
    reply = await caller.call("notes__sleep")
    task_id: str = reply.last["result"]["structuredContent"]["taskgate_notice"]["task_id"]
    return task_id


async def asked(gate: Gateway, who: str, method: str, path: str, body: Any = None) -> Any:
    headers = {"authorization": f"Bearer {TOKEN.format(who)}"}
    return await gate.http(method, f"/api/v1/data/{path}", body, headers).done()


async def exported(gate: Gateway, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = (await asked(gate, "root", "GET", f"export?principal={name}&after={quote(after)}")).json()
        rows += page["rows"]
        after = page["next"]
    return rows


def found_in(folder: Path) -> set[str]:
    marks = (ARGUMENT, RESULT, ANSWER)
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return {mark for mark in marks if any(mark.encode() in content for content in files)}


@virtual_time
async def test_after_an_erase_no_byte_of_the_data_is_in_the_files() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        for _ in range(3):
            await painted(gate, "ann")
        caller = await gate.caller("2025", token=TOKEN.format("ann"), capabilities={"tasks": {}})
        await caller.call("notes__long", {"what": ARGUMENT}, task={"ttl": 600_000})
        await gate.advance(20)
        assert found_in(gate.state) == {ARGUMENT, RESULT, ANSWER}
        assert list(gate.state.rglob("*.results/*"))

        reply = await asked(gate, "root", "POST", "erase", {"principal": "ann"})
        assert (reply.status, reply.json()["erased"]["tasks"]) == (200, 4)
        assert found_in(gate.state) == set()
        assert await exported(gate, "ann") == []
        await gate.stop()
        assert found_in(gate.state) == set()
        env = {"TASKGATE_STATE_DIR": str(gate.state), "HOME": str(gate.folder)}
        code, out, _ = await command("audit", "verify", "-c", str(gate.config_file), "--json", env=env)
        assert code == 0, out
        await gate.start()


@virtual_time
async def test_with_a_key_no_plain_byte_of_the_data_is_in_the_files() -> None:
    key = "0123456789abcdef0123456789abcdef"
    async with Gateway({}, {"notes": server()}) as gate:
        await gate.stop()
        sealed = {**CONFIG, "store": {"url": f"sqlite:///{gate.state}/taskgate.db", "key": "${env:STORE_KEY}"}}
        gate.write(sealed)
        with pytest.raises(ConfigError):
            await gate.start()
        (gate.folder / "store.key").write_text(key)
        gate.write({**sealed, "store": {**sealed["store"], "key": f"${{file:{gate.folder}/store.key}}"}})
        await gate.start()
        task_id = await painted(gate, "ann")
        caller = await gate.caller("2025", token=TOKEN.format("ann"), capabilities={"tasks": {}})
        await caller.call("notes__long", {"what": ARGUMENT}, task={"ttl": 600_000})
        await gate.advance(20)
        assert list(gate.state.rglob("*.results/*"))
        assert found_in(gate.state) == set()
        _, shown = await page(gate, "/system")
        assert ("taskgate.db" in shown, key in shown) == (True, False)
        gate.crash()
        assert found_in(gate.state) == set()
        (gate.folder / "store.key").write_text("f" * 32)
        with raises_error("store_unavailable", "store.key"):
            await gate.start()
        (gate.folder / "store.key").write_text(key)
        await gate.start()
        (task,) = [row for row in await exported(gate, "ann") if row.get("id") == task_id]
        assert task["arguments"] == {"what": ARGUMENT}
        assert RESULT in json.dumps(task["result"])


@virtual_time
async def test_an_export_contains_questions_answers_and_results_of_one_person_only() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        hers, _ = await painted(gate, "ann"), await painted(gate, "bob")
        await gate.advance(20)
        rows = await exported(gate, "ann")
        (task,) = [row for row in rows if row["kind"] == "task"]
        assert (task["id"], task["arguments"]) == (hers, {"what": ARGUMENT})
        assert RESULT in json.dumps(task["result"])
        (question,) = task["questions"]
        assert question["answer"]["content"] == {"colour": ANSWER}
        assert {"task", "event", "usage"} <= {row["kind"] for row in rows}
        assert {row["principal"] for row in rows if "principal" in row} == {"ann"}


@virtual_time
async def test_an_erase_waits_for_running_tasks_or_cancels_them() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        running, others = await asleep(gate, "ann"), await asleep(gate, "bob")
        refused = await asked(gate, "root", "POST", "erase", {"principal": "ann"})
        assert (refused.status, refused.json()["open"]) == (409, [running])
        assert running in refused.json()["error"]
        assert (await gate.operator("GET", f"/api/v1/tasks/{running}")).json()["state"] == "running"
        done = await asked(gate, "root", "POST", "erase", {"principal": "ann", "cancel": True})
        assert (done.status, done.json()["erased"]["tasks"]) == (200, 1)
        assert (await gate.operator("GET", f"/api/v1/tasks/{running}")).status == 404
        assert (await gate.operator("GET", f"/api/v1/tasks/{others}")).json()["state"] == "running"
        await asyncio.sleep(5)
        assert sorted(ran.how for ran in gate.upstreams["notes"].ran) == ["cancelled", "running"]


@virtual_time
async def test_only_admins_export_and_erase_named_persons() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        await painted(gate, "ann")
        for who, method, path, body, status in (
            ("ann", "GET", "export?principal=ann", None, 403),
            ("olga", "GET", "export?principal=ann", None, 403),
            ("olga", "POST", "erase", {"principal": "ann"}, 403),
            ("root", "GET", "export", None, 400),
            ("root", "GET", "export?principal=ann&after=elsewhere:", None, 400),
            ("root", "POST", "erase", {}, 400),
            ("root", "POST", "erase", {"principal": "anonymous"}, 400),
            ("root", "POST", "erase", {"principal": "ann", "cancel": "yes"}, 400),
            ("root", "POST", "erase", {"principal": "ann", "force": True}, 400),
        ):
            reply = await asked(gate, who, method, path, body)
            assert (reply.status, bool(reply.json()["error"])) == (status, True), (who, path, body)
        assert [row["kind"] for row in await exported(gate, "ann")].count("task") == 1
