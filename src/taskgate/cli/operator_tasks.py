"""`taskgate tasks` with the operator's token: tasks of all callers, through the gateway's HTTP API."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from taskgate import clock
from taskgate.cli import printing
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, ask_gateway, whole_id
from taskgate.cli.local_gateways import operator_token
from taskgate.cli.target import Target

PAGE = 200
WAIT_S = 20
"""Seconds that one request waits for a task to end."""
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


def list_all(target: Target, *, as_json: bool, state: str, filters: Mapping[str, str]) -> None:
    def work(api: GatewayApi) -> None:
        rows = _all(api, state, filters)
        if as_json:
            for row in rows:
                printing.event("task", **row)
        elif not rows:
            printing.note(
                "No matching tasks." if filters or state != "open" else "No open tasks. --all includes finished tasks."
            )
        else:
            _print(rows)

    ask_gateway(work, _base_url(target), target.token, as_json)


def show_one(target: Target, task_id: str, *, as_json: bool) -> None:
    def work(api: GatewayApi) -> None:
        _print_row(api.get(f"/api/v1/tasks/{quote(_full_id(api, task_id))}").value, as_json)

    ask_gateway(work, _base_url(target), target.token, as_json)


def cancel_one(target: Target, task_id: str, reason: str | None, *, as_json: bool) -> None:
    def work(api: GatewayApi) -> None:
        body = {"reason": reason} if reason else {}
        _print_row(api.post(f"/api/v1/tasks/{quote(_full_id(api, task_id))}/cancel", body).value, as_json)

    ask_gateway(work, _base_url(target), target.token, as_json)


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

    ask_gateway(work, _base_url(target), target.token, as_json)
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


def _full_id(api: GatewayApi, given: str) -> str:
    """Return a full id unchanged, or the only task whose id begins or ends with `given`."""
    if len(given) == len("tg_") + 26:
        return given
    return whole_id([row["id"] for row in _all(api, "all")], given, "tasks")


def _print(rows: list[dict[str, Any]]) -> None:
    table = [_COLUMNS]
    for row in rows:
        whose = f"{row['principal']} ({row['scope']})"
        cells = (
            row["id"],
            row["state"],
            row["tool"],
            whose,
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
        "state": row["state"],
        "tool": row["tool"],
        "server": row["server"],
        "caller": f"{row['principal']}, {row['caller']}, scope {row['scope']}",
        "message": row["message"],
        "arguments": json.dumps(row["arguments"], ensure_ascii=False) if "arguments" in row else None,
        "created": printing.local_time(row["created_at"]),
        "changed": printing.local_time(row["updated_at"]),
        "ended": printing.local_time(row["finished_at"]) if row["finished_at"] else None,
        "executed": row["executed"],
        "questions": ", ".join(
            str(question["request"].get("message", question["key"])) for question in row.get("questions", ())
        ),
    }
    for name, value in facts.items():
        if value:
            print(f"{name:10}{printing.one_line(value)}")
