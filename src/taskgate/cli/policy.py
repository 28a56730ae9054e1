"""`taskgate policy`: try rules before they are in force.

`test` says which action a given call would get, and why; no gateway needs to run. `rehearse` asks a running gateway for recorded
calls and decides about each with the rules of another configuration file, by the functions that a call goes through.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli import say
from taskgate.cli.say import ExitCode
from taskgate.cli.serve import ConfigOption, loaded_or_exit
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.cli.gateway_api import GatewayApi
    from taskgate.core.governance.decision import Decision, Settled
    from taskgate.core.patterns import PatternKind
    from taskgate.gateway.plan.plan import Plan

_KINDS = ("resource", "prompt", "tool")


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Try rules and policies.", no_args_is_help=True)
    group.command("test")(test)
    group.command("rehearse")(rehearse)
    app.add_typer(group, name="policy")


def test(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="SERVER:TOOL, or SERVER:resource:URI, SERVER:prompt:NAME.")
    ],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="The arguments of the call.")] = "{}",
    caller: Annotated[str, typer.Option("--caller", help="Who asks; the id of a token.")] = "anonymous",
    role: Annotated[
        list[str] | None, typer.Option("--role", help="A role of the caller; default: those of its token.")
    ] = None,
    scope: Annotated[str, typer.Option("--scope", help="Through which scope.")] = "default",
    expect: Annotated[
        str | None, typer.Option("--expect", help="forward, approve or deny: exit code 1 if it is something else.")
    ] = None,
    config: ConfigOption = None,
    as_json: Json = False,
) -> None:
    """Say what would happen to one call, and which rule or policy says so."""
    if expect not in (None, "forward", "approve", "deny"):
        raise typer.BadParameter("--expect is forward, approve or deny")
    plan = _plan(config)
    server, kind, own = _named(plan, name)
    from taskgate.core.errors import TaskgateError
    from taskgate.core.governance.pipeline import decide
    from taskgate.gateway.governance.evaluate import Asked, evaluate

    roles = frozenset(role) if role is not None else plan.governing.roles.get(caller, frozenset())
    asked = Asked(caller, roles, scope, server, own, arguments.encode(), kind=kind)
    first = decide(plan.gates, kind, server, own)
    try:
        last = evaluate(plan, asked, first, (), 0)
    except TaskgateError as problem:
        say.note(problem.message)
        raise typer.Exit(ExitCode.USAGE) from None
    _tell(first, last, expect, as_json)


def rehearse(
    new: Annotated[str, typer.Argument(metavar="NEW.yaml", help="The changed configuration file.")],
    since: Annotated[str, typer.Option("--since", help="Calls of the last 7d, 12h or 30m.")] = "7d",
    fail_on_change: Annotated[bool, typer.Option("--fail-on-change", help="Exit code 1 if any call changes.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Say what a changed configuration would have done to the calls on record (governance.record). Changes nothing."""
    from taskgate.cli.gateway_api import ask_gateway

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


def _tell(first: Decision, last: Settled, expect: str | None, as_json: bool) -> None:
    from taskgate.core.governance.decision import Forward, NeedsApproval, action_of, describe

    action = action_of(last).value
    if as_json:
        row: dict[str, Any] = {"action": action, "why": describe(last), "rule": last.rule, "first": describe(first)}
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
    from taskgate.assembly.plan import build_plan
    from taskgate.config.problems import ConfigError

    try:
        return build_plan(loaded_or_exit(config))
    except ConfigError as error:
        say.note(str(error))
        raise typer.Exit(ExitCode.USAGE) from None


def _named(plan: Plan, name: str) -> tuple[str, PatternKind, str]:
    """Server, kind and own name; the server may be left out where there is only one."""
    from taskgate.core.patterns import PatternKind

    servers = list(plan.registry.records)
    server, colon, rest = name.partition(":")
    if not colon or server not in servers:
        if len(servers) != 1:
            known = ", ".join(servers) or "none"
            raise typer.BadParameter(f"say which server: SERVER:TOOL (there are: {known})")
        server, rest = servers[0], name
    word, colon, own = rest.partition(":")
    if colon and word in _KINDS:
        return server, PatternKind(word), own
    return server, PatternKind.TOOL, rest
