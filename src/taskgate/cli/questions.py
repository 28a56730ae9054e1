"""`taskgate questions`: list and answer the questions of servers that wait in the inbox."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Option
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, print_rows, run_with_gateway, whole_id
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.replies.questions import QuestionRow

QuestionId = Annotated[str, Argument(metavar="ID", help="Question id; its beginning or end is enough.")]
Content = Annotated[str | None, Argument(metavar="[JSON]", help="The answer as JSON, or - to read stdin.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("List and answer open questions of servers.")
    group.command("list")(list_)
    group.command("answer")(answer)
    app.add(group, "questions")


def list_(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """List the open questions, oldest first."""

    from taskgate.replies.questions import QuestionRow

    def work(api: GatewayApi) -> None:
        print_rows(api.get("/api/questions").value, QuestionRow, as_json, "No open questions.", _print_all)

    run_with_gateway(work, gateway, token, as_json)


def answer(
    *,
    question_id: QuestionId,
    content: Content = None,
    decline: Annotated[bool, Option("--decline", help="Decline the question.")] = False,
    cancel: Annotated[bool, Option("--cancel", help="Cancel the question without an answer.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Answer a question: with form values, roots, or a sampling message as JSON; or with --decline or --cancel."""

    def work(api: GatewayApi) -> None:
        if decline and cancel:
            raise ApiProblem(ExitCode.USAGE, "Use either --decline or --cancel.")
        action = "decline" if decline else "cancel" if cancel else "accept"
        body: dict[str, Any] = {"action": action}
        if content is not None:
            body["content"] = _content(content)
        known = [str(row["request_id"]) for row in api.get("/api/questions").value]
        done = api.post(f"/api/questions/{whole_id(known, question_id, 'questions')}", body).value
        print(json.dumps(done, ensure_ascii=False) if as_json else printing.clean(done["message"]))

    run_with_gateway(work, gateway, token, as_json)


def _content(text: str) -> Any:
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as problem:
        raise ApiProblem(ExitCode.USAGE, f"The answer is not valid JSON: {problem}") from None


def _print_all(rows: list[QuestionRow]) -> None:
    for row in rows:
        print(_shown(row))


def _shown(row: QuestionRow) -> str:
    params = row.params
    lines = [
        f"{row.request_id}  {row.server} asks {row.caller} ({row.kind})",
        f"  {params.get('message', '')}" if "message" in params else f"  {json.dumps(params)[:500]}",
        f"  expires {printing.local_time(row.expires_at)}",
    ]
    if params.get("mode") == "url":
        lines.append(f"  open {params.get('url')}, then accept")
        if row.page:
            lines.append(f"  details of the caller and the link: {row.page}")
    fields = (params.get("requestedSchema") or {}).get("properties") or {}
    lines += [f"  - {name}: {_expected(schema)}" for name, schema in fields.items()]
    if row.warning:
        lines.append(f"  {row.warning}")
    return "\n".join(printing.clean(line) for line in lines)


def _expected(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "anything"
    choices = schema.get("enum")
    kind = schema.get("type", "anything")
    title = schema.get("title") or schema.get("description") or ""
    return f"{kind}{' of ' + ', '.join(map(str, choices)) if choices else ''}{' (' + str(title) + ')' if title else ''}"
