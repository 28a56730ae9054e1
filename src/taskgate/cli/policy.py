"""`taskgate scopes` and `taskgate policy`: what each scope sees and why not more, and rules tried before they are in force."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from taskgate.cli import say
from taskgate.cli.gateways import ApiProblem, GatewayApi, ask_gateway, print_rows
from taskgate.cli.say import ExitCode
from taskgate.cli.serve import ConfigOption, loaded_or_exit
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.assembly.explain_scope import Explained, ScopeSummary
    from taskgate.assembly.try_call import Tried
    from taskgate.config.load import LoadedConfig
    from taskgate.gateway.plan import Plan


def register_policy(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Try rules and policies.", no_args_is_help=True)
    group.command("test")(test)
    group.command("rehearse")(rehearse)
    app.add_typer(group, name="policy")


def test(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A tool as clients see it (files__delete_file), SERVER:TOOL, SERVER:resource:URI or SERVER:prompt:NAME.",
        ),
    ],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="The arguments of the call.")] = "{}",
    *,
    caller: Annotated[str, typer.Option("--caller", help="Who asks; the id of a token.")] = "anonymous",
    role: Annotated[
        list[str] | None, typer.Option("--role", help="A role of the caller; default: those of its token.")
    ] = None,
    scope: Annotated[str, typer.Option("--scope", help="Through which scope.")] = "default",
    expect: Annotated[
        str | None, typer.Option("--expect", help="forward, approve or deny: exit code 1 if it is something else.")
    ] = None,
    connect: Annotated[
        bool, typer.Option(help="Ask the server for its tools, so that a wrong name is noticed. Nothing is called.")
    ] = True,
    config: ConfigOption = None,
    as_json: Json = False,
) -> None:
    """Print what would happen to one call, and which rule or policy decides it. Nothing is called."""
    if expect not in (None, "forward", "approve", "deny"):
        raise typer.BadParameter("--expect is forward, approve or deny")
    if not _is_object(arguments):
        raise typer.BadParameter('the arguments of a call are a JSON object, such as \'{"path": "a.txt"}\'')
    from taskgate.assembly.try_call import try_call
    from taskgate.core.errors import TaskgateError
    from taskgate.core.identity.caller import Caller
    from taskgate.telemetry import logs

    loaded = loaded_or_exit(config)
    plan = _built(loaded)
    logs.set_up("error")
    roles = frozenset(role) if role is not None else plan.governing.roles.get(caller, frozenset())
    who = Caller(caller, roles, scope)
    try:
        tried = asyncio.run(try_call(loaded, plan, name, arguments.encode(), who, connect=connect))
    except TaskgateError as problem:
        say.note(say.clean(loaded.secret_values.text(problem.message)))
        found = problem.error_type not in ("unknown_tool", "scope_refused")
        raise typer.Exit(ExitCode.USAGE if found else ExitCode.NOT_FOUND) from None
    for note in tried.notes:
        say.note(say.clean(f"note: {loaded.secret_values.text(note)}"))
    _tell(tried, expect, as_json)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def rehearse(
    new: Annotated[str, typer.Argument(metavar="NEW.yaml", help="The changed configuration file.")],
    *,
    since: Annotated[str, typer.Option("--since", help="Calls of the last 7d, 12h or 30m.")] = "7d",
    fail_on_change: Annotated[bool, typer.Option("--fail-on-change", help="Exit code 1 if any call changes.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Say what a changed configuration would have done to the calls on record (governance.record). Changes nothing."""
    from taskgate.cli.gateways import ask_gateway

    plan = _plan(new)

    def work(api: GatewayApi) -> None:
        found = _rehearsed(api, plan, since)
        if as_json:
            print(json.dumps(found, ensure_ascii=False))
        else:
            _tell_rehearsal(found)
        if fail_on_change and found["changed"]:
            raise typer.Exit(ExitCode.FAILED)

    ask_gateway(work, gateway, token, as_json)


def _rehearsed(api: GatewayApi, plan: Plan, since: str) -> dict[str, Any]:
    from urllib.parse import quote

    import msgspec

    from taskgate.core.governance.rehearse import RecordedCall, Rehearsal
    from taskgate.core.governance.rehearse import rehearse as judge_all
    from taskgate.gateway.governance.evaluate import rule_book

    book, found, after, recording = rule_book(plan), Rehearsal(), 0, True
    while True:
        page = api.get(f"/api/v1/rules/recorded?since={quote(since)}&after={after}&limit=1000").value
        judge_all(book, msgspec.convert(page["calls"], list[RecordedCall]), found)
        recording = page["recording"]
        if page["next"] is None:
            return {**found.rows(), "recording": recording}
        after = page["next"]


def _tell_rehearsal(found: dict[str, Any]) -> None:
    if not found["calls"]:
        hint = "" if found["recording"] else " The gateway records none: set governance.record."
        say.note(f"There are no calls on record for that time.{hint}")
        return
    print(f"{found['calls']} calls: {found['changed']} would change, {found['cannot_tell']} cannot be told.")
    for row in found["outcomes"]:
        print(f"  {row['calls']:>8}  {row['before']} -> {row['after']}")
    if found["tools"]:
        print("What changes, and what cannot be told:")
    for row in found["tools"]:
        name = f"{row['server']}:{row['tool']}" if row["server"] else "(calls that were not recorded)"
        why = f" ({row['why']})" if row["why"] else ""
        print(say.clean(f"  {row['calls']:>8}  {name}: {row['before']} -> {row['after']}{why}"))


def _tell(tried: Tried, expect: str | None, as_json: bool) -> None:
    from taskgate.core.governance.decision import Forward, NeedsApproval, action_of, describe

    first, last, subject = tried.first, tried.last, tried.subject
    action = action_of(last).value
    if as_json:
        row: dict[str, Any] = {"action": action, "why": describe(last), "rule": last.rule, "first": describe(first)}
        row |= {"server": subject.server, "kind": subject.kind.value, "name": subject.name, "listed": subject.is_listed}
        if isinstance(last, NeedsApproval):
            row["workflow"] = last.workflow
        if isinstance(last, Forward) and last.note is not None:
            row["note"] = last.note.value
        print(json.dumps(row, ensure_ascii=False))
    else:
        print(action)
        print(say.clean(f"  {describe(first)}"))
        if last is not first:
            print(say.clean(f"  then: {describe(last)}"))
        if isinstance(last, Forward) and last.reason:
            print(say.clean(f"  because: {last.reason}"))
    if expect is not None and expect != action:
        say.note(f"Expected {expect}.")
        raise typer.Exit(ExitCode.FAILED)


def _plan(config: str | None) -> Plan:
    return _built(loaded_or_exit(config))


def _built(loaded: LoadedConfig) -> Plan:
    from taskgate.assembly.plan import build_plan
    from taskgate.config.problems import ConfigError

    try:
        return build_plan(loaded)
    except ConfigError as error:
        say.note(str(error))
        raise typer.Exit(ExitCode.USAGE) from None


# `taskgate scopes list|explain`: what each scope of a configuration sees, and why not more.
#
# These work from the file alone; `--connect` also asks the servers for their tools. `hand-over`, `served` and `end`
# talk to a running gateway, about scopes that come and go while it runs.

Connect = Annotated[bool, typer.Option("--connect", help="Also ask the servers for their tools.")]
Servers = Annotated[str | None, typer.Option("--servers", help="As a session would ask: comma list of servers.")]
Tools = Annotated[str | None, typer.Option("--tools", help="As a session would ask: patterns, `-pattern` denies.")]


def register_scopes(app: typer.Typer) -> None:
    """Put the commands on the application."""
    group = typer.Typer(no_args_is_help=True, help="What each scope sees, and why not more.")
    group.command("list")(list_all)
    group.command("explain")(explain)
    group.command("hand-over")(hand_over)
    group.command("served")(served)
    group.command("end")(end)
    app.add_typer(group, name="scopes")


def list_all(config: ConfigOption = None, as_json: Json = False) -> None:
    """List the scopes of a configuration."""
    from taskgate.assembly.explain_scope import list_scopes

    summaries = list_scopes(loaded_or_exit(config))
    if as_json:
        for summary in summaries:
            print(json.dumps(_summary(summary), ensure_ascii=False))
        return
    rows = [_summary(summary) for summary in summaries]
    say.table(
        ["Scope", "Address", "Mode", "Names", "Servers"],
        [[r["scope"], r["address"], r["mode"], r["names"], ", ".join(r["servers"]) or "none"] for r in rows],
    )
    for row in rows:
        for problem in row["problems"]:
            say.note(f"warning: {problem}")


def explain(
    name: Annotated[str, typer.Argument(help="The scope, as in the configuration file.")],
    *,
    config: ConfigOption = None,
    connect: Connect = False,
    servers: Servers = None,
    tools: Tools = None,
    as_json: Json = False,
) -> None:
    """Say which servers and tools a scope sees, and the reason each other one fell out."""
    from taskgate.assembly.explain_scope import explain_scope
    from taskgate.core.errors import TaskgateError
    from taskgate.core.scoping.session_request import SessionRequest
    from taskgate.telemetry import logs

    loaded = loaded_or_exit(config)
    logs.set_up("error")
    try:
        wish = SessionRequest.parse(servers, tools)
        found = asyncio.run(explain_scope(loaded, name, wish, connect=connect))
    except TaskgateError as problem:
        if as_json:
            say.event("error", error_type=problem.error_type, message=problem.message, **problem.data)
        say.note(problem.message)
        codes = {"scope_refused": ExitCode.NOT_FOUND, "not_allowed": ExitCode.REFUSED}
        raise typer.Exit(codes.get(problem.error_type, ExitCode.USAGE)) from None
    _print(found, connect=connect, as_json=as_json)


def hand_over(
    file: Annotated[Path, typer.Argument(help="A JSON object of strings with `mcp.*` keys; - reads standard input.")],
    *,
    lifetime: Annotated[str, typer.Option("--for", help="How long it is served, such as 30m or 8h.")] = "1h",
    label: Annotated[str, typer.Option("--label", help="For people: whose task it is.")] = "",
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Give a running gateway a scope for one task. Prints its address and its token, which is told only now."""
    from taskgate.config.model.durations import milliseconds

    def work(api: GatewayApi) -> None:
        try:
            config = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8"))
            body = {"config": config, "lifetime_ms": milliseconds(lifetime), "label": label}
        except (OSError, ValueError) as problem:
            raise ApiProblem(ExitCode.USAGE, f"{file} cannot be handed over: {problem}") from None
        made = api.post("/api/v1/scopes", body).value
        if as_json:
            print(json.dumps(made, ensure_ascii=False))
            return
        print(f"address  {made['url']}\ntoken    {made['token']}")
        say.note(f"Servers: {', '.join(made['servers']) or 'none'}. It ends at {say.local_time(made['expires_at'])}.")
        for warning in made["problems"]:
            say.note(f"warning: {say.clean(warning)}")

    ask_gateway(work, gateway, token, as_json)


def served(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """List the scopes that a running gateway serves now, also those that were handed over."""

    def show(rows: list[dict[str, Any]]) -> None:
        cells = [
            [
                row["scope"],
                row.get("label", ""),
                say.local_time(row["expires_at"]) if row["temporary"] else "never",
                ", ".join(row["servers"]) or "none",
            ]
            for row in rows
        ]
        say.table(["Scope", "Label", "Ends", "Servers"], cells)

    def work(api: GatewayApi) -> None:
        print_rows(api.get("/api/v1/scopes").value["scopes"], as_json, "No scope is served.", show)

    ask_gateway(work, gateway, token, as_json)


def end(
    name: Annotated[str, typer.Argument(help="A scope that was handed over.")],
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """End a scope that was handed over: its token and its sessions are over at once."""

    def work(api: GatewayApi) -> None:
        done = api.delete(f"/api/v1/scopes/{quote(name, safe='')}").value
        print(json.dumps(done, ensure_ascii=False) if as_json else f"Ended {name}.")

    ask_gateway(work, gateway, token, as_json)


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
    say.note(f"Scope {found.policy.name}: {count} server(s), revision {found.subset.revision}.")
    say.table(
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
        say.note(f"warning: {problem.message}")
    if not connect:
        say.note("The servers were not asked for their tools; add --connect for that.")


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


def register(app: typer.Typer) -> None:
    register_scopes(app)
    register_policy(app)
