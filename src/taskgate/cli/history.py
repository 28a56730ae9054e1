"""`taskgate history`: search the calls that have ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from taskgate.cli import printing
from taskgate.cli.command_line import Commands, Option
from taskgate.cli.gateway_api import GatewayApi, read, run_with_gateway
from taskgate.cli.target import Gateway, Json, Token
from taskgate.core.history.row import CallOutcome, why

if TYPE_CHECKING:
    from taskgate.replies.history import HistoryEntry

PAGE = 500
_COLUMNS = ("Id", "Ended", "Outcome", "Server", "Tool", "Caller", "Took", "Why")


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("history")(history)


def history(
    *,
    since: Annotated[str | None, Option("--since", help="Ended since: 30m, 24h, 7d or a date.")] = None,
    until: Annotated[str | None, Option("--until", help="Ended before: 30m, 24h, 7d or a date.")] = None,
    outcome: Annotated[
        str | None,
        Option("--outcome", help="Outcomes, separated by commas, for example tool_error,failed; `bad` is all but ok."),
    ] = None,
    server: Annotated[str | None, Option("--server", help="Server id.")] = None,
    tool: Annotated[str | None, Option("--tool", help="Name of the tool at its server.")] = None,
    caller: Annotated[str | None, Option("--caller", help="Principal of the caller.")] = None,
    in_scope: Annotated[str | None, Option("--in-scope", help="Scope of the call.")] = None,
    client: Annotated[str | None, Option("--client", help="Name of the client.")] = None,
    error: Annotated[str | None, Option("--error", help="Error type, for example upstream_timeout.")] = None,
    text: Annotated[str | None, Option("--text", help="Beginnings of words in names, error type and rule.")] = None,
    limit: Annotated[int, Option("--limit", min=1, max=1_000_000, help="Maximum number of rows.")] = 50,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Search calls that have ended, newest first: of all callers for operators, otherwise your own."""
    filters = {"since": since, "until": until, "outcome": outcome, "server": server, "tool": tool, "caller": caller}
    filters |= {"scope": in_scope, "client": client, "error": error, "text": text}
    given = {name: value for name, value in filters.items() if value is not None}

    from taskgate.replies.history import HistoryEntry

    def work(api: GatewayApi) -> None:
        rows = history_rows(api, given, limit)
        if as_json:
            for row in rows:
                print(json.dumps(row, ensure_ascii=False))
        elif as_csv:
            _print_csv(read(rows, list[HistoryEntry]))
        elif not rows:
            printing.note("No matching calls." if given else "No calls have ended yet.")
        else:
            printing.table(_COLUMNS, [_cells(row) for row in read(rows, list[HistoryEntry])])

    run_with_gateway(work, gateway, token, as_json)


def history_rows(api: GatewayApi, filters: dict[str, str], limit: int) -> list[dict[str, Any]]:
    """Up to this many rows that match, newest first."""
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while len(rows) < limit:
        query = {**filters, "limit": str(min(PAGE, limit - len(rows))), **({"after": after} if after else {})}
        page = api.get(f"/api/v1/history?{urlencode(query)}").value
        rows += page["rows"]
        after = page["next"]
        if after is None:
            break
    return rows


def _cells(row: HistoryEntry) -> tuple[str, ...]:
    shown = " ".join(why(CallOutcome(row.outcome), row.error_type, row.reason, row.rule))
    count = f" ({row.count} times)" if row.count > 1 else ""
    return (
        row.id,
        printing.local_time(row.ended_at or ""),
        row.outcome + count,
        row.server,
        row.tool,
        row.caller,
        _took(row.duration_ms),
        shown,
    )


def _took(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else f"{ms / 1000:.1f} s"


def _print_csv(rows: list[HistoryEntry]) -> None:
    from taskgate.replies.history_csv import csv_header, csv_lines

    print(csv_header() + csv_lines(rows), end="")
