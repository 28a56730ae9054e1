"""Deliver approval requests to the configured channels, and update them until the approval is closed.

A receipt of each delivery is stored, so that after a restart or a takeover a message is updated instead of sent again. A broken
channel is logged and never affects the approval itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

import msgspec

from taskgate.core.errors import GatewayFault
from taskgate.core.governance.approval import State
from taskgate.core.governance.card import Card
from taskgate.core.governance.workflow import JOINT
from taskgate.ports.approval_channel import ApprovalChannel, Decide, Delivered, Delivery
from taskgate.ports.store import Store
from taskgate.store.operations.receipts import DropReceipt, PutReceipt, Receipts, StoredReceipt
from taskgate.telemetry.logs import log

DELIVERY_S: Final = 600.0
CLOSE_S: Final = 5.0
FINISH_S: Final = 2.0
Channels = Mapping[str, tuple[ApprovalChannel, ...]]
CardOf = Callable[[str], Awaitable[Card | None]]
IsElsewhere = Callable[[str], Awaitable[bool]]
"""Whether another live gateway has the call of this approval. Only that gateway announces it."""


class _Deliveries(msgspec.Struct):
    """Where one approval was announced."""

    workflow: str
    receipts: dict[str, str] = msgspec.field(default_factory=dict)
    turns: dict[str, asyncio.Lock] = msgspec.field(default_factory=dict)
    """One delivery at a time at each place, so that the newest state is shown last."""


class Announcer:
    def __init__(self, store: Store, card_of: CardOf, is_elsewhere: IsElsewhere) -> None:
        self._store = store
        self._card_of = card_of
        self._is_elsewhere = is_elsewhere
        self._channels: Channels = {}
        self._delivered: dict[str, _Deliveries] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._decide: Decide | None = None

    @property
    def channels(self) -> Channels:
        return self._channels

    async def start(self, decide: Decide) -> None:
        """Open the channels and resume the announcements made before a restart."""
        self._decide = decide
        for channel in self._all():
            await self._start(channel, decide)
        await self.resume()

    async def resume(self) -> None:
        """Resume announcements made before a restart, or by a gateway that has died."""
        found: set[str] = set()
        for kept in await self._store.ask(Receipts()):
            if kept.approval_id in found or kept.approval_id not in self._delivered:
                if kept.approval_id not in found and await self._is_elsewhere(kept.approval_id):
                    continue
                found.add(kept.approval_id)
                deliveries = self._delivered.setdefault(kept.approval_id, _Deliveries(kept.workflow))
                deliveries.receipts[kept.place] = kept.receipt
        for approval_id in found:
            self._run(self._resume(approval_id))

    def adopt(self, channels: Channels) -> None:
        """Replace the channels after a reload. The new ones resume the announcements made at the same places."""
        old, self._channels = self._all(), channels
        if self._decide is not None:
            self._run(self._replace(old, self._decide))

    def announce(self, approval_id: str, workflow: str) -> None:
        """Announce an approval in the background, at each place where it was not announced yet."""
        deliveries = self._delivered.get(approval_id)
        for place, channel in self._placed(workflow):
            if deliveries is None:
                deliveries = self._delivered[approval_id] = _Deliveries(workflow)
            if place not in deliveries.receipts:
                self._run(self._deliver(approval_id, place, channel))

    def changed(self, approval_id: str) -> None:
        """State changed; update the announcements."""
        deliveries = self._delivered.get(approval_id)
        for place, channel in self._placed(deliveries.workflow) if deliveries is not None else ():
            self._run(self._deliver(approval_id, place, channel))

    async def refresh(self) -> None:
        """Update the announcements of approvals that ended while announcements of other gateways were missed."""
        for approval_id in tuple(self._delivered):
            card = await self._card_of(approval_id)
            if card is None or card.state is not State.OPEN:
                self.changed(approval_id)

    async def close(self) -> None:
        jobs = list(self._jobs)
        if jobs:
            # Wait for deliveries in progress: without its receipt a message would be sent again after the restart.
            await asyncio.wait(jobs, timeout=FINISH_S)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for channel in self._all():
            await self._close(channel)

    def _all(self) -> list[ApprovalChannel]:
        return [channel for channels in self._channels.values() for channel in channels]

    def _placed(self, workflow: str) -> Iterator[tuple[str, ApprovalChannel]]:
        """Yield a workflow's channels with unique names of their places; two at the same place are numbered in order."""
        seen: dict[str, int] = {}
        for channel in (each for part in workflow.split(JOINT) for each in self._channels.get(part, ())):
            number = seen[channel.place] = seen.get(channel.place, 0) + 1
            yield (channel.place if number == 1 else f"{channel.place} #{number}"), channel

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _replace(self, old: list[ApprovalChannel], decide: Decide) -> None:
        for channel in old:
            await self._close(channel)
        for channel in self._all():
            await self._start(channel, decide)
        for approval_id in list(self._delivered):
            await self._resume(approval_id)

    async def _resume(self, approval_id: str) -> None:
        """Resume an announcement after a restart or reload, or show how the approval ended meanwhile."""
        deliveries, card = self._delivered[approval_id], await self._card_of(approval_id)
        for place, channel in self._placed(deliveries.workflow):
            receipt = deliveries.receipts.get(place)
            if receipt is None:
                continue
            if card is None or card.state is not State.OPEN:
                await self._deliver(approval_id, place, channel)
            else:
                await self._guarded(channel, approval_id, channel.resume(card, receipt))

    async def _deliver(self, approval_id: str, place: str, channel: ApprovalChannel) -> None:
        """Show the approval at one place, and repeat this if it changed during the delivery."""
        deliveries = self._delivered.get(approval_id)
        if deliveries is None:
            return
        async with deliveries.turns.setdefault(place, asyncio.Lock()):
            shown: Card | None = None
            while True:
                card, receipt = await self._card_of(approval_id), deliveries.receipts.get(place)
                if card is None or (receipt is None and card.state is not State.OPEN):
                    await self._forget(approval_id, deliveries, place)
                    return
                if shown is not None and (shown.state, shown.votes) == (card.state, card.votes):
                    return
                sent = await self._guarded(
                    channel, approval_id, channel.announce(card) if receipt is None else channel.update(card, receipt)
                )
                if not await self._store_outcome(approval_id, deliveries, place, card, sent):
                    return
                shown = card

    async def _store_outcome(
        self, approval_id: str, deliveries: _Deliveries, place: str, card: Card, sent: Delivery | None
    ) -> bool:
        """Store the outcome of a delivery. Return False if nothing remains to be shown at this place."""
        if not isinstance(sent, Delivered):
            if sent is not None and sent.permanent and card.state is not State.OPEN:
                await self._forget(approval_id, deliveries, place)
            return False
        if card.state is not State.OPEN:
            await self._forget(approval_id, deliveries, place)
            return False
        if deliveries.receipts.get(place) != sent.receipt:
            deliveries.receipts[place] = sent.receipt
            await self._stored(
                self._store.do(PutReceipt(StoredReceipt(approval_id, place, deliveries.workflow, sent.receipt)))
            )
        return True

    async def _forget(self, approval_id: str, deliveries: _Deliveries, place: str) -> None:
        """Remove the receipt: the approval is closed, and this place shows it or cannot."""
        if deliveries.receipts.pop(place, None) is not None:
            await self._stored(self._store.do(DropReceipt(approval_id, place)))
        if not deliveries.receipts and self._delivered.get(approval_id) is deliveries:
            del self._delivered[approval_id]

    async def _stored(self, write: Awaitable[None]) -> None:
        """If the store fails here, the only effect is a second message after a restart."""
        try:
            await write
        except GatewayFault as fault:
            log.warning("receipt not stored", why=fault.message)

    async def _guarded(
        self, channel: ApprovalChannel, approval_id: str, delivery: Awaitable[Delivery | None]
    ) -> Delivery | None:
        """Run one delivery. A failing channel is logged and never affects the approval."""
        try:
            async with asyncio.timeout(DELIVERY_S):
                sent = await delivery
        except TimeoutError:
            log.warning("approval not delivered", channel=channel.name, approval=approval_id, why="timeout")
            return None
        except Exception as fault:  # one delivery, by code that calls external services
            log.error("approval not delivered", channel=channel.name, approval=approval_id, exc_info=fault)
            return None
        if sent is not None and not isinstance(sent, Delivered):
            log.warning("approval not delivered", channel=channel.name, approval=approval_id, why=sent.reason)
        return sent

    async def _start(self, channel: ApprovalChannel, decide: Decide) -> None:
        try:
            await channel.start(decide)
        except Exception as fault:  # one channel: the others and the inbox must start without it
            log.error(
                "approval channel did not start; approvals stay in the inbox", channel=channel.name, exc_info=fault
            )

    async def _close(self, channel: ApprovalChannel) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await channel.close()
        except Exception as fault:  # one channel, while everything closes: the rest must be closed too
            log.warning("approval channel did not close", channel=channel.name, why=str(fault))
