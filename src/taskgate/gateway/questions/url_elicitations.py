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
        """Sessions by server and id, for direct lookup. Processes of one server may use the same id."""
        events.subscribe(SessionEnded, self._session_ended)

    def refusal(self, principal: str, question: Question, session: Session | None = None) -> Answer | None:
        """Return None if the request may be sent to the client, otherwise the server's error."""
        if question.is_list:
            # Only a stateful server can use that form, and it is answered before this point.
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
        """Check, count and record one URL. Raises UnsafeUrl or CallerError."""
        limits = self._plan.value.limits
        url, outcome = params.get("url"), "shown"
        try:
            shown = check_peer_url(url if type(url) is str else "", allow_loopback=limits.url_elicitation_loopback)
            outcome = f"shown {shown.ascii_host}"
            self._count(principal, limits.url_elicitations_per_minute)
        except TaskgateError as problem:
            outcome = problem.error_type
            raise
        finally:
            event, detail = "url_elicitation", outcome
            self._record(
                AuditEntry(0, event, principal, server=server, kind="elicitation", reason=detail, outcome=detail)
            )

    def record_form(self, principal: str, server: str) -> None:
        """Record that a form was sent. Its fields and the answer are not logged."""
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
        """Record a request to connect an account. One page serves all calls that wait for it."""
        self._record(AuditEntry(0, "url_elicitation", principal, server=server, kind="elicitation", outcome="shown"))

    def count_own(self, principal: str, name: str) -> None:
        """Count a page that the caller requested. Raises CallerError beyond the limit."""
        outcome = "shown"
        try:
            self._count(principal, self._plan.value.limits.url_elicitations_per_minute)
        except CallerError as problem:
            outcome = problem.error_type
            raise
        finally:
            self._record(AuditEntry(0, "url_elicitation", principal, name=name, kind="elicitation", outcome=outcome))

    def admit_all(self, principal: str, server: str, asked: Iterable[Mapping[str, Any]]) -> None:
        for params in asked:
            if params.get("mode", "url") == "url":
                self.admit(principal, server, params)

    def classify_error(self, principal: str, server: str, raw: bytes, session: Session | None) -> None:
        """Process the error -32042. Raises if one of its URLs may not be shown."""
        asked = listed_in(raw)
        self.admit_all(principal, server, asked)
        if session is not None:
            for item in asked:
                self.expect(session, server, item)

    def unfit(self, principal: str, server: str, raw: bytes, session: Session | None) -> TaskgateError | None:
        """Process the same error at the end of a task. Return the error that replaces it, or None."""
        try:
            self.classify_error(principal, server, raw, session)
        except TaskgateError as problem:
            return problem
        return None

    def expect(self, session: Session, server: str, params: Mapping[str, Any]) -> None:
        """Remember that this session received the URL, so that it is notified of the completion."""
        name = params.get("elicitationId")
        if type(name) is str and name:
            known, given = session.url_elicitations, (server, name)
            if given in known:
                self._forget(session, given)
            known[given] = clock.monotonic() + self._plan.value.limits.url_elicitation_expiry
            self._given_to.setdefault(given, []).append(session)
            if len(known) > MAX_KNOWN:
                self._forget(session, next(iter(known)))

    def given(self, session: Session, question: Question) -> None:
        """Remember the URL of a task's question, which was checked when the server sent it."""
        if question.is_url:
            self.expect(session, question.server, question.decoded())

    def over(self, server: str, params: Raw | None, own: Session | None) -> Session | None:
        """Return the sessions to notify of a completion, once. `own`: those whose call or link received it."""
        value = wire.parse_strictly(bytes(params)) if params is not None else None
        name = value.get("elicitationId") if type(value) is dict else None
        given, now = (server, name if type(name) is str else ""), clock.monotonic()
        sessions = self._given_to.get(given, ())
        session = next((one for one in sessions if one is own), sessions[0] if sessions else None)
        return session if session is not None and now <= self._forget(session, given) else None

    def _forget(self, session: Session, given: tuple[str, str]) -> float:
        """Return when the URL expires."""
        self._given_to[given].remove(session)
        if not self._given_to[given]:
            del self._given_to[given]
        return session.url_elicitations.pop(given)

    def _session_ended(self, event: SessionEnded) -> None:
        for given in list(event.session.url_elicitations):
            self._forget(event.session, given)


def listed_in(raw: bytes) -> list[dict[str, Any]]:
    """Return the URLs listed in the error -32042."""
    error = wire.parse_strictly(raw)
    data = error.get("data") if type(error) is dict else None
    listed = data.get("elicitations") if type(data) is dict else None
    return [item for item in listed if type(item) is dict] if type(listed) is list else []


def url_questions(raw: bytes, server: str) -> dict[str, Question]:
    """Return the URLs as elicitation requests, for a client that does not support the error."""
    return {
        f"url-{number}": Question(ELICIT, wire.raw({**item, "mode": "url"}), server)
        for number, item in enumerate(listed_in(raw))
    }
