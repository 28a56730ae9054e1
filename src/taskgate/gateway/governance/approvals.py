"""Asking people about a call, and doing what they said.

Every channel comes through here: the page, the API, the command line, webhooks, Slack and the caller's own elicitation.
Who may decide is answered by `core.governance.approval`, the store makes a decision final, and this is the sentence around both:
ask, hear, tell the one who waits, and start the run when that is what the waiting was for.

Whatever makes governance weaker than it looks is said aloud at the start and after a reload, and recorded.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import GatewayFault
from taskgate.core.governance import approval as rules
from taskgate.core.governance.approval import Approval, Changed, Drifted, State, TimePassed, Verdict, Voted
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import Card, card
from taskgate.core.governance.decision import NeedsApproval
from taskgate.core.governance.pipeline import EnforcementProfile, Gates, workflow_named
from taskgate.core.governance.recheck import REQUEST_DRIFT
from taskgate.core.governance.workflow import OnTimeout, Workflow
from taskgate.core.identity.identity import tenant_of
from taskgate.core.ids import RANDOM_BYTES, ulid
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import RunOn, Task
from taskgate.gateway.events import ApprovalOpened, ApprovalOver, DefinitionChanged, EventHub, TaskChanged
from taskgate.gateway.governance.announce import Announcer, question, value_of
from taskgate.gateway.governance.evaluate import Asked
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.governance.standing_grants import GrantWish, Ruling, StandingGrants, accepted_text, refused_text
from taskgate.gateway.plan import ExecuteOn, Live, Plan, PublicAddress
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.approval_channel import OTHER_ARGUMENTS, UNKNOWN_APPROVAL, Heard, Said
from taskgate.ports.approval_store import ApprovalRequest, Decided, HeldCall
from taskgate.ports.store import AuditLog
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

BANNER = "DEVELOPMENT PROFILE: rules, policies and approvals are not enforced, only logged. Not for production."


def warn_of_loose_ends(gates: Gates, audit: AuditLog) -> None:
    if gates.profile is EnforcementProfile.DEVELOPMENT:
        log.warning(BANNER)
        audit.record(AuditEntry(0, "profile_development", policy_revision=gates.revision))
    for workflow in gates.workflows.values():
        if workflow.on_timeout is OnTimeout.APPROVE:
            log.warning("UNSAFE WORKFLOW: silence approves calls", workflow=workflow.name)
            audit.record(AuditEntry(0, "unsafe_workflow", reason=workflow.name, policy_revision=gates.revision))


PREFIX: Final = "ap_"
PAGE: Final = 200
LOOKED_BACK: Final = 20
"""So many approved calls of other tenants are passed over in search of the tenant's own last one."""
MADE_AT_ONCE: Final = 16_384
"""Bytes of arguments of which a card is made on the loop; of more beside it."""


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
        self._metrics = metrics
        self._events = events
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        events.subscribe(ApprovalOpened, self._opened)
        events.subscribe(TaskChanged, self._task_changed)
        events.subscribe(DefinitionChanged, self._definition_changed)

    async def start(self) -> None:
        """At start: know the standing grants, open the channels, and announce what was left open, once."""
        await self.grants.load()
        warn_of_loose_ends(self._plan.value.gates, self._store)
        await self.announcer.start(self.hear)
        await self._note_expiries()
        if any(self.announcer.channels.values()):
            await self._announce_again()

    async def _note_expiries(self) -> None:
        """From now on the time of what earlier lives left open is counted by the monotonic clock, too."""
        after: str | None = None
        while True:
            page = await self._store.held_page(after=after, limit=PAGE)
            for held in page.held:
                self.expiries.note(held.approval)
            if page.after is None:
                return
            after = page.after

    async def take_over(self) -> None:
        """Another gateway has died, and its tasks may be ours now: people hear of them from us from here on."""
        if any(self.announcer.channels.values()):
            await self.announcer.take_up()
            await self._announce_again()

    async def _is_elsewhere(self, approval_id: str) -> bool:
        """Whether a gateway that lives, and is not this one, has the call. A request of a dead one that is no task becomes ours."""
        rows, ours = self._store.sessions, self._store.ownership.owner
        if rows is None:
            return False
        held = await self._store.held(approval_id)
        task = await self._store.get(held.task_id) if held is not None and held.task_id else None
        if task is not None:
            return task.owner != ours and rows.is_alive(task.owner)
        return held is not None and not await self._store.take_held(approval_id)

    async def _announce_again(self) -> None:
        after: str | None = None
        while True:
            page = await self._store.held_page(after=after, limit=PAGE)
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

    # Asking

    def request(
        self, asked: Asked, needs: NeedsApproval, caller: str, wire_name: str, limit_key: str
    ) -> ApprovalRequest:
        """The question about one call."""
        approval_id = PREFIX + ulid(self._store.now_ms(), secrets.token_bytes(RANDOM_BYTES))
        return question(self._plan.value, approval_id, asked, needs, caller, wire_name=wire_name, limit_key=limit_key)

    def run_on(self) -> RunOn:
        """What starts a task whose caller went away with a handle."""
        return {
            ExecuteOn.DEMAND: RunOn.DEMAND,
            ExecuteOn.APPROVAL: RunOn.ONCE_ALLOWED,
            ExecuteOn.RESULT: RunOn.RESULT,
        }[self._plan.value.calls.execute_on]

    def _opened(self, event: ApprovalOpened) -> None:
        asked = event.approval
        self.expiries.opened(asked.id, asked.workflow.timeout_ms)
        self._metrics.approvals.add("asked")
        log.info(
            "approval asked",
            approval=asked.id,
            tool=asked.wire_name,
            caller=asked.binding.principal,
            workflow=asked.workflow.name,
            rule=asked.rule,
        )
        self.announcer.announce(asked.id, asked.workflow.name)

    # Deciding

    async def hear(self, said: Said) -> Heard:
        """A word from a channel: the person is who the channel says, and may do what the configuration says."""
        who = self._plan.value.governing.approvers.get(said.who, Approver(said.who))
        ruling = await self.decide(
            who, said.approval_id, said.verdict, reason=said.reason, channel=said.channel, digest=said.arguments_digest
        )
        return Heard(ruling.text, ruling.refusal)

    async def decide(
        self,
        who: Approver,
        approval_id: str,
        verdict: Verdict,
        *,
        reason: str = "",
        channel: str = "",
        digest: str | None = None,
        grant: GrantWish | None = None,
    ) -> Ruling:
        """One person's yes or no. The store decides between racing ones."""
        held = await self._store.held(approval_id)
        who = self._plan.value.governing.person(who)
        if held is None or not who.reaches(held.approval.binding.principal):
            return Ruling("There is no such approval.", UNKNOWN_APPROVAL)
        if digest is not None and digest != held.approval.binding.arguments_digest:
            return Ruling("The arguments are not the ones you were shown. Look again.", OTHER_ARGUMENTS, held)
        if grant is not None and verdict is Verdict.APPROVE:
            self.grants.check(grant)
        workflow = self.workflow(held.approval.workflow)
        event, not_before_ms = Voted(who, verdict, 0, reason, channel), self.expiries.passed_ms(held.approval)
        answer = await self._store.change_held(approval_id, workflow, event, not_before_ms=not_before_ms)
        if not isinstance(answer, Decided):
            raise GatewayFault("store_unavailable", "The decision could not be stored; nothing was decided.")
        starts = await self._consequences(held.approval, answer)
        if not isinstance(answer.outcome, Changed):
            why, refused = answer.outcome.why, answer.held.approval
            return Ruling(refused_text(why, refused, who, self.page_url(refused.id)), why.value, answer.held)
        given = await self.grants.give(grant, answer.held.approval) if grant is not None else None
        log.info(
            "approval voted",
            approval=approval_id,
            by=who.id,
            verdict=verdict.value,
            state=answer.held.approval.state.value,
            channel=channel,
        )
        text = accepted_text(answer.held.approval, workflow, given, starts=starts)
        return Ruling(text, "", answer.held, given, starts)

    async def time_passed(self, approval_id: str) -> None:
        """Its time is over: without a decision it is denied, or what its workflow says."""
        held = await self._store.held(approval_id)
        if held is None:
            self.expiries.drop(approval_id)
            return
        workflow = self.workflow(held.approval.workflow)
        if workflow.on_timeout is OnTimeout.APPROVE and self.expiries.is_known_to_last(held.approval):
            return  # a clock that was set forward must not approve anything: people have the time they were promised
        not_before_ms = self.expiries.passed_ms(held.approval)
        answer = await self._store.change_held(approval_id, workflow, TimePassed(0), not_before_ms=not_before_ms)
        if isinstance(answer, Decided):
            if workflow.on_timeout is OnTimeout.APPROVE and answer.held.approval.state is State.APPROVED:
                log.warning("approved by silence", approval=approval_id, workflow=workflow.name)
            await self._consequences(held.approval, answer)

    def _definition_changed(self, event: DefinitionChanged) -> None:
        job = asyncio.get_running_loop().create_task(self._end_questions(event))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _end_questions(self, event: DefinitionChanged) -> None:
        """Around one background job: what is not ended here is stopped by the recheck before it is sent."""
        try:
            ended = await self.definition_changed(event.server, event.tool, event.digest)
        except Exception as fault:  # nobody awaits this job
            log.error("approvals of a changed tool could not be ended", tool=event.tool, exc_info=fault)
            return
        if ended:
            log.warning("approvals ended, the definition changed", server=event.server, tool=event.tool, count=ended)

    async def definition_changed(self, server: str, tool: str, digest: str) -> int:
        """Open questions about the old definition die: nobody agreed to the new one."""
        count, after = 0, None
        while True:
            page = await self._store.held_page(after=after, limit=PAGE)
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
        reason = f"{REQUEST_DRIFT}: the tool's definition changed after the call was asked about"
        answer = await self._store.change_held(held.approval.id, workflow, Drifted(0, REQUEST_DRIFT, reason))
        if isinstance(answer, Decided):
            await self._consequences(held.approval, answer)

    async def _consequences(self, before: Approval, answer: Decided) -> bool | None:
        """Notify what waits, run what may run, and bring the cards up to date. Whether the task of an approved call starts now;
        None where there is none to start.
        """
        after, starts = answer.held.approval, None
        self.expiries.note(after)
        if after == before:
            return None
        if after.state is not before.state:
            self._metrics.approvals.add(after.state.value)
            self._wake(after.id, after.binding.principal)
        if answer.change is not None:
            # Whether the caller is present is looked at before a notification makes it come.
            starts = await self._starts_now(answer.change.task)
            self._records.announce(answer.change.task)
            self._start(answer.change.task, starts)
        self.announcer.changed(after.id)
        return starts

    def changed_elsewhere(self, approval_id: str) -> None:
        """Another gateway on this store moved an approval: whoever waits here looks again."""
        self._wake(approval_id, "")
        self.announcer.changed(approval_id)

    async def look_again(self) -> None:
        """What other gateways announced for a while was not heard."""
        for approval_id in tuple(self._waiting):
            self._wake(approval_id, "")
        await self.announcer.look_again()

    async def task_changed_elsewhere(self, task: Task) -> None:
        self._start(task, await self._starts_now(task))

    async def starts_on_approval(self, task: Task) -> bool:
        """Whether an approval starts it at once, rather than its caller's next look."""
        return await self._presence.starts_on_approval(task)

    async def _starts_now(self, task: Task) -> bool | None:
        return await self._presence.starts_on_approval(task) if task.state is TaskState.APPROVED else None

    def _start(self, task: Task, starts: bool | None) -> None:
        """Its own gateway starts it, which has its connections; another one only if that gateway is gone."""
        rows, owner = self._store.sessions, self._store.ownership.owner
        if starts and (task.owner == owner or rows is None or not rows.is_alive(task.owner)):
            self._runs.start(task)

    def _task_changed(self, event: TaskChanged) -> None:
        task = event.task
        if task.approval_id is not None and task.state.is_terminal:
            self._wake(task.approval_id, task.principal)
            self.announcer.changed(task.approval_id)

    # Waiting

    async def settled(self, approval_id: str, timeout_s: float) -> HeldCall | None:
        """The approval once it is no longer open, or as it is when the time is up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(approval_id, [])
        waiting.append(future)
        try:
            held = await self._store.held(approval_id)
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
        return await self._store.held(approval_id)

    def _wake(self, approval_id: str, principal: str) -> None:
        self._events.publish(ApprovalOver(approval_id, principal))
        for future in self._waiting.get(approval_id, ()):
            if not future.done():
                future.set_result(None)

    # Showing

    def may_decide(self, held: HeldCall, who: Approver) -> bool:
        workflow = self.workflow(held.approval.workflow)
        return rules.may_decide(workflow, held.approval.binding, self._plan.value.governing.person(who)) is None

    async def card_of(self, approval_id: str) -> Card | None:
        held = await self._store.held(approval_id)
        return await self.card(held) if held is not None else None

    async def card(self, held: HeldCall) -> Card:
        """Everything an approver sees, with what differs from the tenant's last approved call of the same tool."""
        before = await self._last_approved(held)
        workflow = self.workflow(held.approval.workflow)
        approval = rules.as_of(held.approval, workflow, self._store.now_ms())
        redaction, url = self._plan.value.governing.redaction(workflow.name), self.page_url(held.approval.id)

        def made() -> Card:
            last = value_of(before.arguments) if before is not None else None
            return card(approval, workflow, value_of(held.arguments), redaction, last_approved=last, url=url)

        size = len(held.arguments) + (len(before.arguments) if before is not None else 0)
        return made() if size <= MADE_AT_ONCE else await asyncio.to_thread(made)

    async def _last_approved(self, held: HeldCall) -> HeldCall | None:
        bound, before = held.approval.binding, held.approval.id
        for _ in range(LOOKED_BACK):
            last = await self._store.last_approved(bound.server, bound.tool, before=before)
            if last is None or tenant_of(last.approval.binding.principal) == tenant_of(bound.principal):
                return last
            before = last.approval.id
        return None

    def page_url(self, approval_id: str) -> str:
        return self._address.approval(approval_id)

    def workflow(self, name: str) -> Workflow:
        return workflow_named(self._plan.value.gates, name)
