"""URLs that servers ask a person to open: check, limit, record, and report their completion to the caller that received them.

They arrive as a request, in an `input_required` result or in the error -32042, and are never fetched by the gateway. The caller
is remembered while the URL is valid, because only that caller is notified of its completion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.error_codes import error_object
from taskgate.core.generations.generation import Generation
from taskgate.core.questions.question import ELICIT, Answer, Question, no_list_form
from taskgate.core.text.peer_url import check_peer_url
from taskgate.core.wire import Raw
from taskgate.gateway.events import EventHub, SessionEnded
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.session import Session

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
