"""The webhook: outgoing messages are signed and retried safely, callbacks are accepted only with a valid signature."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.channels.card_factory import NOW_S, DecisionRecorder, Pauses, a_card, decided
from tests.channels.receiver_double import Receiver, receiver

from taskgate.channels.webhook import LONGEST_PAUSE_S, WebhookChannel, WebhookSettings
from taskgate.channels.webhook_signature import BadSignature, check_signature, key_of, signed_headers
from taskgate.core.governance.approval import Refusal, Verdict
from taskgate.core.governance.script_plan import ScriptOrigin
from taskgate.ports.approval_channel import (
    OTHER_ARGUMENTS,
    UNKNOWN_APPROVAL,
    CallbackChannel,
    Delivered,
    NotDelivered,
    VoteReply,
    VoteRequest,
)

SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two bytes, about").decode()
KEY = key_of(SECRET)


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver(KEY) as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=120, trust_env=False) as made:
        yield made


def channel(client: httpx2.AsyncClient, url: str, pauses: Pauses | None = None, **changes: Any) -> WebhookChannel:
    settings = WebhookSettings(url, SECRET, "https://gate.test/callback", {"x-team": "ops"}, **changes)
    return WebhookChannel(settings, client, pause=pauses or Pauses(), now_s=lambda: NOW_S)


async def test_a_webhook_request_is_signed_and_complete(client: httpx2.AsyncClient, there: Receiver) -> None:
    long = "x" * 100_000
    delivery = await channel(client, there.url).announce(a_card({"amount": 5, "note": long, "token": "t0p"}))
    assert delivery == Delivered("ap_1.requested")
    (message,) = there.got
    approval = message["approval"]
    assert (message["type"], message["callback_url"]) == ("approval.requested", "https://gate.test/callback")
    assert json.loads(approval["arguments"]) == {"amount": 5, "note": long, "token": "[hidden]"}
    assert (approval["hidden"], approval["arguments_digest"]) == (["token"], "sha256:abc")
    assert approval["expires_at"] == "2027-01-15T08:09:59.000Z"
    assert there.headers[0]["x-team"] == "ops"


async def test_an_update_contains_the_outcome(client: httpx2.AsyncClient, there: Receiver) -> None:
    plain = channel(client, there.url)
    await plain.resume(decided(), "x")
    assert await plain.update(decided(), "ap_1.requested") == Delivered("ap_1.denied.1")
    approval = there.got[0]["approval"]
    assert (approval["state"], approval["votes"][0]["approver"], approval["reason"]) == ("denied", "ann", "too <much>")


async def test_script_that_made_the_call_is_named(client: httpx2.AsyncClient, there: Receiver) -> None:
    await channel(client, there.url).announce(a_card(from_script=ScriptOrigin("tg_1", 4)))
    assert there.got[0]["approval"]["from_script"] == {"task_id": "tg_1", "line": 4}


async def test_differences_are_included(client: httpx2.AsyncClient, there: Receiver) -> None:
    await channel(client, there.url).announce(a_card(last_approved={"amount": 5, "token": "a", "big": 2**70}))
    changes = there.got[0]["approval"]["changes"]
    assert changes["list"][0] == {"path": "amount", "kind": "changed", "before": 5, "after": 500, "hidden": False}
    assert changes["list"][1]["hidden"] is True
    assert changes["list"][2]["before"] == 2**70
    assert changes["left_out"] == 0


async def test_without_a_callback_address_the_request_contains_none(
    client: httpx2.AsyncClient, there: Receiver
) -> None:
    quiet = WebhookChannel(WebhookSettings(there.url, SECRET, retries=0), client, now_s=lambda: NOW_S)
    assert isinstance(await quiet.announce(a_card()), Delivered)
    assert "callback_url" not in there.got[0]


async def test_a_busy_receiver_gets_a_retry_with_the_same_id(client: httpx2.AsyncClient, there: Receiver) -> None:
    there.answers = [
        (503, {}),
        (429, {"retry-after": "7"}),
        (429, {"retry-after": "999999"}),
        (429, {"retry-after": "x"}),
    ]
    pauses = Pauses()
    assert isinstance(await channel(client, there.url, pauses).announce(a_card()), Delivered)
    assert {headers["webhook-id"] for headers in there.headers} == {"ap_1.requested"}
    assert len(there.got) == 5
    assert pauses.asked[1:3] == [7.0, LONGEST_PAUSE_S]
    assert 0.5 <= pauses.asked[0] <= 1.0
    assert 4.0 <= pauses.asked[3] <= 8.0


@pytest.mark.parametrize(("status", "permanent"), [(400, False), (302, False), (401, True), (404, True), (410, True)])
async def test_a_refused_request_is_not_retried(
    client: httpx2.AsyncClient, there: Receiver, status: int, permanent: bool
) -> None:
    there.answers = [(status, {"location": "/elsewhere"})]
    delivery = await channel(client, there.url).announce(a_card())
    assert delivery == NotDelivered(f"the webhook answered HTTP {status}", permanent)
    assert len(there.got) == 1


async def test_an_unavailable_receiver_is_given_up_after_the_retries(client: httpx2.AsyncClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/hook"
        pauses = Pauses()
        delivery = await channel(client, url, pauses, retries=3).announce(a_card())
    assert delivery == NotDelivered("the webhook could not be reached: ConnectError", permanent=False)
    assert len(pauses.asked) == 3


async def test_no_request_is_sent_after_the_deadline(client: httpx2.AsyncClient, there: Receiver) -> None:
    there.answers = [(503, {})]
    delivery = await channel(client, there.url).announce(a_card(expires_at_ms=int(NOW_S * 1_000)))
    assert isinstance(delivery, NotDelivered)
    assert len(there.got) == 1


async def test_an_update_is_sent_even_after_the_deadline(client: httpx2.AsyncClient, there: Receiver) -> None:
    there.answers = [(503, {})]
    late = a_card(expires_at_ms=int(NOW_S * 1_000))
    assert isinstance(await channel(client, there.url).update(late, "x"), Delivered)


def callback(**changes: Any) -> bytes:
    body = {
        "approval_id": "ap_1",
        "verdict": "deny",
        "approver": "ann",
        "arguments_digest": "sha256:abc",
        "reason": "no",
    }
    return json.dumps({**body, **changes}).encode()


TWO_VERDICTS = callback()[:-1] + b', "verdict": "approve"}'


def signed(body: bytes, *, key: bytes = KEY, at: float = NOW_S) -> dict[str, str]:
    return signed_headers(key, "msg_1", int(at), body)


async def test_a_signed_callback_is_accepted(client: httpx2.AsyncClient) -> None:
    recorder = DecisionRecorder()
    listening: CallbackChannel = channel(client, "http://127.0.0.1:9/")
    await listening.start(recorder)
    body = callback()
    reply = await listening.receive(signed(body), body)
    assert (reply.status, json.loads(reply.body)) == (200, {"ok": True, "message": "Recorded."})
    assert await recorder.next() == VoteRequest("ap_1", Verdict.DENY, "ann", "no", "webhook", "sha256:abc")


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (UNKNOWN_APPROVAL, 404),
        (OTHER_ARGUMENTS, 409),
        (Refusal.NOT_AN_APPROVER, 403),
        (Refusal.OWN_CALL, 403),
        (Refusal.ALREADY_DECIDED, 409),
        (Refusal.ALREADY_VOTED, 409),
        (Refusal.EXPIRED, 410),
        ("something new", 409),
    ],
)
async def test_a_refused_decision_contains_the_reason(client: httpx2.AsyncClient, refusal: str, status: int) -> None:
    listening = channel(client, "http://127.0.0.1:9/")
    await listening.start(DecisionRecorder(VoteReply("No.", refusal)))
    body = callback()
    assert (await listening.receive(signed(body), body)).status == status


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, callback(), 401),
        (signed(callback(), key=b"another key"), callback(), 401),
        (signed(callback()), callback(verdict="approve"), 401),
        (signed(callback(), at=NOW_S - 301), callback(), 401),
        (signed(callback(), at=NOW_S + 301), callback(), 401),
        ({**signed(callback()), "webhook-id": "msg_2"}, callback(), 401),
        ({**signed(callback()), "webhook-id": ""}, callback(), 401),
        ({**signed(callback()), "webhook-timestamp": "²"}, callback(), 401),
        ({**signed(callback()), "webhook-signature": "v2,x v1,ä"}, callback(), 401),
        (signed(b"{"), b"{", 400),
        (signed(b"\xff"), b"\xff", 400),
        (signed(b'{"approval_id": "\xff"}'), b'{"approval_id": "\xff"}', 400),
        (signed(callback(verdict="maybe")), callback(verdict="maybe"), 400),
        (signed(callback(approver=None)), callback(approver=None), 400),
        (signed(callback(operator=True)), callback(operator=True), 400),
        (signed(TWO_VERDICTS), TWO_VERDICTS, 400),
        (signed(b"x" * 70_000), b"x" * 70_000, 413),
    ],
)
async def test_a_forged_or_malformed_callback_is_rejected(
    client: httpx2.AsyncClient, headers: dict[str, str], body: bytes, status: int
) -> None:
    recorder = DecisionRecorder()
    listening = channel(client, "http://127.0.0.1:9/")
    await listening.start(recorder)
    assert (await listening.receive(headers, body)).status == status
    assert recorder.votes.empty()


async def test_with_a_passphrase_a_callback_does_not_decide_as_the_operator(client: httpx2.AsyncClient) -> None:
    for may, who, status in ((True, "operator", 200), (False, "operator", 403), (False, "ann", 200)):
        recorder = DecisionRecorder()
        settings = WebhookSettings("http://x.test", SECRET, operator_may_decide=may)
        listening = WebhookChannel(settings, client, now_s=lambda: NOW_S)
        await listening.start(recorder)
        body = callback(approver=who)
        assert (await listening.receive(signed(body), body)).status == status
        if status == 200:
            assert (await recorder.next()).approver == who


async def test_a_closed_channel_accepts_no_callbacks(client: httpx2.AsyncClient) -> None:
    listening = channel(client, "http://127.0.0.1:9/")
    await listening.start(DecisionRecorder())
    await listening.close()
    body = callback()
    assert (await listening.receive(signed(body), body)).status == 503


def test_one_header_may_contain_several_signatures_while_a_secret_is_rotated() -> None:
    headers = signed(b"x")
    headers["webhook-signature"] = "v1,old " + headers["webhook-signature"]
    assert check_signature(KEY, headers, b"x", NOW_S) == "msg_1"
    with pytest.raises(BadSignature):
        check_signature(b"other", headers, b"x", NOW_S)


def test_a_secret_is_text_or_base64() -> None:
    assert key_of("plain") == b"plain"
    with pytest.raises(ValueError, match="base64"):
        key_of("whsec_!!!")


def test_a_secret_never_shows_in_a_repr() -> None:
    assert "s3cr3t" not in repr(WebhookSettings("http://x", "s3cr3t", headers={"authorization": "s3cr3t"}))
