"""Keeps the audit log honest and bounded while the gateway runs: anchors its head, exports new rows, forgets old ones.

Asked once a second by the house-keeping. Files are written in a thread; nothing here is waited for by a call.
"""

from __future__ import annotations

import asyncio
import json
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec

from taskgate import clock
from taskgate.config.load import LoadedConfig
from taskgate.core.audit import Row, export_line
from taskgate.ports.store import AuditLog
from taskgate.store.audit_anchor import AuditAnchor, BadAnchor, Mark, Marks, anchor_path, audit_key
from taskgate.telemetry.logs import log

FORGET_EVERY: Final = 60
AT_ONCE: Final = 2_000


class AuditKeeper:
    def __init__(self, store: AuditLog, anchor: AuditAnchor, export: Path | None) -> None:
        self._store = store
        self._anchor = anchor
        self._export = export
        self._marks = Marks()
        self._exported = 0

    async def start(self) -> None:
        """Compare what was noted with what is there, before anything is added."""
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
        self._marks = msgspec.structs.replace(marks, head=here)
        try:
            await asyncio.to_thread(self._anchor.write, self._marks)
        except OSError as error:
            # A full disk must not keep the gateway down; the next row tries again.
            log.error("the audit log could not be anchored", why=str(error))
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
        number, digest = self._store.audit_head()
        if self._marks.head is None or number != self._marks.head.number:
            await self._export_new(number)
            self._marks = msgspec.structs.replace(self._marks, head=Mark("head", number, digest, _now_ms()))
            await asyncio.to_thread(self._anchor.write, self._marks)
        if keep_ms is not None and rounds % FORGET_EVERY == 0:
            await self._forget(keep_ms)

    async def close(self) -> None:
        await self.tend(1, None)

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
            self._marks = msgspec.structs.replace(self._marks, cut=cut)
            await asyncio.to_thread(self._anchor.write, self._marks)
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
