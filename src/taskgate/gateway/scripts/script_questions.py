"""The questions that a script asks its caller with `ask`. Each waits on a stream of the caller or in the caller's inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.governance.card import show_name
from taskgate.core.questions.question import ELICIT, SCRIPTS, Answer, Question
from taskgate.core.scripts.record import OpenCall
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.ports.script_interpreter import CallOutcome, Raised, Returned

_TEXT: Final = {"type": "string", "title": "Answer"}


class ScriptQuestions:
    """The questions of one run of a script. `answered` is called when one has an answer or will get none."""

    def __init__(self, questions: TaskQuestions, script: Task, answered: Callable[[], object]) -> None:
        self._questions = questions
        self._script = script
        self._answered = answered
        self._asking: dict[int, asyncio.Task[Answer | None]] = {}
        """By the number of the call."""

    def outcome(self, call: OpenCall) -> CallOutcome | None:
        """Ask the caller, or return what it answered; None while the question is open."""
        asking = self._asking.get(call.number)
        if asking is None:
            shown = msgspec.json.decode(call.arguments)
            message = self._origin(call.line) + shown["message"]
            params = {"mode": "form", "message": message, "requestedSchema": _form(shown["schema"])}
            question = Question(ELICIT, Raw(wire.encode(params)), SCRIPTS, key=call.question, of_script=True)
            asking = asyncio.get_running_loop().create_task(
                self._questions.ask_once(self._script, call.question, question)
            )
            self._asking[call.number] = asking
            asking.add_done_callback(lambda _: self._answered())
        return _outcome(call, asking.result()) if asking.done() else None

    def _origin(self, line: int) -> str:
        """Who asks: the text of a script could otherwise be taken for one of the gateway."""
        where = f"line {line} of script {self._script.id}" if line else f"script {self._script.id}"
        return f"Asked by {where}, which {show_name(self._script.principal)} started:\n\n"

    def close(self) -> None:
        """Stop waiting. Open questions stay with the task of the script."""
        for asking in self._asking.values():
            asking.cancel()


def _is_object(schema: Mapping[str, Any] | None) -> bool:
    return schema is not None and (schema.get("type") == "object" or "properties" in schema)


def _form(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The schema of a form. Elicitations ask for objects, so any other schema becomes their only field."""
    if schema is not None and _is_object(schema):
        return schema
    return {"type": "object", "properties": {"answer": schema or _TEXT}, "required": ["answer"]}


def _outcome(call: OpenCall, answer: Answer | None) -> CallOutcome:
    """What `ask` returns: the content of the form, or its only field if the schema is not one of an object. Otherwise it raises."""
    result = wire.parse_strictly(answer.result) if answer is not None and answer.result is not None else {}
    action, content = result.get("action"), result.get("content")
    if action == "accept" and type(content) is dict:
        whole = _is_object(msgspec.json.decode(call.arguments)["schema"])
        return Returned(wire.encode(content if whole else content.get("answer")))
    if action == "decline":
        return Raised("input_refused", "The question was declined.", "no")
    return Raised("input_missing", "The question was not answered: it was cancelled, expired or not supported.", "no")
