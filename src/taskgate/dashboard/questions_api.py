"""The operator's view of questions that wait, and of what the gateway has been doing: `/api/questions` and `/api/waterfall`.
Callers answer their own questions with tools; the operator may answer any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Approver
from taskgate.core.identity import ANONYMOUS, Permission
from taskgate.core.questions import ELICIT, ROOTS, SAMPLE
from taskgate.dashboard.routes import ROWS, TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.questions.inbox import FORMS
from taskgate.gateway.questions.waiting import Waiting

_ANSWER: Final = closed_object(
    action={"enum": ["accept", "decline", "cancel"]}, content={}, role=TEXT, model=TEXT, stop_reason=TEXT, reason=TEXT
)
KINDS: Final = {ELICIT: "elicitation", ROOTS: "roots", SAMPLE: "sampling"}


def question_row(waiting: Waiting) -> dict[str, Any]:
    row = {"kind": KINDS[waiting.method], "caller": waiting.caller, **waiting.shown()}
    return {**row, "undecided": True} if waiting.is_undecided else row


class QuestionsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._inbox = gateway.activity.inbox

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/questions",
                None,
                self._list,
                "Questions that wait: everybody's for who may see, or yours.",
                answer=ROWS,
            ),
            post("/questions/{id}", None, self._answer, "Answer a question, or refuse to.", _ANSWER),
        )

    def asked_of(self, who: Approver) -> list[Waiting]:
        """What this person may see, oldest first."""
        return [waiting for waiting in self._inbox.all() if who.may_see_of(waiting.caller)]

    def find(self, who: Approver, question_id: str) -> Waiting | None:
        """The question; one that is somebody else's looks like one that is gone."""
        try:
            waiting = self._inbox.find_any(question_id)
        except CallerError:
            return None
        return waiting if may_answer(who, waiting) else None

    async def _list(self, visit: Visit) -> Answer:
        return json_answer([question_row(waiting) for waiting in self.asked_of(visit.who)])

    async def _answer(self, visit: Visit) -> Answer:
        """The same checks as for the caller's own answer; the first answer wins."""
        said = visit.request.json()
        unknown = set(said) - {"action", "content", "role", "model", "stop_reason", "reason"}
        if unknown:
            return problem(400, f"Unknown keys: {', '.join(sorted(unknown))}.")
        waiting = self.find(visit.who, visit.values["id"])
        if waiting is None:
            return problem(404, f"There is no question {visit.values['id'][:60]!r} waiting.")
        if said.get("action", "accept") not in ("accept", "decline", "cancel"):
            return problem(400, "action must be accept, decline or cancel.")
        await self.settle(waiting, said)
        return json_answer({"id": waiting.id, "message": f"{waiting.server} has the answer."})

    async def settle(self, waiting: Waiting, said: Mapping[str, Any]) -> None:
        """Raises CallerError for an answer that does not fit, and for a question that somebody else was quicker with."""
        action = said.get("action", "accept")
        if waiting.method in FORMS:
            self._inbox.answer_elicitation(waiting, action, said.get("content"))
        elif action == "accept":
            self._inbox.answer_sampling(
                waiting,
                str(said.get("role", "assistant")),
                said.get("content"),
                str(said.get("model", "a person")),
                said.get("stop_reason"),
            )
        else:
            self._inbox.refuse(waiting, said.get("reason"))
        await waiting.kept()


def may_answer(who: Approver, waiting: Waiting) -> bool:
    mine = waiting.caller == who.id and who.id != ANONYMOUS
    return who.reaches(waiting.caller) and (mine or who.may(Permission.ACT))


def server_rows(gateway: Gateway) -> list[dict[str, Any]]:
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
    return rows
