"""`taskgate policy test`: which action a given call would get, and why. Reads the configuration; no gateway needs to run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli import say
from taskgate.cli.say import ExitCode
from taskgate.cli.serve import ConfigOption, loaded_or_exit
from taskgate.cli.target import Json

if TYPE_CHECKING:
    from taskgate.core.governance.decision import Decision, Settled
    from taskgate.core.patterns import PatternKind
    from taskgate.gateway.plan.plan import Plan

_KINDS = ("resource", "prompt", "tool")


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Try rules and policies.", no_args_is_help=True)
    group.command("test")(test)
    # A group with one command would otherwise swallow its name.
    group.callback()(lambda: None)
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
