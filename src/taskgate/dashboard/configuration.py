"""The port through which the console reads and reloads the configuration. The process that started the gateway implements it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from taskgate.gateway.plan import Plan


@dataclass(frozen=True, slots=True)
class ShownConfiguration:
    """For people: where it is, its text with secrets hidden, and what was noticed while it was read."""

    path: str
    text: str
    problems: tuple[str, ...] = ()


class Configuration(Protocol):
    def shown(self) -> ShownConfiguration: ...

    def hidden(self, text: str) -> str:
        """A text that may quote the configuration, without the secrets of the one in force."""
        ...

    def governance(self) -> str:
        """The section `governance` as YAML, with secrets hidden."""
        ...

    def plan_with(self, governance: str) -> Plan:
        """The plan that this text in place of the section `governance` would make. Raises ValueError with what is wrong."""
        ...

    async def reload(self) -> str | None:
        """Read the file again and put it in force; what is wrong with it, if it is not in force now."""
        ...
