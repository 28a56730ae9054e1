"""The question that is put to people about one call, and the channels that bring it to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.errors import GatewayFault
from taskgate.core.governance.approval import State
from taskgate.core.governance.card import Card
from taskgate.core.governance.decision import NeedsApproval
from taskgate.core.governance.pipeline import workflow_named
from taskgate.core.strict_json import AmbiguousJson
from taskgate.gateway.governance.evaluate import Asked, binding_of
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.strict_arguments import strict_value
from taskgate.ports.approval_channel import ApprovalChannel, Decide, Delivered, Delivery
from taskgate.ports.approval_store import ApprovalRequest, ApprovalStore, StoredReceipt
from taskgate.telemetry.logs import log

DELIVERY_S: Final = 600.0
CLOSE_S: Final = 5.0
LAST_WORDS_S: Final = 2.0

Channels = Mapping[str, tuple[ApprovalChannel, ...]]
CardOf = Callable[[str], Awaitable[Card | None]]
IsElsewhere = Callable[[str], Awaitable[bool]]
"""Whether another gateway that lives has the call of this approval: it tells people, and nobody else does."""


@dataclass(slots=True)
class _Told:
    """Where people were told of one approval."""

    workflow: str
    receipts: dict[str, str] = field(default_factory=dict)
    turns: dict[str, asyncio.Lock] = field(default_factory=dict)
    """One delivery at a time at each place, so that the newest word is the last."""


class Announcer:
    def __init__(self, store: ApprovalStore, card_of: CardOf, is_elsewhere: IsElsewhere) -> None:
        self._store = store
        self._card_of = card_of
        self._is_elsewhere = is_elsewhere
        self._channels: Channels = {}
        self._told: dict[str, _Told] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._decide: Decide | None = None

    @property
    def channels(self) -> Channels:
        return self._channels

    async def start(self, decide: Decide) -> None:
        """Open the channels, and take up what they were told before a restart."""
        self._decide = decide
        for channel in self._all():
            await self._start(channel, decide)
        await self.take_up()

    async def take_up(self) -> None:
        """Go on with what people were told before a restart, or by a gateway that has died."""
        found: set[str] = set()
        for kept in await self._store.receipts():
            if kept.approval_id in found or kept.approval_id not in self._told:
                if kept.approval_id not in found and await self._is_elsewhere(kept.approval_id):
                    continue
                found.add(kept.approval_id)
                told = self._told.setdefault(kept.approval_id, _Told(kept.workflow))
                told.receipts[kept.place] = kept.receipt
        for approval_id in found:
            self._run(self._take_up(approval_id))

    def adopt(self, channels: Channels) -> None:
        """A reload: the old channels stop, the new ones begin and take up what was told in the same places."""
        old, self._channels = self._all(), channels
        if self._decide is not None:
            self._run(self._replace(old, self._decide))

    def announce(self, approval_id: str, workflow: str) -> None:
        """Put a question before people, beside whatever goes on; where they have it already, nothing is said."""
        told = self._told.get(approval_id)
        for place, channel in self._placed(workflow):
            if told is None:
                told = self._told[approval_id] = _Told(workflow)
            if place not in told.receipts:
                self._run(self._tell(approval_id, place, channel))

    def changed(self, approval_id: str) -> None:
        """It stands otherwise now: whoever was told is told again."""
        told = self._told.get(approval_id)
        for place, channel in self._placed(told.workflow) if told is not None else ():
            self._run(self._tell(approval_id, place, channel))

    async def look_again(self) -> None:
        """Some may have ended without our hearing of it: whoever was told of those is told."""
        for approval_id in tuple(self._told):
            card = await self._card_of(approval_id)
            if card is None or card.state is not State.OPEN:
                self.changed(approval_id)

    async def close(self) -> None:
        jobs = list(self._jobs)
        if jobs:
            # What is just being delivered is worth a moment: without its receipt it would be told once more.
            await asyncio.wait(jobs, timeout=LAST_WORDS_S)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for channel in self._all():
            await self._close(channel)

    def _all(self) -> list[ApprovalChannel]:
        return [channel for channels in self._channels.values() for channel in channels]

    def _placed(self, workflow: str) -> Iterator[tuple[str, ApprovalChannel]]:
        """The channels of a workflow with the names of their places; two at the same place are told apart by their order."""
        seen: dict[str, int] = {}
        for channel in self._channels.get(workflow, ()):
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
        for approval_id in list(self._told):
            await self._take_up(approval_id)

    async def _take_up(self, approval_id: str) -> None:
        """Told before a restart or a reload: go on listening there, or show there how it ended meanwhile."""
        told, card = self._told[approval_id], await self._card_of(approval_id)
        for place, channel in self._placed(told.workflow):
            receipt = told.receipts.get(place)
            if receipt is None:
                continue
            if card is None or card.state is not State.OPEN:
                await self._tell(approval_id, place, channel)
            else:
                await self._guarded(channel, approval_id, channel.resume(card, receipt))

    async def _tell(self, approval_id: str, place: str, channel: ApprovalChannel) -> None:
        """Show one place how the approval stands, for as long as that changes while it is being told."""
        told = self._told.get(approval_id)
        if told is None:
            return
        async with told.turns.setdefault(place, asyncio.Lock()):
            shown: Card | None = None
            while True:
                card, receipt = await self._card_of(approval_id), told.receipts.get(place)
                if card is None or (receipt is None and card.state is not State.OPEN):
                    await self._forget(approval_id, told, place)
                    return
                if shown is not None and (shown.state, shown.votes) == (card.state, card.votes):
                    return
                sent = await self._guarded(
                    channel, approval_id, channel.announce(card) if receipt is None else channel.update(card, receipt)
                )
                if not await self._noted(approval_id, told, place, card, sent):
                    return
                shown = card

    async def _noted(self, approval_id: str, told: _Told, place: str, card: Card, sent: Delivery | None) -> bool:
        """Write down what came of it; False when there is nothing more to tell there."""
        if not isinstance(sent, Delivered):
            if sent is not None and sent.lasting and card.state is not State.OPEN:
                await self._forget(approval_id, told, place)
            return False
        if card.state is not State.OPEN:
            await self._forget(approval_id, told, place)
            return False
        if told.receipts.get(place) != sent.receipt:
            told.receipts[place] = sent.receipt
            await self._stored(self._store.put_receipt(StoredReceipt(approval_id, place, told.workflow, sent.receipt)))
        return True

    async def _forget(self, approval_id: str, told: _Told, place: str) -> None:
        """It is over, and this place shows it or never will."""
        if told.receipts.pop(place, None) is not None:
            await self._stored(self._store.drop_receipt(approval_id, place))
        if not told.receipts and self._told.get(approval_id) is told:
            del self._told[approval_id]

    async def _stored(self, write: Awaitable[None]) -> None:
        """A store in trouble costs at most a second message after a restart."""
        try:
            await write
        except GatewayFault as fault:
            log.warning("receipt not kept", why=fault.message)

    async def _guarded(
        self, channel: ApprovalChannel, approval_id: str, delivery: Awaitable[Delivery | None]
    ) -> Delivery | None:
        """Around one delivery: a broken channel is a line in the log, never a broken approval."""
        try:
            async with asyncio.timeout(DELIVERY_S):
                sent = await delivery
        except TimeoutError:
            log.warning("approval not delivered", channel=channel.name, approval=approval_id, why="it took too long")
            return None
        except Exception as fault:  # one delivery, by code that talks to foreign services
            log.error("approval not delivered", channel=channel.name, approval=approval_id, exc_info=fault)
            return None
        if sent is not None and not isinstance(sent, Delivered):
            log.warning("approval not delivered", channel=channel.name, approval=approval_id, why=sent.reason)
        return sent

    async def _start(self, channel: ApprovalChannel, decide: Decide) -> None:
        try:
            await channel.start(decide)
        except Exception as fault:  # one channel: the others and the inbox must come up without it
            log.error("approval channel did not start; the inbox goes on", channel=channel.name, exc_info=fault)

    async def _close(self, channel: ApprovalChannel) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await channel.close()
        except Exception as fault:  # one channel, while everything closes: the rest must be closed too
            log.warning("approval channel did not close", channel=channel.name, why=str(fault))


# The question that is put to people about one call: what it is bound to, and how it stands in the audit log.

MAX_AUDITED_ARGUMENTS: Final = 16_384


def question(
    plan: Plan, approval_id: str, asked: Asked, needs: NeedsApproval, caller: str, *, wire_name: str, limit_key: str
) -> ApprovalRequest:
    """Bound to everything that people will agree to."""
    return ApprovalRequest(
        approval_id,
        workflow_named(plan.gates, needs.workflow),
        f"{needs.rule}: {needs.reason}" if needs.reason else needs.rule,
        binding_of(plan, asked),
        caller,
        wire_name,
        asked.arguments,
        asked.scope_revision,
        limit_key,
    )


def audit_of(plan: Plan, asked: ApprovalRequest, task_id: str = "") -> AuditEntry:
    """The row that says what was asked, with its arguments as approvers see them."""
    redacted = plan.governing.redaction(asked.workflow.name).redact(value_of(asked.arguments))
    small = len(asked.arguments) <= MAX_AUDITED_ARGUMENTS
    bound = asked.binding
    return AuditEntry(
        0,
        "approval_asked",
        bound.principal,
        bound.scope,
        bound.server,
        bound.tool,
        bound.kind.value,
        bound.arguments_digest,
        redacted.value if small else None,
        redacted.hidden,
        asked.rule,
        "held",
        revisions(bound.policy_revision, asked.scope_revision),
        asked.id,
        task_id=task_id,
    )


def value_of(arguments: bytes) -> Any:
    """The arguments as a value to show; what cannot be read strictly is shown as the text it is."""
    try:
        return strict_value(arguments)
    except AmbiguousJson:
        return arguments.decode("utf-8", "replace")
