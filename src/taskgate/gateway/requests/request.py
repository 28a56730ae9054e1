"""One request of a caller: who requests what, in which generation. Immutable.

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
from taskgate.core.generations.generation import PROGRESS_TOKEN, Generation
from taskgate.core.generations.stateless import CAPABILITIES, CLIENT_INFO, Envelope
from taskgate.core.identity.addressees import NO_CONVERSATION
from taskgate.core.identity.caller import ANONYMOUS, Caller
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.meta import META
from taskgate.core.scoping.session_request import NO_WISH, SessionRequest
from taskgate.core.wire import Members, Message, Raw
from taskgate.gateway.requests.client_label import CLIENT_META, client_label
from taskgate.gateway.requests.delivery import ReplyDelivery
from taskgate.gateway.requests.session import Session
from taskgate.ports.outlet import ReplyOutlet
from taskgate.ports.upstream import LinkKey
from taskgate.turns import LARGE_BYTES, let_others_run

_NEVER = float("inf")
_STARTED: Final = secrets.token_hex(8)
_numbers = itertools.count(1)
_NO_HEADERS: Final[dict[bytes, bytes]] = {}


class Request(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    message: Message
    params: dict[str, Any]
    caller: Caller
    session: Session | None
    envelope: Envelope | None
    generation: Generation
    narrowing: SessionRequest
    headers: Mapping[bytes, bytes]
    progress_token: Raw | None
    """The caller's own token, exactly as written, or None if it does not want progress."""
    arrived: float
    """When the whole of it had arrived, by the monotonic clock, where the transport knows."""
    own_key: str
    """A name that nobody else has: for a request of an anonymous caller that belongs to no conversation."""
    delivery: ReplyDelivery
    inner: bool = False
    """Made by one of our own tools on behalf of the caller."""
    vendor_id: str | None = None
    """Under which id the vendor method that made this call will know its task."""
    large_members: dict[int, tuple[Message, Members]] = msgspec.field(default_factory=dict)
    """The members of large params, once they were asked for: finding them takes milliseconds."""

    @classmethod
    def opened(
        cls,
        message: Message,
        caller: Caller,
        outlet: ReplyOutlet,
        session: Session | None = None,
        envelope: Envelope | None = None,
        *,
        narrowing: SessionRequest = NO_WISH,
        headers: Mapping[bytes, bytes] = _NO_HEADERS,
        carrier: asyncio.Task[Any] | None = None,
        arrived: float = _NEVER,
        vendor_id: str | None = None,
    ) -> Request:
        """A request as a transport hands it in; its reply leaves by the outlet."""
        params: dict[str, Any] = message.params or {}
        meta = params.get(META)
        token = meta.get(PROGRESS_TOKEN) if type(meta) is dict else None
        named = session is not None or caller.principal != ANONYMOUS
        return cls(
            message=message,
            params=params,
            caller=caller,
            session=session,
            envelope=envelope,
            generation=Generation.STATEFUL if session is not None else Generation.STATELESS,
            narrowing=session.narrowing if session is not None else narrowing,
            headers=headers,
            progress_token=Raw(wire.encode(token)) if type(token) in (str, int) else None,
            arrived=arrived,
            own_key="" if named else f"{NO_CONVERSATION}{_STARTED}-{next(_numbers)}",
            vendor_id=vendor_id,
            delivery=ReplyDelivery(
                outlet=outlet,
                message_id=message.id,
                session=session,
                envelope=envelope,
                inbox=session.profile.inbox if session is not None else False,
                carrier=carrier,
            ),
        )

    @property
    def caller_key(self) -> str:
        """Whose lists, events and inboxes these are: the principal's, or for anonymous callers their conversation's.

        An anonymous stateless caller that does not say which client it is has no conversation: what it starts is found by its
        unguessable id alone, and nobody else is told of it.
        """
        if self.caller.principal != ANONYMOUS:
            return self.caller.principal
        if self.session is not None:
            return self.session.key
        return self._client_label() or self.own_key

    @property
    def conversation_key(self) -> ConversationKey:
        """Which conversation of its caller it belongs to: what it causes is told there while that goes on."""
        if self.session is not None:
            return self.session.conversation
        label = self._client_label() if self.caller.principal != ANONYMOUS else ""
        return ConversationKey(self.caller_key, label)

    @property
    def asking_stream(self) -> str:
        """The name of the caller's conversation, for links to remember who has calls open on them."""
        if self.session is not None:
            return self.session.stream
        meta = self.params.get(META)
        if type(meta) is dict and CLIENT_META in meta:
            return self.conversation_key.stream
        # The usual plain call, in as few steps as may be.
        return self.own_key if self.caller.principal == ANONYMOUS else self.caller.principal

    def _client_label(self) -> str:
        return client_label(self.params)

    def members(self) -> Members:
        """The params, each member as its exact bytes. The caller may change what it gets."""
        raw = self.message.raw_params
        if raw is None:
            return {}
        if len(raw) < LARGE_BYTES:
            return wire.members_of(raw)
        message, members = self.large_members.get(0, (None, {}))
        if message is not self.message:
            members = wire.members_of(raw)
            self.large_members[0] = (self.message, members)
        return dict(members)

    @property
    def client_name(self) -> str:
        info = (
            self.session.client_info
            if self.session is not None
            else (self.envelope.client_info if self.envelope else None)
        )
        name = (info or {}).get("name")
        return name if type(name) is str else ""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the caller itself declared."""
        if self.session is not None:
            return self.session.capabilities
        return self.envelope.capabilities if self.envelope is not None else {}

    @property
    def link_key(self) -> LinkKey:
        """A session has its own upstream conversations; stateless callers share one per principal and capabilities."""
        if self.session is not None:
            return self.session.link_key
        meta = wire.members_of(self.members()["_meta"])
        identity = bytes(meta.get(CAPABILITIES, Raw(b""))) + bytes(meta.get(CLIENT_INFO, Raw(b"")))
        told_apart = "caps-" + hashlib.sha256(identity).hexdigest()[:16]
        return LinkKey(
            Generation.STATELESS,
            self.caller.principal,
            told_apart,
            place=self.caller.place,
            conversation=self.asking_stream,
        )


async def next_step(request: Request) -> None:
    """Params of megabytes are looked through several times before they are sent: others have their turn in between."""
    if len(request.message.raw_params or b"") >= LARGE_BYTES:
        await let_others_run()
