"""Maintains the audit log while the gateway runs: anchors its head, exports new rows, deletes old ones.

Files are written in a thread, and rows are deleted in portions; no call waits for any of this.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from taskgate import clock
from taskgate.config.load import LoadedConfig
from taskgate.core.audit.chain import Row, export_line
from taskgate.ports.store import Store
from taskgate.store.audit_anchor import AuditAnchor, InvalidAnchor, Mark, Marks, anchor_path, audit_key
from taskgate.store.operation import Flush
from taskgate.store.operations.audit import (
    CLOCK_STEP_MS,
    AuditRows,
    AuditTime,
    AuditTimes,
    BeginChain,
    EndedChains,
    ForgetAudit,
)
from taskgate.telemetry.logs import log

T = TypeVar("T")

EXPORT_AT_ONCE: Final = 500
FORGET_AT_ONCE: Final = 1_000
_ANCHOR: Final = "the anchor of the audit log"
_EXPORT: Final = "the export of the audit log"


class AuditKeeper:
    def __init__(self, store: Store, anchor: AuditAnchor, export: Path | None) -> None:
        self._store = store
        self._anchor = anchor
        self._export = export
        self._marks = Marks()
        self._exported = 0
        self._current_job: asyncio.Task[Any] | None = None
        self._to_forget: list[str] = []
        """Chains whose old rows are still to be deleted; the empty name is this gateway's own chain."""
        self._forgotten = 0
        self._failing: set[str] = set()
        self._without_time: set[int] = set()

    async def start(self) -> None:
        """Compare the anchor with the log before anything is appended."""
        await self._in_turn(self._start())

    async def _in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one job at a time to its end, even if the caller is cancelled: a thread that writes a file cannot be stopped, and the
        next writer must neither overtake it nor export the same rows again."""
        if self._current_job is not None and not self._current_job.done():
            await asyncio.gather(self._current_job, return_exceptions=True)
        begun = asyncio.create_task(work)
        self._current_job = begun
        return await asyncio.shield(begun)

    async def _start(self) -> None:
        await self._store.do(BeginChain())
        number, digest = self._store.audit_head()
        here = Mark("head", number, digest, _now_ms())
        try:
            known = await asyncio.to_thread(self._anchor.read)
            problem = None if known is None else await self._problem(known)
        except InvalidAnchor as error:
            known, problem = None, f"the anchor is damaged: {error}"
        marks = known or Marks(began=msgspec.structs.replace(here, kind="began"))
        if problem is not None:
            log.error("the audit log was changed while no gateway ran", problem=problem)
            mark = Mark(kind="problem", number=number, hash=digest, at_ms=_now_ms(), note=problem)
            marks = msgspec.structs.replace(marks, problems=(*marks.problems, mark))
        # A full disk must not prevent the start. The head is not anchored then, and this is retried every second.
        self._marks = marks
        await self._attempt(_ANCHOR, self._write_anchor(msgspec.structs.replace(marks, head=here)))
        if self._export is not None:
            self._exported = await asyncio.to_thread(_last_exported, self._export, number, self._store.audit_chain)

    async def _problem(self, known: Marks) -> str | None:
        head = known.head
        if head is None or head.number == 0:
            return None
        rows = await self._store.ask(AuditRows(head.number - 1, 1))
        if not rows or rows[0].number != head.number:
            return f"row {head.number} is missing, and others may be missing too"
        return None if rows[0].hash == head.hash else f"row {head.number} was changed"

    async def maintain(self) -> None:
        """Once a second: anchor the head of the log and export new rows."""
        if self._is_behind():
            await self._in_turn(self._maintain())

    def _is_behind(self) -> bool:
        return self._marks.head is None or self._store.audit_head()[0] != self._marks.head.number

    async def _maintain(self) -> None:
        if self._is_behind():
            number, digest = self._store.audit_head()
            head = msgspec.structs.replace(self._marks, head=Mark("head", number, digest, _now_ms()))
            await self._attempt(_EXPORT, self._export_new(number))
            await self._attempt(_ANCHOR, self._write_anchor(head))

    async def close(self) -> None:
        """Finish a cancelled round first. Deferred rows are written before the last anchor: a row that is written after it could be
        removed undetected."""
        try:
            await self._store.do(Flush())
        finally:
            await self._in_turn(self._maintain())

    async def _write_anchor(self, marks: Marks) -> None:
        """Write the anchor. If it raises OSError, the old one is unchanged."""
        await asyncio.to_thread(self._anchor.write, marks)
        self._marks = marks

    async def _attempt(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """A file that cannot be written is logged once and retried; nothing else stops."""
        try:
            await work
        except OSError as error:
            if what not in self._failing:
                log.error(f"{what} could not be written; this is retried", why=str(error))
            self._failing.add(what)
            return
        if what in self._failing:
            log.info(f"{what} is written again")
        self._failing.discard(what)

    async def _export_new(self, number: int) -> None:
        while self._export is not None and self._exported < number:
            rows = await self._store.ask(AuditRows(self._exported, EXPORT_AT_ONCE))
            if not rows:
                return
            await asyncio.to_thread(_append, self._export, rows, self._store.audit_chain)
            self._exported = rows[-1].number

    async def forget(self, keep_ms: int, portions: int = 1) -> bool:
        """Delete up to that many portions of old rows, first of this gateway's chain, then of ended ones; return whether there may
        be more."""
        if not self._to_forget:
            self._to_forget = ["", *await self._store.ask(EndedChains())]
        chain = self._to_forget[0]
        forgotten = await self._in_turn(self._forget_rows(keep_ms, chain, portions))
        self._forgotten += forgotten
        if forgotten < portions * FORGET_AT_ONCE:
            if self._forgotten:
                log.info("old rows of the audit log were deleted", rows=self._forgotten, chain=chain or None)
            self._to_forget.pop(0)
            self._forgotten = 0
        return bool(self._to_forget)

    async def _forget_rows(self, keep_ms: int, chain: str, portions: int) -> int:
        """Delete rows up to one that is recorded first, so that the rest can still be verified. The last row stays."""
        ends, count = await self._old_rows(keep_ms, chain, portions)
        if not ends:
            return 0
        cut = Mark("cut", ends[-1].number, ends[-1].hash, _now_ms())
        if not chain:
            await self._write_anchor(msgspec.structs.replace(self._marks, cut=cut))
        mark = self._anchor.signed_mark(cut, chain or self._store.audit_chain)
        for end in ends:
            await self._store.do(ForgetAudit(end.number, chain=chain, mark=mark))
        return count

    async def _old_rows(self, keep_ms: int, chain: str, portions: int) -> tuple[list[AuditTime], int]:
        """Return the last row of each portion that may be deleted, and the number of all their rows."""
        since, ends, count, after = self._store.now_ms() - keep_ms, list[AuditTime](), 0, 0
        for _ in range(portions):
            # One more than are deleted, because the last row of a chain stays.
            rows = await self._store.ask(AuditTimes(after, FORGET_AT_ONCE + 1, chain=chain))
            old = list(takewhile(lambda row: self._is_old(row, since) and self._may_delete(row, chain), rows[:-1]))
            while old and not _has_time(old[-1], self._store.now_ms()):
                old.pop()
            if old:
                ends.append(old[-1])
                count, after = count + len(old), old[-1].number
            if len(old) < FORGET_AT_ONCE:
                break
        return ends, count

    def _is_old(self, row: AuditTime, since_ms: int) -> bool:
        """A row without a time that can be right is as old as the rows around it: alone it would keep all later ones for ever."""
        if _has_time(row, self._store.now_ms()):
            return row.at_ms < since_ms
        if row.number not in self._without_time:
            self._without_time.add(row.number)
            log.error("a row of the audit log has no valid time; it is deleted with the rows around it", row=row.number)
        return True

    def _may_delete(self, row: AuditTime, chain: str) -> bool:
        """A row of this gateway that is not exported yet is not deleted, however old it is."""
        return bool(chain) or self._export is None or row.number <= self._exported


def _has_time(row: AuditTime, now_ms: int) -> bool:
    """Damaged rows have none, or one in the future."""
    return 0 < row.at_ms <= now_ms + CLOCK_STEP_MS


def _append(path: Path, rows: tuple[Row, ...], chain: str) -> None:
    with path.open("ab") as file:
        file.write(b"".join(export_line(row, chain) for row in rows))


def _last_exported(path: Path, head: int, chain: str) -> int:
    """Return the row after which the export continues: a new export begins with the next row, a new chain with its first."""
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


def audit_keeper(loaded: LoadedConfig, store: Store, secret: bytes, store_file: Path) -> AuditKeeper:
    export = loaded.root.audit.export
    return AuditKeeper(
        store,
        AuditAnchor(anchor_path(store_file), audit_key(secret)),
        Path(export) if export is not None else None,
    )
