"""`taskgate audit`: search, verify and export the audit log. Nothing is changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from taskgate.cli import printing
from taskgate.cli.audit_rows import Chains, several_chains, stored_rows
from taskgate.cli.audit_verify import verify
from taskgate.cli.command_line import BadParameter, Commands, Failed, Option
from taskgate.cli.configuration import ConfigOption
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import GatewayApi, print_rows, run_with_gateway
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.core.audit.chain import Row
    from taskgate.replies.audit import AuditRow


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("Search, verify and export the audit log.")
    group.command("verify")(verify)
    group.command("export")(export)
    group.command("search")(search)
    app.add(group, "audit")


def export(
    config: ConfigOption = None,
    output: Annotated[Path | None, Option("-o", "--output", help="File to write. Default: stdout.")] = None,
    after: Annotated[int, Option("--after", help="Export only rows after this number.")] = 0,
) -> None:
    """Export the log as JSON lines. Each line has its hash, so `audit verify --file` can verify the export."""
    from taskgate.core.audit.chain import export_line

    chains = several_chains(config, None)
    if chains is not None and after:
        raise BadParameter("--after applies to a log with one chain; this log has several")
    sink = sys.stdout.buffer if output is None else output.open("wb")
    count = 0
    try:
        for chain, row in _all_rows(config, chains, after):
            sink.write(export_line(row, chain))
            count += 1
        sink.flush()
    except ValueError as error:
        raise Failed(f"The log cannot be read: {error}", ExitCode.UNHEALTHY) from None
    finally:
        if output is not None:
            sink.close()
    printing.note(f"{count} rows exported.")


def _all_rows(config: str | None, several: Chains | None, after: int) -> Iterator[tuple[str, Row]]:
    if several is None:
        for row in stored_rows(config, after):
            yield "", row
        return
    for chain, _, rows in several.chains():
        for row in rows:
            yield chain, row


def search(
    *,
    text: Annotated[str | None, Option("--text", help="Text in any field, ignoring case.")] = None,
    event: Annotated[str | None, Option("--event", help="Event name, for example call_denied.")] = None,
    caller: Annotated[str | None, Option("--caller", help="Principal of the caller.")] = None,
    server: Annotated[str | None, Option("--server", help="Server id.")] = None,
    tool: Annotated[str | None, Option("--tool", help="Tool name.")] = None,
    decision: Annotated[str | None, Option("--decision", help="Decision, for example deny.")] = None,
    since: Annotated[
        str | None, Option("--since", help="Only rows since then: 30m, 12h, 7d, or a date or time.")
    ] = None,
    until: Annotated[
        str | None, Option("--until", help="Only rows before then: 30m, 12h, 7d, or a date or time.")
    ] = None,
    limit: Annotated[int, Option("--limit", min=1, max=10_000, help="Maximum number of rows.")] = 50,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Search the audit log of a running gateway, newest rows first."""
    from taskgate.replies.audit import AuditRow

    filters = {"text": text, "event": event, "caller": caller, "server": server}
    filters |= {"tool": tool, "decision": decision, "since": since, "until": until}

    def work(api: GatewayApi) -> None:
        rows = _fetch_rows(api, {key: value for key, value in filters.items() if value is not None}, limit)
        print_rows(rows, AuditRow, as_json, "No matching rows.", _print_rows)

    run_with_gateway(work, gateway, token, as_json)


def _fetch_rows(api: GatewayApi, filters: dict[str, str], limit: int) -> list[Any]:
    rows: list[Any] = []
    before: str | int | None = 0
    while before is not None and len(rows) < limit:
        more = {"before": str(before)} if before else {}
        query = {**filters, **more, "limit": str(min(1000, limit - len(rows)))}
        page = api.get(f"/api/v1/audit?{urlencode(query)}").value
        rows += page["rows"]
        before = page["next"]
    return rows


def _print_rows(rows: list[AuditRow]) -> None:
    for row in rows:
        at = datetime.fromtimestamp(row.at_ms / 1000).astimezone().isoformat(timespec="seconds")
        where = f"{row.server}:{row.name}" if row.server else row.name
        cells = [row.principal, where, row.decision or row.outcome, row.reason]
        print(printing.clean(f"{row.number}  {at}  {row.event}  " + "  ".join(cell for cell in cells if cell)))
