"""The limits on the console's pages, counted instead of timed: bytes of each page, and how its cost grows with what is there.

Times on a real machine, SQLite and PostgreSQL, are measured by `make bench-console`.
"""

from __future__ import annotations

import gzip
import re
from functools import partial
from typing import Any

from tests.benchmarks.gate import calls
from tests.benchmarks.store import a_call
from tests.console.test_console_inbox import AGENT, HELD, shop
from tests.console.test_console_pages import form_token, known, operator
from tests.console.test_console_routes_and_streams import TASKS, TOKENS
from tests.virtual_time import Gateway, virtual_time

from taskgate.ports.store_answers import Change
from taskgate.store.operations.tasks import Accept

MAX_BYTES = 80_000
PAGES: tuple[str, ...] = (
    "/overview",
    "/overview?range=week",
    "/tools",
    "/tool?server=shop&tool=look",
    "/callers",
    "/caller?name=agent",
    "/find?text=a",
    "/tasks",
    "/inbox",
    "/servers",
    "/servers/shop",
    "/scopes",
    "/scopes/default",
    "/rules",
    "/usage",
)
PAGES += (
    "/waterfall",
    "/audit",
    "/system",
    "/try",
    "/try?tool=shop__look",
    "/approvals",
    "/grants",
    "/definitions",
    "/find?q=shop",
)


async def fill(gate: Gateway, count: int) -> None:
    store = gate.life.app.gateway.console.calls.tasks.store
    for number in range(count):
        assert isinstance(await store.do(Accept(a_call(f"caller-{number % 50}"))), Change)


@virtual_time
async def test_every_page_is_below_80_kb_with_its_script_and_style() -> None:
    async with Gateway(HELD, {"shop": shop()}) as gate:
        await fill(gate, 300)
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        for number in range(20):
            await caller.call("shop__look", {"at": "x" * 1_000, "n": number}, task={"ttl": 600_000})
        for _ in range(300):
            await caller.call("shop__nothing", {})
        await gate.advance(15)
        boss = await operator(gate)
        first = await boss.text("/overview")
        accept = {"accept-encoding": "gzip, br"}
        assets = 0
        for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', first):
            reply = await gate.http("GET", address, headers=accept).done()
            plain = await gate.http("GET", address).done()
            assert (reply.headers["content-encoding"], reply.headers["vary"]) == ("gzip", "accept-encoding")
            assert gzip.decompress(reply.body) == plain.body
            assets += len(reply.body)
        assert 5_000 < assets < 20_000
        for path in PAGES:
            size = len((await boss.text(path)).encode())
            assert size + assets <= MAX_BYTES, (path, size, assets)
        assert '<p class="more">' in await boss.text("/inbox")


@virtual_time
async def test_the_cost_of_lists_does_not_grow_with_the_number_of_tasks() -> None:
    """Functions called for a page; what the database does for it is measured by the benchmark."""
    async with Gateway(TOKENS, {}) as gate:
        boss = await operator(gate)
        found: list[dict[str, float]] = []
        for more in (100, 900):
            await fill(gate, more)
            found.append({path: await calls(partial(boss.text, path), 2) for path in ("/overview", "/tasks", "/inbox")})
        few, many = found
        for path in few:
            assert many[path] <= few[path] * 1.3, (path, few, many)


@virtual_time
async def test_the_first_of_two_concurrent_decisions_counts_and_the_second_gets_an_error() -> None:
    tokens = [{**token, "roles": ["approver"]} if token["id"] == "other" else token for token in TOKENS["tokens"]]
    async with Gateway({**HELD, "tokens": tokens, "tasks": {"execute_on": "approval"}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        await caller.call("shop__wipe", {}, task={"ttl": 600_000})
        await gate.advance(1)
        ann, ben = await known(gate, "ann"), await known(gate, "other")
        (approval,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        page = f"/approvals/{approval['id']}"
        tokens_of = [form_token(await person.text(page)) for person in (ann, ben)]
        values = {"digest": approval["arguments_digest"]}
        yes = await ann.post(f"{page}/approve", values, tokens_of[0])
        no = await ben.post(f"{page}/deny", {**values, "reason": "no"}, tokens_of[1])
        assert yes.status == 303
        assert no.status == 409
        await gate.advance(1)
        shown = await ben.text(page)
        assert "ann" in shown
        (task,) = (await gate.operator("GET", "/api/v1/tasks?tool=wipe")).json()["tasks"]
        assert task["state"] == "completed"


@virtual_time
async def test_links_to_deleted_objects_show_a_page_with_a_next_step() -> None:
    async with Gateway(HELD, {"shop": shop()}) as gate:
        boss = await operator(gate)
        token = form_token(await boss.text("/inbox"))
        for path in (
            "/tasks/tg_gone",
            "/approvals/gone",
            "/elicitations/gone",
            "/nothing",
        ):
            text = await boss.text(path, 404)
            assert 'id="start" href="/"' in text, path
        posts: dict[str, dict[str, Any]] = {
            "/tasks/tg_gone/cancel": {},
            "/approvals/gone/approve": {"digest": "x"},
            "/inbox/questions/gone": {"action": "accept"},
            "/inbox/together": {"ids": "gone", "digest": "x", "verdict": "approve"},
            "/servers/gone/drain": {},
            "/grants/gone/revoke": {},
        }
        for path, values in posts.items():
            reply = await boss.post(path, values, token)
            assert reply.status in (303, 403, 404, 409), (path, reply.status)
            assert b"Something went wrong" not in reply.body
        for path in ("/try?tool=gone", "/waterfall?trace=999999", "/tasks?after=tg_gone"):
            await boss.text(path)
