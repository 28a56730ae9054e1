"""Tools with a call that took so long that it became a task. Learned at run time."""

from __future__ import annotations

from typing import Final

MAX_TOOLS: Final = 10_000


class SlowTools:
    def __init__(self) -> None:
        self._tools: set[tuple[str, str]] = set()

    @property
    def version(self) -> int:
        """Changes when a tool is added."""
        return len(self._tools)

    def add(self, server: str, tool: str) -> None:
        if len(self._tools) < MAX_TOOLS:
            self._tools.add((server, tool))

    def __contains__(self, tool: tuple[str, str]) -> bool:
        return tool in self._tools
