"""A call that waits until a person has connected an account, with the scope that the server requires."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.virtual_time import virtual_time

from taskgate.identity.account_file import FileRows
from taskgate.identity.account_logins import AccountLogins
from taskgate.identity.login_store import Login, LoginStore


class CountedLogins(LoginStore):
    loads = 0

    def load(self, server: str, principal: str = "") -> Login | None:
        self.loads += 1
        return super().load(server, principal)


def connector(folder: Path) -> tuple[AccountLogins, CountedLogins]:
    logins = CountedLogins(FileRows(folder / "logins"), b"k" * 32)
    unused: Any = None
    return AccountLogins(logins, unused, unused, lambda: "http://127.0.0.1"), logins


def log_in(accounts: AccountLogins, logins: LoginStore, scope: str) -> None:
    logins.keep("notes", Login("http://issuer", "gate", "token", None, scope=scope), "ann")
    accounts._logged_in("notes", "ann")


@virtual_time
async def test_login_without_the_scope_does_not_make_the_call_read_the_store_again_and_again(tmp_path: Path) -> None:
    accounts, logins = connector(tmp_path)
    waiting = asyncio.create_task(accounts.wait("notes", "ann", "read write", 600))
    await asyncio.sleep(1)
    log_in(accounts, logins, "read")
    await asyncio.sleep(0.5)
    assert not waiting.done()
    assert logins.loads <= 3
    log_in(accounts, logins, "read write")
    await asyncio.sleep(0.5)
    assert waiting.done()
    assert await waiting


@virtual_time
async def test_nothing_is_kept_of_a_wait_that_is_over(tmp_path: Path) -> None:
    accounts, _ = connector(tmp_path)
    assert not await accounts.wait("notes", "ann", None, 5)
    assert not accounts._waiting
