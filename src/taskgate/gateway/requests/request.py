"""One request from a caller: who asks for what, in which generation. It never changes.

How its reply is delivered, and what becomes of it meanwhile, is `delivery`'s business.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.addressees import NO_CONVERSATION
from taskgate.core.delivery import KEY_META
from taskgate.core.errors import CallerError
from taskgate.core.generations import CAPABILITIES, CLIENT_INFO, PROGRESS_TOKEN, Envelope, Generation
from taskgate.core.identity import ANONYMOUS, Caller, ConversationKey
from taskgate.core.scoping.registry import NO_WISH, SessionRequest
from taskgate.core.tasks.task import Task
from taskgate.core.wire import META, Members, Message, Raw, meta_of
from taskgate.gateway.requests.delivery import ReplyDelivery
from taskgate.gateway.requests.sessions import Session
from taskgate.ports.outlet import ReplyOutlet
from taskgate.ports.upstream import LinkKey
from taskgate.turns import LARGE_BYTES, let_others_run

_NEVER = float("inf")
CLIENT_META: Final = "taskgate/client"
"""Under which key of `_meta` a stateless client says what it calls itself."""
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


class Heartbeat:
    """Signs of life for a caller whose reply is held: progress that rises a little, and a sentence, every few seconds.

    Progress may never fall, so a heartbeat only ever adds a thousandth to the last value the caller saw.
    """

    def __init__(self, request: Request, interval_s: float, text: str) -> None:
        self._request = request
        self._interval_s = interval_s
        self._text = text
        self._started = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._request.progress_token is not None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        request = self._request
        token = request.progress_token
        if request.delivery.answered or token is None:
            return
        said = request.delivery.waiting_text() or self._text
        text = f"{said} ({clock.monotonic() - self._started:.0f} s)"
        request.delivery.pace.beat(
            text, lambda progress: wire.encode({PROGRESS_TOKEN: token, "progress": progress, "message": text})
        )
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)


# Under which names callers, their calls and their tasks are kept, and who may see a task.


def unknown_task() -> CallerError:
    return CallerError("unknown_task", "There is no such task, or it is no longer kept.")


def may_see(request: Request, task: Task) -> bool:
    """Bound to the principal; without authentication the unguessable id is the proof."""
    return task.principal == request.caller.principal


def fair_key(request: Request) -> str:
    """As whose turn a request waits in line: its conversation's, or that of everybody at its address."""
    key = request.caller_key
    return request.caller.limit_key if key.startswith(NO_CONVERSATION) else key


def memory_key(request: Request) -> str:
    """Under which name the values that a caller used are remembered for it.

    Empty for an anonymous caller without a conversation: nothing tells it apart from others, so nothing is remembered.
    """
    key = request.caller_key
    return "" if key.startswith(NO_CONVERSATION) else key


def fair_key_of(task: Task) -> str:
    return (task.limited_as or task.caller) if task.caller.startswith(NO_CONVERSATION) else task.caller


def idempotency_key(request: Request) -> str | None:
    key: Any = meta_of(request.params).get(KEY_META)
    if key is None:
        header = request.headers.get(b"idempotency-key")
        key = header.decode("utf-8", "replace") if header is not None else None
    if key is None:
        return None
    if type(key) is not str or not 0 < len(key) <= 255:
        raise CallerError("invalid_params", "An idempotency key is a string of 1 to 255 characters.")
    return key


def client_label(params: Mapping[str, Any]) -> str:
    """What a stateless client calls itself, or nothing."""
    client = meta_of(params).get(CLIENT_META)
    label = "".join(letter for letter in client[:200] if letter.isprintable()) if type(client) is str else ""
    return f"client:{label}" if label else ""


def stateless_stream(caller: Caller, params: Mapping[str, Any]) -> str:
    """The name of a stateless caller's conversation; empty for one that has neither an identity nor a name."""
    label = client_label(params)
    return label if caller.anonymous else ConversationKey(caller.principal, label).stream
