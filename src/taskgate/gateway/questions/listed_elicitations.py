"""The vendor's list form of `elicitation/create`: each item opens one page for one user.

A server's conversation determines the user; the answer is sent to the requester.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.error_codes import error_object
from taskgate.core.generations.generation import Generation
from taskgate.core.questions.question import Answer, Question, no_list_form
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.questions.elicitation_page import AnswerReceiver
from taskgate.gateway.questions.elicitation_pages import ElicitationPages
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.ports.link import Link
from taskgate.telemetry.logs import log

MAX_LISTED: Final = 10
MAX_DESCRIPTION: Final = 2_000


class OwnElicitations(msgspec.Struct, eq=False):
    """Opens the pages. They count against the same limit as servers' URLs."""

    _plan: Live[Plan]
    _urls: UrlElicitations
    _pages: ElicitationPages
    _address: PublicAddress

    def open(self, principal: str, requester: str, receiver: AnswerReceiver, items: list[tuple[str, str]]) -> bytes:
        valid_for_s = self._plan.value.limits.url_elicitation_expiry
        made = []
        for name, description in items:
            self._urls.count_own(principal, name)
            page = self._pages.open(principal, requester, receiver, name, description, valid_for_s=valid_for_s)
            url = self._address.elicitation(page.id)
            made.append({"type": "url", "name": name, "url": url, "elicitationId": page.id})
        return wire.encode({"elicitations": made})


class ServerElicitations:
    """The list form as a server's request."""

    def __init__(self, plan: Live[Plan], elicitations: OwnElicitations) -> None:
        self._plan = plan
        self._elicitations = elicitations
        self._background: set[asyncio.Task[None]] = set()

    def answer(self, link: Link, question: Question) -> Answer:
        """Open pages for the user of the server's conversation; answers are sent back to that conversation."""
        if not self._plan.value.features.vendor_methods:
            return no_list_form()
        try:
            items = listed(question.decoded().get("elicitations"))
            if not link.key.principal:
                raise CallerError(
                    "invalid_params", "This conversation is shared, so the recipient cannot be identified."
                )
            receiver = ServerReceiver(link, self._background)
            made = self._elicitations.open(link.key.principal, f"The server {link.server}", receiver, items)
        except TaskgateError as problem:
            return Answer(error=error_object(problem, Generation.STATEFUL, secrets.token_hex(8), problem.executed))
        return Answer(result=made)

    async def close(self) -> None:
        """Cancel answers that are not delivered yet; the conversations end anyway."""
        sending = list(self._background)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


class ServerReceiver(msgspec.Struct, eq=False):
    """A server's conversation. Answers are sent in the background, because the server may read slowly."""

    _link: Link
    _background: set[asyncio.Task[None]]

    @property
    def gone(self) -> bool:
        return not self._link.alive

    def send(self, method: str, params: bytes) -> None:
        sending = asyncio.get_running_loop().create_task(self._send(method, params))
        self._background.add(sending)
        sending.add_done_callback(self._background.discard)

    async def delivered(self) -> None:
        return

    async def _send(self, method: str, params: bytes) -> None:
        try:
            await self._link.notify(method, params)
        except TaskgateError as problem:
            log.info("notification not delivered", server=self._link.server, method=method, why=problem.message)


def listed(given: Any) -> list[tuple[str, str]]:
    if type(given) is not list or not 0 < len(given) <= MAX_LISTED:
        raise CallerError("invalid_params", f'"elicitations" must be an array of 1 to {MAX_LISTED} objects.')
    found = []
    for item in given:
        name = item.get("name") if type(item) is dict else None
        description = item.get("description", "") if type(item) is dict else None
        if type(item) is not dict or item.get("type") != "url" or type(name) is not str or type(description) is not str:
            raise CallerError("invalid_params", 'Each elicitation needs "type": "url", "name" and "description".')
        if not 0 < len(name) <= 200 or len(description) > MAX_DESCRIPTION:
            raise CallerError("invalid_params", f"A name has 1 to 200 characters, a description {MAX_DESCRIPTION}.")
        found.append((name, description))
    return found
