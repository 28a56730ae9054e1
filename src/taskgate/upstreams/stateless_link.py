"""A link to a server of the stateless generation (2026-07-28).

There are no sessions: every request carries the capabilities of its caller, and requests of the server are part of
results. One link serves all callers of a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from taskgate import __version__
from taskgate.core import wire
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.evidence import Cure, failure_verdict
from taskgate.core.generations.generation import NEWEST_STATELESS, PROGRESS_TOKEN, TASK_NOTIFICATIONS, Generation
from taskgate.core.generations.stateless import CAPABILITIES, add_envelope
from taskgate.core.meta import META, with_meta
from taskgate.core.wire import Kind, Members, Message, Raw
from taskgate.mcp.param_headers import encode_header_value
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.cancel_note import TOOK_TOO_LONG, CancelNote
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import LinkKey, Listener
from taskgate.ports.upstream_call import SendLog, UpstreamCall
from taskgate.ports.upstream_replies import ErrorReply, InputRequired, Reply, Result
from taskgate.turns import LARGE_BYTES, contains
from taskgate.upstreams.failures import HttpRefusal, broke_protocol, unreachable
from taskgate.upstreams.flight import Flight, Wire, encoded_method, next_number
from taskgate.upstreams.resend import send_again

_OUR_INFO = wire.raw({"name": "taskgate", "version": __version__})

MAX_ENVELOPES = 1000
_INPUT_REQUIRED = b'"input_required"'


class StatelessLink:
    generation = Generation.STATELESS
    session_id: str | None = None

    def __init__(
        self,
        server: str,
        key: LinkKey,
        wire: Wire,
        listener: Listener,
        keeps_questions: bool,
        *,
        uses_models: bool,
    ) -> None:
        self.server = server
        self.key = key
        self.capabilities: Mapping[str, Any] = {}
        self.instructions: str | None = None
        self.server_info: Mapping[str, Any] = {}
        self.version = NEWEST_STATELESS
        self.alive = False
        self.keeps_questions = keeps_questions
        self.uses_models = uses_models
        self.served = False
        """Whether it carried a caller's request, and not only the gateway's own."""
        self._closed = False
        self._timeouts = 0
        """Consecutive calls that timed out."""
        self._wire = wire
        self._listener = listener
        self._flights: dict[int, Flight] = {}
        self._envelopes: dict[int, tuple[ClientProfile, Raw]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        wire.attach(self)
        wire.settle(NEWEST_STATELESS)

    async def discover(self, timeout_s: float) -> Message:
        """Send `server/discover` and return the response."""
        number = next_number()
        key = b"%d" % number
        members = add_envelope({}, Raw(b"{}"), _OUR_INFO, None)
        body = wire.request(key, b'"server/discover"', wire.join(members))
        return await self._wire.request(Flight(number, key, timeout_s), body, ((b"mcp-method", b"server/discover"),))

    async def _discover_again(self, timeout_s: float) -> Message:
        """As `discover`, but renew a rejected token before a call is affected. Raises LoginNeeded."""
        try:
            return await self.discover(timeout_s)
        except HttpRefusal as refusal:
            if failure_verdict(refusal.evidence).cure is not Cure.CREDENTIALS or not await self.renew_credentials(
                refusal
            ):
                raise
        return await self.discover(timeout_s)

    async def round_trip(self, timeout_s: float) -> None:
        """Send `server/discover` again. This detects a changed server, because there is no session that would be lost."""
        result = description_in(await self._discover_again(timeout_s))
        if result is None:
            self.lost(unreachable(self.server, f"does not support {NEWEST_STATELESS} any more"))
            return
        before = self.capabilities
        self.adopt(result)
        if self.capabilities != before:
            for kind in ("tools", "prompts", "resources"):
                self._listener.on_notification(self, f"notifications/{kind}/list_changed", None)

    def adopt(self, result: Mapping[str, Any]) -> None:
        capabilities, meta = result.get("capabilities"), result.get("_meta")
        self.capabilities = capabilities if type(capabilities) is dict else {}
        self.instructions = result.get("instructions")
        info = meta.get("io.modelcontextprotocol/serverInfo") if type(meta) is dict else None
        self.server_info = info if type(info) is dict else {}
        self.alive = True

    @property
    def busy(self) -> bool:
        return any(
            flight.request is not None and flight.request.method != "subscriptions/listen"
            for flight in self._flights.values()
        )

    @property
    def stuck(self) -> bool:
        """Whether missed pings have another cause than a call that keeps the server busy."""
        return not self.busy or self._timeouts > 0

    async def request(self, request: UpstreamCall) -> Reply:
        self.served = self.served or bool(request.conversation)
        try:
            return await self._request(request)
        except CallFailed as failure:
            return await send_again(self, request, failure, self._request)

    async def new_session(self) -> None:
        """Do nothing: there are no sessions in this generation."""

    async def renew_credentials(self, refused: CallFailed) -> bool:
        return await self._wire.renew_credentials(refused)

    async def ping_is_refused(self) -> bool:
        """Return False: there are no sessions in this generation."""
        return False

    async def _request(self, request: UpstreamCall) -> Reply:
        number = next_number()
        key = b"%d" % number
        members = request.params
        if not request.keep_envelope:
            members = self._stamped(members, request.profile)
        elif (request.profile.inbox and self.keeps_questions) or self.uses_models:
            profile = request.profile.towards(self.keeps_questions, self.uses_models)
            if profile is not request.profile:
                members = with_meta(members, {CAPABILITIES: wire.raw(profile.capabilities)})
        if request.requests_progress:
            members = with_meta(members, {PROGRESS_TOKEN: wire.raw(number)})
        params = wire.join(members)
        body = wire.request(key, encoded_method(request.method), params)
        headers = _headers(request.method, request.name) + request.headers + request.trace
        flight = self._flights[number] = Flight(number, key, request.timeout_s, request)
        try:
            message = await self._wire.request(flight, body, headers)
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
        self._timeouts = 0
        secrets = self._wire.secret_filter
        if secrets.active and secrets.concerns(request.method, message):
            message = await secrets.answer(request.method, message)
        raw = message.raw_result
        if raw is not None and memoryview(raw).nbytes >= LARGE_BYTES:
            return await self._large_reply(bytes(raw))
        return self._reply(message)

    async def _large_reply(self, body: bytes) -> Reply:
        return _read_result(body) if await contains(body, _INPUT_REQUIRED) else Result(body)

    def _stamped(self, members: Members, profile: ClientProfile) -> Members:
        """Add the envelope. That of a session never changes, so it is rendered once."""
        if META in members:
            return _stamp(members, profile.towards(self.keeps_questions, self.uses_models))
        known = self._envelopes.get(id(profile))
        if known is None or known[0] is not profile:
            if len(self._envelopes) >= MAX_ENVELOPES:
                self._envelopes.clear()
            known = self._envelopes[id(profile)] = (
                profile,
                _stamp({}, profile.towards(self.keeps_questions, self.uses_models))[META],
            )
        return {**members, META: known[1]}

    def _reply(self, message: Message) -> Reply:
        if message.raw_error is not None:
            raw = bytes(message.raw_error)
            return ErrorReply(raw, wire.parse_strictly(raw)["code"])
        if message.raw_result is None:
            raise broke_protocol(self.server, "returned neither a result nor an error")
        body, result = bytes(message.raw_result), message.result
        asks = result.get("resultType") == "input_required" if type(result) is dict else _INPUT_REQUIRED in body
        return _read_result(body) if asks else Result(body, result)

    async def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing: the only client notification of this generation is the cancellation, which this link sends itself."""

    async def set_log_level(self, level: str) -> None:
        """Do nothing: in this generation each request carries the level."""

    async def refresh_capabilities(self, timeout_s: float) -> None:
        if self._wire.is_conversation:
            return
        found = await self._discover_again(timeout_s)
        if found.raw_result is not None:
            result = wire.parse_strictly(bytes(found.raw_result))
            self.adopt(result if type(result) is dict else {})

    async def resume_session(self, session_id: str) -> None:
        """Do nothing: there are no sessions in this generation."""

    def _notify_cancelled(self, number: int, why: CancelNote) -> None:
        """Notify the server of the cancellation. Over HTTP the closed stream is enough, and the wire sends nothing."""
        params = wire.encode({"requestId": number, "reason": why.reason})
        task = asyncio.get_running_loop().create_task(
            self._send_quietly(wire.notification("notifications/cancelled", params))
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _send_quietly(self, body: bytes) -> None:
        try:
            await self._wire.send(body)
        except TaskgateError:
            return

    def incoming(self, message: Message, flight: Flight | None) -> None:
        if message.kind is not Kind.NOTIFICATION or message.method in TASK_NOTIFICATIONS:
            # Tasks of the server, whose ids callers do not know. The gateway polls those that belong to its calls.
            return
        if flight is None:
            flight = self._find_flight(message)
        if flight is not None and flight.request is not None:
            flight.request.on_notification(message.method, message.raw_params)
        else:
            self._listener.on_notification(self, message.method, message.raw_params)

    def _find_flight(self, message: Message) -> Flight | None:
        """Find the request of a notification on a shared stream: by progress token, subscription id, or as the only one."""
        params = message.params or {}
        token = params.get(PROGRESS_TOKEN)
        if token is None:
            meta = params.get("_meta")
            token = meta.get("io.modelcontextprotocol/subscriptionId") if type(meta) is dict else None
        if type(token) is int:
            return self._flights.get(token)
        # Examines two at most: thousands may be open, and a server may send thousands of messages.
        calls = (
            flight
            for flight in self._flights.values()
            if flight.request is not None and flight.request.method != "subscriptions/listen"
        )
        first = next(calls, None)
        return first if next(calls, None) is None else None

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

    def lost(self, reason: UpstreamError | None) -> None:
        self.alive = False
        if reason is not None and not self._closed:
            self._listener.on_closed(self, reason)

    async def close(self, *, for_good: bool = True) -> None:
        self.alive = False
        self._closed = True
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._wire.close()


def _read_result(body: bytes) -> Reply:
    members = wire.members_of(body)
    if bytes(members.get("resultType", Raw(b""))) != _INPUT_REQUIRED:
        return Result(body)
    requests = members.get("inputRequests")
    return InputRequired(wire.members_of(requests) if requests is not None else {}, members.get("requestState"), body)


def description_in(message: Message) -> Mapping[str, Any] | None:
    """Return the description in a response to `server/discover`, or None if the server does not support this generation."""
    result = wire.parse_strictly(bytes(message.raw_result)) if message.raw_result is not None else None
    versions = result.get("supportedVersions") if type(result) is dict else None
    return result if type(versions) is list and NEWEST_STATELESS in versions else None


def _stamp(members: Members, profile: ClientProfile) -> Members:
    """Add the envelope. A stateful caller without a log level receives all messages, as from a stateful server."""
    level = profile.log_level or ("debug" if profile.logs_unasked else None)
    info = wire.raw(profile.client_info) if profile.client_info is not None else None
    return add_envelope(members, wire.raw(profile.capabilities), info, level)


@lru_cache(maxsize=4096)
def _headers(method: str, name: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of a request. Cached, because most calls name one of a few tools."""
    method_header = (b"mcp-method", method.encode("ascii"))
    return (method_header,) if not name else (method_header, (b"mcp-name", encode_header_value(name).encode("ascii")))
