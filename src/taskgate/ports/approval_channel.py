"""How held calls are put before people outside the gateway's own inbox, and how their word comes back.

A channel announces a card, keeps it up to date and, if it can, hands decisions to the gateway. It decides nothing
itself: who may decide, and whether a decision still counts, is answered by the gateway for every channel alike.
Delivery may take a while (back-off, rate limits), so the gateway awaits it beside the call, and a channel that fails
never stops an approval: the inbox always has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.card import Card


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A person's word. `who` is the id of a token, as the channel's own check established it.

    `arguments_digest` tells what the person was shown, where the channel knows it; the gateway refuses a word
    about other arguments.
    """

    approval_id: str
    verdict: Verdict
    who: str
    reason: str
    channel: str
    arguments_digest: str | None = None


@dataclass(frozen=True, slots=True)
class VoteReply:
    """What became of it, in words for that person. `refusal` is empty when it counted.

    Otherwise it is a value of `core.governance.approval.Refusal`, or one of the two below.
    """

    text: str
    refusal: str = ""


UNKNOWN_APPROVAL = "unknown_approval"
OTHER_ARGUMENTS = "other_arguments"

Decide: TypeAlias = Callable[[VoteRequest], Awaitable[VoteReply]]


@dataclass(frozen=True, slots=True)
class Delivered:
    """It arrived. `receipt` is what the channel needs to find it again, also after a restart."""

    receipt: str


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """It did not. `lasting` means that trying again is useless until somebody changes the configuration."""

    reason: str
    lasting: bool


Delivery: TypeAlias = Delivered | NotDelivered


class ApprovalChannel(Protocol):
    """One configured place where people are asked."""

    @property
    def name(self) -> str:
        """How logs and votes call it, such as `slack` or `webhook`."""

    @property
    def place(self) -> str:
        """Where it asks, as a name that is the same after a restart and holds no secret."""

    async def start(self, decide: Decide) -> None:
        """Begin to listen, if this channel does. Returns soon, also when the other side is away."""

    async def announce(self, card: Card) -> Delivery:
        """Put an open approval before people."""

    async def update(self, card: Card, receipt: str) -> Delivery:
        """Show how an announced approval stands now: another vote, decided, expired or withdrawn."""

    async def resume(self, card: Card, receipt: str) -> None:
        """Take up an approval that was announced before a restart."""

    async def close(self) -> None:
        """Stop listening and release everything."""


@dataclass(frozen=True, slots=True)
class CallbackReply:
    """The HTTP answer to a callback."""

    status: int
    body: bytes


@runtime_checkable
class CallbackChannel(ApprovalChannel, Protocol):
    """A channel whose decisions arrive as HTTP requests at the gateway's own door."""

    async def receive(self, headers: Mapping[str, str], body: bytes) -> CallbackReply:
        """One request, with lower-case header names. Never raises for anything in it."""
