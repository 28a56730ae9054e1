"""`taskgate usage`: calls, errors, time, bytes and model costs by caller, server and tool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from taskgate.cli import printing
from taskgate.cli.command_line import Commands, Option
from taskgate.cli.gateway_api import GatewayApi, read, run_with_gateway
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.core.usage import UsageRow


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

    from taskgate.core.usage import UsageRow
    from taskgate.core.usage import as_csv as written

    def work(api: GatewayApi) -> None:
        rows = api.get(f"/api/v1/usage?{urlencode({'days': days, 'by': by})}").value
        if as_json:
            for row in rows:
                print(json.dumps(row, ensure_ascii=False))
        elif as_csv:
            print(written(read(rows, list[UsageRow])), end="")
        elif not rows:
            printing.note(f"No usage in the last {days} days.")
        else:
            _print_table(read(rows, list[UsageRow]), tuple(part.strip() for part in by.split(",")))

    run_with_gateway(work, gateway, token, as_json)


def _print_table(rows: list[UsageRow], groups: tuple[str, ...]) -> None:
    from taskgate.core.usage import AMOUNTS

    shown = [
        [printing.clean(getattr(row, group) or "none") for group in groups]
        + [_number(getattr(row, n)) for n in AMOUNTS]
        for row in rows
    ]
    head = [*groups, *AMOUNTS]
    widths = [max(len(line[place]) for line in [head, *shown]) for place in range(len(head))]
    for line in [head, *shown]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"
