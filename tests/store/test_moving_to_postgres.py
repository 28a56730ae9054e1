"""`taskgate store`: a SQLite store becomes a PostgreSQL one with everything in it, and problems are reported before the start."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.postgres import fresh_url
from tests.harness.unchecked import just_go
from tests.store.call_records import add_usage, record_calls
from tests.store.test_postgres_store import a_call

from taskgate.core.audit.chain import AuditEntry, ChainIntact, verify
from taskgate.core.governance.approval import Binding
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.governance.workflow import Workflow
from taskgate.core.tasks.transition import ResultReceived
from taskgate.core.usage import UsageRow
from taskgate.ports.store_answers import Change
from taskgate.store.operations.identity_records import CONSOLE_SESSION, IdentityRecord
from taskgate.store.operations.scopes import KeptScope
from taskgate.store.sqlite import store as sqlite_store
from taskgate.store.sqlite.connection import gives_back_pages

pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")

from tests.contracts.store_under_test import KeepSecret

from taskgate.store.operations.audit import AuditRows, RecordAudit
from taskgate.store.operations.events import AppendEvent, EventsAfter
from taskgate.store.operations.identity_records import KeepIdentityRecord
from taskgate.store.operations.scopes import KeepScope
from taskgate.store.operations.task_queries import ResultBytes, TaskOfKey
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.operations.upkeep import Claim
from taskgate.store.postgres.copy import COPIED_UNCHANGED, copy_store
from taskgate.store.postgres.store import open_store

LONG = b'"' + b"y" * (5 << 19) + b'"'


def taskgate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "taskgate", *words], capture_output=True, text=True, timeout=100, check=False
    )


async def test_everything_is_copied_and_what_was_open_is_taken_over(tmp_path: Path) -> None:
    path, url = tmp_path / "old.db", fresh_url()
    old = sqlite_store.open_store(path)
    answers = [await old.do(Accept(a_call(), key=f"k{number}")) for number in range(4)]
    tasks = [answer.task for answer in answers if isinstance(answer, Change)]
    for task, body in zip(tasks[:2], (b'{"n": 1.0}', LONG), strict=True):
        await old.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go))
        await old.do(Advance(task.id, ResultReceived(body)))
    await old.do(RecordAudit(AuditEntry(0, "before the move")))
    await old.do(KeepSecret("sealing", b"one"))
    rows = [row.entry.event for row in await old.ask(AuditRows())]
    await old.close()
    output = taskgate("store", "copy", str(path), url)
    assert output.returncode == 0, output.stderr
    assert f"audit: {len(rows)}" in output.stdout
    new = open_store(url)
    assert sorted(await new.do(Claim())) == sorted(task.id for task in tasks[2:])
    assert [await new.ask(ResultBytes(task.id)) for task in tasks[:2]] == [b'{"n": 1.0}', LONG]
    assert await new.ask(TaskOfKey("carol", "k3")) == tasks[3].id
    assert await new.do(KeepSecret("sealing", b"two")) == b"one"
    last = (await new.ask(EventsAfter("carol", 0))).last
    assert (await new.do(AppendEvent("carol", "task_status", "reports", {}))).number == last + 1
    await new.close()
    again = taskgate("store", "copy", str(path), url)
    assert again.returncode != 0
    assert "copy into an empty database" in again.stderr


COPIED = (
    *COPIED_UNCHANGED,
    "tasks",
    "approvals",
    "open_counts",
)


def rows_in(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        return {table: sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in COPIED}


async def test_a_copy_to_postgres_and_back_changes_nothing(tmp_path: Path) -> None:
    """Through PostgreSQL into a file again: every table row by row, long results, and one audit chain that is whole."""
    first, back, url = tmp_path / "first.db", tmp_path / "back.db", fresh_url()
    old = sqlite_store.open_store(first)
    answers = [await old.do(Accept(a_call(), key=f"k{number}")) for number in range(3)]
    done, _, _ = [answer.task for answer in answers if isinstance(answer, Change)]
    await old.do(Intend(done.id, byte_hash="b", upstream="u", recheck=just_go))
    await old.do(Advance(done.id, ResultReceived(LONG)))
    asked = a_call()
    workflow, binding = Workflow("ops"), Binding("carol", "reports", "build", asked.digest, "sha256:def", "rev1", 0)
    question = ApprovalRequest(
        "ap_1", workflow, "rules[0]", binding, asked.caller, asked.wire_name, arguments=asked.arguments
    )
    await old.do(Accept(asked, approval=question))
    await old.do(KeepIdentityRecord(IdentityRecord(CONSOLE_SESSION, "cookie", "ann", 9_000_000_000_000, b"{}")))
    await old.do(KeepScope(KeptScope("s1", 9_000_000_000_000, b"{}"), AuditEntry(0, "scope_made")))
    add_usage(old, [UsageRow("2026-01-31", "ann", "books", "read", 3, 1, 0.5, 10, 20, 0.25)])
    record_calls(old, [RecordedCall(1, "ann", server="books", name="read")])
    await old.do(RecordAudit(AuditEntry(0, "before the move")))
    events = [row.entry.event for row in await old.ask(AuditRows())]
    await old.close()
    copy_store(first, url, lambda *_: None)
    new = open_store(url)
    refused = taskgate("store", "copy", url, str(back))
    assert refused.returncode != 0
    assert "gateways are using it" in refused.stderr
    assert not back.exists()
    await new.do(RecordAudit(AuditEntry(0, "at the second gateway")))
    await new.close()
    output = taskgate("store", "copy", url, str(back))
    assert output.returncode == 0, output.stderr
    assert rows_in(back) == rows_in(first)
    again = sqlite_store.open_store(back)
    assert await again.ask(ResultBytes(done.id)) == LONG
    rows = await again.ask(AuditRows())
    assert isinstance(verify(rows), ChainIntact)
    kept = [row.entry.event for row in rows]
    assert kept[0] == "chain_began"
    assert [event for event in kept if event in events] == events
    assert "at the second gateway" in kept
    assert len(await again.do(Claim())) == 3
    await again.close()
    with closing(sqlite3.connect(back)) as made:
        assert gives_back_pages(made)
    assert "already" in taskgate("store", "copy", url, str(back)).stderr
    assert taskgate("store", "copy", str(back), str(tmp_path / "other.db")).returncode != 0


def test_a_store_is_checked_and_migrated_by_command(tmp_path: Path) -> None:
    file = tmp_path / "taskgate.yaml"
    file.write_text(f"schema: 1\nservers: {{}}\nstore: {{url: '{fresh_url()}'}}\n")
    missing = taskgate("store", "migrate", "--check", "-c", str(file))
    assert missing.returncode != 0
    assert "are missing" in missing.stdout
    assert taskgate("store", "migrate", "-c", str(file)).returncode == 0
    assert "up to date" in taskgate("store", "migrate", "--check", "-c", str(file)).stdout
    found = taskgate("store", "check", "-c", str(file))
    assert found.returncode == 0, found.stderr
    assert "synchronous_commit on, no synchronous standby" in found.stdout


def test_check_reports_a_missing_database(tmp_path: Path) -> None:
    file = tmp_path / "taskgate.yaml"
    file.write_text("schema: 1\nservers: {}\nstore: {url: 'postgresql://me:secret@127.0.0.1:1/none'}\n")
    for words in (("store", "check"), ("check",), ("doctor", "--no-connect")):
        output = taskgate(*words, "-c", str(file))
        assert output.returncode != 0, words
        assert "cannot be used" in output.stdout + output.stderr
        assert "secret" not in output.stdout + output.stderr
