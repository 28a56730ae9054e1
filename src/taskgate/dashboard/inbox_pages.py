"""The inbox: calls that wait for a decision and questions that wait for an answer, in one list, with real forms.

A card says what happens next. Approvals that are equal in everything that was agreed to (caller, tool, arguments, definition) can
be decided together, unless the tool may destroy something: then every one is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import PAGE_CHANNEL, Verdict
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.questions.question import SAMPLE
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.inbox import Inbox, Shown
from taskgate.dashboard.questions_api import KINDS, QuestionsApi, may_answer
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.schema_forms import BadForm, filled_in, form_of, form_values
from taskgate.dashboard.text_filters import clear, span
from taskgate.dashboard.web import PAGE, Answer, redirect
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.approval_store import HeldCall

FIRST_LOOK: Final = 1_200
"""A call with more characters of arguments is decided on its own page, where all of them are shown."""
CARDS: Final = 12
"""So many are on the page; the next ones come up as these are decided, and all of them are in the list of approvals."""
MOST_TOGETHER: Final = 100
_DONE: Final = {
    "approved": "Approved.",
    "denied": "Denied. The callers receive the reason.",
    "answered": "Answer sent.",
    "declined": "Declined.",
}


@dataclass(slots=True)
class Held:
    """Equal approvals, shown once."""

    first: HeldCall
    ids: list[str] = field(default_factory=list)


def sameness(held: HeldCall) -> tuple[str, ...]:
    """Two approvals with the same of these are about the same thing."""
    bound = held.approval.binding
    return (
        bound.principal,
        bound.scope,
        bound.server,
        bound.tool,
        bound.kind.value,
        bound.arguments_digest,
        bound.definition_digest,
        held.approval.workflow,
    )


class InboxPages:
    def __init__(self, gateway: ConsoleServices, frame: Frame, inbox: Inbox, questions: QuestionsApi) -> None:
        self._gateway = gateway
        self._frame = frame
        self._inbox = inbox
        self._questions = questions

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/inbox", Access.LOGIN, self._list),
            form_route("/inbox/together", Access.DECIDE, self._together),
            form_route("/inbox/questions/{id}", Access.LOGIN, self._answer),
        )

    async def _list(self, visit: Visit, note: str | None = None, status: int = 200) -> Answer:
        approvals, more = await self._approvals(visit)
        said = visit.asked("said")
        if note is None and said in _DONE:
            note = _DONE[said]
        return await self._frame.page(
            visit,
            "inbox",
            "inbox.html",
            status=status,
            note=note,
            note_kind="bad" if status >= 400 else "",
            approvals=approvals,
            more=more,
            questions=[self._question(visit, waiting) for waiting in self._questions.asked_of(visit.who)[:CARDS]],
        )

    async def _approvals(self, visit: Visit) -> tuple[list[dict[str, Any]], bool]:
        if not visit.who.may(Permission.SEE):
            return [], False
        page = await self._inbox.records.held_page(visit.who, limit=PAGE)
        groups: dict[tuple[str, ...], Held] = {}
        for held in page.held:
            key = sameness(held) if self.may_go_together(held) else (held.approval.id,)
            groups.setdefault(key, Held(held)).ids.append(held.approval.id)
        shown = list(groups.values())[:CARDS]
        return [await self._card(visit, group) for group in shown], len(groups) > CARDS or page.after is not None

    async def _card(self, visit: Visit, group: Held) -> dict[str, Any]:
        shown = await self._inbox.shown(group.first.approval.id, visit.who)
        assert shown is not None
        arguments = excerpt(shown.card.arguments, FIRST_LOOK)
        return {
            **{key: clear(value) if type(value) is str else value for key, value in shown.row.items()},
            "arguments": arguments.text,
            "left_out": arguments.left_out,
            "hidden": len(shown.card.hidden),
            "not_validated": shown.card.unvalidated,
            "deceptive": bool(shown.card.deceptive),
            "may_decide": shown.may_decide and visit.who.may(Permission.DECIDE),
            "next": self._next_step(shown),
            "ids": group.ids,
        }

    def _next_step(self, shown: Shown) -> str:
        """What a yes leads to."""
        task_id = shown.held.task_id
        if task_id is None or shown.starts_on_approval:
            return (
                "Runs immediately after approval; the caller is waiting."
                if task_id is None
                else "Runs immediately after approval."
            )
        asked = self._gateway.tasks.methods.seconds_since_poll(task_id)
        since = f"last polled {span(asked)} ago" if asked is not None else "not polled yet"
        return f"Runs when the caller polls the task ({since})."

    def may_go_together(self, held: HeldCall) -> bool:
        """Only a tool that says of itself that it destroys nothing; silence is no such word."""
        bound = held.approval.binding
        offer = self._gateway.catalogs.offer(bound.server)
        entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
        hints = next((entry.annotations for entry in entries if entry.name == bound.tool), {})
        return hints.get("readOnlyHint") is True or hints.get("destructiveHint") is False

    def _question(self, visit: Visit, waiting: Waiting) -> dict[str, Any]:
        asked = waiting.form
        return {
            "id": waiting.id,
            "kind": KINDS[waiting.method],
            "server": clear(waiting.server),
            "caller": clear(waiting.caller),
            "message": clear(waiting.message)[:FIRST_LOOK],
            "task_id": waiting.task_id,
            "asked": waiting.asked_ms,
            "expires": waiting.expires_ms,
            "warning": waiting.shown().get("warning"),
            "page": waiting.page is not None,
            "form": form_of(asked.get("requestedSchema")),
            "sampling": excerpt(show_json(dict(asked)), FIRST_LOOK).text if waiting.method == SAMPLE else None,
            "may_answer": may_answer(visit.who, waiting),
        }

    async def _answer(self, visit: Visit) -> Answer:
        waiting = self._questions.find(visit.who, visit.values["id"])
        if waiting is None:
            return await self._list(
                visit, "This question was already answered, has expired, or belongs to another user.", 409
            )
        sent = form_values(visit)
        action = sent.get("action", ["accept"])[0]
        said: dict[str, Any] = {"action": action if action in ("accept", "decline", "cancel") else "cancel"}
        try:
            if said["action"] == "accept" and waiting.method == SAMPLE:
                said["content"] = {"type": "text", "text": sent.get("text", [""])[0]}
            elif said["action"] == "accept" and waiting.page is None:
                said["content"] = filled_in(waiting.form.get("requestedSchema"), sent)
            await self._questions.settle(waiting, said)
        except BadForm as problem:
            return await self._list(visit, clear(problem), 400)
        except CallerError as problem:
            return await self._list(visit, clear(problem.message), 400)
        return redirect(f"/inbox?said={'answered' if said['action'] == 'accept' else 'declined'}")

    async def _together(self, visit: Visit) -> Answer:
        """The same word for approvals that are equal; what is not equal to the first is left alone."""
        form = visit.request.form()
        ids = form.get("ids", "").split(",")[:MOST_TOGETHER]
        verdict = Verdict.APPROVE if form.get("verdict") == "approve" else Verdict.DENY
        first = await self._inbox.records.held(visit.who, ids[0])
        if first is None or not self.may_go_together(first):
            return await self._list(visit, "These calls cannot be decided together. Review each one.", 409)
        refused = 0
        for approval_id in ids:
            held = await self._inbox.records.held(visit.who, approval_id)
            if held is None or sameness(held) != sameness(first):
                refused += 1
                continue
            ruling = await self._inbox.decide(
                visit.who,
                approval_id,
                verdict,
                reason=form.get("reason", "").strip(),
                channel=PAGE_CHANNEL,
                digest=form.get("digest", ""),
            )
            refused += bool(ruling.refusal)
        if refused:
            return await self._list(
                visit, f"{len(ids) - refused} decided; {refused} were already decided or have changed.", 409
            )
        return redirect(f"/inbox?said={'approved' if verdict is Verdict.APPROVE else 'denied'}")
