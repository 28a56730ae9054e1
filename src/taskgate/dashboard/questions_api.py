"""The operator's view of questions that wait, and of what the gateway has been doing: `/api/questions` and `/api/waterfall`.
Callers answer their own questions with tools; the operator may answer any.
"""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.errors import CallerError
from taskgate.core.questions import ELICIT, ROOTS, SAMPLE
from taskgate.dashboard.web import Answer, WebRequest, json_answer
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.questions.inbox import FORMS, Waiting

MOST_SPANS = 2_000
_KINDS: Final = {ELICIT: "elicitation", ROOTS: "roots", SAMPLE: "sampling"}


def question_row(waiting: Waiting) -> dict[str, Any]:
    row = {"kind": _KINDS[waiting.method], "caller": waiting.caller, **waiting.shown()}
    return {**row, "undecided": True} if waiting.is_undecided else row


def list_questions(gateway: Gateway) -> Answer:
    return json_answer([question_row(waiting) for waiting in gateway.activity.inbox.all()])


async def answer_question(gateway: Gateway, request: WebRequest, question_id: str) -> Answer:
    """The same checks as for the caller's own answer; the first answer wins."""
    said, inbox = request.json(), gateway.activity.inbox
    unknown = set(said) - {"action", "content", "role", "model", "stop_reason", "reason"}
    if unknown:
        return json_answer({"error": f"Unknown keys: {', '.join(sorted(unknown))}."}, 400)
    try:
        waiting = inbox.find_any(question_id)
    except CallerError as problem:
        return json_answer({"error": problem.message}, 404)
    action = said.get("action", "accept")
    if action not in ("accept", "decline", "cancel"):
        return json_answer({"error": "action must be accept, decline or cancel."}, 400)
    if waiting.method in FORMS:
        inbox.answer_elicitation(waiting, action, said.get("content"))
    elif action == "accept":
        inbox.answer_sampling(
            waiting,
            str(said.get("role", "assistant")),
            said.get("content"),
            str(said.get("model", "a person")),
            said.get("stop_reason"),
        )
    else:
        inbox.refuse(waiting, said.get("reason"))
    await waiting.kept()
    return json_answer({"id": question_id, "message": f"{waiting.server} has the answer."})


def waterfall_json(gateway: Gateway, request: WebRequest) -> Answer:
    asked = request.query.get("limit", str(MOST_SPANS))
    if not (asked.isascii() and asked.isdigit()) or len(asked) > 9 or not 0 < int(asked) <= MOST_SPANS:
        raise ValueError(f"limit must be a whole number from 1 to {MOST_SPANS}")
    return json_answer([span.shown() for span in gateway.waterfall.latest(int(asked))])


def servers_json(gateway: Gateway) -> Answer:
    """State, health and the last words of every server, for the operator."""
    rows = []
    for name, upstream in gateway.context.upstreams.items():
        status = upstream.status()
        rows.append(
            {
                "name": name,
                "transport": upstream.transport,
                "state": status.state.value,
                "generations": [generation.value for generation in status.generations],
                "reconnect_attempt": status.reconnect_attempt,
                "next_retry_ms": status.next_retry_ms,
                "last_error": status.last_error,
                "stderr": list(status.stderr[-20:]),
            }
        )
    return json_answer(rows)
