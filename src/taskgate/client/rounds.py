"""Requests that a server answers with questions before it returns a result.

A stateless server returns `input_required` and expects the same request again with the answers. A stateful server may
return -32042 and expects it again after the user opened a URL. Used for tools/call, prompts/get and resources/read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from taskgate import clock
from taskgate.client.conversation import Conversation
from taskgate.client.errors import ClientError, DeadlineExceeded, InputNeeded, InvalidReply, Question, ServerError
from taskgate.client.options import Generation
from taskgate.client.questions import ELICITATION, answer_all
from taskgate.client.results import Tool, read_questions

URL_ELICITATION_REQUIRED = -32042
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


async def converse(
    conversation: Conversation, method: str, params: Mapping[str, Any], timeout: float, tool: Tool | None = None
) -> dict[str, Any]:
    """Send the request, answer the server's questions, and return the final result. Raises ClientError."""
    if conversation.generation is Generation.STATEFUL:
        return await _until_urls_are_done(conversation, method, params, timeout)
    deadline = clock.monotonic() + timeout
    extra: dict[str, Any] = {}
    for number in range(conversation.options.max_rounds + 1):
        remaining = _remaining(deadline)
        try:
            result = await conversation.request(method, {**params, **extra}, timeout=remaining, tool=tool)
        except ClientError as error:
            if number:
                error.call_was_sent_before()
            raise
        kind = result.get("resultType", "complete")
        if kind != "input_required":
            return _checked(conversation, method, kind, result)
        extra = await _next_round(conversation, result, number, deadline)
    raise InvalidReply(f"the server asked for input more than {conversation.options.max_rounds} times")


async def _next_round(
    conversation: Conversation, result: Mapping[str, Any], number: int, deadline: float
) -> dict[str, Any]:
    """Return what the next request adds: the answers, and the server's unchanged `requestState`."""
    requests, state = result.get("inputRequests"), result.get("requestState")
    if not requests and state is None:
        raise InvalidReply("the server requires input, but sent neither inputRequests nor requestState")
    extra: dict[str, Any] = {} if state is None else {"requestState": state}
    if isinstance(requests, dict) and requests:
        questions = read_questions(requests)
        try:
            async with asyncio.timeout(_remaining(deadline)):
                extra["inputResponses"] = await answer_all(conversation.answering, questions)
        except TimeoutError as error:
            raise DeadlineExceeded("the server's questions were not answered in time") from error
        except ServerError as error:
            raise InputNeeded(questions, str(error)) from error
    else:
        await clock.sleep(min(FIRST_PAUSE * 2**number, LONGEST_PAUSE, _remaining(deadline)))
    return extra


def _checked(conversation: Conversation, method: str, kind: Any, result: dict[str, Any]) -> dict[str, Any]:
    if kind == "complete" or (kind == "task" and method == "tools/call" and conversation.options.tasks):
        return result
    if kind == "task":
        raise InvalidReply("the server created a task, but this client did not declare tasks")
    raise InvalidReply(f"the result has the unknown type {kind!r}")


async def _until_urls_are_done(
    conversation: Conversation, method: str, params: Mapping[str, Any], timeout: float
) -> dict[str, Any]:
    deadline = clock.monotonic() + timeout
    for number in range(conversation.options.max_rounds):
        try:
            return await conversation.request(method, dict(params), timeout=_remaining(deadline))
        except ServerError as error:
            questions = _url_questions(error)
            if not questions or conversation.options.elicitation is None:
                raise
            if not await _urls_opened(conversation, questions, deadline):
                raise
        except ClientError as error:
            if number:
                error.call_was_sent_before()
            raise
    raise InvalidReply("the server keeps requesting URL elicitations")


def _url_questions(error: ServerError) -> dict[str, Question]:
    listed = error.data.get("elicitations") if isinstance(error.data, dict) else None
    if error.code != URL_ELICITATION_REQUIRED or not isinstance(listed, list):
        return {}
    entries = [entry for entry in listed if isinstance(entry, dict)]
    return {
        str(entry.get("elicitationId")): Question(
            str(entry.get("elicitationId")), ELICITATION, {**entry, "mode": "url"}
        )
        for entry in entries
    }


async def _urls_opened(conversation: Conversation, questions: Mapping[str, Question], deadline: float) -> bool:
    """Ask the user to open each URL, and wait until the server reports completion, for at most half the remaining time."""
    outstanding = set(questions)
    done = asyncio.Event()

    def completed(params: Mapping[str, Any]) -> None:
        outstanding.discard(str(params.get("elicitationId")))
        if not outstanding:
            done.set()

    stop = conversation.on("notifications/elicitation/complete", completed)
    try:
        answers = await answer_all(conversation.answering, questions)
        if any(answer.get("action") != "accept" for answer in answers.values()):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_remaining(deadline) / 2):
                await done.wait()
        return True
    finally:
        stop()


def _remaining(deadline: float) -> float:
    remaining = deadline - clock.monotonic()
    if remaining <= 0:
        raise DeadlineExceeded("timeout of the call")
    return remaining
