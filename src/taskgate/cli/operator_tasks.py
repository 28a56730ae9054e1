"""`taskgate tasks` with the operator's token: tasks of all callers, through the gateway's HTTP API."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from taskgate import clock
from taskgate.cli import printing
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, read, run_with_gateway, whole_id
from taskgate.cli.history import history_rows
from taskgate.cli.local_gateways import operator_token
from taskgate.cli.script_calls import call_lines
from taskgate.cli.target import Target

PAGE = 200
WAIT_S = 20
"""Seconds that one request waits for a task to end."""
FROM_HISTORY = 1_000
"""Maximum number of finished tasks that are read from the history."""
_STATES = {
    "ok": "completed",
    "tool_error": "completed",
    "failed": "failed",
    "denied": "rejected",
    "rejected": "rejected",
    "expired": "expired",
    "cancelled": "cancelled",
    "outcome_unknown": "outcome_unknown",
}
"""The state of a task with this outcome."""
_COLUMNS = ("Task", "State", "Tool", "Caller", "Created", "Message")


def is_operator(target: Target) -> bool:
    """Whether the target is a gateway and the token is the operator's, which can see all tasks."""
    if not target.is_gateway or not isinstance(target.address, str):
        return False
    own = operator_token(urlsplit(target.address).hostname)
    return own is not None and target.token == own


def questions_api(target: Target) -> GatewayApi | None:
    """Return the API to list questions: all for the operator, a caller's own with a token; None without a token."""
    known = target.is_gateway and isinstance(target.address, str) and target.token is not None
    return GatewayApi(_base_url(target), target.token) if known else None


def script_calls_of(target: Target, task_id: str, calls_after: str | None) -> dict[str, Any] | None:
    """The calls of a script of the caller itself; None for any other task, and where the caller has no token for the API."""
    api = questions_api(target)
    if api is None:
        return None
    page = f"?calls_after={quote(calls_after)}" if calls_after is not None else ""
    try:
        found: dict[str, Any] | None = api.get(f"/api/v1/tasks/{quote(task_id)}{page}").value.get("script_calls")
    except ApiProblem:
        return None
    return found


def list_all(target: Target, *, as_json: bool, state: str, filters: Mapping[str, str]) -> None:
    def work(api: GatewayApi) -> None:
        rows = _all(api, state, filters)
        if state == "all" or state in _STATES.values():
            rows += _from_history(api, state, filters, {row["id"] for row in rows})
        if as_json:
            for row in rows:
                printing.event("task", **row)
        elif not rows:
            printing.note(
                "No matching tasks." if filters or state != "open" else "No open tasks. --all includes finished tasks."
            )
        else:
            _print(rows)

    run_with_gateway(work, _base_url(target), target.token, as_json)


def show_one(target: Target, task_id: str, *, as_json: bool, calls_after: str | None = None) -> None:
    def work(api: GatewayApi) -> None:
        page = f"?calls_after={quote(calls_after)}" if calls_after is not None else ""
        try:
            _print_row(api.get(f"/api/v1/tasks/{quote(_full_id(api, task_id))}{page}").value, as_json)
        except ApiProblem as problem:
            if problem.code is not ExitCode.NOT_FOUND:
                raise
            _print_row(_as_task(_history_row(api, task_id, problem)), as_json)

    run_with_gateway(work, _base_url(target), target.token, as_json)


def _history_row(api: GatewayApi, task_id: str, unknown: ApiProblem) -> dict[str, Any]:
    """The row of a finished task that is no longer stored. Raises `unknown` if there is none."""
    try:
        row: dict[str, Any] = api.get(f"/api/v1/history/{quote(task_id)}").value
    except ApiProblem as problem:
        raise unknown if problem.code is ExitCode.NOT_FOUND else problem from None
    return row


def rerun_one(task_id: str, scope: str | None, gateway: str | None, token: str | None, *, as_json: bool) -> None:
    def work(api: GatewayApi) -> None:
        reply = api.post(f"/api/v1/tasks/{quote(task_id)}/rerun", {"scope": scope} if scope else {}).value
        if as_json:
            printing.event("rerun", **reply)
        elif reply["task_id"] is not None:
            print(reply["task_id"])
            printing.note(f"Started. Follow it with: taskgate tasks watch {reply['task_id']}")
        elif "error" in reply:
            raise ApiProblem(ExitCode.FAILED, printing.clean(reply["error"].get("message", "The call failed.")))
        else:
            print(json.dumps(reply["result"], ensure_ascii=False, indent=2))

    run_with_gateway(work, gateway, token, as_json)


def cancel_one(target: Target, task_id: str, reason: str | None, *, as_json: bool) -> None:
    def work(api: GatewayApi) -> None:
        body = {"reason": reason} if reason else {}
        _print_row(api.post(f"/api/v1/tasks/{quote(_full_id(api, task_id))}/cancel", body).value, as_json)

    run_with_gateway(work, _base_url(target), target.token, as_json)


def result_of_one(target: Target, task_id: str, timeout: float | None, *, as_json: bool) -> ExitCode:
    """Wait until a task of any caller ends, and print its result."""
    ends: list[ExitCode] = []

    def work(api: GatewayApi) -> None:
        full_id, end = _full_id(api, task_id), None if timeout is None else clock.monotonic() + timeout
        while True:
            left = WAIT_S if end is None else max(0, min(WAIT_S, math.ceil(end - clock.monotonic())))
            row = api.get(f"/api/v1/tasks/{quote(full_id)}/result?wait={left}").value
            if row["ended"]:
                ends.append(_print_outcome(row, as_json))
                return
            if end is not None and clock.monotonic() >= end:
                raise ApiProblem(ExitCode.TIMED_OUT, f"Timeout: {full_id} has not ended (state: {row['state']}).")

    run_with_gateway(work, _base_url(target), target.token, as_json)
    return ends[0]


def _print_outcome(row: dict[str, Any], as_json: bool) -> ExitCode:
    from taskgate.client import ServerError, ToolResult

    if "result" in row:
        return printing.result(ToolResult(row["result"]), as_json=as_json)
    failed = row["error"]
    error = ServerError(failed.get("code", 0), failed.get("message", ""), failed.get("data"))
    return printing.failure(error, as_json=as_json, executed=row["executed"] or error.stated)


def _base_url(target: Target) -> str:
    parts = urlsplit(str(target.address))
    return f"{parts.scheme}://{parts.netloc}"


def _all(api: GatewayApi, state: str, filters: Mapping[str, str] = MappingProxyType({})) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        query = {**filters, "limit": str(PAGE), "state": state, **({"after": after} if after else {})}
        page = api.get(f"/api/v1/tasks?{urlencode(query)}").value
        rows += page["tasks"]
        after = page["next"]
        if after is None:
            return rows


def _from_history(
    api: GatewayApi, state: str, filters: Mapping[str, str], known: Container[str]
) -> list[dict[str, Any]]:
    """Finished tasks that are no longer stored, from the history."""
    given = {name: value for name, value in filters.items() if name != "tool"}
    rows = map(_as_task, history_rows(api, {**given, "kind": "task"}, FROM_HISTORY))
    part = filters.get("tool", "")
    return [row for row in rows if row["id"] not in known and state in ("all", row["state"]) and part in row["tool"]]


def _as_task(row: dict[str, Any]) -> dict[str, Any]:
    """A row of history with the fields of a task, as far as it has them."""
    return {
        "id": row["id"],
        "state": _STATES[row["outcome"]],
        "outcome": row["outcome"],
        "tool": f"{row['server']}__{row['tool']}",
        "server": row["server"],
        "principal": row["caller"],
        "caller": row["caller"],
        "scope": row["scope"],
        "message": row["reason"] or None,
        "error_type": row["error_type"] or None,
        "created_at": row["accepted_at"],
        "updated_at": row["ended_at"],
        "finished_at": row["ended_at"],
        "approval_id": row["approval_id"] or None,
        "approved_by": row["approved_by"] or None,
        "executed": row["executed"],
        "attempts": row["attempts"],
        "rerun_of": row["parent"] or None,
        "stored": False,
    }


def _full_id(api: GatewayApi, given: str) -> str:
    """Return a full id unchanged, or the only task whose id begins or ends with `given`."""
    if len(given) == len("tg_") + 26:
        return given
    return whole_id([row["id"] for row in _all(api, "all")], given, "tasks")


def _shown_state(row: dict[str, Any]) -> str:
    """The state; `tool_error` for a task whose tool returned an error."""
    return "tool_error" if row.get("outcome") == "tool_error" else str(row["state"])


def _print(rows: list[dict[str, Any]]) -> None:
    table = [_COLUMNS]
    for row in rows:
        caller = f"{row['principal']} ({row['scope']})"
        cells = (
            row["id"],
            _shown_state(row),
            row["tool"],
            caller,
            printing.local_time(row["created_at"]),
            row["message"] or "",
        )
        table.append(tuple(printing.one_line(cell) for cell in cells))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS) - 1)]
    # Only the last column is truncated, and only on a terminal, so that ids can be copied.
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for cells in table:
        fixed = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        print(fixed + ("  " + cells[-1])[: max(0, edge - len(fixed)) if edge else None].rstrip())


def _print_row(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        printing.event("task", **row)
        return
    facts = {
        "task": row["id"],
        "state": _shown_state(row),
        "tool": row["tool"],
        "server": row["server"],
        "caller": ", ".join(dict.fromkeys((row["principal"], row["caller"], f"scope {row['scope']}"))),
        "message": row["message"],
        "arguments": json.dumps(row["arguments"], ensure_ascii=False) if "arguments" in row else None,
        "created": printing.local_time(row["created_at"]),
        "changed": printing.local_time(row["updated_at"]),
        "ended": printing.local_time(row["finished_at"]) if row["finished_at"] else None,
        "executed": row["executed"],
        "approved by": row.get("approved_by"),
        "repeats": row.get("rerun_of"),
        "script": f"{row['parent']}, line {row['script_line']}" if row.get("parent") else None,
        "result": None if row.get("stored", True) else "no longer stored; this is its row of the history",
        "questions": ", ".join(
            str(question["request"].get("message", question["key"])) for question in row.get("questions", ())
        ),
    }
    for name, value in facts.items():
        if value:
            print(f"{name:12}{printing.one_line(value)}")
    if row.get("script_calls") is not None:
        print_calls(row["script_calls"], row["id"])


def print_calls(tree: Any, task_id: str) -> None:
    """Print the calls of a script."""
    from taskgate.replies.scripts import CallTree

    print("calls")
    for line in call_lines(read(tree, CallTree), task_id):
        print(line)
