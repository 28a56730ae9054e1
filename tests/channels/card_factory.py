"""A card for approvers, and a receiver that records their votes."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from taskgate.core.governance.approval import Binding, State, Verdict, Vote, open_approval
from taskgate.core.governance.card import Card, card
from taskgate.core.governance.workflow import Workflow
from taskgate.core.redaction.fields import compile_redaction
from taskgate.ports.approval_channel import VoteReply, VoteRequest

NOW_S = 1_800_000_000.0
WORKFLOW = Workflow("money", approvals_needed=2)
DEADLINE_S = 120.0


def a_card(arguments: Any = None, *, last_approved: Any = None, **changes: Any) -> Card:
    """An open approval, requested just before `NOW_S`."""
    binding = Binding("agent", "reports", "pay_now", "sha256:abc", "sha256:def", "r1", 0, scope="default")
    approval = open_approval("ap_1", WORKFLOW, "rules[2] pay_*", binding, int(NOW_S * 1_000) - 1_000)
    made = card(
        approval,
        WORKFLOW,
        {"amount": 500, "token": "t0p"} if arguments is None else arguments,
        compile_redaction(["token"]),
        last_approved=last_approved,
        url="https://gate.test/approvals/ap_1",
    )
    return replace(made, **changes)


def decided(state: State = State.DENIED) -> Card:
    """The same card after a denial."""
    vote = Vote("ann", Verdict.DENY, int(NOW_S * 1_000), "too <much>", "slack")
    return a_card(state=state, votes=(vote,), reason="too <much>")


class DecisionRecorder:
    """Replaces the gateway's handling of a decision: records it and returns the given reply."""

    def __init__(self, answer: VoteReply | None = None) -> None:
        self.answer = answer or VoteReply("Recorded.")
        self.votes: asyncio.Queue[VoteRequest] = asyncio.Queue()

    async def __call__(self, text: VoteRequest) -> VoteReply:
        self.votes.put_nowait(text)
        return self.answer

    async def next(self) -> VoteRequest:
        return await asyncio.wait_for(self.votes.get(), DEADLINE_S)


class Pauses:
    """A clock whose sleep returns at once."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await asyncio.sleep(0)
