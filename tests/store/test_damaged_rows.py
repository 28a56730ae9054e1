"""One damaged row in each table of a store: the gateway starts, serves and deletes what has expired, and `doctor` names the row."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.commands import command
from tests.harness.postgres import fresh_url
from tests.store.filled_store import DAY_MS, NOW_MS, Amounts, fill_sqlite
from tests.virtual_time import Call, Gateway, Upstream, the_loop, virtual_time

from taskgate.assembly.damaged_rows import damaged_in_database, damaged_in_file
from taskgate.core.audit.chain import GENESIS, AuditEntry, ChainBroken, verify
from taskgate.core.digest import digest_of_bytes
from taskgate.core.governance.grants import Grant
from taskgate.gateway.methods.temporary_scopes import TemporaryScope
from taskgate.store.operations.audit import AuditRows, audit_content
from taskgate.store.operations.grants import grant_columns
from taskgate.store.operations.pins import StoredPins
from taskgate.store.sqlite.store import open_store

CONFIG: dict[str, Any] = {
    "tasks": {"sweep_interval_ms": 60_000},
    "audit": {"keep": "10d"},
    "scopes": {"default": {"default_servers": ["*"], "mode": "both"}},
}
AUDIT_ROWS = 60
LATER = 2**53


def _fill(database: sqlite3.Connection) -> None:
    fill_sqlite(database, Amounts(200, 1, 200))
    database.execute("UPDATE tasks SET owner = 'taskgate', fence = 1")
    database.execute("DELETE FROM audit")
    previous = GENESIS
    for number in range(1, AUDIT_ROWS + 1):
        content = audit_content(number, previous, AuditEntry(NOW_MS - 40 * DAY_MS + number, "call", principal="p"))
        previous = digest_of_bytes(content)
        database.execute("INSERT INTO audit VALUES (?, ?, ?)", (number, previous, content))
    database.execute("DELETE FROM identity_records")
    for kind, name, body in (
        ("person", "p1", b'{"roles":["admin"]}'),
        ("person", "p2", b'{"roles":["admin"]}'),
        ("revoked", "t1", b'{"by":"x","at_ms":5}'),
        ("revoked", "t2", b'{"by":"x","at_ms":5}'),
        ("separated", "notes", b"fingerprint"),
    ):
        database.execute("INSERT INTO identity_records VALUES (?, ?, ?, ?, ?)", (kind, name, "p", LATER, body))
    for name in ("g1", "g2"):
        values = grant_columns(a_grant(name))
        database.execute("INSERT INTO grants VALUES (:id, :until_ms, :revoked, :doc)", values)
    for name in ("s1", "s2"):
        scope = TemporaryScope(name, "", {"mcp.enabled": "true"}, name, "x", 1, LATER)
        database.execute("INSERT INTO temporary_scopes VALUES (?, ?, ?)", (name, LATER, msgspec.json.encode(scope)))
    for tool in ("read", "other"):
        doc = b'{"digest":"sha256:x","definition":{}}'
        database.execute("INSERT INTO pins VALUES ('notes', ?, ?, 'x', 1)", (tool, doc))


def a_grant(name: str) -> Grant:
    return Grant(name, "w", "notes", "read", "default", None, None, "sha256:d", 1, LATER, ("x",), "a")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("filled") / "taskgate.db"
    asyncio.run(open_store(file, clock=lambda: NOW_MS).close())
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        _fill(database)
    return file


def damaged(filled: Path, state: Path, statement: str) -> Path:
    """A copy of the store in which the statement has been executed."""
    state.mkdir()
    for part in filled.parent.iterdir():
        shutil.copy(part, state / part.name)
    with contextlib.closing(sqlite3.connect(state / filled.name, isolation_level=None)) as database:
        if statement:
            assert database.execute(statement).rowcount > 0
    return state / filled.name


async def left_after_retention(folder: Path) -> tuple[dict[str, int], list[str]]:
    """The rows of each table after a start, a call and several rounds of retention, and what failed in the log."""
    server = Upstream("2025")

    @server.tool("read")
    async def read(call: Call) -> str:
        return "read"

    the_loop().set_wall(NOW_MS / 1000)
    async with Gateway(CONFIG, {"files": server}, folder=folder) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        assert "read" in (await caller.call("files__read")).text
        await gate.advance(130)
        for path in ("tasks", "approvals", "grants", "history", "audit", "questions", "scopes"):
            assert (await gate.operator("GET", f"/api/v1/{path}")).status < 500, path
        with contextlib.closing(sqlite3.connect(folder / "state" / "taskgate.db")) as database:
            tables = ("tasks", "recorded_calls", "history", "events")
            left = {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
            old = database.execute("SELECT count(*) FROM audit WHERE number <= ?", (AUDIT_ROWS,))
            left["audit"] = old.fetchone()[0]
        failures = [line.event for line in gate.log if line.level == "error" and "exc_info" in str(line.facts)]
        return left, [*failures, *(line.event for line in gate.log if "retried" in line.event)]


BROKEN = "x'7b2262726f6b656e'"
NO_FIELDS = "x'7b2262726f6b656e223a317d'"
CASES = {
    "nothing": ("", ""),
    "a revocation": (f"UPDATE identity_records SET body = {BROKEN} WHERE name = 't1'", "identity_records revoked t1"),
    "a person": (f"UPDATE identity_records SET body = {NO_FIELDS} WHERE name = 'p1'", "identity_records person p1"),
    "bytes of a server": ("UPDATE identity_records SET body = x'ff' WHERE kind = 'separated'", ""),
    "an audit row": (f"UPDATE audit SET content = {BROKEN} WHERE number = 7", "audit 7"),
    "the number of an audit row": (
        "UPDATE audit SET content = replace(CAST(content AS TEXT), '\"number\":7', '\"number\":70000') WHERE number = 7",
        "audit 7",
    ),
    "the time of an audit row": (
        "UPDATE audit SET content = CAST(replace(CAST(content AS TEXT), '\"at_ms\":', '\"at_ms\":9') AS BLOB) WHERE number = 7",
        "audit 7",
    ),
    "a grant": (f"UPDATE grants SET doc = {BROKEN} WHERE id = 'g1'", "grants g1"),
    "a pin": (f"UPDATE pins SET doc = {NO_FIELDS} WHERE tool = 'read'", "pins notes read"),
    "a temporary scope": (f"UPDATE temporary_scopes SET body = {BROKEN} WHERE name = 's1'", "temporary_scopes s1"),
    "lists of a server": (f"INSERT INTO catalogs VALUES ('notes', 'f', 1, {BROKEN})", ""),
    "open tasks": (f"UPDATE tasks SET doc = {BROKEN} WHERE finished_ms IS NULL", "tasks tg_"),
    "tasks that expire": (
        f"UPDATE tasks SET doc = {BROKEN} WHERE id = (SELECT id FROM tasks WHERE keep_until_ms <= {NOW_MS} "
        "AND forget_at_ms IS NULL ORDER BY keep_until_ms LIMIT 1)",
        "tasks tg_",
    ),
    "open approvals": (f"UPDATE approvals SET doc = {NO_FIELDS} WHERE state = 'open'", "approvals "),
    "an event": (f"UPDATE events SET data = {BROKEN} WHERE number = 2", "events "),
    "a recorded call": (f"UPDATE recorded_calls SET body = {BROKEN} WHERE number = 2", "recorded_calls 2"),
    "a row of the history": (f"UPDATE history SET doc = {BROKEN}", "history "),
    "a time of a stream": ("UPDATE event_streams SET touched_ms = 'x'", "event_streams "),
    "a number of a question": ("UPDATE questions SET asked_ms = 'x'", "questions "),
}


def _cases() -> list[Any]:
    return [pytest.param(*case, id=name) for name, case in CASES.items()]


@pytest.mark.parametrize(("statement", "named"), _cases())
def test_a_gateway_starts_and_deletes_what_has_expired_with_damaged_rows(
    filled: Path, tmp_path: Path, statement: str, named: str
) -> None:
    file = damaged(filled, tmp_path / "state", statement)
    found = [f"{row.table} {row.key}" for row in damaged_in_file(file, NOW_MS)]
    assert not found if not named else any(name.startswith(named) for name in found), found
    seen: list[Any] = []

    @virtual_time
    async def runs() -> None:
        seen.extend(await left_after_retention(tmp_path))

    runs()
    left, failures = seen
    assert not failures
    assert left["audit"] == 0
    assert left["recorded_calls"] == 0
    assert left["tasks"] < 200
    assert left["events"] < 200


@pytest.mark.parametrize("kind", ["revoked"])
async def test_a_damaged_revocation_still_revokes(filled: Path, tmp_path: Path, kind: str) -> None:
    from taskgate.gateway.events import EventHub
    from taskgate.gateway.governance.known_people import KnownPeople

    file = damaged(filled, tmp_path / "state", f"UPDATE identity_records SET body = {BROKEN} WHERE kind = '{kind}'")
    store = open_store(file)
    people = KnownPeople(store, EventHub())
    await people.load()
    assert people.is_revoked("t1")
    assert people.was_revoked_since("p", store.now_ms() - 60_000)
    await store.close()


async def test_a_damaged_pin_matches_no_definition(filled: Path, tmp_path: Path) -> None:
    """Without the pin, the next definition would be accepted as the first one."""
    file = damaged(filled, tmp_path / "state", f"UPDATE pins SET doc = {BROKEN} WHERE tool = 'read'")
    store = open_store(file)
    pins = {pin.tool: pin.pin.digest for pin in await store.ask(StoredPins("notes"))}
    assert pins == {"read": "damaged", "other": "sha256:x"}
    await store.close()


async def test_a_damaged_audit_row_fails_the_verification_at_its_number(filled: Path, tmp_path: Path) -> None:
    file = damaged(filled, tmp_path / "state", f"UPDATE audit SET content = {BROKEN} WHERE number = 7")
    store = open_store(file)
    broken = verify(await store.ask(AuditRows()))
    assert isinstance(broken, ChainBroken)
    assert broken.number == 7
    await store.close()


async def test_doctor_names_a_damaged_row(filled: Path, tmp_path: Path) -> None:
    file = damaged(filled, tmp_path / "state", f"UPDATE audit SET content = {BROKEN} WHERE number = 7")
    config = tmp_path / "taskgate.yaml"
    config.write_text(f"servers: {{}}\nstore: {{url: 'sqlite:///{file}'}}\n")
    state = {"TASKGATE_STATE_DIR": str(tmp_path / "state")}
    code, output, _ = await command("doctor", "-c", str(config), "--no-connect", "--json", env=state)
    assert code != 0
    assert "store row audit 7" in output


def test_damaged_rows_of_a_postgresql_store_are_found() -> None:
    psycopg = pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")
    from taskgate.store.postgres.store import open_store as open_database

    url = fresh_url()

    async def used() -> None:
        await open_database(url).close()

    asyncio.run(used())
    assert list(damaged_in_database(url, NOW_MS)) == []
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("INSERT INTO grants (id, until_ms, revoked, doc) VALUES ('g1', 1, 0, 'broken')")
    (row,) = damaged_in_database(url, NOW_MS)
    assert (row.table, row.key) == ("grants", "g1")
