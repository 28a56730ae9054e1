"""Tasks that a server itself keeps for a caller: listed after the gateway's tasks, and accessed under an alias.

Only a connection that belongs to the caller alone can prove which tasks are the caller's, so shared connections are skipped. The
alias contains the server's task id, signed for this caller: the gateway stores nothing, and an id that it did not issue is
unknown.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.generations.generation import RELATED_TASK, Generation
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.meta import with_meta
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.plan import Live
from taskgate.gateway.requests.caller_questions import ask_caller
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner
from taskgate.gateway.requests.task_access import unknown_task
from taskgate.gateway.tasks.own_tasks import PAGES_AT_ONCE
from taskgate.ports.link import Link
from taskgate.ports.store import Store
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import ErrorReply, RelayedError
from taskgate.store.operations.task_queries import TasksPage

ALIAS: Final = "up_"
LIST_S: Final = 10.0
RESULT_S: Final = 24 * 3600.0
MAX_OWN: Final = 20_000
RECALLED_AT_ONCE: Final = 200


class ForeignPage(msgspec.Struct):
    """Rows of servers from one position on, the next position, and the servers that failed."""

    rows: list[dict[str, Any]] = msgspec.field(default_factory=list)
    next: tuple[str, str] | None = None
    failed: list[dict[str, str]] = msgspec.field(default_factory=list)


class UpstreamListing:
    def __init__(
        self, upstreams: Live[Mapping[str, Upstream]], state_signer: RequestStateSigner, store: Store, events: EventHub
    ) -> None:
        self._upstreams = upstreams
        self._state_signer = state_signer
        self._store = store
        self._own: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._recalled: OrderedDict[tuple[str, str], str] = OrderedDict()
        """The newest task that was read from the store, by caller and server."""
        events.subscribe(TaskChanged, lambda event: self._note_own(event.task))

    def _note_own(self, task: Task) -> None:
        """Remember the server's id of a gateway task, so that it is not listed a second time."""
        handle = task.upstream_handle
        if handle is not None:
            self._own[handle.upstream, handle.task_id] = None
            if len(self._own) > MAX_OWN:
                self._own.popitem(last=False)

    async def _recall(self, caller: str, server: str) -> None:
        """Read the caller's tasks at this server that were created before a restart or by another gateway. The newest are
        always read: they may be new.
        """
        before, after, newest = self._recalled.pop((caller, server), ""), None, ""
        for _ in range(PAGES_AT_ONCE):
            page = await self._store.ask(
                TasksPage(caller, after=after, limit=RECALLED_AT_ONCE, server=server, include_expired=True)
            )
            for task in page.tasks:
                self._note_own(task)
            newest, after = newest or (page.tasks[0].id if page.tasks else ""), page.after
            if after is None or after <= before:
                break
        self._recalled[caller, server] = newest
        if len(self._recalled) > MAX_OWN:
            self._recalled.popitem(last=False)

    def _links(self, request: Request) -> dict[str, Link]:
        """The caller's own links to servers that can list tasks, in a fixed order."""
        found = {}
        for name, upstream in sorted(self._upstreams.value.items()):
            link = upstream.open_link(request.link_key)
            if link is None or link.generation is not Generation.STATEFUL or not _is_own(request, link):
                continue
            tasks = link.capabilities.get("tasks")
            if isinstance(tasks, Mapping) and "list" in tasks:
                found[name] = link
        return found

    async def page(self, request: Request, start: tuple[str, str], limit: int) -> ForeignPage:
        """What the servers list from a position on, up to the limit."""
        page = ForeignPage()
        for name, link in self._links(request).items():
            if name < start[0]:
                continue
            if len(page.rows) >= limit:
                page.next = (name, "")
                return page
            try:
                more = await self._list(request, link, start[1] if name == start[0] else "", page)
            except TaskgateError as problem:
                page.failed.append({"server": name, "why": problem.message})
                continue
            if more:
                page.next = (name, more)
                return page
        return page

    async def _list(self, request: Request, link: Link, cursor: str, page: ForeignPage) -> str:
        params = {"cursor": wire.raw(cursor)} if cursor else {}
        reply = await link.request(self._upstream_call(request, "tasks/list", params, LIST_S))
        if isinstance(reply, ErrorReply):
            raise UpstreamError("upstream_protocol", f"The server {link.server} did not list its tasks.")
        listed = wire.parse_strictly(reply.raw)
        tasks = listed.get("tasks") if type(listed) is dict else None
        rows = {row["taskId"]: row for row in tasks if _is_task(row)} if type(tasks) is list else {}
        if any((link.server, task_id) not in self._own for task_id in rows):
            await self._recall(request.caller_key, link.server)
        for task_id, row in rows.items():
            if (link.server, task_id) not in self._own:
                page.rows.append({**row, "taskId": self._alias(request, link, task_id)})
        more = listed.get("nextCursor")
        return more if type(more) is str else ""

    async def relay(self, request: Request, method: str, alias: str) -> bytes:
        """Forward a request about the server's own task over the caller's own link."""
        link, task_id = self._open_alias(request, alias)
        timeout_s = RESULT_S if method == "tasks/result" else LIST_S
        reply = await link.request(self._upstream_call(request, method, {"taskId": wire.raw(task_id)}, timeout_s))
        if isinstance(reply, ErrorReply):
            raise RelayedError(reply.raw, reply.code)
        members = wire.members_of(reply.raw)
        if method == "tasks/result":
            members = with_meta(members, {RELATED_TASK: wire.raw({"taskId": alias})})
        else:
            members["taskId"] = wire.raw(alias)
        return wire.join(members)

    def _upstream_call(
        self, request: Request, method: str, params: dict[str, wire.Raw], timeout_s: float
    ) -> UpstreamCall:
        return UpstreamCall(
            method=method,
            params=params,
            profile=request.delivery.profile,
            timeout_s=timeout_s,
            on_notification=lambda _method, _params: None,
            on_question=lambda question: ask_caller(request, question),
            conversation=request.conversation_name,
        )

    def _alias(self, request: Request, link: Link, task_id: str) -> str:
        body = base64.urlsafe_b64encode(f"{link.server}\n{task_id}".encode()).decode("ascii").rstrip("=")
        return f"{ALIAS}{body}.{self._sign(request, link, task_id)}"

    def _open_alias(self, request: Request, alias: str) -> tuple[Link, str]:
        body, _, signature = alias.removeprefix(ALIAS).rpartition(".")
        try:
            server, _, task_id = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode().partition("\n")
        except (binascii.Error, ValueError):
            raise unknown_task() from None
        link = self._links(request).get(server)
        if link is None or not hmac.compare_digest(signature.encode(), self._sign(request, link, task_id).encode()):
            raise unknown_task()
        return link, task_id

    def _sign(self, request: Request, link: Link, task_id: str) -> str:
        """Valid in the session that owns the link, or in every session of the principal that owns it."""
        if request.session is None:
            raise unknown_task()
        session = request.session.id if link.key == request.link_key else ""
        return self._state_signer.sign_permanently(request.caller.principal, session, link.server, task_id)


def _is_task(row: Any) -> bool:
    return type(row) is dict and type(row.get("taskId")) is str


def _is_own(request: Request, link: Link) -> bool:
    """Whether no other caller uses the link. Callers without an identity are known by their session alone."""
    if link.key == request.link_key:
        return True
    principal = request.caller.principal
    return principal != ANONYMOUS and link.key.principal == principal and not link.key.session
