"""Spans and durations by OpenTelemetry's conventions for MCP, and the trace context in `_meta` and headers.

Imported only if tracing is enabled. There is one span for each request of a caller (`tools/call NAME`, kind server), one inside it
for each request to a server (kind client), and histograms of the durations of requests and sessions. The context is taken from
the caller's `_meta` (traceparent, tracestate, baggage) or else from its HTTP headers, and is passed on in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry.metrics import Meter
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    get_current_span,
)

from taskgate import clock
from taskgate.core.baggage import allowed_baggage

SERVER_DURATION: Final = "mcp.server.operation.duration"
CLIENT_DURATION: Final = "mcp.client.operation.duration"
SERVER_SESSION: Final = "mcp.server.session.duration"
CLIENT_SESSION: Final = "mcp.client.session.duration"
TRANSPORT: Final = "network.transport"
BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
CONTEXT_KEYS: Final = ("traceparent", "tracestate", "baggage")
_TARGETS: Final = {
    "tools/call": "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
    "resources/read": "mcp.resource.uri",
    "resources/subscribe": "mcp.resource.uri",
    "resources/unsubscribe": "mcp.resource.uri",
}
_UNKNOWN_NAMES: Final = ("unknown_tool", "unknown_prompt", "unknown_resource", "method_not_found")
_MEASURED: Final = frozenset(
    {"mcp.method.name", "mcp.protocol.version", "gen_ai.operation.name", "gen_ai.tool.name", TRANSPORT}
)
"""Attributes of the histograms: each has few values."""
_IN_SPAN_NAME: Final = ("tools/call", "prompts/get")


class SpanOutcome:
    """The outcome of one operation, for its span."""

    __slots__ = ("error_type", "status_code")

    def __init__(self) -> None:
        self.error_type = ""
        self.status_code = ""

    def failed(self, error_type: str, code: int | None = None) -> None:
        self.error_type = error_type
        self.status_code = str(code) if code is not None else ""


class Tracing:
    def __init__(
        self,
        tracer: Tracer,
        meter: Meter,
        propagator: TextMapPropagator,
        is_allowed_baggage: Callable[[str], bool],
        shut_down: Callable[[], None],
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._is_allowed_baggage = is_allowed_baggage
        self._shut_down = shut_down
        self._served = meter.create_histogram(
            SERVER_DURATION,
            "s",
            "How long it took to answer a request.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._called = meter.create_histogram(
            CLIENT_DURATION,
            "s",
            "How long a server took to answer a request of ours.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._sessions = {
            name: meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=BUCKETS)
            for name, what in (
                (SERVER_SESSION, "How long sessions of callers lasted."),
                (CLIENT_SESSION, "How long sessions with servers lasted."),
            )
        }

    def caller_session_ended(self, seconds: float, version: str, transport: str) -> None:
        """Record how long a session of a caller lasted."""
        self._session_ended(SERVER_SESSION, seconds, version, transport, "")

    def server_session_ended(self, seconds: float, version: str, transport: str, error_type: str) -> None:
        """Record how long a session with a server lasted, and the failure that ended it."""
        self._session_ended(CLIENT_SESSION, seconds, version, transport, error_type)

    def _session_ended(self, name: str, seconds: float, version: str, transport: str, error_type: str) -> None:
        attributes = {"mcp.protocol.version": version}
        if transport:
            attributes[TRANSPORT] = transport
        if error_type:
            attributes["error.type"] = error_type
        self._sessions[name].record(seconds, attributes)

    @contextmanager
    def serving(
        self, method: str, target: str, meta: Mapping[str, Any], headers: Mapping[bytes, bytes], more: Mapping[str, str]
    ) -> Iterator[SpanOutcome]:
        """Trace one request of a caller."""
        carrier = _in_meta(meta)
        if "traceparent" not in carrier:
            carrier = {k: v.decode("latin-1") for k in CONTEXT_KEYS if (v := headers.get(k.encode())) is not None}
        parent = self._extract(carrier)
        with self._operation(SpanKind.SERVER, method, target, more, parent, histogram=self._served) as (outcome, _):
            yield outcome

    @contextmanager
    def calling(
        self, method: str, target: str, server: str, transport: str, kept: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[SpanOutcome, dict[str, str]]]:
        """Trace one request to a server; the second value is the context to send with it.

        `kept`: the `_meta` of a call that may run long after its request, triggered by another one. It stays in its own trace.
        """
        more = {"taskgate.server": server, **({TRANSPORT: transport} if transport else {})}
        parent = self._other_trace(kept) if kept is not None else None
        with self._operation(SpanKind.CLIENT, method, target, more, parent, histogram=self._called) as (outcome, _):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            yield outcome, carrier

    def _extract(self, carrier: dict[str, str], into: contexts.Context | None = None) -> contexts.Context:
        """Return the context of a request. What is extracted is passed on, so only allowed baggage is."""
        if "baggage" in carrier:
            carrier["baggage"] = allowed_baggage(carrier["baggage"], self._is_allowed_baggage)
        return self._propagator.extract(carrier, into)

    def _other_trace(self, kept: Mapping[str, Any]) -> contexts.Context | None:
        """Return the context stored with a call, unless the current span belongs to the same trace."""
        context = self._extract(_in_meta(kept), contexts.Context())
        began = get_current_span(context).get_span_context()
        now = get_current_span().get_span_context()
        return context if began.is_valid and began.trace_id != now.trace_id else None

    @contextmanager
    def _operation(
        self,
        kind: SpanKind,
        method: str,
        target: str,
        more: Mapping[str, str],
        parent: contexts.Context | None,
        *,
        histogram: Any,
    ) -> Iterator[tuple[SpanOutcome, Span]]:
        outcome, began = SpanOutcome(), clock.monotonic()
        attributes: dict[str, str] = {"mcp.method.name": method, **more}
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        key = _TARGETS.get(method)
        if key is not None and target:
            attributes[key] = target
        name = f"{method} {target}" if target and method in _IN_SPAN_NAME else method
        measured = {k: v for k, v in attributes.items() if k in _MEASURED}
        with (
            _current(parent),
            self._tracer.start_as_current_span(
                name, None, kind, attributes, record_exception=False, set_status_on_exception=False
            ) as span,
        ):
            try:
                yield outcome, span
            except BaseException as problem:
                outcome.failed(outcome.error_type or type(problem).__name__)
                raise
            finally:
                if outcome.error_type:
                    span.set_attribute("error.type", outcome.error_type)
                    span.set_status(Status(StatusCode.ERROR, outcome.error_type))
                    measured["error.type"] = outcome.error_type
                    if outcome.error_type in _UNKNOWN_NAMES:
                        # Names invented by callers must not become time series.
                        measured.pop("gen_ai.tool.name", None)
                    if outcome.error_type == "method_not_found":
                        measured["mcp.method.name"] = "_OTHER"
                if outcome.status_code:
                    span.set_attribute("rpc.response.status_code", outcome.status_code)
                histogram.record(clock.monotonic() - began, measured)

    def current_trace(self) -> tuple[str, str] | None:
        """Return trace id and span id of the running request in hexadecimal; None if it is not sampled."""
        context = get_current_span().get_span_context()
        if not (context.is_valid and context.trace_flags.sampled):
            return None
        return format_trace_id(context.trace_id), format_span_id(context.span_id)

    def close(self) -> None:
        """Export what is still buffered. Blocks for at most the export timeout."""
        self._shut_down()


@contextmanager
def _current(context: contexts.Context | None) -> Iterator[None]:
    """Make a context the current one: a span started with it as its parent would not inherit its baggage."""
    if context is None:
        yield
        return
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


def _in_meta(meta: Mapping[str, Any]) -> dict[str, str]:
    return {key: meta[key] for key in CONTEXT_KEYS if type(meta.get(key)) is str}
