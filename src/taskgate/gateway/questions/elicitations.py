"""Elicitations: addresses that a person is to open, pages of our own, and the vendor's list form."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, GatewayFault, TaskgateError
from taskgate.core.generations.error_codes import error_object
from taskgate.core.generations.generation import Generation
from taskgate.core.questions.question import ELICIT, Answer, Question, no_list_form
from taskgate.core.text.peer_url import check_peer_url
from taskgate.core.wire import Raw
from taskgate.gateway.events import EventHub, QuestionsChanged, SessionEnded
from taskgate.gateway.plan import Live, Plan, PublicAddress
from taskgate.gateway.requests.session import Session
from taskgate.ports.upstream import Link
from taskgate.telemetry.logs import log

# What servers elicit is written down. Addresses that a person is to open are judged before anybody sees them, counted and never
# fetched, whichever way they come: a question, an `input_required` result, the error -32042. Who was given one is remembered while
# it is good: the news of its end is for that caller and nobody else.

COMPLETE: Final = "notifications/elicitation/complete"
URL_REQUIRED: Final = -32042
MAX_CALLERS: Final = 10_000
MAX_KNOWN: Final = 1_000
_MINUTE_S: Final = 60.0


class UrlElicitations:
    def __init__(self, plan: Live[Plan], record: Callable[[AuditEntry], None], events: EventHub) -> None:
        self._plan = plan
        self._record = record
        self._asked: dict[str, deque[float]] = {}
        self._given_to: dict[tuple[str, str], list[Session]] = {}
        """By server and id, so that news need no look at every session; a server's processes may use one id for several."""
        events.subscribe(SessionEnded, self._session_ended)

    def refusal(self, principal: str, question: Question, session: Session | None = None) -> Answer | None:
        """None if the question may be put; else what its server is told."""
        if question.is_list:
            # Only a stateful server can ask in that form, and is answered before it comes here.
            return no_list_form()
        if not question.is_url:
            if question.method == ELICIT:
                self.record_form(principal, question.server)
            return None
        params = question.decoded()
        try:
            if question.own:
                self.note_own(principal, question.server)
            else:
                self.admit(principal, question.server, params)
        except TaskgateError as problem:
            return Answer(error=error_object(problem, Generation.STATEFUL, "url", problem.executed))
        if session is not None:
            self.expect(session, question.server, params)
        return None

    def admit(self, principal: str, server: str, params: Mapping[str, Any]) -> None:
        """Judge, count and write down one address. Raises UnsafeUrl or a CallerError."""
        features = self._plan.value.features
        url, outcome = params.get("url"), "shown"
        try:
            shown = check_peer_url(url if type(url) is str else "", allow_loopback=features.loopback_urls)
            outcome = f"shown {shown.ascii_host}"
            self._count(principal, features.urls_per_minute)
        except TaskgateError as problem:
            outcome = problem.error_type
            raise
        finally:
            event, said = "url_elicitation", outcome
            self._record(AuditEntry(0, event, principal, server=server, kind="elicitation", reason=said, outcome=said))

    def record_form(self, principal: str, server: str) -> None:
        """Somebody is asked to fill in a form. What it asks for, and what is answered, is no business of the log."""
        self._record(AuditEntry(0, "form_elicitation", principal, server=server, kind="elicitation", outcome="asked"))

    def _count(self, principal: str, limit: int) -> None:
        now = clock.monotonic()
        times = self._asked.setdefault(principal, deque())
        while times and times[0] <= now - _MINUTE_S:
            times.popleft()
        if len(times) >= limit:
            raise CallerError(
                "rate_limited",
                f"This caller was given {limit} addresses within a minute. Try again later.",
                retry_after_s=times[0] + _MINUTE_S - now,
            )
        times.append(now)
        if len(self._asked) > MAX_CALLERS:
            for caller in [caller for caller, seen in self._asked.items() if not seen or seen[-1] <= now - _MINUTE_S]:
                del self._asked[caller]

    def note_own(self, principal: str, server: str) -> None:
        """Somebody is asked to connect an account, on one page of ours however many calls wait for it."""
        self._record(AuditEntry(0, "url_elicitation", principal, server=server, kind="elicitation", outcome="shown"))

    def count_own(self, principal: str, name: str) -> None:
        """A page of ours that the caller asked for counts as well. Raises a CallerError beyond the limit."""
        outcome = "shown"
        try:
            self._count(principal, self._plan.value.features.urls_per_minute)
        except CallerError as problem:
            outcome = problem.error_type
            raise
        finally:
            self._record(AuditEntry(0, "url_elicitation", principal, name=name, kind="elicitation", outcome=outcome))

    def admit_all(self, principal: str, server: str, asked: Iterable[Mapping[str, Any]]) -> None:
        for params in asked:
            if params.get("mode", "url") == "url":
                self.admit(principal, server, params)

    def judge_error(self, principal: str, server: str, raw: bytes, session: Session | None) -> None:
        """A server answered that addresses must be opened first. Raises if one of them may not be shown."""
        asked = listed_in(raw)
        self.admit_all(principal, server, asked)
        if session is not None:
            for item in asked:
                self.expect(session, server, item)

    def unfit(self, principal: str, server: str, raw: bytes, session: Session | None) -> TaskgateError | None:
        """The same for an error that ends a task: what to tell instead of it."""
        try:
            self.judge_error(principal, server, raw, session)
        except TaskgateError as problem:
            return problem
        return None

    def expect(self, session: Session, server: str, params: Mapping[str, Any]) -> None:
        """This session was given the address: the news of its end is for it."""
        name = params.get("elicitationId")
        if type(name) is str and name:
            known, given = session.url_elicitations, (server, name)
            if given in known:
                self._forget(session, given)
            known[given] = clock.monotonic() + self._plan.value.features.url_expiry_s
            self._given_to.setdefault(given, []).append(session)
            if len(known) > MAX_KNOWN:
                self._forget(session, next(iter(known)))

    def given(self, session: Session, question: Question) -> None:
        """A question of a task is put to this session; it was judged when the server asked it."""
        if question.is_url:
            self.expect(session, question.server, question.decoded())

    def over(self, server: str, params: Raw | None, own: Session | None) -> Session | None:
        """For whom the news is that an address has done its work; told once. `own`: whose call or link brought them."""
        value = wire.parse_strictly(bytes(params)) if params is not None else None
        name = value.get("elicitationId") if type(value) is dict else None
        given, now = (server, name if type(name) is str else ""), clock.monotonic()
        told = self._given_to.get(given, ())
        session = next((one for one in told if one is own), told[0] if told else None)
        return session if session is not None and now <= self._forget(session, given) else None

    def _forget(self, session: Session, given: tuple[str, str]) -> float:
        """Until when the address was good."""
        self._given_to[given].remove(session)
        if not self._given_to[given]:
            del self._given_to[given]
        return session.url_elicitations.pop(given)

    def _session_ended(self, event: SessionEnded) -> None:
        for given in list(event.session.url_elicitations):
            self._forget(event.session, given)


def listed_in(raw: bytes) -> list[dict[str, Any]]:
    """The addresses that the error -32042 wants opened."""
    error = wire.parse_strictly(raw)
    data = error.get("data") if type(error) is dict else None
    listed = data.get("elicitations") if type(data) is dict else None
    return [item for item in listed if type(item) is dict] if type(listed) is list else []


def url_questions(raw: bytes, server: str) -> dict[str, Question]:
    """The same as questions, for a caller that knows no such error."""
    return {
        f"url-{number}": Question(ELICIT, wire.raw({**item, "mode": "url"}), server)
        for number, item in enumerate(listed_in(raw))
    }


# Pages of our own that a caller, or a server, may have a user open, to be told what the user says there. A page belongs to one
# principal, is good for a few minutes and only while whoever asked is there, and is answered once. What it looks like and who is
# logged in is the dashboard's business; here is only what may be answered, by whom, and who hears of it.

MAX_PAGES: Final = 1_000
MAX_VALUE: Final = 4_096


class AnswerReceiver(Protocol):
    """Who is told what the user says: a caller's session, or a server's conversation."""

    @property
    def gone(self) -> bool: ...

    def tell(self, method: str, params: bytes) -> None: ...

    async def told(self) -> None:
        """Returns when whoever asks has what was told, as far as it can be known; raises CallerError if it came too late."""
        ...


class CallerAsks:
    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def gone(self) -> bool:
        return self._session.closed

    def tell(self, method: str, params: bytes) -> None:
        self._session.notify(method, params)

    async def told(self) -> None:
        return


@dataclass(frozen=True, slots=True, eq=False)
class ElicitationPage:
    id: str
    principal: str
    asks: str
    name: str
    description: str
    asker: AnswerReceiver
    expires: float
    is_elsewhere: bool = False
    """It waits at another gateway on the same store."""

    @property
    def seconds_left(self) -> int:
        return max(0, round(self.expires - clock.monotonic()))


class ElicitationPages:
    def __init__(self, events: EventHub) -> None:
        self._pages: dict[str, ElicitationPage] = {}
        self._events = events

    def __len__(self) -> int:
        return len(self._pages)

    def open(
        self, principal: str, asks: str, asker: AnswerReceiver, name: str, description: str, *, good_for_s: float
    ) -> ElicitationPage:
        """`asks` is what the user reads about who wants something."""
        self._drop_expired()
        if len(self._pages) >= MAX_PAGES:
            raise GatewayFault("overloaded", "Too many pages wait for their users; try again later.", retry_after_s=30)
        page_id = secrets.token_urlsafe(24)
        page = ElicitationPage(page_id, principal, asks, name, description, asker, clock.monotonic() + good_for_s)
        self._pages[page.id] = page
        self._events.publish(QuestionsChanged(principal))
        return page

    def own(self) -> list[ElicitationPage]:
        """Those that wait at this gateway."""
        self._drop_expired()
        return [page for page in self._pages.values() if not page.is_elsewhere]

    def show_elsewhere(self, elsewhere: Iterable[ElicitationPage]) -> None:
        """All that wait at other gateways now."""
        kept = {page.id: page for page in self._pages.values() if not page.is_elsewhere}
        self._pages = {**{page.id: page for page in elsewhere}, **kept}

    def _drop_expired(self) -> None:
        now = clock.monotonic()
        for page in [page for page in self._pages.values() if page.expires <= now or page.asker.gone]:
            del self._pages[page.id]

    def find(self, page_id: str, who: str, is_operator: bool) -> ElicitationPage | None:
        """The page, for the user it is meant for or the operator; for anybody else it does not exist."""
        self._drop_expired()
        page = self._pages.get(page_id)
        return page if page is not None and (is_operator or page.principal == who) else None

    def answer(self, page: ElicitationPage, value: str | None) -> None:
        """The user has answered, or has said no (None). Whoever asked hears of it; a second answer is too late."""
        told = {"type": "url", "name": page.name}
        if value is not None:
            told["value"] = value[:MAX_VALUE]
        self.settle(page.id, wire.encode({"elicitationId": page.id, "elicitations": [told]}))

    def settle(self, page_id: str, params: bytes) -> None:
        """Tell whoever asked what was said on the page. Raises CallerError if it does not wait any more."""
        page = self._pages.pop(page_id, None)
        if page is None:
            raise CallerError("unknown_elicitation", "This page was answered already, or its time is over.")
        self._events.publish(QuestionsChanged(page.principal))
        page.asker.tell(COMPLETE, params)


# Pages that callers and servers ask for with the vendor's list form of `elicitation/create`: each opens one page for one user. A
# server's conversation says for which user it is open; the news of an answer goes back to whoever asked.

MAX_LISTED: Final = 10
MAX_DESCRIPTION: Final = 2_000


class OwnElicitations:
    """Opens the pages, counted like the addresses of servers."""

    def __init__(
        self, plan: Live[Plan], urls: UrlElicitations, pages: ElicitationPages, address: PublicAddress
    ) -> None:
        self._plan = plan
        self._urls = urls
        self._pages = pages
        self._address = address

    def open(self, principal: str, asks: str, asker: AnswerReceiver, asked: list[tuple[str, str]]) -> bytes:
        good_for_s = self._plan.value.features.url_expiry_s
        made = []
        for name, description in asked:
            self._urls.count_own(principal, name)
            page = self._pages.open(principal, asks, asker, name, description, good_for_s=good_for_s)
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
        """Pages for the user its conversation is open for, and the news goes back to it."""
        if not self._plan.value.features.vendor_methods:
            return no_list_form()
        try:
            asked = listed(question.decoded().get("elicitations"))
            if not link.key.principal:
                raise CallerError("invalid_params", "This conversation is shared, so that nothing says who is asked.")
            asker = ServerAsks(link, self._background)
            made = self._elicitations.open(link.key.principal, f"The server {link.server}", asker, asked)
        except TaskgateError as problem:
            return Answer(error=error_object(problem, Generation.STATEFUL, secrets.token_hex(8), problem.executed))
        return Answer(result=made)

    async def close(self) -> None:
        """News that nobody has taken yet goes with the conversations."""
        telling = list(self._background)
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)


class ServerAsks:
    """A server's conversation, told in the background because it may be slow to listen."""

    def __init__(self, link: Link, background: set[asyncio.Task[None]]) -> None:
        self._link = link
        self._background = background

    @property
    def gone(self) -> bool:
        return not self._link.alive

    def tell(self, method: str, params: bytes) -> None:
        telling = asyncio.get_running_loop().create_task(self._tell(method, params))
        self._background.add(telling)
        telling.add_done_callback(self._background.discard)

    async def told(self) -> None:
        return

    async def _tell(self, method: str, params: bytes) -> None:
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
