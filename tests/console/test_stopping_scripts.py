"""Scripts are stopped on the page Tasks, as far as it is filtered by caller and scope."""

from __future__ import annotations

import hashlib
import re
from html import unescape
from typing import Any

import pytest
from tests.console.test_console_pages import HOSTILE, Person, form_token, known, operator
from tests.scripts.test_running_scripts import shop, started
from tests.scripts.test_stopped_scripts import LONG, running
from tests.virtual_time import Gateway, virtual_time

from taskgate.store.operations.audit import AuditRows

PEOPLE: dict[str, Any] = {"agent": {}, "other": {}, "viewer": {"roles": ["viewer"]}}
CONFIG: dict[str, Any] = {
    "scopes": {name: {"default_servers": ["*"], "scripts": "on"} for name in ("default", "night")},
    "tokens": [
        {"id": name, "sha256": hashlib.sha256(f"{name}-token-0123456789abcdef".encode()).hexdigest(), **more}
        for name, more in PEOPLE.items()
    ],
}
FORM = re.compile(r'<form method="post" action="/tasks/stop-scripts".*?</form>', re.DOTALL)


async def begun(gate: Gateway, name: str, scope: str = "") -> str:
    more: dict[str, Any] = {"scope": scope} if scope else {}
    caller = await gate.caller("2025", token=f"{name}-token-0123456789abcdef", **more)
    return await started(gate, caller, LONG)


async def form_on(person: Person, address: str) -> dict[str, str]:
    """The values of the form, and the label of its button; empty if the page has none."""
    page = await person.text(address)
    if (found := FORM.search(page)) is None:
        return {}
    values = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', found[0]))
    [label] = re.findall(r"<button[^>]*>(.*?)</button>", found[0])
    return {name: unescape(value) for name, value in {**values, "label": label}.items()}


async def submitted(person: Person, form: dict[str, str], **more: str) -> str:
    """The page after the form was sent."""
    values = {name: value for name, value in form.items() if name not in ("label", "form_token")}
    reply = await person.post("/tasks/stop-scripts", {**values, **more}, form["form_token"])
    assert reply.status == 303, reply.body
    return await person.text(reply.headers["location"])


@virtual_time
async def test_form_stops_the_scripts_of_the_filtered_caller_and_scope_or_all() -> None:
    store = shop()
    async with Gateway(CONFIG, {"shop": store}) as gate:
        boss = await operator(gate)
        assert await form_on(boss, "/tasks") == {}
        by_night, by_day = await begun(gate, "agent", "night"), await begun(gate, "agent")
        other, other_by_night = await begun(gate, "other"), await begun(gate, "other", "night")
        await gate.advance(5)
        one = await form_on(boss, "/tasks?caller=agent&scope=night&state=open")
        assert one["label"] == "Stop the scripts of agent in scope night"
        page = await submitted(boss, one, reason=f"sends too much {HOSTILE}")
        assert "1 script stopped." in page
        assert "<script>alert" not in page
        assert await running(gate) == {by_day, other, other_by_night}
        ended = await boss.text(f"/tasks/{by_night}")
        assert "by operator: sends too much" in ended
        assert "2 scripts stopped." in await submitted(boss, await form_on(boss, "/tasks?caller=other"))
        assert await running(gate) == {by_day}
        everything = await form_on(boss, "/tasks")
        assert everything["label"] == "Stop all scripts"
        assert "1 script stopped." in await submitted(boss, everything)
        assert "No matching script was running." in await submitted(boss, everything)
        assert await running(gate) == set()
        await gate.advance(1_200)
        assert store.count("buy") == 4, "each script had made its first call"
        rows = await gate.life.app.store.ask(AuditRows(0, 1_000))
        assert len([row for row in rows if row.entry.event == "script_stopped"]) == 4


@virtual_time
async def test_form_is_offered_only_where_it_stops_what_the_page_shows() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        await begun(gate, "agent")
        await gate.advance(5)
        boss = await operator(gate)
        for address in ("/tasks", "/tasks?state=open", "/tasks?caller=agent", "/tasks?scope=default"):
            assert await form_on(boss, address), address
        query = "taskgate scripts stop --principal agent --scope default"
        assert query in await boss.text("/tasks?caller=agent&scope=default")
        for filtered in ("server=shop", "tool=run_script", "since=1h", "text=agent", "state=completed", "caller=other"):
            assert await form_on(boss, f"/tasks?{filtered}") == {}, filtered


@virtual_time
@pytest.mark.parametrize("name", ["agent", "viewer"])
async def test_people_without_the_permission_to_act_cannot_stop_scripts(name: str) -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        task = await begun(gate, "agent")
        await gate.advance(5)
        person = await known(gate, name)
        assert await form_on(person, "/tasks") == {}
        guard = form_token(await person.text("/tasks"))
        for which in ({"all": "1"}, {"caller": "agent"}):
            assert (await person.post("/tasks/stop-scripts", which, guard)).status == 403
        assert await running(gate) == {task}


@virtual_time
async def test_form_needs_its_token_and_to_say_which_scripts() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        task = await begun(gate, "agent")
        await gate.advance(5)
        boss = await operator(gate)
        guard = (await form_on(boss, "/tasks"))["form_token"]
        for token in (None, "forged"):
            assert (await boss.post("/tasks/stop-scripts", {"all": "1"}, token)).status == 403
        for values in ({}, {"all": "yes"}, {"caller": " "}, {"all": "1", "caller": "agent"}):
            assert (await boss.post("/tasks/stop-scripts", values, guard)).status == 400
        assert await running(gate) == {task}
