"""Spans around requests, upstream calls and task runs. Used only where tracing is enabled.

The attributes and the propagation of a span are defined in `telemetry.tracing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.meta import META, meta_of, with_meta
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Members
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import ErrorReply, RelayedError, Reply, Result

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing


class HasErrorType(Protocol):
    """A reply that states its error type, or an empty string."""

    @property
    def error_type(self) -> str: ...


Answered = TypeVar("Answered", bound=HasErrorType)
Headers = tuple[tuple[bytes, bytes], ...]
_CONTEXT_KEYS = ("traceparent", "tracestate", "baggage")
TCP: Final = "tcp"
PIPE: Final = "pipe"
"""The `network.transport` of stdio."""


def network_transport(upstream: Upstream | None) -> str:
    """Return the `network.transport` of a server, or an empty string if the server is no longer configured."""
    if upstream is None:
        return ""
    return PIPE if upstream.transport == "stdio" else TCP


async def answer_traced(
    tracing: Tracing, answer: Callable[[Request], Awaitable[Answered | None]], request: Request
) -> Answered | None:
    params, session = request.params, request.session
    target = params.get("name") or params.get("uri")
    attributes = {
        "jsonrpc.request.id": (request.message.id or b"").decode("utf-8", "replace").strip('"'),
        # A request over HTTP has headers.
        "network.transport": TCP if request.headers else PIPE,
    }
    if session is not None:
        attributes["mcp.session.id"] = session.id
        attributes["mcp.protocol.version"] = session.version
    elif request.envelope is not None:
        attributes["mcp.protocol.version"] = request.envelope.version
    with tracing.serving(
        request.message.method,
        target[:120] if type(target) is str else "",
        meta_of(request.message.params),
        request.headers,
        attributes,
    ) as outcome:
        reply = await answer(request)
        if reply is not None and reply.error_type:
            outcome.failed(reply.error_type)
        return reply


async def carry_traced(
    tracing: Tracing,
    carry: Callable[[Request, Upstream, UpstreamCall], Awaitable[Result]],
    request: Request,
    upstream: Upstream,
    call: UpstreamCall,
) -> Result:
    with tracing.calling(call.method, call.name, upstream.id, network_transport(upstream)) as (outcome, context):
        traced = replace(call, params=_with_trace_context(call.params, context), trace=_trace_headers(context))
        try:
            result = await carry(request, upstream, traced)
        except RelayedError as error:
            outcome.failed(str(error.code), error.code)
            raise
        except TaskgateError as problem:
            outcome.failed(problem.error_type)
            raise
        if b'"isError":true' in result.raw:
            outcome.failed("tool_error")
        return result


async def run_traced(
    tracing: Tracing,
    task: Task,
    params: Members,
    send: Callable[[Members, Headers], Awaitable[Reply]],
    upstream: Upstream | None,
) -> Reply:
    """Trace one attempt of a task, as part of the trace of the request that started the run or, without one, of its caller."""
    meta = {key: wire.parse_strictly(bytes(value)) for key, value in params.items() if key == META}
    transport = network_transport(upstream)
    with tracing.calling("tools/call", task.tool, task.server, transport, meta_of(meta)) as (outcome, context):
        try:
            reply = await send(_with_trace_context(params, context), _trace_headers(context))
        except TaskgateError as problem:
            outcome.failed(problem.error_type)
            raise
        if isinstance(reply, ErrorReply):
            outcome.failed(str(reply.code), reply.code)
        elif isinstance(reply, Result) and b'"isError":true' in reply.raw:
            outcome.failed("tool_error")
        return reply


def _with_trace_context(params: Members, context: Mapping[str, str]) -> Members:
    """Replace the context of the caller by that of the span. Baggage that is not passed on is removed."""
    return with_meta(params, {key: wire.raw(value) for key, value in context.items()}, drop=_CONTEXT_KEYS)


def _trace_headers(context: Mapping[str, str]) -> Headers:
    """The trace context as headers, for HTTP intermediaries that do not read bodies."""
    return tuple((key.encode("ascii"), value.encode("latin-1", "replace")) for key, value in context.items())
