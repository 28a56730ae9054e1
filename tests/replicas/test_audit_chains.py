"""The audit log of several gateways: one chain for each start, and `taskgate audit` reads all of them with their references to
each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from tests.harness.postgres import migrated_url
from tests.replicas.in_process import HeldGateway, gateways

from taskgate.assembly.audit_keeper import AuditKeeper
from taskgate.cli.root import build_app
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.timestamps import iso
from taskgate.dashboard.audit_scan import newest_first
from taskgate.store.audit_anchor import AuditAnchor, anchor_path, audit_key
from taskgate.store.operations.audit import AuditRows, ChainEnds, RecordAudit
from taskgate.store.postgres.shared_secrets import share_secrets
from taskgate.store.postgres.store import PostgresStore, open_store
from taskgate.store.sealing import Sealing

SECRET = b"s" * 32
Started = tuple[PostgresStore, AuditKeeper]


class Log:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self.folder = migrated_url(), folder
        (folder / "state").mkdir()
        monkeypatch.setenv("TASKGATE_STATE_DIR", str(folder / "state"))
        self.config = folder / "taskgate.yaml"
        self.config.write_text(yaml.safe_dump({"servers": {}, "store": {"url": self.url}}))
        share_secrets(self.url, {"gateway_secret": SECRET}, Sealing(()))

    async def start(self) -> Started:
        store = open_store(self.url)
        anchor = anchor_path(self.folder / "state" / f"audit-{store.ownership.owner}")
        keeper = AuditKeeper(store, AuditAnchor(anchor, audit_key(SECRET)), None)
        await keeper.start()
        return store, keeper

    async def stop(self, started: Started) -> None:
        await started[1].close()
        await started[0].close()

    async def two_ended(self) -> tuple[str, str]:
        """Two gateways one after the other; the second one's first row names the end of the first."""
        names = []
        for number in range(2):
            started = await self.start()
            for row in range(3):
                await started[0].do(RecordAudit(AuditEntry(0, f"call {number}.{row}")))
            names.append(started[0].audit_chain)
            await self.stop(started)
        return names[0], names[1]

    def verify(self, *more: str) -> tuple[int, dict[str, Any]]:
        reply = CliRunner().invoke(build_app(), ["audit", "verify", "-c", str(self.config), "--json", *more])
        return reply.exit_code, json.loads(reply.stdout) if reply.stdout.startswith("{") else {"said": reply.output}

    def change(self, statement: str, *values: object) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            assert connection.execute(statement, values).rowcount > 0


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(tmp_path, monkeypatch)


async def test_all_chains_are_verified_and_exported(log: Log) -> None:
    first, second = await log.two_ended()
    code, found = log.verify()
    assert (code, found) == (0, {"whole": True, "chains": {first: 4, second: 4}, "problems": []})
    export = log.folder / "export.jsonl"
    assert CliRunner().invoke(build_app(), ["audit", "export", "-c", str(log.config), "-o", str(export)]).exit_code == 0
    assert log.verify("--file", str(export))[1]["chains"] == {first: 4, second: 4}
    cut = [line for line in export.read_bytes().splitlines(keepends=True) if b"call 0.2" not in line]
    export.write_bytes(b"".join(cut))
    code, found = log.verify("--file", str(export))
    assert code != 0
    assert found["whole"] is False


@pytest.mark.parametrize(
    "statement, row",
    [
        ("UPDATE audit SET content = replace(convert_from(content, 'utf8'), 'call', 'cell')::bytea "
         "WHERE chain = %s AND number = 3", 3),
        ("DELETE FROM audit WHERE chain = %s AND number = 2", 2),
        ("DELETE FROM audit WHERE chain = %s AND number = 4", 4),
        ("WITH gone AS (DELETE FROM audit_chains WHERE chain = %s RETURNING chain) "
         "DELETE FROM audit USING gone WHERE audit.chain = gone.chain", 4),
    ],
    ids=["changed", "removed", "cut tail", "whole chain removed"],
)  # fmt: skip
async def test_tampering_is_found_without_the_files_of_its_gateway(log: Log, statement: str, row: int) -> None:
    first, _ = await log.two_ended()
    for file in (log.folder / "state").glob("*.audit-anchor"):
        file.unlink()
    log.change(statement, first)
    code, found = log.verify()
    assert code != 0
    (problem,) = found["problems"]
    assert (problem["chain"], problem["row"]) == (first, row)


async def test_the_end_of_the_last_chain_is_verified_by_the_anchor_of_its_gateway(log: Log) -> None:
    _, second = await log.two_ended()
    log.change("DELETE FROM audit WHERE chain = %s AND number = 4", second)
    code, found = log.verify()
    assert code != 0
    assert [problem["chain"] for problem in found["problems"]] == [second]


async def test_old_rows_of_all_chains_are_deleted_and_the_rest_is_valid(log: Log) -> None:
    first, second = await log.two_ended()
    started = await log.start()
    await started[0].do(RecordAudit(AuditEntry(0, "newest")))
    while await started[1].forget(-60_000):
        pass
    assert [row.number for row in await started[0].ask(AuditRows(chain=first))] == [4]
    assert [row.entry.event for row in await started[0].ask(AuditRows())] == ["newest"]
    code, found = log.verify()
    assert (code, found["whole"]) == (0, True)
    log.change(
        "UPDATE audit_chains SET cut = replace(convert_from(cut, 'utf8'), '3', '2')::bytea WHERE chain = %s", second
    )
    assert log.verify()[0] != 0
    await log.stop(started)


async def pages(gate: HeldGateway, query: str) -> list[list[tuple[str, str]]]:
    """Chain and event of the rows of each page, to the end of the log."""
    found, before = [], ""
    for _ in range(20):
        page = (await gate.operator("GET", f"/api/v1/audit?{query}{before}")).json()
        found.append([(row["chain"], row["event"]) for row in page["rows"]])
        if page["next"] is None:
            return found
        before = f"&before={page['next']}"
    raise AssertionError(f"the pages do not end: {found}")


async def test_search_merges_the_rows_of_all_gateways_by_time(tmp_path: Path) -> None:
    """A task's audit rows are found wherever and whenever they were written."""
    async with gateways(tmp_path) as setup:
        stores = [setup.a.store, setup.b.store]
        names = [store.audit_chain for store in stores]
        start = stores[0].now_ms() + 60_000
        written = [(0, 0), (1, 1), (1, 1), (0, 2), (1, 3), (0, 3), (0, 3), (1, 5)]
        for number, (of, seconds) in enumerate(written):
            entry = AuditEntry(start + seconds * 1000, f"mark {number}", "ann", reason="marked")
            await stores[of].do(RecordAudit(entry))
        # Equal times: by chain, then the higher number first.
        order = sorted(
            range(len(written)), key=lambda number: (-written[number][1], names[written[number][0]], -number)
        )
        expected = [(names[written[number][0]], f"mark {number}") for number in order]
        for gate in (setup.a, setup.b):
            for limit in (1, 3, 50):
                found = await pages(gate, f"text=marked&limit={limit}")
                assert [row for page in found for row in page] == expected
                assert all(len(page) == limit for page in found[:-1])
        for gate in (setup.a, setup.b):
            for until in range(7):
                before = [row for row, number in zip(expected, order, strict=True) if written[number][1] < until]
                query = urlencode({"text": "marked", "limit": 3, "until": iso(start + until * 1000)})
                assert [row for page in await pages(gate, query) for row in page] == before
        # A row that is written between two pages is newer than both.
        first = (await setup.a.operator("GET", "/api/v1/audit?text=marked&limit=3")).json()
        await stores[1].do(RecordAudit(AuditEntry(start + 9000, "late", reason="marked")))
        rest = (await setup.a.operator("GET", f"/api/v1/audit?text=marked&before={first['next']}")).json()
        assert [row["event"] for row in rest["rows"]] == [event for _, event in expected[3:]]
        for wrong in ("5", "x:1:y", f"1:{'9' * 20}:y", ":1:y"):
            assert (await setup.a.operator("GET", f"/api/v1/audit?before={wrong}")).status_code == 400


async def test_search_reads_chains_of_ended_gateways_and_stops_at_rows_that_retention_deleted(log: Log) -> None:
    first, second = await log.two_ended()
    store, keeper = await log.start()
    own = store.audit_chain
    ends = {end.chain: end.number for end in await store.ask(ChainEnds())}
    assert ends == {first: 4, second: 4, own: 1}
    await store.do(RecordAudit(AuditEntry(0, "newest")))
    found = [(position.chain, row.number) async for position, row in newest_first(store, None, 0)]
    expected = [*((own, number) for number in (2, 1)), *((second, n) for n in (4, 3, 2, 1))]
    assert found == [*expected, *((first, n) for n in (4, 3, 2, 1))]
    while await keeper.forget(-60_000):
        pass
    found = [(position.chain, row.number) async for position, row in newest_first(store, None, 0)]
    assert found == [(own, 2), (second, 4), (first, 4)]
    await log.stop((store, keeper))
