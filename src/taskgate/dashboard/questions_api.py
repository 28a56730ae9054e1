"""Open questions as JSON: list and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core.catalog.own_tool_names import OWN_SERVER
from taskgate.core.errors import CallerError
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.identity.roles import Permission
from taskgate.core.questions.question import ELICIT, FORMS, ROOTS, SAMPLE, SCRIPTS
from taskgate.dashboard.ports import QuestionInbox
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.questions.waiting import Waiting
from taskgate.replies.questions import QuestionAnswered, QuestionRow

_ANSWER: Final = closed_object(
    action={"enum": ["accept", "decline", "cancel"]}, content={}, role=TEXT, model=TEXT, stop_reason=TEXT, reason=TEXT
)
SAMPLING: Final = "sampling"
_OF_SCRIPTS: Final = (SCRIPTS, OWN_SERVER)
"""Questions that an earlier version has stored are of the gateway."""
KINDS: Final = {ELICIT: "elicitation", ROOTS: "roots", SAMPLE: SAMPLING}


def question_row(waiting: Waiting, user: Approver) -> QuestionRow:
    return QuestionRow(
        kind=KINDS[waiting.method],
        caller=waiting.caller,
        message=waiting.message,
        may_answer=may_answer(user, waiting),
        **waiting.shown(),
    )


class QuestionsApi(msgspec.Struct, eq=False):
    _inbox: QuestionInbox

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/questions",
                Access.LOGIN,
                self._list,
                "Open questions: yours, or with the permission `see` those of all callers.",
                command="taskgate questions list",
                answer=list[QuestionRow],
            ),
            post(
                "/questions/{id}",
                Access.LOGIN,
                self._answer,
                "Answer or decline a question.",
                _ANSWER,
                command="taskgate questions answer {id}",
                answer=QuestionAnswered,
            ),
        )

    def rows(self, user: Approver) -> list[QuestionRow]:
        """The open questions that this person may see, oldest first."""
        return [question_row(waiting, user) for waiting in self._visible(user)]

    def count(self, user: Approver) -> int:
        return len(self._visible(user))

    def of_task(self, user: Approver, task_id: str) -> list[QuestionRow]:
        """The open questions of one task."""
        return [question_row(waiting, user) for waiting in self._visible(user) if waiting.task_id == task_id]

    def _visible(self, user: Approver) -> list[Waiting]:
        return [waiting for waiting in self._inbox.all() if may_see(user, waiting)]

    def find(self, user: Approver, question_id: str) -> Waiting | None:
        """A question that this person may answer; any other looks like one that does not exist."""
        try:
            waiting = self._inbox.find_any(question_id)
        except CallerError:
            return None
        return waiting if may_answer(user, waiting) else None

    async def _list(self, visit: Visit) -> Answer:
        return json_answer(self.rows(visit.user))

    async def _answer(self, visit: Visit) -> Answer:
        """Checked like the caller's own answer; the first answer wins."""
        body = visit.request.json()
        unknown = set(body) - {"action", "content", "role", "model", "stop_reason", "reason"}
        if unknown:
            return problem(400, f"Unknown keys: {', '.join(sorted(unknown))}.")
        waiting = self.find(visit.user, visit.values["id"])
        if waiting is None:
            return problem(404, f"No open question {visit.values['id'][:60]!r}.")
        if body.get("action", "accept") not in ("accept", "decline", "cancel"):
            return problem(400, "action must be accept, decline or cancel.")
        await self.settle(waiting, body)
        return json_answer(QuestionAnswered(id=waiting.id, message=f"Answer sent to {waiting.server}."))

    async def settle(self, waiting: Waiting, body: Mapping[str, Any]) -> None:
        """Raises CallerError for an answer that does not match the question, and for a question that was already answered."""
        action = body.get("action", "accept")
        if waiting.method in FORMS:
            self._inbox.answer_elicitation(waiting, action, body.get("content"))
        elif action == "accept":
            self._inbox.answer_sampling(
                waiting,
                str(body.get("role", "assistant")),
                body.get("content"),
                str(body.get("model", "a person")),
                body.get("stop_reason"),
            )
        else:
            self._inbox.refuse(waiting, body.get("reason"))
        await waiting.kept()


def may_see(user: Approver, waiting: Waiting) -> bool:
    """Operators see the questions of servers. The question of a script is for its caller only."""
    return user.may_see_data_of(waiting.caller) and (waiting.server not in _OF_SCRIPTS or _is_caller(user, waiting))


def may_answer(user: Approver, waiting: Waiting) -> bool:
    acts = waiting.server not in _OF_SCRIPTS and user.may(Permission.ACT)
    return user.reaches(waiting.caller) and (acts or _is_caller(user, waiting))


def _is_caller(user: Approver, waiting: Waiting) -> bool:
    return waiting.caller == user.id and user.id != ANONYMOUS
