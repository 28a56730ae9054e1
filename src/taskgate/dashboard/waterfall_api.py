"""Recent requests and their server calls as JSON, filtered."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.identity.access import Access
from taskgate.core.waterfall import KEPT, Span, Window, in_window, parents_of
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, get
from taskgate.dashboard.web import Answer, json_answer
from taskgate.replies.requests import RecentRequest

FILTERS: Final = ("server", "caller", "name", "state")
ZOOM: Final = ("trace", "from", "to")
_SPANS_QUERY: Final = {
    **{name: f"requests with a call whose {name} contains this text" for name in FILTERS},
    "minutes": "of the last minutes",
    "trace": "the request with this id, and its calls",
    "from": "ran after this time, in milliseconds since 1970; together with to",
    "to": "ran before this time",
    "show": "calls: only requests that call a tool, read a resource or get a prompt, without polls and lists; all (default)",
    "limit": f"maximum number, up to {KEPT}",
}


class RecentRequests(msgspec.Struct, eq=False):
    _records: Records

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/waterfall",
                Access.SEE,
                self._list,
                "Recent requests and their server calls.",
                query=_SPANS_QUERY,
                answer=list[RecentRequest],
            ),
        )

    async def _list(self, visit: Visit) -> Answer:
        limit = visit.parameter("limit") or str(KEPT)
        if not (limit.isascii() and limit.isdigit()) or len(limit) > 9 or not 0 < int(limit) <= KEPT:
            raise ValueError(f"limit must be a whole number from 1 to {KEPT}")
        only_calls = _only_calls(visit.parameter("show") or "all")
        return json_answer([_request(span) for span in self.spans(visit, only_calls=only_calls)[-int(limit) :]])

    def spans(self, visit: Visit, *, only_calls: bool) -> list[Span]:
        """Recent requests that match the query parameters, with the server calls that they made. Raises ValueError."""
        filters = {name: value for name in FILTERS if (value := visit.parameter(name)) is not None}
        now = clock.wall()
        window = chosen_window(visit) or Window(now - 60 * _minutes(visit.parameter("minutes")), float("inf"))
        recent = in_window(self._records.spans(visit.user), window, now)
        trace, parents = visit.parameter("trace"), parents_of(recent)
        if trace is not None:
            recent = [span for span in recent if trace in (str(span.number), str(parents[span.number]))]
        elif only_calls:
            calls = {span.number for span in recent if span.is_call}
            recent = [span for span in recent if span.number in calls or span.parent in calls]
        if not filters:
            return recent
        hits = {
            parents[span.number] or span.number
            for span in recent
            if all(value.casefold() in getattr(span, name).casefold() for name, value in filters.items())
        }
        return [span for span in recent if span.number in hits or parents[span.number] in hits]


def _request(span: Span) -> RecentRequest:
    return RecentRequest(
        id=span.number,
        parent=span.parent or None,
        kind=span.kind,
        method=span.method,
        name=span.name,
        server=span.server,
        caller=span.caller,
        start_ms=round(span.start * 1000, 3),
        end_ms=round(span.end * 1000, 3) if span.end else None,
        state=span.state,
        task=span.task or None,
        script=span.script or None,
        line=span.line or None,
    )


def _only_calls(given: str) -> bool:
    if given not in ("calls", "all"):
        raise ValueError("show must be calls or all")
    return given == "calls"


def chosen_window(visit: Visit) -> Window | None:
    """The selected part of the time axis, or None. Raises ValueError."""
    begin, end = visit.parameter("from"), visit.parameter("to")
    if begin is None and end is None:
        return None
    try:
        window = Window(float(begin or "") / 1000, float(end or "") / 1000)
    except ValueError:
        window = Window(0, 0)
    if not 0 < window.begin < window.end < 1e11:
        raise ValueError("from and to must be times in milliseconds since 1970, from before to")
    return window


def _minutes(text: str | None) -> float:
    if text is None:
        return 24 * 60
    if not (text.isascii() and text.isdigit()) or len(text) > 4 or int(text) < 1:
        raise ValueError("minutes must be a whole number from 1 to 9999")
    return int(text)
