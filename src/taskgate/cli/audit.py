"""`taskgate audit`: walk the chain of the audit log, or write it out as JSON lines. Reads the database, changes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli import say
from taskgate.cli.say import ExitCode
from taskgate.cli.serve import ConfigOption, loaded_or_exit
from taskgate.cli.target import Json

if TYPE_CHECKING:
    from taskgate.core.audit import Row
    from taskgate.store.audit_anchor import Marks

_PAGE = 2_000

ExportFile = Annotated[
    Path | None, typer.Option("--file", help="Verify an export (JSON lines) instead of the database.")
]
Head = Annotated[
    str | None, typer.Option("--head", metavar="N:HASH", help="A row you noted earlier; it must still be there.")
]


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Verify and export the audit log.", no_args_is_help=True)
    group.command("verify")(verify)
    group.command("export")(export)
    app.add_typer(group, name="audit")


def verify(config: ConfigOption = None, file: ExportFile = None, head: Head = None, as_json: Json = False) -> None:
    """Check that no row was changed, removed or inserted. Note the printed head to notice a shortened log later."""
    from taskgate.core.audit import Whole
    from taskgate.core.audit import verify as walk

    watched = _Watch(head)
    try:
        if file is not None:
            found = walk(watched.each(_exported(file)))
        else:
            marks = _anchored(config)
            watched.expect(marks)
            found = walk(watched.each(_stored(config, watched.cut)), after=watched.before())
    except ValueError as error:
        say.note(f"The log cannot be read: {error}")
        raise typer.Exit(ExitCode.UNHEALTHY) from None
    problem = watched.problem()
    if isinstance(found, Whole) and problem is None:
        if as_json:
            print(json.dumps({"whole": True, "rows": found.rows, "head": f"{found.rows}:{found.head}"}))
        else:
            print(f"The chain is whole: {found.rows} rows. Head {found.rows}:{found.head}")
            watched.explain()
        return
    number = watched.number if isinstance(found, Whole) else found.number
    text = problem if isinstance(found, Whole) else found.problem
    if as_json:
        print(json.dumps({"whole": False, "row": number, "problem": text}))
    else:
        say.note(f"The chain is broken at row {number}: {text}.")
    raise typer.Exit(ExitCode.UNHEALTHY)


def export(
    config: ConfigOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; default: standard output.")
    ] = None,
    after: Annotated[int, typer.Option("--after", help="Only rows after this number.")] = 0,
) -> None:
    """Write the log as JSON lines. Each line carries its hash, so an export can be verified by itself."""
    from taskgate.core.audit import export_line

    sink = sys.stdout.buffer if output is None else output.open("wb")
    count = 0
    try:
        for row in _stored(config, after):
            sink.write(export_line(row))
            count += 1
        sink.flush()
    finally:
        if output is not None:
            sink.close()
    say.note(f"{count} rows.")


class _Watch:
    """Looks out for rows noted earlier, by you or by the gateway's anchor, while the chain is walked."""

    def __init__(self, head: str | None) -> None:
        number, _, digest = (head or "").partition(":")
        if head is not None and not (number.isdigit() and digest):
            raise typer.BadParameter("write --head as verify printed it: NUMBER:HASH")
        self.number = int(number) if number else 0
        self._digest = digest
        self._found = ""
        self._marks: Marks | None = None
        self._anchored = ""

    def each(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if row.number == self.number:
                self._found = row.hash
            if self._marks is not None and self._marks.head is not None and row.number == self._marks.head.number:
                self._anchored = row.hash
            yield row

    def expect(self, marks: Marks) -> None:
        """What the anchor says must be there."""
        self._marks = marks

    @property
    def cut(self) -> int:
        return self._marks.cut.number if self._marks is not None and self._marks.cut is not None else 0

    def before(self) -> Row | None:
        """The last row that was forgotten on purpose: the chain goes on from it."""
        from taskgate.core.audit import AuditEntry, Row

        cut = self._marks.cut if self._marks is not None else None
        return None if cut is None else Row(cut.number, "", cut.hash, AuditEntry(cut.at_ms, "cut"))

    def explain(self) -> None:
        began = self._marks.began if self._marks is not None else None
        if self.cut:
            print(f"Rows up to {self.cut} were forgotten on purpose (audit.keep).")
        if began is not None and began.number:
            print(f"The anchor begins at row {began.number}; it does not vouch for what was before.")

    def problem(self) -> str | None:
        return self._anchor_problem() or self._noted_problem()

    def _anchor_problem(self) -> str | None:
        marks = self._marks
        if marks is None or marks.head is None:
            return None
        if marks.problems:
            return f"the gateway found at a start that {marks.problems[0].note}"
        if marks.head.number <= self.cut:
            return None
        if not self._anchored:
            return f"row {marks.head.number}, which the anchor has, is gone"
        return None if self._anchored == marks.head.hash else f"row {marks.head.number} is not the one the anchor has"

    def _noted_problem(self) -> str | None:
        if not self.number:
            return None
        if not self._found:
            return f"row {self.number}, which you noted, is gone"
        return None if self._found == self._digest else f"row {self.number} is not the one you noted"


def _anchored(config: str | None) -> Marks:
    """What the gateway noted outside the table. Raises ValueError if that is gone or somebody else's."""
    from taskgate.assembly.stores import store_path
    from taskgate.inbound.operator import house_secret
    from taskgate.store.audit_anchor import AuditAnchor, BadAnchor, Marks, anchor_path, audit_key

    loaded = loaded_or_exit(config)
    path = store_path(loaded)
    if not path.exists():
        return Marks()
    anchor = anchor_path(path)
    try:
        marks = AuditAnchor(anchor, audit_key(house_secret(loaded.state_dir))).read()
    except BadAnchor as error:
        raise ValueError(f"the anchor {anchor} cannot be believed: {error}") from None
    if marks is None:
        raise ValueError(f"its anchor {anchor} is missing, so a cut or rewritten log would not be noticed")
    return marks


def _stored(config: str | None, after: int = 0) -> Iterator[Row]:
    """The rows in the database, also while a gateway has it open."""
    from taskgate.assembly.stores import store_path
    from taskgate.store.operations.kept_events import KeptEvents
    from taskgate.store.operations.reader import Reader
    from taskgate.store.sqlite.connection import connect_reader
    from taskgate.store.sqlite.engine import statements_of

    path = store_path(loaded_or_exit(config))
    if not path.exists():
        say.note(f"There is no database at {path}; has the gateway been started with this configuration?")
        raise typer.Exit(ExitCode.NOT_FOUND)
    connection = connect_reader(path)
    reader = Reader(statements_of(connection), KeptEvents())
    try:
        while rows := reader.audit_rows(after, _PAGE):
            yield from rows
            after = rows[-1].number
    finally:
        connection.close()


def _exported(file: Path) -> Iterator[Row]:
    from taskgate.core.audit import from_export

    with file.open("rb") as lines:
        for line in lines:
            try:
                yield from_export(json.loads(line))
            except (KeyError, TypeError) as problem:
                raise ValueError(f"a line is not a row of the log ({problem})") from None
