"""`taskgate policy`: evaluate rules and policies for one call or for recorded calls, and compare those of two files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, BadParameter, Commands, Exit, Failed, Option
from taskgate.cli.configuration import ConfigOption
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import GatewayApi
from taskgate.cli.loading import loaded_or_exit
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.assembly.policy_diff import Lists, PolicyDiff
    from taskgate.assembly.try_call import Tried
    from taskgate.config.load import LoadedConfig
    from taskgate.core.generations.generation import Generation
    from taskgate.core.governance.decision import Branch, Decision
    from taskgate.gateway.plan import Plan


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("Test rules and policies before applying them.")
    group.command("rules")(rules)
    group.command("test")(test)
    group.command("rehearse")(rehearse)
    group.command("diff")(diff)
    app.add(group, "policy")


def rules(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """List the rules in force, and the patterns of rules and lists that match nothing the servers list."""
    from taskgate.cli.gateway_api import run_with_gateway

    def work(api: GatewayApi) -> None:
        found = api.get("/api/v1/rules").value
        if as_json:
            print(json.dumps(found, ensure_ascii=False))
        else:
            _print_rules(found)

    run_with_gateway(work, gateway, token, as_json)


def _print_rules(found: dict[str, Any]) -> None:
    rows = [
        (
            row["match"],
            row["when"],
            row["server"] or "any",
            row["action"],
            row["workflow"] or row["policy_id"],
            str(row["calls"]) if found["recording"] else "-",
            row["reason"],
        )
        for row in found["rules"]
    ]
    printing.table(("Rule", "If", "Server", "Action", "Workflow", "Calls", "Reason"), rows)
    for row in found["unmatched"]:
        printing.note(printing.clean(f"warning: {row['message']}"))


def test(
    name: Annotated[
        str,
        Argument(
            metavar="NAME",
            help="Tool name (files__delete_file), SERVER:TOOL, SERVER:resource:URI or SERVER:prompt:NAME.",
        ),
    ],
    arguments: Annotated[str, Argument(metavar="[JSON]", help="Arguments of the call.")] = "{}",
    *,
    caller: Annotated[str, Option("--caller", help="Token id of the caller.")] = "anonymous",
    role: Annotated[
        list[str] | None,
        Option("--role", help="Role of the caller; may be repeated. Default: the roles of the token."),
    ] = None,
    scope: Annotated[str, Option("--scope", help="Scope of the call.")] = "default",
    from_script: Annotated[bool, Option("--from-script", help="Evaluate it as a call made by a script.")] = False,
    client: Annotated[str | None, Option("--client", help="Name of the client program. Default: not known.")] = None,
    generation: Annotated[
        str | None,
        Option("--generation", help="Protocol generation: 2025-11-25 or 2026-07-28. Default: not known."),
    ] = None,
    at: Annotated[
        str | None,
        Option("--at", help="Time of the call with its zone, for example 2026-07-28T23:30+02:00. Default: now."),
    ] = None,
    expect: Annotated[
        str | None,
        Option("--expect", help="Expected action: forward, approve or deny. Exit code 1 if it differs."),
    ] = None,
    connect: Annotated[bool, Option(help="Fetch the server's tools to detect a wrong name. No tool is called.")] = True,
    config: ConfigOption = None,
    as_json: Json = False,
) -> None:
    """Show what would happen to one call, and which rule or policy decides it. No tool is called."""
    if expect not in (None, "forward", "approve", "deny"):
        raise BadParameter("--expect must be forward, approve or deny")
    if not _is_object(arguments):
        raise BadParameter('the arguments must be a JSON object, for example \'{"path": "a.txt"}\'')
    from taskgate.assembly.try_call import Circumstances, try_call
    from taskgate.core.errors import TaskgateError
    from taskgate.core.identity.caller import Caller
    from taskgate.telemetry import logs

    loaded = loaded_or_exit(config)
    plan = _built(loaded)
    logs.set_up("error")
    roles = frozenset(role) if role is not None else plan.governing.roles.get(caller, frozenset())
    identity = Caller(caller, roles, scope)
    try:
        within = Circumstances(
            from_script=from_script, client=client, generation=_generation(generation), at_s=_seconds(at)
        )
        work = try_call(loaded, plan, name, arguments.encode(), identity, connect=connect, within=within)
        tried = asyncio.run(work)
    except TaskgateError as problem:
        printing.note(printing.clean(loaded.secret_values.text(problem.message)))
        found = problem.error_type not in ("unknown_tool", "scope_refused")
        raise Exit(ExitCode.USAGE if found else ExitCode.NOT_FOUND) from None
    for note in tried.notes:
        printing.note(printing.clean(f"note: {loaded.secret_values.text(note)}"))
    _print_decision(tried, expect, as_json)


def _generation(revision: str | None) -> Generation | None:
    from taskgate.core.facts.table import REVISIONS

    found = {name: generation for generation, name in REVISIONS.items()}
    if revision is not None and revision not in found:
        raise BadParameter(f"--generation must be {' or '.join(found)}")
    return found[revision] if revision is not None else None


def _seconds(time: str | None) -> int | None:
    """Return a time as seconds since 1970."""
    from datetime import datetime

    if time is None:
        return None
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadParameter("--at must be a time with its zone, for example 2026-07-28T23:30+02:00 or 2026-07-28T21:30Z")
    return int(found.timestamp())


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def rehearse(
    new: Annotated[str, Argument(metavar="NEW.yaml", help="Changed configuration file.")],
    *,
    since: Annotated[str, Option("--since", help="Period of the recorded calls, for example 7d, 12h or 30m.")] = "7d",
    fail_on_change: Annotated[bool, Option("--fail-on-change", help="Exit code 1 if any call changes.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show how a changed configuration would have decided recorded calls (governance.record). Nothing is changed."""
    from taskgate.cli.gateway_api import run_with_gateway

    plan = _plan(new)

    def work(api: GatewayApi) -> None:
        found = _rehearsed(api, plan, since)
        if as_json:
            print(json.dumps(found, ensure_ascii=False))
        else:
            _print_rehearsal(found)
        if fail_on_change and found["changed"]:
            raise Exit(ExitCode.FAILED)

    run_with_gateway(work, gateway, token, as_json)


def _rehearsed(api: GatewayApi, plan: Plan, since: str) -> dict[str, Any]:
    from urllib.parse import quote

    import msgspec

    from taskgate.core.governance.rehearse import RecordedCall, Rehearsal
    from taskgate.core.governance.rehearse import rehearse as evaluate_all
    from taskgate.gateway.governance.evaluate import rule_book
    from taskgate.replies.rules import rehearsal_result

    book, found, after, recording = rule_book(plan), Rehearsal(), 0, True
    while True:
        page = api.get(f"/api/v1/rules/recorded?since={quote(since)}&after={after}&limit=1000").value
        evaluate_all(book, msgspec.convert(page["calls"], list[RecordedCall]), found)
        recording = page["recording"]
        if page["next"] is None:
            return {**msgspec.to_builtins(rehearsal_result(found)), "recording": recording}
        after = page["next"]


def _print_rehearsal(found: dict[str, Any]) -> None:
    if not found["calls"]:
        hint = "" if found["recording"] else " Recording is off: set governance.record."
        printing.note(f"No recorded calls in this period.{hint}")
        return
    print(f"{found['calls']} calls: {found['changed']} would change, {found['undecided']} are undecided.")
    for row in found["outcomes"]:
        print(f"  {row['calls']:>8}  {row['before']} -> {_decision(row['after'])}")
    if found["tools"]:
        print("Changed and undecided calls by tool:")
    for row in found["tools"]:
        name = f"{row['server']}:{row['tool']}" if row["server"] else "(calls that were not recorded)"
        why = f" ({row['why']})" if row["why"] else ""
        print(printing.clean(f"  {row['calls']:>8}  {name}: {row['before']} -> {_decision(row['after'])}{why}"))


def _decision(after: str) -> str:
    from taskgate.core.governance.rehearse import UNDECIDED

    return "undecided" if after == UNDECIDED else after


def _print_decision(tried: Tried, expect: str | None, as_json: bool) -> None:
    from taskgate.core.governance.decision import Forward, NeedsApproval, action_of, describe

    first, last, subject = tried.first, tried.last, tried.subject
    action = action_of(last).value
    if as_json:
        row: dict[str, Any] = {"action": action, "why": describe(last), "rule": last.rule, "first": describe(first)}
        row |= {"because": last.because, "residue": _residue(first)}
        row |= {"server": subject.server, "kind": subject.kind.value, "name": subject.name, "listed": subject.is_listed}
        if isinstance(last, NeedsApproval):
            row["workflow"] = last.workflow
        if isinstance(last, Forward) and last.note is not None:
            row["note"] = last.note.value
        print(json.dumps(row, ensure_ascii=False))
    else:
        print(action)
        print(printing.clean(f"  {describe(first)}"))
        if last is not first:
            print(printing.clean(f"  then: {describe(last)}"))
        if isinstance(last, Forward) and last.reason:
            print(printing.clean(f"  because: {last.reason}"))
    if expect is not None and expect != action:
        printing.note(f"Expected {expect}.")
        raise Exit(ExitCode.FAILED)


def _residue(decision: Decision) -> list[list[dict[str, str]]]:
    """Return what depends on the call: in each list the first entry whose conditions are met counts, and of the lists the
    strictest.
    """
    from taskgate.core.governance.decision import Residue

    return [[_branch(each) for each in layer] for layer in decision.layers] if isinstance(decision, Residue) else []


def _branch(branch: Branch) -> dict[str, str]:
    from taskgate.core.facts.conditions import phrase
    from taskgate.core.governance.decision import NeedsApproval, action_of

    decision = branch.decision
    row = {"if": phrase(branch.conditions), "action": action_of(decision).value, "rule": decision.rule}
    return {**row, "workflow": decision.workflow} if isinstance(decision, NeedsApproval) else row


def diff(
    old: Annotated[str, Argument(metavar="OLD.yaml", help="Configuration file in force.")],
    new: Annotated[str, Argument(metavar="NEW.yaml", help="Changed configuration file.")],
    *,
    lists: Annotated[
        Path | None,
        Option("--lists", help='JSON file with the servers\' tools, for example {"files": ["read_file"]}.'),
    ] = None,
    gateway: Annotated[
        str | None, Option("--gateway", help="Address of a running gateway that has the servers' tools.")
    ] = None,
    connect: Annotated[
        bool, Option("--connect", help="Start or connect to the servers of both files. No tool is called.")
    ] = False,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List the tools and callers whose decision changes between two configuration files. Exit code 10 if there are any.

    Without the servers' tools, names that the patterns of both files match are compared. No server is started unless --connect
    is given. References to secrets are resolved, as by `taskgate check`.
    """
    from taskgate.assembly.policy_diff import InvalidLists, compare_policies, lists_of_servers, lists_of_value
    from taskgate.telemetry import logs

    versions = loaded_or_exit(old), loaded_or_exit(new)
    plans = _built(versions[0]), _built(versions[1])
    logs.set_up("error")
    known: Lists = {}
    notes: list[str] = []
    if connect:
        known, notes = asyncio.run(lists_of_servers(*versions, plans))
    if gateway is not None:
        known = {**_tools_of_gateway(gateway, token, plans, as_json=as_json), **known}
    if lists is not None:
        try:
            known = {**known, **lists_of_value(json.loads(lists.read_text(encoding="utf-8")))}
        except (OSError, ValueError, InvalidLists) as problem:
            raise Failed(f"{lists}: {problem}", ExitCode.USAGE) from None
    found = compare_policies(*versions, plans, known)
    for note in (*notes, *found.notes):
        printing.note(printing.clean(f"note: {note}"))
    _print_changes(found, as_json)
    if found.changes or found.incomplete:
        raise Exit(ExitCode.DIFFERENT)


def _tools_of_gateway(gateway: str, token: str | None, plans: tuple[Plan, Plan], *, as_json: bool) -> Lists:
    """Return the tools of the servers that the gateway has, by their own names."""
    from urllib.parse import quote

    from taskgate.assembly.policy_diff import lists_of_value
    from taskgate.cli.gateway_api import run_with_gateway

    found: dict[str, list[str]] = {}

    def work(api: GatewayApi) -> None:
        has = {row["name"] for row in api.get("/api/v1/servers").value if row["tool_count"] is not None}
        for server in {server: None for plan in plans for server in plan.registry.records}:
            if server in has:
                tools = api.get(f"/api/v1/servers/{quote(server, safe='')}").value["tools"]
                found[server] = [tool["name"] for tool in tools]

    run_with_gateway(work, gateway, token, as_json)
    return lists_of_value(found)


def _print_changes(found: PolicyDiff, as_json: bool) -> None:
    if as_json:
        import msgspec

        print(json.dumps(msgspec.to_builtins(found), ensure_ascii=False))
        return
    for change in found.changes:
        print(printing.clean(change.line()))
    for each in found.incomplete:
        printing.note(printing.clean(each))
    count = len(found.changes)
    changed = f"{count} change{'' if count == 1 else 's'}" if count else "No change"
    callers = f"{len(found.callers)} caller" + ("" if len(found.callers) == 1 else "s")
    printing.note(f"{changed} in the decisions about {found.names} names for {callers}.")


def _plan(config: str | None) -> Plan:
    return _built(loaded_or_exit(config))


def _built(loaded: LoadedConfig) -> Plan:
    from taskgate.assembly.plan import build_plan
    from taskgate.config.problems import ConfigError

    try:
        return build_plan(loaded)
    except ConfigError as error:
        raise Failed(str(error), ExitCode.USAGE) from None
