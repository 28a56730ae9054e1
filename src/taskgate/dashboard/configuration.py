"""The port through which the console reads and reloads the configuration. The process that started the gateway implements it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from taskgate.gateway.plan import Plan


class ShownConfiguration(msgspec.Struct, frozen=True):
    """The path, the text with secrets redacted, and the problems found while loading."""

    path: str
    text: str
    problems: tuple[str, ...] = ()


class Configuration(Protocol):
    def shown(self) -> ShownConfiguration: ...

    def hidden(self, text: str) -> str:
        """The text without the secrets of the configuration in force."""
        ...

    def governance(self) -> str:
        """The section `governance` as YAML, with secrets redacted."""
        ...

    def plan_with(self, governance: str) -> Plan:
        """The plan with this text as the section `governance`. Raises ValueError for an invalid section."""
        ...

    async def reload(self) -> str | None:
        """Reload the file; the error text if the configuration was not replaced."""
        ...
