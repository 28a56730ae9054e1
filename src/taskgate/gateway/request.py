"""One request from a caller, for as long as it is open: who asks, in which generation, and how to reach them meanwhile."""

from __future__ import annotations

import hashlib
from typing import Any

from taskgate.core import wire
from taskgate.core.caller import Caller
from taskgate.core.generations import PROGRESS_TOKEN, Generation
from taskgate.core.generations.stateless_2026 import CAPABILITIES, CLIENT_INFO, Envelope
from taskgate.core.meta import meta_of
from taskgate.core.scoping.request import SessionRequest
from taskgate.core.wire import Members, Message, Raw
from taskgate.gateway.sessions import Session, passes_log_level
from taskgate.ports.outlet import Outlet
from taskgate.ports.upstream import CallerFace, LinkKey

_NO_NARROWING = SessionRequest()


class Request:
    __slots__ = (
        "_face",
        "_token",
        "caller",
        "envelope",
        "generation",
        "headers",
        "message",
        "narrowing",
        "outlet",
        "session",
    )

    def __init__(
        self,
        message: Message,
        caller: Caller,
        outlet: Outlet,
        session: Session | None = None,
        envelope: Envelope | None = None,
        narrowing: SessionRequest = _NO_NARROWING,
        headers: dict[bytes, bytes] | None = None,
    ) -> None:
        self.message = message
        self.caller = caller
        self.outlet = outlet
        self.session = session
        self.envelope = envelope
        self.generation = Generation.STATEFUL if session is not None else Generation.STATELESS
        self.narrowing = session.narrowing if session is not None else narrowing
        self.headers = headers or {}
        self._token: Raw | None = None
        self._face: CallerFace | None = None

    @property
    def params(self) -> dict[str, Any]:
        return self.message.params or {}

    def members(self) -> Members:
        raw = self.message.raw_params
        return wire.members_of(raw) if raw is not None else {}

    @property
    def progress_token(self) -> Raw | None:
        """The caller's own token, exactly as written, or None if it does not want progress."""
        if self._token is None:
            token = meta_of(self.message.params).get(PROGRESS_TOKEN)
            if type(token) in (str, int):
                self._token = wire.raw(token)
        return self._token

    @property
    def face(self) -> CallerFace:
        """What upstreams are told about this caller."""
        if self.session is not None:
            return self.session.face
        if self._face is None:
            assert self.envelope is not None
            info = self.envelope.client_info
            self._face = CallerFace(
                self.envelope.capabilities, wire.raw(info) if info is not None else None, self.envelope.log_level
            )
        return self._face

    @property
    def link_key(self) -> LinkKey:
        """A session has its own upstream conversations; stateless callers share one per principal and capabilities."""
        if self.session is not None:
            return self.session.link_key
        meta = wire.members_of(self.members()["_meta"])
        identity = bytes(meta.get(CAPABILITIES, Raw(b""))) + bytes(meta.get(CLIENT_INFO, Raw(b"")))
        return LinkKey(self.caller.principal, "caps-" + hashlib.sha256(identity).hexdigest()[:16])

    def notify(self, method: str, params: bytes | Raw | None) -> None:
        self.outlet.send(wire.notification(method, bytes(params) if params is not None else None))

    def wants_log(self, level: str) -> bool:
        """Stateless callers get logs only if this very request asked for them (server/utilities/logging)."""
        if self.session is not None:
            return self.session.wants_log(level)
        assert self.envelope is not None
        return self.envelope.log_level is not None and passes_log_level(level, self.envelope.log_level)
