"""A database that is cut, slow, restarted or full under gateways that run: nothing is lost, nothing runs twice, and each fault
is reported."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg import conninfo
from tests.harness.gateway import Gateway
from tests.harness.postgres import OwnServer, fresh_url
from tests.harness.programs import free_port
from tests.harness.raised import raises_error
from tests.harness.raw_client import RawClient
from tests.replicas.in_process import TASKS, DatabaseWire, HeldGateway, Setup, gateways, gateways_wired, until
from tests.store.call_factory import a_call

from taskgate.assembly import shared_store
from taskgate.core.errors import Executed, GatewayFault
from taskgate.gateway import shared_caches
from taskgate.ports.store_answers import Change
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Accept
from taskgate.store.postgres.engine import PostgresEngine
from taskgate.store.postgres.inspection import DatabaseState, check
from taskgate.store.postgres.presence import Presence
from taskgate.store.postgres.store import open_store

T = TypeVar("T")


async def in_the_end(setup: Setup, gateway: HeldGateway, call: str) -> str:
    """A task created here as soon as tasks are accepted again; each refusal must state that nothing was executed, correctly."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await setup.begin(gateway, "once", call)
            except AssertionError as error:
                refused = str(error)
            assert "store_unavailable" in refused, refused
            assert "'executed': 'no'" in refused, refused
            assert setup.ledger.count(call) == 0
            await asyncio.sleep(0.1)


async def all_ended_once(setup: Setup, gateway: HeldGateway, made: dict[str, str]) -> None:
    for call, task_id in made.items():
        assert (await setup.ended(gateway, task_id))["status"] == "completed", call
        assert setup.ledger.count(call) == 1, call


async def test_a_lease_that_is_late_when_an_intent_was_written_fails_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing went out on that intent: it is taken back, and the call is sent when the lease holds again."""
    fresh = PostgresEngine.may_send
    for late in ([True, False], [False], [True, False, False]):
        text = iter(late)
        monkeypatch.setattr(PostgresEngine, "may_send", lambda self, text=text: next(text, True) and fresh(self))
        async with gateways(tmp_path / str(len(late)), number=1, internal=False) as setup:
            task_id = await setup.begin(setup.a, "once", "c1")
            assert (await setup.ended(setup.a, task_id))["status"] == "completed"
            assert setup.ledger.count("c1") == 1


async def test_a_gateway_that_has_just_read_everything_needs_no_renewal_to_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Presence, "_read_revisions", lambda self, connection: None)
    monkeypatch.setattr(shared_caches, "CONFIRMED_WITHIN_S", 300.0)
    async with gateways(tmp_path, number=1, internal=False) as setup, setup.a.caller(stateless=False) as caller:
        answer = await caller.call("books__read", {"call": "c1", "seconds": 0})
        assert "c1" in str(answer.result)


async def test_a_gateway_whose_lease_expired_accepts_a_call_as_soon_as_it_is_back(tmp_path: Path) -> None:
    """Its writes are refused until it notices this at its next renewal; its callers see no error."""
    async with gateways(tmp_path, number=1, internal=False) as setup:
        owner, made = setup.a.store.ownership.owner, dict[str, str]()

        async def taken_for_dead(then: Awaitable[T]) -> T:
            fence = setup.a.store.ownership.fence
            with psycopg.connect(setup.url, autocommit=True) as database:
                database.execute("UPDATE owners SET retired = true WHERE owner = %s", [owner])
            answer = await then
            assert setup.a.store.ownership.fence > fence
            return answer

        for call in map("c{}".format, range(3)):
            made[call] = await taken_for_dead(setup.begin(setup.a, "once", call))
        await all_ended_once(setup, setup.a, made)
        slow = await setup.begin(setup.a, "once", "slow", 600)
        await until(lambda: setup.ledger.count("slow"))
        async with setup.a.caller(capabilities=TASKS) as caller:
            await taken_for_dead(caller.request("tasks/cancel", {"taskId": slow}))
        assert (await setup.ended(setup.a, slow))["status"] == "cancelled"


@pytest.fixture
async def wired(tmp_path: Path) -> AsyncIterator[tuple[Setup, DatabaseWire]]:
    async with gateways_wired(tmp_path, internal=False) as found:
        yield found


async def test_an_intermittent_database_connection_loses_nothing(wired: tuple[Setup, DatabaseWire]) -> None:
    setup, wire = wired
    made: dict[str, str] = {}
    for number, fault in zip(range(12), itertools.cycle(("cut", "refuse", "silent", "none")), strict=False):
        call = f"c{number}"
        work = asyncio.create_task(in_the_end(setup, setup.a, call))
        if fault == "cut":
            wire.cut()
        elif fault == "refuse":
            wire.refuses = True
            wire.cut()
            await asyncio.sleep(0.3)  # the length of the fault, shorter than a lease
            wire.refuses = False
        elif fault == "silent":
            wire.is_silent = True
            await asyncio.sleep(0.3)
            wire.is_silent = False
        made[call] = await work
    for call, task_id in made.items():
        shown = await setup.ended(setup.b, task_id)
        # A lease that ran out on a busy machine is taken over: then the outcome is unknown, and never a second execution.
        assert shown["status"] == "completed" or "may or may not have" in str(shown), shown
        assert setup.ledger.count(call) <= 1
        assert shown["status"] != "completed" or setup.ledger.count(call) == 1


@pytest.mark.parametrize("how", ["refuses", "silent"])
async def test_with_passthrough_plain_calls_continue_without_the_database_and_the_gateway_stays_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Also in sessions, which other gateways could adopt, and in new ones; those are found by the others when it is back."""
    monkeypatch.setattr(shared_caches, "CONFIRMED_WITHIN_S", 0.0)
    async with gateways_wired(tmp_path, passthrough=True) as (setup, wire), contextlib.AsyncExitStack() as stack:
        stateless = await stack.enter_async_context(setup.a.caller())
        session = await stack.enter_async_context(setup.a.caller(stateless=False))
        wire.refuses = how == "refuses"
        wire.is_silent = how == "silent"
        if how == "refuses":
            wire.cut()
        await until(lambda: setup.a.store.problem is not None and not setup.a.store.engine.presence.is_fresh)
        opened = await stack.enter_async_context(setup.a.caller(stateless=False))
        for caller in (stateless, session, opened):
            answer = await caller.call("books__read", {"call": f"{id(caller)}"})
            assert "result" in answer.reply, answer.reply
            assert setup.ledger.count(f"{id(caller)}") == 1
        shown = await setup.a.operator("GET", "/ready")
        assert (shown.status_code, shown.json()["ready"]) == (200, True)
        assert {"tasks", "approvals"} <= set(shown.json()["degraded"])
        assert "plain_calls" not in shown.json()["degraded"]
        assert shown.json()["store"]
        wire.is_silent = wire.refuses = False
        wire.cut()

        async def all_well() -> bool:
            return (await setup.a.operator("GET", "/ready")).json()["degraded"] == []

        async def found_by_b() -> bool:
            elsewhere = RawClient(setup.b.url, headers=opened.headers, http=opened.http)
            return "result" in (await elsewhere.request("ping")).reply

        await until(all_well)
        await until(found_by_b)


async def test_without_passthrough_a_gateway_without_its_database_is_not_ready_and_refuses_sessions(
    tmp_path: Path,
) -> None:
    """Another gateway may have taken the session over meanwhile."""
    async with gateways_wired(tmp_path) as (setup, wire), setup.a.caller(stateless=False) as session:
        wire.refuses = True
        wire.cut()
        await until(lambda: setup.a.store.problem and not setup.a.store.engine.presence.is_fresh)
        shown = await setup.a.operator("GET", "/ready")
        assert (shown.status_code, shown.json()["ready"]) == (503, False)
        assert {"plain_calls", "tasks"} <= set(shown.json()["degraded"])
        refused = await session.call("books__read", {"call": "refused"})
        assert refused.error["data"]["error_type"] == "store_unavailable"
        assert refused.error["data"]["executed"] == "no"
        assert setup.ledger.count("refused") == 0


async def test_an_unresponsive_database_fails_durable_calls_and_recovers(
    wired: tuple[Setup, DatabaseWire],
) -> None:
    setup, wire = wired
    async with setup.a.caller() as plain:
        assert "result" in (await plain.call("books__read", {"call": "p0"})).reply
        wire.is_silent = True
        durable = asyncio.create_task(setup.begin(setup.a, "once", "lost"))
        assert "result" in (await plain.call("books__read", {"call": "p1"})).reply, "plain calls go on"
        with pytest.raises(AssertionError, match="store_unavailable") as refused:
            await asyncio.wait_for(durable, 120)
        assert "'executed': 'no'" in str(refused.value)
        assert (await setup.a.operator("GET", "/ready")).status_code == 503
        # The others regard it as dead by now, and continue.
        assert (await setup.ended(setup.b, await setup.begin(setup.b, "once", "other")))["status"] == "completed"
        wire.is_silent = False
        wire.cut()

        async def ready() -> bool:
            return (await setup.a.operator("GET", "/ready")).status_code == 200

        await until(ready)
    assert setup.ledger.count("lost") == 0
    await all_ended_once(setup, setup.b, {"after": await in_the_end(setup, setup.a, "after")})


@contextlib.contextmanager
def limited_user() -> Iterator[tuple[Callable[[str, int], str], Callable[[int], None]]]:
    """How a gateway reaches the store as a user of its own, and how many connections that user may have from now on: those
    that it has are ended."""
    name, password, urls = f"limited_{secrets.token_hex(4)}", "p-of-limited", list[str]()

    def through(url: str, _index: int) -> str:
        schema = str(conninfo.conninfo_to_dict(url)["options"]).split("=", 1)[1]
        with psycopg.connect(url, autocommit=True) as database:
            database.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
            database.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {name}")
        urls.append(url)
        return f"{url}&user={name}&password={password}"

    def limited(connections: int) -> None:
        with psycopg.connect(urls[0], autocommit=True) as database:
            database.execute(f"ALTER ROLE {name} CONNECTION LIMIT {connections}")
            database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])

    try:
        yield through, limited
    finally:
        limited(0)
        with psycopg.connect(urls[0], autocommit=True) as database:
            database.execute(f"DROP OWNED BY {name} CASCADE")
            database.execute(f"DROP ROLE {name}")


async def test_a_database_without_free_connections_fails_calls_and_recovers(
    tmp_path: Path,
) -> None:
    with limited_user() as (through, limited):
        async with gateways(tmp_path, number=1, internal=False, url=fresh_url(), urls=through) as setup:
            made = {"before": await setup.begin(setup.a, "once", "before")}
            await asyncio.to_thread(limited, 0)
            refused = ""
            async with asyncio.timeout(120):
                for call in map("during{}".format, itertools.count()):
                    try:
                        made[call] = await setup.begin(setup.a, "once", call)
                    except AssertionError as error:
                        refused = str(error)
                        assert "store_unavailable" in refused, refused
                        assert "'executed': 'no'" in refused, refused
                        assert setup.ledger.count(call) == 0
                    if "too many connections" in refused:
                        break

            async def reported() -> str:
                return str((await setup.a.operator("GET", "/ready")).json()["store"])

            async def is_refusing() -> bool:
                return "too many connections" in await reported()

            await until(is_refusing)
            await asyncio.to_thread(limited, -1)
            made["after"] = await in_the_end(setup, setup.a, "after")

            async def well() -> bool:
                return await reported() == "None"

            await until(well)
            await all_ended_once(setup, setup.a, made)


def _filled(connection: psycopg.Connection[Any], rows: int) -> bool:
    """False if the disk is too full for that many more rows."""
    try:
        connection.execute("INSERT INTO filler SELECT sha512(n::text::bytea) FROM generate_series(1, %s) n", [rows])
    except psycopg.errors.DiskFull:
        return False
    return True


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    made = OwnServer(Path(tempfile.gettempdir()) / f"taskgate-own-{os.getpid():x}")
    yield made
    made.stop()


async def test_a_database_that_is_restarted_immediately_loses_nothing(tmp_path: Path, server: OwnServer) -> None:
    url = server.url("restarted")
    async with gateways(tmp_path, internal=False, urls=lambda _url, _index: url) as setup:
        made = {"before": await setup.begin(setup.a, "once", "before")}
        running = await setup.begin(setup.a, "read", "running", seconds=2)
        work = [asyncio.create_task(in_the_end(setup, setup.gateways[n % 2], f"c{n}")) for n in range(6)]
        await asyncio.to_thread(server.restart, "immediate")
        made |= {f"c{number}": await made_task for number, made_task in enumerate(work)}
        made["after"] = await in_the_end(setup, setup.b, "after")
        for call, task_id in made.items():
            shown = await setup.ended(setup.b, task_id)
            # The restart may take longer than a lease: what was under way then is unknown, and not sent again.
            assert shown["status"] == "completed" or "may or may not have" in str(shown), shown
            assert setup.ledger.count(call) <= 1, call
            assert shown["status"] != "completed" or setup.ledger.count(call) == 1
        assert (await setup.ended(setup.a, running))["status"] == "completed", "what may be repeated is finished"


async def test_a_full_database_fails_calls_and_recovers(tmp_path: Path, server: OwnServer) -> None:
    """Its tables are on a file system of 24 MB, which another process fills."""
    small = Path(tempfile.mkdtemp(prefix="taskgate-small-"))
    owner = server.system_user or str(os.getuid())
    options = f"size=24m,mode=0777,uid={owner if owner.isdigit() else pwd.getpwnam(owner).pw_uid}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(small)], check=False).returncode != 0:
        pytest.skip("a small file system needs the right to mount one")
    try:
        (small / "space").mkdir()
        shutil.chown(small / "space", owner if not owner.isdigit() else int(owner))
        server.sql(f"CREATE TABLESPACE small LOCATION '{small}/space'")
        url = server.url("filled", "TABLESPACE small")
        store = open_store(url)
        first = await store.do(Accept(a_call()))
        assert isinstance(first, Change)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("CREATE TABLE filler (bytes bytea)")
            for rows in (16_384, 128):
                while _filled(other, rows):
                    pass
        refused = None
        long = b'{"text":"' + b"x" * 900_000 + b'"}'
        for _ in range(200):
            try:
                await store.do(Accept(a_call(arguments=long)))
            except GatewayFault as fault:
                refused = fault
                break
        assert refused is not None
        assert (refused.error_type, refused.executed) == ("store_unavailable", Executed.NO)
        assert "No space left" in refused.message
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("DROP TABLE filler")

        async def accepted() -> bool:
            try:
                return isinstance(await store.do(Accept(a_call())), Change)
            except GatewayFault:
                return False

        await until(accepted)
        assert await store.ask(FindTask(first.task.id)) is not None
        await store.close()
        server.sql('DROP DATABASE "filled"')
        server.sql("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)
        small.rmdir()


def test_a_wrong_password_is_reported_without_quoting_it(server: OwnServer) -> None:
    url = server.url("locked", user="ann", password="not-the-one")
    server.sql("CREATE ROLE ann LOGIN PASSWORD 'the-right-one'")
    server.ask_for_password("ann")
    with pytest.raises(GatewayFault, match="password authentication failed") as refused:
        open_store(url)
    assert refused.value.error_type == "store_unavailable"
    assert "not-the-one" not in str(refused.value)


def test_a_server_that_is_too_old_is_refused_with_the_version() -> None:
    with raises_error("store_unavailable", "13"):
        check(DatabaseState(130_011, 0, 1, "on", is_read_only=False))
    check(DatabaseState(140_000, 0, 1, "on", is_read_only=False))


async def test_a_connection_that_would_acknowledge_too_early_is_not_written_to(server: OwnServer) -> None:
    """After a fail-over the new primary may have another setting than the one that was checked at the start."""
    url = server.url("hasty")
    store = open_store(url)
    assert isinstance(await store.do(Accept(a_call())), Change)
    server.sql('ALTER DATABASE "hasty" SET synchronous_commit = off')
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'hasty'"
    server.sql(cut)
    received: list[GatewayFault] = []

    async def hasty() -> bool:
        try:
            await store.do(Accept(a_call()))
        except GatewayFault as fault:
            received.append(fault)
        return any("synchronous_commit" in fault.message for fault in received)

    await until(hasty)
    assert {fault.executed for fault in received} == {Executed.NO}
    server.sql('ALTER DATABASE "hasty" RESET synchronous_commit')
    server.sql(cut)

    async def accepted() -> bool:
        try:
            return isinstance(await store.do(Accept(a_call())), Change)
        except GatewayFault:
            return False

    await until(accepted)
    await store.close()


async def test_a_gateway_of_another_version_is_seen_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a rolling upgrade: both work on what the other began, and everybody can see that they differ."""
    async with gateways(tmp_path, internal=False) as setup:
        await setup.b.stop()
        with monkeypatch.context() as other:
            other.setattr(shared_store, "__version__", "9.9.9")
            await setup.b.start()

        async def differs() -> bool:
            reply = (await setup.a.operator("GET", "/ready")).json()
            return reply["same_version"] is False and reply["same_configuration"] is True

        await until(differs)
        assert 'taskgate_replicas_differ{what="version"} 1' in (await setup.a.operator("GET", "/metrics")).text
        task_id = await setup.begin(setup.b, "once", "c1")
        assert (await setup.ended(setup.a, task_id))["status"] == "completed"
        assert setup.ledger.count("c1") == 1


OFF = str(Path(__file__).with_name("gateway_wrong_clock.py"))


async def second_round_elsewhere(first: str, second: str, name: str) -> None:
    """A 2026 call whose answers go to another gateway than the one that returned the questions."""
    async with RawClient(first, stateless=True, capabilities={"elicitation": {"form": {}}}) as caller:
        asked = (await caller.call("books__once_ask", {"call": name})).result
        answers = {key: {"action": "accept", "content": {"value": "x"}} for key in asked["inputRequests"]}
        caller.url = second
        again = await caller.call(
            "books__once_ask", {"call": name}, inputResponses=answers, requestState=asked["requestState"]
        )
        assert again.result["isError"] is False, again


async def test_a_gateway_with_a_wrong_clock_works_and_logs_a_warning(tmp_path: Path) -> None:
    """Leases, signed requests between gateways, deadlines and questions go by the database's clock."""
    scopes = {"default": {"default_servers": ["*"], "mode": "both"}}
    slowly = {"grace_ms": 60_000, "promote_after_ms": 60_000}
    async with gateways(tmp_path, number=1, scopes=scopes, tasks=slowly) as setup:
        (tmp_path / "off" / "state").mkdir(parents=True)
        off = Gateway(tmp_path / "off", free_port(), launcher=(OFF,))
        off.write({**setup.config, "store": {"url": setup.url}, "listen": {"internal": f"127.0.0.1:{free_port()}"}})
        await off.start()
        try:
            async with RawClient(off.url) as caller:
                assert (await caller.request("ping")).result == {}
                call = asyncio.create_task(caller.call("books__once_ask", {"call": "asked"}))

                async def asked() -> list[dict[str, Any]]:
                    rows: list[dict[str, Any]] = (await setup.a.operator("GET", "/api/questions")).json()
                    return rows if len(rows) == 2 else []

                for row in await until(asked):
                    answer = {"action": "accept", "content": {"value": "x"}}
                    reply = await setup.a.operator("POST", f"/api/questions/{row['request_id']}", answer)
                    assert reply.status_code == 200, reply.text
                assert "name x" in str((await asyncio.wait_for(call, 60)).result)
                caller.url = setup.a.url
                assert "error" not in (await caller.call("books__once", {"call": "forwarded"})).reply
                made = (await caller.call("books__once", {"call": "task"}, task={"ttl": 600_000})).result["task"]
                assert (await setup.ended(setup.a, made["taskId"]))["status"] == "completed"
            assert [setup.ledger.count(name) for name in ("asked", "forwarded", "task")] == [1, 1, 1]
            await second_round_elsewhere(setup.a.url, off.url, "there")
            await second_round_elsewhere(off.url, setup.a.url, "back")
            assert [setup.ledger.count(name) for name in ("there", "back")] == [1, 1]
            words = [sys.executable, OFF, "doctor", "-c", str(off.config), "--no-connect"]
            found = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=False)
            assert "differ by 18000 s" in found.stdout.replace("17999", "18000")
        finally:
            assert off.program is not None
            await off.program.end(signal.SIGTERM, within=60)
