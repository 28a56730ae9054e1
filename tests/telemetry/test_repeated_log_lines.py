"""A statement that logs over and over writes a few lines a second, and the number of those left out."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.repeated_lines import BURST
from taskgate.telemetry import logs
from taskgate.telemetry.logs import LEVELS, Log


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_flood_of_one_log_statement_is_limited_regardless_of_its_text(
    capsys: pytest.CaptureFixture[str], level: str
) -> None:
    log = Log()
    for number in range(1_000):
        getattr(log, level)(f"tool {number} is broken", tool=number)
    log.info("another statement")
    log.report_suppressed(last=True)
    *flood, other, report = _lines(capsys)
    assert BURST <= len(flood) < BURST + 60
    assert other["event"] == "another statement"
    assert (report["level"], report["line"]) == (level, "tool 999 is broken")
    assert sum(line.get("not_logged", 0) for line in (*flood, report)) + len(flood) == 1_000


def test_each_server_has_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    for server in ("a", "b"):
        for _ in range(BURST):
            log.warning("server lost", server=server)
    assert len(_lines(capsys)) == 2 * BURST


def test_debug_lines_are_not_limited(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.minimum = LEVELS["debug"]
    for _ in range(500):
        log.debug("detail")
    assert len(_lines(capsys)) == 500


def test_lines_below_the_level_are_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.minimum = LEVELS["error"]
    for _ in range(500):
        log.info("detail")
    log.report_suppressed(last=True)
    assert _lines(capsys) == []


def test_lines_of_libraries_are_limited(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    logs.set_up("info", "json")
    for number in range(1_000):
        logging.getLogger("asyncio").error("Task %s exception was never retrieved", number)
    assert BURST <= len(capsys.readouterr().err.splitlines()) < BURST + 60


@virtual_time
async def test_gateway_reports_what_a_flood_of_denied_calls_left_out() -> None:
    """In virtual time: the number is written once the flood is over, without a further line."""
    server = Upstream("both")

    @server.tool("drop")
    async def drop(_call: Call) -> str:
        return "done"

    rules = [{"match": "drop", "action": "deny"}]
    async with Gateway({"governance": {"rules": rules}}, {"s": server}) as gate:
        caller = await gate.caller("2026")
        for _ in range(3 * BURST):
            await caller.call("s__drop", {})
        await gate.advance(5)
        denied = [line for line in gate.log if line.event == "denied"]
        reports = [line for line in gate.log if line.facts.get("line") == "denied"]
        assert BURST <= len(denied) < 2 * BURST
        reported = sum(line.facts.get("not_logged", 0) for line in (*denied, *reports))
        assert len(denied) + reported == 3 * BURST
