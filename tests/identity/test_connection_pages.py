"""Only the person who is logged in as a caller's principal connects an account for it: a link is not enough, no role is exempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from tests.identity.accounts import OPERATOR, Browser, LoginIssuer, Notes, config, connected, digest, page_for  # type: ignore[attr-defined]
from tests.identity.issuer import an_issuer
from tests.virtual_time import Gateway, Reply, virtual_time

from taskgate.ports.account_connector import ConnectRequest
from taskgate.store.operations.audit import AuditRows

BY_URL: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


def path_of(page: str) -> str:
    return urlsplit(page).path


async def accounts(gate: Gateway) -> list[str | None]:
    rows = (await gate.operator("GET", "/api/v1/servers/notes/accounts")).json()["accounts"]
    return [row["principal"] for row in rows]


def with_staff(issuer: LoginIssuer, **auth: Any) -> dict[str, Any]:
    """Callers, and people with every role."""
    given = config(issuer, **auth)
    roles = ("viewer", "approver", "operator", "admin")
    given["tokens"] += [{"id": f"a-{role}", "sha256": digest(f"token-of-a-{role}"), "roles": [role]} for role in roles]
    return given


async def link_from_a_call(gate: Gateway, generation: str) -> str:
    """The address that a caller receives as a URL elicitation."""
    asked: list[dict[str, Any]] = []
    answers = {"elicitation/create": lambda params: asked.append(params)}
    mallory = await gate.caller(generation, token="token-of-bob", capabilities=BY_URL, answers=answers)
    if generation == "2026":
        result = (await mallory.request("tools/call", {"name": "notes__read", "arguments": {}})).result
        ((_, question),) = result["inputRequests"].items()
        return str(question["params"]["url"])
    mallory.begin_call("notes__read")
    await gate.advance(1)
    return str(asked[0]["url"])


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("victim", ["", "ann", "a-viewer", "a-approver", "a-operator", "a-admin", OPERATOR])
@virtual_time
async def test_link_of_a_caller_opens_for_no_other_person(generation: str, victim: str) -> None:
    """Bob sends his link to a victim. With the victim's account his calls would run in the victim's name."""
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(with_staff(issuer), {"notes": Notes(issuer, generation).upstream()}) as gate:
            await connected(gate, issuer, "", "lister")
            await gate.advance(70)
            page = path_of(await link_from_a_call(gate, generation))
            browser = Browser(gate)
            if victim:
                await browser.log_in_as(victim)
            opened = await browser.get(page)
            if victim:
                assert (opened.status, b"form_token" in opened.body) == (403, False)
            else:
                assert (opened.status, opened.headers["location"]) == (303, f"/login?next={page}")
            assert "taskgate_connecting" not in browser.cookies
            own_form = await browser.get("/inbox" if victim else "/login")
            pressed = await browser.press(page, own_form)
            assert pressed.status == (403 if victim else 401)
            assert issuer.url.encode() not in pressed.body
            assert await accounts(gate) == [None]


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_link_opens_for_its_own_caller(generation: str) -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer, generation)
        async with Gateway(with_staff(issuer), {"notes": notes.upstream()}) as gate:
            await connected(gate, issuer, "", "lister")
            await gate.advance(70)
            page = await link_from_a_call(gate, generation)
            bob = Browser(gate)
            to_login = await bob.get(path_of(page))
            shown = await bob.get(to_login.headers["location"])
            logged_in = await bob.press("/login", shown, token="token-of-bob", next=path_of(page))
            assert logged_in.headers["location"] == path_of(page), "the login leads back to the page"
            done = await bob.connect(page, issuer, "bob-at-notes")
            assert done.status == 200, done.body
            assert await accounts(gate) == [None, "bob"]
            caller = await gate.caller(generation, token="token-of-bob")
            assert (await caller.call("notes__read")).text == "a note of bob-at-notes"


@virtual_time
async def test_link_from_another_site_finds_the_login_of_the_console() -> None:
    """A browser does not send the Strict cookie after another site's link; a redirect of our own page sends it."""
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(config(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            page = path_of(await page_for(gate, "ann"))
            ann = await Browser(gate).log_in_as("ann")
            assert ann.cookies["taskgate_session"][2] == "Strict"
            first = await ann.get(page, from_elsewhere=True)
            assert first.status == 200
            assert b"form_token" not in first.body
            where = first.headers["refresh"].partition("url=")[2]
            assert b"form_token" in (await ann.get(where)).body
            unauthorized = Browser(gate)
            led = await unauthorized.get(where, from_elsewhere=True)
            assert (led.status, led.headers["location"]) == (303, f"/login?next={page}"), "led on once, not for ever"


@virtual_time
async def test_cookies_of_a_connection_are_lax_for_oauth_only() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        given = {**config(issuer), "public_url": "https://gate.example"}
        async with Gateway(given, {"notes": Notes(issuer).upstream()}) as gate:
            ann = await Browser(gate).log_in_as("ann")
            page = path_of(await page_for(gate, "ann"))
            opened = await ann.get(page)
            pressed = await ann.press(page, opened)
            (login,) = opened.cookies
            assert login.startswith("taskgate_connecting=")
            for cookie in (login, *pressed.cookies):
                assert {"Path=/oauth", "SameSite=Lax", "HttpOnly", "Secure"} <= set(cookie.split("; ")), cookie
            assert ann.cookies["__Host-taskgate_session"][1:] == ("/", "Strict")
            value = ann.cookies["taskgate_connecting"][0]
            forged = {"cookie": f"__Host-taskgate_session={value}"}
            assert (await gate.http("GET", "/inbox", headers=forged).done()).status == 303, "it opens nothing else"


def tampered(browser: Browser, other: Browser) -> Iterator[tuple[str, Browser]]:
    """The browser in front of a callback, with something changed."""
    kept = dict(browser.cookies)
    yield "no login", Browser(browser.gate, {name: kept[name] for name in kept if name != "taskgate_connecting"})
    yield (
        "another person's login",
        Browser(browser.gate, {**kept, "taskgate_connecting": other.cookies["taskgate_connecting"]}),
    )
    forged = ("a" + kept["taskgate_connecting"][0][1:], *kept["taskgate_connecting"][1:])
    yield "a forged login", Browser(browser.gate, {**kept, "taskgate_connecting": forged})
    console = (kept["taskgate_session"][0], "/oauth", "Lax")
    yield "the console's cookie in its place", Browser(browser.gate, {**kept, "taskgate_connecting": console})


@virtual_time
async def test_callback_needs_the_login_of_the_principal() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(with_staff(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            operator = await Browser(gate).log_in_as("a-operator")
            await operator.begin_shared()
            for number in range(4):
                ann = await Browser(gate).log_in_as("ann")
                query = issuer.log_in(await ann.begin(await page_for(gate, "ann")), "ann-at-notes")
                why, changed = list(tampered(ann, operator))[number]
                reply = await changed.come_back(query)
                assert reply.status in (400, 401), (why, reply.body)
                assert b"Not connected" in reply.body
                assert await accounts(gate) == [], why


@pytest.mark.parametrize("how", ["logged out", "logged out everywhere", "revoked", "another login", "too late"])
@virtual_time
async def test_callback_needs_a_login_that_lasts(how: str) -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(config(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            ann = await Browser(gate).log_in_as("ann")
            query = issuer.log_in(await ann.begin(await page_for(gate, "ann")), "ann-at-notes")
            if how.startswith("logged out"):
                form = await ann.get("/inbox")
                await ann.press("/logout", form, **({"everywhere": "1"} if "everywhere" in how else {}))
            elif how == "revoked":
                reply = await gate.operator("POST", "/api/v1/tokens/revoke", {"name": "ann"})
                assert reply.status == 200, reply.body
            elif how == "another login":
                await ann.press("/logout", await ann.get("/inbox"))
                await ann.log_in_as("bob")
            else:
                await gate.advance(901)
            reply = await ann.come_back(query)
            assert reply.status in (400, 401), reply.body
            assert await accounts(gate) == []


@virtual_time
async def test_shared_account_is_connected_from_the_console_only() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(with_staff(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            handed = await gate.operator("POST", "/api/v1/servers/notes/accounts", {"principal": ""})
            assert (handed.status, b"url" in handed.body) == (400, False), handed.body
            for who in ("ann", "a-viewer", "a-approver"):
                person = await Browser(gate).log_in_as(who)
                form = await person.get("/inbox")
                refused = await person.press("/servers/notes/connect", form)
                assert refused.status == 403, who
                assert issuer.url.encode() not in refused.body
            operator = await Browser(gate).log_in_as("a-operator")
            assert (await operator.press("/servers/notes/connect")).status == 403, "a form of ours is needed"
            assert (await operator.get("/servers/notes/connect")).status == 404, "a link is not enough"
            query = issuer.log_in(await operator.begin_shared(), "shared-at-notes")
            unauthorized = await Browser(gate).log_in_as("ann")
            unauthorized.cookies["taskgate_connect"] = operator.cookies["taskgate_connect"]
            await unauthorized.get(path_of(await page_for(gate, "ann")))
            assert (await unauthorized.come_back(query)).status == 400
            query = issuer.log_in(await operator.begin_shared(), "shared-at-notes")
            done = await operator.come_back(query)
            assert (done.status, await accounts(gate)) == (200, [None]), done.body
            missing = await operator.press("/servers/other/connect", await operator.get("/servers/notes"))
            assert missing.status == 404


@virtual_time
async def test_stored_page_for_the_shared_account_opens_for_no_person() -> None:
    """Earlier versions handed out such pages."""
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(with_staff(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            page = path_of(await gate.life.app.gateway.console.servers.accounts.page("notes", "", None))
            asked = await gate.life.app.gateway.console.servers.accounts.request_of(page.rpartition("/")[2])
            assert isinstance(asked, ConnectRequest)
            for who in ("a-operator", OPERATOR):
                assert (await (await Browser(gate).log_in_as(who)).get(page)).status == 404


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_operators_login_is_the_principal_of_a_local_gateway_without_identities(generation: str) -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer, generation)
        given = {"servers": config(issuer)["servers"]}
        async with Gateway(given, {"notes": notes.upstream()}) as gate:
            await connected(gate, issuer, "", "lister")
            await gate.advance(70)
            caller = await gate.caller(generation, capabilities=BY_URL, answers={"elicitation/create": lambda _: None})
            call = caller.begin_call("notes__read")
            await gate.advance(1)
            page = path_of(await page_for(gate, "anonymous"))
            assert (await Browser(gate).get(page)).status == 303
            operator = await Browser(gate).log_in_as(OPERATOR)
            done = await operator.connect(page, issuer, "owner-at-notes")
            assert done.status == 200, done.body
            if generation == "2025":
                assert (await call.done()).text == "a note of owner-at-notes"
            again = await gate.caller(generation)
            assert (await again.call("notes__read")).text == "a note of owner-at-notes"


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_anonymous_callers_beside_identities_have_no_account_to_connect(generation: str) -> None:
    """An anonymous caller has no login, so no link is created and the call fails at once."""
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer, generation)
        given = {**with_staff(issuer), "auth": {"anonymous": "default"}}
        async with Gateway(given, {"notes": notes.upstream()}) as gate:
            await connected(gate, issuer, "", "lister")
            await gate.advance(70)
            caller = await gate.caller(generation, capabilities=BY_URL)
            reply = await caller.call("notes__read")
            assert reply.error["data"]["executed"] == "no"
            assert "/oauth/connect" not in json.dumps(reply.messages)
            handed = await gate.operator("POST", "/api/v1/servers/notes/accounts", {"principal": "anonymous"})
            assert handed.status == 400
            page = path_of(await gate.life.app.gateway.console.servers.accounts.page("notes", "anonymous", None))
            for who in ("a-operator", OPERATOR):
                assert (await (await Browser(gate).log_in_as(who)).get(page)).status == 403


@virtual_time
async def test_person_with_several_names_connects_for_each_of_them() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        given = {**with_staff(issuer), "people": {"ann": ["ann", "a-admin"]}}
        async with Gateway(given, {"notes": Notes(issuer).upstream()}) as gate:
            page = await page_for(gate, "ann")
            done = await (await Browser(gate).log_in_as("a-admin")).connect(page, issuer, "ann-at-notes")
            assert (done.status, await accounts(gate)) == (200, ["ann"]), done.body


@virtual_time
async def test_connecting_and_disconnecting_leave_audit_rows() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(config(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            await connected(gate, issuer, "ann", "ann-at-notes")
            await connected(gate, issuer, "", "lister")
            for query in ({"principal": "ann"}, {}):
                path = f"/api/v1/servers/notes/accounts?{urlencode(query)}"
                assert (await gate.operator("DELETE", path)).json() == {"disconnected": True}
            await gate.advance(2)
            rows = await gate.life.app.store.ask(AuditRows(0, 1000))
            noted = [
                (row.entry.event, row.entry.principal, row.entry.reason) for row in rows if row.entry.kind == "account"
            ]
            assert noted == [
                ("account_connected", "ann", "ann"),
                ("account_connected", OPERATOR, "shared"),
                ("account_disconnected", OPERATOR, "ann"),
                ("account_disconnected", OPERATOR, "shared"),
            ]


@virtual_time
async def test_pages_of_a_connection_may_not_be_framed_and_send_other_sites_no_referrer() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(config(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            ann = await Browser(gate).log_in_as("ann")
            page = path_of(await page_for(gate, "ann"))
            opened = await ann.get(page)
            replies: list[Reply] = [opened, await ann.press(page, opened), await ann.come_back({"state": "x"})]
            for reply in replies:
                assert reply.headers["x-frame-options"] == "DENY"
                assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
                assert reply.headers["referrer-policy"] == "same-origin"
