"""The Slack methods that a card needs, with Slack's errors classified.

A rate limit is waited out as long as Slack requires, a bounded number of times; Slack has then done nothing, so a retry is safe. A
revoked token or a missing channel is permanent until the configuration changes. A deleted message is not an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient

MAX_ATTEMPTS = 4
LONGEST_PAUSE_S = 60.0
PERMANENT_ERRORS = frozenset(
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


class SlackError(Exception):
    """A request to Slack failed. `code` is Slack's error code, or `unreachable`."""

    def __init__(self, code: str) -> None:
        super().__init__(f"slack: {code}")
        self.code = code

    @property
    def permanent(self) -> bool:
        return self.code in PERMANENT_ERRORS

    @property
    def gone(self) -> bool:
        return self.code in GONE


class SlackApi(msgspec.Struct, eq=False):
    """Slack's Web API with bounded retries."""

    client: AsyncWebClient
    _pause: Pause

    async def post(self, channel: str, text: str, blocks: list[dict[str, Any]]) -> tuple[str, str]:
        """Post a message; return the channel's id and the message's timestamp, which together identify it."""
        reply = await self._call(
            lambda: self.client.chat_postMessage(
                channel=channel, text=text, blocks=blocks, unfurl_links=False, unfurl_media=False
            )
        )
        return str(reply["channel"]), str(reply["ts"])

    async def update(self, channel: str, ts: str, text: str, blocks: list[dict[str, Any]]) -> None:
        """Replace a message."""
        await self._call(lambda: self.client.chat_update(channel=channel, ts=ts, text=text, blocks=blocks))

    async def post_ephemeral(self, channel: str, user: str, text: str) -> None:
        """Post a message that only one user sees."""
        await self._call(lambda: self.client.chat_postEphemeral(channel=channel, user=user, text=text))

    async def open_view(self, trigger_id: str, view: dict[str, Any]) -> None:
        """Open a dialog for the person who pressed a button."""
        await self._call(lambda: self.client.views_open(trigger_id=trigger_id, view=view))

    async def reactions(self, channel: str, ts: str) -> list[Mapping[str, Any]]:
        """The reactions on a message, with their users."""
        reply = await self._call(lambda: self.client.reactions_get(channel=channel, timestamp=ts, full=True))
        message = reply.get("message")
        return list(message.get("reactions", [])) if isinstance(message, Mapping) else []

    async def _call(self, send: Callable[[], Awaitable[Any]]) -> Mapping[str, Any]:
        attempts_left = MAX_ATTEMPTS
        while True:
            attempts_left -= 1
            try:
                reply = await send()
            except SlackApiError as error:
                code, wait_s = _classified(error)
                if wait_s is None or not attempts_left:
                    raise SlackError(code) from error
                await self._pause(wait_s)
            except (SlackClientError, aiohttp.ClientError, OSError, TimeoutError) as error:
                raise SlackError("unreachable") from error
            else:
                return dict(reply.data) if isinstance(reply.data, dict) else {}


def _classified(error: SlackApiError) -> tuple[str, float | None]:
    """Slack's error code, and the time to wait if the error is a rate limit."""
    response = error.response
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    data = getattr(response, "data", None)
    code = str(data.get("error", "unknown_error")) if isinstance(data, Mapping) else "unreadable"
    if status == 429 or code == "ratelimited":
        retry_after = str(response.headers.get("Retry-After", "30"))
        return "ratelimited", min(
            float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 30.0, LONGEST_PAUSE_S
        )
    return code, None
