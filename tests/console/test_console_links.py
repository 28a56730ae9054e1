"""No dead links in a console with many tasks, 40 servers, 30 callers and 3 tenants.

Links of one kind have the same route, the same parameters, and equal states, outcomes and ranges. `make test` follows one
link of each kind on each kind of page, with few tasks. `make links` has 10,000 tasks, and follows

- every link to one task, approval, server, tool or caller, and every next page of a list without filters;
- of links of every other kind, for each kind of page that has them, the first `FROM_A_KIND`: from 10,000 pages of tasks so
  many links to their audit rows. All combinations of filters, time ranges and cursors would be millions.
"""

from __future__ import annotations

import hashlib
import html
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Set
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
from tests.console.large_store import SERVERS, TENANTS, held, open_task
from tests.console.test_console_pages import Person
from tests.store.call_records import add_counts, add_history
from tests.store.filled_store import DAY_MS, week_calls, week_row
from tests.virtual_time import Call, Gateway, Upstream, virtual_time
from tests.virtual_time.waiting import the_loop

from taskgate.core.history.counts import Counted
from taskgate.core.ids import new_task_id
from taskgate.store.operation import Flush
from taskgate.store.operations.tasks import Accept

TASKS, OPEN = 10_000, 200
FEW_TASKS = 500
FROM_A_KIND = 20
ALL_OF = frozenset(
    {
        "/tasks/*?",
        "/approvals/*?",
        "/servers/*?",
        "/tool?server&tool",
        "/caller?name",
        "/tasks?after",
        "/tasks?after&state=open",
        "/audit?before",
        "/tools?page&range=week",
        "/try?page&scope",
    }
)
"""Kinds of which `make links` follows every link."""
PROGRESS_EVERY = 1_000
CPU_LIMIT_S = 3_600.0
"""The virtual loop gives up earlier by default: it takes long computations for a deadlock."""
LINK = re.compile(r'<a\b[^>]*?\bhref="([^"]*)"')
ID = re.compile(r"^(tg_|hr_|ap_)\w+$")
KEPT_VALUES = frozenset({"state", "range", "sort", "format", "all", "outcome", "like"})
"""Parameters whose values make a link another kind of link; of the others only the name counts."""
PEOPLE: dict[str, dict[str, Any]] = {
    "root": {"roles": ["operator"]},
    "chief": {"roles": ["operator"], "tenant": TENANTS[0]},
    "user-000003": {"tenant": TENANTS[0]},
    "approver": {"roles": ["approver"], "tenant": TENANTS[1]},
}


def token(name: str) -> str:
    return f"{name}-token-0123456789abcdef"


def config() -> dict[str, Any]:
    tokens = [
        {"id": name, "sha256": hashlib.sha256(token(name).encode()).hexdigest(), **rights}
        for name, rights in PEOPLE.items()
    ]
    return {"tokens": tokens, "limits": {"open_tasks_per_caller": 10_000}}


def server(number: int) -> Upstream:
    made = Upstream("2025")
    for tool in range(number, 400, SERVERS):

        @made.tool(f"tool_{tool}_of_server")
        async def answer(call: Call) -> str:
            return "text"

    return made


async def fill(gate: Gateway, tasks: int) -> None:
    """A week of ended tasks with their counts, and open tasks that wait for approval."""
    store = gate.life.app.store
    now = store.now_ms()
    add_history(store, [week_row(number, tasks, now) for number in reversed(range(tasks))])
    await store.do(Flush())
    by_day: dict[int, list[Counted]] = {}
    for ended_ms, counts in week_calls(tasks, now):
        by_day.setdefault(ended_ms // DAY_MS * DAY_MS, []).extend(counts)
    for day, of_day in by_day.items():
        add_counts(store, min(day + 3_600_000, now), of_day)
    await store.do(Flush())
    for number in range(OPEN):
        call = open_task(number)
        await store.do(
            Accept(msgspec.structs.replace(call, id=new_task_id(now, number.to_bytes(10))), approval=held(call))
        )


def kind_of(address: str) -> str:
    """The route and the parameters of a link; of a link that sorts only the column, whatever it sorts."""
    parts = urlsplit(address)
    path = "/".join("*" if ID.match(part) else part for part in parts.path.split("/"))
    if path.startswith("/servers/"):
        path = "/servers/*"
    given = dict(parse_qsl(parts.query))
    if "sort" in given:
        given = {"sort": given["sort"]}
    query = sorted(f"{name}={value}" if name in KEPT_VALUES else name for name, value in given.items())
    return f"{path}?{'&'.join(query)}"


Followed = Callable[[str, str], bool]
"""Whether one more link of a kind (second) on a page of a kind (first) is followed."""


def some_links(of_each_pair: int, all_of: Set[str] = frozenset()) -> Followed:
    """So many links of a kind on pages of a kind, and all links of some kinds."""
    pairs = Counter[tuple[str, str]]()

    def followed(page: str, link: str) -> bool:
        pairs[page, link] += 1
        return link in all_of or pairs[page, link] <= of_each_pair

    return followed


async def dead_links(person: Person, name: str, followed: Followed) -> tuple[list[str], Counter[str]]:
    """Links that do not lead to a page or a download, and how many of each kind were followed."""
    seen, waiting, kinds = {"/overview"}, deque(["/overview"]), Counter[str]()
    dead: list[str] = []
    began, done = time.process_time(), 0
    while waiting:
        path = waiting.popleft()
        reply = await person.get(path)
        done += 1
        if done % PROGRESS_EVERY == 0:
            spent = time.process_time() - began
            print(
                f"{name}: {done} followed, {len(waiting)} waiting, {len(dead)} dead, {spent:.0f} s of CPU", flush=True
            )
        if reply.status == 303 and reply.headers["location"] not in seen:
            seen.add(reply.headers["location"])
            waiting.append(reply.headers["location"])
        elif reply.status not in {200, 303}:
            dead.append(f"{path}: {reply.status}")
            print(f"{name}: dead: {dead[-1]}", flush=True)
        if reply.status != 200 or not reply.headers["content-type"].startswith("text/html"):
            continue
        page = kind_of(path)
        for found in LINK.findall(reply.body.decode()):
            address = html.unescape(found).partition("#")[0]
            if not address.startswith("/") or address == "/" or address in seen:
                continue
            kind = kind_of(address)
            if followed(page, kind):
                kinds[kind] += 1
                seen.add(address)
                waiting.append(address)
    return dead, kinds


async def check(tasks: int, of_each_pair: int, all_of: Set[str] = frozenset()) -> dict[str, Counter[str]]:
    """Follow links as each person; the kinds that were followed."""
    servers = {f"server-{number}": server(number) for number in range(SERVERS)}
    followed: dict[str, Counter[str]] = {}
    dead: dict[str, list[str]] = {}
    the_loop().give_up_after(CPU_LIMIT_S)
    async with Gateway(config(), servers) as gate:
        await fill(gate, tasks)
        for name in PEOPLE:
            person = await Person(gate).log_in(token(name))
            dead[name], followed[name] = await dead_links(person, name, some_links(of_each_pair, all_of))
    assert not any(dead.values()), {name: found[:20] for name, found in dead.items() if found}
    return followed


@pytest.mark.timeout(1_200)
@virtual_time
async def test_a_link_of_each_kind_is_not_dead() -> None:
    followed = await check(FEW_TASKS, 1)
    for name, kinds in followed.items():
        assert kinds["/tasks/*?"] > 10, name
    for name in ("root", "chief"):
        assert len(followed[name]) > 60
        assert followed[name]["/servers/*?"] > 1
        assert any(kind.startswith("/scopes/scope-") for kind in followed[name]), "a scope that was removed"


@pytest.mark.long
@pytest.mark.timeout(7_200)
@virtual_time
async def test_no_link_is_dead() -> None:
    followed = await check(TASKS, FROM_A_KIND, ALL_OF)
    for name, kinds in followed.items():
        print(name, sum(kinds.values()), "links of", len(kinds), "kinds")
    assert followed["root"]["/tasks/*?"] >= TASKS
    assert followed["root"]["/servers/*?"] == SERVERS
