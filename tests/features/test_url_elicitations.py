"""URL elicitations: checked, limited, audited, and their completion is sent only to the callers that received them."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import re
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.features.wire_client import TIMEOUT_S, WireClient, config, refused, session, stateless
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening
from tests.harness.programs import running as running_program

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
MIRROR = Path(__file__).resolve().parent.parent / "peers" / "mirror_server.py"
URL: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
GOOD = "https://example.test/sign"
OVER = "notifications/elicitation/complete"
TOKENS = {"ann": "token-of-ann", "bob": "token-of-bob", "cleo": "token-of-cleo"}
APPROVERS = ("ann", "bob")


def people() -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "sha256": hashlib.sha256(token.encode()).hexdigest(),
            "roles": ["approver"] if name in APPROVERS else [],
        }
        for name, token in TOKENS.items()
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    settings = config(
        tokens=people(),
        auth={"anonymous": "default"},
        limits={"url_elicitations_per_minute": 1000},
        compat={"vendor_methods": True},
    )
    async with running_gateway(settings) as running:
        yield running


async def test_a_valid_url_reaches_the_caller_unchanged(gateway: Gateway) -> None:
    async with session(gateway, URL) as caller:
        caller.answers["elicitation/create"] = {"action": "accept"}
        assert await caller.call_json("open_url", {"url": GOOD}) == {"action": "accept"}
        assert caller.asked[0]["params"] == {
            "mode": "url",
            "message": "Please sign in",
            "elicitationId": "odd-1",
            "url": GOOD,
        }


BAD = [
    ("http://example.test/", "only https is allowed"),
    ("http://127.0.0.1:9/", "only https is allowed"),
    ("javascript:alert(1)", "only https is allowed"),
    ("data:text/html,hello", "only https is allowed"),
    ("https://good.test@evil.test/", "it contains a user name or a password"),
    ("https://user:pass@example.test/", "it contains a user name or a password"),
    ("https://p\u0430ypal.test/", "its host mixes letters that look alike"),
    ("https://xn--pypal-4ve.test/", "its host mixes letters that look alike"),
    ("https://2130706433/", "its host is an unusual notation of an IP address"),
    ("https://0x7f.1/", "its host is an unusual notation of an IP address"),
    ("https://example.test\\@evil.test/", "it contains spaces, backslashes or invisible characters"),
    ("https:///nohost", "it has no host"),
    ("", "it must have 1 to 2048 characters"),
    ("https://example.test/" + "a" * 2048, "it must have 1 to 2048 characters"),
]


@pytest.mark.parametrize(("url", "why"), BAD)
async def test_an_unsafe_url_is_never_shown(gateway: Gateway, url: str, why: str) -> None:
    async with session(gateway, URL) as caller:
        error = (await caller.call_json("open_url", {"url": url}))["error"]
        assert (error["code"], error["data"]["error_type"]) == (-32602, "unsafe_url")
        assert why in error["message"]
        assert not url or url not in error["message"]
        assert caller.asked == []


@pytest.mark.parametrize(("url", "why"), BAD[:6])
async def test_an_unsafe_url_in_an_error_or_result_is_never_shown(gateway: Gateway, url: str, why: str) -> None:
    async with session(gateway, URL) as caller:
        result = await caller.call("needs_url", {"url": url})
        assert result["isError"] is True
        assert why in result["content"][0]["text"]
        assert url not in result["content"][0]["text"]
    async with stateless(gateway, URL) as modern:
        for tool in ("needs_url", "open_url"):
            result = await modern.call(tool, {"url": url})
            assert "inputRequests" not in result
            assert why in json.dumps(result)


async def test_a_url_elicitation_error_passes_to_a_stateful_caller(gateway: Gateway) -> None:
    async with session(gateway, URL) as caller:
        problem = await refused(caller.call("needs_url", {"url": GOOD}))
        assert problem.code == -32042
        assert problem.error["data"]["elicitations"][0]["url"] == GOOD


async def test_a_url_elicitation_error_becomes_a_question_for_a_stateless_caller(gateway: Gateway) -> None:
    async with stateless(gateway, URL) as caller:
        asked = await caller.call("needs_url", {"url": GOOD})
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"]["url-0"]["params"]["url"] == GOOD
        assert "elicitationId" not in asked["inputRequests"]["url-0"]["params"]


async def test_completion_of_a_url_elicitation_is_sent_to_its_caller_only(gateway: Gateway) -> None:
    async with session(gateway, URL, listen=True) as caller, session(gateway, URL, listen=True) as other:
        await refused(caller.call("needs_url", {"url": GOOD, "id": "one"}))
        await other.call("needs_url", {"done": True, "id": "one"})
        await caller.call("needs_url", {"done": True, "id": "never-given"})
        await caller.call("needs_url", {"done": True, "id": "one"})
        assert await caller.wait_for_message(OVER) == {"elicitationId": "one"}
        await caller.call("needs_url", {"done": True, "id": "one"})
        assert len(caller.messages_of(OVER)) == 1
        assert other.messages_of(OVER) == []


async def test_a_flood_of_forms_is_refused_with_a_reason() -> None:
    settings = config(limits={"pending_questions_per_server": 3}, scope={"helper_tools": "always"})
    async with running_gateway(settings) as running, session(running) as caller:
        errors = await caller.call_json("ask_forms", {"count": 4})
        assert errors == [{"code": -32603, "message": "Too many questions of odd wait for an answer already."}]


async def test_an_unanswered_form_expires_as_configured() -> None:
    form: dict[str, Any] = {"elicitation": {}}

    async def never(_message: Any) -> None:
        return None

    async with running_gateway(config(limits={"question_timeout": "1s"})) as running:
        async with session(running, form, listen=True) as caller:
            caller.answers["elicitation/create"] = never
            expected_text = "The question was not answered in time."
            assert [error["message"] for error in await caller.call_json("ask_forms", {"count": 1})] == [expected_text]
            assert text_of(await run(caller, "ask_forms", {"count": 1})) == [None]
            assert len(caller.asked) == 2


# Inside tasks


async def run(caller: WireClient, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of a call that runs as a task."""
    made = await caller.call(tool, arguments, task={"ttl": 60_000})
    return await caller.ask("tasks/result", {"taskId": made["task"]["taskId"]})


def text_of(result: dict[str, Any]) -> Any:
    return json.loads(result["content"][0]["text"])


async def test_a_valid_url_in_a_task_reaches_the_caller(gateway: Gateway) -> None:
    async with session(gateway, URL, listen=True) as caller:
        caller.answers["elicitation/create"] = {"action": "accept"}
        assert text_of(await run(caller, "open_url", {"url": GOOD})) == {"action": "accept"}
        params = caller.asked[0]["params"]
        assert (params["mode"], params["url"], params["elicitationId"]) == ("url", GOOD, "odd-1")


@pytest.mark.parametrize(("url", "why"), BAD[:8])
async def test_an_unsafe_url_in_a_task_is_never_shown(gateway: Gateway, url: str, why: str) -> None:
    async with session(gateway, URL, listen=True) as caller:
        error = text_of(await run(caller, "open_url", {"url": url}))["error"]
        assert (error["code"], error["data"]["error_type"]) == (-32602, "unsafe_url")
        assert why in error["message"]
        assert not url or url not in error["message"]
        assert caller.asked == []
        problem = await refused(run(caller, "needs_url", {"url": url}))
        assert problem.kind == "unsafe_url"
        assert why in problem.message
        assert url not in json.dumps(problem.error)


async def test_url_elicitations_of_tasks_and_plain_calls_share_a_limit() -> None:
    settings = config(limits={"url_elicitations_per_minute": 3})
    async with running_gateway(settings) as running, session(running, URL, listen=True) as caller:
        caller.answers["elicitation/create"] = {"action": "accept"}
        assert await caller.call_json("open_url", {"url": GOOD}) == {"action": "accept"}
        answers = [text_of(await run(caller, "open_url", {"url": GOOD})) for _ in range(3)]
        assert answers[:2] == [{"action": "accept"}] * 2
        assert answers[2]["error"]["data"]["error_type"] == "rate_limited"
        problem = await refused(run(caller, "needs_url", {"url": GOOD}))
        assert problem.kind == "rate_limited"
        await running.stop()
        assert written_down(running).count("shown example.test") == 3


async def test_a_url_elicitation_error_ends_a_task_or_becomes_its_question(gateway: Gateway) -> None:
    async with session(gateway, URL) as caller:
        problem = await refused(run(caller, "needs_url", {"url": GOOD}))
        assert (problem.code, problem.error["data"]["elicitations"][0]["url"]) == (-32042, GOOD)


@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_task_of_a_stateless_caller_elicits_the_url_and_repeats_the_call(action: str) -> None:
    settings = config(governance={"force_required": ["needs_url"]})
    able = {**URL, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    async with running_gateway(settings) as running, stateless(running, able) as caller:
        made = await caller.call("needs_url", {"url": GOOD, "once": True})
        task = await until_status(caller, made["taskId"], "input_required")
        ((key, asked),) = task["inputRequests"].items()
        assert asked["params"]["url"] == GOOD
        assert "elicitationId" not in asked["params"]
        update = {"taskId": made["taskId"], "inputResponses": {key: {"action": action}}}
        await caller.ask("tasks/update", update)
        if action == "accept":
            done = await until_status(caller, made["taskId"], "completed")
            assert done["result"]["content"][0]["text"] == "signed in"
        else:
            ended = await until_status(caller, made["taskId"], "failed")
            # The server was called once and returned input_required.
            assert (ended["error"]["code"], ended["error"]["data"]["executed"]) == (-32602, "maybe")


async def until_status(caller: WireClient, task_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            task = await caller.ask("tasks/get", {"taskId": task_id})
            if task["status"] == status:
                return task
            assert task["status"] in ("working", "input_required"), task
            await asyncio.sleep(0.05)


async def test_completion_of_a_url_elicitation_is_sent_during_a_task() -> None:
    """Over HTTP the notification arrives on the stream of the task's own call."""
    port = free_port()
    settings = {"schema": 1, "servers": {"old": {"url": f"http://127.0.0.1:{port}/mcp"}}}
    async with running_program([sys.executable, MIRROR, "stateful", str(port)], listening(port)):
        async with (
            running_gateway(settings) as running,
            session(running, URL, listen=True) as caller,
            session(running, URL, listen=True) as other,
        ):
            problem = await refused(run(caller, "old__sign", {"value": "seven"}))
            assert problem.code == -32042
            await run(other, "old__signed", {"value": "seven"})
            assert await caller.wait_for_message(OVER) == {"elicitationId": "seven"}
            assert other.messages_of(OVER) == []


async def test_a_url_elicitation_of_a_task_expires_as_in_a_call() -> None:
    settings = config(limits={"url_elicitation_expiry": "1s"})
    async with running_gateway(settings) as running, session(running, URL, listen=True) as caller:

        async def never(_message: Any) -> None:
            return None

        caller.answers["elicitation/create"] = never
        assert text_of(await run(caller, "open_url", {"url": GOOD})) == {"action": "cancel"}


async def test_a_flood_of_url_elicitations_is_refused_and_logged() -> None:
    async with running_gateway(config()) as running, session(running, URL) as caller:
        caller.answers["elicitation/create"] = {"action": "accept"}
        answers = [await caller.call_json("open_url", {"url": GOOD}) for _ in range(12)]
        assert [answer for answer in answers[:10] if answer != {"action": "accept"}] == []
        for answer in answers[10:]:
            error = answer["error"]
            assert error["data"]["error_type"] == "rate_limited"
        assert len(caller.asked) == 10
        await running.stop()
        rows = written_down(running)
        assert rows.count("shown example.test") == 10
        assert rows.count("rate_limited") == 2


def written_down(gateway: Gateway) -> list[str]:
    with sqlite3.connect(gateway.state / "taskgate.db") as store:
        tables = [name for (name,) in store.execute("select name from sqlite_master where name like 'audit%'")]
        table = next(name for name in tables if store.execute(f"select count(*) from {name}").fetchone()[0])
        rows = [
            dict(zip((c[0] for c in cursor.description), row, strict=True))
            for cursor in [store.execute(f"select * from {table}")]
            for row in cursor
        ]
    texts = [json.dumps({k: v.decode() if isinstance(v, bytes) else v for k, v in row.items()}) for row in rows]
    return [
        found.group(1)
        for text in texts
        if "url_elicitation" in text and (found := re.search(r'outcome\\?": ?\\?"([^"\\]*)', text))
    ]


async def test_loopback_is_allowed_where_configured() -> None:
    settings = config(limits={"url_elicitation_loopback": True})
    async with running_gateway(settings) as running, session(running, URL) as caller:
        caller.answers["elicitation/create"] = {"action": "accept"}
        assert await caller.call_json("open_url", {"url": "http://127.0.0.1:9/x"}) == {"action": "accept"}
        assert "error" in await caller.call_json("open_url", {"url": "http://192.0.2.1/x"})


async def test_an_unanswered_url_elicitation_expires() -> None:
    settings = config(limits={"url_elicitation_expiry": "1s"})
    async with running_gateway(settings) as running, session(running, URL) as caller:
        withdrawn = asyncio.Event()

        async def never(_message: Any) -> None:
            return None

        caller.answers["elicitation/create"] = never
        error = (await caller.call_json("open_url", {"url": GOOD}))["error"]
        assert error["code"] == -32603
        assert caller.messages_of("notifications/cancelled")
        assert not withdrawn.is_set()


# The page that a person opens


async def logged_in(http: httpx2.AsyncClient, gateway: Gateway, token: str, next_page: str | None = None) -> str:
    """Log in by the form; where that leads."""
    page = (await http.get(f"{gateway.base}/login", params={"next": next_page} if next_page else {})).text
    sent = {"form_token": form_token(page), "token": token}
    back = re.search(r'name="next" value="([^"]*)"', page)
    if back is not None:
        sent["next"] = html.unescape(back.group(1))
    reply = await http.post(f"{gateway.base}/login", data=sent)
    assert reply.status_code == 303, reply.text
    return str(reply.headers["location"])


def form_token(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None, page
    return found.group(1)


async def test_an_elicitation_page_is_bound_to_its_user_and_notifies_the_caller(gateway: Gateway) -> None:
    async with session(gateway, URL, token=TOKENS["ann"], listen=True) as caller:
        listed = [{"type": "url", "name": "folder", "description": "Which folder <b>may</b> I read?"}]
        made = (await caller.ask("elicitation/create", {"elicitations": listed}))["elicitations"][0]
        assert (made["type"], made["name"]) == ("url", "folder")
        path = "/elicitations/" + made["url"].rsplit("/", 1)[1]
        async with httpx2.AsyncClient() as http:
            assert (await http.get(gateway.base + path)).headers["location"] == f"/login?next={path}"
            await logged_in(http, gateway, TOKENS["bob"])
            assert (await http.get(gateway.base + path)).status_code == 404
        async with httpx2.AsyncClient() as http:
            await logged_in(http, gateway, TOKENS["ann"])
            page = await http.get(gateway.base + path)
            assert page.status_code == 200
            assert "bare of ann" in page.text
            assert "<b>may</b>" not in page.text
            forged = await http.post(f"{gateway.base}{path}/answer", data={"value": "x"})
            assert forged.status_code == 403
            sent = {"form_token": form_token(page.text), "value": "/home/ann/papers"}
            assert (await http.post(f"{gateway.base}{path}/answer", data=sent)).status_code == 200
            assert (await http.post(f"{gateway.base}{path}/answer", data=sent)).status_code == 404
        over = await caller.wait_for_message(OVER)
        assert over["elicitations"] == [{"type": "url", "name": "folder", "value": "/home/ann/papers"}]


async def test_a_user_without_roles_opens_only_their_own_elicitation_page(gateway: Gateway) -> None:
    async with session(gateway, URL, token=TOKENS["cleo"], listen=True) as caller, httpx2.AsyncClient() as http:
        listed = [{"type": "url", "name": "folder", "description": "Which folder?"}]
        made = (await caller.ask("elicitation/create", {"elicitations": listed}))["elicitations"][0]
        path = "/elicitations/" + made["url"].rsplit("/", 1)[1]
        to_login = (await http.get(gateway.base + path)).headers["location"]
        assert to_login == f"/login?next={path}"
        assert await logged_in(http, gateway, TOKENS["cleo"], path) == path
        for elsewhere in ("/approvals", "/grants", "/definitions", "/waterfall"):
            refused_page = await http.get(gateway.base + elsewhere)
            assert refused_page.status_code == 403
        assert (await http.get(f"{gateway.base}/api/approvals")).status_code == 403
        bearer = {"Authorization": f"Bearer {TOKENS['cleo']}"}
        assert (await http.get(f"{gateway.base}/api/approvals", headers=bearer)).status_code == 403
        page = (await http.get(gateway.base + path)).text
        assert "Which folder?" in page
        assert "/grants" not in page
        sent = {"form_token": form_token(page), "value": "/home/cleo"}
        assert (await http.post(f"{gateway.base}{path}/answer", data=sent)).status_code == 200
        assert (await caller.wait_for_message(OVER))["elicitations"][0]["value"] == "/home/cleo"


@pytest.mark.parametrize(
    "target", ["https://evil.test/", "//evil.test/", "/\\evil.test", "javascript:alert(1)", "/login"]
)
async def test_login_redirects_only_to_the_elicitation_page(gateway: Gateway, target: str) -> None:
    async with httpx2.AsyncClient() as http:
        assert await logged_in(http, gateway, TOKENS["ann"], target) == "/overview"
        form = form_token((await http.get(f"{gateway.base}/login")).text)
        forged = {"form_token": form, "token": TOKENS["ann"], "next": target}
        assert (await http.post(f"{gateway.base}/login", data=forged)).headers["location"] == "/overview"


async def test_an_elicitation_list_becomes_pages_and_the_answers_reach_the_server(gateway: Gateway) -> None:
    listed = [{"type": "url", "name": "folder", "description": "Which folder?"}]
    async with session(gateway, URL, token=TOKENS["cleo"]) as caller, httpx2.AsyncClient() as http:
        (made,) = (await caller.call_json("list_form", {"list": listed}))["elicitations"]
        assert caller.asked == []
        assert (made["type"], made["name"]) == ("url", "folder")
        assert made["url"].startswith(f"{gateway.base}/elicitations/")
        await logged_in(http, gateway, TOKENS["cleo"])
        page = (await http.get(made["url"])).text
        assert "odd" in page
        sent = {"form_token": form_token(page), "value": "/srv"}
        assert (await http.post(f"{made['url']}/answer", data=sent)).status_code == 200
        received = [{"type": "url", "name": "folder", "value": "/srv"}]
        async with asyncio.timeout(TIMEOUT_S):
            while not [m for m in await caller.call_json("seen") if m.get("method") == OVER]:
                await asyncio.sleep(0.02)
        (over,) = [m["params"] for m in await caller.call_json("seen") if m.get("method") == OVER]
        assert (over["elicitationId"], over["elicitations"]) == (made["elicitationId"], received)


@pytest.mark.parametrize(
    ("listed", "received"),
    [
        ([], '"elicitations" must be an array of 1 to 10 objects.'),
        ([{"type": "form", "name": "x"}], 'Each elicitation needs "type": "url", "name" and "description".'),
    ],
)
async def test_an_invalid_elicitation_list_is_refused_with_a_reason(
    gateway: Gateway, listed: list[Any], received: str
) -> None:
    async with session(gateway, URL, token=TOKENS["cleo"]) as caller:
        error = (await caller.call_json("list_form", {"list": listed}))["error"]
        assert (error["code"], error["message"]) == (-32602, received)


async def test_elicitation_lists_are_refused_without_vendor_methods() -> None:
    async with running_gateway(config()) as running, session(running, URL, listen=True) as caller:
        listed = [{"type": "url", "name": "folder", "description": "Which folder?"}]
        for error in (
            (await caller.call_json("list_form", {"list": listed}))["error"],
            text_of(await run(caller, "list_form", {"list": listed}))["error"],
        ):
            expected_text = "elicitation/create with a list of elicitations is not answered here."
            assert (error["code"], error["message"]) == (-32602, expected_text)
        assert caller.asked == []


@pytest.mark.real_processes
async def test_the_elicitation_page_shows_the_server_and_the_target_of_the_link(gateway: Gateway) -> None:
    async with session(gateway, {}, token=TOKENS["ann"]) as caller:
        call = asyncio.create_task(caller.call_json("open_url", {"url": "https://sign.example.test:8443/in"}))
        waiting: list[Any] = []
        async with asyncio.timeout(TIMEOUT_S):
            while not waiting:
                result = await caller.call("get_elicitations", {})
                waiting = json.loads(result["content"][0]["text"])["elicitations"]
        path = f"/elicitations/{waiting[0]['request_id']}"
        assert waiting[0]["page"] == gateway.base + path
        bearer = {"Authorization": f"Bearer {(gateway.state / 'operator-token').read_text().strip()}"}
        async with httpx2.AsyncClient(headers=bearer, timeout=TIMEOUT_S) as http:
            rows = (await http.get(f"{gateway.base}/api/questions")).json()
            assert [row["page"] for row in rows if row["request_id"] == waiting[0]["request_id"]] == [
                gateway.base + path
            ]
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
            await logged_in(http, gateway, TOKENS["bob"])
            assert (await http.get(gateway.base + path)).status_code == 404
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
            await logged_in(http, gateway, TOKENS["ann"])
            page = (await http.get(gateway.base + path)).text
            assert "Server odd" in page
            assert "sign.example.test" in page
            assert "The URL has the port 8443." in page
            sent = {"form_token": form_token(page)}
            assert (await http.post(f"{gateway.base}{path}/answer", data=sent)).status_code == 200
        assert await call == {"action": "accept"}
