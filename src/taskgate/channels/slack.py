"""Asking in a Slack channel: a card with buttons over Socket Mode, or a card that people react to where Socket
Mode is not allowed.

Who pressed a button is Slack's word, over a connection that our app token opened; the configuration maps Slack's
user ids to the ids of tokens, and somebody who is not in that map cannot decide. Needs the extra `slack`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from taskgate import clock
from taskgate.channels import slack_blocks
from taskgate.channels.slack_api import Pause, SlackApi, SlackTrouble
from taskgate.channels.slack_reactions import ReactionWatch, Watched
from taskgate.core.governance.approval import State, Verdict
from taskgate.core.governance.card import Card
from taskgate.ports.approval_channel import Decide, Delivered, Delivery, NotDelivered, VoteRequest
from taskgate.telemetry.logs import log

CONNECT_DEADLINE_S = 10.0
_STRANGER = "You are not known to the gateway as an approver. Ask its operator to add your Slack id."


@dataclass(frozen=True, slots=True)
class SlackSettings:
    """One configured Slack channel. Without `app_token` people answer by reactions."""

    channel: str
    bot_token: str = field(repr=False)
    app_token: str | None = field(default=None, repr=False)
    approvers: Mapping[str, str] = field(default_factory=dict)
    poll_interval_s: float = 5.0
    api_url: str = "https://slack.com/api/"
    timeout_s: int = 10


class SlackChannel:
    """One Slack channel in which approvals are asked for."""

    name = "slack"

    def __init__(
        self, settings: SlackSettings, *, pause: Pause = clock.sleep, now_s: Callable[[], float] | None = None
    ) -> None:
        self._settings = settings
        quiet = logging.getLogger("taskgate.channels.slack.sdk")
        # The library logs request bodies at DEBUG; arguments of held calls do not belong there.
        quiet.setLevel(logging.WARNING)
        self._sdk_log = quiet
        client = AsyncWebClient(
            token=settings.bot_token,
            base_url=settings.api_url,
            timeout=settings.timeout_s,
            logger=quiet,
            retry_handlers=[],
        )
        self._api = SlackApi(client, pause=pause)
        self._decide: Decide | None = None
        self._socket: SocketModeClient | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._watch = ReactionWatch(self._api, self._hear_reaction, settings.poll_interval_s, now_s=now_s)

    @property
    def place(self) -> str:
        return f"slack {self._settings.channel}"

    @property
    def buttons(self) -> bool:
        """Whether cards have buttons, or ask for reactions."""
        return self._settings.app_token is not None

    async def start(self, decide: Decide) -> None:
        """Connect to Socket Mode, or begin to look for reactions."""
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
        except SlackTrouble as trouble:
            return NotDelivered(str(trouble), trouble.lasting)
        receipt = f"{channel} {ts}"
        await self.resume(card, receipt)
        return Delivered(receipt)

    async def update(self, card: Card, receipt: str) -> Delivery:
        """Redraw the card. A card that somebody deleted is left alone."""
        channel, _, ts = receipt.partition(" ")
        if card.state is not State.OPEN:
            self._watch.forget(card.approval_id)
        try:
            await self._api.update(
                channel, ts, slack_blocks.fallback_text(card), slack_blocks.blocks(card, buttons=self.buttons)
            )
        except SlackTrouble as trouble:
            if trouble.gone:
                return Delivered(receipt)
            return NotDelivered(str(trouble), trouble.lasting)
        return Delivered(receipt)

    async def resume(self, card: Card, receipt: str) -> None:
        """Look at the reactions of a card again; buttons need nothing, they carry what they mean."""
        if not self.buttons and card.state is State.OPEN:
            channel, _, ts = receipt.partition(" ")
            self._watch.add(
                Watched(
                    card.approval_id, card.arguments_digest, channel, ts, card.expires_at_ms, slack_blocks.whole(card)
                )
            )

    async def close(self) -> None:
        """Stop listening."""
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
            # The library retries for ever; a token that will never work is told apart first.
            socket.wss_uri = await socket.issue_new_wss_url()
        except SlackApiError as error:
            log.error("slack_socket_refused", error=str(error.response.get("error", "")))
            return
        except (OSError, TimeoutError) as error:
            log.warning("slack_unreachable", error=type(error).__name__)
        await socket.connect()  # type: ignore[no-untyped-call]

    async def _on_request(self, client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        # Slack wants to hear within three seconds that we got it, whatever we make of it.
        await client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        if request.type != "interactive":
            return
        payload = request.payload
        try:
            if payload.get("type") == "block_actions":
                await self._pressed(payload)
            elif (
                payload.get("type") == "view_submission"
                and payload["view"].get("callback_id") == slack_blocks.DENY_VIEW
            ):
                await self._reasoned(payload)
        except SlackTrouble as trouble:
            log.warning("slack_reply_failed", error=trouble.code)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            log.warning("slack_payload_unreadable", error=type(error).__name__)

    async def _pressed(self, payload: Mapping[str, Any]) -> None:
        action = payload["actions"][0]
        user, channel = str(payload["user"]["id"]), str(payload["channel"]["id"])
        approval_id, digest = slack_blocks.read_button_value(str(action["value"]))
        if user not in self._settings.approvers:
            await self._api.whisper(channel, user, _STRANGER)
        elif action["action_id"] == slack_blocks.DENY_ACTION:
            await self._api.open_view(str(payload["trigger_id"]), slack_blocks.reason_view(approval_id, digest))
        elif action["action_id"] == slack_blocks.APPROVE_ACTION:
            text = await self._say(approval_id, Verdict.APPROVE, user, "", digest)
            await self._api.whisper(channel, user, text)

    async def _reasoned(self, payload: Mapping[str, Any]) -> None:
        user, view = str(payload["user"]["id"]), payload["view"]
        approval_id, digest = slack_blocks.read_button_value(str(view["private_metadata"]))
        typed = view["state"]["values"][slack_blocks.REASON_BLOCK][slack_blocks.REASON_INPUT].get("value") or ""
        text = await self._say(approval_id, Verdict.DENY, user, str(typed), digest)
        await self._api.whisper(self._settings.channel, user, text)

    async def _hear_reaction(self, watched: Watched, verdict: Verdict, user: str) -> None:
        await self._say(watched.approval_id, verdict, user, "by reaction", watched.arguments_digest)

    async def _say(self, approval_id: str, verdict: Verdict, user: str, reason: str, digest: str) -> str:
        who = self._settings.approvers.get(user)
        if who is None:
            return _STRANGER
        if self._decide is None:
            return "The gateway is not taking decisions now."
        heard = await self._decide(VoteRequest(approval_id, verdict, who, reason, self.name, digest))
        return heard.text
