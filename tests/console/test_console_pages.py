"""The console's pages about tasks: found, shown with whose they are, followed and cancelled, with hostile texts kept harmless."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlencode

from tests.benchmarks.store import a_call
from tests.console.test_console_routes_and_streams import TASKS, TOKENS, bank_server, bearer
from tests.harness.unchecked import just_go
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.errors import Executed
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.state import TaskState
from taskgate.ports.store import Store
from taskgate.ports.store_answers import Change, Intended
from taskgate.store.operations.tasks import Accept, Advance, Intend

HOSTILE = "</pre><script>alert(1)</script>\u202egnp.exe\x1b[31m&lt;"
GOVERNED: dict[str, Any] = {**TOKENS, "approval": {"default": {"redact_fields": ["pin"]}}}


class Person:
    """A browser session: a login by token, its cookie, and the token of its forms."""

    def __init__(self, gate: Gateway, cookie: str = "") -> None:
        self.gate, self.cookie = gate, cookie

    async def log_in(self, token: str) -> Person:
        page = (await self.gate.http("GET", "/login").done()).body.decode()
        reply = await self.post("/login", {"token": token}, form_token(page))
        self.cookie = reply.headers["set-cookie"].split(";")[0]
        return self

    async def get(self, path: str) -> Any:
        return await self.gate.http("GET", path, headers={"cookie": self.cookie}).done()

    async def text(self, path: str, status: int = 200) -> str:
        reply = await self.get(path)
        assert reply.status == status, (path, reply.status, reply.body[:300])
        return str(reply.body.decode())

    async def post(self, path: str, values: dict[str, str], token: str | None = None) -> Any:
        sent = urlencode({**values, **({"form_token": token} if token is not None else {})}).encode()
        headers = {"content-type": "application/x-www-form-urlencoded", "cookie": self.cookie}
        return await self.gate.http("POST", path, sent, headers).done()


def form_token(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


async def operator(gate: Gateway) -> Person:
    return await Person(gate).log_in(gate.operator_token)


async def known(gate: Gateway, name: str) -> Person:
    return await Person(gate).log_in(f"{name}-token-0123456789abcdef")


def odd_server() -> Upstream:
    odd = Upstream("2025")

    @odd.tool("speak")
    async def speak(call: Call) -> str:
        await call.sleep(1)
        return HOSTILE + "x" * 500_000

    return odd


@virtual_time
async def test_an_operator_sees_and_cancels_all_tasks_and_a_caller_only_its_own() -> None:
    async with Gateway(GOVERNED, {"bank": bank_server()}) as gate:
        callers = {}
        for name in ("agent", "other"):
            caller = await gate.caller("2025", token=f"{name}-token-0123456789abcdef", capabilities=TASKS)
            reply = await caller.call("bank__pay", {"pin": "1234", "to": name}, task={"ttl": 60000})
            callers[name] = reply.result["task"]["taskId"]
        await gate.advance(1)
        boss, agent = await operator(gate), await known(gate, "agent")
        for page in ("/overview", "/tasks", "/tasks?state=open&server=bank&tool=pay&since=1h&scope=default"):
            seen = await boss.text(page)
            assert all(task_id in seen for task_id in callers.values())
            own = await agent.text(page)
            assert callers["agent"] in own
            assert callers["other"] not in own
        assert "tasks list --state open --server bank --tool pay --in-scope default --since 1h" in seen
        for query in ("state=completed", "server=none", "tool=zzz", "scope=x", "until=1h", "text=zzz", "caller=ann"):
            assert '<div class="empty">' in await boss.text(f"/tasks?{query}")
        assert callers["other"] not in await boss.text("/tasks?caller=agent")
        assert '<div class="empty">' in await agent.text("/tasks?caller=other")
        assert "since must be like" in await boss.text("/tasks?since=yesterday")
        shown = await boss.text(f"/tasks/{callers['other']}")
        assert "1234" not in shown
        assert "Sent to bank" in shown
        assert "other" in shown
        await agent.text(f"/tasks/{callers['other']}", 404)
        token = form_token(shown)
        foreign = await agent.post(f"/tasks/{callers['other']}/cancel", {}, form_token(await agent.text("/tasks")))
        assert foreign.status in (403, 404)
        assert (await boss.post(f"/tasks/{callers['other']}/cancel", {"reason": "enough"})).status == 403
        done = await boss.post(f"/tasks/{callers['other']}/cancel", {"reason": "enough"}, token)
        assert (done.status, done.headers["location"]) == (303, f"/tasks/{callers['other']}")
        ended = await boss.text(f"/tasks/{callers['other']}")
        assert "Finished: cancelled" in ended
        assert "enough" in ended
        again = await boss.post(f"/tasks/{callers['other']}/cancel", {}, token)
        assert again.status == 409
        assert (
            await agent.post(f"/tasks/{callers['agent']}/cancel", {}, form_token(await agent.text("/tasks")))
        ).status == 303


@virtual_time
async def test_hostile_texts_are_escaped_and_long_ones_are_collapsed() -> None:
    async with Gateway(GOVERNED, {"odd": odd_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        arguments = {HOSTILE: HOSTILE, "many": {f"k{number}": HOSTILE for number in range(5_000)}}
        reply = await caller.call("odd__speak", arguments, task={"ttl": 60000})
        task_id = reply.result["task"]["taskId"]
        await gate.advance(5)
        boss = await operator(gate)
        for path in (
            f"/tasks/{task_id}",
            f"/tasks/{task_id}?full=1",
            "/tasks",
            "/overview",
            f"/tasks?text={quote(HOSTILE)}",
        ):
            page = await boss.text(path)
            assert "<script>alert" not in page
            assert "\u202e" not in page
            assert "\x1b" not in page
            assert len(page) < (60_000 if "full" not in path else 3_000_000)
        assert "more characters" in await boss.text(f"/tasks/{task_id}")
        assert "x" * 400_000 in await boss.text(f"/tasks/{task_id}?full=1")
        for gone in ("/tasks/tg_00000000000000000000000000", f"/tasks/{quote('<b>')}", "/approvals/ap_x", "/nowhere"):
            await boss.text(gone, 404)


@virtual_time
async def test_the_overview_is_the_start_page_and_shows_the_state_of_servers() -> None:
    async with Gateway(GOVERNED, {"bank": bank_server(), "odd": odd_server()}) as gate:
        boss = await operator(gate)
        assert (await boss.get("/")).headers["location"] == "/overview"
        assert 'href="/try?like=fast"' in await boss.text("/overview")
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        await caller.call("odd__speak", {})
        await caller.call("bank__pay", {}, task={"ttl": 60000})
        await gate.advance(1)
        now = (await gate.operator("GET", "/api/v1/now")).json()
        rows = {row["server"]: row for row in now["servers"]}
        assert (rows["odd"]["calls"] >= 1, rows["odd"]["p50_ms"] >= 1000, rows["odd"]["errors"]) == (True, True, 0)
        assert [task["tool"] for task in now["open"]] == ["bank__pay"]
        own = (await gate.http("GET", "/api/v1/now", headers=bearer("other")).done()).json()
        assert own == {"open": [], "failed": [], "servers": [], "has_tasks": False}
        await gate.advance(15)
        page = await boss.text("/overview")
        assert 'href="/try?like=fast"' not in page
        assert 'class="spark' in page
        assert "taskgate history" in page
        assert "/api/v1/overview" in page
        assert (await boss.get("/now")).headers["location"] == "/overview"


@virtual_time
async def test_every_live_page_has_an_element_that_is_updated() -> None:
    """A change makes the script fetch the page again; only parts with a name that are marked for it are replaced."""
    config = {**TOKENS, "governance": {"rules": [{"match": "pay", "action": "approve"}]}}
    async with Gateway(config, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        held = (await caller.call("bank__pay", {}, task={"ttl": 60000})).result["task"]["taskId"]
        (approval,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        more = ("/servers/bank", "/scopes/default", f"/tasks/{held}", f"/approvals/{approval['id']}")
        boss, listening = await operator(gate), 0
        pages = gate.life.dashboard._pages.table.pages
        for path in (*(route.path for route in pages.values()), *more):
            page = await boss.text(path)
            if not re.search(r'data-topics="[^"]+"', page):
                continue
            listening += 1
            main = page.partition("<main")[2]
            parts = [tag for tag in re.findall(r"<[^>]*\bdata-live\b[^>]*>", main) if " id=" in tag]
            assert parts, path
        assert listening >= 10


SENT = "sent"
COLOURS = {
    "--run": {"queued", "running"},
    "--wait": {"awaiting_approval", "input_required"},
    "--yes": {"approved", "completed"},
    "--no": {"failed", "rejected", "expired", "outcome_unknown"},
    "--soft": {"cancelled"},
}


async def in_every_state(store: Store) -> dict[str, str]:
    """Ids of a task in each state."""
    asked, error = h.ApprovalRequested("ap_x", 1 << 50), b"{}"
    ways: dict[TaskState, tuple[h.TransitionEvent | str, ...]] = {
        TaskState.QUEUED: (),
        TaskState.AWAITING_APPROVAL: (asked,),
        TaskState.APPROVED: (asked, h.ApprovalGranted(1 << 50)),
        TaskState.REJECTED: (asked, h.ApprovalDenied(error, "no")),
        TaskState.EXPIRED: (asked, h.ApprovalExpired(error)),
        TaskState.RUNNING: (SENT,),
        TaskState.INPUT_REQUIRED: (SENT, h.InputRequested(("k",))),
        TaskState.COMPLETED: (SENT, h.ResultReceived(b'{"content":[]}')),
        TaskState.FAILED: (SENT, h.ErrorReceived(error, "broken", Executed.YES)),
        TaskState.OUTCOME_UNKNOWN: (SENT, h.ContactLost(error, "silent")),
        TaskState.CANCELLED: (h.Cancelled(),),
    }
    assert set(ways) == set(TaskState)
    made = {}
    for state, way in ways.items():
        created = await store.do(Accept(a_call("agent")))
        assert isinstance(created, Change)
        for event in way:
            if isinstance(event, str):
                moved: object = await store.do(
                    Intend(created.task.id, byte_hash="b", upstream="reports", recheck=just_go)
                )
            else:
                moved = await store.do(Advance(created.task.id, event))
            assert isinstance(moved, (Change, Intended)), (state, moved)
        made[state.value] = created.task.id
    return made


@virtual_time
async def test_the_badge_of_each_state_has_its_text_and_colour() -> None:
    async with Gateway(GOVERNED, {}) as gate:
        made = await in_every_state(gate.life.app.gateway.console.calls.tasks.store)
        boss = await operator(gate)
        listed = await boss.text("/tasks")
        (style,) = re.findall(r'href="(/static/style[^"]+)"', listed)
        sheet = (await gate.http("GET", style).done()).body.decode()
        for state, task_id in made.items():
            word = state.replace("_", " ")
            (row,) = re.findall(rf'<tr id="(?:task|row)-{task_id}".*?</tr>', listed, re.DOTALL)
            for shown in (row, await boss.text(f"/tasks/{task_id}")):
                badge, *_ = re.findall(r'<span[^>]*class="state ([^"]*)"[^>]*>([^<]*)</span>', shown)
                assert badge == (state, word)
            assert colour_of(sheet, state) == next(name for name, states in COLOURS.items() if state in states)
        light, dark = sheet.split("prefers-color-scheme: dark", 1)
        for name in COLOURS:
            tones = [re.findall(rf"{name}: (#[0-9a-f]{{6}})", part)[0] for part in (light, dark)]
            assert tones[0] != tones[1]
        assert len({re.findall(rf"{name}: (#[0-9a-f]{{6}})", light)[0] for name in COLOURS}) == len(COLOURS)


def colour_of(sheet: str, state: str) -> str:
    """The last matching rule applies; the badge itself has a default rule."""
    found = "?"
    for selectors, rules in re.findall(r"([^{}]+)\{([^{}]*)\}", re.sub(r"/\*.*?\*/", "", sheet)):
        fits = {one.strip() for one in selectors.split(",")} & {".state", f".state.{state}"}
        colour = re.search(r"(?:^|;|\s)color: var\((--[a-z]+)\)", rules)
        if fits and colour is not None:
            found = colour[1]
    return found
