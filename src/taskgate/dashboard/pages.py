"""All pages of the console in one table of routes, and the stream of events that makes open pages change by themselves."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.api import Api
from taskgate.dashboard.approval_pages import ApprovalPages
from taskgate.dashboard.audit_pages import Audit, AuditPages, Usage, UsagePages
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.inbox_pages import InboxPages
from taskgate.dashboard.login import Login
from taskgate.dashboard.questions_api import Elicitations
from taskgate.dashboard.records import Inbox, Records
from taskgate.dashboard.routes import Configuration, Route, RouteTable, Visit, form_route, page_route
from taskgate.dashboard.rules_pages import Rules, RulesApi, RulesPages
from taskgate.dashboard.servers_pages import Servers, ServersPages
from taskgate.dashboard.system_pages import System, SystemPages
from taskgate.dashboard.task_pages import TaskPages
from taskgate.dashboard.try_pages import TryPages
from taskgate.dashboard.web import Answer, EventAnswer, WebRequest
from taskgate.gateway.events import (
    ApprovalOpened,
    ApprovalOver,
    DefinitionChanged,
    EventHub,
    ListsChanged,
    ProgressMade,
    QuestionsChanged,
    ScopesChanged,
    TaskChanged,
    TaskExpired,
    TemporaryScopesChanged,
)
from taskgate.gateway.services.console import ConsoleServices

# The sections of the console that steer the gateway, put together: their routes of the API, and their pages.


class Steering:
    def __init__(self, gateway: ConsoleServices, records: Records, configuration: Configuration) -> None:
        self._rules = Rules(gateway, records, configuration)
        self._usage = Usage(records)
        self._servers = Servers(gateway, records, configuration)
        self._audit = Audit(gateway, records)
        self._system = System(gateway, records, configuration)

    def routes(self) -> tuple[Route, ...]:
        """Of the API."""
        return (
            *RulesApi(self._rules).routes(),
            *self._usage.routes(),
            *self._servers.routes(),
            *self._audit.routes(),
            *self._system.routes(),
        )

    def pages(self, frame: Frame) -> tuple[Route, ...]:
        return (
            *RulesPages(self._rules, frame).routes(),
            *UsagePages(self._usage, frame).routes(),
            *ServersPages(self._servers, frame).routes(),
            *AuditPages(self._audit, frame).routes(),
            *SystemPages(self._system, frame).routes(),
        )


class Pages:
    def __init__(self, gateway: ConsoleServices, inbox: Inbox, login: Login, api: Api, steering: Steering) -> None:
        self._gateway = gateway
        self._inbox = inbox
        self._api = api
        self.frame = Frame(login, self._waiting, lambda path: self.table.find("GET", path) is not None, api.table)
        self._elicitations = Elicitations(gateway, self.frame.plain)
        approvals = ApprovalPages(gateway, inbox, self.frame)
        tasks = TaskPages(gateway, self.frame, tasks=api.tasks, now=api.now, questions=api.questions, inbox=inbox)
        asked = InboxPages(gateway, self.frame, inbox, api.questions)
        tried = TryPages(inbox.records, self.frame, api.calls)
        self.table = RouteTable(
            [
                *self._elicitation_routes(),
                *approvals.routes(),
                *tasks.routes(),
                *asked.routes(),
                *tried.routes(),
                *steering.pages(self.frame),
            ]
        )

    async def _waiting(self, who: Approver) -> int:
        """How much waits in this person's inbox."""
        questions = len(self._api.questions.asked_of(who))
        return questions + (await self._inbox.records.pending_count(who) if who.may(Permission.SEE) else 0)

    def _elicitation_routes(self) -> tuple[Route, ...]:
        return (
            page_route("/elicitations/{id}", Access.LOGIN, self._elicitation),
            page_route("/elicitations/{id}/{word}", Access.LOGIN, self._elicitation),
            form_route("/elicitations/{id}/{word}", Access.LOGIN, self._elicitation),
        )

    async def _elicitation(self, visit: Visit) -> Answer:
        return await self._elicitations.answer(visit.request, visit.who, visit.values["id"], visit.values.get("word"))

    def login(
        self,
        request: WebRequest,
        code: str,
        note: str | None,
        status: int,
        back: str,
        *,
        passphrase: bool,
        provider: bool,
        fresh: bool,
    ) -> Answer:
        return self.frame.plain(
            "login.html",
            request,
            None,
            status=status,
            note=note,
            note_kind="bad",
            title="Log in",
            code=code,
            back=back,
            passphrase=passphrase,
            provider=provider,
            fresh=fresh,
        )


# What makes open pages change by themselves: one stream of events per page, which says what kind of thing has changed.
#
# A frame names topics, never contents: the page then asks for itself again, as the person who looks at it, so a stream
# can show nobody what they may not see. Frames are numbered within one run of the gateway. Whoever comes back after a
# cut with a number of an earlier run, or an older one, is told at once that everything may have changed.
#
# Changes are gathered for a moment and sent together, so a burst costs every open page one frame. The first change for
# a while is told at once; while changes go on, frames keep a distance that grows with the number of open pages, so that
# all of them together ask for no more pages a second than a few would. While nothing happens a stream costs a timer
# every fifteen seconds.

GATHER_S: Final = 0.05
DISTANCE_S: Final = 0.05
"""Between two frames, for each open page: twenty pages a second are asked for at most, by however many people."""
PING_S: Final = 15.0
MOST_STREAMS: Final = 1_000
EVERYBODY: Final = ""
"""Stands for a change that is nobody's in particular."""
TOPICS: Final = ("tasks", "inbox", "servers", "scopes", "definitions")


class LiveUpdates:
    def __init__(self, events: EventHub) -> None:
        self._run = secrets.token_hex(4)
        self._number = 0
        self._dirty: set[tuple[str, str]] = set()
        self._last: frozenset[tuple[str, str]] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._told = -1e9
        self._waiting: set[asyncio.Future[None]] = set()
        self._open = 0
        self._closing = False
        events.subscribe(TaskChanged, lambda event: self.changed("tasks", event.task.principal))
        events.subscribe(TaskExpired, lambda event: self.changed("tasks", event.task.principal))
        events.subscribe(ProgressMade, lambda event: self.changed("tasks", event.principal))
        events.subscribe(ApprovalOpened, lambda event: self.changed("inbox", event.approval.binding.principal))
        events.subscribe(ApprovalOver, lambda event: self.changed("inbox", event.principal))
        events.subscribe(QuestionsChanged, lambda event: self.changed("inbox", event.caller))
        events.subscribe(DefinitionChanged, lambda _: self.changed("definitions"))
        events.subscribe(ListsChanged, lambda _: self.changed("servers"))
        events.subscribe(ScopesChanged, lambda _: self.changed("scopes"))
        events.subscribe(TemporaryScopesChanged, lambda _: self.changed("scopes"))

    @property
    def version(self) -> str:
        """Changes with everything that pages show. A stream that continues from an older one begins with a frame."""
        return f"{self._run}-{self._number}"

    @property
    def open_streams(self) -> int:
        return self._open

    @property
    def is_full(self) -> bool:
        """As many pages are open as one gateway serves."""
        return self.open_streams >= MOST_STREAMS

    def changed(self, topic: str, whose: str = EVERYBODY) -> None:
        """Something of this kind is different now. With nobody looking this costs next to nothing."""
        if not self._open:
            self._number += 1
            return
        self._dirty.add((topic, whose))
        if self._timer is None:
            wait = max(GATHER_S, self._told + DISTANCE_S * self._open - clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._told = clock.monotonic()
        self._number += 1
        self._last, self._dirty = frozenset(self._dirty), set()
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def end_all(self) -> None:
        """The gateway goes down: every stream ends, and its page comes back to the next one."""
        self._closing = True
        self._wake()

    def stream(self, last_id: str | None, who: Approver) -> EventAnswer:
        """The frames of one open page: changes of what this person may see, and of what is nobody's. It counts from now on."""
        self._open += 1
        return EventAnswer(self._frames(last_id, who), self._over)

    def _over(self) -> None:
        self._open -= 1

    async def _frames(self, last_id: str | None, who: Approver) -> AsyncGenerator[bytes]:
        seen = self._number
        yield b"retry: 1000\n\n"
        if last_id is not None and last_id != f"{self._run}-{seen}":
            yield self._frame(seen, sorted(TOPICS))
        while not self._closing:
            # Compared before each wait: a change may have been announced while the last frame was being sent.
            if self._number != seen:
                topics = TOPICS if self._number != seen + 1 else self._heard(who)
                seen = self._number
                if topics:
                    yield self._frame(seen, sorted(topics))
            elif not await self._next():
                yield b":ping\n\n"

    def _heard(self, who: Approver) -> set[str]:
        return {topic for topic, whose in self._last if whose == EVERYBODY or who.may_see_of(whose)}

    def _frame(self, number: int, topics: list[str]) -> bytes:
        data = msgspec.json.encode({"topics": topics})
        return b"id: %s-%d\nevent: change\ndata: %s\n\n" % (self._run.encode(), number, data)

    async def _next(self) -> bool:
        """Wait for the next frame; False when it is time for a sign of life instead."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(PING_S):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True
