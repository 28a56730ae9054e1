"""The client capabilities and identity that are sent to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core.catalog.apps import APP_MIME, UI_EXTENSION
from taskgate.core.questions.capabilities import with_inbox, with_models


class ClientProfile(msgspec.Struct, frozen=True):
    """What a server gets about the caller: capabilities, client info, log level."""

    capabilities: Mapping[str, Any]
    client_info: Mapping[str, Any] | None = None
    log_level: str | None = None
    inbox: bool = False
    """Questions that the caller cannot answer natively may wait in its inbox, so servers may ask them."""
    logs_unasked: bool = False
    """Stateful callers get log messages before they set a level; stateless ones only if the request requires them."""

    def towards(self, keeps_questions: bool, uses_models: bool = False, *, shared: bool = False) -> ClientProfile:
        """Return the profile as declared to a server: with the capabilities of the inbox and of models, where they apply. On a
        shared link, the capabilities of the first caller must not determine which questions the others get.
        """
        capabilities = LISTING_PROFILE.capabilities if shared else self.capabilities
        if self.inbox and keeps_questions:
            capabilities = with_inbox(capabilities)
        if uses_models:
            capabilities = with_models(capabilities)
        return self if capabilities is self.capabilities else msgspec.structs.replace(self, capabilities=capabilities)


LISTING_PROFILE: Final = ClientProfile(
    {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {"tools": {}, "context": {}},
        "roots": {"listChanged": True},
        "extensions": {UI_EXTENSION: {"mimeTypes": [APP_MIME]}},
    }
)
"""Declared on links that are not tied to a single caller: shared ones, and the one that fetches lists. Servers omit tools that need
undeclared capabilities; the gateway determines for each question which caller can answer it."""
