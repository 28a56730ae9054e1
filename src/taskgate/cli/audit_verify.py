"""`taskgate audit verify`: check the hash chain of the audit log against its anchor and a noted row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from taskgate.cli import printing
from taskgate.cli.audit_rows import Chains, anchored, exported_rows, several_chains, stored_rows
from taskgate.cli.command_line import BadParameter, Exit, Failed, Option
from taskgate.cli.configuration import ConfigOption
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.target import Json

if TYPE_CHECKING:
    from taskgate.core.audit.chain import Row
    from taskgate.store.audit_anchor import Marks


ExportFile = Annotated[
    Path | None, Option("--file", help="Verify an exported file (JSON lines) instead of the database.")
]
Head = Annotated[
    str | None,
    Option("--head", metavar="N:HASH", help="A head that was printed earlier; the row must still be present."),
]


def verify(config: ConfigOption = None, file: ExportFile = None, head: Head = None, as_json: Json = False) -> None:
    """Verify the hash chain: no row was changed, removed or inserted. Store the printed head to detect truncation later."""
    from taskgate.core.audit.chain import ChainIntact
    from taskgate.core.audit.chain import verify as walk

    chains = several_chains(config, file)
    if chains is not None:
        _verify_chains(chains, head, as_json)
        return
    watched = _Watch(head)
    try:
        if file is not None:
            found = walk(watched.each(exported_rows(file)))
        else:
            marks = anchored(config)
            watched.expect(marks)
            found = walk(watched.each(stored_rows(config, watched.cut)), after=watched.before())
    except ValueError as error:
        raise Failed(f"The log cannot be read: {error}", ExitCode.UNHEALTHY) from None
    problem = watched.problem()
    if isinstance(found, ChainIntact) and problem is None:
        if as_json:
            print(json.dumps({"whole": True, "rows": found.rows, "head": f"{found.rows}:{found.head}"}))
        else:
            print(f"Hash chain verified: {found.rows} rows. Head: {found.rows}:{found.head}")
            watched.explain()
        return
    number = watched.number if isinstance(found, ChainIntact) else found.number
    text = problem if isinstance(found, ChainIntact) else found.problem
    if as_json:
        print(json.dumps({"whole": False, "row": number, "problem": text}))
    else:
        printing.note(f"Hash chain broken at row {number}: {text}.")
    raise Exit(ExitCode.UNHEALTHY)


def _verify_chains(several: Chains, head: str | None, as_json: bool) -> None:
    """Verify each chain, and that it has every row that another chain or a local anchor file refers to."""
    if head is not None:
        raise BadParameter("--head applies to a log with one chain; this log has several")
    try:
        whole, broken = _walked(several)
    except ValueError as error:
        raise Failed(f"The log cannot be read: {error}", ExitCode.UNHEALTHY) from None
    if as_json:
        print(json.dumps({"whole": not broken, "chains": whole, "problems": broken}))
    else:
        for chain, number in whole.items():
            print(f"{chain}: verified up to row {number}")
        for problem in broken:
            printing.note(f"Hash chain {problem['chain']} broken at row {problem['row']}: {problem['problem']}.")
        if not broken:
            print(f"{len(whole)} hash chains verified, including their references to each other.")
    if broken:
        raise Exit(ExitCode.UNHEALTHY)


def _walked(several: Chains) -> tuple[dict[str, int], list[dict[str, object]]]:
    """Return the last verified row of each intact chain, and the problems of the others."""
    from taskgate.core.audit.chain import ChainBroken, heads_named, verify_beside

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
        {"chain": chain, "row": min(named[chain]), "problem": "another chain refers to it, but it is missing"}
        for chain in sorted(lost)
    ]
    whole: dict[str, int] = {}
    for chain, cut, rows in several.chains():
        found = verify_beside(
            (row for row in rows if cut is None or row.number > cut.number), named.get(chain, {}), after=cut
        )
        if isinstance(found, ChainBroken):
            broken.append({"chain": chain, "row": found.number, "problem": found.problem})
        else:
            whole[chain] = found.rows
    return whole, broken


class _Watch:
    """Checks during verification that the rows of `--head` and of the anchor are present."""

    def __init__(self, head: str | None) -> None:
        number, _, digest = (head or "").partition(":")
        if head is not None and not (number.isdigit() and digest):
            raise BadParameter("--head must be NUMBER:HASH, as printed by verify")
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
        """Set the rows that must be present according to the anchor."""
        self._marks = marks

    @property
    def cut(self) -> int:
        return self._marks.cut.number if self._marks is not None and self._marks.cut is not None else 0

    def before(self) -> Row | None:
        """Return the last row that retention deleted; the chain continues from it."""
        from taskgate.core.audit.chain import AuditEntry, Row

        cut = self._marks.cut if self._marks is not None else None
        return None if cut is None else Row(cut.number, "", cut.hash, AuditEntry(cut.at_ms, "cut"))

    def explain(self) -> None:
        began = self._marks.began if self._marks is not None else None
        if self.cut:
            print(f"Rows up to {self.cut} were deleted by retention (audit.keep).")
        if began is not None and began.number:
            print(f"The anchor starts at row {began.number}; earlier rows are verified by the chain only.")

    def problem(self) -> str | None:
        return self._anchor_problem() or self._noted_problem()

    def _anchor_problem(self) -> str | None:
        marks = self._marks
        if marks is None or marks.head is None:
            return None
        if marks.problems:
            return f"a gateway reported at startup: {marks.problems[0].note}"
        if marks.head.number <= self.cut:
            return None
        if not self._anchored:
            return f"row {marks.head.number}, which is in the anchor, is missing"
        return None if self._anchored == marks.head.hash else f"row {marks.head.number} differs from the anchor"

    def _noted_problem(self) -> str | None:
        if not self.number:
            return None
        if not self._found:
            return f"row {self.number} of --head is missing"
        return None if self._found == self._digest else f"row {self.number} differs from --head"
