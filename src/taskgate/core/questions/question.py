"""Questions: requests of a server to its caller (elicitation, sampling, roots), and the answers to them.

Stateful servers send them as requests; stateless servers return them inside results. Here both are a `Question`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.meta import META, with_meta
from taskgate.core.wire import Raw

ELICIT: Final = "elicitation/create"
SAMPLE: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"
NO_STATE: Final = b"null"
"""Stored with the questions of a stateless server that sent no `requestState`: the call can still be continued."""
FORMS: Final = (ELICIT, ROOTS)
"""Methods that are shown and answered as an elicitation; the gateway provides the form for roots."""
QUESTION_METHODS: Final = frozenset({ELICIT, SAMPLE, ROOTS})


class Question(msgspec.Struct, frozen=True):
    """One question of a server. `params` are the server's own bytes."""

    method: str
    params: Raw | None
    server: str
    related_task: str | None = None
    key: str | None = None
    """The key of the question in the result of a stateless server."""
    restored: bool = False
    """It was asked before a restart of the gateway, and subscribers have been notified."""
    shown_as: str | None = None
    """The id under which the caller saw it before there was a task."""
    of_script: bool = False
    """A script asks. It occupies no connection and no process meanwhile, so it may wait for days."""
    own: bool = False
    """The gateway itself asks, about this server; a URL in it is a page of the gateway."""
    shared: bool = False
    """Several calls were open at the server: the question is assigned to one of them, without a claim that this one
    caused it.
    """

    def decoded(self) -> dict[str, Any]:
        value = wire.parse_strictly(bytes(self.params)) if self.params is not None else {}
        return value if type(value) is dict else {}

    @property
    def is_url(self) -> bool:
        """Whether it asks to open a URL and not to complete a form."""
        return self.method == ELICIT and self.decoded().get("mode") == "url"

    @property
    def is_list(self) -> bool:
        """Whether it is the vendor's list form, which requests pages of the gateway and cannot be completed as a form."""
        return self.method == ELICIT and type(self.decoded().get("elicitations")) is list


SCRIPTS: Final = "a script"
"""In place of the server in questions of scripts. No server has this name, because it contains a space."""


class Answer(msgspec.Struct, frozen=True):
    """A result or a JSON-RPC error object, as raw bytes. Exactly one is set."""

    result: bytes | None = None
    error: bytes | None = None


_NO_LIST_FORM: Final = "elicitation/create with a list of elicitations is not answered here."
DECLINED: Final = Answer(result=b'{"action":"decline"}')
CANCELLED: Final = Answer(result=b'{"action":"cancel"}')


def accepted(answer: Answer) -> bool:
    """Whether an elicitation was accepted."""
    result = wire.parse_strictly(answer.result) if answer.result is not None else None
    return type(result) is dict and result.get("action") == "accept"


def no_list_form() -> Answer:
    return Answer(error=wire.encode({"code": -32602, "message": _NO_LIST_FORM}))


def unanswered(method: str) -> Answer:
    """Return the answer on a timeout. Only an elicitation has a result for it."""
    if method == ELICIT:
        return CANCELLED
    return Answer(error=wire.encode({"code": -32603, "message": "The question was not answered in time."}))


_NOT_SUPPORTED: Final = {
    ELICIT: "Elicitation not supported",
    SAMPLE: "Sampling not supported",
    ROOTS: "List roots not supported",
}


def not_supported(method: str) -> Answer:
    """Return the refusal for a client that did not declare the required capability.

    Code and text are those of the Python SDK's client without a callback, so that servers behave as over a direct
    connection.
    """
    return Answer(error=wire.encode({"code": -32600, "message": _NOT_SUPPORTED.get(method, f"{method} not supported")}))


def bare_params(params: Raw | None, drop: tuple[str, ...] = ()) -> Raw:
    """Return params as they are embedded in a stateless result: without `_meta`, `task` and the given keys."""
    if params is None:
        return Raw(b"{}")
    members = wire.members_of(params)
    for key in (META, "task", *drop):
        members.pop(key, None)
    return Raw(wire.join(members))


def without_related_task(params: Raw, key: str) -> Raw:
    return Raw(wire.join(with_meta(wire.members_of(params), {}, drop=(key,))))
