"""A configuration whose store is a PostgreSQL database, which other gateways may share: open it, look at it, and agree on
secrets.

The driver is an optional extra and is imported only here, when it is wanted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from taskgate import __version__
from taskgate.assembly.stores import check_store, store_path
from taskgate.config.load import LoadedConfig
from taskgate.config.model.store import keys_of
from taskgate.core.audit.chain import AuditEntry, Head, Row
from taskgate.core.errors import GatewayFault
from taskgate.inbound.gateway_secrets import (
    adopt_passphrase,
    passphrase_with_time,
    replace_operator_token,
    set_at,
    stored_passphrase,
)
from taskgate.inbound.http.internal_listener import InternalSocket, bind_internal
from taskgate.ports.account_connector import AccountRows
from taskgate.ports.replicas import Replica
from taskgate.ports.store import Store
from taskgate.store.audit_anchor import AuditAnchor, audit_key
from taskgate.store.sealing import Sealing
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from types import ModuleType


SCHEMES: Final = ("postgresql://", "postgres://")
_NOT_SHARED: Final = {"listen", "store", "public_url"}


def shared_url(loaded: LoadedConfig) -> str | None:
    """The address of the database, or None if the store is a file."""
    url = loaded.root.store.url if loaded.root.store is not None else ""
    return url if url.startswith(SCHEMES) else None


def bound_for_others(loaded: LoadedConfig) -> InternalSocket | None:
    """The socket of `listen.internal`, if that is set: bound first, because the lease names its address. Raises GatewayFault."""
    where = loaded.root.listen.internal
    if where is None:
        return None
    try:
        return bind_internal(where)
    except (OSError, ValueError) as problem:
        text = f"Other gateways cannot be listened for on listen.internal ({where}): {problem}."
        raise GatewayFault("invalid_request", text) from None


class Succession(NamedTuple):
    """The name that a gateway was given by whoever started it, and that of the one in whose place it was started: which has
    ended, so that what it held can be taken over at once."""

    owner: str
    replaces: str

    def next(self) -> Succession:
        return Succession(new_owner(), self.owner)


class Start(NamedTuple):
    """What whoever started a gateway has said beyond its configuration."""

    address: str = ""
    """Where callers reach it, if not where the configuration says."""
    succession: Succession | None = None


AS_CONFIGURED: Final = Start()


def new_owner() -> str:
    """Raises GatewayFault."""
    return str(_driver().new_owner())


def open_shared(loaded: LoadedConfig, url: str, internal: InternalSocket | None, start: Start = AS_CONFIGURED) -> Store:
    """Raises GatewayFault."""
    listen = loaded.root.listen
    owner, replaces = start.succession or (None, "")
    opened: Store = _driver().open_store(
        url,
        owner=owner,
        replaces=replaces,
        address=start.address or f"{listen.host}:{listen.port}",
        version=__version__,
        configuration=configuration_digest(loaded),
        internal=internal.address if internal is not None else "",
        keys=keys_of(loaded.root.store),
    )
    log.info("store opened", store=check_shared(url))
    return opened


def agreed_secrets(loaded: LoadedConfig, url: str, operator_token: str, secret: bytes) -> tuple[str, bytes]:
    """The operator's token and the signing secret of all gateways on this store: those of whoever came first."""
    _driver()

    from taskgate.store.postgres.shared_secrets import share_secrets

    ours = {"operator_token": operator_token.encode(), "gateway_secret": secret}
    agreed = share_secrets(url, ours, Sealing(keys_of(loaded.root.store)))
    token = agreed["operator_token"].decode()
    if token != operator_token:
        replace_operator_token(loaded.state_dir, token)
    return token, agreed["gateway_secret"]


def agreed_keys(loaded: LoadedConfig, url: str, operator_token: str, secret: bytes) -> tuple[str, bytes, str | None]:
    """The same with the hash of what the operator's approvals need: the passphrase that was set last, on any machine."""
    token, secret = agreed_secrets(loaded, url, operator_token, secret)

    from taskgate.store.postgres.shared_secrets import share_secrets

    ours = passphrase_with_time(loaded.state_dir)
    sealing = Sealing(keys_of(loaded.root.store))
    agreed = share_secrets(url, {"passphrase": ours}, sealing, lambda one, other: set_at(one) > set_at(other))[
        "passphrase"
    ]
    if agreed != ours:
        adopt_passphrase(loaded.state_dir, agreed)
    return token, secret, stored_passphrase(loaded.state_dir)


class SharedChains:
    """The audit chains of all gateways on a database, and what says where they were cut or ended."""

    def __init__(self, loaded: LoadedConfig, url: str) -> None:
        """Raises GatewayFault. The files in the state folder vouch for the chains of gateways that ran here."""
        _driver()

        from taskgate.store.postgres.shared_secrets import find_secret

        self._url = url
        self._key = audit_key(find_secret(url, "gateway_secret", Sealing(keys_of(loaded.root.store))) or b"")
        self._files = sorted(loaded.state_dir.glob("audit-gw_*.audit-anchor"))

    def chains(self) -> Iterator[tuple[str, Row | None, Iterator[Row]]]:
        """Each chain: its name, the last row that was forgotten on purpose, and its rows. Raises ValueError for a forged cut."""
        from taskgate.store.postgres.audit_chains import read_chains

        reader = AuditAnchor(Path(), self._key)
        for chain, cut, rows in read_chains(self._url):
            mark = reader.read_mark(cut, chain) if cut is not None else None
            forgotten = None if mark is None else Row(mark.number, "", mark.hash, AuditEntry(mark.at_ms, "cut"))
            yield chain, forgotten, rows

    def anchored(self) -> Iterator[Head]:
        """The ends of chains that gateways noted in files here. Raises ValueError if one cannot be believed."""
        for file in self._files:
            chain = file.name.removeprefix("audit-").removesuffix(".audit-anchor")
            marks = AuditAnchor(file, self._key).read()
            if marks is not None and marks.problems:
                raise ValueError(f"a gateway found at a start that {marks.problems[0].note}")
            if marks is not None and marks.head is not None and marks.head.number:
                yield Head(chain, marks.head.number, marks.head.hash)


def shared_account_rows(url: str) -> AccountRows:
    """Accounts at servers, as rows that all gateways on this store share."""
    _driver()
    from taskgate.store.postgres.account_rows import PostgresAccountRows

    return PostgresAccountRows(url)


def check_shared(url: str) -> str:
    """What was found, in a sentence. Raises GatewayFault if a gateway could not start on it; changes nothing."""
    _driver()
    from taskgate.store.postgres import inspection as database
    from taskgate.store.postgres.connection import shown_url

    found = database.inspect_url(url)
    database.check(found)
    database.check_rights(found)
    schema = f"schema {found.schema} of {found.known_schema}"
    if found.schema < found.known_schema:
        schema += " (a start or `taskgate store migrate` brings it up to date)"
    return (
        f"{shown_url(url)}, PostgreSQL {found.server_version // 10_000}, {schema}, "
        f"synchronous_commit {found.synchronous_commit}, {_standbys(found.synchronous_standbys)}"
    )


def _standbys(named: str) -> str:
    if named:
        return f"synchronous standbys {named}"
    return "no synchronous standby (a fail-over to another server could lose what was acknowledged last)"


def gateways_on(url: str) -> tuple[int, tuple[Replica, ...]]:
    """The database's time, and the gateways on it whose lease has not run out. Raises GatewayFault."""
    _driver()
    from taskgate.store.postgres.inspection import seen_replicas
    from taskgate.store.postgres.presence import LEASE_MS

    now, rows = seen_replicas(url)
    seen = [Replica(*row) for row in rows]
    return now, tuple(replica for replica in seen if replica.seen_ms >= now - LEASE_MS)


def check_configured(loaded: LoadedConfig) -> None:
    """Say before the start what would be wrong at it, whichever kind of store is configured. Raises GatewayFault."""
    if (url := shared_url(loaded)) is not None:
        check_shared(url)
    else:
        check_store(store_path(loaded))


def missing_migrations(url: str) -> int:
    _driver()
    from taskgate.store.postgres import inspection as database

    found = database.inspect_url(url)
    database.check(found)
    return found.known_schema - found.schema


def migrate_shared(url: str) -> None:
    _driver()
    from taskgate.store.postgres import inspection as database

    database.migrate_url(url)


def copy_to_shared(source: Path, url: str, said: Callable[[str, int], None]) -> None:
    """`said` is told of each table with its rows. Raises GatewayFault."""
    _driver()
    from taskgate.store.postgres.copy import copy_store

    copy_store(source, url, said)


def copy_from_shared(url: str, target: Path, said: Callable[[str, int], None]) -> None:
    """The way back, into a new SQLite file. Raises GatewayFault."""
    _driver()
    from taskgate.store.postgres.copy import copy_back

    copy_back(url, target, said)


def configuration_digest(loaded: LoadedConfig) -> str:
    """Equal for gateways that would decide the same; where each listens does not count."""
    said = loaded.root.model_dump_json(exclude=_NOT_SHARED)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _driver() -> ModuleType:
    try:
        from taskgate.store.postgres import store
    except ImportError as missing:
        if missing.name is not None and missing.name.startswith("taskgate"):
            raise
        text = "A PostgreSQL store needs its driver. Install it with: pip install 'taskgate[postgres]'"
        raise GatewayFault("store_unavailable", text) from None
    return store
