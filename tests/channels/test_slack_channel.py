"""Slack: cards, buttons over Socket Mode, reactions where that is not allowed, and everything Slack can answer with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.channels.card_factory import DEADLINE_S, NOW_S, DecisionRecorder, Pauses, a_card, decided
from tests.channels.slack_double import APP_TOKEN, BOT_TOKEN, SlackDouble, slack

from taskgate.channels import slack_reactions
from taskgate.channels.slack import SlackChannel, SlackSettings
from taskgate.core.governance.approval import State, Verdict
from taskgate.ports.approval_channel import Delivered, NotDelivered, VoteReply, VoteRequest

Make = Callable[..., Awaitable[SlackChannel]]


@pytest.fixture
async def double() -> AsyncIterator[SlackDouble]:
    async with slack() as made:
        yield made


@pytest.fixture
async def make(double: SlackDouble) -> AsyncIterator[Make]:
    made: list[SlackChannel] = []

    async def channel(
        recorder: DecisionRecorder | None = None, *, buttons: bool = True, pauses: Pauses | None = None, **changes: Any
    ) -> SlackChannel:
        settings = {
            "channel": "#approvals",
            "bot_token": BOT_TOKEN,
            "app_token": APP_TOKEN if buttons else None,
            "approvers": {"U0ANN": "ann", "U0BOB": "bob"},
            "poll_interval_s": 0.01,
            "api_url": double.url,
        }
        one = SlackChannel(SlackSettings(**{**settings, **changes}), pause=pauses or Pauses(), now_s=lambda: NOW_S)
        made.append(one)
        if recorder is not None:
            await one.start(recorder)
        return one

    yield channel
    for one in made:
        await one.close()


def block_actions(action: str, value: str = "ap_1 sha256:abc", user: str = "U0ANN") -> dict[str, Any]:
    return {
        "type": "block_actions",
        "user": {"id": user},
        "channel": {"id": "C0REAL"},
        "trigger_id": "trigger.1",
        "actions": [{"action_id": action, "value": value}],
    }


async def test_a_card_is_posted_with_buttons(double: SlackDouble, make: Make) -> None:
    channel = await make()
    assert await channel.announce(a_card()) == Delivered("C0REAL 1800000000.000001")
    posted = await double.wait_for("chat.postMessage")
    assert posted["channel"] == "#approvals"
    assert posted["text"] == "agent requests approval to call pay_now on reports"
    text = json.dumps(posted["blocks"])
    assert "taskgate_approve" in text
    assert "taskgate_deny" in text
    assert "t0p" not in text


async def test_approve_button_is_recorded_and_acknowledged(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder(VoteReply("Recorded: 1 of 2."))
    await make(recorder)
    await double.press(await double.connected(), "e1", block_actions("taskgate_approve"))
    assert await recorder.next() == VoteRequest("ap_1", Verdict.APPROVE, "ann", "", "slack", "sha256:abc")
    whispered = await double.wait_for("chat.postEphemeral")
    assert (whispered["user"], whispered["text"]) == ("U0ANN", "Recorded: 1 of 2.")


async def test_deny_button_opens_a_form_for_the_reason(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder()
    await make(recorder)
    socket = await double.connected()
    await double.press(socket, "e1", block_actions("taskgate_deny"))
    opened = await double.wait_for("views.open")
    view = opened["view"] if isinstance(opened["view"], dict) else json.loads(opened["view"])
    assert recorder.votes.empty()
    submission = {
        "type": "view_submission",
        "user": {"id": "U0BOB"},
        "view": {**view, "state": {"values": {"reason": {"text": {"type": "plain_text_input", "value": "not today"}}}}},
    }
    await double.press(socket, "e2", submission)
    assert await recorder.next() == VoteRequest("ap_1", Verdict.DENY, "bob", "not today", "slack", "sha256:abc")
    view["state"] = {"values": {"reason": {"text": {"type": "plain_text_input", "value": None}}}}
    await double.press(socket, "e3", {"type": "view_submission", "user": {"id": "U0BOB"}, "view": view})
    assert (await recorder.next()).reason == ""


async def test_an_unknown_user_gets_a_message_and_decides_nothing(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder()
    await make(recorder)
    socket = await double.connected()
    await double.press(socket, "e1", block_actions("taskgate_approve", user="U0EVE"))
    assert "not an approver" in (await double.wait_for("chat.postEphemeral"))["text"]
    view = {
        "callback_id": "taskgate_deny_reason",
        "private_metadata": "ap_1 x",
        "state": {"values": {"reason": {"text": {}}}},
    }
    await double.press(socket, "e2", {"type": "view_submission", "user": {"id": "U0EVE"}, "view": view})
    assert "not an approver" in (await double.wait_for("chat.postEphemeral", 2))["text"]
    assert recorder.votes.empty()


async def test_any_slack_message_is_acknowledged_without_an_exception(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder()
    await make(recorder)
    socket = await double.connected()
    for number, payload in enumerate(
        [
            {},
            {"type": "block_actions"},
            {"type": "block_actions", "actions": []},
            {"type": "view_submission", "view": {"callback_id": "another"}},
            {"type": "view_submission", "view": {"callback_id": "taskgate_deny_reason"}},
            block_actions("another_apps_button", "ap_other x"),
            {**block_actions("taskgate_approve", "ap_other x"), "channel": None},
        ]
    ):
        await double.press(socket, f"e{number}", payload)  # type: ignore[arg-type]
    await double.press(socket, "event", {"event": {}}, kind="events_api")
    double.script["chat.postEphemeral"] = ["user_not_in_channel"]
    await double.press(socket, "last", block_actions("taskgate_approve"))
    assert (await recorder.next()).approval_id == "ap_1"
    await double.press(socket, "after", block_actions("taskgate_approve", "ap_2 sha256:abc"))
    assert (await recorder.next()).approval_id == "ap_2"
    assert recorder.votes.empty()


async def test_a_revoked_app_token_leaves_the_rest_working(double: SlackDouble, make: Make) -> None:
    double.script["apps.connections.open"] = ["token_revoked"]
    channel = await make(DecisionRecorder())
    assert isinstance(await channel.announce(a_card()), Delivered)
    assert double.count_of("apps.connections.open") == 1


async def test_slack_may_be_unavailable_at_the_start(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskgate.channels.slack.CONNECT_DEADLINE_S", 0.2)
    channel = await make(DecisionRecorder(), api_url="http://127.0.0.1:9/api/")
    assert await channel.announce(a_card()) == NotDelivered("slack: unreachable", permanent=False)


async def test_a_rate_limited_request_is_retried_after_the_time_slack_states(double: SlackDouble, make: Make) -> None:
    pauses = Pauses()
    double.script["chat.postMessage"] = [3, 500]
    channel = await make(pauses=pauses)
    assert isinstance(await channel.announce(a_card()), Delivered)
    assert pauses.asked == [3.0, 60.0]


async def test_a_request_is_given_up_after_repeated_rate_limits(double: SlackDouble, make: Make) -> None:
    double.script["chat.postMessage"] = [1] * 10
    channel = await make()
    assert await channel.announce(a_card()) == NotDelivered("slack: ratelimited", permanent=False)
    assert double.count_of("chat.postMessage") == 4


@pytest.mark.parametrize(
    ("error", "permanent"),
    [("token_revoked", True), ("not_in_channel", True), ("is_archived", True), ("internal_error", False)],
)
async def test_slack_errors_are_permanent_or_temporary(
    double: SlackDouble, make: Make, error: str, permanent: bool
) -> None:
    double.script["chat.postMessage"] = [error]
    assert await (await make()).announce(a_card()) == NotDelivered(f"slack: {error}", permanent)


async def test_a_card_is_redrawn_when_decided(double: SlackDouble, make: Make) -> None:
    channel = await make()
    posted = await channel.announce(a_card())
    assert isinstance(posted, Delivered)
    assert isinstance(await channel.update(decided(), posted.receipt), Delivered)
    text = json.dumps((await double.wait_for("chat.update"))["blocks"])
    assert "Denied. too &lt;much&gt;" in text
    assert "taskgate_approve" not in text


async def test_a_deleted_card_is_not_updated(double: SlackDouble, make: Make) -> None:
    channel = await make()
    assert await channel.update(decided(), "C0REAL 1.2") == Delivered("C0REAL 1.2")
    double.script["chat.update"] = ["token_revoked"]
    assert await channel.update(decided(), "C0REAL 1.2") == NotDelivered("slack: token_revoked", permanent=True)


def react(double: SlackDouble, name: str, *users: str, ts: str = "1800000000.000001") -> None:
    double.messages[ts]["reactions"].append({"name": name, "users": list(users), "count": len(users)})


async def test_each_reaction_counts_once_and_denials_come_first(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder()
    channel = await make(recorder, buttons=False)
    await channel.announce(a_card())
    react(double, "+1::skin-tone-3", "U0ANN", "U0EVE")
    react(double, "tada", "U0BOB")
    react(double, "x", "U0BOB")
    assert [(await recorder.next()).verdict, (await recorder.next()).verdict] == [Verdict.DENY, Verdict.APPROVE]
    seen = double.count_of("reactions.get")
    await double.wait_for("reactions.get", seen + 3)
    assert recorder.votes.empty()


async def test_a_cut_card_cannot_be_approved_by_reaction(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder()
    channel = await make(recorder, buttons=False)
    await channel.announce(a_card({"note": "x" * 5_000}))
    react(double, "white_check_mark", "U0ANN")
    seen = double.count_of("reactions.get")
    await double.wait_for("reactions.get", seen + 2)
    assert recorder.votes.empty()
    react(double, "x", "U0ANN")
    assert (await recorder.next()).verdict is Verdict.DENY


async def test_a_resumed_card_is_polled_again(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder()
    double.messages["7.7"] = {"reactions": [{"name": "thumbsup", "users": ["U0ANN"]}]}
    channel = await make(recorder, buttons=False)
    await channel.resume(a_card(state=State.DENIED, approval_id="ap_0"), "C0REAL 6.6")
    await channel.resume(a_card(), "C0REAL 7.7")
    assert await recorder.next() == VoteRequest("ap_1", Verdict.APPROVE, "ann", "by reaction", "slack", "sha256:abc")
    assert all(arguments["timestamp"] == "7.7" for name, arguments in double.calls if name == "reactions.get")


async def test_a_deleted_expired_or_decided_card_is_no_longer_polled(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder()
    channel = await make(recorder, buttons=False)
    await channel.resume(a_card(approval_id="deleted"), "C0REAL 1.1")
    await channel.resume(a_card(approval_id="late", expires_at_ms=int(NOW_S * 1_000)), "C0REAL 2.2")
    posted = await channel.announce(a_card())
    assert isinstance(posted, Delivered)
    await double.wait_for("reactions.get", 4)
    await channel.update(decided(), posted.receipt)
    assert channel._watch._cards == {}
    stamps = {arguments["timestamp"] for name, arguments in double.calls if name == "reactions.get"}
    assert "2.2" not in stamps
    assert sum(arguments.get("timestamp") == "1.1" for _, arguments in double.calls) == 1


async def test_an_error_on_one_card_does_not_end_polling(double: SlackDouble, make: Make) -> None:
    class FailsOnce(DecisionRecorder):
        failed = False

        async def __call__(self, text: VoteRequest) -> VoteReply:
            if not self.failed:
                self.failed = True
                raise RuntimeError("the store is away")
            return await super().__call__(text)

    recorder = FailsOnce()
    double.script["reactions.get"] = ["internal_error"]
    channel = await make(recorder, buttons=False)
    await channel.announce(a_card())
    react(double, "x", "U0ANN")
    assert (await recorder.next()).approval_id == "ap_1"
    assert recorder.failed


async def test_a_revoked_token_ends_polling(double: SlackDouble, make: Make) -> None:
    channel = await make(DecisionRecorder(), buttons=False)
    double.script["reactions.get"] = ["token_revoked"]
    await channel.announce(a_card())
    await double.wait_for("reactions.get")
    assert channel._watch._loop is not None
    await asyncio.wait_for(channel._watch._loop, DEADLINE_S)
    assert double.count_of("reactions.get") == 1


async def test_the_number_of_polled_cards_is_limited(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slack_reactions, "MAX_WATCHED", 2)
    channel = await make(buttons=False)
    for number in range(5):
        await channel.resume(a_card(approval_id=f"ap_{number}"), f"C {number}.0")
    assert list(channel._watch._cards) == ["ap_3", "ap_4"]


async def test_a_closed_channel_accepts_no_decisions(double: SlackDouble, make: Make) -> None:
    recorder = DecisionRecorder()
    channel = await make(recorder)
    await double.connected()
    await channel.close()
    assert "not accepting decisions" in await channel._decide_as("ap_1", Verdict.APPROVE, "U0ANN", "", "x")
    assert recorder.votes.empty()


def test_tokens_never_show_in_a_repr() -> None:
    shown = repr(SlackSettings("#a", BOT_TOKEN, APP_TOKEN))
    assert BOT_TOKEN not in shown
    assert APP_TOKEN not in shown
