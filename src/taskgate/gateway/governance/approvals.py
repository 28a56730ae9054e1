"""Asking people about a call, and doing what they said.

Every door and channel comes through here: the page, the API, the command line, webhooks, Slack and the caller's own elicitation.
Who may decide is answered by `core.governance.approval`, the store makes a decision final, and this is the sentence around both:
ask, hear, tell the one who waits, and start the run when that is what the waiting was for.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from taskgate.core.audit import Entry
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.governance import approval as rules
from taskgate.core.governance.approval import (
    Approval,
    Approver,
    Changed,
    Drifted,
    OnTimeout,
    Refusal,
    State,
    TimePassed,
    Verdict,
    Voted,
    Workflow,
)
from taskgate.core.governance.card import Card, card
from taskgate.core.governance.decision import NeedsApproval
from taskgate.core.governance.digest import AmbiguousJson, parse_strict
from taskgate.core.governance.grants import DEFAULT_GRANT_MS, Grant, NoGrant, grant_from
from taskgate.core.governance.pipeline import Profile, workflow_named
from taskgate.core.governance.recheck import REQUEST_DRIFT
from taskgate.core.tasks import ids
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import RunOn, Task
from taskgate.gateway.governance.announce import Announcer
from taskgate.gateway.governance.judge import Asked, binding_of
from taskgate.gateway.plan import ExecuteOn, Plan
from taskgate.gateway.request import Request
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.ports.approval_channel import OTHER_ARGUMENTS, UNKNOWN_APPROVAL, Heard, Said
from taskgate.ports.approval_store import ApprovalRequest, Decided, HeldCall
from taskgate.telemetry.metrics import Metrics

log = structlog.get_logger("taskgate")

APPROVAL_PREFIX: Final = "ap_"
GRANT_PREFIX: Final = "gr_"
PAGE: Final = 200
MAX_AUDITED_ARGUMENTS: Final = 16_384
DEFAULT_BASE: Final = "http://127.0.0.1:7467"


@dataclass(frozen=True, slots=True)
class GrantWish:
    """ "And the next ones too": what an approver may add to a yes."""

    for_ms: int = DEFAULT_GRANT_MS
    exact_arguments: bool = False
    whole_scope: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of a person's word. `refusal` is empty when it counted; `text` is for that person."""

    text: str
    refusal: str = ""
    held: HeldCall | None = None
    grant: Grant | None = None


class Approvals:
    def __init__(self, tasks: TaskEngine, plan: Callable[[], Plan], metrics: Metrics) -> None:
        self._tasks = tasks
        self._store = tasks.store
        self._plan = plan
        self._metrics = metrics
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self.grants: tuple[Grant, ...] = ()
        self.base_url = DEFAULT_BASE
        self.when_opened: Callable[[Task | None, ApprovalRequest, Request], None] = lambda _task, _asked, _request: None
        self.when_over: Callable[[str], None] = lambda _approval_id: None
        self.announcer = Announcer(self.card_of)
        tasks.on_held = self.opened
        tasks.audit_of = self.audit_of
        tasks.recovery.approval_due = self.time_passed
        tasks.board.listeners.append(self._task_changed)

    async def start(self) -> None:
        """At start: know the standing grants, open the channels, and announce what was left open, once."""
        self.grants = await self._store.grants()
        self.warn_of_loose_ends()
        await self.announcer.start(self.hear)
        if any(self.announcer.channels.values()):
            await self._announce_again()

    def warn_of_loose_ends(self) -> None:
        """Whatever makes governance weaker than it looks is said aloud, and recorded."""
        gates = self._plan().gates
        if gates.profile is Profile.DEVELOPMENT:
            log.warning(
                "DEVELOPMENT PROFILE: rules, policies and approvals are not enforced, only logged. Not for production."
            )
            self._store.record(Entry(0, "profile_development", policy_revision=gates.revision))
        for workflow in gates.workflows.values():
            if workflow.on_timeout is OnTimeout.APPROVE:
                log.warning("UNSAFE WORKFLOW: silence approves calls", workflow=workflow.name)
                self._store.record(Entry(0, "unsafe_workflow", reason=workflow.name, policy_revision=gates.revision))

    async def _announce_again(self) -> None:
        after: str | None = None
        while True:
            page = await self._store.held_page(after=after, limit=PAGE)
            for held in page.held:
                self.announcer.announce(held.approval.id, held.approval.workflow)
            if page.after is None:
                return
            after = page.after

    async def close(self) -> None:
        await self.announcer.close()
        for futures in self._waiting.values():
            for future in futures:
                future.cancel()

    # Asking

    def request(self, asked: Asked, needs: NeedsApproval, caller: str, wire_name: str) -> ApprovalRequest:
        """The question about one call, bound to everything that people will agree to."""
        plan = self._plan()
        rule = f"{needs.rule}: {needs.reason}" if needs.reason else needs.rule
        return ApprovalRequest(
            APPROVAL_PREFIX + self._ulid(),
            self.workflow(needs.workflow),
            rule,
            binding_of(plan, asked),
            caller,
            wire_name,
            asked.arguments,
        )

    def audit_of(self, asked: ApprovalRequest, task_id: str = "") -> Entry:
        """The row that says what was asked, with its arguments as approvers see them."""
        redacted = self._plan().governing.redaction(asked.workflow.name).redact(_value(asked.arguments))
        small = len(asked.arguments) <= MAX_AUDITED_ARGUMENTS
        bound = asked.binding
        return Entry(
            0,
            "approval_asked",
            bound.principal,
            bound.scope,
            bound.server,
            bound.tool,
            bound.kind.value,
            bound.arguments_digest,
            redacted.value if small else None,
            redacted.hidden,
            asked.rule,
            "held",
            bound.policy_revision,
            asked.id,
            task_id=task_id,
        )

    def run_on(self) -> RunOn:
        """What starts a task whose caller went away with a handle."""
        return {
            ExecuteOn.DEMAND: RunOn.DEMAND,
            ExecuteOn.APPROVAL: RunOn.ONCE_ALLOWED,
            ExecuteOn.RESULT: RunOn.RESULT,
        }[self._plan().calls.execute_on]

    def opened(self, task: Task | None, asked: ApprovalRequest, request: Request) -> None:
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
        self.when_opened(task, asked, request)

    # Deciding

    async def hear(self, said: Said) -> Heard:
        """A word from a channel: the person is who the channel says, and may do what the configuration says."""
        who = self._plan().governing.approvers.get(said.who, Approver(said.who))
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
        if held is None:
            return Ruling("There is no such approval.", UNKNOWN_APPROVAL)
        if digest is not None and digest != held.approval.binding.arguments_digest:
            return Ruling("The arguments are not the ones you were shown. Look again.", OTHER_ARGUMENTS, held)
        if grant is not None and verdict is Verdict.APPROVE:
            self._check_wish(grant)
        workflow = self.workflow(held.approval.workflow)
        happening = Voted(who, verdict, 0, reason, channel)
        answer = await self._store.change_held(approval_id, workflow, happening)
        if not isinstance(answer, Decided):
            raise GatewayFault("store_unavailable", "The decision could not be stored; nothing was decided.")
        self._consequences(held.approval, answer)
        if not isinstance(answer.outcome, Changed):
            return Ruling(_refused(answer.outcome.why, answer.held.approval), answer.outcome.why.value, answer.held)
        given = await self._give(grant, answer.held.approval) if grant is not None else None
        log.info(
            "approval voted",
            approval=approval_id,
            by=who.id,
            verdict=verdict.value,
            state=answer.held.approval.state.value,
            channel=channel,
        )
        return Ruling(_accepted(answer.held.approval, workflow, given), "", answer.held, given)

    async def time_passed(self, approval_id: str) -> None:
        """Its clock ran out: silence is a no, or whatever its workflow says."""
        held = await self._store.held(approval_id)
        if held is None:
            return
        workflow = self.workflow(held.approval.workflow)
        answer = await self._store.change_held(approval_id, workflow, TimePassed(0))
        if isinstance(answer, Decided):
            if workflow.on_timeout is OnTimeout.APPROVE and answer.held.approval.state is State.APPROVED:
                log.warning("approved by silence", approval=approval_id, workflow=workflow.name)
            self._consequences(held.approval, answer)

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
            self._consequences(held.approval, answer)

    def _consequences(self, before: Approval, answer: Decided) -> None:
        """Tell whoever waits, run what may run, and bring the cards up to date."""
        after = answer.held.approval
        if after == before:
            return
        if after.state is not before.state:
            self._metrics.approvals.add(after.state.value)
            self._wake(after.id)
        if answer.change is not None:
            self._tasks.desk.moved(answer.change.task)
            self._start_if_wanted(answer.change.task)
        self.announcer.changed(after.id)

    def _start_if_wanted(self, task: Task) -> None:
        if task.state is not TaskState.APPROVED:
            return
        followed = task.run_on is RunOn.DEMAND and self._tasks.followers.listeners(task.id)
        if task.run_on is RunOn.ONCE_ALLOWED or followed:
            self._tasks.runs.start(task)

    def _task_changed(self, task: Task) -> None:
        if task.approval_id is not None and task.state.is_terminal:
            self._wake(task.approval_id)
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

    def _wake(self, approval_id: str) -> None:
        self.when_over(approval_id)
        for future in self._waiting.get(approval_id, ()):
            if not future.done():
                future.set_result(None)

    # Grants

    def _check_wish(self, wish: GrantWish) -> None:
        governing = self._plan().governing
        if not governing.grants:
            raise CallerError("invalid_params", "Grants are switched off in this configuration.")
        if not 0 < wish.for_ms <= governing.longest_grant_ms:
            raise CallerError(
                "invalid_params", f"A grant may last at most {governing.longest_grant_ms // 60_000} minutes here."
            )

    async def _give(self, wish: GrantWish, approval: Approval) -> Grant | None:
        """Only once everybody needed has agreed."""
        if approval.state not in (State.APPROVED, State.USED):
            return None
        try:
            grant = grant_from(
                approval,
                GRANT_PREFIX + self._ulid(),
                self._store.now_ms(),
                for_ms=wish.for_ms,
                exact_arguments=wish.exact_arguments,
                whole_scope=wish.whole_scope,
            )
        except NoGrant as problem:
            raise CallerError("invalid_params", f"No grant: {problem}.") from None
        await self._store.add_grant(grant)
        self.grants = await self._store.grants()
        return grant

    async def revoke(self, who: Approver, grant_id: str) -> Grant | None:
        grant = await self._store.revoke_grant(grant_id, who.id)
        self.grants = await self._store.grants()
        return grant

    # Showing

    async def card_of(self, approval_id: str) -> Card | None:
        held = await self._store.held(approval_id)
        return await self.card(held) if held is not None else None

    async def card(self, held: HeldCall) -> Card:
        """Everything an approver sees, with what differs from the last approved call of the same tool."""
        bound = held.approval.binding
        before = await self._store.last_approved(bound.server, bound.tool, before=held.approval.id)
        workflow = self.workflow(held.approval.workflow)
        return card(
            rules.as_of(held.approval, workflow, self._store.now_ms()),
            workflow,
            _value(held.arguments),
            self._plan().governing.redaction(workflow.name),
            last_approved=_value(before.arguments) if before is not None else None,
            url=self.page_url(held.approval.id),
        )

    def page_url(self, approval_id: str) -> str:
        return f"{self.public_base(self._plan())}/approvals/{approval_id}"

    def public_base(self, plan: Plan) -> str:
        """The address under which people reach this gateway."""
        return plan.governing.public_url or self.base_url

    def workflow(self, name: str) -> Workflow:
        return workflow_named(self._plan().gates, name)

    def _ulid(self) -> str:
        return ids.ulid(self._store.now_ms(), secrets.token_bytes(ids.RANDOM_BYTES))


def _value(arguments: bytes) -> Any:
    try:
        return parse_strict(arguments)
    except AmbiguousJson:
        return arguments.decode("utf-8", "replace")


_WHY: Final[Mapping[Refusal, str]] = {
    Refusal.ALREADY_VOTED: "You have approved this call already. Somebody else must agree too.",
    Refusal.NOT_AN_APPROVER: "You may not decide on this call.",
    Refusal.OWN_CALL: "You asked for this call yourself, so somebody else must decide (see self_approval).",
    Refusal.EXPIRED: "Too late: nobody had decided in time, so the call was refused.",
    Refusal.NOT_APPROVED: "This call is not approved.",
    Refusal.NOT_DUE: "It is not due yet.",
}


def _refused(why: Refusal, approval: Approval) -> str:
    if why is not Refusal.ALREADY_DECIDED:
        return _WHY[why]
    by = ", ".join(dict.fromkeys(vote.approver for vote in approval.votes))
    state = "approved and sent" if approval.state is State.USED else approval.state.value
    return f"This call is {state} already{f' (by {by})' if by else ''}."


def _accepted(approval: Approval, workflow: Workflow, grant: Grant | None) -> str:
    if approval.state is State.DENIED:
        return "Denied. The tool will not run."
    if approval.state is State.OPEN:
        yes = sum(1 for vote in approval.votes if vote.verdict is Verdict.APPROVE)
        return f"Noted: {yes} of {workflow.approvals_needed} approvals."
    return "Approved." if grant is None else f"Approved, and granted until it is revoked or over (grant {grant.id})."
