"""Print results and messages: text for people, or one JSON object per line for scripts.

Text from servers passes `clean` before it reaches a terminal, so that it cannot move the cursor, change colours or hide
text. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.script_report import report_lines
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.client import ClientError, ToolResult


_KEPT = "\n\t"
_HIDING = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_REFUSALS = {
    "policy_denied",
    "approval_rejected",
    "approval_expired",
    "policy_drift",
    "request_drift",
}
_BUSY = {"rate_limited", "overloaded"}


def clean(text: object) -> str:
    """Replace control characters and invisible or direction-changing characters in untrusted text."""
    return "".join(
        c if c in _KEPT or unicodedata.category(c) not in _HIDING else "\N{REPLACEMENT CHARACTER}" for c in str(text)
    )


def local_time(text: str) -> str:
    """Format an ISO time of the API or of MCP in the local time zone."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return text


def one_line(text: object) -> str:
    return " ".join(clean(text).split())


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. The first column, usually an id to copy, is never broken: a narrow terminal wraps the line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[one_line(cell) for cell in row] for row in rows]
    shown = Table(box=None, header_style="bold")
    for number, heading in enumerate(headings):
        shown.add_column(heading, overflow="fold" if number else "ignore", no_wrap=not number)
    for row in cells:
        shown.add_row(*(Text(cell) for cell in row))
    console = Console()
    minimum = max((len(row[0]) for row in cells), default=0) + 70
    # In a pipe, lines are never wrapped.
    Console(width=max(console.width, minimum) if console.is_terminal else max(200, minimum)).print(shown, crop=False)


def event(kind: str, **fields: Any) -> None:
    """Print one line of JSON for scripts."""
    print(json.dumps({"event": kind, **fields}, ensure_ascii=False), flush=True)


def note(text: str) -> None:
    """Print a message to stderr, with the secrets of the configuration redacted."""
    print(log.without_secrets(text), file=sys.stderr, flush=True)


def result(tool_result: ToolResult, *, as_json: bool) -> ExitCode:
    """Print the result of a tool, and return the exit code."""
    if as_json:
        event("result", is_error=tool_result.is_error, result=tool_result.raw)
    else:
        if tool_result.is_error:
            note("The tool returned an error:")
        show = clean if sys.stdout.isatty() else str
        print(show(readable(tool_result)), flush=True)
        for line in report_lines(tool_result.structured_content) if tool_result.is_error else ():
            print(one_line(line) if not line.startswith("  ") else f"  {one_line(line)}", flush=True)
    return ExitCode.FAILED if tool_result.is_error else ExitCode.OK


def readable(tool_result: ToolResult) -> str:
    """Return the content blocks of a result as text; other kinds of blocks are described."""
    lines = [_block(block) for block in tool_result.content]
    if not lines and tool_result.structured_content is not None:
        lines = [json.dumps(tool_result.structured_content, indent=2, ensure_ascii=False)]
    return "\n".join(lines) or "(no content)"


def failure(error: ClientError, *, as_json: bool, executed: str | None, gateway: bool = False) -> ExitCode:
    """Print why a command failed, and return the exit code.

    `executed`: whether the tool ran; None if the command called no tool, or if the server did not state it.
    """
    from taskgate.client.errors import HttpRefusal, ServerError

    code = exit_code_for(error)
    if as_json:
        details = {"error": type(error).__name__, "message": str(error)}
        if executed is not None:
            details["executed"] = executed
        data = error.data if isinstance(error, ServerError) else None
        event("error", **details, exit_code=int(code), **({"data": data} if data is not None else {}))
    else:
        headline, text = "Busy" if _is_busy(error) else _headline(code), clean(error)
        note(text[:1].upper() + text[1:] if text.lower().startswith(headline.lower()) else f"{headline}: {text}")
        if gateway and type(error).__name__ == "CannotConnect":
            note("Is the gateway running? Start it with: taskgate serve. List running gateways with: taskgate status")
        if executed == "maybe" and code is not ExitCode.OUTCOME_UNKNOWN:
            note("The tool may have run. Check before you call it again.")
        if isinstance(error, HttpRefusal) and error.status == 401:
            note("Authentication required: use --token, or --login to log in with your browser.")
    return code


def exit_code_for(error: ClientError) -> ExitCode:
    """Return the exit code for an error of the client."""
    from taskgate import client

    match error:
        case client.CannotConnect() | client.VersionUnsupported():
            return ExitCode.CANNOT_CONNECT
        case client.Unauthorized() | client.LoginFailed() | client.InputNeeded() | client.Refused():
            return ExitCode.REFUSED
        case client.HttpRefusal() if _is_busy(error):
            return ExitCode.CANNOT_CONNECT
        case client.DeadlineExceeded():
            return ExitCode.TIMED_OUT
        case client.TaskCancelled():
            return ExitCode.CANCELLED
        case client.TaskNotFound():
            return ExitCode.NOT_FOUND
        case client.TasksNotSupported():
            return ExitCode.USAGE
        case client.ServerError():
            return _exit_code_for_answer(error)
        case client.TaskFailed():
            return ExitCode.OUTCOME_UNKNOWN if "utcome unknown" in str(error) else ExitCode.FAILED
    return ExitCode.OUTCOME_UNKNOWN if error.executed == "maybe" else ExitCode.CANNOT_CONNECT


def _is_busy(error: ClientError) -> bool:
    """Whether the server rejected a request that it may accept later. Nothing ran, and no rule was applied."""
    from taskgate.client.errors import HttpRefusal, ServerError

    if isinstance(error, HttpRefusal):
        return error.status in (429, 503) and error.executed == "no"
    return isinstance(error, ServerError) and error.error_type in _BUSY and error.stated != "maybe"


def _exit_code_for_answer(error: Any) -> ExitCode:
    kind = error.error_type
    if kind in ("unknown_tool", "unknown_task", "result_expired"):
        return ExitCode.NOT_FOUND
    if kind == "upstream_timeout":
        return ExitCode.TIMED_OUT
    if kind == "outcome_unknown" or error.stated == "maybe":
        # Also for a refusal: the call may have been sent before it.
        return ExitCode.OUTCOME_UNKNOWN
    if kind in _BUSY:
        return ExitCode.CANNOT_CONNECT
    if kind in ("task_required", "task_forbidden"):
        return ExitCode.USAGE
    if kind in _REFUSALS:
        return ExitCode.REFUSED
    return ExitCode.FAILED


def _headline(code: ExitCode) -> str:
    return {
        ExitCode.CANNOT_CONNECT: "Cannot connect",
        ExitCode.REFUSED: "Refused",
        ExitCode.TIMED_OUT: "Timed out",
        ExitCode.CANCELLED: "Cancelled",
        ExitCode.OUTCOME_UNKNOWN: "Outcome unknown",
        ExitCode.NOT_FOUND: "Not found",
        ExitCode.USAGE: "Not possible",
    }.get(code, "Failed")


def _block(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return f"[{kind} {block.get('mimeType', '')}, {len(str(block.get('data', ''))) * 3 // 4} bytes]"
    if kind == "resource_link":
        return f"[link {block.get('uri')}]"
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return str(resource.get("text") or f"[resource {resource.get('uri')}]")
    return f"[{kind}]"
