"""`taskgate doctor` reports a running gateway that is not ready, with what it lacks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from taskgate.cli.doctor import _gateways
from taskgate.cli.findings import Finding


async def finding(answer: dict[str, Any] | None) -> Finding:
    """The finding about a gateway that answers this at /ready; None: it answers nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /ready ")
        if answer is not None:
            body = json.dumps(answer).encode()
            status = b"200 OK" if answer["ready"] else b"503 Service Unavailable"
            writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    record = {"url": f"http://127.0.0.1:{port}", "kind": "serve", "pid": 7, "config": "taskgate.yaml"}
    (found,) = await asyncio.to_thread(lambda: list(_gateways([record])))
    listening.close()
    return found


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        ({"ready": False, "degraded": ["tasks"], "store": "database or disk is full"}, "database or disk is full"),
        ({"ready": False, "degraded": ["tasks", "approvals"], "store": None}, "tasks, approvals"),
    ],
)
async def test_gateway_that_is_not_ready_is_a_problem(answer: dict[str, Any], missing: str) -> None:
    found = await finding(answer)
    assert (found.verdict, missing in found.detail, bool(found.fix)) == ("bad", True, True)


@pytest.mark.parametrize("answer", [{"ready": True, "degraded": [], "store": None}, None])
async def test_gateway_that_is_ready_or_does_not_answer_is_no_problem(answer: dict[str, Any] | None) -> None:
    assert (await finding(answer)).verdict == "ok"
