"""A person with a name in a tenant and one without: every name is limited to the tenant, in lists, pages, votes and streams."""

from __future__ import annotations

from typing import Any

import pytest
from tests.console.test_console_pages import form_token, known
from tests.console.test_console_routes_and_streams import TASKS, TOKENS, bearer, frames
from tests.identity.accounts import LoginIssuer, Notes, digest
from tests.identity.issuer import an_issuer
from tests.identity.test_tenant_isolation import (
    AGENT,
    MARK,
    OTHER,
    addresses,
    as_boss,
    secret,
    seeded,
    shop,
    two_tenants,
    unmarked,
)
from tests.virtual_time import Gateway, Reply, virtual_time

from taskgate.assembly.channels import Outbound, build_channels
from taskgate.config import ConfigError, load_text

MIXED, FREE, PLAIN = "mixed", "free", "plain"
"""Names without a tenant: of a person who also has a name in `OTHER`, of one who has not, and of the first without a role."""


def config(issuer: LoginIssuer) -> dict[str, Any]:
    made = two_tenants(issuer)
    for name, roles in ((MIXED, ["admin"]), (FREE, ["admin"]), (PLAIN, [])):
        made["tokens"].append({"id": name, "sha256": digest(f"{name}-token-0123456789abcdef"), "roles": roles})
    return made | {"people": {"boss": [MIXED, PLAIN, "boss2"]}}


async def api(gate: Gateway, name: str, method: str, path: str, body: Any = None) -> Reply:
    return await gate.http(method, f"/api/v1/{path}", body, bearer(name)).done()


@virtual_time
async def test_a_name_without_a_tenant_reads_no_data_of_another_tenant() -> None:
    """Every address that can be read, of the API and of the console."""
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(config(issuer), servers) as gate:
            own = await seeded(gate, issuer)
            mixed, free = await known(gate, MIXED), await known(gate, FREE)
            wrong, seen = [], set()
            for route in gate.life.dashboard.routes:
                if route.method != "GET" or route.stream or route.path.startswith(("/login", "/oauth")):
                    continue
                for value in (own.tasks[0], own.approvals[0], own.questions[0], own.scope, AGENT):
                    for address in addresses(route, value):
                        if (page := await mixed.get(address)).status == 500:
                            wrong.append(f"{address} fails")
                        if not unmarked(page.body.decode() + str(page.headers), own, value):
                            wrong.append(f"{address} shows it in a session")
                        if route.path.startswith("/api"):
                            reply = await gate.http("GET", address, headers=bearer(MIXED)).done()
                            if not unmarked(reply.body.decode(), own, value):
                                wrong.append(f"{address} shows it with a token")
                        if value == AGENT and MARK in (await free.get(address)).body.decode():
                            seen.add(route.path)
            assert not wrong, "\n".join(sorted(set(wrong)))
            lists = {"/tasks", "/callers", "/approvals", "/audit", "/waterfall", "/api/v1/tasks", "/api/v1/history"}
            assert lists <= seen, "a person who is not limited sees it there"


@virtual_time
async def test_lists_of_a_name_without_a_tenant_contain_what_the_name_of_the_tenant_sees() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(config(issuer), servers) as gate:
            await seeded(gate, issuer)
            for path in ("tasks", "approvals", "history", "grants", "questions", "history/totals?by=caller"):
                listed = (await as_boss(gate, OTHER, "GET", f"/api/v1/{path}")).json()
                assert (await api(gate, MIXED, "GET", path)).json() == listed, path
                assert (await api(gate, FREE, "GET", path)).json() != listed, path


@virtual_time
async def test_a_name_without_a_tenant_votes_within_the_tenant_of_the_person() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(config(issuer), servers) as gate:
            own = await seeded(gate, issuer)
            (foreign,), mixed = own.approvals, await known(gate, MIXED)
            guard = form_token(await mixed.text("/overview"))
            assert (await api(gate, MIXED, "POST", f"approvals/{foreign}/approve", {})).status == 404
            assert (await mixed.post(f"/approvals/{foreign}", {"verdict": "approve"}, guard)).status == 404
            assert (await api(gate, MIXED, "POST", f"tasks/{own.tasks[0]}/cancel", {})).status == 404
            assert (await api(gate, FREE, "GET", f"approvals/{foreign}")).json()["state"] == "open"
            (within,) = (await api(gate, MIXED, "GET", "approvals")).json()
            assert (await api(gate, MIXED, "POST", f"approvals/{within['id']}/approve", {})).status == 200


@virtual_time
async def test_a_name_without_a_tenant_opens_temporary_scopes_of_the_tenant_only() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(config(issuer), servers) as gate:
            scope = (await seeded(gate, issuer)).scope
            for name, status in ((MIXED, 404), (FREE, 200)):
                called = await api(gate, name, "POST", "tools/call", {"tool": "shop__read", "scope": scope})
                assert called.status == status, name


@virtual_time
async def test_a_person_still_reaches_the_calls_of_a_name_without_a_tenant_under_that_name() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(config(issuer), servers) as gate:
            for name in (MIXED, PLAIN):
                caller = await gate.caller("2025", token=f"{name}-token-0123456789abcdef", capabilities=TASKS)
                made = await caller.call("shop__wait", {}, task={"ttl": 6_000_000})
                task = made.result["task"]["taskId"]
                assert (await api(gate, name, "GET", f"tasks/{task}")).status == 200
                found = (await api(gate, name, "GET", f"tasks?caller={name}")).json()["tasks"]
                assert [row["id"] for row in found] == [task]
                assert (await as_boss(gate, OTHER, "GET", f"/api/v1/tasks/{task}")).status == 404
            assert (await api(gate, MIXED, "GET", f"tasks/{task}")).status == 404
            assert task not in str((await api(gate, MIXED, "GET", "tasks")).json())


@virtual_time
async def test_live_updates_of_a_name_without_a_tenant_concern_the_tenant_only() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        servers = {"shop": shop(), "notes": Notes(issuer).upstream()}
        async with Gateway(config(issuer), servers) as gate:
            streams = {name: gate.http("GET", "/api/v1/events", headers=bearer(name)) for name in (MIXED, FREE)}
            for stream in streams.values():
                await stream.head()
            agent = await gate.caller("2025", token=secret(MARK, "agent"), capabilities=TASKS)
            await agent.call("shop__pay", {}, task={"ttl": 600_000})
            await gate.advance(1)
            received = {
                name: {topic for _, topics in frames(stream.reply.body) for topic in topics}
                for name, stream in streams.items()
            }
            assert {"tasks", "inbox"} <= received[FREE]
            assert not received[MIXED] & {"tasks", "inbox"}


@virtual_time
async def test_streams_end_if_a_second_name_limits_their_person() -> None:
    tokens = [*TOKENS["tokens"], {"id": "tia", "tenant": "acme", "sha256": digest("tia")}]
    async with Gateway({**TOKENS, "tokens": tokens}, {}) as gate:
        streams = {name: gate.http("GET", "/api/v1/events", headers=bearer(name)) for name in ("ann", "other")}
        for stream in streams.values():
            await stream.head()
        assert await gate.reload({**TOKENS, "tokens": tokens, "people": {"ann": ["ann", "tia"]}}) is None
        await gate.advance(3)
        assert b"access_changed" in streams["ann"].reply.body
        assert b"event: ended" not in streams["other"].reply.body


@virtual_time
async def test_people_of_an_issuer_count_once_under_all_their_names() -> None:
    """Also when stored votes are counted again before a call is sent."""
    async with an_issuer() as issuer:
        names = frozenset({f"{issuer.url}#ann", f"{issuer.url}#ann-2"})
        made = {
            "public_url": "https://gate.example",
            "auth": {"jwt": [{"issuer": issuer.url, "roles": {"approver": ["finance"]}}]},
            "people": {"ann": sorted(names)},
        }
        async with Gateway(made, {}) as gate:
            for subject in ("ann", "ann-2", "bob"):
                shown = {
                    "authorization": f"Bearer {issuer.token(aud='https://gate.example', sub=subject, groups=['finance'])}"
                }
                assert (await gate.http("GET", "/api/v1/approvals", headers=shown).done()).status == 200
            approvers = gate.life.app.gateway.configuration.address.plan.value.governing.approvers
            assert {name for name in approvers if approvers[name].identities == names} == names
            assert len({approvers[name].person for name in (*names, f"{issuer.url}#bob")}) == 2


def test_a_slack_user_decides_under_the_name_that_the_tenant_gives_a_token() -> None:
    channel = "{type: slack, channel: '#a', bot_token: xoxb-1, app_token: xapp-1, approvers: {U2: t1, U3: bob}}"
    text = (
        tokens_of("acme", "acme")
        + f"people:\n  ann: [slack:U1, t0]\napproval:\n  ops: {{channels: [inbox, {channel}]}}\n"
    )
    root = load_text(text, "t.yaml", environment={}).root
    channels = build_channels(root, "http://gate", Outbound(), passphrase_set=False, now_s=lambda: 0.0)
    assert channels["ops"][0]._settings.approvers == {"U1": "acme/t0", "U2": "acme/t1", "U3": "bob"}  # type: ignore[attr-defined]


def tokens_of(*tenants: str) -> str:
    rows = (f"{{id: t{at}, tenant: {name}, sha256: {f'{at}' * 64}}}" for at, name in enumerate(tenants))
    return f"tokens: [{', '.join(rows)}]\n"


def test_a_person_cannot_belong_to_two_tenants() -> None:
    for second in ("t1", '"globex/https://login.test#7"'):
        text = tokens_of("acme", "globex") + f"people:\n  ann: [t0, {second}]\n"
        with pytest.raises(ConfigError) as caught:
            load_text(text, "t.yaml", environment={})
        (problem,) = caught.value.problems
        assert (problem.line, problem.key) == (3, "people.ann[1]")
        assert "the tenant globex, other identities of ann to acme" in problem.message


def test_a_name_without_a_tenant_beside_one_with_a_tenant_is_a_warning() -> None:
    text = (
        tokens_of("acme") + "people:\n  ann: [t0, slack:U1, operator]\n  bob: [bo, 'https://login.test#1', slack:U2]\n"
    )
    (warning,) = load_text(text, "t.yaml", environment={}).warnings
    assert (warning.line, warning.key) == (3, "people.ann")
    assert warning.message.startswith("operator has no tenant; it is limited to acme")
