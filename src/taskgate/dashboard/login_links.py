"""One-time links that log a person in to the console."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from taskgate.access.authorize import Authorizer
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.dashboard.login import Login
from taskgate.dashboard.routes import Route, Visit, closed_object, post
from taskgate.dashboard.web import Answer, json_answer
from taskgate.replies.servers import BrowserLink


class LoginLinks(msgspec.Struct, eq=False):
    _login: Login
    _authorizer: Authorizer
    _base_url: Callable[[], str]

    def routes(self) -> tuple[Route, ...]:
        return (
            post(
                "/login-links",
                Access.SEE,
                self._create,
                "Create a one-time login link for the console.",
                closed_object(),
                command="taskgate approvals login",
                answer=BrowserLink,
            ),
        )

    def printed(self, user: Approver) -> str:
        """A link to print on the terminal of the gateway."""
        return self._link(self._login.printed_code(user.id))

    async def _create(self, visit: Visit) -> Answer:
        facts = self._login.facts_of(visit.authorized.credential, self._authorizer.credentials)
        return json_answer(BrowserLink(url=self._link(await self._login.new_code(visit.user.id, facts))))

    def _link(self, code: str) -> str:
        return f"{self._base_url()}/login?code={code}"
