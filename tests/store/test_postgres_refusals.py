"""Databases that a gateway cannot use, or can no longer use: each is reported, and nothing is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import conninfo
from tests.harness.postgres import fresh_url
from tests.store.test_postgres_store import DEADLINE_S, a_call

from taskgate.assembly.shared_store import check_shared
from taskgate.core.errors import Executed, GatewayFault
from taskgate.ports.store_answers import Change
from taskgate.store.operations.tasks import Accept
from taskgate.store.postgres.connection import reason
from taskgate.store.postgres.store import open_store

PASSWORD = "not-for-logs-1"


@contextmanager
def person(url: str, *, limit: int = -1, may: str = "") -> Iterator[str]:
    """The address for a user of its own, with this many connections and these rights in the schema."""
    schema = str(conninfo.conninfo_to_dict(url)["options"]).split("=", 1)[1]
    name = f"somebody_{schema}_{len(may)}_{limit + 1}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {name}")
        connection.execute(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT {limit} PASSWORD '{PASSWORD}'")
        if may:
            connection.execute(f"GRANT {may} ON SCHEMA {schema} TO {name}")
    try:
        yield conninfo.make_conninfo(url, user=name, password=PASSWORD)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
            connection.execute(f"DROP OWNED BY {name} CASCADE")
            connection.execute(f"DROP ROLE {name}")


def refusal(url: str) -> str:
    with pytest.raises(GatewayFault) as refused:
        open_store(url)
    assert refused.value.error_type == "store_unavailable"
    assert PASSWORD not in str(refused.value)
    return refused.value.message


def test_a_user_without_rights_is_refused_with_what_is_missing() -> None:
    with person(fresh_url(), may="USAGE") as url:
        assert "permission denied" in refusal(url)


def test_a_database_without_connections_left_is_refused_with_the_reason() -> None:
    with person(fresh_url(), limit=0, may="USAGE, CREATE") as url:
        assert "too many connections" in refusal(url)


@pytest.mark.parametrize(
    ("done", "named"),
    [
        ("DROP TABLE owners CASCADE", "table owners"),
        ("DROP TABLE attempts CASCADE", "table attempts"),
        ("DELETE FROM taskgate_schema WHERE number = 3", "migration 3"),
    ],
)
def test_an_incomplete_schema_is_refused_and_not_repaired(done: str, named: str) -> None:
    """Also where the start itself would not touch what is missing."""
    url = fresh_url()
    store = open_store(url)
    asyncio.run(_closed(store))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(done)
    assert named in refusal(url)
    with pytest.raises(GatewayFault, match=named):
        check_shared(url)


def test_a_check_names_what_a_user_may_not_do() -> None:
    """Who may read the schema's number and create tables does not own those of another user."""
    url = fresh_url()
    asyncio.run(_closed(open_store(url)))
    for may, named in (
        ("USAGE", "create tables"),
        ("USAGE, CREATE", "DELETE, INSERT, SELECT, UPDATE on account_claims"),
    ):
        with person(url, may=may) as other:
            name = conninfo.conninfo_to_dict(other)["user"]
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"GRANT SELECT ON taskgate_schema TO {name}")
            with pytest.raises(GatewayFault, match=f"permission denied: .*{named}"):
                check_shared(other)
            assert named in refusal(other)


def test_a_check_names_tables_that_may_be_written_but_not_changed() -> None:
    """Such a user can accept a call and never end it."""
    url = fresh_url()
    asyncio.run(_closed(open_store(url)))
    with person(url, may="USAGE, CREATE") as other:
        name = conninfo.conninfo_to_dict(other)["user"]
        with psycopg.connect(url, autocommit=True) as connection:
            schema = str(conninfo.conninfo_to_dict(url)["options"]).partition("search_path=")[2]
            connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}")
            connection.execute(f"REVOKE UPDATE, DELETE ON tasks FROM {name}")
            connection.execute(f"REVOKE DELETE ON events FROM {name}")
        with pytest.raises(GatewayFault, match=r"DELETE on events, DELETE, UPDATE on tasks\."):
            check_shared(other)
        assert "DELETE, UPDATE on tasks" in refusal(other)


async def _closed(store: object) -> None:
    from taskgate.store.postgres.store import PostgresStore

    assert isinstance(store, PostgresStore)
    await store.close()


async def test_a_database_that_becomes_read_only_refuses_writes_and_recovers_by_itself() -> None:
    url = fresh_url()
    store = open_store(url)
    name = conninfo.conninfo_to_dict(url)["dbname"]
    assert isinstance(await store.do(Accept(a_call())), Change)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s AND application_name LIKE 'taskgate%%'",
                [name],
            )
        refused = None
        async with asyncio.timeout(DEADLINE_S):
            while refused is None or "read-only" not in refused.message:
                try:
                    await store.do(Accept(a_call()))
                except GatewayFault as fault:
                    refused = fault
                await asyncio.sleep(0.05)
        assert (refused.error_type, refused.executed) == ("store_unavailable", Executed.NO)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s AND application_name LIKE 'taskgate%%'",
                [name],
            )
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                assert isinstance(await store.do(Accept(a_call())), Change)
                break
            except GatewayFault:
                await asyncio.sleep(0.1)
    await store.close()


@pytest.mark.parametrize(
    ("error", "expected_text"),
    [
        (
            "consuming input failed: server closed the connection unexpectedly\n"
            "\tThis probably means the server terminated abnormally\n\tbefore or while processing the request.\n",
            "consuming input failed: server closed the connection unexpectedly",
        ),
        ('connection failed: FATAL:  too many connections for role "x"', None),
        ("first host: refused\nsecond host: no such name", "second host: no such name"),
        ("", "OperationalError"),
    ],
)
def test_the_reason_is_one_line(error: str, expected_text: str | None) -> None:
    assert reason(psycopg.OperationalError(error)) == (expected_text if expected_text is not None else error)
