"""Rules in force, suggestions, recorded calls and rehearsals as JSON."""

from __future__ import annotations

from taskgate.core.governance.suggestions import Suggestion
from taskgate.core.identity.access import Access
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.periods import since_ms
from taskgate.dashboard.routes import (
    TEXT,
    Route,
    Visit,
    closed_object,
    get,
    post,
)
from taskgate.dashboard.rules import Rules
from taskgate.dashboard.web import Answer, json_answer, limit_of
from taskgate.replies.rules import RecordedCallsPage, RehearsalResult, RuleList, rehearsal_result


class RulesApi:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._records = rules.records

    def routes(self) -> tuple[Route, ...]:
        see, body = Access.SEE, closed_object(("governance",), governance=TEXT, since=TEXT)
        pages = {"since": "such as 7d", "after": "start of the next page", "limit": "maximum number, up to 1000"}
        return (
            get(
                "/rules",
                see,
                self._list,
                "Rules in force, with the number of recorded calls that each decided, and patterns that match nothing.",
                command="taskgate policy rules",
                answer=RuleList,
            ),
            get(
                "/rules/suggestions",
                see,
                self._suggestions,
                "Tools that should need approval less or more often.",
                answer=list[Suggestion],
            ),
            get(
                "/rules/recorded",
                Access.ACT,
                self._recorded,
                "Recorded calls, redacted.",
                query=pages,
                command="taskgate policy rehearse NEW.yaml",
                answer=RecordedCallsPage,
            ),
            post(
                "/rules/rehearse",
                Access.ACT,
                self._rehearse,
                "Evaluate a changed `governance` section (YAML) against recorded calls.",
                body,
                command="taskgate policy rehearse NEW.yaml",
                answer=RehearsalResult,
            ),
        )

    @property
    def configuration(self) -> Configuration:
        return self._rules.configuration

    async def in_force(self, visit: Visit) -> RuleList:
        return RuleList(
            recording=self._rules.is_recording,
            rules=await self._rules.in_force(visit.user),
            unmatched=self._rules.without_match(),
        )

    async def suggestions(self, visit: Visit) -> tuple[Suggestion, ...]:
        return await self._rules.suggestions(visit.user)

    async def rehearsed(self, visit: Visit, governance: str, since: str | None) -> RehearsalResult:
        """Raises ValueError where the section or the period is invalid."""
        return rehearsal_result(await self._rules.rehearsed(visit.user, governance, since))

    async def _list(self, visit: Visit) -> Answer:
        return json_answer(await self.in_force(visit))

    async def _suggestions(self, visit: Visit) -> Answer:
        return json_answer(await self.suggestions(visit))

    async def _recorded(self, visit: Visit) -> Answer:
        first = since_ms(visit.parameter("since"), self._records.now_ms())
        after = visit.parameter("after") or "0"
        if not (after.isascii() and after.isdigit()) or len(after) > 15:
            raise ValueError("after must be the `next` of the previous page")
        page = await self._records.recorded_calls(visit.user, first, int(after), limit_of(visit.request))
        return json_answer(RecordedCallsPage(calls=page.calls, next=page.after, recording=self._rules.is_recording))

    async def _rehearse(self, visit: Visit) -> Answer:
        body = visit.request.json()
        governance, since = body.get("governance"), body.get("since")
        if set(body) - {"governance", "since"} or type(governance) is not str or type(since) not in (str, type(None)):
            raise ValueError('send "governance" (the section as YAML text) and optionally "since", such as 7d')
        return json_answer(await self.rehearsed(visit, governance, since))
