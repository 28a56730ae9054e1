"""Questions: what a server asks of the one who called it (elicitation, sampling, roots), and the answers.

Stateful servers send them as requests, stateless servers return them inside results; here they are one thing. Whether a caller
can be asked natively is decided from the capabilities it declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.wire import META, Raw, with_meta

ELICIT: Final = "elicitation/create"
SAMPLE: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"
NO_STATE: Final = b"null"
"""Kept with the questions of a stateless server that gave us nothing to keep: the call can be continued all the same."""
QUESTION_METHODS: Final = frozenset({ELICIT, SAMPLE, ROOTS})


@dataclass(frozen=True, slots=True)
class Question:
    """One question from one server. `params` are the server's own bytes."""

    method: str
    params: Raw | None
    server: str
    related_task: str | None = None
    key: str | None = None
    """The name under which a stateless server asked it."""
    restored: bool = False
    """It was asked before a restart of ours, and whoever is concerned has been told."""
    shown_as: str | None = None
    """The id under which its caller saw it before there was a task."""
    own: bool = False
    """The gateway itself asks, about this server; an address in it is a page of the gateway."""
    shared: bool = False
    """Several calls were open where it came from: it is put to one of them, and nothing claims that this one caused it."""

    def decoded(self) -> dict[str, Any]:
        value = wire.parse_strictly(bytes(self.params)) if self.params is not None else {}
        return value if type(value) is dict else {}

    @property
    def is_url(self) -> bool:
        """Whether somebody is to open an address, rather than to fill in a form."""
        return self.method == ELICIT and self.decoded().get("mode") == "url"

    @property
    def is_list(self) -> bool:
        """Whether it is the vendor's list form, which asks for pages of ours. It is no form that anybody could fill in."""
        return self.method == ELICIT and type(self.decoded().get("elicitations")) is list


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, or a JSON-RPC error object, as raw bytes. Exactly one is set."""

    result: bytes | None = None
    error: bytes | None = None


_NO_LIST_FORM: Final = "elicitation/create with a list of elicitations is not answered here."
DECLINED: Final = Answer(result=b'{"action":"decline"}')
CANCELLED: Final = Answer(result=b'{"action":"cancel"}')


def accepted(answer: Answer) -> bool:
    """Whether an elicitation got a yes."""
    said = wire.parse_strictly(answer.result) if answer.result is not None else None
    return type(said) is dict and said.get("action") == "accept"


def no_list_form() -> Answer:
    return Answer(error=wire.encode({"code": -32602, "message": _NO_LIST_FORM}))


def unanswered(method: str) -> Answer:
    """Nobody answered in time. Only an elicitation has a result that says so."""
    if method == ELICIT:
        return CANCELLED
    return Answer(error=wire.encode({"code": -32603, "message": "The question was not answered in time."}))


_NOT_SUPPORTED: Final = {
    ELICIT: "Elicitation not supported",
    SAMPLE: "Sampling not supported",
    ROOTS: "List roots not supported",
}


def not_supported(method: str) -> Answer:
    """Refuse a request in place of a client that did not declare the capability for it.

    Servers get the code and the text that the Python SDK's client returns without a callback, so that what they do about it is the
    same as over a direct connection.
    """
    return Answer(error=wire.encode({"code": -32600, "message": _NOT_SUPPORTED.get(method, f"{method} not supported")}))


def can_answer(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> bool:
    """Did the caller declare what this question needs?"""
    if method == ROOTS:
        return isinstance(capabilities.get("roots"), Mapping)
    if method == SAMPLE:
        sampling = capabilities.get("sampling")
        if not isinstance(sampling, Mapping):
            return False
        return "tools" not in params or "tools" in sampling
    elicitation = capabilities.get("elicitation")
    if not isinstance(elicitation, Mapping):
        return False
    if params.get("mode", "form") == "url":
        return "url" in elicitation
    return "form" in elicitation or not elicitation


def with_inbox(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """What may be declared for a caller that has an inbox: forms, pages, plain sampling and roots, on top of its own."""
    elicitation, sampling, roots = (capabilities.get(name) for name in ("elicitation", "sampling", "roots"))
    forms = isinstance(elicitation, Mapping) and "form" in elicitation and "url" in elicitation
    if forms and sampling is not None and isinstance(roots, Mapping):
        return capabilities
    own = elicitation if isinstance(elicitation, Mapping) else {}
    return {
        **capabilities,
        "elicitation": {**own, "form": own.get("form", {}), "url": own.get("url", {})},
        "sampling": sampling if isinstance(sampling, Mapping) else {},
        "roots": roots if isinstance(roots, Mapping) else {},
    }


def with_models(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """What may be declared where a model answers for a caller that cannot: sampling, with tools."""
    if isinstance(capabilities.get("sampling"), Mapping) and "tools" in capabilities["sampling"]:
        return capabilities
    sampling = capabilities.get("sampling")
    return {**capabilities, "sampling": {**(sampling if isinstance(sampling, Mapping) else {}), "tools": {}}}


def bare_params(params: Raw | None, drop: tuple[str, ...] = ()) -> Raw:
    """Params as they travel inside a stateless result: without `_meta`, `task` and whatever else is named."""
    if params is None:
        return Raw(b"{}")
    members = wire.members_of(params)
    for key in (META, "task", *drop):
        members.pop(key, None)
    return Raw(wire.join(members))


def without_related_task(params: Raw, key: str) -> Raw:
    return Raw(wire.join(with_meta(wire.members_of(params), {}, drop=(key,))))


# Older servers' shapes of `sampling/createMessage`, turned into those of the specification before anybody is asked.
#
# A client that follows the specification refuses a `system` role, a bare string as content, a resource among the
# content and a request without `maxTokens`. What is in order already passes unchanged, byte for byte.

DEFAULT_MAX_TOKENS: Final = 1024


def spec_shapes(params: Raw | None) -> Raw | None:
    given = wire.parse_strictly(bytes(params)) if params is not None else None
    if params is None or type(given) is not dict or type(given.get("messages")) is not list:
        return params
    changed: dict[str, Any] = {}
    messages = [_message(message) for message in given["messages"]]
    said = [_text_of(message) for message in messages if _is_system(message)]
    kept = [message for message in messages if not _is_system(message)]
    if kept != given["messages"]:
        changed["messages"] = kept
    if any(said):
        first = given.get("systemPrompt")
        changed["systemPrompt"] = "\n\n".join([*([first] if type(first) is str and first else []), *filter(None, said)])
    if given.get("maxTokens") is None:
        changed["maxTokens"] = DEFAULT_MAX_TOKENS
    members = wire.members_of(params)
    if type(given.get("includeContext")) is bool:
        # A yes or no: whose context is meant is not said, and none is what a caller may be asked for without a word.
        del members["includeContext"]
    elif not changed:
        return params
    return Raw(wire.join({**members, **{key: wire.raw(value) for key, value in changed.items()}}))


def _is_system(message: Any) -> bool:
    return type(message) is dict and message.get("role") == "system"


def _message(message: Any) -> Any:
    if type(message) is not dict or "content" not in message:
        return message
    content = message["content"]
    shaped = [_block(block) for block in content] if type(content) is list else _block(content)
    return message if shaped == content else {**message, "content": shaped}


def _block(block: Any) -> Any:
    if type(block) is str:
        return {"type": "text", "text": block}
    if type(block) is not dict or block.get("type") != "resource":
        return block
    inner = block.get("resource")
    holder = inner if type(inner) is dict else block
    text = holder.get("text")
    return {"type": "text", "text": text} if type(text) is str else block


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    blocks = content if type(content) is list else [content]
    texts = [block.get("text") for block in blocks if type(block) is dict]
    return "\n".join(text for text in texts if type(text) is str)
