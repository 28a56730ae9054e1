"""Tables of the console: sorted and paged by the address, broken servers first; and names found from the field in the header."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from tests.console.test_console_pages import HOSTILE, known, operator
from tests.console.test_console_routes_and_streams import TASKS, TOKENS, bank_server, bearer
from tests.virtual_time import Call, Gateway, Upstream, virtual_time


def slow_server(seconds: float) -> Upstream:
    made = Upstream("2025")

    @made.tool("work")
    async def work(call: Call) -> str:
        await call.sleep(seconds)
        return "done"

    return made


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="/servers/[^"]*">([^<]*)</a>', page)


@virtual_time
async def test_broken_servers_are_listed_first() -> None:
    """The server that is down has the last name, so the order cannot come from names."""
    servers = {"alpha": slow_server(1), "beta": slow_server(2), "zulu": slow_server(1)}
    async with Gateway(TOKENS, servers) as gate:
        boss = await operator(gate)
        assert names(await boss.text("/servers")) == ["alpha", "beta", "zulu"]
        await servers["zulu"].stop()
        await gate.advance(5)
        page = await boss.text("/servers")
        assert names(page) == ["zulu", "alpha", "beta"]
        assert "1 not connected" in page


@virtual_time
async def test_servers_are_sorted_by_the_column_that_the_address_names() -> None:
    servers = {"alpha": slow_server(1), "beta": slow_server(2), "idle": slow_server(1)}
    async with Gateway(TOKENS, servers) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        for server in ("alpha", "beta"):
            await caller.call(f"{server}__work", {})
        boss = await operator(gate)
        slowest = await boss.text("/servers?sort=-p99")
        assert names(slowest) == ["beta", "alpha", "idle"], "servers without calls are last"
        assert 'aria-sort="descending"' in slowest
        assert 'href="/servers?sort=p99"' in slowest, "a second click sorts in the other direction"
        assert names(await boss.text("/servers?sort=p99")) == ["alpha", "beta", "idle"]
        assert names(await boss.text("/servers?sort=-name")) == ["idle", "beta", "alpha"]
        assert names(await boss.text(f"/servers?sort={quote(HOSTILE)}")) == ["alpha", "beta", "idle"]


@virtual_time
async def test_many_servers_are_shown_in_pages() -> None:
    servers: dict[str, Any] = {f"s{number:03}": Upstream("2025") for number in range(120)}
    async with Gateway(TOKENS, servers) as gate:
        boss = await operator(gate)
        first = await boss.text("/servers")
        assert len(names(first)) == 50
        assert "1 to 50 of 120 servers" in first
        assert names(await boss.text("/servers?page=3")) == [f"s{number:03}" for number in range(100, 120)]
        assert names(await boss.text("/servers?page=9999999")) == names(first)
        assert names(await boss.text("/servers?page=4")) == names(await boss.text("/servers?page=3"))
        assert names(await boss.text("/servers?text=S11")) == [f"s{number}" for number in range(110, 120)]
        assert "No matching servers" in await boss.text("/servers?text=nothing")


@virtual_time
async def test_names_are_found_from_the_header_and_only_those_that_a_person_may_open() -> None:
    async with Gateway(TOKENS, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        task = (await caller.call("bank__pay", {}, task={"ttl": 60000})).result["task"]["taskId"]
        await gate.advance(1)

        async def found(text: str, who: str = "") -> list[tuple[str, str]]:
            path = f"/api/v1/find?text={quote(text)}"
            reply = await (gate.http("GET", path, headers=bearer(who)).done() if who else gate.operator("GET", path))
            return [(row["kind"], row["address"]) for row in reply.json()]

        assert ("server", "/servers/bank") in await found("BAN")
        assert ("tool", "/tool?server=bank&tool=pay") in await found("pay")
        assert ("caller", "/caller?name=agent") in await found("agen")
        assert ("page", "/tasks") in await found("tas")
        assert await found(task) == [("task", f"/tasks/{task}")]
        assert await found(task, "agent") == [("task", f"/tasks/{task}")]
        assert await found(task, "other") == [], "a task of another caller is not found"
        assert {kind for kind, _ in await found("a", "other")} == {"page"}, "names of others need the permission see"
        assert {kind for kind, _ in await found("")} == {"page"}
        boss = await operator(gate)
        page = await boss.text(f"/find?text={quote('ban')}")
        assert 'href="/servers/bank"' in page
        hostile = await boss.text(f"/find?text={quote(HOSTILE)}")
        assert "<script>alert" not in hostile
        assert "\u202e" not in hostile
        assert "/servers" not in (await (await known(gate, "agent")).text("/find?text=server"))
