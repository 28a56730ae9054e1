"""An operator lists open questions and tasks and answers from the command line; other users may not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from typing import Any
from xml.etree import ElementTree

import httpx2
import pytest
import pytest_asyncio
from tests.activity.callers import Failed, call, call_json, http_session, read, task_result
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {"files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
    "scopes": {"default": {"default_servers": ["*"], "mode": "both"}},
    "tasks": {"promote_after_ms": 2000},
}

DEADLINE_S = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG) as running:
        yield running


async def api(gateway: Gateway, path: str, body: dict[str, Any] | None = None, token: str | None = None) -> Any:
    token = token or (gateway.state / "operator-token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(timeout=120) as http:
        method = "GET" if body is None else "POST"
        return await http.request(method, f"{gateway.base}{path}", json=body, headers=headers)


async def cli(gateway: Gateway, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "taskgate", "questions", *arguments, "--gateway", gateway.base]
    return await run_to_end(command, {"TASKGATE_STATE_DIR": str(gateway.state)})


async def waiting(gateway: Gateway) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with asyncio.timeout(DEADLINE_S):
        while not rows:
            await asyncio.sleep(0.05)
            rows = (await api(gateway, "/api/questions")).json()
    return rows


@pytest.mark.real_processes
async def test_a_question_is_listed_and_answered_from_the_command_line(gateway: Gateway) -> None:
    async with http_session(gateway) as caller:
        running = asyncio.create_task(call(caller, "files__greet"))
        (row,) = await waiting(gateway)
        assert (row["server"], row["kind"]) == ("files", "elicitation")
        code, out, _ = await cli(gateway, "list")
        assert code == 0
        assert "What is your name?" in out
        assert "name: string (Your name)" in out
        code, _, err = await cli(gateway, "answer", row["request_id"], '{"name": 7}')
        assert code != 0
        assert "does not match" in err
        code, out, _ = await cli(gateway, "answer", row["request_id"][-8:], '{"name": "Ops"}', "--json")
        assert code == 0
        assert json.loads(out)["id"] == row["request_id"]
        result = await running
        if "Hello" not in result["content"][0]["text"]:
            (task,) = (await call_json(caller, "list_tasks", include_completed=True))["tasks"]
            result = await task_result(caller, task["task_id"])
        assert result["content"][0]["text"] == "Hello, Ops!"
        assert (await cli(gateway, "list", "--json"))[1] == ""
        code, _, err = await cli(gateway, "answer", row["request_id"], "--decline")
        assert code != 0
        assert "No question" in err


@pytest.mark.parametrize(
    ("body", "status"),
    [({"action": "shout"}, 400), ({"colour": "red"}, 400), ({"action": "accept", "content": {"name": 1}}, 400)],
)
async def test_a_bad_answer_over_the_api_is_refused(gateway: Gateway, body: dict[str, Any], status: int) -> None:
    async with http_session(gateway) as caller:
        await call_json(caller, "execute_tool", server="files", tool="greet", timeout_ms=300)
        (row,) = await waiting(gateway)
        assert (await api(gateway, f"/api/questions/{row['request_id']}", body)).status_code == status
        assert (await api(gateway, f"/api/questions/{row['request_id']}", {"action": "decline"})).status_code == 200
        assert (await api(gateway, f"/api/questions/{row['request_id']}", {"action": "decline"})).status_code == 404


async def test_the_waterfall_shows_requests_with_the_calls_they_caused(gateway: Gateway) -> None:
    async with http_session(gateway) as caller:
        await call(caller, "files__list_files")
        promoted = read(
            await call(caller, "execute_tool", server="files", tool="slow_report", args={"seconds": 1}, timeout_ms=100)
        )
        await call_json(caller, "get_task_result", task_id=promoted["proxy_task"]["task_id"])
    spans = (await api(gateway, "/api/waterfall")).json()
    request = next(span for span in spans if span["name"] == "files__list_files")
    (upstream,) = [span for span in spans if span["parent"] == request["id"]]
    assert (upstream["server"], upstream["name"], upstream["state"]) == ("files", "list_files", "ok")
    assert request["start_ms"] <= upstream["start_ms"] <= upstream["end_ms"] <= request["end_ms"]
    assert "promoted" in [span["state"] for span in spans if span["name"] == "execute_tool"]
    assert (await api(gateway, "/api/waterfall?limit=1")).json() != []
    assert (await api(gateway, "/api/waterfall?limit=0")).status_code == 400


async def test_the_waterfall_page_is_drawn_for_the_operator_only(gateway: Gateway) -> None:
    link = (await api(gateway, "/api/login-links", {})).json()["url"]
    async with httpx2.AsyncClient(base_url=gateway.base) as http:
        assert (await http.get("/waterfall")).status_code == 303
        form = (await http.get(link)).text
        assert "<form" in form
        assert (await http.get("/api/waterfall")).status_code == 401
    assert (await api(gateway, "/api/questions", token="wrong")).status_code in (401, 403)


async def test_the_waterfall_page_shows_bars_and_hostile_names_as_text(gateway: Gateway) -> None:
    hostile = "<script>document.title='owned'</script>&amp;"
    async with http_session(gateway) as caller:
        await call(caller, "files__list_files")
        with contextlib.suppress(Failed):
            await call(caller, hostile)
    link = (await api(gateway, "/api/login-links", {})).json()["url"]
    async with httpx2.AsyncClient(base_url=gateway.base, follow_redirects=True) as http:
        fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', (await http.get(link)).text))
        entered = await http.post(link.split("?")[0], data=fields, headers={"Origin": gateway.base})
        assert entered.status_code == 200, entered.text
        page = await http.get("/waterfall")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert '<a href="/waterfall" aria-current="page">' in page.text
    drawing = re.search(r'<ol class="spans".*</ol>', page.text, re.DOTALL)
    assert drawing is not None
    drawn = ElementTree.fromstring(drawing.group())
    names = " ".join(drawn.itertext())
    assert "files__list_files" in names
    assert hostile in names
    assert "<script>" not in page.text


async def test_servers_are_shown_with_their_state(gateway: Gateway) -> None:
    (server,) = (await api(gateway, "/api/servers")).json()
    assert (server["name"], server["transport"]) == ("files", "stdio")
