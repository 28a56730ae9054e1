"""Reads and accepts definitions that differ from their pins, for the console. Implemented by the pins of the gateway."""

from __future__ import annotations

from typing import Protocol

from taskgate.core.risk import Risk
from taskgate.replies.definitions import AcceptedDefinition, ChangedDefinition


class PinnedDefinitions(Protocol):
    def changed_rows(self) -> list[ChangedDefinition]:
        """Every definition that differs from its pin."""
        ...

    def changes_of(self, server: str, tool: str) -> list[ChangedDefinition]:
        """The differences of one tool; empty if it is as it was accepted."""
        ...

    async def accepted_definitions(self, server: str, tool: str) -> list[AcceptedDefinition]:
        """The definitions of a tool that were accepted, newest first, each with its differences from the one before."""
        ...

    async def state_risk(self, server: str, tool: str, digest: str, risk: Risk, by: str) -> None:
        """Store what a person states about the risk of a tool with this definition."""
        ...

    async def accept(self, server: str, tool: str, digest: str, by: str) -> bool:
        """Accept the definition with this digest; False if it is no longer the current one."""
        ...
