"""An issuer's keys: rotated without a failed call, fetched once for many calls, and valid while the issuer is unavailable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from tests.benchmarks.gate import server
from tests.identity.issuer import OTHER_RSA, RSA, Issuer, an_issuer, public
from tests.identity.test_hostile_tokens import a_verifier
from tests.virtual_time import Gateway, virtual_time

from taskgate import clock
from taskgate.core.identity.claims import TokenRefused
from taskgate.identity.documents import may_be_fetched
from taskgate.ports.caller_credentials import IssuerUnavailable


@virtual_time
async def test_fifty_concurrent_callers_cause_one_key_fetch_and_cached_tokens_none() -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        verifier = a_verifier(issuer, client)
        tokens = [issuer.token(sub=f"caller-{n}").encode() for n in range(50)]
        found = await asyncio.gather(*(verifier.verify(token) for token in tokens))
        assert len({credential.identity.principal for credential in found}) == 50
        assert issuer.count("/keys") == 1
        assert all(verifier.remembered(token) is not None for token in tokens)
        await clock.sleep(361)
        assert all(verifier.remembered(token) is None for token in tokens), "they have expired"
        await verifier.close()


@virtual_time
async def test_a_rotated_key_is_found_and_the_old_one_ends() -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        verifier = a_verifier(issuer, client)
        await verifier.verify(issuer.token().encode())
        await clock.sleep(31)
        issuer.keys = [public(OTHER_RSA, "rsa-2")]
        assert await verifier.verify(issuer.token({"kid": "rsa-2"}, OTHER_RSA).encode())
        assert issuer.count("/keys") == 2
        with pytest.raises(TokenRefused):
            await verifier.verify(issuer.token(sub="late").encode())
        await verifier.close()


@virtual_time
async def test_no_call_fails_during_key_rotation() -> None:
    """As issuers do it: the next key is published beside the old one, signs from then on, and the old one goes later."""
    async with an_issuer() as issuer:
        auth = {"auth": {"jwt": [{"issuer": issuer.url, "audiences": ["gate"]}]}}
        async with Gateway(auth, {"s": server()}) as gate:
            statuses: list[str] = []

            async def calls(signing: Callable[[int], str]) -> None:
                for number in range(40):
                    caller = await gate.caller("2026", token=signing(number))
                    statuses.append((await caller.call("s__echo", {"text": "hi"})).text)
                    await gate.advance(1)

            def first(number: int) -> str:
                return issuer.token(sub=f"a{number}")

            def second(number: int) -> str:
                return issuer.token({"kid": "rsa-2"}, OTHER_RSA, sub=f"b{number}")

            await calls(first)
            issuer.keys = [public(RSA, "rsa-1"), public(OTHER_RSA, "rsa-2")]
            await asyncio.gather(calls(first), calls(second))
            await gate.advance(700)
            issuer.keys = [public(OTHER_RSA, "rsa-2")]
            await calls(second)
            assert statuses == ["hi"] * 160


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_waiting_for_issuers_does_not_count_as_overload(generation: str) -> None:
    """Two calls wait for the keys of their issuers, one longer than the other: to the gateway they must not look like a queue."""
    async with an_issuer() as issuer, an_issuer(7998) as other:
        issuers = (issuer, other)
        auth = {"jwt": [{"issuer": each.url, "audiences": ["gate"]} for each in issuers]}
        async with Gateway({"auth": auth, "limits": {"busy_after": "500ms"}}, {"s": server()}) as gate:
            callers = [await gate.caller(generation, token=each.token(sub="a")) for each in issuers]
            for caller in callers:
                assert (await caller.call("s__echo", {"text": "hi"})).text == "hi"
            await gate.advance(700)
            for each, caller, slow_s in zip(issuers, callers, (0.6, 1.2), strict=True):
                each.slow_s = slow_s
                each.keys = [public(RSA, "rsa-1"), public(OTHER_RSA, "rsa-2")]
                caller.headers["authorization"] = f"Bearer {each.token({'kid': 'rsa-2'}, OTHER_RSA, sub='a')}"
            replies = await asyncio.gather(*(caller.call("s__echo", {"text": "hi"}) for caller in callers))
            assert [reply.text for reply in replies] == ["hi", "hi"]


@virtual_time
async def test_keys_are_refreshed_in_the_background() -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        verifier = a_verifier(issuer, client)
        await verifier.verify(issuer.token().encode())
        await clock.sleep(601)
        issuer.silent = True
        began = clock.monotonic()
        assert await verifier.verify(issuer.token(sub="b").encode())
        assert clock.monotonic() == began, "a good key was at hand"
        await clock.sleep(10)
        assert issuer.asked.count("/.well-known/openid-configuration") >= 2, "it was asked meanwhile"
        await verifier.close()


@virtual_time
async def test_invented_key_ids_cause_at_most_two_fetches_a_minute() -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        verifier = a_verifier(issuer, client)
        await verifier.verify(issuer.token().encode())
        for number in range(200):
            with pytest.raises(TokenRefused):
                await verifier.verify(issuer.token({"kid": f"made-up-{number}"}, OTHER_RSA).encode())
            await clock.sleep(0.3)
        assert issuer.count("/keys") <= 3
        await verifier.close()


@virtual_time
async def test_cached_keys_are_used_for_a_day_while_the_issuer_is_unavailable() -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        verifier = a_verifier(issuer, client)
        await verifier.verify(issuer.token().encode())
        issuer.pages.clear()
        for _ in range(23):
            await clock.sleep(3600)
            assert await verifier.verify(issuer.token().encode())
        await clock.sleep(2 * 3600)
        with pytest.raises(IssuerUnavailable):
            await verifier.verify(issuer.token().encode())
        await verifier.close()


FALSE_METADATA: dict[str, Any] = {
    "another issuer's metadata": lambda i: {"issuer": "https://login.example", "jwks_uri": f"{i.url}/keys"},
    "no address of keys": lambda i: {"issuer": i.url},
    "keys at a plain address elsewhere": lambda i: {"issuer": i.url, "jwks_uri": "http://10.0.0.1/keys"},
    "keys in a file": lambda i: {"issuer": i.url, "jwks_uri": "file:///etc/passwd"},
    "keys behind a password": lambda i: {"issuer": i.url, "jwks_uri": "https://a:b@login.example/keys"},
}


@pytest.mark.parametrize("what", FALSE_METADATA)
@virtual_time
async def test_metadata_with_foreign_addresses_is_refused(what: str) -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        text = json.dumps(FALSE_METADATA[what](issuer)).encode()
        issuer.pages["/.well-known/openid-configuration"] = lambda _: (200, text)
        verifier = a_verifier(issuer, client)
        with pytest.raises(IssuerUnavailable):
            await verifier.verify(issuer.token().encode())
        assert issuer.count("/keys") == 0
        await verifier.close()


ANSWERS: dict[str, tuple[int, bytes]] = {
    "a redirect": (302, b"{}"),
    "a page": (200, b"<html>"),
    "a list": (200, b"[]"),
    "no keys": (200, b"{}"),
    "two megabytes": (200, b'{"keys": [], "x": "' + b"x" * 2_000_000 + b'"}'),
    "a failure": (500, b"{}"),
}


@pytest.mark.parametrize("what", ANSWERS)
@virtual_time
async def test_unreadable_keys_are_fetched_again(what: str) -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        good, issuer.pages["/keys"] = issuer.pages["/keys"], lambda _: ANSWERS[what]
        verifier = a_verifier(issuer, client)
        with pytest.raises(IssuerUnavailable):
            await verifier.verify(issuer.token().encode())
        issuer.pages["/keys"] = good
        await clock.sleep(31)
        assert await verifier.verify(issuer.token().encode())
        await verifier.close()


@virtual_time
async def test_an_unresponsive_issuer_times_out() -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        issuer.silent = True
        verifier = a_verifier(issuer, client)
        began = clock.monotonic()
        with pytest.raises(IssuerUnavailable):
            await verifier.verify(issuer.token().encode())
        assert clock.monotonic() - began <= 11, "two addresses, five seconds each"
        await verifier.close()


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://keys.example/jwks", True),
        ("http://login.example/jwks", True),
        ("http://login.example:8080/jwks", False),
        ("http://keys.example/jwks", False),
        ("ftp://login.example/jwks", False),
        ("https:///jwks", False),
        ("https://u:p@login.example/jwks", False),
        ("https://login.example/j wks", False),
        ("https://[broken/jwks", False),
        ("javascript:alert(1)", False),
    ],
)
def test_metadata_addresses_of_an_issuer(url: str, may: bool) -> None:
    assert may_be_fetched(url, "http://login.example") is may


def test_tokens_of_the_test_issuer_differ_by_claim() -> None:
    """The tests' own issuer: a token differs where a claim does."""
    issuer = Issuer(1)
    assert issuer.token(key=RSA) != issuer.token(key=RSA, sub="b")
