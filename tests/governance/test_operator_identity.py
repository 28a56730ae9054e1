"""The operator's keys on disk, and the sessions of the pages: what is stored, how long it is valid, and that it cannot be
forged."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from msgspec.structs import replace

from taskgate.access.credentials import CredentialRefused, Credentials, Token, operator_identity, token_digest
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.identity import Identity
from taskgate.core.identity.roles import OWNER_ROLES, Permission, allows
from taskgate.dashboard import login as sessions
from taskgate.dashboard.login import NO_FACTS, Login
from taskgate.dashboard.passphrase import TRIES, Passphrase
from taskgate.gateway.events import EventHub
from taskgate.inbound.gateway_secrets import (
    gateway_secret,
    operator_token,
    passphrase_matches,
    set_passphrase,
    stored_passphrase,
)
from taskgate.store.sqlite.store import SqliteStore, open_store

pytestmark = pytest.mark.virtual_time

ANN = Approver("ann", frozenset({"approver"}))
OPERATOR = Approver("operator", OWNER_ROLES)


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    opened = open_store(Path(mkdtemp()) / "people.db")
    yield opened
    await opened.close()


def a_login(
    store: SqliteStore, secret: bytes = b"s" * 32, people: dict[str, Approver] | None = None, secure: bool = False
) -> Login:
    known = {"ann": ANN, "operator": OPERATOR} if people is None else people
    return Login(secret, known.get, lambda: secure, store, EventHub())


async def approver_of(login: Login, cookie: str | None) -> Approver | None:
    found = await login.session(cookie or "", known_by(()))
    return None if found is None else found.person


async def person_by(login: Login, code: str) -> Approver | None:
    found = await login.redeem(code, known_by(()))
    return None if found is None else found.person


def value_in(header: bytes) -> str:
    return header.decode().partition("=")[2].partition(";")[0]


def test_the_operators_token_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    state = tmp_path / "state"
    token = operator_token(state)
    assert operator_token(state) == token
    assert len(token) > 32
    for name in ("operator-token", "secret"):
        gateway_secret(state)
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
    (state / "operator-token").chmod(0o644)
    operator_token(state)
    assert stat.S_IMODE((state / "operator-token").stat().st_mode) == 0o600
    assert [file.name for file in state.iterdir() if file.name.startswith(".")] == []


def test_a_damaged_token_file_stops_the_start_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "operator-token").write_text("\n")
    with pytest.raises(OSError, match="Remove it"):
        operator_token(tmp_path)


class NoRecords:
    """Nothing was revoked, and no person is stored."""

    def is_revoked(self, digest: str) -> bool:
        return False

    def is_recalled(self, identity: Identity) -> bool:
        return False

    def note(self, identity: Identity) -> None:
        return None


def no_scope(_digest: str) -> None:
    """There are no temporary scopes."""


def known_by(tokens: tuple[Token, ...]) -> Credentials:
    owner, records = operator_identity("op"), NoRecords()
    return Credentials(tokens, owner, None, None, {}, scope_of_token=no_scope, records=records, certificates={})


async def test_a_token_identifies_a_person_and_its_roles_permit_approving() -> None:
    tokens = (
        Token("ann", token_digest("a"), frozenset({"approver"})),
        Token("agent", token_digest("b")),
        Token("boss", token_digest("c"), frozenset({"operator"})),
    )
    keeper = known_by(tokens)

    def holder(authorization: bytes) -> Identity | None:
        try:
            return keeper.in_header(authorization).identity
        except CredentialRefused:
            return None

    found = {word: holder(f"Bearer {word}".encode()) for word in ("a", "b", "c", "op", "x")}
    assert {word: None if identity is None else identity.principal for word, identity in found.items()} == {
        "a": "ann",
        "b": "agent",
        "c": "boss",
        "op": "operator",
        "x": None,
    }
    see, act = Permission.SEE, Permission.ACT
    assert [word for word, identity in found.items() if identity and allows(identity.roles, see)] == ["a", "c", "op"]
    assert [word for word, identity in found.items() if identity and allows(identity.roles, act)] == ["c", "op"]
    assert holder(b"Basic op") is None
    assert known_by(()).in_header(b"Bearer x").identity.anonymous


async def test_a_session_is_valid_for_its_person_and_lifetime(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = a_login(store)
    cookie = value_in(await login.begin(ANN, 5, NO_FACTS))
    known = replace(ANN, logged_in=True, authenticated_at=5)
    assert await approver_of(login, cookie) == known
    assert await approver_of(a_login(store), cookie) == known
    assert await approver_of(a_login(store, b"t" * 32), cookie) is None
    for broken in (None, "", ".", "x.y", cookie[:-2], cookie + "A", cookie.replace(".", "")):
        assert await approver_of(login, broken) is None
    now = sessions.clock.wall()  # type: ignore[attr-defined]
    monkeypatch.setattr(sessions.clock, "wall", lambda: now + sessions.SESSION_S + 1)  # type: ignore[attr-defined]
    assert await approver_of(login, cookie) is None


async def test_a_session_ends_with_its_person_a_role_change_or_a_logout(store: SqliteStore) -> None:
    login = a_login(store)
    here, there, bobs = [value_in(await login.begin(who, None, NO_FACTS)) for who in (ANN, ANN, OPERATOR)]
    await login.end(here)
    assert await approver_of(login, here) is None
    assert await approver_of(login, there) is not None
    third = value_in(await login.begin(ANN, None, NO_FACTS))
    await login.end(there, everywhere=True)
    assert await approver_of(login, third) is None
    assert await approver_of(login, bobs) is not None
    again = value_in(await login.begin(ANN, None, NO_FACTS))
    promoted = a_login(store, people={"ann": replace(ANN, roles=frozenset({"admin"}))})
    assert await approver_of(promoted, again) is None
    # It has ended permanently, also at a gateway that has not received the change.
    assert await approver_of(login, again) is None
    gone = value_in(await login.begin(ANN, None, NO_FACTS))
    assert await approver_of(a_login(store, people={}), gone) is None


async def test_a_form_belongs_to_one_session(store: SqliteStore) -> None:
    login = a_login(store)
    mine, other = (
        value_in(await login.begin(ANN, None, NO_FACTS)),
        value_in(await login.begin(OPERATOR, None, NO_FACTS)),
    )
    assert login.is_valid_form(mine, login.form_token(mine))
    assert not login.is_valid_form(mine, login.form_token(other))
    assert not login.is_valid_form(mine, None)
    assert not login.is_valid_form(mine, "")


async def test_a_login_code_works_once_and_expires(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    login = a_login(store)
    code = await login.new_code("operator", NO_FACTS)
    assert await person_by(login, code) == OPERATOR
    assert await person_by(login, code) is None
    printed = login.printed_code("operator")
    late = await login.new_code("operator", NO_FACTS)
    again = a_login(store)
    assert await person_by(again, printed) == OPERATOR  # another gateway on the same store
    now = store.now_ms()
    monkeypatch.setattr(store, "now_ms", lambda: now + sessions.CODE_S * 1000 + 1)
    assert await person_by(login, late) is None


async def test_cookies_over_https_are_bound_to_the_host(store: SqliteStore) -> None:
    header = (await a_login(store, secure=True).begin(ANN, None, NO_FACTS)).decode()
    assert header.startswith("__Host-")
    assert "; Secure" in header
    assert "HttpOnly; SameSite=Strict" in header


async def test_a_passphrase_is_kept_as_a_hash_and_guessing_is_slowed_down(tmp_path: Path) -> None:
    assert stored_passphrase(tmp_path) is None
    set_passphrase(tmp_path, "open sesame")
    stored = stored_passphrase(tmp_path)
    assert stored is not None
    assert "sesame" not in stored
    assert passphrase_matches(stored, "open sesame")
    assert not passphrase_matches(stored, "Open sesame")
    lock = Passphrase(lambda given: given == "right")
    assert lock.needed_by(OPERATOR)
    assert not lock.needed_by(ANN)
    assert await lock.fits("right")
    for _ in range(TRIES):
        assert not await lock.fits("wrong")
    assert not await lock.fits("right")
    assert await Passphrase(None).fits("")
