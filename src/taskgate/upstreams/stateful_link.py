"""A link to a server of the stateful generation (2025-11-25 and older).

The handshake declares the capabilities of the caller; the server may then send requests. A request on the stream of a
call, or one that names the task of a call, is passed to that call. For all others the link's listener decides which
caller answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from taskgate import __version__, clock
from taskgate.core import wire
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.generations.generation import (
    NEWEST_STATEFUL,
    OLD_STDIO_REVISION,
    PROGRESS_TOKEN,
    STATEFUL_REVISIONS,
    TASK_NOTIFICATIONS,
    Generation,
)
from taskgate.core.generations.stateless import remove_envelope
from taskgate.core.identity.addressees import has_conversation
from taskgate.core.identity.conversation import SESSION
from taskgate.core.meta import with_meta
from taskgate.core.wire import Kind, Message, Raw
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.cancel_note import TOOK_TOO_LONG, CancelNote
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import LinkKey, Listener
from taskgate.ports.upstream_call import SendLog, UpstreamCall, own_call
from taskgate.ports.upstream_replies import ErrorReply, Reply, Result
from taskgate.upstreams.failures import HandshakeRefused, broke_protocol
from taskgate.upstreams.flight import Flight, Wire, encoded_method, next_number
from taskgate.upstreams.kept_progress import KeptProgress
from taskgate.upstreams.resend import InSession, send_again
from taskgate.upstreams.server_requests import ServerRequests
from taskgate.upstreams.server_tasks import related_task, shown_params
from taskgate.upstreams.session_renewal import SessionRenewal

_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
MAX_CONVERSATIONS: Final = 10_000
HANDED_OVER_S: Final = 30.0
"""How long a link stays reserved for a call that has not started; it may have been cancelled."""
_LOST_SESSION: Final = (400, 404)
_HANDSHAKE_S: Final = 10.0
OUR_INFO: Final = {"name": "taskgate", "version": __version__}


class StatefulLink:
    generation = Generation.STATEFUL

    def __init__(self, server: str, key: LinkKey, wire: Wire, profile: ClientProfile, listener: Listener) -> None:
        self.server = server
        self.key = key
        self.profile = profile
        self.capabilities: Mapping[str, Any] = {}
        self.instructions: str | None = None
        self.server_info: Mapping[str, Any] = {}
        self.version = NEWEST_STATEFUL
        self.alive = False
        self.calls = 0
        """Number of callers' requests; the gateway's own requests do not count."""
        self.conversations: dict[str, None] = {}
        """The most recent conversations with calls on this link."""
        self.holder = ""
        """The call without a conversation that this link was last reserved for."""
        self._handed_over = 0.0
        """When that reservation ends; 0 once the call has started."""
        self._closed = False
        self._began: float | None = None
        """When the session was opened; None if there is none."""
        self.refuses_pings = False
        self._timeouts = 0
        """Consecutive calls that timed out."""
        self._wire = wire
        self._listener = listener
        self._flights: dict[int, Flight] = {}
        self._progress = KeptProgress()
        self._background: set[asyncio.Task[None]] = set()
        self._requests = ServerRequests(self, listener, self._send_quietly, self._spawn)
        self.renewal = SessionRenewal(server, self._open_again)
        self._level: str | None = None
        wire.attach(self)

    @property
    def session_id(self) -> str | None:
        return self._wire.session_id

    async def open(self, timeout_s: float) -> None:
        """Perform the handshake. The session is valid once `initialize` has succeeded."""
        self._wire.reset()
        await self._initialize(timeout_s)
        await self._wire.send(wire.notification("notifications/initialized", None))
        self.alive = True
        self._level = None
        self._session_ended("session_lost")
        self._began = clock.monotonic()
        if not self._closed:
            self._wire.listen()
        # The GET stream should reach the server before the first call.
        await clock.sleep(0)

    async def _initialize(self, timeout_s: float) -> None:
        client_info = self.profile.client_info
        params = wire.encode(
            {
                "protocolVersion": NEWEST_STATEFUL,
                "capabilities": self.profile.capabilities,
                "clientInfo": client_info if client_info is not None else OUR_INFO,
            }
        )
        number = next_number()
        key = b"%d" % number
        body = wire.request(key, b'"initialize"', params)
        message = await self._wire.request(Flight(number, key, timeout_s), body)
        if message.raw_result is None:
            raise HandshakeRefused(self.server, "rejected the handshake")
        self._adopt(wire.parse_strictly(bytes(message.raw_result)))

    async def refresh_capabilities(self, timeout_s: float) -> None:
        if not self._wire.is_conversation and self._wire.session_id is None:
            await self._initialize(timeout_s)

    def _adopt(self, result: Any) -> None:
        version = result.get("protocolVersion") if type(result) is dict else None
        if version not in (*STATEFUL_REVISIONS, OLD_STDIO_REVISION):
            raise HandshakeRefused(self.server, "uses an unsupported protocol revision")
        capabilities, info = result.get("capabilities"), result.get("serverInfo")
        self.version = version
        self.capabilities = capabilities if type(capabilities) is dict else {}
        self.server_info = info if type(info) is dict else {}
        self.instructions = result.get("instructions")
        self._wire.settle(version)

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    @property
    def stuck(self) -> bool:
        """Whether missed pings have another cause than a call that keeps the server busy."""
        return not self.busy or self._timeouts > 0

    async def request(self, request: UpstreamCall) -> Reply:
        if request.conversation:
            self.calls += 1
            if request.conversation not in self.conversations:
                self._used_by(request.conversation)
        if self.renewal.running is not None:
            await self.renewal.over()
        requested = request.profile.log_level
        if requested is not None and requested != self._level and "logging" in self.capabilities:
            # The call is not sent yet, so this failure does not concern it.
            with contextlib.suppress(UpstreamError):
                await self._lower_log_level(requested)
        session = self._wire.session_id
        try:
            return await self._request(request)
        except CallFailed as failure:
            return await send_again(InSession(self, session), request, failure, self._request)

    def _used_by(self, conversation: str) -> None:
        if has_conversation(conversation):
            self.conversations[conversation] = None
            if len(self.conversations) > MAX_CONVERSATIONS:
                del self.conversations[next(iter(self.conversations))]
        elif conversation == self.holder:
            self._handed_over = 0.0

    def hand_over(self, call: str) -> None:
        """Reserve the link for this call without a conversation, which is about to use it."""
        self.holder, self._handed_over = call, clock.monotonic() + HANDED_OVER_S

    def forget_session(self, session: str) -> None:
        """Forget the conversations of an ended session."""
        for conversation in [one for one in self.conversations if one.endswith(SESSION + session)]:
            del self.conversations[conversation]

    @property
    def is_free(self) -> bool:
        """Whether the link has no open or reserved call and follows no task of the server."""
        return not self._open_calls() and not self._progress.has_tasks and clock.monotonic() >= self._handed_over

    @property
    def served(self) -> bool:
        return self.calls > 0

    @property
    def calls_over(self) -> int:
        """The number of the callers' calls that have ended."""
        return self.calls - len(self._open_calls())

    async def _request(self, request: UpstreamCall) -> Reply:
        number = next_number()
        key = b"%d" % number
        members = remove_envelope(request.params) if request.keep_envelope else request.params
        if request.requests_progress:
            members = with_meta(members, {PROGRESS_TOKEN: wire.raw(number)})
        params = wire.join(members) if members else None
        body = wire.request(key, encoded_method(request.method), params)
        flight = self._flights[number] = Flight(number, key, request.timeout_s, request)
        try:
            message = await self._wire.request(flight, body, request.trace)
        except asyncio.CancelledError as cancelled:
            self._notify_cancelled(number, CancelNote.of(cancelled))
            raise
        except UpstreamError as problem:
            if problem.error_type == "upstream_timeout":
                self._timeouts += 1
                self._notify_cancelled(number, TOOK_TOO_LONG)
            raise
        finally:
            del self._flights[number]
            if request.progress_token is not None and self.key.session:
                self._progress.keep_late(number, request.progress_token)
        self._timeouts = 0
        secrets = self._wire.secret_filter
        if secrets.active and secrets.concerns(request.method, message):
            message = await secrets.answer(request.method, message)
        if message.raw_result is not None:
            if "task" in members:
                self._progress.keep_task(flight)
            return Result(bytes(message.raw_result), message.result)
        return self._error(message)

    def _error(self, message: Message) -> ErrorReply:
        if message.raw_error is None:
            raise broke_protocol(self.server, "returned neither a result nor an error")
        raw = bytes(message.raw_error)
        return ErrorReply(raw, wire.parse_strictly(raw)["code"])

    async def new_session_after(self, lost: str | None) -> None:
        """Wait for a new session after `lost`, with one handshake for all waiting requests."""
        if self.renewal.running is not None or self._wire.session_id == lost or not self.alive:
            await self.renewal.begin_or_join()

    async def _open_again(self) -> None:
        try:
            await self.open(_HANDSHAKE_S)
        except UpstreamError as problem:
            # There is neither the old session nor a new one: the next caller opens a new link.
            self.lost(problem)
            raise
        # The server was probably restarted, so its lists may have changed.
        for kind in ("tools", "prompts", "resources"):
            self._listener.on_notification(self, f"notifications/{kind}/list_changed", None)

    async def round_trip(self, timeout_s: float) -> None:
        """Ping the server. Any response counts, including an error for an unknown method.

        If the ping is rejected because the server lost the session, a new one is opened before a call is affected.
        """
        await self.renewal.over()
        session = self._wire.session_id
        if self.refuses_pings or not await self.ping_refused(timeout_s):
            return
        await self.new_session_after(session)
        self.refuses_pings = await self.ping_refused(timeout_s)

    async def ping_refused(self, timeout_s: float) -> bool:
        """Return whether a ping is rejected as in an unknown session. Raises if there is no response."""
        number = next_number()
        key = b"%d" % number
        try:
            await self._wire.request(Flight(number, key, timeout_s), wire.request(key, b'"ping"', None))
        except CallFailed as failure:
            if failure.evidence.in_session and failure.evidence.status in _LOST_SESSION:
                return True
            raise
        return False

    async def renew_credentials(self, refused: CallFailed) -> bool:
        return await self._wire.renew_credentials(refused)

    async def notify(self, method: str, params: bytes | None) -> None:
        await self._wire.send(wire.notification(method, params))

    async def set_log_level(self, level: str) -> None:
        """Set the log level, which applies to the whole session in this generation."""
        self._level = level
        if "logging" in self.capabilities:
            profile = ClientProfile(self.profile.capabilities)
            await self._request(own_call("logging/setLevel", {"level": wire.raw(level)}, profile, 10.0))

    async def resume_session(self, session_id: str) -> None:
        if self._wire.session_id is None or self._wire.session_id == session_id:
            return
        # End the session that the handshake has just created, and listen to the old one.
        await self._wire.close()
        self._wire.use_session(session_id)
        self._wire.settle(self.version)
        self._wire.listen()

    async def _lower_log_level(self, requested: str) -> None:
        """Lower the level if needed. On a shared link the lowest level applies; messages are filtered per caller later."""
        if self._level is None or _LEVELS.index(requested) < _LEVELS.index(self._level):
            await self.set_log_level(requested)

    def _notify_cancelled(self, number: int, why: CancelNote) -> None:
        params = wire.encode({"requestId": number, **why.shown()})
        self._spawn(self._send_quietly(wire.notification("notifications/cancelled", params)))

    def incoming(self, message: Message, flight: Flight | None) -> None:
        if message.kind is Kind.NOTIFICATION:
            self._notified(message, flight)
        else:
            self._requests.handle(
                message, lambda server_request: self._call_of(server_request, flight), self._open_calls
            )

    def _call_of(self, message: Message, flight: Flight | None) -> UpstreamCall | None:
        found = self._flight_of_task(message) or flight
        return found.request if found is not None else None

    def _notified(self, message: Message, flight: Flight | None) -> None:
        if message.method == "notifications/cancelled":
            self._requests.cancel((message.params or {}).get("requestId"))
            return
        if message.method in TASK_NOTIFICATIONS:
            # Tasks of the server, whose ids callers do not know. The gateway polls those that belong to its calls.
            return
        if message.method == "notifications/progress":
            token = (message.params or {}).get(PROGRESS_TOKEN)
            flight = self._flights.get(token) or self._progress.task(token) if type(token) is int else None
            if flight is None:
                late = self._progress.late(token) if type(token) is int else None
                if late is not None:
                    members = wire.members_of(shown_params(message) or Raw(b"{}"))
                    self._listener.on_notification(
                        self, message.method, Raw(wire.join({**members, PROGRESS_TOKEN: late}))
                    )
                return
        call = flight.request if flight is not None else None
        if flight is None and message.method == "notifications/message":
            named = self._flight_of_task(message)
            call = named.request if named is not None else self._single_open_call()
        params = shown_params(message)
        if call is not None:
            call.on_notification(message.method, params)
        else:
            self._listener.on_notification(self, message.method, params)

    def _flight_of_task(self, message: Message) -> Flight | None:
        """Return the flight that waits for the task that a request or log message names."""
        related = related_task(message.params)
        for flight in self._flights.values() if related is not None else ():
            asking = flight.request
            if asking is not None and asking.method == "tasks/result" and asking.name == related:
                return flight
        return None

    def _open_calls(self) -> list[UpstreamCall]:
        """Return the callers' open calls, oldest first. The gateway's own requests cause no requests of the server."""
        return list(self._each_open_call())

    def _each_open_call(self) -> Iterator[UpstreamCall]:
        requests = (flight.request for flight in self._flights.values())
        return (request for request in requests if request is not None and request.conversation)

    def _single_open_call(self) -> UpstreamCall | None:
        """Return the open call if there is exactly one. Examines two at most, because thousands may be open."""
        calls = self._each_open_call()
        first = next(calls, None)
        return first if next(calls, None) is None else None

    async def _send_quietly(self, body: bytes) -> None:
        """Send without raising: the server may be gone, and no caller waits for the result."""
        try:
            await self._wire.send(body)
        except TaskgateError as problem:
            self._listener.on_notification(self, "taskgate/undelivered", Raw(wire.encode({"why": problem.message})))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._listener.on_closed(self, None)

    def mark_long_lived(self, sent_as: SendLog) -> bool:
        """Mark the call with this send log as long-lived. Return False if it is not on this link."""
        for flight in self._flights.values():
            if flight.request is not None and flight.request.send_log is sent_as:
                self._wire.mark_long_lived(flight)
                return True
        return False

    def give_up(self) -> None:
        """Stop using the link for new requests."""
        self.alive = False

    def _session_ended(self, error_type: str = "") -> None:
        began, self._began = self._began, None
        if began is not None:
            self._listener.on_session_ended(self.server, self.version, clock.monotonic() - began, error_type)

    def lost(self, reason: UpstreamError | None) -> None:
        self.alive = False
        self._session_ended(reason.error_type if reason is not None else "")
        self._requests.cancel_all()
        if reason is not None and not self._closed:
            self._closed = True
            self._listener.on_closed(self, reason)

    async def close(self, *, for_good: bool = True) -> None:
        """Close the link. If not for good, the session stays open on the server while it runs tasks for it."""
        self.alive = False
        self._closed = True
        self._session_ended()
        if not for_good and (self._progress.has_tasks or self.key.resumes):
            self._wire.use_session(None)
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._wire.close()
