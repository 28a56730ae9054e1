"""The port of approval channels, which show held calls to approvers outside the console and return their decisions.

A channel announces a card, keeps it up to date and, if it can, passes decisions to the gateway. The gateway checks for every
channel in the same way who may decide and whether a decision is still valid. Delivery may take long (backoff, rate limits), so it
runs concurrently with the call. A channel that fails never stops an approval: the console always shows it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.card import Card


class VoteRequest(msgspec.Struct, frozen=True):
    """A vote of an approver. `who` is the id of a token, as verified by the channel.

    `arguments_digest` identifies the arguments that the approver saw, if the channel has it; the gateway refuses a vote on other
    arguments.
    """

    approval_id: str
    verdict: Verdict
    approver: str
    reason: str
    channel: str
    arguments_digest: str | None = None


class VoteReply(msgspec.Struct, frozen=True):
    """The outcome of a vote, with a text for the approver. `refusal` is empty if the vote was counted.

    Otherwise it is a value of `core.governance.approval.Refusal`, or one of the two below.
    """

    text: str
    refusal: str = ""


UNKNOWN_APPROVAL = "unknown_approval"
OTHER_ARGUMENTS = "other_arguments"

Decide: TypeAlias = Callable[[VoteRequest], Awaitable[VoteReply]]


class Delivered(msgspec.Struct, frozen=True):
    """The message was delivered. With `receipt` the channel finds it again, also after a restart."""

    receipt: str


class NotDelivered(msgspec.Struct, frozen=True):
    """The message was not delivered. `permanent`: a retry is useless until the configuration changes."""

    reason: str
    permanent: bool


Delivery: TypeAlias = Delivered | NotDelivered


class ApprovalChannel(Protocol):
    """One configured channel."""

    @property
    def name(self) -> str:
        """Its name in logs and votes, such as `slack` or `webhook`."""

    @property
    def place(self) -> str:
        """Identifies the destination: the same after a restart, and without secrets."""

    async def start(self, decide: Decide) -> None:
        """Start listening for decisions, if the channel can. Returns soon, even if the remote side is unavailable."""

    async def announce(self, card: Card) -> Delivery:
        """Show an open approval to approvers."""

    async def update(self, card: Card, receipt: str) -> Delivery:
        """Update an announced approval: another vote, decided, expired or withdrawn."""

    async def resume(self, card: Card, receipt: str) -> None:
        """Continue an approval that was announced before a restart."""

    async def close(self) -> None:
        """Stop listening and release everything."""


class CallbackReply(msgspec.Struct, frozen=True):
    """The HTTP reply to a callback."""

    status: int
    body: bytes


@runtime_checkable
class CallbackChannel(ApprovalChannel, Protocol):
    """A channel whose decisions arrive as HTTP requests at the gateway."""

    async def receive(self, headers: Mapping[str, str], body: bytes) -> CallbackReply:
        """Handle one request, with lower-case header names. Never raises because of its content."""
