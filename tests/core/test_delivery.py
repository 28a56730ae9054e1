"""The delivery mode of a request."""

from __future__ import annotations

import pytest

from taskgate.core.delivery import Delivery, ReplyForm, delivery, resets_on_progress
from taskgate.core.delivery_texts import promoted_text
from taskgate.core.generations.generation import Generation
from taskgate.core.joined_call import JoinedCall
from taskgate.core.settings.tasks import Tasks

OLD, NEW = Generation.STATEFUL, Generation.STATELESS


@pytest.mark.parametrize(
    ("generation", "accepts_tasks", "token", "client", "delivery_mode"),
    [
        (NEW, True, False, "x", Delivery(8.0, False, ReplyForm.HANDLE)),
        (NEW, True, True, "x", Delivery(8.0, True, ReplyForm.HANDLE)),
        (NEW, False, False, "x", Delivery(45.0, False, ReplyForm.SENTENCE)),
        (OLD, False, False, "x", Delivery(45.0, False, ReplyForm.SENTENCE)),
        (OLD, False, True, "x", Delivery(45.0, True, ReplyForm.SENTENCE)),
        (OLD, False, True, "claude-code", Delivery(300.0, True, ReplyForm.SENTENCE)),
        (OLD, False, False, "claude-code", Delivery(45.0, False, ReplyForm.SENTENCE)),
        (OLD, False, True, "my-agent 2", Delivery(300.0, True, ReplyForm.SENTENCE)),
    ],
)
def test_the_delivery_mode_follows_from_the_declared_capabilities(
    generation: Generation, accepts_tasks: bool, token: bool, client: str, delivery_mode: Delivery
) -> None:
    settings = Tasks(clients=("my-agent*",))
    found = delivery(settings, generation, accepts_tasks=accepts_tasks, has_token=token, client=client)
    assert found == delivery_mode


def test_promotion_can_be_switched_off() -> None:
    off = delivery(Tasks(promote_after_ms=0), OLD, accepts_tasks=False, has_token=False, client="")
    assert off.wait_s is None


def test_known_clients_are_found_in_any_case() -> None:
    assert resets_on_progress("Claude-Code/2.1")
    assert not resets_on_progress("somebody")


def test_the_notice_names_the_task_and_the_next_step() -> None:
    text = promoted_text("a__b", "tg_1", 45, helpers=True)
    assert "tg_1" in text
    assert "get_task_result" in text
    assert "get_task_result" not in promoted_text("a__b", "tg_1", 45, helpers=False)


def test_the_notice_of_a_held_call_states_that_nothing_ran() -> None:
    text = promoted_text("a__b", "tg_1", 45, helpers=True, page="https://gate.example/approvals/ap_1")
    assert "https://gate.example/approvals/ap_1" in text
    assert "by itself" in text
    page = "https://gate.example/approvals/ap_1"
    assert "by itself" not in promoted_text("a__b", "tg_1", 45, helpers=True, page=page, by_itself=False)
    assert "approval" in text
    assert "not run yet" in text
    assert "tg_1" in text


def test_joined_call_names_the_task_and_the_key_of_a_second_call() -> None:
    joined = JoinedCall("tg_1", "k1")
    assert joined.shown() == {"taskId": "tg_1", "secondWith": {"taskgate/idempotencyKey": "k1"}}
    assert "tg_1" in joined.sentence()
    assert "k1" in joined.sentence()
