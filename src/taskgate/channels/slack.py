"""Announces approvals in a Slack channel: cards with buttons over Socket Mode, or cards that people react to.

Slack identifies the user, over a connection that our app token opened; the configuration maps Slack user ids to token ids, and a
user who is not in that map cannot decide. Needs the extra `slack`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from taskgate import clock
from taskgate.channels import slack_blocks
from taskgate.channels.slack_api import Pause, SlackApi, SlackError
from taskgate.channels.slack_reactions import ReactionWatch, WatchedCard
from taskgate.core.governance.approval import State, Verdict
from taskgate.core.governance.card import Card
from taskgate.ports.approval_channel import Decide, Delivered, Delivery, NotDelivered, VoteRequest
from taskgate.shown_fields import repr_without
from taskgate.telemetry.logs import log

CONNECT_DEADLINE_S = 10.0
_UNKNOWN_USER = (
    "You are not an approver of this gateway. Ask its operator to add your Slack user id to the configuration."
)


class SlackSettings(msgspec.Struct, frozen=True):
    """One configured Slack channel. Without `app_token`, people decide by reactions."""

    channel: str
    bot_token: str
    app_token: str | None = None
    approvers: Mapping[str, str] = msgspec.field(default_factory=dict)
    poll_interval_s: float = 5.0
    api_url: str = "https://slack.com/api/"
    timeout_s: int = 10

    __repr__ = repr_without("bot_token", "app_token")


class SlackChannel:
    """Announces approvals in one Slack channel."""

    name = "slack"

    def __init__(
        self, settings: SlackSettings, *, pause: Pause = clock.sleep, now_s: Callable[[], float] | None = None
    ) -> None:
        self._settings = settings
        quiet = logging.getLogger("taskgate.channels.slack.sdk")
        # At DEBUG the library logs request bodies, which contain arguments of held calls.
        quiet.setLevel(logging.WARNING)
        self._sdk_log = quiet
        client = AsyncWebClient(
            token=settings.bot_token,
            base_url=settings.api_url,
            timeout=settings.timeout_s,
            logger=quiet,
            retry_handlers=[],
        )
        self._api = SlackApi(client, pause)
        self._decide: Decide | None = None
        self._socket: SocketModeClient | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._watch = ReactionWatch(self._api, self._on_reaction, settings.poll_interval_s, now_s=now_s)

    @property
    def place(self) -> str:
        return f"slack {self._settings.channel}"

    @property
    def buttons(self) -> bool:
        """Whether cards have buttons; otherwise people decide by reactions."""
        return self._settings.app_token is not None

    async def start(self, decide: Decide) -> None:
        """Connect to Socket Mode, or start polling reactions."""
        self._decide = decide
        if not self.buttons:
            self._watch.start()
            return
        self._connecting = asyncio.create_task(self._connect(), name="slack-connect")
        await asyncio.wait({self._connecting}, timeout=CONNECT_DEADLINE_S)

    async def announce(self, card: Card) -> Delivery:
        """Post the card."""
        blocks = slack_blocks.blocks(card, buttons=self.buttons)
        try:
            channel, ts = await self._api.post(self._settings.channel, slack_blocks.fallback_text(card), blocks)
        except SlackError as error:
            return NotDelivered(str(error), error.permanent)
        receipt = f"{channel} {ts}"
        await self.resume(card, receipt)
        return Delivered(receipt)

    async def update(self, card: Card, receipt: str) -> Delivery:
        """Update the card. A deleted card is ignored."""
        channel, _, ts = receipt.partition(" ")
        if card.state is not State.OPEN:
            self._watch.forget(card.approval_id)
        try:
            await self._api.update(
                channel, ts, slack_blocks.fallback_text(card), slack_blocks.blocks(card, buttons=self.buttons)
            )
        except SlackError as error:
            if error.gone:
                return Delivered(receipt)
            return NotDelivered(str(error), error.permanent)
        return Delivered(receipt)

    async def resume(self, card: Card, receipt: str) -> None:
        """Continue polling the reactions on a card after a restart; buttons need nothing."""
        if not self.buttons and card.state is State.OPEN:
            channel, _, ts = receipt.partition(" ")
            self._watch.add(
                WatchedCard(
                    approval_id=card.approval_id,
                    arguments_digest=card.arguments_digest,
                    channel=channel,
                    ts=ts,
                    expires_at_ms=card.expires_at_ms,
                    may_approve=slack_blocks.whole(card),
                )
            )

    async def close(self) -> None:
        """Close the connection and stop polling."""
        self._decide = None
        await self._watch.close()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()  # type: ignore[no-untyped-call]

    async def _connect(self) -> None:
        socket = SocketModeClient(self._settings.app_token or "", logger=self._sdk_log, web_client=self._api.client)
        self._socket = socket
        socket.socket_mode_request_listeners.append(self._on_request)
        try:
            # The library retries indefinitely, so an invalid token is detected first.
            socket.wss_uri = await socket.issue_new_wss_url()
        except SlackApiError as error:
            log.error("slack_socket_refused", error=str(error.response.get("error", "")))
            return
        except (OSError, TimeoutError) as error:
            log.warning("slack_unreachable", error=type(error).__name__)
        await socket.connect()  # type: ignore[no-untyped-call]

    async def _on_request(self, client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        # Slack requires an acknowledgement within three seconds, before the request is processed.
        await client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        if request.type != "interactive":
            return
        payload = request.payload
        try:
            if payload.get("type") == "block_actions":
                await self._on_button(payload)
            elif (
                payload.get("type") == "view_submission"
                and payload["view"].get("callback_id") == slack_blocks.DENY_VIEW
            ):
                await self._on_deny_reason(payload)
        except SlackError as error:
            log.warning("slack_reply_failed", error=error.code)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            log.warning("slack_payload_unreadable", error=type(error).__name__)

    async def _on_button(self, payload: Mapping[str, Any]) -> None:
        action = payload["actions"][0]
        user, channel = str(payload["user"]["id"]), str(payload["channel"]["id"])
        approval_id, digest = slack_blocks.read_button_value(str(action["value"]))
        if user not in self._settings.approvers:
            await self._api.post_ephemeral(channel, user, _UNKNOWN_USER)
        elif action["action_id"] == slack_blocks.DENY_ACTION:
            await self._api.open_view(str(payload["trigger_id"]), slack_blocks.reason_view(approval_id, digest))
        elif action["action_id"] == slack_blocks.APPROVE_ACTION:
            text = await self._decide_as(approval_id, Verdict.APPROVE, user, "", digest)
            await self._api.post_ephemeral(channel, user, text)

    async def _on_deny_reason(self, payload: Mapping[str, Any]) -> None:
        user, view = str(payload["user"]["id"]), payload["view"]
        approval_id, digest = slack_blocks.read_button_value(str(view["private_metadata"]))
        typed = view["state"]["values"][slack_blocks.REASON_BLOCK][slack_blocks.REASON_INPUT].get("value") or ""
        text = await self._decide_as(approval_id, Verdict.DENY, user, str(typed), digest)
        await self._api.post_ephemeral(self._settings.channel, user, text)

    async def _on_reaction(self, watched: WatchedCard, verdict: Verdict, user: str) -> None:
        await self._decide_as(watched.approval_id, verdict, user, "by reaction", watched.arguments_digest)

    async def _decide_as(self, approval_id: str, verdict: Verdict, user: str, reason: str, digest: str) -> str:
        approver = self._settings.approvers.get(user)
        if approver is None:
            return _UNKNOWN_USER
        if self._decide is None:
            return "The gateway is not accepting decisions now. Decide in the console."
        reply = await self._decide(
            VoteRequest(
                approval_id=approval_id,
                verdict=verdict,
                approver=approver,
                reason=reason,
                channel=self.name,
                arguments_digest=digest,
            )
        )
        return reply.text
