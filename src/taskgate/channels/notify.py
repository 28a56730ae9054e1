"""Telling people by anything that apprise can reach: mail, chat, push. It only tells; the decision is made in the
inbox.

The message names the tool, the server and who asked, and links to the approval page. It never holds arguments,
because such messages travel through places the operator may not control. Needs the extra `notify`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import apprise

from taskgate.core.governance.card import Card, excerpt, show_json
from taskgate.ports.approval_channel import Decide, Delivered, Delivery, NotDelivered

DEADLINE_S = 30.0


class NotifyChannel:
    """One or more apprise addresses."""

    name = "notify"

    def __init__(self, urls: Sequence[str], *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._told = apprise.Apprise()
        # The addresses may hold passwords.
        self._place = f"notify {hashlib.sha256(' '.join(urls).encode()).hexdigest()[:16]}"
        for index, url in enumerate(urls):
            if not self._told.add(url):
                # The address itself may hold a password.
                raise ValueError(f"notify.urls[{index}] is not an address that apprise understands")

    @property
    def place(self) -> str:
        return self._place

    async def start(self, decide: Decide) -> None:
        """Nothing to listen to."""

    async def announce(self, card: Card) -> Delivery:
        """Tell that somebody waits."""
        wanted = f"{_quoted(card.requester)} asks to call {_quoted(card.tool)} on {_quoted(card.server)}."
        where = f"Decide here: {card.url}" if card.url else f"Decide with: taskgate approvals show {card.approval_id}"
        return await self._tell("Approval needed", f"{wanted}\n{where}", card.approval_id)

    async def update(self, card: Card, receipt: str) -> Delivery:
        """Say nothing more: one message a question is enough."""
        return Delivered(receipt)

    async def resume(self, card: Card, receipt: str) -> None:
        """Nothing to take up."""

    async def close(self) -> None:
        """Nothing to release."""

    async def _tell(self, title: str, body: str, receipt: str) -> Delivery:
        try:
            async with asyncio.timeout(self._deadline_s):
                told = await self._told.async_notify(body=body, title=title)
        except TimeoutError:
            return NotDelivered("the notification took too long", lasting=False)
        return Delivered(receipt) if told else NotDelivered("at least one address could not be told", lasting=False)


def _quoted(name: str) -> str:
    return show_json(excerpt(name, 200).text)
