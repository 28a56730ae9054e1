"""Questions: requests of a server to its caller (elicitation, sampling, roots), and the answers to them.

Stateful servers send them as requests; stateless servers return them inside results. Here both are a `Question`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.meta import META, with_meta
from taskgate.core.wire import Raw

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
