"""Check an answer to a question and build the result for the server.

A form is checked against the schema of the question. Nothing is fetched: a schema that refers to another document is
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.questions.question import Answer

ACTIONS: Final = ("accept", "decline", "cancel")
MAX_SCHEMA_BYTES: Final = 64 * 1024
_SIZE_LIMIT: Final = 1 << 20
"""Limits regular expressions to linear time: a server's pattern must not block the gateway."""


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is not fetched")


def elicitation_answer(params: Mapping[str, Any], action: str, content: Any) -> Answer:
    """Return the result for the server. Raises CallerError if the answer is invalid."""
    if action != "accept":
        if content is not None:
            raise CallerError("invalid_params", f'"content" belongs to action accept only, not to {action}.')
        return Answer(result=wire.encode({"action": action}))
    if params.get("mode", "form") == "url":
        if content is not None:
            raise CallerError(
                "invalid_params", 'This question is a page to open, so accept it without "content" once it was opened.'
            )
        return Answer(result=b'{"action":"accept"}')
    if type(content) is not dict:
        raise CallerError("invalid_params", 'To accept, give "content": an object with the fields that were asked for.')
    problem = form_problem(params.get("requestedSchema"), content)
    if problem is not None:
        raise CallerError(
            "invalid_params", f"The content does not match the requested schema: {problem}. Nothing was sent."
        )
    return Answer(result=wire.encode({"action": "accept", "content": content}))


def form_problem(schema: Any, content: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a completed form, or None. An unusable schema requires nothing."""
    if type(schema) is not dict or len(wire.encode(schema)) > MAX_SCHEMA_BYTES:
        return None
    # Imported on first use, to keep an idle gateway small.
    import jsonschema_rs

    patterns = jsonschema_rs.RegexOptions(size_limit=_SIZE_LIMIT, dfa_size_limit=_SIZE_LIMIT)
    try:
        validator = jsonschema_rs.Draft202012Validator(
            schema, pattern_options=patterns, retriever=_fetch_nothing, validate_formats=True
        )
    except (ValueError, TypeError):
        return None
    for error in validator.iter_errors(content):
        where = ".".join(str(step) for step in error.instance_path)
        return f"{where}: {error.message}"[:500] if where else error.message[:500]
    return None


def sampling_answer(role: str, content: Any, model: str, stop_reason: str | None) -> Answer:
    """Build a message of the protocol; plain text becomes a text block."""
    if type(content) is str:
        content = {"type": "text", "text": content}
    blocks = content if type(content) is list else [content]
    if not blocks or not all(type(block) is dict and type(block.get("type")) is str for block in blocks):
        raise CallerError(
            "invalid_params", '"content" must be text, or a block such as {"type": "text", "text": "..."}.'
        )
    result: dict[str, Any] = {"role": role, "content": content, "model": model}
    if stop_reason is not None:
        result["stopReason"] = stop_reason
    return Answer(result=wire.encode(result))
