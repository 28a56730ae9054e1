"""Roots as a form, for callers that cannot be asked for roots natively.

The gateway's own tools have two kinds of question, and a third would break clients that parse them strictly. A request
for roots is therefore presented as an elicitation form, and the completed form becomes the roots that the server
receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.questions.question import Answer

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
    """Build the question as an elicitation with a message and a schema."""
    message = f"{server} requests the folders it may work in (roots). An empty list means none."
    return {"mode": "form", "message": message, "requestedSchema": _SCHEMA}


def roots_answer(action: str, content: Any, reason: str | None = None) -> Answer:
    """Build the server's answer: the roots, or an error if the caller declined."""
    if action != "accept":
        if content is not None:
            raise CallerError("invalid_params", f'"content" belongs to action accept only, not to {action}.')
        return Answer(error=wire.encode({"code": -1, "message": reason or "The caller declined to provide roots."}))
    roots = content.get("roots") if type(content) is dict and set(content) == {"roots"} else None
    if type(roots) is not list:
        raise CallerError(
            "invalid_params", 'To accept, give "content": {"roots": ["file:///a/folder"]}; an empty list means none.'
        )
    if len(roots) > MAX_ROOTS:
        raise CallerError("invalid_params", f"At most {MAX_ROOTS} roots can be given. Nothing was sent.")
    return Answer(result=wire.encode({"roots": [_root(root, number) for number, root in enumerate(roots)]}))


def _root(given: Any, number: int) -> dict[str, Any]:
    """Build one root; a plain URI is enough."""
    root = {"uri": given} if type(given) is str else given
    fits = type(root) is dict and set(root) <= {"uri", "name"} and all(type(value) is str for value in root.values())
    address = root.get("uri", "") if fits else ""
    if not address.startswith(_SCHEME) or len(address) > MAX_ADDRESS:
        raise CallerError(
            "invalid_params",
            f"roots.{number}: a root is a file:// URI, or an object with such a uri and a name. Nothing was sent.",
        )
    return dict(root)
