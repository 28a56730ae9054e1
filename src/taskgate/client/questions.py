"""Answer the questions of a server: elicitation, sampling and roots.

A question is passed to the callback given to `connect`. Without one, and with `answer_by_hand`, it is parked until the program
calls `answer`. Used for questions in requests, results and tasks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taskgate.client.errors import InputNeeded, Question, Refused, ServerError
from taskgate.client.options import Answerer, Options

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


def accept(content: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the answer of a user who accepts; `content` contains the values of a form."""
    return {"action": "accept"} if content is None else {"action": "accept", "content": dict(content)}


def decline() -> dict[str, Any]:
    """Return the answer of a user who declines."""
    return {"action": "decline"}


def cancel() -> dict[str, Any]:
    """Return the answer of a user who dismisses the question."""
    return {"action": "cancel"}


class Answering:
    """Answers questions with callbacks or by hand, within `question_timeout`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._parked: dict[str, tuple[Question, asyncio.Future[Mapping[str, Any]]]] = {}
        self._parked_listeners: list[Callable[[Question], None]] = []

    def on_parked(self, listener: Callable[[Question], None]) -> None:
        """Call a listener for each question that is parked from now on."""
        self._parked_listeners.append(listener)

    @property
    def by_hand(self) -> bool:
        """Whether a question without a callback may wait for `give`."""
        return self._options.answer_by_hand

    def can_answer(self, question: Question) -> bool:
        """Whether there is a callback (or a list of roots) for the question."""
        match question.method:
            case "elicitation/create":
                return self._options.elicitation is not None
            case "sampling/createMessage":
                return self._options.sampling is not None
            case "roots/list":
                return self._options.roots is not None
            case _:
                return False

    async def answer(self, question: Question) -> dict[str, Any]:
        """Return the result to send. Raises `Refused` if the user refuses, and `ServerError` for protocol errors."""
        if question.method == ROOTS:
            return {"roots": self._roots()}
        try:
            async with asyncio.timeout(self._options.question_timeout):
                given = await self._ask(question)
        except TimeoutError:
            if question.method == ELICITATION:
                return cancel()
            raise Refused("timeout of the question") from None
        return _finish(question, given)

    def give(self, key: str, answer: Mapping[str, Any]) -> bool:
        """Answer a parked question. Returns False if the key is unknown."""
        _, future = self._parked.get(key, (None, None))
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def parked(self, task_id: str | None = None) -> dict[str, Question]:
        """Return the parked questions, of one task or of all."""
        return {
            key: question
            for key, (question, _) in self._parked.items()
            if task_id is None or question.task_id == task_id
        }

    async def _ask(self, question: Question) -> Any:
        callback = self._callback(question)
        if callback is None:
            return await self._park(question)
        given = callback(question)
        return await given if inspect.isawaitable(given) else given

    async def _park(self, question: Question) -> Mapping[str, Any]:
        if not self._options.answer_by_hand:
            if question.method in (ELICITATION, SAMPLING):
                raise ServerError(-32602, f"this client did not declare {question.method.partition('/')[0]}")
            raise ServerError(-32601, f"this client does not support {question.method}")
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._parked[question.key] = (question, future)
        try:
            for listener in self._parked_listeners:
                listener(question)
            return await future
        finally:
            self._parked.pop(question.key, None)

    def _callback(self, question: Question) -> Answerer | None:
        if question.method == ELICITATION:
            return self._options.elicitation
        return self._options.sampling if question.method == SAMPLING else None

    def _roots(self) -> list[dict[str, Any]]:
        roots = self._options.roots
        if roots is None:
            raise ServerError(-32601, "this client has no roots")
        listed: Sequence[str | Mapping[str, Any]] = roots() if callable(roots) else roots
        return [{"uri": root} if isinstance(root, str) else dict(root) for root in listed]


async def answer_all(answering: Answering, questions: Mapping[str, Question]) -> dict[str, Any]:
    """Answer all questions of one round concurrently. Raises `InputNeeded` if there is no callback for one."""
    for question in questions.values():
        if not answering.can_answer(question) and not answering.by_hand:
            raise InputNeeded(questions, f"the server asks {question.method} and there is no callback for it")
    answers = await asyncio.gather(*(answering.answer(question) for question in questions.values()))
    return dict(zip(questions, answers, strict=True))


def _finish(question: Question, given: Any) -> dict[str, Any]:
    """Complete the result of a callback: a string becomes a message, and missing form fields get their defaults."""
    if question.method == SAMPLING and isinstance(given, str):
        return {
            "role": "assistant",
            "content": {"type": "text", "text": given},
            "model": "unknown",
            "stopReason": "endTurn",
        }
    if not isinstance(given, Mapping):
        raise TypeError(f"the callback for {question.method} returned {type(given).__name__}, not a mapping")
    answer = dict(given)
    if question.method == ELICITATION and answer.get("action") == "accept":
        if question.is_url:
            answer.pop("content", None)
        else:
            answer["content"] = _with_defaults(question.params.get("requestedSchema"), answer.get("content"))
    return answer


def _with_defaults(schema: Any, content: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    defaults = {
        name: prop["default"]
        for name, prop in (properties.items() if isinstance(properties, Mapping) else ())
        if isinstance(prop, Mapping) and "default" in prop
    }
    return defaults | (dict(content) if isinstance(content, Mapping) else {})
