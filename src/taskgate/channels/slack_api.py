"""The few Slack methods that a card needs, with Slack's errors sorted by what they mean for us.

A rate limit is waited out as long as Slack says, a bounded number of times; it says that nothing was done, so
repeating is safe. A revoked token or a missing channel lasts until somebody changes the configuration. A deleted
message is no error of ours.

Where Socket Mode is not allowed, people react to cards instead: one loop visits every open card in turn. A denial found
on a card is heard before any approval on it. A card that was deleted, or whose time is over, is no longer visited; a token
that was revoked ends the loop. The inbox goes on in every case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient

from taskgate import clock
from taskgate.core.governance.approval import Verdict
from taskgate.telemetry.logs import log

MAX_ATTEMPTS = 4
LONGEST_PAUSE_S = 60.0
LASTING = frozenset(
    {
        "account_inactive",
        "channel_not_found",
        "invalid_auth",
        "is_archived",
        "missing_scope",
        "not_allowed_token_type",
        "not_authed",
        "not_in_channel",
        "org_login_required",
        "team_access_not_granted",
        "token_expired",
        "token_revoked",
    }
)
GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "message_deleted"})

Pause = Callable[[float], Awaitable[None]]


class SlackTrouble(Exception):
    """Slack would not or could not. `code` is Slack's own word, or `unreachable`."""

    def __init__(self, code: str) -> None:
        super().__init__(f"slack: {code}")
        self.code = code

    @property
    def lasting(self) -> bool:
        return self.code in LASTING

    @property
    def gone(self) -> bool:
        return self.code in GONE


class SlackApi:
    """Slack's Web API with a bounded patience."""

    def __init__(self, client: AsyncWebClient, *, pause: Pause = clock.sleep) -> None:
        self.client = client
        self._pause = pause

    async def post(self, channel: str, text: str, blocks: list[dict[str, Any]]) -> tuple[str, str]:
        """Post a message; gives the channel's id and the message's timestamp, which together name it."""
        said = await self._call(
            lambda: self.client.chat_postMessage(
                channel=channel, text=text, blocks=blocks, unfurl_links=False, unfurl_media=False
            )
        )
        return str(said["channel"]), str(said["ts"])

    async def update(self, channel: str, ts: str, text: str, blocks: list[dict[str, Any]]) -> None:
        """Replace a message."""
        await self._call(lambda: self.client.chat_update(channel=channel, ts=ts, text=text, blocks=blocks))

    async def whisper(self, channel: str, user: str, text: str) -> None:
        """Tell one person something in a channel."""
        await self._call(lambda: self.client.chat_postEphemeral(channel=channel, user=user, text=text))

    async def open_view(self, trigger_id: str, view: dict[str, Any]) -> None:
        """Open a dialog for the person who pressed a button."""
        await self._call(lambda: self.client.views_open(trigger_id=trigger_id, view=view))

    async def reactions(self, channel: str, ts: str) -> list[Mapping[str, Any]]:
        """Who reacted to a message with what."""
        said = await self._call(lambda: self.client.reactions_get(channel=channel, timestamp=ts, full=True))
        message = said.get("message")
        return list(message.get("reactions", [])) if isinstance(message, Mapping) else []

    async def _call(self, ask: Callable[[], Awaitable[Any]]) -> Mapping[str, Any]:
        attempts_left = MAX_ATTEMPTS
        while True:
            attempts_left -= 1
            try:
                said = await ask()
            except SlackApiError as error:
                code, wait_s = _meaning(error)
                if wait_s is None or not attempts_left:
                    raise SlackTrouble(code) from error
                await self._pause(wait_s)
            except (SlackClientError, aiohttp.ClientError, OSError, TimeoutError) as error:
                raise SlackTrouble("unreachable") from error
            else:
                return dict(said.data) if isinstance(said.data, dict) else {}


def _meaning(error: SlackApiError) -> tuple[str, float | None]:
    """Slack's word for an error, and how long to wait if waiting helps."""
    response = error.response
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    data = getattr(response, "data", None)
    code = str(data.get("error", "unknown_error")) if isinstance(data, Mapping) else "unreadable"
    if status == 429 or code == "ratelimited":
        wished = str(response.headers.get("Retry-After", "30"))
        return "ratelimited", min(float(wished) if wished.isascii() and wished.isdigit() else 30.0, LONGEST_PAUSE_S)
    return code, None


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
