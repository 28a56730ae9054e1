"""Read the rows of the audit log: from the database, or from an export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from taskgate.cli.command_line import Failed
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.loading import loaded_or_exit

if TYPE_CHECKING:
    from taskgate.core.audit.chain import Head as NoteOfRow
    from taskgate.core.audit.chain import Row
    from taskgate.store.audit_anchor import Marks


_PAGE = 2_000


class Chains(Protocol):
    """A log of several chains, such as `assembly.shared_store.SharedChains`."""

    def chains(self) -> Iterator[tuple[str, Row | None, Iterator[Row]]]: ...

    def anchored(self) -> Iterator[NoteOfRow]: ...


class ExportedChains(msgspec.Struct, frozen=True):
    """An export that contains several chains, possibly interleaved."""

    file: Path

    def chains(self) -> Iterator[tuple[str, Row | None, Iterator[Row]]]:
        """Yield each chain. An export may start after rows that retention deleted, so its first row is trusted. Raises
        ValueError.
        """
        rows: dict[str, list[Row]] = {}
        with self.file.open("rb") as lines:
            for chain, row in map(_parse_line, lines):
                rows.setdefault(chain, []).append(row)
        for chain, found in rows.items():
            yield chain, (found[0] if found[0].number > 1 else None), iter(found)

    def anchored(self) -> Iterator[NoteOfRow]:
        return iter(())


def several_chains(config: str | None, file: Path | None) -> Chains | None:
    """Return the chains of the log, or None if it has only one."""
    if file is not None:
        with file.open("rb") as lines:
            return ExportedChains(file) if b'"chain":' in lines.readline() else None
    from taskgate.assembly.shared_store import SharedChains, shared_url
    from taskgate.core.errors import TaskgateError

    loaded = loaded_or_exit(config)
    url = shared_url(loaded)
    try:
        return None if url is None else SharedChains(loaded, url)
    except TaskgateError as problem:
        raise Failed(problem.message, ExitCode.UNHEALTHY) from None


def anchored(config: str | None) -> Marks:
    """Return the contents of the anchor file. Raises ValueError if it is missing or not signed by this installation."""
    from taskgate.assembly.stores import store_path
    from taskgate.inbound.gateway_secrets import gateway_secret
    from taskgate.store.audit_anchor import AuditAnchor, InvalidAnchor, Marks, anchor_path, audit_key

    loaded = loaded_or_exit(config)
    path = store_path(loaded)
    if not path.exists():
        return Marks()
    anchor = anchor_path(path)
    try:
        marks = AuditAnchor(anchor, audit_key(gateway_secret(loaded.state_dir))).read()
    except InvalidAnchor as error:
        raise ValueError(f"the anchor {anchor} is not valid: {error}") from None
    if marks is None:
        raise ValueError(f"its anchor {anchor} is missing, so a truncated or rewritten log would not be detected")
    return marks


def stored_rows(config: str | None, after: int = 0) -> Iterator[Row]:
    """Yield the rows of the database, which a gateway may have open. Raises ValueError if it is damaged."""
    import sqlite3

    from taskgate.assembly.stores import store_path
    from taskgate.core.errors import TaskgateError
    from taskgate.store.operations.audit import audit_rows_after
    from taskgate.store.sqlite.connection import connect_reader
    from taskgate.store.sqlite.engine import statements_of

    path = store_path(loaded_or_exit(config))
    if not path.exists():
        text = f"No database at {path}. Start a gateway with this configuration first: taskgate serve"
        raise Failed(text, ExitCode.NOT_FOUND)
    try:
        with closing(connect_reader(path)) as connection:
            run = statements_of(connection)
            while rows := audit_rows_after(run, after, _PAGE):
                yield from rows
                after = rows[-1].number
    except (TaskgateError, sqlite3.Error) as problem:
        raise ValueError(f"the database {path} is damaged: {problem}") from None


def exported_rows(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        for line in lines:
            yield _parse_line(line)[1]


def _parse_line(line: bytes) -> tuple[str, Row]:
    """Return the chain of a row (empty if there is only one) and the row. Raises ValueError."""
    from taskgate.core.audit.chain import from_export

    try:
        exported = json.loads(line)
        return str(exported.get("chain", "")), from_export(exported)
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"a line is not a row of an audit log ({problem})") from None
