"""Pages served by the gateway on which a user answers a question of a caller or of a server.

A page belongs to one principal, is valid for a few minutes and only while the requester is connected, and is answered once. The
console renders it and authenticates the user.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.gateway.events import EventHub, QuestionsChanged
from taskgate.gateway.questions.elicitation_page import AnswerReceiver, ElicitationPage
from taskgate.gateway.questions.url_elicitations import COMPLETE
from taskgate.gateway.requests.session import Session

MAX_PAGES: Final = 1_000
MAX_VALUE: Final = 4_096


class CallerReceiver(msgspec.Struct, eq=False):
    _session: Session

    @property
    def gone(self) -> bool:
        return self._session.closed

    def send(self, method: str, params: bytes) -> None:
        self._session.notify(method, params)

    async def delivered(self) -> None:
        return


class ElicitationPages:
    def __init__(self, events: EventHub) -> None:
        self._pages: dict[str, ElicitationPage] = {}
        self._events = events

    def __len__(self) -> int:
        return len(self._pages)

    def open(
        self,
        principal: str,
        requester: str,
        receiver: AnswerReceiver,
        name: str,
        description: str,
        *,
        valid_for_s: float,
    ) -> ElicitationPage:
        """Open a page. `requester` is its description for the user."""
        self._drop_expired()
        if len(self._pages) >= MAX_PAGES:
            raise GatewayFault("overloaded", "Too many pages wait for their users; try again later.", retry_after_s=30)
        page_id = secrets.token_urlsafe(24)
        page = ElicitationPage(
            id=page_id,
            principal=principal,
            requester=requester,
            name=name,
            description=description,
            receiver=receiver,
            expires=clock.monotonic() + valid_for_s,
        )
        self._pages[page.id] = page
        self._events.publish(QuestionsChanged(principal))
        return page

    def own(self) -> list[ElicitationPage]:
        """Return the pages that wait at this gateway."""
        self._drop_expired()
        return [page for page in self._pages.values() if not page.is_elsewhere]

    def show_elsewhere(self, elsewhere: Iterable[ElicitationPage]) -> None:
        """Replace the pages that wait at other gateways."""
        kept = {page.id: page for page in self._pages.values() if not page.is_elsewhere}
        self._pages = {**{page.id: page for page in elsewhere}, **kept}

    def _drop_expired(self) -> None:
        now = clock.monotonic()
        for page in [page for page in self._pages.values() if page.expires <= now or page.receiver.gone]:
            del self._pages[page.id]

    def find(self, page_id: str, principal: str, is_operator: bool) -> ElicitationPage | None:
        """Return the page if it is for this user or the user is an operator; None otherwise."""
        self._drop_expired()
        page = self._pages.get(page_id)
        return page if page is not None and (is_operator or page.principal == principal) else None

    def answer(self, page: ElicitationPage, value: str | None) -> None:
        """Record the user's answer (None: declined) and send it to the receiver. A second answer is refused."""
        entry = {"type": "url", "name": page.name}
        if value is not None:
            entry["value"] = value[:MAX_VALUE]
        self.settle(page.id, wire.encode({"elicitationId": page.id, "elicitations": [entry]}))

    def settle(self, page_id: str, params: bytes) -> None:
        """Send the answer to the receiver. Raises CallerError if it no longer waits."""
        page = self._pages.pop(page_id, None)
        if page is None:
            raise CallerError("unknown_elicitation", "This page was answered already, or it has expired.")
        self._events.publish(QuestionsChanged(page.principal))
        page.receiver.send(COMPLETE, params)
