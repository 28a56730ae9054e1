"""Consoles of one person share the rendering of a page after a change; people with different permissions never do."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from tests.console.test_console_pages import Person, form_token, known, operator
from tests.console.test_console_routes_and_streams import TASKS, bank_server
from tests.virtual_time import Gateway, virtual_time

from taskgate.access.arrival import Arrival
from taskgate.access.authorize import Authorized
from taskgate.access.proof import HttpProof
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Visit, page_route
from taskgate.dashboard.shared_pages import MAX_RENDERINGS, SharedPages, View, view_of
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import Answer, WebRequest

LIVE = {"x-live-update": "1"}
SHARED = ("/overview", "/tasks", "/servers")


def has(name: str, tenant: str = "", roles: tuple[str, ...] = ()) -> dict[str, Any]:
    digest = hashlib.sha256(f"{name}-token-0123456789abcdef".encode()).hexdigest()
    return {
        "id": name,
        "sha256": digest,
        **({"tenant": tenant} if tenant else {}),
        **({"roles": list(roles)} if roles else {}),
    }


AUDIENCES: dict[str, Any] = {
    "tokens": [
        has("agent"),
        has("other"),
        has("ann", roles=("approver",)),
        has("bob", roles=("approver",)),
        has("eve", "acme", ("approver",)),
        has("max", "globex", ("approver",)),
        has("kim", "acme"),
    ]
}


async def fetch(person: Person, path: str) -> str:
    """The page as the script of an open console fetches it after a change."""
    reply = await person.gate.http("GET", path, headers={"cookie": person.cookie, **LIVE}).done()
    assert reply.status in (200, 303, 403), (path, reply.status)
    return str(reply.body.decode())


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The templates of the pages that are rendered, in order."""
    found: list[str] = []
    original = Frame.plain

    def plain(self: Frame, template: str, *arguments: Any, **values: Any) -> Any:
        found.append(template)
        return original(self, template, *arguments, **values)

    monkeypatch.setattr(Frame, "plain", plain)
    return found


def without_session(page: str) -> str:
    """A page without what belongs to one session or to the moment of rendering."""
    return re.sub(r"<time[^>]*>[^<]*</time>", "", page.replace(form_token(page), "TOKEN"))


@virtual_time
async def test_consoles_of_one_person_share_a_rendering_and_keep_their_own_form_tokens(rendered: list[str]) -> None:
    async with Gateway(AUDIENCES, {"bank": bank_server()}) as gate:
        people = [await operator(gate) for _ in range(5)]
        for path in SHARED:
            alone = [await person.text(path) for person in people]
            rendered.clear()
            pages = await asyncio.gather(*(fetch(person, path) for person in people))
            assert len(rendered) == 1
            assert [form_token(page) for page in pages] == [form_token(page) for page in alone]
            assert len({form_token(page) for page in pages}) == len(people)
            assert {without_session(page) for page in pages} == {without_session(alone[0])}
        for person, page in zip(people, pages, strict=True):
            assert (await person.post("/tasks/cancel", {}, form_token(page))).status == 303
        assert (await people[0].post("/tasks/cancel", {}, form_token(pages[1]))).status == 403


@virtual_time
async def test_people_with_different_audiences_never_share(rendered: list[str]) -> None:
    async with Gateway(AUDIENCES, {"bank": bank_server()}) as gate:
        for name in ("agent", "other", "kim"):
            caller = await gate.caller("2025", token=f"{name}-token-0123456789abcdef", capabilities=TASKS)
            await caller.call("bank__pay", {}, task={"ttl": 60000})
        names = [token["id"] for token in AUDIENCES["tokens"]]
        people = {name: await known(gate, name) for name in names}
        people["operator"] = await operator(gate)
        await gate.advance(2)
        for path in SHARED:
            alone = {name: (await person.get(path)).body.decode() for name, person in people.items()}
            rendered.clear()
            pages = await asyncio.gather(*(fetch(person, path) for person in people.values()))
            assert len(rendered) == len(people)
            for name, page in zip(people, pages, strict=True):
                assert without_session(page) == without_session(alone[name]), (path, name)
        tasks = {name: await fetch(person, "/tasks") for name, person in people.items()}
        rows = {name: len(re.findall(r'id="task-', page)) for name, page in tasks.items()}
        assert rows == {
            "agent": 1, "other": 1, "ann": 3, "bob": 3, "eve": 1, "max": 0, "kim": 1, "operator": 3
        }  # fmt: skip


@virtual_time
async def test_person_who_loses_a_role_gets_no_page_of_before() -> None:
    async with Gateway(AUDIENCES, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        await caller.call("bank__pay", {}, task={"ttl": 60000})
        ann = await known(gate, "ann")
        await gate.advance(2)
        assert "task-" in await fetch(ann, "/tasks")
        plain = [{key: value for key, value in token.items() if key != "roles"} for token in AUDIENCES["tokens"]]
        await gate.reload({"tokens": plain})
        assert 'id="task-' not in await fetch(ann, "/tasks")


@virtual_time
async def test_rendering_is_not_used_after_a_change_an_action_or_a_second(rendered: list[str]) -> None:
    async with Gateway(AUDIENCES, {}) as gate:
        person = await operator(gate)
        await fetch(person, "/overview")
        rendered.clear()
        await fetch(person, "/overview")
        assert len(rendered) == 0
        await person.text("/overview")
        assert len(rendered) == 1, "a page that the script did not fetch after a change"
        gate.life.dashboard.live.changed(Topic.TASKS)
        await fetch(person, "/overview")
        assert len(rendered) == 2, "a change"
        await gate.advance(1.1)
        await fetch(person, "/overview")
        assert len(rendered) == 3, "a second"
        await fetch(person, "/overview?range=day")
        assert len(rendered) == 4, "another address"


@virtual_time
async def test_consoles_with_other_columns_do_not_share() -> None:
    async with Gateway(AUDIENCES, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
        await caller.call("bank__echo", {"text": "hello"})
        await gate.advance(15)
        person = await operator(gate)
        columns = [
            f"{person.cookie}; taskgate_task_columns={name}" for name in ("tool.caller", "tool.scope", "tool.caller")
        ]
        pages = await asyncio.gather(*(fetch(Person(gate, cookie), "/tasks") for cookie in columns))
        chosen = [re.findall(r'name="column" value="(\w+)" checked', page) for page in pages]
        assert [set(each) - {"tool"} for each in chosen] == [{"caller"}, {"scope"}, {"caller"}]


WHO = Approver("ann", frozenset({"approver"}), authenticated_at=5)


def visit_of(who: Approver = WHO, version: str = "1", values: dict[str, str] | None = None, **changed: Any) -> Visit:
    came = HttpProof(Arrival("192.0.2.1", on_loopback=False, by_proxy=False), b"Bearer secret", ((b"x", b"secret"),))
    request = WebRequest(
        method="GET",
        path="/tasks",
        query={"a": "1"},
        headers={b"cookie": b"session=secret; columns=tool"},
        proof=came,
        raw_query="a=1",
    )
    return visit_for(msgspec.structs.replace(request, **changed), who, version, values or {})


def visit_for(request: WebRequest, who: Approver, version: str, values: dict[str, str]) -> Visit:
    return Visit(request=request, person=who, values=values, authorized=cast(Authorized, None), version=version)


@pytest.mark.parametrize(
    "other",
    [
        visit_of(msgspec.structs.replace(WHO, id="bob")),
        visit_of(msgspec.structs.replace(WHO, roles=frozenset())),
        visit_of(msgspec.structs.replace(WHO, may_call=False)),
        visit_of(msgspec.structs.replace(WHO, logged_in=True)),
        visit_of(msgspec.structs.replace(WHO, identities=frozenset({"acme/ann"}))),
        visit_of(version="2"),
        visit_of(path="/tasks/1"),
        visit_of(raw_query="a=2"),
        visit_of(locked=True),
        visit_of(headers={b"cookie": b"session=secret; columns=caller"}),
    ],
)
def test_view_differs_with_everything_that_a_page_may_depend_on(other: Visit) -> None:
    assert view_of(other, ("columns",)) != view_of(visit_of(), ("columns",))


def test_view_is_that_of_another_session_of_the_person_and_shows_nothing_of_either() -> None:
    """Each field of a person belongs to the view, except the time of login; a new one needs a case above."""
    assert set(Approver.__struct_fields__) == {
        "id", "roles", "may_call", "logged_in", "authenticated_at", "identities"
    }  # fmt: skip
    later = visit_of(
        msgspec.structs.replace(WHO, authenticated_at=9), headers={b"cookie": b"session=other; columns=tool"}
    )
    view = view_of(visit_of(), ("columns",))
    assert view == view_of(later, ("columns",))
    assert view.person.authenticated_at is None
    made = view.request(visit_of().request, "placeholder")
    assert (made.path, made.raw_query, made.query, made.form_token) == ("/tasks", "a=1", {"a": "1"}, "placeholder")
    assert made.headers == {b"cookie": b"columns=tool"}
    assert "secret" not in str(msgspec.structs.asdict(made))
    assert "secret" in str(msgspec.structs.asdict(visit_of().request))
    assert "secret" not in repr(visit_of()), "it may be logged"


@virtual_time
async def test_shared_pages_read_nothing_of_a_visit_but_its_view() -> None:
    async with Gateway(AUDIENCES, {"bank": bank_server()}) as gate:
        await operator(gate)
        shared = [route for route in gate.life.dashboard.routes if route.page is not None and route.page.shared]
        assert sorted(route.path for route in shared) == sorted(SHARED)
        who = Approver("operator", frozenset({"operator"}))
        for route in shared:
            view = View(path=route.path, raw_query="", cookies=(), locked=False, person=who, version="1")
            nothing = cast(HttpProof, None)
            original = WebRequest(method="GET", path=route.path, query={}, headers={}, proof=nothing)
            request = msgspec.structs.replace(view.request(original, "placeholder"), proof=nothing)
            answer = await route.handler(visit_for(request, who, "1", {}))
            assert b"placeholder" in cast(Any, answer).body


async def test_rendering_goes_on_when_the_console_that_began_it_disconnects() -> None:
    seen: list[Visit] = []
    finish = asyncio.Event()

    async def handler(visit: Visit) -> Answer:
        seen.append(visit)
        await finish.wait()
        return Answer(200, visit.request.form_token.encode())

    route = page_route("/tasks", Access.LOGIN, handler, page=Page("tasks", "Tasks", "", shared=True))
    pages = SharedPages(lambda request: request.headers[b"cookie"].decode())
    first, second = [
        asyncio.ensure_future(pages.answer(route, visit_of(headers={b"x-live-update": b"1", b"cookie": cookie})))
        for cookie in (b"one", b"two")
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    finish.set()
    assert cast(Answer, await second).body == b"two"
    (visit,) = seen
    assert visit.user == msgspec.structs.replace(WHO, authenticated_at=None), "rendered for the person of the view"
    assert visit.request.headers == {}


@pytest.mark.parametrize("shared", [True, False])
async def test_pages_after_a_change_are_rendered_a_few_at_a_time_and_others_at_once(shared: bool) -> None:
    active, maximum, finished = 0, 0, 0

    async def handler(visit: Visit) -> Answer:
        nonlocal active, maximum, finished
        active += 1
        maximum = max(maximum, active)
        for _ in range(5):
            await asyncio.sleep(0)
        active, finished = active - 1, finished + 1
        return Answer(200, b"")

    route = page_route("/tasks", Access.LOGIN, handler, page=Page("tasks", "Tasks", "", shared=shared))
    pages = SharedPages(lambda request: "")

    def fetched(number: int, headers: dict[bytes, bytes]) -> asyncio.Future[Any]:
        visit = replace(visit_of(headers=headers), person=msgspec.structs.replace(WHO, id=f"person-{number}"))
        return asyncio.ensure_future(pages.answer(route, visit))

    live = [fetched(number, {b"x-live-update": b"1", b"cookie": b""}) for number in range(20)]
    await asyncio.sleep(0)
    await fetched(20, {})
    assert finished < 10, "a page that a person opens does not wait for those of open consoles"
    live[5].cancel()
    await asyncio.gather(*live, return_exceptions=True)
    assert finished == (21 if shared else 20), "a cancelled fetch keeps no turn"
    assert maximum <= MAX_RENDERINGS + 1
