"""Failed attempts are counted before anything is awaited, at every way in, and by address."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.access.config_tokens import token
from tests.console.test_console_pages import form_token
from tests.identity.issuer import Issuer, an_issuer
from tests.identity.test_oidc_login import Provider
from tests.virtual_time import Gateway, Upstream, settle, virtual_time

from taskgate import clock
from taskgate.access.attempts import MAX_KEYS, FailedAttempts, TooManyAttempts
from taskgate.access.authorize import MAX_FAILURES
from taskgate.dashboard.passphrase import TRIES, Passphrase
from taskgate.inbound.gateway_secrets import set_passphrase
from taskgate.store.operations.audit import AuditRows

GUESSES = 300


def introspecting(issuer: Issuer) -> dict[str, Any]:
    """A gateway that introspects every token at this issuer; only `good` is active there."""

    def answer(body: bytes) -> tuple[int, bytes]:
        known = b"token=good" in body
        return 200, json.dumps({**issuer.claims(aud="gate"), "active": True} if known else {"active": False}).encode()

    issuer.pages["/introspect"] = answer
    asked = {"url": f"{issuer.url}/introspect", "issuer": issuer.url, "client_id": "gate", "client_secret": "s" * 32}
    return {"auth": {"introspection": {**asked, "audiences": ["gate"]}}, "tokens": [token("agent")]}


INITIALIZE = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}).encode()


async def try_at(gate: Gateway, where: str, guess: str) -> int:
    headers = {"authorization": f"Bearer {guess}", "accept": "application/json, text/event-stream"}
    if where.startswith("/mcp"):
        headers["content-type"] = "application/json"
        return (await gate.http("POST", where, INITIALIZE, headers).done()).status
    if where == "/login":
        page = (await gate.http("GET", "/login").done()).body.decode()
        sent = urlencode({"token": guess, "form_token": form_token(page)}).encode()
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return (await gate.http("POST", where, sent, kind).done()).status
    asked = gate.http("GET", where, headers=headers)
    status = (await asked.head()).status
    await asked.disconnect()
    return status


WAYS = ("/mcp", "/api/v1/tasks", "/api/v1/events", "/login")


@pytest.mark.parametrize("where", WAYS)
@pytest.mark.parametrize("together", [True, False], ids=["in parallel", "one after the other"])
@virtual_time
async def test_wrong_tokens_cause_at_most_sixty_introspections_a_minute(where: str, together: bool) -> None:
    async with an_issuer() as issuer, Gateway(introspecting(issuer), {"s": Upstream("2025")}) as gate:
        issuer.slow_s = 0.2 if together else 0.0
        tries = [try_at(gate, where, f"guess-{number}") for number in range(GUESSES if together else 70)]
        found = await asyncio.gather(*tries) if together else [await one for one in tries]
        refused = 403 if where == "/login" else 401
        assert found.count(refused) == MAX_FAILURES == issuer.count("/introspect")
        assert set(found) == {refused, 429}
        assert await try_at(gate, where, "agent-token") in (200, 303), "a known token is not held up"
        await gate.advance(61)
        assert await try_at(gate, where, "good") in (200, 303)


@virtual_time
async def test_failed_attempts_at_one_login_method_count_at_all_others() -> None:
    async with Gateway({"tokens": [token("agent")]}, {"s": Upstream("2025")}) as gate:
        for number in range(MAX_FAILURES):
            assert await try_at(gate, WAYS[number % 3], f"guess-{number}") == 401
        assert [await try_at(gate, where, "another") for where in WAYS] == [429] * len(WAYS)
        refused = await gate.http("GET", "/api/v1/tasks", headers={"authorization": "Bearer another"}).done()
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert refused.json()["reason"] == "too_many_attempts"


@virtual_time
async def test_the_operators_token_cannot_be_guessed_where_calls_need_no_token() -> None:
    async with Gateway({}, {"s": Upstream("2025")}) as gate:
        found = [await try_at(gate, "/api/v1/tasks", f"guess-{number}") for number in range(MAX_FAILURES + 5)]
        assert found == [401] * MAX_FAILURES + [429] * 5
        assert await try_at(gate, "/mcp", "any-token") == 200, "an open gateway serves any caller as anonymous"


@virtual_time
async def test_login_codes_are_limited_too() -> None:
    async with Gateway({}, {}) as gate:

        async def redeem(code: str) -> int:
            page = (await gate.http("GET", "/login").done()).body.decode()
            sent = urlencode({"code": code, "form_token": form_token(page)}).encode()
            kind = {"content-type": "application/x-www-form-urlencoded"}
            return (await gate.http("POST", "/login", sent, kind).done()).status

        found = await asyncio.gather(*(redeem(f"code-{number}") for number in range(MAX_FAILURES + 20)))
        assert (found.count(403), found.count(429)) == (MAX_FAILURES, 20)


@virtual_time
async def test_many_valid_tokens_at_once_from_one_address_are_all_accepted() -> None:
    """Attempts in progress occupy slots; further attempts wait for one and are not refused."""
    async with an_issuer() as issuer:
        jwt = {"issuer": issuer.url, "audiences": ["gate"]}
        async with Gateway({"auth": {"jwt": [jwt]}}, {"s": Upstream("2025")}) as gate:
            issuer.slow_s = 0.5
            tokens = [issuer.token(sub=f"caller-{number}") for number in range(3 * MAX_FAILURES)]
            assert set(await asyncio.gather(*(try_at(gate, "/mcp", each) for each in tokens))) == {200}


@pytest.mark.parametrize(
    "answer",
    [
        (400, b'{"error":"invalid_request"}'),
        (400, b"malformed token"),
        (401, b'{"error":"invalid_client"}'),
        (404, b""),
        (500, b""),
        (200, b"<html>"),
    ],
    ids=["400 with an error", "400", "401", "404", "500", "200 without JSON"],
)
@virtual_time
async def test_tokens_that_their_issuer_answers_with_an_error_count_as_failed_attempts(
    answer: tuple[int, bytes],
) -> None:
    async with an_issuer() as issuer, Gateway(introspecting(issuer), {"s": Upstream("2025")}) as gate:
        issuer.pages["/introspect"] = lambda _: answer
        found = await asyncio.gather(*(try_at(gate, "/api/v1/tasks", f"t-{number}") for number in range(GUESSES)))
        assert (found.count(503), found.count(429)) == (MAX_FAILURES, GUESSES - MAX_FAILURES)
        assert issuer.count("/introspect") == MAX_FAILURES
        assert await try_at(gate, "/api/v1/tasks", "agent-token") == 200, "a known token is not held up"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@virtual_time
async def test_an_unavailable_issuer_does_not_count_as_a_failed_attempt(status: int) -> None:
    async with an_issuer() as issuer, Gateway(introspecting(issuer), {"s": Upstream("2025")}) as gate:
        issuer.pages["/introspect"] = lambda _: (status, b"")
        for number in range(MAX_FAILURES + 5):
            assert await try_at(gate, "/api/v1/tasks", f"t-{number}") == 503


@virtual_time
async def test_wrong_tokens_of_one_address_do_not_delay_the_first_token_of_another() -> None:
    async with an_issuer() as issuer:
        config = introspecting(issuer)
        config["listen"] = {"trusted_proxies": ["127.0.0.1"]}
        async with Gateway(config, {"s": Upstream("2025")}) as gate:
            issuer.slow_s = 4.0

            async def ask(peer: str, token: str) -> tuple[int, float]:
                began = clock.monotonic()
                headers = {"authorization": f"Bearer {token}", "x-forwarded-for": peer}
                reply = await gate.http("GET", "/api/v1/tasks", headers=headers).done()
                return reply.status, clock.monotonic() - began

            wrong = [asyncio.create_task(ask("192.0.2.1", f"guess-{number}")) for number in range(40)]
            await asyncio.sleep(1)
            status, took = await ask("192.0.2.2", "good")
            assert status != 401
            assert took == pytest.approx(3.0 + 4.0, abs=0.5), "the next free slot is its own"
            assert {status for status, _ in await asyncio.gather(*wrong)} == {401}


@pytest.mark.parametrize("together", [True, False], ids=["in parallel", "one after the other"])
@virtual_time
async def test_guessed_codes_cause_at_most_sixty_requests_a_minute_to_the_login_provider(together: bool) -> None:
    """One started login is enough to send any number of responses."""
    async with an_issuer() as issuer:
        provider = Provider(issuer)
        provider.install()
        login = {"issuer": issuer.url, "client_id": "console", "roles": {"admin": ["root"]}}
        async with Gateway({"auth": {"login": login}}, {}) as gate:
            begun = await gate.http("GET", "/login/oidc").done()
            cookie = begun.headers["set-cookie"].split(";")[0]
            answer = provider.authorize(begun.headers["location"])
            right, issuer.pages["/token"] = issuer.pages["/token"], lambda _: (400, b'{"error":"invalid_grant"}')
            issuer.slow_s = 0.2 if together else 0.0

            async def guess(code: str) -> int:
                path = f"/login/callback?{urlencode({**answer, 'code': code})}"
                return (await gate.http("GET", path, headers={"cookie": cookie}).done()).status

            tries = [guess(f"guess-{number}") for number in range(GUESSES if together else 70)]
            found = await asyncio.gather(*tries) if together else [await one for one in tries]
            assert found.count(403) == MAX_FAILURES == issuer.count("/token")
            assert set(found) == {403, 429}
            await gate.advance(61)
            issuer.pages["/token"] = right
            assert await guess("the-code") == 200


# The passphrase


def slow_lock(right: str) -> tuple[Passphrase, list[str]]:
    tried: list[str] = []

    def fits(given: str) -> bool:
        tried.append(given)
        return given == right

    return Passphrase(fits), tried


@pytest.mark.parametrize("place", [0, 4, 5, 39])
async def test_of_parallel_guesses_only_the_first_few_are_tried(place: int) -> None:
    lock, tried = slow_lock("right")
    guesses = [f"wrong-{number}" for number in range(40)]
    guesses[place] = "right"
    found = await asyncio.gather(*(lock.fits(guess) for guess in guesses))
    assert found[place] == (place < TRIES)
    assert sum(found) <= 1
    assert sum(guess != "right" for guess in tried) == TRIES


async def test_the_passphrase_is_accepted_again_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, _ = slow_lock("right")
    for _ in range(TRIES):
        assert not await lock.fits("wrong")
    assert not await lock.fits("right")
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now + 61)
    assert await lock.fits("right")


@virtual_time
async def test_parallel_guesses_of_the_passphrase_do_not_log_in(tmp_path: Path) -> None:
    gate = Gateway({}, {}, folder=tmp_path)
    gate.state.mkdir(parents=True)
    set_passphrase(gate.state, "open sesame")
    async with gate:
        page = (await gate.http("GET", "/login").done()).body.decode()

        def guess(word: str) -> Any:
            form = {"token": gate.operator_token, "form_token": form_token(page), "passphrase": word}
            kind = {"content-type": "application/x-www-form-urlencoded"}
            return gate.http("POST", "/login", urlencode(form).encode(), kind).done()

        replies = await asyncio.gather(*(guess(f"guess {n}") for n in range(39)), guess("open sesame"))
        assert [reply.status for reply in replies] == [403] * 40
        await gate.advance(61)
        assert (await guess("open sesame")).status == 303


# The mechanism


@virtual_time
async def test_a_successful_attempt_frees_its_slot_and_one_that_waits_too_long_is_refused() -> None:
    attempts = FailedAttempts(2, 60.0)
    first, second = await attempts.begin("a"), await attempts.begin("a")
    third = asyncio.create_task(attempts.begin("a"))
    await settle()
    assert not third.done()
    with first as attempt:
        attempt.passed()
    await settle()
    with await third, second:
        pass
    with pytest.raises(TooManyAttempts):
        await attempts.begin("a")
    with await attempts.begin("b"):
        pass
    held = [await attempts.begin("c"), await attempts.begin("c")]
    began = clock.monotonic()
    with pytest.raises(TooManyAttempts):
        await attempts.begin("c")
    assert clock.monotonic() - began == pytest.approx(10.0)
    assert len(held) == 2


@virtual_time
async def test_addresses_beyond_the_limit_are_dropped_except_those_with_an_attempt_in_progress() -> None:
    attempts = FailedAttempts(1, 60.0)
    pending = await attempts.begin("pending")
    for number in range(MAX_KEYS + 10):
        attempts.failed(f"address-{number}")
    with pending:
        pass
    with pytest.raises(TooManyAttempts):
        attempts.check("pending")
    attempts.check("address-0")
    with pytest.raises(TooManyAttempts):
        attempts.check(f"address-{MAX_KEYS}")


@virtual_time
async def test_failed_authentications_leave_one_audit_row_for_an_address_and_denials_one_each() -> None:
    config = {
        "tokens": [token("agent"), {**token("bound"), "scope": "deploy"}],
        "scopes": {"default": {}, "deploy": {}},
    }
    async with Gateway(config, {"s": Upstream("2025")}) as gate:
        for number in range(7):
            await try_at(gate, "/api/v1/tasks", f"guess-{number}")
        for _ in range(3):
            assert await try_at(gate, "/mcp", "bound-token") == 200
            assert await try_at(gate, "/mcp/default", "bound-token") == 404
            assert await try_at(gate, "/api/v1/tokens", "agent-token") == 403
        await gate.advance(2)
        rows = [row.entry for row in await gate.life.app.store.ask(AuditRows(0, 100))]
        (failed,) = [row for row in rows if row.event == "authentication_failed"]
        assert (failed.principal, failed.decision, failed.reason) == ("", "unknown_credential", "7 from 127.0.0.1")
        denied = [(row.principal, row.kind, row.decision) for row in rows if row.event == "access_denied"]
        assert denied.count(("bound", "call", "no_such_scope")) == 3
        assert denied.count(("agent", "configure", "lacks_permission")) == 3
        assert len(denied) == 6
        assert hashlib.sha256(b"guess-1").hexdigest() not in str(rows)
