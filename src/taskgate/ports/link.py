"""A link: one live conversation with one server.

Requests are sent with the caller's params (raw members). The reply is a `Result`, an `ErrorReply` or, from stateless servers
only, an `InputRequired`. While a request is open the server may send notifications and ask questions. They are passed to the
callbacks of the request if the transport ties them to it, otherwise to the link's `Listener`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from taskgate.core.errors import TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.generations.generation import Generation
from taskgate.core.questions.question import Answer, Question
from taskgate.core.wire import Raw
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import Reply


class Listener(Protocol):
    """Receives what a server sends outside of any request."""

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None: ...

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        """A question that is not tied to a call. `calls`: the open calls on the link when it arrived, oldest first."""
        ...

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None: ...

    def on_session_ended(self, server: str, version: str, seconds: float, error_type: str) -> None:
        """A session with the server ended after this time, because of a failure if there is an error type."""
        ...

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        """The server connected, disconnected or degraded; with a key if that concerns one conversation only."""
        ...


class Link(Protocol):
    """One live conversation with one server."""

    @property
    def server(self) -> str: ...

    @property
    def key(self) -> LinkKey: ...

    @property
    def generation(self) -> Generation: ...

    @property
    def capabilities(self) -> Mapping[str, Any]: ...

    @property
    def instructions(self) -> str | None:
        """The server's instructions for its use."""
        ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def alive(self) -> bool: ...

    async def request(self, request: UpstreamCall) -> Reply: ...

    async def notify(self, method: str, params: bytes | None) -> None: ...

    async def set_log_level(self, level: str) -> None: ...

    async def refresh_capabilities(self, timeout_s: float) -> None:
        """Request the capabilities again from a server without a session or a connection: its replacement by another server could
        not be noticed otherwise.
        """
        ...

    async def resume_session(self, session_id: str) -> None:
        """Resume a session that was opened before a restart, if the transport supports it."""
        ...


LISTENER: Final = "listener"
"""Replaces the session in the key of the link that fetches lists and receives change notifications."""


class LinkKey(NamedTuple):
    """Identifies a link: one for all callers, one per principal, or one per session; each in one generation."""

    generation: Generation
    """The caller's generation; on a link, the link's. A server that supports both is addressed in the caller's."""
    principal: str = ""
    session: str = ""
    resumes: str = ""
    """The server's session to resume, because a task runs in it."""
    place: str = ""
    """The caller in whose folder and environment a process is started; empty for the gateway's."""
    conversation: str = ""
    """The caller's conversation, by the name of its stream; on a link only together with its session."""
