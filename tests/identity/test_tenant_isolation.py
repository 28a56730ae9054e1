"""Two tenants' people at one gateway: every route of the API, every page and every method, tried with the data of the other tenant.

The tables of routes and methods are walked as they are declared, so one that does not check the tenant fails here. The
other tenant's name is part of all of its principals' names and of everything that they send: it must never be returned.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tests.console.test_console_pages import Person, form_token
from tests.console.test_console_routes_and_streams import TASKS, frames
from tests.identity.accounts import Browser, LoginIssuer, Notes, config, connected, digest, page_for
from tests.identity.issuer import an_issuer
from tests.virtual_time import Call, Gateway, Reply, Upstream, virtual_time

from taskgate.core.catalog.own_tools import ArgumentKind, Parameter
from taskgate.dashboard.routes import Route
from taskgate.gateway.own_tools.table import TOOLS

MARK = "mkacmexq"
"""The tenant whose things must not be seen by the other's people."""
OTHER = "globex"
AGENT = f"{MARK}/agent"


def secret(tenant: str, name: str) -> str:
    return f"{tenant}-{name}-token-0123456789abcdef"


def token(tenant: str, name: str, *roles: str) -> dict[str, Any]:
    return {"id": name, "tenant": tenant, "sha256": digest(secret(tenant, name.rstrip("2"))), "roles": list(roles)}


def two_tenants(issuer: LoginIssuer) -> dict[str, Any]:
    first = [token(MARK, "agent"), token(MARK, "boss", "admin")]
    second = [token(OTHER, "agent2"), token(OTHER, "boss2", "admin")]
    held = [{"match": name, "action": "approve"} for name in ("pay", "look")]
    return {
        **config(issuer),
        "tokens": first + second,
        "governance": {"rules": held, "record": {}},
        "compat": {"vendor_methods": True},
    }


def shop() -> Upstream:
    server = Upstream("2025")

    @server.tool("wait")
    async def wait(call: Call) -> str:
        await call.sleep(5_000)
        return "waited"

    @server.tool("pay")
    async def pay(_call: Call) -> str:
        return "paid"

    @server.tool("look", annotations={"readOnlyHint": True})
    async def look(_call: Call) -> str:
        return "seen"

    @server.tool("read")
    async def read(_call: Call) -> str:
        return "5"

    @server.tool("ask")
    async def ask(call: Call) -> str:
        schema = {"type": "object", "properties": {"size": {"type": "string"}}}
        return str(await call.ask("elicitation/create", {"message": f"{MARK} wants", "requestedSchema": schema}))

    return server


@dataclass
class Seeded:
    """Records of one tenant by kind, in the form used in addresses and bodies."""

    tasks: list[str]
    approvals: list[str]
    grants: list[str]
    questions: list[str]
    scope: str

    @property
    def values(self) -> list[str]:
        return [*self.tasks[:2], self.approvals[0], *self.grants, *self.questions, self.scope, AGENT]


async def as_boss(gate: Gateway, tenant: str, method: str, path: str, body: Any = None) -> Reply:
    asked = gate.http(method, path, body, {"authorization": f"Bearer {secret(tenant, 'boss')}"})
    head = await asked.head()
    if head.headers.get("content-type") == "text/event-stream":
        await gate.advance(0.2)
        await asked.disconnect()
        return asked.reply
    return await asked.done()


async def seeded(gate: Gateway, issuer: LoginIssuer) -> Seeded:
    """Tasks, approvals, a grant, a question, an account, a scope, usage, recorded calls and audit rows of one tenant."""
    await connected(gate, issuer, "", "lister")
    browser = await Browser(gate).log_in(secret(MARK, "agent"))
    done = await browser.connect(await page_for(gate, AGENT), issuer, f"{MARK}-login")
    assert done.status == 200, done.body
    agent = await gate.caller("2025", token=secret(MARK, "agent"), capabilities=TASKS)
    noted = {"note": f"{MARK}-arguments"}
    await agent.call("shop__read", noted)
    for tool in ("pay", "look", "wait", "ask"):
        await agent.call(f"shop__{tool}", noted, task={"ttl": 6_000_000})
    await gate.advance(3)
    asked = (await as_boss(gate, MARK, "GET", "/api/v1/approvals")).json()
    pay = next(row["id"] for row in asked if row["name"] == "pay")
    body = {"reason": f"{MARK}-reason", "grant": {"minutes": 60}}
    given = await as_boss(gate, MARK, "POST", f"/api/v1/approvals/{pay}/approve", body)
    assert given.status == 200, given.body
    request_body = {"config": {"mcp.enabled": "true", "mcp.tags": MARK}, "label": MARK}
    scope = (await as_boss(gate, MARK, "POST", "/api/v1/scopes", request_body)).json()["scope"]
    second = await gate.caller("2025", token=secret(OTHER, "agent"), capabilities=TASKS)
    await second.call("shop__pay", {"note": "ours"}, task={"ttl": 6_000_000})
    await gate.advance(20)
    tasks = (await as_boss(gate, MARK, "GET", f"/api/v1/tasks?caller={quote(AGENT)}")).json()["tasks"]
    grants = (await as_boss(gate, MARK, "GET", "/api/v1/grants")).json()
    questions = (await as_boss(gate, MARK, "GET", "/api/v1/questions")).json()
    assert len(tasks) == 4
    assert len(grants) == len(questions) == 1
    held = [row["id"] for row in asked if row["name"] != "pay"]
    return Seeded([task["id"] for task in tasks], held, [grants[0]["id"]], [questions[0]["request_id"]], scope)


def lookalike(value: str) -> str:
    """A value of the same form that no tenant has."""
    if MARK in value:
        return value.replace(MARK, "mkacmexz")
    return value[:-1] + ("0" if value[-1] != "0" else "1")


def masked(text: str, value: str) -> str:
    for one in (value, lookalike(value)):
        for form in {one, quote(one, safe=""), one.replace("/", "&#x2F;")}:
            text = text.replace(form, "IT")
    return re.sub(r'name="form_token" value="[^"]*"', "", text)


def bodies(route: Route, value: str) -> Iterator[dict[str, Any]]:
    """An empty body, and bodies with the value in every place of a text."""
    yield {}
    properties = (route.body or {}).get("properties", {})
    texts = [name for name, schema in properties.items() if schema.get("type") == "string"]
    yield from ({name: value} for name in texts)
    if "action" in properties:
        yield {"action": "decline"}
    if "tool" in properties and "scope" in properties:
        yield {"tool": "shop__read", "scope": value}
    if "governance" in properties:
        yield {"governance": 'rules: [{match: "*", action: deny}]', "since": "1d"}


FORMS: tuple[dict[str, str], ...] = (
    {},
    {"verdict": "approve", "ids": "IT"},
    {"action": "decline"},
    {"governance": 'rules: [{match: "*", action: deny}]'},
    {"scope": "IT", "tool": "shop__read"},
)
EVERY_FIELD = {name: text for form in FORMS for name, text in form.items()}


def addresses(route: Route, value: str) -> Iterator[str]:
    """The route with the value in each of its places in turn, and in each of its parameters."""
    fixed = {"word": "answer", "action": "drain", "name": "notes"}
    places = [name for name in route.places if name not in ("word", "action")]
    for place in places or [""]:
        path = route.path
        for name in route.places:
            put = quote(value, safe="") if name == place else fixed.get(name, "none")
            path = path.replace(f"{{{name}}}", put)
        yield path
    plain = re.sub(r"{(\w+)}", lambda found: fixed.get(found[1], "none"), route.path)
    yield plain
    yield from (f"{plain}?{urlencode({name: value})}" for name in route.query)
    if not route.path.startswith("/api"):
        yield from (f"{plain}?{urlencode({name: value})}" for name in ("caller", "text", "scope", "name"))


def unmarked(text: str, own: Seeded, given: str) -> bool:
    """Whether nothing of the other tenant's is in it but what was put into the question."""
    rest = masked(text, given)
    ids = [*own.tasks, *own.approvals, *own.grants, *own.questions, own.scope, MARK]
    return not any(one in rest for one in ids)


async def state(gate: Gateway) -> list[Any]:
    """What the operator of the gateway sees of the first tenant, in the ways in which an action could have changed it."""
    paths = ("approvals?all=1", "grants?all=1", "questions", "tokens")
    accounts = (await gate.operator("GET", "/api/v1/servers/notes/accounts")).json()["accounts"]
    listed = [(await gate.operator("GET", f"/api/v1/{path}")).json() for path in paths]
    rows = [rows if isinstance(rows, list) else next(iter(rows.values())) for rows in listed]
    found: list[Any] = [[row for row in some if MARK in str(row)] for some in rows]
    tasks = (await gate.operator("GET", f"/api/v1/tasks?caller={quote(AGENT)}")).json()["tasks"]
    scopes = (await gate.operator("GET", "/api/v1/scopes")).json()["scopes"]
    found += [[(task["id"], task["state"]) for task in tasks], [row["scope"] for row in scopes], accounts]
    return found


@virtual_time
async def test_no_api_route_reads_or_changes_data_of_another_tenant() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(two_tenants(issuer), servers) as gate:
            own = await seeded(gate, issuer)
            before = await state(gate)
            wrong: list[str] = []
            plain: set[str] = set()
            routes = [route for route in gate.life.dashboard.api.table.routes if route.path != "/api/v1/system/reload"]
            for route, value in itertools.product(routes, own.values):
                wrong += [fault async for fault in faults_of_route(gate, route, value, own, plain)]
            assert not wrong, "\n".join(sorted(set(wrong)))
            assert await state(gate) == before


@virtual_time
async def test_data_of_the_own_tenant_contains_none_of_another() -> None:
    """The difference to the last approved call of a tool, above all: the other tenant's was the last."""
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(two_tenants(issuer), servers) as gate:
            own = await seeded(gate, issuer)
            (held,) = (await as_boss(gate, OTHER, "GET", "/api/v1/approvals")).json()
            boss = await Person(gate).log_in(secret(OTHER, "boss"))
            for path in (f"approvals/{held['id']}", f"tasks/{held['task_id']}"):
                shown = await as_boss(gate, OTHER, "GET", f"/api/v1/{path}")
                assert shown.status == 200
                assert unmarked(shown.body.decode(), own, held["id"])
                assert unmarked(await boss.text(f"/{path}"), own, held["id"])


async def faults_of_route(gate: Gateway, route: Route, value: str, own: Seeded, plain: set[str]) -> Any:
    """`plain` holds what was asked without the value: once is enough, whatever the value."""
    for address, other in zip(addresses(route, value), addresses(route, lookalike(value)), strict=True):
        if route.stream and "{" not in route.path:
            continue
        pairs: Any = [(None, None)]
        if route.method == "POST":
            pairs = zip(bodies(route, value), bodies(route, lookalike(value)), strict=True)
        for body, alike in pairs:
            if (address, body) == (other, alike) and is_known(plain, f"{route.method} {address} {body}"):
                continue
            reply = await as_boss(gate, OTHER, route.method, address, body)
            same = await as_boss(gate, OTHER, route.method, other, alike)
            what = f"{route.method} {route.path}"
            if not unmarked(reply.body.decode() + str(reply.headers), own, value):
                yield f"{what} shows it: {address} {body}"
            if reply.status != same.status or reply.status == 500:
                yield f"{what} tells it from nothing: {reply.status}, {same.status}: {address} {body}"
            if "{id}" in route.path and value in address and reply.status not in (404, 400):
                yield f"{what} answers {reply.status}: {address} {body}"


@virtual_time
async def test_no_page_or_form_reads_or_changes_data_of_another_tenant() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(two_tenants(issuer), servers) as gate:
            own = await seeded(gate, issuer)
            before = await state(gate)
            boss = await Person(gate).log_in(secret(OTHER, "boss"))
            guard = form_token(await boss.text("/overview"))
            wrong: list[str] = []
            plain: set[str] = set()
            routes = [route for route in gate.life.dashboard._pages.table.routes if route.path != "/system/reload"]
            assert len(routes) > 25
            for route, value in itertools.product(routes, own.values):
                wrong += [fault async for fault in faults_of_page(boss, guard, route, value, own, plain)]
            assert not wrong, "\n".join(sorted(set(wrong)))
            assert await state(gate) == before


def is_known(plain: set[str], asked: str) -> bool:
    if asked in plain:
        return True
    plain.add(asked)
    return False


async def faults_of_page(boss: Person, guard: str, route: Route, value: str, own: Seeded, plain: set[str]) -> Any:
    what = f"{route.method} {route.path}"
    forms: tuple[Any, ...] = (None,) if route.method == "GET" else (*FORMS, EVERY_FIELD)
    for form in forms:
        for address, other in zip(addresses(route, value), addresses(route, lookalike(value)), strict=True):
            if form is not None and ("?" in address) is not (form is EVERY_FIELD):
                # A form may be sent to an address with parameters: once with all fields is enough there.
                continue
            if address == other and "IT" not in (form or {}).values() and is_known(plain, f"{what} {address} {form}"):
                continue
            replies = []
            for path, put in ((address, value), (other, lookalike(value))):
                filled = {name: put if text == "IT" else text for name, text in (form or {}).items()}
                replies.append(await boss.get(path) if form is None else await boss.post(path, filled, guard))
            reply, same = replies
            if not unmarked(reply.body.decode() + str(reply.headers), own, value):
                yield f"{what} shows it: {address} {form}"
            if reply.status != same.status or reply.status == 500:
                yield f"{what} tells it from nothing: {reply.status}, {same.status}: {address} {form}"


@virtual_time
async def test_live_updates_concern_the_own_tenant_only() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(two_tenants(issuer), servers) as gate:
            streams = {}
            for tenant in (MARK, OTHER):
                headers = {"authorization": f"Bearer {secret(tenant, 'boss')}"}
                streams[tenant] = gate.http("GET", "/api/v1/events", headers=headers)
                await streams[tenant].head()
            await gate.advance(80)
            for stream in streams.values():
                stream.reply.body = b""
            agent = await gate.caller("2025", token=secret(MARK, "agent"), capabilities=TASKS)
            for tool in ("pay", "wait", "ask"):
                await agent.call(f"shop__{tool}", {}, task={"ttl": 600_000})
                await gate.advance(1)
            (row,) = (await as_boss(gate, MARK, "GET", "/api/v1/approvals")).json()
            await as_boss(gate, MARK, "POST", f"/api/v1/approvals/{row['id']}/deny", {})
            await gate.advance(1)
            received = {
                tenant: {topic for _, topics in frames(stream.reply.body) for topic in topics}
                for tenant, stream in streams.items()
            }
            assert received[MARK] >= {"tasks", "inbox"}
            assert not received[OTHER] & {"tasks", "inbox"}


def argument(parameter: Parameter, value: str) -> Any:
    match parameter.kind:
        case ArgumentKind.TEXT:
            return parameter.choices[0] if parameter.choices else value
        case ArgumentKind.TEXTS:
            return [value]
        case ArgumentKind.WHOLE | ArgumentKind.NUMBER:
            return parameter.minimum or 1
        case ArgumentKind.YES_NO:
            return False
        case _:
            return {"size": "small"}


def questions_to(method: str, value: str) -> Iterator[dict[str, Any]]:
    """The value in every place where a method takes one, alone and together; for calls, where an own tool takes a text."""
    if method == "tools/call":
        for face in (tool.face for tool in TOOLS.values()):
            given = {parameter.name: argument(parameter, value) for parameter in face.parameters}
            texts = {parameter.name for parameter in face.parameters if parameter.kind is ArgumentKind.TEXT}
            yield {"name": face.name, "arguments": {}}
            yield {"name": face.name, "arguments": given}
            yield from ({"name": face.name, "arguments": {name: given[name]}} for name in sorted(texts))
        return
    names = ("taskId", "id", "name", "uri", "cursor", "requestId", "level", "action")
    yield {}
    yield from ({name: value} for name in names)
    yield dict.fromkeys(names, value)
    yield {"taskId": value, "inputResponses": {value: {"action": "decline"}}}


@virtual_time
async def test_no_mcp_method_reads_or_changes_data_of_another_tenant() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(two_tenants(issuer), servers) as gate:
            own = await seeded(gate, issuer)
            requests = gate.life.app.gateway.transports.requests
            mine = await gate.caller("2025", token=secret(MARK, "agent"), capabilities=TASKS)
            seen = [fault async for fault in faults_of_method(gate, mine, "tasks/get", own.tasks[-1], own, set())]
            assert len(seen) > 1, "the walk finds nothing even where there is something"
            await gate.advance(1)
            before = await state(gate)
            tables = {"2025": {**requests.stateful, **requests.vendor.methods}, "2026": requests.stateless}
            wrong: list[str] = []
            for generation, table in tables.items():
                plain: set[str] = set()
                caller = await gate.caller(generation, token=secret(OTHER, "agent"), capabilities=TASKS)
                for method, value in itertools.product(table, own.values):
                    wrong += [fault async for fault in faults_of_method(gate, caller, method, value, own, plain)]
            assert not wrong, "\n".join(sorted(set(wrong)))
            assert await state(gate) == before


async def faults_of_method(gate: Gateway, caller: Any, method: str, value: str, own: Seeded, plain: set[str]) -> Any:
    for params, alike in zip(questions_to(method, value), questions_to(method, lookalike(value)), strict=True):
        if params == alike and is_known(plain, f"{method} {params}"):
            continue
        texts = []
        for message in (params, alike):
            asked = caller.begin(method, message)
            await gate.advance(0.02)
            texts.append(asked.reply.body.decode())
            await asked.disconnect()
        if not unmarked(texts[0], own, value):
            yield f"{method} shows it: {params}"
        if ('"error"' in texts[0], '"isError":true' in texts[0]) != (
            '"error"' in texts[1],
            '"isError":true' in texts[1],
        ):
            yield f"{method} tells it from nothing: {params}"
