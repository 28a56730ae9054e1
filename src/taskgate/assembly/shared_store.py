"""Stores in PostgreSQL, which other gateways may share: open and inspect the database, and share secrets.

The driver is an optional extra and is imported only here, when it is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from taskgate import __version__
from taskgate.assembly import scripts
from taskgate.assembly.stores import check_store, store_path
from taskgate.config.load import LoadedConfig
from taskgate.core.audit.chain import AuditEntry, Head, Row
from taskgate.core.errors import GatewayFault
from taskgate.core.settings.section import as_written
from taskgate.core.settings.store import keys_of
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
    """Return the address of the database, or None if the store is a file."""
    url = loaded.root.store.url if loaded.root.store is not None else ""
    return url if url.startswith(SCHEMES) else None


def bound_for_others(loaded: LoadedConfig) -> InternalSocket | None:
    """Bind the socket of `listen.internal`, if it is set; first, because the lease contains its address. Raises GatewayFault."""
    where = loaded.root.listen.internal
    if where is None:
        return None
    try:
        return bind_internal(where)
    except (OSError, ValueError) as problem:
        text = f"The gateway cannot listen on listen.internal ({where}): {problem}."
        raise GatewayFault("invalid_request", text) from None


class Succession(NamedTuple):
    """The name that a parent process gave to a gateway, and the name of the ended gateway that it replaces, whose tasks can be
    taken over at once."""

    owner: str
    replaces: str

    def next(self) -> Succession:
        return Succession(new_owner(), self.owner)


class Start(NamedTuple):
    """Settings that a parent process gives to a gateway in addition to its configuration."""

    address: str = ""
    """The address for callers, if it is not the configured one."""
    succession: Succession | None = None


AS_CONFIGURED: Final = Start()


def new_owner() -> str:
    """Return a new name for a start of a gateway. Raises GatewayFault."""
    return str(_driver().new_owner())


def open_shared(loaded: LoadedConfig, url: str, internal: InternalSocket | None, start: Start = AS_CONFIGURED) -> Store:
    """Open the database. Raises GatewayFault."""
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
        interpreter=scripts.version_for(loaded.root),
        keys=keys_of(loaded.root.store),
    )
    log.info("store opened", store=check_shared(url))
    return opened


def agreed_secrets(loaded: LoadedConfig, url: str, operator_token: str, secret: bytes) -> tuple[str, bytes]:
    """Return the operator's token and the signing secret of all gateways on this store: those of the first gateway."""
    _driver()

    from taskgate.store.postgres.shared_secrets import share_secrets

    ours = {"operator_token": operator_token.encode(), "gateway_secret": secret}
    agreed = share_secrets(url, ours, Sealing(keys_of(loaded.root.store)))
    token = agreed["operator_token"].decode()
    if token != operator_token:
        replace_operator_token(loaded.state_dir, token)
    return token, agreed["gateway_secret"]


def agreed_keys(loaded: LoadedConfig, url: str, operator_token: str, secret: bytes) -> tuple[str, bytes, str | None]:
    """Return the hash of the approval passphrase of all gateways: the one that was set last, on any machine."""
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
    """The audit chains of all gateways on a database, with the signed records of their cuts and ends."""

    def __init__(self, loaded: LoadedConfig, url: str) -> None:
        """Raises GatewayFault. The anchors in the state folder cover the chains of gateways that ran on this machine."""
        _driver()

        from taskgate.store.postgres.shared_secrets import find_secret

        self._url = url
        self._key = audit_key(find_secret(url, "gateway_secret", Sealing(keys_of(loaded.root.store))) or b"")
        self._files = sorted(loaded.state_dir.glob("audit-gw_*.audit-anchor"))

    def chains(self) -> Iterator[tuple[str, Row | None, Iterator[Row]]]:
        """Yield each chain: its name, the last row deleted by retention, and its rows. Raises ValueError for an invalid cut."""
        from taskgate.store.postgres.audit_chains import read_chains

        reader = AuditAnchor(Path(), self._key)
        for chain, cut, rows in read_chains(self._url):
            mark = reader.read_mark(cut, chain) if cut is not None else None
            forgotten = None if mark is None else Row(mark.number, "", mark.hash, AuditEntry(mark.at_ms, "cut"))
            yield chain, forgotten, rows

    def anchored(self) -> Iterator[Head]:
        """Return the ends of chains from the anchors on this machine. Raises ValueError if one is invalid."""
        for file in self._files:
            chain = file.name.removeprefix("audit-").removesuffix(".audit-anchor")
            marks = AuditAnchor(file, self._key).read()
            if marks is not None and marks.problems:
                raise ValueError(f"a gateway found at a start that {marks.problems[0].note}")
            if marks is not None and marks.head is not None and marks.head.number:
                yield Head(chain, marks.head.number, marks.head.hash)


def shared_account_rows(url: str) -> AccountRows:
    """Return the rows of accounts at servers that all gateways on this store share."""
    _driver()
    from taskgate.store.postgres.account_rows import PostgresAccountRows

    return PostgresAccountRows(url)


def check_shared(url: str) -> str:
    """Return a description of the database. Raises GatewayFault if a gateway could not start on it. Changes nothing."""
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
    """Return the database's time and the gateways on it with a valid lease. Raises GatewayFault."""
    _driver()
    from taskgate.store.postgres.inspection import seen_replicas
    from taskgate.store.postgres.presence import LEASE_MS
    from taskgate.store.rows import record_from

    now, rows = seen_replicas(url)
    seen = [record_from(Replica, row) for row in rows]
    return now, tuple(replica for replica in seen if replica.seen_ms >= now - LEASE_MS)


def check_configured(loaded: LoadedConfig) -> None:
    """Raises GatewayFault if a gateway could not start on the configured store, of either kind."""
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


def copy_to_shared(source: Path, url: str, report: Callable[[str, int], None]) -> None:
    """Copy a SQLite file into the database. `report` is called with each table and its number of rows. Raises GatewayFault."""
    _driver()
    from taskgate.store.postgres.copy import copy_store

    copy_store(source, url, report)


def copy_from_shared(url: str, target: Path, report: Callable[[str, int], None]) -> None:
    """Copy the database into a new SQLite file. Raises GatewayFault."""
    _driver()
    from taskgate.store.postgres.copy import copy_back

    copy_back(url, target, report)


def configuration_digest(loaded: LoadedConfig) -> str:
    """Return a digest that is equal for gateways with the same decisions; their addresses do not count."""
    shared = {key: value for key, value in as_written(loaded.root).items() if key not in _NOT_SHARED}
    return hashlib.sha256(msgspec.json.encode(shared, order="deterministic")).hexdigest()[:16]


def _driver() -> ModuleType:
    try:
        from taskgate.store.postgres import store
    except ImportError as missing:
        if missing.name is not None and missing.name.startswith("taskgate"):
            raise
        text = "A PostgreSQL store needs its driver. Install it with: pip install 'taskgate[postgres]'"
        raise GatewayFault("store_unavailable", text) from None
    return store
