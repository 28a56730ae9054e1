"""The base URL of the gateway's pages: the configured one, otherwise the address it listens on."""

from __future__ import annotations

from typing import Final

from taskgate.gateway.plan import Live, Plan

DEFAULT_BASE: Final = "http://127.0.0.1:7467"


class PublicAddress:
    def __init__(self, plan: Live[Plan]) -> None:
        self.plan = plan
        self._listening = DEFAULT_BASE

    def listening_at(self, base_url: str) -> None:
        """Set the address once the port is known."""
        self._listening = base_url

    def base(self, plan: Plan | None = None) -> str:
        """Return the base URL for the plan in force, or for `plan`."""
        return (plan or self.plan.value).governing.public_url or self._listening

    def approval(self, approval_id: str) -> str:
        return f"{self.base()}/approvals/{approval_id}"

    def task(self, task_id: str) -> str:
        return f"{self.base()}/tasks/{task_id}"

    def elicitation(self, page_id: str) -> str:
        return f"{self.base()}/elicitations/{page_id}"
