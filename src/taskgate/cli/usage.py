"""`taskgate usage`: calls, errors, time, bytes and model costs by caller, server and tool."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlencode

from taskgate.cli import printing
from taskgate.cli.command_line import Commands, Option
from taskgate.cli.gateway_api import GatewayApi, run_with_gateway
from taskgate.cli.target import Gateway, Json, Token

_AMOUNTS = ("calls", "errors", "seconds", "bytes_in", "bytes_out", "cost")


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("usage")(usage)


def usage(
    *,
    days: Annotated[int, Option("--days", min=1, max=400, help="Number of days, including today.")] = 7,
    by: Annotated[
        str, Option("--by", help="Group by: day, principal, tenant, server, tool; separated by commas.")
    ] = "principal,server,tool",
    as_csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show calls, errors, seconds, bytes and model costs: of all callers for operators, otherwise your own."""

    def work(api: GatewayApi) -> None:
        rows = api.get(f"/api/v1/usage?{urlencode({'days': days, 'by': by})}").value
        if as_json:
            for row in rows:
                print(json.dumps(row, ensure_ascii=False))
        elif as_csv:
            _print_csv(rows)
        elif not rows:
            printing.note(f"No usage in the last {days} days.")
        else:
            _print_table(rows, tuple(part.strip() for part in by.split(",")))

    run_with_gateway(work, gateway, token, as_json)


def _print_csv(rows: list[dict[str, Any]]) -> None:
    from taskgate.core.usage import UsageRow
    from taskgate.core.usage import as_csv as written

    print(written(UsageRow(**row) for row in rows), end="")


def _print_table(rows: list[dict[str, Any]], groups: tuple[str, ...]) -> None:
    shown = [
        [printing.clean(str(row[group]) or "none") for group in groups] + [_number(row[n]) for n in _AMOUNTS]
        for row in rows
    ]
    head = [*groups, *_AMOUNTS]
    widths = [max(len(line[place]) for line in [head, *shown]) for place in range(len(head))]
    for line in [head, *shown]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"
