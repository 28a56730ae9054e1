"""Telling people outside the inbox: cards go to the channels of their workflow, and are kept up to date.

Delivery runs beside the call and may fail without harm, because the inbox has every approval. What a channel hands back to find its
message again is remembered while the process lives; after a restart an open approval is announced once more, never more often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from taskgate.core.governance.approval import State
from taskgate.core.governance.card import Card
from taskgate.ports.approval_channel import ApprovalChannel, Decide, Delivered, Delivery
from taskgate.telemetry.logs import log

DELIVERY_S: Final = 600.0
CLOSE_S: Final = 5.0
MAX_REMEMBERED: Final = 50_000

Channels = Mapping[str, tuple[ApprovalChannel, ...]]
CardOf = Callable[[str], Awaitable[Card | None]]


@dataclass(slots=True)
class _Told:
    workflow: str
    receipts: dict[int, str] = field(default_factory=dict)


class Announcer:
    def __init__(self, card_of: CardOf) -> None:
        self._card_of = card_of
        self._channels: Channels = {}
        self._told: dict[str, _Told] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._decide: Decide | None = None

    @property
    def channels(self) -> Channels:
        return self._channels

    async def start(self, decide: Decide) -> None:
        self._decide = decide
        for channel in self._all():
            await self._start(channel, decide)

    def adopt(self, channels: Channels) -> None:
        """A reload: the old channels stop, the new ones begin."""
        old, self._channels = self._all(), channels
        self._told.clear()
        if self._decide is not None:
            self._run(self._replace(old, self._decide))

    def announce(self, approval_id: str, workflow: str) -> None:
        """Put a new question before people, beside whatever goes on."""
        for index, channel in enumerate(self._channels.get(workflow, ())):
            self._run(self._tell(approval_id, index, channel))
            if len(self._told) < MAX_REMEMBERED:
                self._told.setdefault(approval_id, _Told(workflow))

    def changed(self, approval_id: str) -> None:
        """It stands otherwise now: whoever was told is told again."""
        told = self._told.get(approval_id)
        if told is None:
            return
        for index, channel in enumerate(self._channels.get(told.workflow, ())):
            if index in told.receipts:
                self._run(self._tell(approval_id, index, channel))

    async def close(self) -> None:
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for channel in self._all():
            await self._close(channel)

    def _all(self) -> list[ApprovalChannel]:
        return [channel for channels in self._channels.values() for channel in channels]

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _replace(self, old: list[ApprovalChannel], decide: Decide) -> None:
        for channel in old:
            await self._close(channel)
        for channel in self._all():
            await self._start(channel, decide)

    async def _tell(self, approval_id: str, index: int, channel: ApprovalChannel) -> None:
        """Around one delivery: a broken channel is a line in the log, never a broken approval."""
        card = await self._card_of(approval_id)
        if card is None:
            return
        told = self._told.get(approval_id)
        receipt = told.receipts.get(index) if told is not None else None
        if receipt is None and card.state is not State.OPEN:
            return
        try:
            async with asyncio.timeout(DELIVERY_S):
                sent: Delivery = await (channel.announce(card) if receipt is None else channel.update(card, receipt))
        except TimeoutError:
            log.warning("approval not delivered", channel=channel.name, approval=approval_id, why="it took too long")
            return
        except Exception as fault:
            log.error("approval not delivered", channel=channel.name, approval=approval_id, exc_info=fault)
            return
        if not isinstance(sent, Delivered):
            log.warning("approval not delivered", channel=channel.name, approval=approval_id, why=sent.reason)
        elif card.state is not State.OPEN:
            self._told.pop(approval_id, None)
        elif told is not None:
            told.receipts[index] = sent.receipt

    async def _start(self, channel: ApprovalChannel, decide: Decide) -> None:
        try:
            await channel.start(decide)
        except Exception as fault:
            log.error("approval channel did not start; the inbox goes on", channel=channel.name, exc_info=fault)

    async def _close(self, channel: ApprovalChannel) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await channel.close()
        except Exception as fault:
            log.warning("approval channel did not close", channel=channel.name, why=str(fault))
