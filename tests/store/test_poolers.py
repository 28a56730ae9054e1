"""PgBouncer in front of the database: refused clearly where it gives sessions away by transaction, used where it keeps them."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.harness.postgres import RestartableServer
from tests.harness.programs import free_port, listening, running
from tests.store.test_postgres_store import a_call

from taskgate.assembly.shared_store import check_shared
from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Change
from taskgate.store.operations.tasks import Accept
from taskgate.store.postgres.connection import shown_url
from taskgate.store.postgres.store import open_store

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed on this machine")

SETTINGS = """
[databases]
postgres = host={socket} dbname=postgres user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
{more}
"""


@asynccontextmanager
async def pooled(folder: Path, mode: str, size: int = 20, more: str = "") -> AsyncIterator[str]:
    """The address of a database behind PgBouncer."""
    assert PGBOUNCER is not None
    async with RestartableServer() as database:
        port, file = free_port(), folder / "pgbouncer.ini"
        socket = str(Path(database.socket).parent)
        file.write_text(SETTINGS.format(socket=socket, port=port, mode=mode, size=size, more=more))
        command: list[str | Path] = [PGBOUNCER, file]
        if os.getuid() == 0:  # it does not run as root
            other = pwd.getpwuid(Path(socket).stat().st_uid).pw_name
            user = other if other != "root" else "nobody"
            folder.chmod(0o755)
            command = [PGBOUNCER, "-u", user, file]
        async with running(command, listening(port)):
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"


@pytest.mark.parametrize(
    ("mode", "size", "more"),
    [
        ("transaction", 20, ""),
        ("transaction", 1, ""),
        ("transaction", 20, "server_round_robin = 1"),
        ("statement", 20, ""),
    ],
)
async def test_pooler_in_transaction_mode_is_refused(tmp_path: Path, mode: str, size: int, more: str) -> None:
    async with pooled(tmp_path, mode, size, more) as url:
        with pytest.raises(GatewayFault, match="pooler") as at_start:
            open_store(url)
        with pytest.raises(GatewayFault, match="pooler") as at_check:
            check_shared(url)
    for refused in (at_start, at_check):
        assert refused.value.error_type == "store_unavailable"


async def test_pooler_in_session_mode_is_used(tmp_path: Path) -> None:
    async with pooled(tmp_path, "session") as url:
        assert shown_url(url) in check_shared(url)
        store = open_store(url)
        try:
            for _ in range(10):  # more often than a statement runs before it is prepared
                assert isinstance(await store.do(Accept(a_call())), Change)
        finally:
            await store.close()
