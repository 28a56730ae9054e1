"""Create the parts that hold the servers' lists and the views of them."""

from __future__ import annotations

from taskgate.core.catalog.entry import EntryKind
from taskgate.gateway.catalog.catalog_memory import CatalogMemory
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.offer import Offer
from taskgate.gateway.catalog.quarantine import Quarantine
from taskgate.gateway.catalog.returned_uris import ReturnedUris
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.catalog.validate import Validation
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.governance.annotation_report import AnnotationReport
from taskgate.gateway.governance.pinned_contents import PinnedContents
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.governance.unmatched_report import UnmatchedReport
from taskgate.gateway.methods.upstream_notifications import UpstreamNotifications
from taskgate.gateway.questions.untied import UntiedQuestions
from taskgate.gateway.scope_record import ScopeRecord
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.groups import CatalogGroup, QuestionGroup
from taskgate.turns import in_turns


def wire_lists(base: Foundation) -> CatalogGroup:
    quarantine = Quarantine()
    validation = Validation(base.plan, base.metrics.schema_violations.add)
    pins = Pins(base.store, base.plan, quarantine, base.events)
    annotations = AnnotationReport(base.plan, quarantine, base.metrics)

    async def inspect(server: str, offer: Offer) -> None:
        await in_turns(pins.inspecting(server, offer))
        await in_turns(annotations.inspecting(server, offer))
        await in_turns(validation.inspecting(offer.entries.get(EntryKind.TOOL, ())))

    limits = base.plan.value.limits
    memory = CatalogMemory(base.store)
    catalogs = Catalogs(base.upstreams, limits, inspect, quarantine, memory, metrics=base.metrics, events=base.events)
    scope_record = ScopeRecord(base.store, base.metrics)
    slow_tools = SlowTools()
    views = Views(catalogs, scope_record, slow_tools)
    contents = PinnedContents(pins, base.upstreams, base.plan, base.events)
    return CatalogGroup(
        validation=validation,
        pins=pins,
        contents=contents,
        annotations=annotations,
        unmatched=UnmatchedReport(base.plan, catalogs, base.events),
        catalogs=catalogs,
        scope_record=scope_record,
        views=views,
        slow_tools=slow_tools,
        returned_uris=ReturnedUris(),
    )


def wire_notifications(base: Foundation, lists: CatalogGroup, asking: QuestionGroup) -> UpstreamNotifications:
    return UpstreamNotifications(
        base.plan,
        lists.catalogs,
        lists.views,
        base.sessions,
        base.subscriptions,
        activity=asking.activity,
        untied=UntiedQuestions(base.sessions, asking.asker, base.separated),
        urls=asking.urls,
        pages=asking.server_pages,
        events=base.events,
    )
