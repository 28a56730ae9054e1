"""Polls the reactions on open Slack cards, for workspaces without Socket Mode.

One loop reads each open card in turn. Denials on a card are processed before approvals. Deleted and expired cards are dropped; a
revoked token ends the loop. The inbox works in every case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from taskgate import clock
from taskgate.channels.slack_api import SlackApi, SlackError
from taskgate.core.governance.approval import Verdict
from taskgate.telemetry.logs import log

APPROVE_REACTIONS = frozenset({"white_check_mark", "heavy_check_mark", "+1", "thumbsup"})
DENY_REACTIONS = frozenset({"x", "no_entry", "no_entry_sign", "-1", "thumbsdown"})
MAX_WATCHED = 10_000


class WatchedCard(msgspec.Struct, frozen=True):
    """One open card. `may_approve` is false for a card that does not show all arguments."""

    approval_id: str
    arguments_digest: str
    channel: str
    ts: str
    expires_at_ms: int
    may_approve: bool


OnReaction = Callable[[WatchedCard, Verdict, str], Awaitable[None]]


class ReactionWatch:
    """The polling loop over open cards."""

    def __init__(
        self, api: SlackApi, on_reaction: OnReaction, interval_s: float, *, now_s: Callable[[], float] | None = None
    ) -> None:
        self._api = api
        self._on_reaction = on_reaction
        self._interval_s = interval_s
        self._now_s = now_s or clock.wall
        self._cards: dict[str, WatchedCard] = {}
        self._reported: dict[str, set[tuple[str, Verdict]]] = {}
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start polling."""
        self._loop = asyncio.create_task(self._run(), name="slack-reactions")

    def add(self, card: WatchedCard) -> None:
        """Poll this card from now on. Beyond the limit the oldest card is dropped; it can be decided in the inbox."""
        while len(self._cards) >= MAX_WATCHED:
            self.forget(next(iter(self._cards)))
        self._cards[card.approval_id] = card

    def forget(self, approval_id: str) -> None:
        """Stop polling a card."""
        self._cards.pop(approval_id, None)
        self._reported.pop(approval_id, None)

    async def close(self) -> None:
        """Stop polling and wait for the loop to end."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            for card in tuple(self._cards.values()):
                if self._now_s() * 1_000 >= card.expires_at_ms:
                    self.forget(card.approval_id)
                elif card.approval_id in self._cards and not await self._poll(card):
                    return
            await clock.sleep(self._interval_s)

    async def _poll(self, card: WatchedCard) -> bool:
        """Poll one card; False when polling cannot succeed any more."""
        try:
            await self._read_reactions(card)
        except SlackError as error:
            if error.gone:
                log.info("slack_card_deleted", approval=card.approval_id)
                self.forget(card.approval_id)
            elif error.permanent:
                log.error("slack_reactions_stopped", error=error.code)
                return False
            else:
                log.warning("slack_reactions_failed", error=error.code)
        except Exception as error:  # background loop: an error on one card must not end polling
            log.error("slack_reaction_fault", approval=card.approval_id, error=type(error).__name__)
        return True

    async def _read_reactions(self, card: WatchedCard) -> None:
        reactions = await self._api.reactions(card.channel, card.ts)
        decisions = [
            (verdict, user) for verdict in (Verdict.DENY, Verdict.APPROVE) for user in _users(reactions, verdict)
        ]
        for verdict, user in decisions:
            reported = self._reported.setdefault(card.approval_id, set())
            if (user, verdict) in reported or (verdict is Verdict.APPROVE and not card.may_approve):
                continue
            await self._on_reaction(card, verdict, user)
            reported.add((user, verdict))


def _users(reactions: list[Mapping[str, Any]], verdict: Verdict) -> list[str]:
    names = APPROVE_REACTIONS if verdict is Verdict.APPROVE else DENY_REACTIONS
    found: dict[str, None] = {}
    for reaction in reactions:
        # A skin tone follows after two colons: `+1::skin-tone-3`.
        if str(reaction.get("name", "")).partition("::")[0] in names:
            found.update(dict.fromkeys(str(user) for user in reaction.get("users", ())))
    return list(found)
