"""`taskgate pins`: list and accept changed definitions of tools, apps and skills."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Option, confirm
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, print_rows, read, run_with_gateway
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.replies.definitions import AcceptedDefinition, ChangedDefinition
    from taskgate.replies.differences import ValueChanges

PinnedTool = Annotated[str, Argument(metavar="SERVER:TOOL", help="Name as in `taskgate pins list`.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("List and accept changed definitions of tools, apps and skills.")
    group.command("list")(list_pins)
    group.command("accept")(accept)
    group.command("history")(history)
    group.command("risk")(risk)
    app.add(group, "pins")


def list_pins(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """List tools, apps and skills whose definition changed and is not accepted."""

    from taskgate.replies.definitions import ChangedDefinition

    def work(api: GatewayApi) -> None:
        nothing = "No changed definitions."
        print_rows(api.get("/api/pins").value, ChangedDefinition, as_json, nothing, _print_pages)

    run_with_gateway(work, gateway, token, as_json)


def accept(
    tool: PinnedTool,
    digest: Annotated[
        str | None,
        Option("--digest", help="Accept only the definition with this digest. Required without a terminal."),
    ] = None,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Accept a changed definition. On a terminal, the change is shown and you are asked to confirm."""

    from taskgate.replies.definitions import ChangedDefinition

    def work(api: GatewayApi) -> None:
        server, _, name = tool.partition(":")
        rows = read(api.get("/api/pins").value, list[ChangedDefinition])
        row = next((row for row in rows if (row.server, row.tool) == (server, name)), None)
        if row is None:
            raise ApiProblem(
                ExitCode.NOT_FOUND, f"{tool} has no changed definition. List them with: taskgate pins list"
            )
        if digest is None:
            _confirm(row)
        body = {"server": server, "tool": name, "digest": digest or row.digest}
        done = api.post("/api/pins/accept", body).value
        print(json.dumps(done) if as_json else f"Accepted {tool} as {done['digest']}.")

    run_with_gateway(work, gateway, token, as_json)


def risk(
    tool: PinnedTool,
    risk: Annotated[str, Argument(metavar="RISK", help="reads, writes, undeclared or destructive.")],
    *,
    digest: Annotated[
        str | None, Option("--digest", help="Only if the tool has the definition with this digest.")
    ] = None,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """State how much a tool can change, for rules with the condition `risk`. Applies until its definition changes."""

    def work(api: GatewayApi) -> None:
        server, _, name = tool.partition(":")
        body = {"server": server, "tool": name, "risk": risk, **({"digest": digest} if digest is not None else {})}
        done = api.post("/api/v1/pins/risk", body).value
        text = f"{tool} is {done['risk']} as long as it has the definition {done['digest']}."
        print(json.dumps(done) if as_json else text)

    run_with_gateway(work, gateway, token, as_json)


def history(
    tool: PinnedTool,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List the accepted definitions of a tool, newest first, each with its differences from the one before."""

    from taskgate.replies.definitions import AcceptedDefinition

    def work(api: GatewayApi) -> None:
        server, _, name = tool.partition(":")
        query = urlencode({"server": server, "tool": name})
        rows = api.get(f"/api/v1/pins/history?{query}").value
        print_rows(rows, AcceptedDefinition, as_json, "No accepted definitions.", _print_versions)

    run_with_gateway(work, gateway, token, as_json)


def _print_versions(rows: list[AcceptedDefinition]) -> None:
    for row in rows:
        by = f"by {row.by}" if row.by else "on first use"
        lines = [f"{row.at}  accepted {by}", f"  digest {row.digest}"]
        if row.changes is not None:
            lines += _changes(row.changes)
        print("\n".join(printing.clean(line) for line in lines))


def _confirm(row: ChangedDefinition) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        text = f"Without a terminal, confirm the definition with --digest {row.digest}"
        raise ApiProblem(ExitCode.USAGE, text)
    print(_pin_page(row))
    if not confirm("Accept this definition?"):
        raise ApiProblem(ExitCode.CANCELLED, "Not accepted.")


def _print_pages(rows: list[ChangedDefinition]) -> None:
    for row in rows:
        print(_pin_page(row))


def _pin_page(row: ChangedDefinition) -> str:
    state = "hidden until accepted" if row.quarantined else "changed"
    lines = [f"{row.server}:{row.tool}  [{state}]", f"  digest {row.digest}"]
    lines.extend(
        f"  suspicious: {flag.kind} at {flag.where or 'the whole definition'}: {flag.what}" for flag in row.flags
    )
    lines += _changes(row.changes)
    return "\n".join(printing.clean(line) for line in lines)


def _changes(changes: ValueChanges) -> list[str]:
    lines: list[str] = []
    for change in changes.list:
        before, after = json.dumps(change.before), json.dumps(change.after)
        lines.append(f"  {change.path or '(everything)'}: {change.kind}")
        lines.append(f"    - {before}" if change.kind != "added" else "    - (nothing)")
        lines.append(f"    + {after}" if change.kind != "removed" else "    + (nothing)")
    if changes.left_out:
        lines.append(f"  and {changes.left_out} more differences")
    return lines
