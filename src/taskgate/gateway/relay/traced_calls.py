"""Spans around requests, upstream calls and task runs. Used only where tracing is enabled.

The attributes and the propagation of a span are defined in `telemetry.tracing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.meta import META, meta_of, with_meta
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Members
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import (
    ErrorReply,
    RelayedError,
    Reply,
    Result,
    Upstream,
    UpstreamCall,
)

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing


class HasErrorType(Protocol):
    """What an answer says of its outcome."""

    @property
    def error_type(self) -> str: ...


Answered = TypeVar("Answered", bound=HasErrorType)
Headers = tuple[tuple[bytes, bytes], ...]


async def answer_traced(
    tracing: Tracing, answer: Callable[[Request], Awaitable[Answered | None]], request: Request
) -> Answered | None:
    params, session = request.params, request.session
    target = params.get("name") or params.get("uri")
    more = {"jsonrpc.request.id": (request.message.id or b"").decode("utf-8", "replace").strip('"')}
    if session is not None:
        more["mcp.session.id"] = session.id
        more["mcp.protocol.version"] = session.version
    elif request.envelope is not None:
        more["mcp.protocol.version"] = request.envelope.version
    with tracing.serving(
        request.message.method,
        target[:120] if type(target) is str else "",
        meta_of(request.message.params),
        request.headers,
        more,
    ) as outcome:
        reply = await answer(request)
        if reply is not None and reply.error_type:
            outcome.failed(reply.error_type)
        return reply


async def carry_traced(
    tracing: Tracing,
    carry: Callable[[Request, Upstream, UpstreamCall], Awaitable[bytes]],
    request: Request,
    upstream: Upstream,
    call: UpstreamCall,
) -> bytes:
    with tracing.calling(call.method, call.name, upstream.id) as (outcome, context):
        traced = replace(call, params=_along(call.params, context), trace=_headers(context))
        try:
            result = await carry(request, upstream, traced)
        except RelayedError as error:
            outcome.failed(str(error.code), error.code)
            raise
        except TaskgateError as problem:
            outcome.failed(problem.error_type)
            raise
        if b'"isError":true' in result:
            outcome.failed("tool_error")
        return result


async def run_traced(
    tracing: Tracing, task: Task, params: Members, send: Callable[[Members, Headers], Awaitable[Reply]]
) -> Reply:
    """One attempt of a task. Its trace is that of the request that started the run or, where none did, its caller's."""
    kept = {key: wire.parse_strictly(bytes(value)) for key, value in params.items() if key == META}
    with tracing.calling("tools/call", task.tool, task.server, meta_of(kept)) as (outcome, context):
        try:
            reply = await send(_along(params, context), _headers(context))
        except TaskgateError as problem:
            outcome.failed(problem.error_type)
            raise
        if isinstance(reply, ErrorReply):
            outcome.failed(str(reply.code), reply.code)
        elif isinstance(reply, Result) and b'"isError":true' in reply.raw:
            outcome.failed("tool_error")
        return reply


def _along(params: Members, context: Mapping[str, str]) -> Members:
    return with_meta(params, {key: wire.raw(value) for key, value in context.items()})


def _headers(context: Mapping[str, str]) -> Headers:
    """The same for whoever stands between us and a server over HTTP, and reads no bodies."""
    return tuple((key.encode("ascii"), value.encode("latin-1", "replace")) for key, value in context.items())
