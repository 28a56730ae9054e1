"""Reads and accepts definitions that differ from their pins, for the console. Implemented by the pins of the gateway."""

from __future__ import annotations

from typing import Any, Protocol


class PinnedDefinitions(Protocol):
    def changed_rows(self) -> list[dict[str, Any]]:
        """Every definition that differs from its pin."""
        ...

    def changes_of(self, server: str, tool: str) -> list[dict[str, Any]]:
        """The differences of one tool; empty if it is as it was accepted."""
        ...

    async def accepted_definitions(self, server: str, tool: str) -> list[dict[str, Any]]:
        """The definitions of a tool that were accepted, newest first, each with its differences from the one before."""
        ...

    async def accept(self, server: str, tool: str, digest: str, by: str) -> bool:
        """Accept the definition with this digest; False if it is no longer the current one."""
        ...
