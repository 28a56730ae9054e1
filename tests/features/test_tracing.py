"""OpenTelemetry with the conventions for MCP, sent by the OTLP exporter to a collector in this process."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.features.wire_client import config, refused, session, stateless
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.programs import free_port, listening, run_to_end, running

from taskgate.assembly import tracing
from taskgate.config.load import load_text
from taskgate.config.problems import ConfigError

pytestmark = pytest.mark.virtual_time
MIRROR = Path(__file__).resolve().parent.parent / "peers" / "mirror_server.py"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
MESSAGES: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}
IDS = ("traceId", "spanId", "parentSpanId")


class Collector:
    def __init__(self) -> None:
        self.bodies: dict[str, list[dict[str, Any]]] = {"/v1/traces": [], "/v1/metrics": []}

    def spans(self) -> list[dict[str, Any]]:
        return [
            {**span, **hex_ids(span), "attributes": flat(span["attributes"])}
            for body in self.bodies["/v1/traces"]
            for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for body in self.bodies["/v1/metrics"]:
            for resource in body["resourceMetrics"]:
                for scope in resource["scopeMetrics"]:
                    for metric in scope["metrics"]:
                        found[metric["name"]] = metric["histogram"]["dataPoints"]
        return found


def hex_ids(span: dict[str, Any]) -> dict[str, str]:
    return {name: base64.b64decode(span[name]).hex() for name in IDS if name in span}


def flat(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["key"]: next(iter(item["value"].values())) for item in attributes}


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            message = MESSAGES[self.path].FromString(body)
            collector.bodies[self.path].append(MessageToDict(message, use_integers_for_enums=True))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(5)


async def test_a_call_is_two_spans_in_the_callers_trace_and_two_durations() -> None:
    with collecting() as (collector, endpoint):
        settings = config(telemetry={"otel": {"enabled": True, "endpoint": endpoint, "baggage": ["who"]}})
        async with running_gateway(settings) as running:
            async with session(running) as caller:
                data = await caller.call_json(
                    "echo", {"x": 1}, _meta={"traceparent": PARENT, "baggage": "who=ann,key=x"}
                )
            async with stateless(running, headers={"traceparent": PARENT}) as modern:
                await modern.exchange("tools/call", {"name": "no such tool", "arguments": {}})
            await asyncio.to_thread(lambda: None)
        spans = {(span["name"], span["kind"]): span for span in collector.spans()}
    served, called = spans["tools/call echo", 2], spans["tools/call echo", 3]
    assert served["traceId"] == called["traceId"] == TRACE
    assert served["parentSpanId"] == "00f067aa0ba902b7"
    assert called["parentSpanId"] == served["spanId"]
    assert served["attributes"]["mcp.method.name"] == "tools/call"
    assert served["attributes"]["gen_ai.tool.name"] == "echo"
    assert served["attributes"]["mcp.protocol.version"] == "2025-11-25"
    assert (
        served["attributes"]["gen_ai.operation.name"] == called["attributes"]["gen_ai.operation.name"] == "execute_tool"
    )
    assert data["_meta"]["traceparent"] == f"00-{TRACE}-{called['spanId']}-01"
    assert data["_meta"]["baggage"] == "who=ann"
    failed = spans["tools/call no such tool", 2]
    assert failed["traceId"] == TRACE
    assert failed["status"]["code"] == 2
    measured = collector.metrics()
    assert {"mcp.server.operation.duration", "mcp.client.operation.duration"} <= set(measured)
    points = [flat(point["attributes"]) for point in measured["mcp.server.operation.duration"]]
    (echo,) = [point for point in points if point.get("gen_ai.tool.name") == "echo"]
    assert echo == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2025-11-25",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "network.transport": "tcp",
    }
    assert served["attributes"]["network.transport"] == "tcp"
    assert called["attributes"]["network.transport"] == "pipe"
    (lasted,) = measured["mcp.server.session.duration"]
    assert flat(lasted["attributes"]) == {"mcp.protocol.version": "2025-11-25", "network.transport": "tcp"}
    assert int(lasted["count"]) == 1
    used = measured["mcp.client.session.duration"]
    assert {flat(point["attributes"])["network.transport"] for point in used} == {"pipe"}
    assert all("error.type" not in flat(point["attributes"]) for point in used)


@pytest.mark.parametrize("allowed, passed", [([], ""), (["tenant", "app.*"], "tenant=acme,app.region=eu")])
@pytest.mark.parametrize("server", ["old", "new"])
async def test_only_listed_baggage_reaches_servers(server: str, allowed: list[str], passed: str) -> None:
    """In `_meta` and in headers, from callers of both generations."""
    baggage = {"traceparent": PARENT, "baggage": "tenant=acme,user=ann,app.region=eu"}
    with collecting() as (_, endpoint):
        otel = {"enabled": True, "endpoint": endpoint, "baggage": allowed}
        async with mirrors(telemetry={"otel": otel}) as running:
            async with session(running) as caller:
                first = await caller.call(f"{server}__headers", {}, _meta=baggage)
            async with stateless(running, headers=baggage) as modern:
                name = f"{server}__headers"
                answer = await modern.exchange("tools/call", {"name": name, "arguments": {}})
                assert answer is not None
                second = answer["result"]
    for result in (first, second):
        assert result["structuredContent"]["value"].get("baggage", "") == passed
        assert result["seen"]["_meta"].get("baggage", "") == passed
        assert "user=ann" not in str(result)


async def test_latencies_refer_to_traces_in_openmetrics() -> None:
    with collecting() as (_, endpoint):
        settings = config(telemetry={"otel": {"enabled": True, "endpoint": endpoint}})
        async with running_gateway(settings) as running, httpx2.AsyncClient(verify=NO_TLS) as http:
            async with session(running) as caller:
                await caller.call_json("echo", {"x": 1}, _meta={"traceparent": PARENT})
            accepted = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
            openmetrics = await http.get(f"{running.base}/metrics", headers=accepted)
            plain = await http.get(f"{running.base}/metrics")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    samples = [
        sample
        for family in text_string_to_metric_families(openmetrics.text)  # type: ignore[no-untyped-call]
        if family.name == "taskgate_request_seconds"
        for sample in family.samples
        if sample.exemplar is not None and sample.labels["method"] == "tools/call"
    ]
    (sample,) = samples
    assert sample.exemplar.labels["trace_id"] == TRACE
    assert sample.exemplar.value <= float(sample.labels["le"])
    assert plain.headers["content-type"].startswith("text/plain")
    assert TRACE not in plain.text


async def test_without_sampling_latencies_refer_to_no_trace() -> None:
    with collecting() as (_, endpoint):
        settings = config(telemetry={"otel": {"enabled": True, "endpoint": endpoint, "sample_ratio": 0.0}})
        async with running_gateway(settings) as running, httpx2.AsyncClient(verify=NO_TLS) as http:
            async with session(running) as caller:
                await caller.call_json("echo", {"x": 1})
            text = (await http.get(f"{running.base}/metrics", headers={"accept": "application/openmetrics-text"})).text
    assert "trace_id" not in text
    assert text.endswith("# EOF\n")


@asynccontextmanager
async def mirrors(**more: Any) -> AsyncIterator[Gateway]:
    """A gateway with two HTTP servers, one of each generation, that return the headers they received."""
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {}
        for name, generation in (("old", "stateful"), ("new", "stateless")):
            port = free_port()
            await stack.enter_async_context(running([sys.executable, MIRROR, generation, str(port)], listening(port)))
            servers[name] = {"url": f"http://127.0.0.1:{port}/mcp"}
        yield await stack.enter_async_context(running_gateway({"schema": 1, "servers": servers, **more}))


@pytest.mark.parametrize("server", ["old", "new"])
async def test_the_trace_context_is_forwarded_in_headers(server: str) -> None:
    with collecting() as (collector, endpoint):
        async with mirrors(telemetry={"otel": {"enabled": True, "endpoint": endpoint}}) as running:
            async with session(running) as caller:
                meta = {"traceparent": PARENT, "tracestate": "vendor=1"}
                result = await caller.call(f"{server}__headers", {}, _meta=meta)
        (called,) = [span for span in collector.spans() if (span["name"], span["kind"]) == ("tools/call headers", 3)]
    content = result["structuredContent"]["value"]
    assert content["traceparent"] == f"00-{TRACE}-{called['spanId']}-01" == result["seen"]["_meta"]["traceparent"]
    assert content["tracestate"] == "vendor=1"


async def test_without_tracing_no_header_is_added() -> None:
    async with mirrors() as running, session(running) as caller:
        for server in ("old", "new"):
            result = await caller.call(f"{server}__headers", {}, _meta={"traceparent": PARENT})
            assert "traceparent" not in result["structuredContent"]["value"]


async def test_a_run_of_a_task_is_a_span_in_the_callers_trace() -> None:
    with collecting() as (collector, endpoint):
        async with mirrors(telemetry={"otel": {"enabled": True, "endpoint": endpoint}}) as running:
            async with session(running) as caller:
                made = await caller.call("old__headers", {}, task={"ttl": 60_000}, _meta={"traceparent": PARENT})
                result = await caller.ask("tasks/result", {"taskId": made["task"]["taskId"]})
                failing = await caller.call("old__fail", {}, task={"ttl": 60_000}, _meta={"traceparent": PARENT})
                await refused(caller.ask("tasks/result", {"taskId": failing["task"]["taskId"]}))
        spans = {(span["name"], span["kind"]): span for span in collector.spans()}
        measured = collector.metrics()["mcp.client.operation.duration"]
    served, called = spans["tools/call old__headers", 2], spans["tools/call headers", 3]
    assert called["traceId"] == TRACE
    assert called["parentSpanId"] == served["spanId"]
    assert called["attributes"]["taskgate.server"] == "old"
    assert result["structuredContent"]["value"]["traceparent"] == f"00-{TRACE}-{called['spanId']}-01"
    failed = spans["tools/call fail", 3]
    assert failed["status"]["code"] == 2
    assert failed["attributes"]["rpc.response.status_code"] == "-31999"
    assert {flat(point["attributes"])["gen_ai.tool.name"] for point in measured} == {"headers", "fail"}


async def test_a_run_after_a_restart_stays_in_the_callers_trace() -> None:
    """The request that started it ended long ago, in another process; its context was stored with the call."""
    with collecting() as (collector, endpoint):
        rules = {"rules": [{"match": "headers", "action": "approve", "approval": "ops"}]}
        more = {"governance": rules, "approval": {"ops": {"channels": ["inbox"], "timeout": "5m"}}}
        async with mirrors(telemetry={"otel": {"enabled": True, "endpoint": endpoint}}, **more) as running:
            async with session(running) as caller:
                made = await caller.call("old__headers", {}, task={"ttl": 60_000}, _meta={"traceparent": PARENT})
            await running.restart()
            token = (running.state / "operator-token").read_text().strip()
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
                (open_one,) = (await http.get(f"{running.base}/api/approvals")).json()
                reply = await http.post(f"{running.base}/api/approvals/{open_one['id']}/approve", json={})
                assert reply.status_code == 200, reply.text
            async with session(running) as caller:
                await caller.ask("tasks/result", {"taskId": made["task"]["taskId"]})
        (called,) = [span for span in collector.spans() if (span["name"], span["kind"]) == ("tools/call headers", 3)]
    assert called["traceId"] == TRACE
    assert called["parentSpanId"] == "00f067aa0ba902b7"


async def test_without_tracing_the_context_passes_unchanged() -> None:
    async with running_gateway(config()) as running, session(running) as caller:
        data = await caller.call_json("echo", {}, _meta={"traceparent": PARENT})
        assert data["_meta"] == {"traceparent": PARENT}


@pytest.mark.real_processes
async def test_without_tracing_opentelemetry_is_not_imported() -> None:
    program = (
        "import sys, taskgate.lifecycle.lifecycle; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    code, out, err = await run_to_end([sys.executable, "-c", program])
    assert (code, out.strip()) == (0, "[]"), err


@pytest.mark.parametrize("module", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_missing_package_is_reported_with_the_command_that_installs_it(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_is_installed", lambda name: name != module)
    root = load_text("telemetry: {otel: {enabled: true}}").root
    with pytest.raises(ConfigError) as raised:
        tracing.build_tracing(root)
    (problem,) = raised.value.problems
    assert (problem.key, "taskgate[otel]" in problem.hint) == ("telemetry.otel", True)
    tracing.check_tracing(load_text("").root)


def test_package_counts_as_installed_only_if_its_module_is_found() -> None:
    assert tracing._is_installed("opentelemetry.exporter.otlp.proto.http")
    assert not tracing._is_installed("opentelemetry.no_such_module")
    assert not tracing._is_installed("no_such_package.module")


def test_shutdown_waits_for_the_collector_until_the_timeout() -> None:
    answered = threading.Event()
    assert not tracing._finished_within(0.05, answered.wait)
    answered.set()
    assert tracing._finished_within(60.0, answered.wait, answered.wait)
