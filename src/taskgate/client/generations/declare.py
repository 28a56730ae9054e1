"""What this client says it can do, in each generation's words.

A capability is declared exactly when something answers for it: a callback, a list of roots, or the promise to
answer by hand.
"""

from __future__ import annotations

from typing import Any

from taskgate.client.options import Options

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"


def stateful_capabilities(options: Options) -> dict[str, Any]:
    """For `initialize`. `tasks.requests.tools` goes beyond MCP's own shape (a client receives no tool calls) but some
    servers look for it, and every known server tolerates it."""
    declared = _shared(options)
    if "roots" in declared:
        declared["roots"] = {"listChanged": True}
    if options.tasks:
        requests: dict[str, Any] = {"tools": {"call": {}}}
        if "sampling" in declared:
            requests["sampling"] = {"createMessage": {}}
        if "elicitation" in declared:
            requests["elicitation"] = {"create": {}}
        declared["tasks"] = {"list": {}, "cancel": {}, "requests": requests}
    return declared


def stateless_capabilities(options: Options) -> dict[str, Any]:
    """For the envelope of each request."""
    declared = _shared(options)
    if options.tasks:
        declared["extensions"] = {TASKS_EXTENSION: {}}
    return declared


def _shared(options: Options) -> dict[str, Any]:
    declared: dict[str, Any] = {}
    if options.elicitation is not None or options.answer_by_hand:
        declared["elicitation"] = {"form": {}, "url": {}}
    if options.sampling is not None:
        declared["sampling"] = {"tools": {}} if options.sampling_tools else {}
    if options.roots is not None:
        declared["roots"] = {}
    return declared
