"""Create the parts that answer the servers' requests."""

from __future__ import annotations

from taskgate.core.audit.chain import AuditEntry
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.asker import Asker
from taskgate.gateway.questions.elicitation_pages import ElicitationPages
from taskgate.gateway.questions.listed_elicitations import OwnElicitations, ServerElicitations
from taskgate.gateway.questions.model_sampling import Models, shown_to_operator
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.gateway.relay.relay import Relay
from taskgate.gateway.relay.suspended_calls import SuspendedCalls
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.groups import QuestionGroup
from taskgate.store.operations.audit import RecordAudit


def wire_questions(base: Foundation) -> QuestionGroup:
    def record(entry: AuditEntry) -> None:
        base.store.defer(RecordAudit(entry))

    activity = Activity(base.store, base.plan, base.upstreams, base.address, base.conversations, events=base.events)
    models = Models(base.plan, base.budgets, shown_to_operator(activity.inbox), record, base.journal.spent)
    urls = UrlElicitations(base.plan, record, base.events)
    pages = ElicitationPages(base.events)
    own_pages = OwnElicitations(base.plan, urls, pages, base.address)
    return QuestionGroup(
        activity=activity,
        models=models,
        urls=urls,
        asker=Asker(activity, models, urls, base.plan),
        pages=pages,
        own_pages=own_pages,
        server_pages=ServerElicitations(base.plan, own_pages),
    )


def wire_suspended_calls(base: Foundation, asking: QuestionGroup) -> SuspendedCalls:
    return SuspendedCalls(asking.urls, asking.asker.ask_fallback, asking.asker.refusal, base.home)


def wire_relay(base: Foundation, asking: QuestionGroup, suspended: SuspendedCalls) -> Relay:
    return Relay(
        base.state_signer,
        suspended,
        asking.urls,
        ask=asking.asker.ask_caller,
        ask_fallback=asking.asker.ask_fallback,
        refusal=asking.asker.refusal,
        waterfall=base.waterfall,
        tracing=base.tracing,
        events=base.events,
    )
