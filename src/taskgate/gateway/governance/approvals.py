"""Request approvals, process votes and apply the outcome.

Votes arrive from every channel: the console, the API, the command line, webhooks, Slack and the caller's own elicitation.
`core.governance.approval` decides who may vote, and the store makes a decision final. This module requests the approval,
notifies waiting requests of the outcome, and starts the task that was waiting for it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.own_tool_names import OWN_SERVER, OwnToolName
from taskgate.core.errors import GatewayFault
from taskgate.core.governance import approval as rules
from taskgate.core.governance.approval import Approval, Changed, Drifted, Recalled, State, TimePassed, Verdict, Voted
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import Card, card
from taskgate.core.governance.decision import NeedsApproval
from taskgate.core.governance.held_call import ApprovalRequest, HeldCall
from taskgate.core.governance.pipeline import workflow_named
from taskgate.core.governance.recheck import REQUEST_DRIFT
from taskgate.core.governance.workflow import OnTimeout, Workflow
from taskgate.core.identity.identity import tenant_of
from taskgate.core.ids import RANDOM_BYTES, ulid
from taskgate.core.tasks.endings import after_recall
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import RunOn, Task
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.events import ApprovalOpened, ApprovalOver, DefinitionChanged, EventHub, TaskChanged
from taskgate.gateway.governance.announcer import Announcer
from taskgate.gateway.governance.approval_request import question, value_of
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.governance.ruling import accepted_text, refused_text
from taskgate.gateway.governance.standing_grants import StandingGrants
from taskgate.gateway.governance.unsafe_config import warn_unsafe_config
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.approval_channel import OTHER_ARGUMENTS, UNKNOWN_APPROVAL, VoteReply, VoteRequest
from taskgate.ports.approval_decisions import GrantRequest, Ruling
from taskgate.store.operations.approvals import (
    AuditOf,
    ChangeHeld,
    Decided,
    FindHeld,
    HeldCalls,
    LastApproved,
    TakeHeld,
)
from taskgate.store.operations.grants import FindGrants
from taskgate.store.operations.task_queries import FindTask
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

PREFIX: Final = "ap_"
PAGE: Final = 200
MAX_LOOKBACK: Final = 20
"""Maximum number of approved calls of other tenants that are skipped in search of the tenant's last one."""
RENDERED_INLINE_BYTES: Final = 16_384
"""Arguments up to this many bytes are rendered on the event loop; larger ones in a thread."""


TOO_LATE: Final = (
    "It is too late to take this approval back: the call has started or ended, or another approval decided it."
)


class Approvals:
    def __init__(
        self,
        records: TaskRecords,
        runs: Runs,
        presence: CallerPresence,
        *,
        plan: Live[Plan],
        grants: StandingGrants,
        expiries: ApprovalExpiries,
        address: PublicAddress,
        catalogs: Catalogs,
        metrics: Metrics,
        events: EventHub,
    ) -> None:
        self.grants = grants
        self.expiries = expiries
        self.announcer = Announcer(records.store, self.card_of, self._is_elsewhere)
        self._records = records
        self._runs = runs
        self._presence = presence
        self._store = records.store
        self._plan = plan
        self._address = address
        self._catalogs = catalogs
        self._metrics = metrics
        self._events = events
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        events.subscribe(ApprovalOpened, self._opened)
        events.subscribe(TaskChanged, self._task_changed)
        events.subscribe(DefinitionChanged, self._definition_changed)

    async def start(self) -> None:
        """Load the standing grants, open the channels, and announce the approvals that are still open."""
        await self.grants.load()
        warn_unsafe_config(self._plan.value.gates, self._store)
        await self.announcer.start(self.vote)
        await self._note_expiries()
        if any(self.announcer.channels.values()):
            await self._announce_again()

    async def _note_expiries(self) -> None:
        """Register the expiry of open approvals of earlier runs with the monotonic clock."""
        after: str | None = None
        while True:
            page = await self._store.ask(HeldCalls(after=after, limit=PAGE))
            for held in page.held:
                self.expiries.note(held.approval)
            if page.after is None:
                return
            after = page.after

    async def take_over(self) -> None:
        """Announce the approvals of a gateway that has died; its tasks may belong to this gateway now."""
        if any(self.announcer.channels.values()):
            await self.announcer.resume()
            await self._announce_again()

    async def _is_elsewhere(self, approval_id: str) -> bool:
        """Return whether another live gateway has the call. A held request of a dead gateway, if it is no task, is taken over."""
        rows, ours = self._store.shared, self._store.ownership.owner
        if rows is None:
            return False
        held = await self._store.ask(FindHeld(approval_id))
        task = await self._store.ask(FindTask(held.task_id)) if held is not None and held.task_id else None
        if task is not None:
            return task.owner != ours and rows.is_alive(task.owner)
        return held is not None and not await self._store.do(TakeHeld(approval_id))

    async def _announce_again(self) -> None:
        after: str | None = None
        while True:
            page = await self._store.ask(HeldCalls(after=after, limit=PAGE))
            for held in page.held:
                if not await self._is_elsewhere(held.approval.id):
                    self.announcer.announce(held.approval.id, held.approval.workflow)
            if page.after is None:
                return
            after = page.after

    async def close(self) -> None:
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self.announcer.close()
        for futures in self._waiting.values():
            for future in futures:
                future.cancel()

    def request(
        self, call: GatedCall, needs: NeedsApproval, caller: str, wire_name: str, limit_key: str
    ) -> ApprovalRequest:
        """Return the approval request for one call."""
        approval_id = PREFIX + ulid(self._store.now_ms(), secrets.token_bytes(RANDOM_BYTES))
        return question(self._plan.value, approval_id, call, needs, caller, wire_name=wire_name, limit_key=limit_key)

    def run_on(self) -> RunOn:
        """Return what starts a task whose caller has only its handle."""
        return {
            "demand": RunOn.DEMAND,
            "approval": RunOn.ONCE_ALLOWED,
            "result": RunOn.RESULT,
        }[self._plan.value.tasks.execute_on]

    def _opened(self, event: ApprovalOpened) -> None:
        approval = event.approval
        self.expiries.opened(approval.id, approval.workflow.timeout_ms)
        self._metrics.approvals.add("requested")
        self._metrics.approvals.add("asked")  # the deprecated name of the same count
        log.info(
            "approval requested",
            approval=approval.id,
            tool=approval.wire_name,
            caller=approval.binding.principal,
            workflow=approval.workflow.name,
            rule=approval.rule,
        )
        self.announcer.announce(approval.id, approval.workflow.name)

    async def vote(self, request: VoteRequest) -> VoteReply:
        """Process a vote from a channel. The channel identifies the person; the configuration defines what they may do."""
        approver = self._plan.value.governing.approvers.get(request.approver, Approver(request.approver))
        ruling = await self.decide(
            approver,
            request.approval_id,
            request.verdict,
            reason=request.reason,
            channel=request.channel,
            digest=request.arguments_digest,
        )
        return VoteReply(ruling.text, ruling.refusal)

    async def decide(
        self,
        approver: Approver,
        approval_id: str,
        verdict: Verdict,
        *,
        reason: str = "",
        channel: str = "",
        digest: str | None = None,
        grant: GrantRequest | None = None,
    ) -> Ruling:
        """Record one person's vote and apply its outcome. The store orders concurrent votes."""
        held = await self._store.ask(FindHeld(approval_id))
        approver = self._plan.value.governing.person(approver)
        if held is None or not approver.reaches(held.approval.binding.principal):
            return Ruling("No such approval.", UNKNOWN_APPROVAL)
        if digest is not None and digest != held.approval.binding.arguments_digest:
            return Ruling(
                "The arguments differ from those you were shown. Review the request again.", OTHER_ARGUMENTS, held
            )
        if grant is not None and verdict is Verdict.APPROVE:
            self.grants.check(grant)
        workflow = self.workflow(held.approval.workflow)
        event, not_before_ms = (
            Voted(by=approver, verdict=verdict, at_ms=0, reason=reason, channel=channel),
            self.expiries.passed_ms(held.approval),
        )
        answer = await self._store.do(ChangeHeld(approval_id, workflow, event, not_before_ms=not_before_ms))
        if not isinstance(answer, Decided):
            raise GatewayFault("store_unavailable", "The decision could not be stored; nothing was decided.")
        starts = await self._apply_outcome(held.approval, answer)
        if not isinstance(answer.outcome, Changed):
            why, refused = answer.outcome.why, answer.held.approval
            return Ruling(refused_text(why, refused, approver, self.page_url(refused.id)), why.value, answer.held)
        given = await self.grants.give(grant, answer.held.approval) if grant is not None else None
        log.info(
            "approval voted",
            approval=approval_id,
            by=approver.id,
            verdict=verdict.value,
            state=answer.held.approval.state.value,
            channel=channel,
        )
        text = accepted_text(answer.held.approval, workflow, given, starts=starts)
        return Ruling(text, held=answer.held, grant=given, starts=starts)

    async def can_be_recalled(self, approver: Approver, held: HeldCall) -> bool:
        """Whether a person's approval can be taken back: its task still waits for its caller, and nothing was sent."""
        task = await self._store.ask(FindTask(held.task_id)) if held.task_id is not None else None
        if task is None or task.state is not TaskState.APPROVED or await self._starts_now(task):
            return False
        workflow = self.workflow(held.approval.workflow)
        outcome = rules.apply(held.approval, workflow, Recalled(self._person(approver), self._store.now_ms()))
        return isinstance(outcome, Changed)

    async def recall(self, approver: Approver, approval_id: str) -> Ruling:
        """Take a person's approval back. The call waits for a decision again; one that is being sent is not affected."""
        held = await self._store.ask(FindHeld(approval_id))
        approver = self._person(approver)
        if held is None or not approver.reaches(held.approval.binding.principal):
            return Ruling("No such approval.", UNKNOWN_APPROVAL)
        if not await self.can_be_recalled(approver, held):
            return Ruling(TOO_LATE, rules.Refusal.ALREADY_DECIDED.value, held)
        workflow = self.workflow(held.approval.workflow)
        answer = await self._store.do(
            ChangeHeld(approval_id, workflow, Recalled(approver, 0), then=after_recall, audit=_recall_entry(approver))
        )
        if not isinstance(answer, Decided):
            raise GatewayFault("store_unavailable", "The approval could not be taken back; it remains approved.")
        if not isinstance(answer.outcome, Changed):
            return Ruling(TOO_LATE, answer.outcome.why.value, answer.held)
        self.expiries.note(answer.held.approval)
        for grant in await self._store.ask(FindGrants()):
            if grant.approval_id == approval_id:
                await self.grants.revoke(approver, grant.id)
        if answer.change is not None:
            self._records.announce(answer.change.task)
        self.announcer.changed(approval_id)
        self._wake(approval_id, held.approval.binding.principal)
        return Ruling("Your approval was taken back. The call waits for a decision again.", "", answer.held)

    def _person(self, approver: Approver) -> Approver:
        return self._plan.value.governing.person(approver)

    async def time_passed(self, approval_id: str) -> None:
        """End an approval that has timed out: denied, unless its workflow defines another outcome."""
        held = await self._store.ask(FindHeld(approval_id))
        if held is None:
            self.expiries.drop(approval_id)
            return
        workflow = self.workflow(held.approval.workflow)
        if workflow.on_timeout is OnTimeout.APPROVE and self.expiries.is_unexpired(held.approval):
            return  # a clock that was set forward must not approve anything before the timeout has passed
        not_before_ms = self.expiries.passed_ms(held.approval)
        answer = await self._store.do(ChangeHeld(approval_id, workflow, TimePassed(0), not_before_ms=not_before_ms))
        if isinstance(answer, Decided):
            if workflow.on_timeout is OnTimeout.APPROVE and answer.held.approval.state is State.APPROVED:
                log.warning("approved by timeout", approval=approval_id, workflow=workflow.name)
            await self._apply_outcome(held.approval, answer)

    def _definition_changed(self, event: DefinitionChanged) -> None:
        job = asyncio.get_running_loop().create_task(self._end_outdated(event))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _end_outdated(self, event: DefinitionChanged) -> None:
        """Run as a background job. Approvals that it does not reach are stopped by the recheck before the call is sent."""
        try:
            ended = await self.definition_changed(event.server, event.tool, event.digest)
        except Exception as fault:  # a background job that is not awaited
            log.error("approvals of a changed tool could not be ended", tool=event.tool, exc_info=fault)
            return
        if ended:
            log.warning("approvals ended, the definition changed", server=event.server, tool=event.tool, count=ended)

    async def definition_changed(self, server: str, tool: str, digest: str) -> int:
        """End open approvals of the old definition, because approvers were not shown the new one. Return their number."""
        count, after = 0, None
        while True:
            page = await self._store.ask(HeldCalls(after=after, limit=PAGE))
            for held in page.held:
                bound = held.approval.binding
                if (bound.server, bound.tool) == (server, tool) and bound.definition_digest != digest:
                    await self._drifted(held)
                    count += 1
            if page.after is None:
                return count
            after = page.after

    async def _drifted(self, held: HeldCall) -> None:
        workflow = self.workflow(held.approval.workflow)
        reason = f"{REQUEST_DRIFT}: the tool's definition changed after the approval was requested"
        answer = await self._store.do(ChangeHeld(held.approval.id, workflow, Drifted(0, REQUEST_DRIFT, reason)))
        if isinstance(answer, Decided):
            await self._apply_outcome(held.approval, answer)

    async def _apply_outcome(self, before: Approval, answer: Decided) -> bool | None:
        """Notify waiting requests, start the task if that is due, and update the announcements.

        Return whether the task of an approved call starts now; None if there is no task to start.
        """
        after, starts = answer.held.approval, None
        self.expiries.note(after)
        if after == before:
            return None
        if after.state is not before.state:
            self._metrics.approvals.add(after.state.value)
            self._wake(after.id, after.binding.principal)
        if answer.change is not None:
            # Check whether the caller is present before the notification makes it poll.
            starts = await self._starts_now(answer.change.task)
            self._records.announce(answer.change.task)
            self._start(answer.change.task, starts)
        self.announcer.changed(after.id)
        return starts

    def changed_elsewhere(self, approval_id: str) -> None:
        """Another gateway changed the approval: wake the requests that wait for it here."""
        self._wake(approval_id, "")
        self.announcer.changed(approval_id)

    async def refresh(self) -> None:
        """Announcements of other gateways were missed: check every approval that is awaited or announced here."""
        for approval_id in tuple(self._waiting):
            self._wake(approval_id, "")
        await self.announcer.refresh()

    async def task_changed_elsewhere(self, task: Task) -> None:
        self._start(task, await self._starts_now(task))

    async def starts_on_approval(self, task: Task) -> bool:
        """Return whether an approval starts the task at once, rather than at the caller's next poll."""
        return await self._presence.starts_on_approval(task)

    async def _starts_now(self, task: Task) -> bool | None:
        return await self._presence.starts_on_approval(task) if task.state is TaskState.APPROVED else None

    def _start(self, task: Task, starts: bool | None) -> None:
        """Start the task if this gateway owns it, or if the owner is dead. The owner holds the task's connections."""
        rows, owner = self._store.shared, self._store.ownership.owner
        if starts and (task.owner == owner or rows is None or not rows.is_alive(task.owner)):
            self._runs.start(task)

    def _task_changed(self, event: TaskChanged) -> None:
        task = event.task
        if task.approval_id is not None and task.state.is_terminal:
            self._wake(task.approval_id, task.principal)
            self.announcer.changed(task.approval_id)

    async def settled(self, approval_id: str, timeout_s: float) -> HeldCall | None:
        """Return the approval as soon as it is no longer open, or as it is at the timeout."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(approval_id, [])
        waiting.append(future)
        try:
            held = await self._store.ask(FindHeld(approval_id))
            if held is None or held.approval.state is not State.OPEN:
                return held
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            waiting.remove(future)
            if not waiting:
                self._waiting.pop(approval_id, None)
        return await self._store.ask(FindHeld(approval_id))

    def _wake(self, approval_id: str, principal: str) -> None:
        self._events.publish(ApprovalOver(approval_id, principal))
        for future in self._waiting.get(approval_id, ()):
            if not future.done():
                future.set_result(None)

    def may_decide(self, held: HeldCall, approver: Approver) -> bool:
        workflow = self.workflow(held.approval.workflow)
        return rules.may_decide(workflow, held.approval.binding, self._plan.value.governing.person(approver)) is None

    async def card_of(self, approval_id: str) -> Card | None:
        held = await self._store.ask(FindHeld(approval_id))
        return await self.card(held) if held is not None else None

    async def card(self, held: HeldCall) -> Card:
        """Return everything an approver sees, including the differences from the tenant's last approved call of the same tool."""
        before = await self._last_approved(held)
        workflow = self.workflow(held.approval.workflow)
        approval = rules.as_of(held.approval, workflow, self._store.now_ms())
        redaction, url = self._plan.value.governing.redaction(workflow.name), self.page_url(held.approval.id)
        origin = approval.from_script
        script = await self._store.ask(FindTask(origin.task_id)) if origin is not None else None
        of_script = script.arguments if script is not None else b"null"
        bound = approval.binding
        alike = self._catalogs.alike(bound.kind, bound.server, bound.tool)

        def made() -> Card:
            last = value_of(before.arguments) if before is not None else None
            given = value_of(held.arguments)
            return card(
                approval,
                workflow,
                given,
                redaction,
                last_approved=last,
                url=url,
                runs_script=_runs_script(held),
                from_script=value_of(of_script),
                alike=alike,
            )

        size = len(held.arguments) + len(of_script) + (len(before.arguments) if before is not None else 0)
        return made() if size <= RENDERED_INLINE_BYTES else await asyncio.to_thread(made)

    async def _last_approved(self, held: HeldCall) -> HeldCall | None:
        bound, before = held.approval.binding, held.approval.id
        for _ in range(MAX_LOOKBACK):
            last = await self._store.ask(LastApproved(bound.server, bound.tool, before=before))
            if last is None or tenant_of(last.approval.binding.principal) == tenant_of(bound.principal):
                return last
            before = last.approval.id
        return None

    def page_url(self, approval_id: str) -> str:
        return self._address.approval(approval_id)

    def workflow(self, name: str) -> Workflow:
        return workflow_named(self._plan.value.gates, name)


def _recall_entry(approver: Approver) -> AuditOf:
    """The audit entry of a recalled approval: who took it back, and of which call."""

    def entry(held: HeldCall, at_ms: int) -> AuditEntry:
        bound = held.approval.binding
        return AuditEntry(
            at_ms,
            "approval_recalled",
            bound.principal,
            scope=bound.scope,
            server=bound.server,
            name=bound.tool,
            kind=bound.kind.value,
            arguments_digest=bound.arguments_digest,
            rule=held.approval.rule,
            decision="open",
            approval_id=held.approval.id,
            reason=f"by {approver.id}",
            task_id=held.task_id or "",
        )

    return entry


def _runs_script(held: HeldCall) -> bool:
    bound = held.approval.binding
    return (bound.server, bound.tool) == (OWN_SERVER, OwnToolName.RUN_SCRIPT)
