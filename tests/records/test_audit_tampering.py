"""What the chain alone does not detect: a truncated log, an emptied table, a rewritten chain. The anchor beside the database
does."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.commands import command
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.audit.chain import AuditEntry, chain
from taskgate.store.operations.audit import AuditRows, RecordAudit, audit_content


def _upstream() -> Upstream:
    made = Upstream("2025")

    @made.tool("echo")
    async def echo(_call: Call) -> str:
        return "echo"

    return made


async def _verified(gate: Gateway) -> tuple[int, dict[str, Any], str]:
    env = {"TASKGATE_STATE_DIR": str(gate.state)}
    code, out, _ = await command("audit", "verify", "-c", str(gate.config_file), "--json", env=env)
    found: dict[str, Any] = json.loads(out)
    return code, found, found.get("error") or found.get("problem") or ""


async def _some_rows(gate: Gateway, calls: int = 5) -> None:
    caller = await gate.caller("2025")
    for _ in range(calls):
        await caller.call("a__echo")
    await gate.advance(3)


def _database(gate: Gateway) -> Path:
    return gate.state / "taskgate.db"


def _cut_the_tail(database: sqlite3.Connection) -> None:
    database.execute("DELETE FROM audit WHERE number > (SELECT max(number) - 2 FROM audit)")


def _empty(database: sqlite3.Connection) -> None:
    database.execute("DELETE FROM audit")


def _rewrite(database: sqlite3.Connection) -> None:
    """Write other rows of the same number, which are a valid chain."""
    count = database.execute("SELECT count(*) FROM audit").fetchone()[0]
    database.execute("DELETE FROM audit")
    for row in chain(None, (AuditEntry(1, "call", principal="somebody else") for _ in range(count))):
        content = audit_content(row.number, row.previous, row.entry)
        database.execute("INSERT INTO audit VALUES (?, ?, ?)", (row.number, row.hash, content))


@virtual_time
@pytest.mark.parametrize("sabotage", [_cut_the_tail, _empty, _rewrite])
async def test_verify_detects_tampering_that_the_chain_does_not_show(
    sabotage: Callable[[sqlite3.Connection], None],
) -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        await _some_rows(gate)
        await gate.stop()
        code, output, _ = await _verified(gate)
        assert (code, output["whole"]) == (0, True)
        assert output["rows"] >= 5
        with sqlite3.connect(_database(gate)) as database:
            sabotage(database)
        code, output, _ = await _verified(gate)
        assert (code, output["whole"]) == (9, False)
        # A start detects it too, and the finding is kept, regardless of how many rows follow.
        await gate.start()
        assert any("audit log was changed" in line.event for line in gate.log)
        await _some_rows(gate, 12)
        await gate.stop()
        assert (await _verified(gate))[0] == 9


@virtual_time
async def test_a_missing_or_forged_anchor_is_reported() -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        await _some_rows(gate)
        await gate.stop()
        anchor = next(gate.state.glob("*.audit-anchor"))
        kept = anchor.read_bytes()
        anchor.write_bytes(kept.replace(b'"number":', b'"number":1', 1))
        code, _, output = await _verified(gate)
        assert code == 9
        assert "is not valid" in output
        anchor.unlink()
        code, _, output = await _verified(gate)
        assert code == 9
        assert "is missing" in output
        anchor.write_bytes(kept)
        assert (await _verified(gate))[0] == 0


def _drop(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE audit")


def _tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


@virtual_time
@pytest.mark.parametrize("sabotage", [_drop, _tear])
async def test_a_missing_log_is_reported(sabotage: Callable[[Path], None]) -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        await _some_rows(gate)
        await gate.stop()
        sabotage(_database(gate))
        code, _, output = await _verified(gate)
        assert code == 9
        assert "cannot be read" in output
        env = {"TASKGATE_STATE_DIR": str(gate.state)}
        code, _, output = await command("audit", "export", "-c", str(gate.config_file), env=env)
        assert code == 9
        assert "cannot be read" in output


@virtual_time
async def test_old_rows_are_deleted_and_the_rest_can_be_verified() -> None:
    async with Gateway({"audit": {"keep": "1h"}}, {"a": _upstream()}) as gate:
        await _some_rows(gate)
        await gate.advance(3500)
        await _some_rows(gate)
        await gate.advance(300)
        await gate.stop()
        with sqlite3.connect(_database(gate)) as database:
            first, last = database.execute("SELECT min(number), max(number) FROM audit").fetchone()
        assert first > 1
        assert last > first
        code, output, _ = await _verified(gate)
        assert (code, output["rows"]) == (0, last)
        with sqlite3.connect(_database(gate)) as database:
            database.execute("DELETE FROM audit WHERE number = ?", (first,))
        assert (await _verified(gate))[0] == 9


@virtual_time
async def test_rows_are_exported_as_they_happen() -> None:
    async with Gateway({"audit": {"export": "./audit.jsonl"}}, {"a": _upstream()}) as gate:
        exported = gate.folder / "audit.jsonl"
        await _some_rows(gate)
        first = exported.read_bytes().count(b"\n")
        assert first >= 5
        await gate.restart()
        await _some_rows(gate)
        await gate.stop()
        numbers = [json.loads(line)["number"] for line in exported.read_bytes().splitlines()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > first
        assert (await command("audit", "verify", "--file", str(exported)))[0] == 0


async def _many_calls(gate: Gateway) -> None:
    """A hundred within one second, which are not in the log yet."""
    caller = await gate.caller("2025")
    await gate.advance(3)
    for _ in range(100):
        await caller.call("a__echo")


async def _calls_in(gate: Gateway) -> int:
    """After an awaited write, which commits the rows that are queued with it."""
    await gate.life.app.store.do(RecordAudit(AuditEntry(1, "test")))
    return sum(row.entry.event == "call" for row in await gate.life.app.store.ask(AuditRows()))


@virtual_time
async def test_the_calls_of_a_second_go_into_the_log_together() -> None:
    """With the other records of these calls, so that a crash cannot separate them."""
    async with Gateway({}, {"a": _upstream()}) as gate:
        await _many_calls(gate)
        seen = [await _calls_in(gate)]
        for _ in range(200):
            await gate.advance(0.01)
            seen.append(await _calls_in(gate))
        assert sorted(set(seen)) == [0, 100]


@virtual_time
async def test_no_call_is_missing_in_the_log_of_a_gateway_that_stops_while_a_round_is_prepared() -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        await _many_calls(gate)
        journal = gate.life.app.gateway.lifecycle.journal
        while not journal._ended:
            await gate.advance(0.01)
        assert await _calls_in(gate) == 0
        await gate.stop()
        await gate.start()
        assert await _calls_in(gate) == 100


@virtual_time
async def test_rows_that_wait_at_the_end_are_anchored() -> None:
    async with Gateway({}, {"a": _upstream()}) as gate:
        await _some_rows(gate)
        gate.life.app.store.defer(RecordAudit(AuditEntry(0, "call", principal="last")))
        await gate.life.app.audit.close()
        gate.crash()
        with sqlite3.connect(_database(gate)) as database:
            last = "number = (SELECT max(number) FROM audit)"
            assert b"last" in database.execute(f"SELECT content FROM audit WHERE {last}").fetchone()[0]
            database.execute(f"DELETE FROM audit WHERE {last}")
        assert (await _verified(gate))[0] == 9
