"""One request of a caller: its message, caller, session and generation. Immutable.

The delivery of its reply, and its state until then, are in `delivery`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.generations.generation import PROGRESS_TOKEN, STATEFUL, STATELESS, Generation
from taskgate.core.generations.stateless import CAPABILITIES, CLIENT_INFO, Envelope
from taskgate.core.identity.addressees import NO_CONVERSATION
from taskgate.core.identity.caller import ANONYMOUS, Caller
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.meta import META
from taskgate.core.scoping.session_request import NO_REQUEST, SessionRequest
from taskgate.core.wire import Members, Message, Raw
from taskgate.gateway.requests.client_label import CLIENT_META, client_label
from taskgate.gateway.requests.delivery import ReplyDelivery
from taskgate.gateway.requests.session import Session
from taskgate.ports.link import LinkKey
from taskgate.ports.outlet import ReplyOutlet
from taskgate.turns import LARGE_BYTES, let_others_run

LONGEST_CLIENT: Final = 120
"""Longer names of client programs are cut before they are compared or stored."""
_NEVER = float("inf")
_STARTED: Final = secrets.token_hex(8)
_numbers = itertools.count(1)
_NO_HEADERS: Final[dict[bytes, bytes]] = {}


class Request(msgspec.Struct, frozen=True, eq=False):
    message: Message
    params: dict[str, Any]
    caller: Caller
    session: Session | None
    envelope: Envelope | None
    generation: Generation
    narrowing: SessionRequest
    headers: Mapping[bytes, bytes]
    progress_token: Raw | None
    """The caller's progress token as its exact bytes; None if it did not request progress."""
    arrived: float
    """When the request had arrived completely, by the monotonic clock, if the transport records it."""
    own_key: str
    """A unique key for a request of an anonymous caller without a conversation."""
    delivery: ReplyDelivery
    inner: bool = False
    """Whether one of the gateway's own tools made the request on behalf of the caller."""
    script: str = ""
    """The task of the script that made the call; empty for calls of callers."""
    script_digest: str = ""
    """The digest of the source of that script."""
    vendor_id: str | None = None
    """The task id of the vendor method that made this call."""
    rerun_of: str = ""
    """The task that this call repeats, for a person who runs it again."""

    @classmethod
    def opened(
        cls,
        message: Message,
        caller: Caller,
        outlet: ReplyOutlet,
        session: Session | None = None,
        envelope: Envelope | None = None,
        *,
        narrowing: SessionRequest = NO_REQUEST,
        headers: Mapping[bytes, bytes] = _NO_HEADERS,
        carrier: asyncio.Task[Any] | None = None,
        arrived: float = _NEVER,
        vendor_id: str | None = None,
        rerun_of: str = "",
    ) -> Request:
        """Build a request from a transport's message. Its reply is sent through the outlet."""
        params: dict[str, Any] = message.params or {}
        meta = params.get(META)
        token = meta.get(PROGRESS_TOKEN) if type(meta) is dict else None
        named = session is not None or caller.principal != ANONYMOUS
        # By position, because it is built for every call.
        return cls(
            message=message,
            params=params,
            caller=caller,
            session=session,
            envelope=envelope,
            generation=STATEFUL if session is not None else STATELESS,
            narrowing=session.narrowing if session is not None else narrowing,
            headers=headers,
            progress_token=Raw(wire.encode(token)) if type(token) in (str, int) else None,
            arrived=arrived,
            own_key="" if named else f"{NO_CONVERSATION}{_STARTED}-{next(_numbers)}",
            delivery=ReplyDelivery(
                outlet=outlet,
                message_id=message.id,
                session=session,
                envelope=envelope,
                inbox=session.profile.inbox if session is not None else False,
                carrier=carrier,
            ),
            vendor_id=vendor_id,
            rerun_of=rerun_of,
        )

    @property
    def caller_key(self) -> str:
        """The key of the caller's lists, events and inboxes: its principal, or the conversation of an anonymous caller.

        An anonymous stateless caller without a client name has no conversation: its tasks are found by their unguessable id alone,
        and no other caller is notified of them.
        """
        if self.caller.principal != ANONYMOUS:
            return self.caller.principal
        if self.session is not None:
            return self.session.key
        return client_label(self.params) or self.own_key

    @property
    def conversation_key(self) -> ConversationKey:
        """The conversation that the request belongs to, which is notified of what the request causes."""
        if self.session is not None:
            return self.session.conversation
        label = client_label(self.params) if self.caller.principal != ANONYMOUS else ""
        return ConversationKey(self.caller_key, label)

    @property
    def conversation_name(self) -> str:
        """The name of the caller's conversation, with which a link associates its open calls."""
        if self.session is not None:
            return self.session.stream
        meta = self.params.get(META)
        if type(meta) is dict and CLIENT_META in meta:
            return self.conversation_key.stream
        # The common case, kept short because it is on the path of every call.
        return self.own_key if self.caller.principal == ANONYMOUS else self.caller.principal

    def members(self) -> Members:
        """The params, each member as its exact bytes. The returned dict may be changed."""
        raw = self.message.raw_params
        if raw is None:
            return {}
        if len(raw) < LARGE_BYTES:
            return wire.members_of(raw)
        return dict(self.delivery.members_of(self.message, raw))

    @property
    def client_name(self) -> str:
        info = (
            self.session.client_info
            if self.session is not None
            else (self.envelope.client_info if self.envelope else None)
        )
        name = (info or {}).get("name")
        return name[:LONGEST_CLIENT] if type(name) is str else ""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The capabilities that the caller declared."""
        if self.session is not None:
            return self.session.capabilities
        return self.envelope.capabilities if self.envelope is not None else {}

    @property
    def link_key(self) -> LinkKey:
        """A session has its own links to servers; stateless callers share them per principal and capabilities."""
        if self.session is not None:
            return self.session.link_key
        meta = wire.members_of(self.members()["_meta"])
        identity = bytes(meta.get(CAPABILITIES, Raw(b""))) + bytes(meta.get(CLIENT_INFO, Raw(b"")))
        identity_key = "caps-" + hashlib.sha256(identity).hexdigest()[:16]
        return LinkKey(
            STATELESS,
            self.caller.principal,
            identity_key,
            place=self.caller.place,
            conversation=self.conversation_name,
        )


async def yield_if_large(request: Request) -> None:
    """Let other requests run if the params are large: they are scanned several times before they are sent."""
    if len(request.message.raw_params or b"") >= LARGE_BYTES:
        await let_others_run()
