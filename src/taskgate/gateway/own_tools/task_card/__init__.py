"""The task card: an MCP App of the gateway itself, and `show_tasks`, the tool with which it reads tasks.

The page is one document (built from `task_card.html`, `.css` and `.js`) that loads nothing. Its content security policy names the
digests of its one script and its one style, so that nothing else can run in it, and requires trusted types, so that no text
becomes markup.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from taskgate import __version__
from taskgate.core import wire
from taskgate.core.catalog.apps import APP_MIME
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Family, Parameter, ToolFace
from taskgate.core.catalog.task_card import CARD_URI
from taskgate.core.errors import CallerError
from taskgate.core.identity.addressees import NO_CONVERSATION
from taskgate.core.tasks.deadlines import is_expired
from taskgate.core.tasks.projections_tools import shown_task
from taskgate.core.tasks.task import Task
from taskgate.gateway.own_tools.follow_tasks import NO_LIST, find, tasks_of
from taskgate.gateway.own_tools.tool import OwnTool, TaskParts, ToolReply, json_block
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.requests.large_results import first_text
from taskgate.gateway.requests.request import Request

MAX_SHOWN: Final = 20
MAX_RESULT: Final = 2_000
MAX_QUESTION: Final = 1_000
_SETTINGS: Final[dict[str, Any]] = {
    "csp": {"connectDomains": [], "resourceDomains": [], "frameDomains": [], "baseUriDomains": []},
    "prefersBorder": True,
}


@cache
def page() -> str:
    """The whole document."""
    script, style = _part("task_card.js").replace("@VERSION@", __version__), _part("task_card.css")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    document = _part("task_card.html").replace("@POLICY@", policy)
    return document.replace("@STYLE@", style).replace("@SCRIPT@", script)


def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def card_content() -> dict[str, Any]:
    """The page as an entry of `contents`."""
    return {"uri": CARD_URI, "mimeType": APP_MIME, "text": page(), "_meta": {"ui": _SETTINGS}}


class CardParts(msgspec.Struct, frozen=True):
    following: TaskParts
    address: PublicAddress


async def show_tasks(parts: CardParts, request: Request, given: dict[str, Any]) -> ToolReply:
    """Return these tasks, or the caller's latest ones, as data for the card and as a short text for the model."""
    task_ids: list[str] | None = given.get("task_ids")
    if task_ids is None:
        latest = await tasks_of(parts.following, request, None, None)
        rows = [await _row(parts, request, task) for task in latest[:MAX_SHOWN]]
    else:
        rows = [await _named(parts, request, task_id) for task_id in dict.fromkeys(task_ids[:MAX_SHOWN])]
    short: dict[str, Any] = {"tasks": [{key: row[key] for key in _SHORT if key in row} for row in rows]}
    if task_ids is None and request.caller_key.startswith(NO_CONVERSATION):
        short["note"] = NO_LIST
    return ToolReply((json_block(short),), rest={"structuredContent": wire.raw({"tasks": rows})})


_SHORT: Final = ("task_id", "status", "server", "tool", "status_message", "waiting_for")


async def _named(parts: CardParts, request: Request, task_id: str) -> dict[str, Any]:
    try:
        task = await find(parts.following, request, task_id)
    except CallerError:
        return {"task_id": task_id[:60], "status": "expired", "server": "", "tool": "", "created_at": ""}
    parts.following.tasks.methods.start_if_approved(task)
    return await _row(parts, request, task)


async def _row(parts: CardParts, request: Request, task: Task) -> dict[str, Any]:
    tasks, now = parts.following.tasks, parts.following.tasks.store.now_ms()
    row = {key: value for key, value in shown_task(task, now).items() if key not in ("args", "ttl")}
    row["console_url"] = parts.address.task(task.id)
    inbox = parts.following.activity.inbox
    asked = [_question(waiting) for waiting in inbox.elicitations(request, task.server, task.id)]
    if asked:
        row["questions"] = asked
    if task.state.is_terminal and not is_expired(task, now) and task.outcome is not None:
        body = await tasks.records.result_bytes(task)
        text = await first_text(body) if body is not None else None
        if text:
            row["result"] = text[:MAX_RESULT]
    return row


def _question(shown: dict[str, Any]) -> dict[str, Any]:
    params = shown.get("params")
    params = params if isinstance(params, dict) else {}
    schema = params.get("requestedSchema")
    fields = schema.get("properties") if isinstance(schema, dict) else None
    return {
        "message": str(params.get("message", ""))[:MAX_QUESTION],
        "fields": [str(name)[:80] for name in list(fields)[:20]] if isinstance(fields, dict) else [],
    }


CARD_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.SHOW_TASKS,
            "Show tasks to the person you work for, as cards in the conversation where the client can show them: state, "
            "progress, questions, results. Without task_ids the latest ones.",
            (Parameter("task_ids", ArgumentKind.TEXTS, "Ids of tasks, as replies named them; at most 20."),),
            Family.CARD,
        ),
        show_tasks,
        bare=True,
    ),
)
