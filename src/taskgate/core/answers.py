"""Answers to servers' questions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from taskgate.core import wire
from taskgate.core.completion_memory import looks_secret
from taskgate.core.errors import CallerError
from taskgate.core.questions import ELICIT, SAMPLE, Answer

# Is this an answer to that question? Forms are checked against the schema that the server asked with.
#
# Everything here is decided from values; nothing is fetched, so a schema that points elsewhere is refused, not
# followed.
#
# Roots as a form: how a caller that cannot be asked natively says which folders a server may work in.
#
# The tools and blocks of the facade know two kinds of question, and a third would break whoever reads them strictly. So
# a server that asks for roots is shown as one that asks for a form, and the filled-in form becomes the roots that it
# gets.
#
# How a question that waits in an inbox can end. The inbox moves by this table, and the diagrams are drawn from it.

ACTIONS: Final = ("accept", "decline", "cancel")
MAX_SCHEMA_BYTES: Final = 64 * 1024
_SIZE_LIMIT: Final = 1 << 20
"""Linear in time, whatever the pattern: a server's pattern must not be able to hang us."""


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is not fetched")


def elicitation_answer(params: Mapping[str, Any], action: str, content: Any) -> Answer:
    """The result to send to the server, or an error that says what is wrong with the answer."""
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
        raise CallerError("invalid_params", f"The content does not fit what was asked: {problem}. Nothing was sent.")
    return Answer(result=wire.encode({"action": "accept", "content": content}))


def form_problem(schema: Any, content: Mapping[str, Any]) -> str | None:
    """What is wrong with a filled-in form, or None. A schema that cannot be used asks for nothing."""
    if type(schema) is not dict or len(wire.encode(schema)) > MAX_SCHEMA_BYTES:
        return None
    # Loaded when first needed, because an idle gateway should not carry it.
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
    """A message as the protocol writes it; plain text is taken as a text block."""
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


def secret_fields(params: Mapping[str, Any]) -> list[str]:
    """Fields of a form that seem to ask for a secret. Forms must not: secrets belong on a page of the server's own."""
    schema = params.get("requestedSchema")
    properties = schema.get("properties") if type(schema) is dict else None
    if type(properties) is not dict:
        return []
    found = []
    for name, field in properties.items():
        title = field.get("title") if type(field) is dict else None
        secret = type(field) is dict and (field.get("format") == "password" or field.get("writeOnly") is True)
        if secret or looks_secret(name, "") or (type(title) is str and looks_secret(title, "")):
            found.append(name)
    return found


MAX_ROOTS: Final = 100
MAX_ADDRESS: Final = 4096
_SCHEME: Final = "file://"
"""Roots: "This MUST be a file:// URI in the current specification"."""
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "roots": {
            "type": "array",
            "title": "Folders or files, as file:// addresses",
            "items": {
                "anyOf": [
                    {"type": "string", "pattern": "^file://"},
                    {
                        "type": "object",
                        "properties": {"uri": {"type": "string", "pattern": "^file://"}, "name": {"type": "string"}},
                        "required": ["uri"],
                    },
                ]
            },
            "maxItems": MAX_ROOTS,
        }
    },
    "required": ["roots"],
}


def roots_form(server: str) -> dict[str, Any]:
    """The question in words and with a schema, as an elicitation would ask it."""
    message = f"{server} asks which folders it may work in (roots). An empty list says: none."
    return {"mode": "form", "message": message, "requestedSchema": _SCHEMA}


def roots_answer(action: str, content: Any, reason: str | None = None) -> Answer:
    """What the server gets: the roots, or the error that says that it will not be told."""
    if action != "accept":
        if content is not None:
            raise CallerError("invalid_params", f'"content" belongs to action accept only, not to {action}.')
        return Answer(error=wire.encode({"code": -1, "message": reason or "The caller does not tell its roots."}))
    roots = content.get("roots") if type(content) is dict and set(content) == {"roots"} else None
    if type(roots) is not list:
        raise CallerError(
            "invalid_params", 'To accept, give "content": {"roots": ["file:///a/folder"]}; an empty list says none.'
        )
    if len(roots) > MAX_ROOTS:
        raise CallerError("invalid_params", f"At most {MAX_ROOTS} roots can be given. Nothing was sent.")
    return Answer(result=wire.encode({"roots": [_root(root, number) for number, root in enumerate(roots)]}))


def _root(given: Any, number: int) -> dict[str, Any]:
    """One root as the protocol writes it; a bare address is enough."""
    root = {"uri": given} if type(given) is str else given
    fits = type(root) is dict and set(root) <= {"uri", "name"} and all(type(value) is str for value in root.values())
    address = root.get("uri", "") if fits else ""
    if not address.startswith(_SCHEME) or len(address) > MAX_ADDRESS:
        raise CallerError(
            "invalid_params",
            f"roots.{number}: a root is a file:// address, or an object with such a uri and a name. Nothing was sent.",
        )
    return dict(root)


class Ending(StrEnum):
    ACCEPTED = "accepted"
    COMPLETED = "completed"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"


class How(NamedTuple):
    cause: str
    told: str
    """What the server gets."""


_ENDS_FOR_ALL: Final = {
    Ending.EXPIRED: How("Timeout reached (default 10 min)", "Error sent to final server"),
    Ending.REJECTED: How("Final server disconnects, or the call ends", "Error (server gone)"),
}
ENDINGS: Final[Mapping[str, Mapping[Ending, How]]] = {
    ELICIT: {
        Ending.ACCEPTED: How("Client calls respond_to_elicitation(action: accept)", "Response sent to final server"),
        Ending.DECLINED: How("Client calls respond_to_elicitation(action: decline)", "Response sent to final server"),
        Ending.CANCELLED: How("Client calls respond_to_elicitation(action: cancel)", "Response sent to final server"),
        **_ENDS_FOR_ALL,
    },
    SAMPLE: {
        Ending.COMPLETED: How("Client calls respond_to_sampling", "Response sent to final server"),
        Ending.CANCELLED: How("Client calls cancel_sampling_request", "Error sent to final server"),
        **_ENDS_FOR_ALL,
    },
}
BY_ACTION: Final = {"accept": Ending.ACCEPTED, "decline": Ending.DECLINED, "cancel": Ending.CANCELLED}


def mermaid(method: str) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> pending : Final server sends {method}", ""]
    lines += [f"    pending --> {ending} : {how.cause}" for ending, how in ENDINGS[method].items()]
    lines += ["", *(f"    {ending} --> [*] : {how.told}" for ending, how in ENDINGS[method].items())]
    if method == ELICIT:
        lines += [
            "",
            "    note right of pending",
            "        Elicitation blocks the final server's operation",
            "        until client responds. The client sees it via",
            "        await_activity or get_elicitations.",
            "    end note",
        ]
    return "\n".join(lines)
