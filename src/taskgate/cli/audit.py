"""`taskgate audit`: walk the chain of the audit log, or write it out as JSON lines. Reads the database, changes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from urllib.parse import urlencode

import typer

from taskgate.cli import say
from taskgate.cli.gateways import GatewayApi, ask_gateway, print_rows
from taskgate.cli.say import ExitCode
from taskgate.cli.serve import ConfigOption, loaded_or_exit
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.core.audit.chain import Head as NoteOfRow
    from taskgate.core.audit.chain import Row
    from taskgate.store.sealing import Marks

_PAGE = 2_000

ExportFile = Annotated[
    Path | None, typer.Option("--file", help="Verify an export (JSON lines) instead of the database.")
]
Head = Annotated[
    str | None, typer.Option("--head", metavar="N:HASH", help="A row you noted earlier; it must still be there.")
]


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Search, verify and export the audit log.", no_args_is_help=True)
    group.command("verify")(verify)
    group.command("export")(export)
    group.command("search")(search)
    app.add_typer(group, name="audit")


def verify(config: ConfigOption = None, file: ExportFile = None, head: Head = None, as_json: Json = False) -> None:
    """Check that no row was changed, removed or inserted. Note the printed head to notice a shortened log later."""
    from taskgate.core.audit.chain import Whole
    from taskgate.core.audit.chain import verify as walk

    chains = _several_chains(config, file)
    if chains is not None:
        _verify_chains(chains, head, as_json)
        return
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
    from taskgate.core.audit.chain import export_line

    chains = _several_chains(config, None)
    if chains is not None and after:
        raise typer.BadParameter("--after counts the rows of one chain; this store has several.")
    sink = sys.stdout.buffer if output is None else output.open("wb")
    count = 0
    try:
        for chain, row in _all_rows(config, chains, after):
            sink.write(export_line(row, chain))
            count += 1
        sink.flush()
    except ValueError as error:
        say.note(f"The log cannot be read: {error}")
        raise typer.Exit(ExitCode.UNHEALTHY) from None
    finally:
        if output is not None:
            sink.close()
    say.note(f"{count} rows.")


class _Chains(Protocol):
    """Several chains, as `assembly.shared_store.SharedChains` has them."""

    def chains(self) -> Iterator[tuple[str, Row | None, Iterator[Row]]]: ...

    def anchored(self) -> Iterator[NoteOfRow]: ...


class _ExportedChains:
    """An export in which the lines of several chains may be mixed."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def chains(self) -> Iterator[tuple[str, Row | None, Iterator[Row]]]:
        """Raises ValueError. An export may begin after rows that were forgotten on purpose: the first row is believed."""
        rows: dict[str, list[Row]] = {}
        with self._file.open("rb") as lines:
            for chain, row in map(_line, lines):
                rows.setdefault(chain, []).append(row)
        for chain, found in rows.items():
            yield chain, (found[0] if found[0].number > 1 else None), iter(found)

    def anchored(self) -> Iterator[NoteOfRow]:
        return iter(())


def _several_chains(config: str | None, file: Path | None) -> _Chains | None:
    """None where the log is one chain."""
    if file is not None:
        with file.open("rb") as lines:
            return _ExportedChains(file) if b'"chain":' in lines.readline() else None
    from taskgate.assembly.shared_store import SharedChains, shared_url
    from taskgate.core.errors import TaskgateError

    loaded = loaded_or_exit(config)
    url = shared_url(loaded)
    try:
        return None if url is None else SharedChains(loaded, url)
    except TaskgateError as problem:
        say.note(problem.message)
        raise typer.Exit(ExitCode.UNHEALTHY) from None


def _verify_chains(several: _Chains, head: str | None, as_json: bool) -> None:
    """Each chain must be whole, and hold every row that another chain, or a file here, says it has."""
    if head is not None:
        raise typer.BadParameter("--head is for a log of one chain; this one has several.")
    try:
        whole, broken = _walked(several)
    except ValueError as error:
        say.note(f"The log cannot be read: {error}")
        raise typer.Exit(ExitCode.UNHEALTHY) from None
    if as_json:
        print(json.dumps({"whole": not broken, "chains": whole, "problems": broken}))
    else:
        for chain, number in whole.items():
            print(f"{chain}: whole, up to row {number}.")
        for problem in broken:
            say.note(f"The chain {problem['chain']} is broken at row {problem['row']}: {problem['problem']}.")
        if not broken:
            print(f"All {len(whole)} chains are whole, and so are the places where they name each other.")
    if broken:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _walked(several: _Chains) -> tuple[dict[str, int], list[dict[str, object]]]:
    """How far each chain is whole, and what is wrong with the others."""
    from taskgate.core.audit.chain import Broken, heads_named, verify_beside

    named: dict[str, dict[int, str]] = {}
    seen: set[str] = set()
    for chain, _, rows in several.chains():
        seen.add(chain)
        first = next(rows, None)
        for noted in heads_named(first.entry) if first is not None else ():
            named.setdefault(noted.chain_id, {})[noted.number] = noted.hash
    for noted in several.anchored():
        named.setdefault(noted.chain_id, {})[noted.number] = noted.hash
    lost = {chain for chain in named if chain not in seen}
    broken: list[dict[str, object]] = [
        {"chain": chain, "row": min(named[chain]), "problem": "another chain names it, and it is gone"}
        for chain in sorted(lost)
    ]
    whole: dict[str, int] = {}
    for chain, cut, rows in several.chains():
        found = verify_beside(
            (row for row in rows if cut is None or row.number > cut.number), named.get(chain, {}), after=cut
        )
        if isinstance(found, Broken):
            broken.append({"chain": chain, "row": found.number, "problem": found.problem})
        else:
            whole[chain] = found.rows
    return whole, broken


def _all_rows(config: str | None, several: _Chains | None, after: int) -> Iterator[tuple[str, Row]]:
    if several is None:
        for row in _stored(config, after):
            yield "", row
        return
    for chain, _, rows in several.chains():
        for row in rows:
            yield chain, row


def search(
    *,
    text: Annotated[str | None, typer.Option("--text", help="In any field, whatever its case.")] = None,
    event: Annotated[str | None, typer.Option("--event", help="Exactly this event, such as call_denied.")] = None,
    caller: Annotated[str | None, typer.Option("--caller", help="Exactly this principal.")] = None,
    server: Annotated[str | None, typer.Option("--server", help="Exactly this server.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="Exactly this tool.")] = None,
    decision: Annotated[str | None, typer.Option("--decision", help="Exactly this decision.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Rows of the last 7d, 12h or 30m.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many rows.")] = 50,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Find rows of a running gateway's log, the newest first."""
    asked = {"text": text, "event": event, "caller": caller, "server": server}
    asked |= {"tool": tool, "decision": decision, "since": since}

    def work(api: GatewayApi) -> None:
        rows = _found(api, {key: value for key, value in asked.items() if value is not None}, limit)
        print_rows(rows, as_json, "No row fits.", _print_rows)

    ask_gateway(work, gateway, token, as_json)


def _found(api: GatewayApi, asked: dict[str, str], limit: int) -> list[Any]:
    rows: list[Any] = []
    before: int | None = 0
    while before is not None and len(rows) < limit:
        more = {"before": str(before)} if before else {}
        wanted = {**asked, **more, "limit": str(min(1000, limit - len(rows)))}
        page = api.get(f"/api/v1/audit?{urlencode(wanted)}").value
        rows += page["rows"]
        before = page["next"]
    return rows


def _print_rows(rows: list[Any]) -> None:
    for row in rows:
        at = datetime.fromtimestamp(row["at_ms"] / 1000).astimezone().isoformat(timespec="seconds")
        where = f"{row['server']}:{row.get('name', '')}" if row.get("server") else row.get("name", "")
        said = [row.get("principal", ""), where, row.get("decision") or row.get("outcome", ""), row.get("reason", "")]
        print(say.clean(f"{row['number']}  {at}  {row['event']}  " + "  ".join(word for word in said if word)))


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
        from taskgate.core.audit.chain import AuditEntry, Row

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
    from taskgate.inbound.identity import house_secret
    from taskgate.store.sealing import AuditAnchor, BadAnchor, Marks, anchor_path, audit_key

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
    """The rows in the database, also while a gateway has it open. Raises ValueError if it is damaged."""
    import sqlite3

    from taskgate.assembly.stores import store_path
    from taskgate.core.errors import TaskgateError
    from taskgate.store.batch import KeptEvents
    from taskgate.store.operations.reader import Reader
    from taskgate.store.sealing import Sealing
    from taskgate.store.sqlite.connection import connect_reader
    from taskgate.store.sqlite.store import statements_of

    path = store_path(loaded_or_exit(config))
    if not path.exists():
        say.note(f"There is no database at {path}; has the gateway been started with this configuration?")
        raise typer.Exit(ExitCode.NOT_FOUND)
    try:
        with closing(connect_reader(path)) as connection:
            reader = Reader(statements_of(connection), KeptEvents(), Sealing(()))
            while rows := reader.audit_rows(after, _PAGE):
                yield from rows
                after = rows[-1].number
    except (TaskgateError, sqlite3.Error) as problem:
        raise ValueError(f"the database {path} is damaged: {problem}") from None


def _exported(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        for line in lines:
            yield _line(line)[1]


def _line(line: bytes) -> tuple[str, Row]:
    """The chain of a row, empty where there is one, and the row. Raises ValueError."""
    from taskgate.core.audit.chain import from_export

    try:
        said = json.loads(line)
        return str(said.get("chain", "")), from_export(said)
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"a line is not a row of the log ({problem})") from None
