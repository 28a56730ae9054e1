"""Create the task engine and its parts."""

from __future__ import annotations

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.gateway.calls.tool_facts import ToolFacts
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.governance.approval_request import audit_of
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.pre_send_recheck import PreSendRecheck
from taskgate.gateway.tasks.account_questions import AccountQuestions
from taskgate.gateway.tasks.attempts import Attempts
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.gateway.tasks.deadline_enforcement import DeadlineEnforcement
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.held_replies import HeldReplies
from taskgate.gateway.tasks.methods import TaskMethods
from taskgate.gateway.tasks.open_promotions import OpenPromotions
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.promotion import PromotionParts, Promotions
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.questions_elsewhere import QuestionsElsewhere
from taskgate.gateway.tasks.questions_in_reply import QuestionsInReply
from taskgate.gateway.tasks.recovery import Recovery
from taskgate.gateway.tasks.run_queue import RunQueue
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_call import TaskCall
from taskgate.gateway.tasks.task_changes import TaskChanges
from taskgate.gateway.tasks.task_inbox import TaskInbox
from taskgate.gateway.tasks.task_metrics import TaskMetrics
from taskgate.gateway.tasks.task_polls import TaskPolls
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.gateway.tasks.task_results import TaskResults
from taskgate.gateway.tasks.upstream_listing import UpstreamListing
from taskgate.gateway.tasks.upstream_tasks import UpstreamTasks
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.groups import CatalogGroup, QuestionGroup, TaskGroup
from taskgate.ports.account_connector import AccountConnector


def wire_runs(
    base: Foundation, lists: CatalogGroup, asking: QuestionGroup, recheck: PreSendRecheck, accounts: AccountConnector
) -> TaskGroup:
    events, urls, facts = base.events, asking.urls, ToolFacts(lists.catalogs, lists.validation, lists.returned_uris)
    records = TaskRecords(base.store, TaskChanges(events), base.plan)
    conversations = Conversations(events)
    expiry_s = asking.asker.timeout_s
    followers = Followers(
        records,
        base.sessions,
        base.conversations,
        urls,
        base.subscriptions.following,
        events=events,
        expiry_s=expiry_s,
    )
    task_inbox = TaskInbox(
        activity=asking.activity,
        asker=asking.asker,
        models=asking.models,
        records=records,
        conversations=conversations,
    )
    questions = TaskQuestions(
        records, urls, events, push=followers.ask_on_stream, keep=task_inbox.keep, expiry_s=expiry_s
    )
    QuestionsElsewhere(records, questions, followers, events)
    deadlines = TaskDeadlines(base.store, events)
    account_questions = AccountQuestions(
        accounts=accounts,
        urls=urls,
        questions=questions,
        deadlines=deadlines,
        state_signer=base.state_signer,
        login_of=lambda principal: base.plan.value.governing.login_of(principal),
    )
    results = TaskResults(
        records=records,
        followers=followers,
        urls=urls,
        truncate=base.budgets.truncate,
        check_output=facts.check_output,
    )
    following = UpstreamTasks(
        records, questions, results, events, deadlines=deadlines, can_be_task=facts.can_be_upstream_task
    )
    queue = RunQueue(base.plan, records.store)
    base.metrics.show(*queue.gauges())
    call = TaskCall(
        records=records,
        questions=questions,
        deadlines=deadlines,
        waterfall=base.waterfall,
        tracing=base.tracing,
        upstreams=base.upstreams,
        events=events,
    )
    attempts = Attempts(
        records,
        questions,
        results,
        following,
        queue,
        call=call,
        accounts=account_questions,
        recheck=recheck,
        deadlines=deadlines,
        upstreams=base.upstreams,
        budgets=base.budgets,
    )
    runs, polls = Runs(records, attempts, conversations, base.upstreams, events), TaskPolls()
    return TaskGroup(
        records=records,
        conversations=conversations,
        followers=followers,
        questions=questions,
        account_questions=account_questions,
        results=results,
        task_inbox=task_inbox,
        runs=runs,
        deadlines=deadlines,
        polls=polls,
        presence=CallerPresence(base.store, followers, polls, asking.activity.is_awaited_by, events),
    )


def wire_task_metrics(base: Foundation, running: TaskGroup, asking: QuestionGroup) -> TaskMetrics:
    inbox, events = asking.activity.inbox, base.events
    return TaskMetrics(running.records, inbox, base.sessions, base.store, base.metrics, events=events)


def wire_task_engine(
    base: Foundation, running: TaskGroup, approvals: Approvals, recheck: PreSendRecheck, slow_tools: SlowTools
) -> TaskEngine:
    records, runs, questions, followers = running.records, running.runs, running.questions, running.followers
    enforcement = DeadlineEnforcement(
        records=records,
        runs=runs,
        deadlines=running.deadlines,
        approval_due=approvals.time_passed,
        approvals_over=approvals.expiries.over,
    )
    upstream_listing = UpstreamListing(base.upstreams, base.state_signer, base.store, base.events)

    def audit_approval(approval: ApprovalRequest, task_id: str) -> AuditEntry:
        return audit_of(base.plan.value, approval, task_id)

    parts = PromotionParts(
        plan=base.plan,
        records=records,
        runs=runs,
        conversations=running.conversations,
        questions=questions,
        results=running.results,
        recheck=recheck,
        open_promotions=OpenPromotions(base.plan, runs, base.events),
        adopt_questions=running.task_inbox.adopt,
    )
    return TaskEngine(
        plan=base.plan,
        store=base.store,
        events=base.events,
        records=records,
        conversations=running.conversations,
        questions=questions,
        account_questions=running.account_questions,
        runs=runs,
        promotions=Promotions(plan=base.plan, parts=parts, tools=slow_tools),
        methods=TaskMethods(
            records,
            runs,
            questions,
            upstream_listing,
            followers,
            conversations=base.conversations,
            state_signer=base.state_signer,
            polls=running.polls,
            presence=running.presence,
        ),
        recovery=Recovery(records, runs, running.deadlines, enforcement),
        deadlines=enforcement,
        followers=followers,
        presence=running.presence,
        held_replies=HeldReplies(),
        asking=QuestionsInReply(records, questions, base.state_signer),
        address=base.address,
        audit_approval=audit_approval,
    )
