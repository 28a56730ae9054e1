"""`taskgate questions`: list and answer the questions of servers that wait in the inbox."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from taskgate.cli import printing
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, ask_gateway, print_rows, whole_id
from taskgate.cli.target import Gateway, Json, Token

QuestionId = Annotated[str, typer.Argument(metavar="ID", help="The question's id; its beginning or end is enough.")]
Content = Annotated[str | None, typer.Argument(metavar="[JSON]", help="The filled-in form as JSON, or - for stdin.")]


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="See and answer the questions of servers that wait.", no_args_is_help=True)
    group.command("list")(list_)
    group.command("answer")(answer)
    app.add_typer(group, name="questions")


def list_(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """List the questions that wait, oldest first."""

    def work(api: GatewayApi) -> None:
        print_rows(api.get("/api/questions").value, as_json, "No server is waiting for an answer.", _print_all)

    ask_gateway(work, gateway, token, as_json)


def answer(
    *,
    question_id: QuestionId,
    content: Content = None,
    decline: Annotated[bool, typer.Option("--decline", help="Say no.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Say that nobody will answer.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Answer a question: with a filled-in form (roots have one too), a message for sampling, or --decline or --cancel."""

    def work(api: GatewayApi) -> None:
        if decline and cancel:
            raise ApiProblem(ExitCode.USAGE, "Give --decline or --cancel, not both.")
        action = "decline" if decline else "cancel" if cancel else "accept"
        body: dict[str, Any] = {"action": action}
        if content is not None:
            body["content"] = _content(content)
        known = [str(row["request_id"]) for row in api.get("/api/questions").value]
        said = api.post(f"/api/questions/{whole_id(known, question_id, 'questions')}", body).value
        print(json.dumps(said, ensure_ascii=False) if as_json else printing.clean(said["message"]))

    ask_gateway(work, gateway, token, as_json)


def _content(text: str) -> Any:
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as problem:
        raise ApiProblem(ExitCode.USAGE, f"This is not JSON: {problem}") from None


def _print_all(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(_shown(row))


def _shown(row: dict[str, Any]) -> str:
    params = row["params"]
    lines = [
        f"{row['request_id']}  {row['server']} asks {row['caller']} ({row['kind']})",
        f"  {params.get('message', '')}" if "message" in params else f"  {json.dumps(params)[:500]}",
        f"  answer before {printing.local_time(row['expires_at'])}",
    ]
    if params.get("mode") == "url":
        lines.append(f"  open {params.get('url')}, then accept")
        if row.get("page"):
            lines.append(f"  who asks, and where that leads: {row['page']}")
    fields = (params.get("requestedSchema") or {}).get("properties") or {}
    lines += [f"  - {name}: {_wanted(schema)}" for name, schema in fields.items()]
    if row.get("warning"):
        lines.append(f"  {row['warning']}")
    return "\n".join(printing.clean(line) for line in lines)


def _wanted(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "anything"
    choices = schema.get("enum")
    kind = schema.get("type", "anything")
    title = schema.get("title") or schema.get("description") or ""
    return f"{kind}{' of ' + ', '.join(map(str, choices)) if choices else ''}{' (' + str(title) + ')' if title else ''}"
