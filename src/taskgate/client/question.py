"""A question of a server, as a value. Apart from the other results because errors carry questions too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """Something the server wants from the user of this client: an elicitation, a sampling request or the roots."""

    key: str
    method: str
    params: Mapping[str, Any]
    task_id: str | None = None

    @property
    def message(self) -> str:
        return str(self.params.get("message", ""))

    @property
    def is_url(self) -> bool:
        return self.params.get("mode") == "url"
