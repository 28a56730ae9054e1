"""Announces approvals by signed HTTP requests and receives decisions by signed callbacks.

docs/approval-channels.md documents both. The id of a message stays the same over its retries, so a receiver can drop duplicates
and a retry is safe. A callback is authenticated by the same secret, must repeat the digest of the arguments that it was shown, and
names the approver by the id of their token. The gateway then checks whether that person may decide.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Mapping

import httpx2
import msgspec

from taskgate import clock
from taskgate.channels.card_json import card_json
from taskgate.channels.webhook_signature import BadSignature, check_signature, key_of, signed_headers
from taskgate.core import wire
from taskgate.core.governance.approval import Refusal, Verdict
from taskgate.core.governance.card import Card
from taskgate.core.identity.caller import OPERATOR
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.ports.approval_channel import (
    OTHER_ARGUMENTS,
    UNKNOWN_APPROVAL,
    CallbackReply,
    Decide,
    Delivered,
    Delivery,
    NotDelivered,
    VoteRequest,
)
from taskgate.shown_fields import repr_without

MAX_CALLBACK_BYTES = 65_536
LONGEST_PAUSE_S = 60.0
REQUESTED, UPDATED = "approval.requested", "approval.updated"
_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_STATUS_OF = {
    UNKNOWN_APPROVAL: 404,
    OTHER_ARGUMENTS: 409,
    Refusal.NOT_AN_APPROVER: 403,
    Refusal.OWN_CALL: 403,
    Refusal.ALREADY_DECIDED: 409,
    Refusal.ALREADY_VOTED: 409,
    Refusal.EXPIRED: 410,
}

Pause = Callable[[float], Awaitable[None]]


class _Callback(msgspec.Struct, forbid_unknown_fields=True):
    approval_id: str
    verdict: Verdict
    approver: str
    arguments_digest: str
    reason: str = ""


class WebhookSettings(msgspec.Struct, frozen=True):
    """One configured webhook. The receiver sends its decision to `callback_url`."""

    url: str
    secret: str
    callback_url: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    timeout_s: float = 10.0
    retries: int = 5
    operator_may_decide: bool = True
    """Whether a callback may decide as the operator; False where the operator needs a passphrase."""

    __repr__ = repr_without("secret", "headers")


class _Retry(msgspec.Struct, frozen=True):
    why: str
    after_s: float | None = None


class WebhookChannel:
    """One receiver of signed requests."""

    name = "webhook"

    def __init__(
        self,
        settings: WebhookSettings,
        client: httpx2.AsyncClient,
        *,
        pause: Pause = clock.sleep,
        now_s: Callable[[], float] | None = None,
        store_now_s: Callable[[], float] | None = None,
    ) -> None:
        """`now_s` is the time of day, which the receiver compares with its own; approvals end by the store's clock."""
        self._settings = settings
        self._key = key_of(settings.secret)
        self._client = client
        self._pause = pause
        self._now_s = now_s or clock.wall
        self._store_now_s = store_now_s or self._now_s
        self._decide: Decide | None = None

    @property
    def place(self) -> str:
        # The address may hold a token.
        return f"webhook {hashlib.sha256(self._settings.url.encode()).hexdigest()[:16]}"

    async def start(self, decide: Decide) -> None:
        """Accept callbacks, which arrive through `receive`."""
        self._decide = decide

    async def announce(self, card: Card) -> Delivery:
        """Send the approval; retried until it is accepted, permanently refused or expired."""
        return await self._deliver(REQUESTED, f"{card.approval_id}.requested", card)

    async def update(self, card: Card, receipt: str) -> Delivery:
        """Send the current state. The message id differs for each state and number of votes."""
        message_id = f"{card.approval_id}.{card.state.value}.{len(card.votes)}"
        return await self._deliver(UPDATED, message_id, card)

    async def resume(self, card: Card, receipt: str) -> None:
        """Nothing to resume: the receiver has the message."""

    async def close(self) -> None:
        """Stop accepting callbacks. The caller owns the HTTP client."""
        self._decide = None

    async def receive(self, headers: Mapping[str, str], body: bytes) -> CallbackReply:
        """Process one callback; it is authenticated before it is parsed."""
        if len(body) > MAX_CALLBACK_BYTES:
            return _reply(413, "the callback is too large")
        try:
            check_signature(self._key, headers, body, self._now_s())
            callback = msgspec.convert(wire.parse_strictly(body), _Callback)
        except BadSignature as error:
            return _reply(401, str(error))
        except (wire.MalformedJson, *UNDECODABLE) as error:
            return _reply(400, f"invalid callback: {error}")
        if callback.approver == OPERATOR and not self._settings.operator_may_decide:
            return _reply(403, "decisions of the operator require a passphrase, which a webhook cannot send")
        if self._decide is None:
            return _reply(503, "the gateway is not accepting decisions now")
        reply = await self._decide(
            VoteRequest(
                approval_id=callback.approval_id,
                verdict=callback.verdict,
                approver=callback.approver,
                reason=callback.reason,
                channel=self.name,
                arguments_digest=callback.arguments_digest,
            )
        )
        return _reply(_STATUS_OF.get(reply.refusal, 409) if reply.refusal else 200, reply.text)

    async def _deliver(self, kind: str, message_id: str, card: Card) -> Delivery:
        message: dict[str, object] = {"type": kind, "approval": card_json(card)}
        if self._settings.callback_url is not None:
            message["callback_url"] = self._settings.callback_url
        # The standard encoder, because differences may contain integers of any size.
        body = json.dumps(message, ensure_ascii=False).encode()
        outcome = await self._attempt(message_id, body)
        for repeat in range(1, self._settings.retries + 1):
            if not isinstance(outcome, _Retry):
                return outcome
            if kind == REQUESTED and self._store_now_s() * 1_000 >= card.expires_at_ms:
                break
            await self._pause(_pause_before(repeat, outcome))
            outcome = await self._attempt(message_id, body)
        if isinstance(outcome, _Retry):
            return NotDelivered(f"the webhook could not be reached: {outcome.why}", permanent=False)
        return outcome

    async def _attempt(self, message_id: str, body: bytes) -> Delivery | _Retry:
        signed = signed_headers(self._key, message_id, int(self._now_s()), body)
        headers = {**self._settings.headers, "content-type": "application/json", **signed}
        try:
            async with self._client.stream(
                "POST",
                self._settings.url,
                content=body,
                headers=headers,
                timeout=self._settings.timeout_s,
                follow_redirects=False,
            ) as response:
                status, retry_after = response.status_code, response.headers.get("retry-after", "")
        except httpx2.TransportError as error:
            return _Retry(type(error).__name__)
        if 200 <= status < 300:
            return Delivered(message_id)
        if status in _RETRYABLE:
            usable = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10
            return _Retry(f"HTTP {status}", float(retry_after) if usable else None)
        return NotDelivered(f"the webhook answered HTTP {status}", permanent=status in (401, 403, 404, 410))


def _pause_before(repeat: int, outcome: _Retry) -> float:
    if outcome.after_s is not None:
        return min(outcome.after_s, LONGEST_PAUSE_S)
    longest = min(0.5 * 2.0**repeat, LONGEST_PAUSE_S)
    return longest * (0.5 + random.random() / 2)


def _reply(status: int, text: str) -> CallbackReply:
    return CallbackReply(status, msgspec.json.encode({"ok": status == 200, "message": text}))
