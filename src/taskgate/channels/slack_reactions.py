"""Polls the reactions on open Slack cards, for workspaces without Socket Mode.

One loop reads each open card in turn. Denials on a card are processed before approvals. Deleted and expired cards are dropped; a
revoked token ends the loop. The inbox works in every case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taskgate import clock
from taskgate.channels.slack_api import SlackApi, SlackTrouble
from taskgate.core.governance.approval import Verdict
from taskgate.telemetry.logs import log

YES = frozenset({"white_check_mark", "heavy_check_mark", "+1", "thumbsup"})
NO = frozenset({"x", "no_entry", "no_entry_sign", "-1", "thumbsdown"})
MAX_WATCHED = 10_000


@dataclass(frozen=True, slots=True)
class Watched:
    """One open card. `may_approve` is false for a card that could not show everything."""

    approval_id: str
    arguments_digest: str
    channel: str
    ts: str
    expires_at_ms: int
    may_approve: bool


Hear = Callable[[Watched, Verdict, str], Awaitable[None]]


class ReactionWatch:
    """The loop over open cards. `start` begins it, `close` ends it."""

    def __init__(
        self, api: SlackApi, hear: Hear, interval_s: float, *, now_s: Callable[[], float] | None = None
    ) -> None:
        self._api = api
        self._hear = hear
        self._interval_s = interval_s
        self._now_s = now_s or clock.wall
        self._cards: dict[str, Watched] = {}
        self._heard: dict[str, set[tuple[str, Verdict]]] = {}
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._loop = asyncio.create_task(self._run(), name="slack-reactions")

    def add(self, card: Watched) -> None:
        """Visit this card from now on. Beyond the limit the oldest card is left to the inbox."""
        while len(self._cards) >= MAX_WATCHED:
            self.forget(next(iter(self._cards)))
        self._cards[card.approval_id] = card

    def forget(self, approval_id: str) -> None:
        """Stop visiting a card."""
        self._cards.pop(approval_id, None)
        self._heard.pop(approval_id, None)

    async def close(self) -> None:
        """End the loop and wait for it."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            for card in tuple(self._cards.values()):
                if self._now_s() * 1_000 >= card.expires_at_ms:
                    self.forget(card.approval_id)
                elif card.approval_id in self._cards and not await self._visited(card):
                    return
            await clock.sleep(self._interval_s)

    async def _visited(self, card: Watched) -> bool:
        """Look at one card; False when looking has become useless altogether."""
        try:
            await self._look(card)
        except SlackTrouble as trouble:
            if trouble.gone:
                log.info("slack_card_deleted", approval=card.approval_id)
                self.forget(card.approval_id)
            elif trouble.lasting:
                log.error("slack_reactions_stopped", error=trouble.code)
                return False
            else:
                log.warning("slack_reactions_failed", error=trouble.code)
        except Exception as error:  # one background loop: a fault on one card must not end the looking
            log.error("slack_reaction_fault", approval=card.approval_id, error=type(error).__name__)
        return True

    async def _look(self, card: Watched) -> None:
        reactions = await self._api.reactions(card.channel, card.ts)
        said = [(verdict, user) for verdict in (Verdict.DENY, Verdict.APPROVE) for user in _users(reactions, verdict)]
        for verdict, user in said:
            heard = self._heard.setdefault(card.approval_id, set())
            if (user, verdict) in heard or (verdict is Verdict.APPROVE and not card.may_approve):
                continue
            await self._hear(card, verdict, user)
            heard.add((user, verdict))


def _users(reactions: list[Mapping[str, Any]], verdict: Verdict) -> list[str]:
    names = YES if verdict is Verdict.APPROVE else NO
    found: dict[str, None] = {}
    for reaction in reactions:
        # A skin tone comes after two colons: `+1::skin-tone-3`.
        if str(reaction.get("name", "")).partition("::")[0] in names:
            found.update(dict.fromkeys(str(user) for user in reaction.get("users", ())))
    return list(found)
