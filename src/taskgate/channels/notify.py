"""Sends notifications about approvals through apprise: mail, chat, push. The decision is made in the inbox.

The message names the tool, the server and the caller, and links to the approval page; of a script it has a summary of its plan. It
never contains arguments or code, because it passes through services that the operator may not control. Needs the extra `notify`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import apprise

from taskgate.core.governance.card import Card, excerpt, show_value
from taskgate.core.governance.script_plan import plan_summary
from taskgate.ports.approval_channel import Decide, Delivered, Delivery, NotDelivered

DEADLINE_S = 30.0


class NotifyChannel:
    """One or more apprise addresses."""

    name = "notify"

    def __init__(self, urls: Sequence[str], *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._apprise = apprise.Apprise()
        # The addresses may hold passwords.
        self._place = f"notify {hashlib.sha256(' '.join(urls).encode()).hexdigest()[:16]}"
        for index, url in enumerate(urls):
            if not self._apprise.add(url):
                # The address itself may hold a password.
                raise ValueError(f"notify.urls[{index}] is not a valid apprise address")

    @property
    def place(self) -> str:
        return self._place

    async def start(self, decide: Decide) -> None:
        """Do nothing: this channel receives no decisions."""

    async def announce(self, card: Card) -> Delivery:
        """Send one notification."""
        text = f"{_quoted(card.requester)} requests approval to call {_quoted(card.tool)} on {_quoted(card.server)}."
        if card.plan is not None:
            text += f"\nThe script {plan_summary(card.plan)}."
        if card.from_script is not None:
            text += f"\nThe call comes from {card.from_script.in_words()}."
        where = f"Decide: {card.url}" if card.url else f"Decide with: taskgate approvals show {card.approval_id}"
        return await self._send("Approval needed", f"{text}\n{where}", card.approval_id)

    async def update(self, card: Card, receipt: str) -> Delivery:
        """Send nothing: one notification per approval is enough."""
        return Delivered(receipt)

    async def resume(self, card: Card, receipt: str) -> None:
        """Nothing to resume."""

    async def close(self) -> None:
        """Nothing to release."""

    async def _send(self, title: str, body: str, receipt: str) -> Delivery:
        try:
            async with asyncio.timeout(self._deadline_s):
                sent = await self._apprise.async_notify(body=body, title=title)
        except TimeoutError:
            return NotDelivered("the notification timed out", permanent=False)
        return (
            Delivered(receipt) if sent else NotDelivered("at least one address could not be notified", permanent=False)
        )


def _quoted(name: str) -> str:
    return show_value(excerpt(name, 200).text)
