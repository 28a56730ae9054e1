"""The inbox: calls that wait for a decision and questions that wait for an answer, in one list, with real forms.

A card says what happens next. Approvals that are equal in everything that was agreed to (caller, tool, arguments, definition) can
be decided together, unless the tool may destroy something: then every one is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import PAGE_CHANNEL, Verdict
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.questions.question import SAMPLE
from taskgate.core.wire import MalformedJson
from taskgate.dashboard.frame import Frame, clear, span
from taskgate.dashboard.questions_api import KINDS, QuestionsApi, may_answer
from taskgate.dashboard.records import Inbox, Shown
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.web import MOST_FORM_FIELDS, PAGE, Answer, read_json, redirect
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.approval_store import HeldCall

# Forms for people, made from JSON schemas: which fields to show, and what a filled-in form means.
#
# A schema comes from a server, so nothing in it is trusted: what cannot be shown as a simple field is a field for JSON,
# and only so many fields are shown; whoever needs more writes the whole object as JSON.

MOST_FIELDS: Final = 100
MOST_OPTIONS: Final = 200
LONGEST_TEXT: Final = 2_000
WHOLE: Final = "whole-json"
PREFIX: Final = "f."
_KINDS: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    kind: str
    """text, integer, number, boolean, choice, several or json"""
    required: bool
    help: str = ""
    value: str = ""
    options: tuple[tuple[str, str], ...] = field(default=())

    @property
    def form_name(self) -> str:
        return PREFIX + self.name


@dataclass(frozen=True, slots=True)
class Form:
    fields: tuple[Field, ...]
    left_out: int
    """So many fields are not shown."""


class BadForm(ValueError):
    """What somebody filled in cannot be read as what was asked for."""


def form_of(schema: Any) -> Form:
    properties = schema.get("properties") if type(schema) is dict else None
    if type(properties) is not dict:
        return Form((), 0)
    required = schema.get("required")
    needed = {name for name in required if type(name) is str} if type(required) is list else set()
    shown = list(properties.items())[:MOST_FIELDS]
    return Form(tuple(_field(name, about, name in needed) for name, about in shown), len(properties) - len(shown))


def _field(name: str, about: Any, required: bool) -> Field:
    about = about if type(about) is dict else {}
    title, text, default = about.get("title"), about.get("description"), about.get("default")
    options = _options(about)
    kind = _KINDS.get(str(about.get("type")), "json")
    if options:
        kind = "several" if about.get("type") == "array" else "choice"
    value = ""
    if default is not None:
        value = default if type(default) is str else msgspec.json.encode(default).decode()
    return Field(
        name,
        title[:200] if type(title) is str and title else name,
        kind,
        required,
        text[:LONGEST_TEXT] if type(text) is str else "",
        value[:LONGEST_TEXT],
        options,
    )


def _options(about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(value, label) of each thing that can be chosen: plain or titled, one or several."""
    items = about.get("items")
    source = items if about.get("type") == "array" and type(items) is dict else about
    if about.get("type") == "array" and source is about:
        return ()
    titled = source.get("oneOf") or source.get("anyOf")
    if type(titled) is list and titled and all(type(o) is dict and type(o.get("const")) is str for o in titled):
        return tuple((o["const"], str(o.get("title", o["const"]))[:200]) for o in titled[:MOST_OPTIONS])
    plain, names = source.get("enum"), source.get("enumNames")
    if type(plain) is not list or not all(type(one) is str for one in plain):
        return ()
    labels = names if type(names) is list and len(names) == len(plain) else plain
    return tuple((one, str(label)[:200]) for one, label in zip(plain, labels, strict=True))[:MOST_OPTIONS]


def filled_in(schema: Any, sent: Mapping[str, list[str]]) -> dict[str, Any]:
    """The object that a form stands for. Empty fields that nobody needs are left out. Raises BadForm."""
    whole = (sent.get(WHOLE) or [""])[0].strip()
    if whole:
        return _object(whole)
    found: dict[str, Any] = {}
    for one in form_of(schema).fields:
        given = sent.get(one.form_name, [])
        if one.kind == "boolean":
            if one.required or (given and given[0] != ""):
                found[one.name] = bool(given) and given[0] == "true"
        elif one.kind == "several":
            if given or one.required:
                found[one.name] = given
        elif given and (given[0] != "" or (one.required and one.kind == "text")):
            found[one.name] = _value(one, given[0])
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text.encode("utf-8", "replace"))
    except MalformedJson as problem:
        raise BadForm(problem.message) from None
    if type(value) is not dict:
        raise BadForm("Enter a JSON object.")
    return value


def _value(one: Field, text: str) -> Any:
    if one.kind == "choice" and text not in (value for value, _ in one.options):
        raise BadForm(f"{one.label} must be one of the listed options.")
    try:
        match one.kind:
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "json":
                return read_json(text.encode("utf-8", "replace"))
            case _:
                return text
    except (ValueError, MalformedJson):
        kind = {"integer": "a whole number", "number": "a number"}.get(one.kind, "JSON")
        raise BadForm(f"{one.label} must be {kind}.") from None


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
        if task_id is None or shown.starts_on_yes:
            return (
                "Runs immediately after approval; the caller is waiting."
                if task_id is None
                else "Runs immediately after approval."
            )
        asked = self._gateway.tasks.methods.polled_ago_s(task_id)
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


def form_values(visit: Visit) -> dict[str, list[str]]:
    """Every value of every field, for forms where several can be chosen."""
    try:
        text = visit.request.body.decode("utf-8", "replace")
        return parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FORM_FIELDS)
    except ValueError:
        return {}
