"""Open questions as JSON: list and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskgate.core.errors import CallerError
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.identity.roles import Permission
from taskgate.core.questions.question import ELICIT, ROOTS, SAMPLE
from taskgate.dashboard.routes import ROWS, TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.questions.inbox import FORMS
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.services.console import ConsoleServices

_ANSWER: Final = closed_object(
    action={"enum": ["accept", "decline", "cancel"]}, content={}, role=TEXT, model=TEXT, stop_reason=TEXT, reason=TEXT
)
KINDS: Final = {ELICIT: "elicitation", ROOTS: "roots", SAMPLE: "sampling"}


def question_row(waiting: Waiting) -> dict[str, Any]:
    return {"kind": KINDS[waiting.method], "caller": waiting.caller, **waiting.shown()}


class QuestionsApi:
    def __init__(self, gateway: ConsoleServices) -> None:
        self._gateway = gateway
        self._inbox = gateway.activity.inbox

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/questions",
                Access.LOGIN,
                self._list,
                "Open questions: yours, or with the permission `see` those of all callers.",
                answer=ROWS,
                command="taskgate questions list",
            ),
            post(
                "/questions/{id}",
                Access.LOGIN,
                self._answer,
                "Answer or decline a question.",
                _ANSWER,
                command="taskgate questions answer {id}",
            ),
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
            return problem(404, f"No open question {visit.values['id'][:60]!r}.")
        if said.get("action", "accept") not in ("accept", "decline", "cancel"):
            return problem(400, "action must be accept, decline or cancel.")
        await self.settle(waiting, said)
        return json_answer({"id": waiting.id, "message": f"Answer sent to {waiting.server}."})

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
