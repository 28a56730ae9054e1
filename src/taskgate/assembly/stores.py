"""Which SQLite file a configuration uses, and the audit log kept honest and bounded while the gateway runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
from collections.abc import Coroutine
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.atomic_files import create_file, replace_file
from taskgate.config.load import LoadedConfig
from taskgate.core.audit import Row, export_line
from taskgate.core.errors import GatewayFault
from taskgate.folders import gateway_key
from taskgate.ports.store import AuditLog
from taskgate.store.sealing import AuditAnchor, BadAnchor, Mark, Marks, anchor_path, audit_key
from taskgate.telemetry.logs import log

SQLITE: Final = "sqlite:///"
FIRST: Final = "taskgate.db"
WRAPPED: Final = ".taskgate-wrap-"
_OWNER: Final = "taskgate.db.owner"


def store_path(loaded: LoadedConfig) -> Path:
    """The SQLite file: as configured, else in the state directory. Nothing is written."""
    url = loaded.root.store.url if loaded.root.store is not None else None
    if url is None:
        return loaded.state_dir / _default_name(loaded)
    if not url.startswith(SQLITE):
        raise GatewayFault("store_unavailable", "This store is a PostgreSQL database and not a file.")
    return Path(url.removeprefix(SQLITE))


def claimed_store_path(loaded: LoadedConfig) -> Path:
    """The same, and from now on the file belongs to this configuration."""
    path = store_path(loaded)
    if path == loaded.state_dir / FIRST and loaded.root.store is None:
        loaded.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = loaded.state_dir / _OWNER
        known, name = _owner(loaded.state_dir), _name(loaded).encode("utf-8", "surrogateescape")
        if known is not None and known != _name(loaded):
            replace_file(owner, name)
        elif known is None:
            with contextlib.suppress(FileExistsError):
                create_file(owner, name)
    return store_path(loaded)


def check_store(path: Path) -> None:
    """Say before the start what would be wrong at it: a file that is no database, or a folder that cannot be written to.

    Raises GatewayFault. Nothing is written, and a store that is in use is left alone.
    """
    folder = next((parent for parent in path.parents if parent.exists()), path.parent)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise GatewayFault(
            "store_unavailable",
            f"The folder {folder} cannot be written to. Set TASKGATE_STATE_DIR or store.url elsewhere.",
        )
    if not path.exists():
        return
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        ) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as problem:
        text = (
            f"The store {path} cannot be opened: {problem}. Put a backup in its place, or move it away to begin anew."
        )
        raise GatewayFault("store_unavailable", text) from None


def _default_name(loaded: LoadedConfig) -> str:
    if loaded.path is None:
        return "demo.db"
    own = f"taskgate-{gateway_key(str(loaded.state_dir), str(loaded.path))[:8]}.db"
    if loaded.path.name.startswith(WRAPPED):
        return own
    owner = _owner(loaded.state_dir)
    return FIRST if owner is None or owner == _name(loaded) or not os.path.exists(owner) else own


def _name(loaded: LoadedConfig) -> str:
    return os.path.realpath(loaded.path) if loaded.path is not None else ""


def _owner(state_dir: Path) -> str | None:
    try:
        return (state_dir / _OWNER).read_text(encoding="utf-8", errors="surrogateescape").strip() or None
    except OSError:
        return None


# Keeps the audit log honest and bounded while the gateway runs: anchors its head, exports new rows, forgets old ones.
#
# Asked once a second by the house-keeping. Files are written in a thread; nothing here is waited for by a call.

FORGET_EVERY: Final = 60
AT_ONCE: Final = 2_000
_ANCHOR: Final = "the anchor of the audit log"
_EXPORT: Final = "the export of the audit log"


class AuditKeeper:
    def __init__(self, store: AuditLog, anchor: AuditAnchor, export: Path | None) -> None:
        self._store = store
        self._anchor = anchor
        self._export = export
        self._marks = Marks()
        self._exported = 0
        self._under_way: asyncio.Task[None] | None = None
        self._failing: set[str] = set()

    async def start(self) -> None:
        """Compare what was noted with what is there, before anything is added."""
        await self._in_turn(self._start())

    async def _in_turn(self, work: Coroutine[Any, Any, None]) -> None:
        """One piece of work at a time, each to its end, also if its caller is cancelled: a thread that writes a file cannot be
        stopped, and the next writer must neither overtake it nor export the same rows again."""
        if self._under_way is not None and not self._under_way.done():
            await asyncio.gather(self._under_way, return_exceptions=True)
        self._under_way = asyncio.create_task(work)
        await asyncio.shield(self._under_way)

    async def _start(self) -> None:
        await self._store.begin_chain()
        number, digest = self._store.audit_head()
        here = Mark("head", number, digest, _now_ms())
        try:
            known = await asyncio.to_thread(self._anchor.read)
            problem = None if known is None else await self._problem(known)
        except BadAnchor as error:
            known, problem = None, f"the anchor could not be believed: {error}"
        marks = known or Marks(began=msgspec.structs.replace(here, kind="began"))
        if problem is not None:
            log.error("the audit log was changed while nobody looked", problem=problem)
            told = Mark("problem", number, digest, _now_ms(), problem)
            marks = msgspec.structs.replace(marks, problems=(*marks.problems, told))
        # A full disk must not keep the gateway down. The head stays unnoted then, so it is tried again every second.
        self._marks = marks
        await self._attempt(_ANCHOR, self._write_anchor(msgspec.structs.replace(marks, head=here)))
        if self._export is not None:
            self._exported = await asyncio.to_thread(_last_exported, self._export, number, self._store.audit_chain)

    async def _problem(self, known: Marks) -> str | None:
        head = known.head
        if head is None or head.number == 0:
            return None
        rows = await self._store.audit_rows(head.number - 1, 1)
        if not rows or rows[0].number != head.number:
            return f"row {head.number} is gone, and with it perhaps others"
        return None if rows[0].hash == head.hash else f"row {head.number} is another one than it was"

    async def tend(self, rounds: int, keep_ms: int | None) -> None:
        """Once a second. Rows older than `keep_ms` are forgotten now and then; None keeps them all."""
        if self._is_behind() or _forgets(rounds, keep_ms):
            await self._in_turn(self._tend(rounds, keep_ms))

    def _is_behind(self) -> bool:
        return self._marks.head is None or self._store.audit_head()[0] != self._marks.head.number

    async def _tend(self, rounds: int, keep_ms: int | None) -> None:
        if self._is_behind():
            number, digest = self._store.audit_head()
            head = msgspec.structs.replace(self._marks, head=Mark("head", number, digest, _now_ms()))
            await self._attempt(_EXPORT, self._export_new(number))
            await self._attempt(_ANCHOR, self._write_anchor(head))
        if keep_ms is not None and _forgets(rounds, keep_ms):
            await self._forget(keep_ms)

    async def close(self) -> None:
        """Waits for what a cancelled round has left, also if there is nothing new."""
        await self._in_turn(self._tend(1, None))

    async def _write_anchor(self, marks: Marks) -> None:
        """Raises OSError; then what is noted is what it was."""
        await asyncio.to_thread(self._anchor.write, marks)
        self._marks = marks

    async def _attempt(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """A file that cannot be written stops nothing else, is logged once, and is tried again."""
        try:
            await work
        except OSError as error:
            if what not in self._failing:
                log.error(f"{what} could not be written; it will be tried again", why=str(error))
            self._failing.add(what)
            return
        if what in self._failing:
            log.info(f"{what} is written again")
        self._failing.discard(what)

    async def _export_new(self, number: int) -> None:
        while self._export is not None and self._exported < number:
            rows = await self._store.audit_rows(self._exported, AT_ONCE)
            if not rows:
                return
            await asyncio.to_thread(_append, self._export, rows, self._store.audit_chain)
            self._exported = rows[-1].number

    async def _forget(self, keep_ms: int) -> None:
        """Cut the chain at a row that is noted first: what follows it can still be verified."""
        old = await self._last_old(keep_ms)
        if old is not None:
            cut = Mark("cut", old.number, old.hash, _now_ms())
            await self._write_anchor(msgspec.structs.replace(self._marks, cut=cut))
            await self._store.forget_audit(old.number, mark=self._anchor.signed_mark(cut, self._store.audit_chain))
            log.info("old rows of the audit log were forgotten", up_to=old.number)
        for chain in await self._store.ended_chains():
            await self._forget_ended(keep_ms, chain)

    async def _forget_ended(self, keep_ms: int, chain: str) -> None:
        """The chain of a gateway that is gone; its last row stays."""
        old = await self._last_old(keep_ms, chain)
        if old is not None:
            mark = self._anchor.signed_mark(Mark("cut", old.number, old.hash, _now_ms()), chain)
            await self._store.forget_audit(old.number, chain=chain, mark=mark)
            log.info("old rows of an ended audit chain were forgotten", chain=chain, up_to=old.number)

    async def _last_old(self, keep_ms: int, chain: str = "") -> Row | None:
        """The last of the first rows that is older than what is kept, and not the end of the chain."""
        rows = await self._store.audit_rows(0, AT_ONCE, chain=chain)
        since = self._store.now_ms() - keep_ms
        old = list(takewhile(lambda row: row.entry.at_ms < since, rows[:-1]))
        return old[-1] if old else None


def _forgets(rounds: int, keep_ms: int | None) -> bool:
    return keep_ms is not None and rounds % FORGET_EVERY == 0


def _append(path: Path, rows: tuple[Row, ...], chain: str) -> None:
    with path.open("ab") as file:
        file.write(b"".join(export_line(row, chain) for row in rows))


def _last_exported(path: Path, head: int, chain: str) -> int:
    """Where the export goes on; an export that is new begins with the next row, a chain that is new with its first."""
    if chain:
        return 0
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 20)))
            lines = file.read().splitlines()
        return min(head, int(json.loads(lines[-1])["number"])) if lines else head
    except (OSError, ValueError, KeyError, TypeError):
        return head


def _now_ms() -> int:
    return int(clock.wall() * 1000)


def audit_keeper(loaded: LoadedConfig, store: AuditLog, secret: bytes, store_file: Path) -> AuditKeeper:
    export = loaded.root.audit.export
    folder = loaded.path.parent if loaded.path is not None else loaded.state_dir
    return AuditKeeper(
        store,
        AuditAnchor(anchor_path(store_file), audit_key(secret)),
        folder / Path(export).expanduser() if export is not None else None,
    )
