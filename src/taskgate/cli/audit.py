"""`taskgate audit`: search, verify and export the audit log. Nothing is changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from taskgate.cli import printing
from taskgate.cli.audit_rows import Chains, several_chains, stored_rows
from taskgate.cli.audit_verify import verify
from taskgate.cli.configuration import ConfigOption
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import GatewayApi, ask_gateway, print_rows
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.core.audit.chain import Row


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Search, verify and export the audit log.", no_args_is_help=True)
    group.command("verify")(verify)
    group.command("export")(export)
    group.command("search")(search)
    app.add_typer(group, name="audit")


def export(
    config: ConfigOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; default: standard output.")
    ] = None,
    after: Annotated[int, typer.Option("--after", help="Only rows after this number.")] = 0,
) -> None:
    """Write the log as JSON lines. Each line carries its hash, so an export can be verified by itself."""
    from taskgate.core.audit.chain import export_line

    chains = several_chains(config, None)
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
        printing.note(f"The log cannot be read: {error}")
        raise typer.Exit(ExitCode.UNHEALTHY) from None
    finally:
        if output is not None:
            sink.close()
    printing.note(f"{count} rows.")


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
        print(printing.clean(f"{row['number']}  {at}  {row['event']}  " + "  ".join(word for word in said if word)))
