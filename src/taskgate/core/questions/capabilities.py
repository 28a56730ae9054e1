"""Which questions a caller can answer, by the capabilities that it declared, and what may be declared on its behalf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.core.questions.question import ROOTS, SAMPLE


def can_answer(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> bool:
    """Whether the caller declared the capability that this question needs."""
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
    """Return the capabilities to declare for a caller with an inbox: forms, URLs, plain sampling and roots, in addition
    to its own.
    """
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
    """Return the capabilities to declare if a model answers for the caller: sampling, with tools."""
    if isinstance(capabilities.get("sampling"), Mapping) and "tools" in capabilities["sampling"]:
        return capabilities
    sampling = capabilities.get("sampling")
    return {**capabilities, "sampling": {**(sampling if isinstance(sampling, Mapping) else {}), "tools": {}}}
