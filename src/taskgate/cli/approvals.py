"""`taskgate approvals`: list, show, approve and deny calls that wait for approval."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Failed, Option, confirm, prompt
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, print_rows, read, run_with_gateway, whole_id
from taskgate.cli.script_calls import call_lines
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.replies.approvals import ApprovalDetail, ApprovalRow
    from taskgate.replies.differences import ValueChanges

ApprovalId = Annotated[str, Argument(metavar="ID", help="Approval id; its beginning or end is enough.")]
Reason = Annotated[str, Option("--reason", help="Reason. The caller sees the reason of a denial.")]
_MANY = 1000


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("List and decide calls that wait for approval.")
    for name, command in (("list", list_), ("show", show), ("approve", approve), ("deny", deny), ("login", login)):
        group.command(name)(command)
    group.command("passphrase")(passphrase)
    app.add(group, "approvals")


def list_(
    everything: Annotated[bool, Option("--all", help="Include decided and expired approvals.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List the open approvals, oldest first."""

    from taskgate.replies.approvals import ApprovalRow

    def work(api: GatewayApi) -> None:
        nothing = "No approvals." if everything else "No open approvals."
        print_rows(_rows(api, everything), ApprovalRow, as_json, nothing, _table)

    run_with_gateway(work, gateway, token, as_json)


def show(approval_id: ApprovalId, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Show one approval: the exact arguments, the caller, the rule, and changes since the last approved call."""

    from taskgate.replies.approvals import ApprovalDetail

    def work(api: GatewayApi) -> None:
        value = api.get(f"/api/approvals/{_full_id(api, approval_id)}").value
        print(json.dumps(value, ensure_ascii=False) if as_json else _details(read(value, ApprovalDetail)))

    run_with_gateway(work, gateway, token, as_json)


def approve(
    *,
    approval_id: ApprovalId,
    reason: Reason = "",
    grant: Annotated[
        int | None,
        Option("--grant", metavar="MINUTES", help="Also approve further calls of this tool by this caller."),
    ] = None,
    exact: Annotated[bool, Option("--exact", help="With --grant: only calls with the same arguments.")] = False,
    whole_scope: Annotated[bool, Option("--whole-scope", help="With --grant: for all callers of the scope.")] = False,
    same_script: Annotated[
        bool, Option("--same-script", help="With --grant: only calls of the script that made this call.")
    ] = False,
    yes: Annotated[bool, Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Approve a call. On a terminal, the call is shown and you are asked to confirm."""

    from taskgate.replies.approvals import ApprovalDetail

    def work(api: GatewayApi) -> None:
        full = _full_id(api, approval_id)
        value = api.get(f"/api/approvals/{full}").value
        asks = sys.stdin.isatty() and sys.stdout.isatty() and not as_json and not yes
        if asks:
            print(_details(read(value, ApprovalDetail)))
            if not confirm("Approve this call?"):
                raise ApiProblem(ExitCode.CANCELLED, "Not approved; the call still waits.")
        body: dict[str, Any] = {"reason": reason, "arguments_digest": value["arguments_digest"]}
        if grant is not None:
            body["grant"] = {"minutes": grant, "exact_arguments": exact, "whole_scope": whole_scope}
            body["grant"] |= {"same_script": True} if same_script else {}
        _print_message(_approved(api, full, body), as_json)

    run_with_gateway(work, gateway, token, as_json)


def deny(
    approval_id: ApprovalId, reason: Reason = "", gateway: Gateway = None, token: Token = None, as_json: Json = False
) -> None:
    """Deny a call. The tool does not run."""

    def work(api: GatewayApi) -> None:
        full = _full_id(api, approval_id)
        _print_message(api.post(f"/api/approvals/{full}/deny", {"reason": reason}).value, as_json)

    run_with_gateway(work, gateway, token, as_json)


def login(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Print a login link for the web console. It works once, within 15 minutes."""

    def work(api: GatewayApi) -> None:
        reply = api.post("/api/login-links", {}).value
        print(json.dumps(reply) if as_json else reply["url"])

    run_with_gateway(work, gateway, token, as_json)


def passphrase() -> None:
    """Set a passphrase that the operator must enter to approve. For machines where agents have a shell."""
    from taskgate.config.load import state_directory
    from taskgate.inbound.gateway_secrets import set_passphrase

    if not sys.stdin.isatty():
        raise Failed("Run this command on a terminal; the passphrase is read from the keyboard.", ExitCode.USAGE)
    given = prompt("New passphrase", hide_input=True, confirmation_prompt=True)
    set_passphrase(state_directory(os.environ), given)
    printing.note("Passphrase set. Restart the gateway to apply it.")


def _approved(api: GatewayApi, approval_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Approve, with the passphrase if the gateway requires one."""
    path = f"/api/approvals/{approval_id}/approve"
    known = os.environ.get("TASKGATE_PASSPHRASE")
    if known:
        body = {**body, "passphrase": known}
    try:
        done: dict[str, Any] = api.post(path, body).value
    except ApiProblem as problem:
        if "passphrase" not in str(problem) or known or not sys.stdin.isatty():
            raise
        done = api.post(path, {**body, "passphrase": prompt("Passphrase", hide_input=True)}).value
    return done


def _rows(api: GatewayApi, everything: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        query = f"?limit={_MANY}" + ("&all=1" if everything else "") + (f"&after={after}" if after else "")
        reply = api.get(f"/api/approvals{query}")
        rows.extend(reply.value)
        after = reply.next_after
        if after is None:
            return rows


def _full_id(api: GatewayApi, given: str) -> str:
    """Return a full id unchanged, or the only open approval whose id begins or ends with `given`."""
    if len(given) >= len("ap_") + 26:
        return given
    return whole_id([str(row["id"]) for row in _rows(api, False)], given, "open approvals")


def _print_message(answer: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(answer, ensure_ascii=False) if as_json else printing.clean(answer.get("message", "Done.")))


def _table(rows: list[ApprovalRow]) -> None:
    headings = ("Id", "State", "Tool", "Caller", "Requested", "Expires", "Rule")
    scripts = [row.plan_summary or _origin(row) for row in rows]
    if not any(scripts):
        printing.table(headings, [_cells(row) for row in rows])
        return
    printing.table((*headings, "Script"), [(*_cells(row), script) for row, script in zip(rows, scripts, strict=True)])


def _origin(row: ApprovalRow) -> str:
    """The script that made the call, with the line; empty if no script did."""
    origin = row.from_script
    if not origin:
        return ""
    return f"{origin.task_id}, line {origin.line}" if origin.line else str(origin.task_id)


def _cells(row: ApprovalRow) -> tuple[str, ...]:
    from taskgate.core.governance.card import show_name

    given = f" {row.approvals_given}/{row.approvals_needed}" if row.approvals_needed > 1 else ""
    times = printing.local_time(row.asked_at), printing.local_time(row.expires_at)
    return row.id, row.state + given, show_name(row.tool), show_name(row.requester), *times, row.rule


def _details(detail: ApprovalDetail) -> str:
    from taskgate.core.governance.card import show_name

    lines = [
        f"{show_name(detail.name)} on {show_name(detail.server)}  [{detail.state}]",
        f"  id          {detail.id}",
        f"  caller      {show_name(detail.requester)} in scope {detail.scope}, {printing.local_time(detail.asked_at)}",
        *([f"  from script {_origin(detail)}"] if _origin(detail) else []),
        f"  expires     {printing.local_time(detail.expires_at)}",
        f"  rule        {detail.rule} (workflow {detail.workflow})",
        f"  approvals   {detail.approvals_given} of {detail.approvals_needed}",
        *_on_approval(detail),
        "",
        *_script_lines(detail),
        "Arguments that will be sent:",
        *(f"  {line}" for line in detail.arguments.splitlines()),
    ]
    lines += [
        f"Changed and not accepted: {changed.kind} {changed.tool} (see `taskgate pins list`)"
        for changed in detail.unaccepted
    ]
    if detail.not_validated:
        lines.append(f"The arguments were not validated: {detail.not_validated}")
    if detail.hidden:
        lines.append(f"Redacted here, but sent: {', '.join(map(show_name, detail.hidden))}")
    if detail.deceptive:
        lines.append(f"Misleading characters, shown as \\uXXXX: {', '.join(detail.deceptive)}")
    lines += ["", *_changes(detail.changes)]
    calls = detail.script_calls
    if calls is not None and detail.state != "open":
        lines += ["", "Calls of the script:", *call_lines(calls, detail.task_id)]
    for vote in detail.votes:
        why = f": {vote.reason}" if vote.reason else ""
        lines.append(f"  {vote.approver}: {vote.verdict} at {printing.local_time(vote.at)}{why}")
    return "\n".join(printing.clean(line) for line in lines)


def _script_lines(detail: ApprovalDetail) -> list[str]:
    """The code with line numbers, and the plan; nothing if the call runs no script."""
    plan = detail.plan
    if not detail.script or plan is None:
        return []
    from taskgate.core.governance.card import show_name
    from taskgate.core.governance.script_plan import meets_word

    lines = [
        "Script:",
        *(f"  {number:4}  {line}" for number, line in enumerate(detail.script.removesuffix("\n").split("\n"), 1)),
        "",
    ]
    lines.append(f"Plan: the script {detail.plan_summary}")
    for tool in plan.tools:
        named = ", ".join(map(str, tool.lines))
        lines.append(f"  {show_name(tool.tool)}: {meets_word(tool.meets)} (line {named})")
    if plan.tools_left_out:
        lines.append(f"  and {plan.tools_left_out} more tools")
    return [*lines, ""]


def _on_approval(detail: ApprovalDetail) -> list[str]:
    if detail.state != "open":
        return []
    runs = "the call runs at once" if detail.starts_on_approval else "the call runs when its caller next reads the task"
    return [f"  on approval {runs}"]


def _changes(changes: ValueChanges | None) -> list[str]:
    if changes is None:
        return ["No earlier call of this tool was approved."]
    if not changes.list:
        return ["Same arguments as the last approved call."]
    from taskgate.core.governance.card import show_name

    lines = ["Changes since the last approved call:"]
    for change in changes.list:
        before, after = _in_one_line(change.before), _in_one_line(change.after)
        lines.append(f"  {show_name(change.path) or '(everything)'}: {change.kind}, {before} -> {after}")
    if changes.left_out:
        lines.append(f"  and {changes.left_out} more differences")
    return lines


def _in_one_line(value: Any) -> str:
    from taskgate.core.governance.card import show_value

    return " ".join(line.strip() for line in show_value(value).split("\n"))
