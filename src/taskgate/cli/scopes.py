"""`taskgate scopes`: which tools each scope exposes, and temporary scopes of a running gateway.

`list` and `explain` work from the file alone; `--connect` also fetches the servers' tools. `hand-over`, `served` and `end`
use a running gateway.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Failed, Option
from taskgate.cli.configuration import ConfigOption
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, print_rows, run_with_gateway
from taskgate.cli.loading import loaded_or_exit
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.assembly.explain_scope import Explained, ScopeSummary


Connect = Annotated[bool, Option("--connect", help="Also fetch the servers' tools.")]
Servers = Annotated[str | None, Option("--servers", help="Servers that the session requests, separated by commas.")]
Tools = Annotated[str | None, Option("--tools", help="Tool patterns that the session requests; `-pattern` excludes.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("List each scope's tools, and why others are excluded.")
    group.command("list")(list_all)
    group.command("explain")(explain)
    group.command("hand-over")(hand_over)
    group.command("served")(served)
    group.command("end")(end)
    app.add(group, "scopes")


def list_all(config: ConfigOption = None, as_json: Json = False) -> None:
    """List the scopes of a configuration."""
    from taskgate.assembly.explain_scope import list_scopes

    summaries = list_scopes(loaded_or_exit(config))
    if as_json:
        for summary in summaries:
            print(json.dumps(_summary(summary), ensure_ascii=False))
        return
    rows = [_summary(summary) for summary in summaries]
    printing.table(
        ["Scope", "Address", "Mode", "Names", "Servers"],
        [[r["scope"], r["address"], r["mode"], r["names"], ", ".join(r["servers"]) or "none"] for r in rows],
    )
    for row in rows:
        for problem in row["problems"]:
            printing.note(f"warning: {problem}")


def explain(
    name: Annotated[str, Argument(help="Name of the scope.")],
    *,
    config: ConfigOption = None,
    connect: Connect = False,
    servers: Servers = None,
    tools: Tools = None,
    as_json: Json = False,
) -> None:
    """List the servers and tools of a scope, and why others are excluded."""
    from taskgate.assembly.explain_scope import explain_scope
    from taskgate.core.errors import TaskgateError
    from taskgate.core.scoping.session_request import SessionRequest
    from taskgate.telemetry import logs

    loaded = loaded_or_exit(config)
    logs.set_up("error")
    try:
        request = SessionRequest.parse(servers, tools)
        found = asyncio.run(explain_scope(loaded, name, request, connect=connect))
    except TaskgateError as problem:
        codes = {"scope_refused": ExitCode.NOT_FOUND, "not_allowed": ExitCode.REFUSED}
        code = codes.get(problem.error_type, ExitCode.USAGE)
        raise Failed(problem.message, code, error_type=problem.error_type, **problem.data) from None
    _print(found, connect=connect, as_json=as_json)


def hand_over(
    file: Annotated[Path, Argument(help="File with a JSON object of `mcp.*` strings; - reads stdin.")],
    *,
    lifetime: Annotated[str, Option("--for", help="How long the scope exists, for example 30m or 8h.")] = "1h",
    label: Annotated[str, Option("--label", help="Description for operators.")] = "",
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Create a temporary scope in a running gateway. Prints its address and its token, which is not shown again."""
    from taskgate.core.settings.durations import milliseconds

    def work(api: GatewayApi) -> None:
        try:
            config = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8"))
            body = {"config": config, "lifetime_ms": milliseconds(lifetime), "label": label}
        except (OSError, ValueError) as problem:
            raise ApiProblem(ExitCode.USAGE, f"{file} is not a valid scope: {problem}") from None
        made = api.post("/api/v1/scopes", body).value
        if as_json:
            print(json.dumps(made, ensure_ascii=False))
            return
        print(f"address  {made['url']}\ntoken    {made['token']}")
        printing.note(
            f"Servers: {', '.join(made['servers']) or 'none'}. Expires {printing.local_time(made['expires_at'])}."
        )
        for warning in made["problems"]:
            printing.note(f"warning: {printing.clean(warning)}")

    run_with_gateway(work, gateway, token, as_json)


def served(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """List the scopes of a running gateway, including temporary ones."""

    from taskgate.replies.scopes import ScopeRow

    def show(rows: list[ScopeRow]) -> None:
        cells = [
            [
                row.scope,
                row.label or "",
                printing.local_time(row.expires_at) if row.expires_at else "never",
                ", ".join(row.servers) or "none",
            ]
            for row in rows
        ]
        printing.table(["Scope", "Label", "Expires", "Servers"], cells)

    def work(api: GatewayApi) -> None:
        print_rows(api.get("/api/v1/scopes").value["scopes"], ScopeRow, as_json, "No scopes.", show)

    run_with_gateway(work, gateway, token, as_json)


def end(
    name: Annotated[str, Argument(help="Name of a temporary scope.")],
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Delete a temporary scope. Its token is revoked and its sessions end."""

    def work(api: GatewayApi) -> None:
        done = api.delete(f"/api/v1/scopes/{quote(name, safe='')}").value
        print(json.dumps(done, ensure_ascii=False) if as_json else f"Deleted scope {name}.")

    run_with_gateway(work, gateway, token, as_json)


def _print(found: Explained, *, connect: bool, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "server": row.server,
            "tool": row.tool or None,
            "seen": row.seen,
            "name": found.names.get((row.server, row.tool)) if row.seen else None,
            "reason": row.reason or None,
            "detail": row.detail or None,
        }
        for row in found.rows
    ]
    if as_json:
        for fact in rows:
            print(json.dumps(fact, ensure_ascii=False))
        return
    count = len(found.subset.servers)
    printing.note(f"Scope {found.policy.name}: {count} server(s), revision {found.subset.revision}.")
    printing.table(
        ["", "Server", "Tool", "Shown as", "Reason"],
        [
            [
                "yes" if row["seen"] else "no",
                row["server"],
                row["tool"] or "",
                row["name"] or "",
                ": ".join(str(part) for part in (row["reason"], row["detail"]) if part),
            ]
            for row in rows
        ],
    )
    for problem in found.problems:
        printing.note(f"warning: {problem.message}")
    if not connect:
        printing.note("Only tools named in the configuration are listed; use --connect to fetch the servers' tools.")


def _summary(summary: ScopeSummary) -> dict[str, Any]:
    policy = summary.policy
    return {
        "scope": policy.name,
        "address": "/mcp" if policy.name == "default" else f"/mcp/{policy.name}",
        "enabled": policy.enabled,
        "mode": policy.mode.value if policy.enabled else "off",
        "names": policy.names.value,
        "servers": list(summary.servers),
        "problems": [problem.message for problem in summary.problems],
    }
