"""Questions that wait, for operators, and the page of one elicitation for the person it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from taskgate.core.errors import CallerError
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import show_json
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.identity.roles import Permission
from taskgate.core.questions.question import ELICIT, ROOTS, SAMPLE
from taskgate.core.text.peer_url import UnsafeUrl, check_peer_url
from taskgate.dashboard.routes import ROWS, TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, WebRequest, json_answer, problem
from taskgate.gateway.questions.elicitations import ElicitationPage
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


def server_rows(gateway: ConsoleServices) -> list[dict[str, Any]]:
    """State, health and the last words of every server, for the operator."""
    rows = []
    for name, upstream in gateway.upstreams.value.items():
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


# The page `/elicitations/{id}`: who wants something opened or said, and what. Only for the user it is meant for, or the
# operator.
#
# Two kinds of question are shown: an address that a server wants opened, with its host and what is doubtful about it,
# and a question that a caller or a server asked through us. Opening the page decides nothing; a form of ours does.

Render = Callable[..., Answer]
_GONE: Final = ("Question not open", "It was already answered, has expired, or belongs to another user.")


class Elicitations:
    def __init__(self, gateway: ConsoleServices, render: Render) -> None:
        self._gateway = gateway
        self._render = render

    async def answer(self, request: WebRequest, who: Approver, page_id: str, word: str | None) -> Answer:
        page = self._gateway.pages.find(page_id, who.id, who.may(Permission.ACT))
        if page is not None and who.reaches(page.principal):
            return await self._own(request, who, page, word)
        waiting = self._waiting(page_id, who)
        if waiting is not None:
            return await self._address(request, who, waiting, word)
        return self._message(request, who, 404, *_GONE)

    def _waiting(self, question_id: str, who: Approver) -> Waiting | None:
        try:
            waiting = self._gateway.activity.inbox.find_any(question_id)
        except CallerError:
            return None
        is_url = waiting.method == ELICIT and waiting.params.get("mode") == "url"
        return waiting if is_url and may_answer(who, waiting) else None

    async def _own(self, request: WebRequest, who: Approver, page: ElicitationPage, word: str | None) -> Answer:
        if request.method == "POST" and word in ("answer", "decline"):
            try:
                self._gateway.pages.answer(page, request.form().get("value", "") if word == "answer" else None)
                await page.asker.told()
            except CallerError:
                return self._message(request, who, 409, *_GONE)
            return self._message(request, who, 200, "Answer sent", "You can close this page.")
        return self._render(
            "elicitation.html",
            request,
            who,
            here="",
            id=page.id,
            asks=_clear(page.asks),
            title=_clear(page.name),
            text=_clear(page.description),
            seconds=page.seconds_left,
            url=None,
            host=None,
            warnings=(),
        )

    async def _address(self, request: WebRequest, who: Approver, waiting: Waiting, word: str | None) -> Answer:
        if request.method == "POST" and word in ("answer", "decline"):
            try:
                action = "accept" if word == "answer" else "decline"
                self._gateway.activity.inbox.answer_elicitation(waiting, action, None)
                await waiting.kept()
            except CallerError:
                return self._message(request, who, 409, *_GONE)
            return self._message(request, who, 200, "Answer sent", "You can close this page.")
        try:
            loopback = self._gateway.plan.value.features.loopback_urls
            shown = check_peer_url(str(waiting.params.get("url")), allow_loopback=loopback)
        except UnsafeUrl as problem:
            return self._message(request, who, 403, "Unsafe link", problem.message)
        return self._render(
            "elicitation.html",
            request,
            who,
            here="",
            id=waiting.id,
            asks=f"Server {_clear(waiting.server)}",
            title="Open a link",
            text=_clear(waiting.message),
            seconds=max(0, (waiting.expires_ms - self._gateway.tasks.store.now_ms()) // 1000),
            url=shown.url,
            host=_clear(shown.host),
            warnings=shown.warnings,
        )

    def _message(self, request: WebRequest, who: Approver, status: int, title: str, text: str) -> Answer:
        return self._render("message.html", request, who, status=status, here="", title=title, text=text, reason="")


def _clear(text: Any) -> str:
    """Foreign text for one line: everything invisible or deceiving is an escape."""
    return show_json(str(text))[1:-1].replace('\\"', '"').replace("\\\\", "\\")
