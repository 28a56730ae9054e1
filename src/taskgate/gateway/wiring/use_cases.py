"""Create the use cases and the own tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskgate.gateway.calls.call_tool import ToolCalls
from taskgate.gateway.calls.durable_calls import DurableCalls
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.readings import Readings
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.calls.skill_discovery import SkillDiscovery
from taskgate.gateway.calls.skill_files import SkillFiles
from taskgate.gateway.calls.skills import Skills
from taskgate.gateway.calls.task_contract import TaskContract
from taskgate.gateway.catalog.argument_checks import ArgumentChecks
from taskgate.gateway.catalog.completions import Completions
from taskgate.gateway.catalog.known_skills import KnownSkills
from taskgate.gateway.governance.approval_by_url import ApprovalByUrl
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.governance.held_readings import HeldReadings
from taskgate.gateway.method_tables import Methods
from taskgate.gateway.methods.completion import Completing
from taskgate.gateway.methods.following import Following
from taskgate.gateway.own_tools import use_resources
from taskgate.gateway.own_tools.answer_questions import QUESTION_TOOLS, QuestionParts
from taskgate.gateway.own_tools.await_activity import WAITING_TOOLS
from taskgate.gateway.own_tools.execute_tool import EXECUTE_TOOLS, ExecuteParts
from taskgate.gateway.own_tools.follow_tasks import TASK_TOOLS
from taskgate.gateway.own_tools.list_offers import LISTING_TOOLS, ListingParts
from taskgate.gateway.own_tools.manage_servers import MANAGING_TOOLS, ManagingParts
from taskgate.gateway.own_tools.own_resources import ResourceParts
from taskgate.gateway.own_tools.own_tools import OwnTools
from taskgate.gateway.own_tools.run_scripts import SCRIPT_TOOLS
from taskgate.gateway.own_tools.script_tool_parts import ScriptToolParts
from taskgate.gateway.own_tools.search_tools import SEARCH_TOOLS, SearchParts
from taskgate.gateway.own_tools.server_messages import MESSAGE_TOOLS, MessageParts
from taskgate.gateway.own_tools.task_card import CARD_TOOLS, CardParts
from taskgate.gateway.own_tools.timers import TIMER_TOOLS, TimerParts
from taskgate.gateway.own_tools.tool import TaskParts, bind_tools
from taskgate.gateway.own_tools.use_skills import SKILL_TOOLS, SkillParts
from taskgate.gateway.relay.relay import Relay
from taskgate.gateway.reload import Reload
from taskgate.gateway.tasks.engine import TaskEngine

if TYPE_CHECKING:
    pass
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.groups import CatalogGroup, GovernanceGroup, QuestionGroup
from taskgate.store.operations.audit import RecordAudit


def use_cases(
    base: Foundation,
    lists: CatalogGroup,
    asking: QuestionGroup,
    tasks: TaskEngine,
    governed: GovernanceGroup,
    *,
    relay: Relay,
    reload: Reload,
) -> Methods:
    """Create the use cases."""
    lookup = Lookup(base.plan, lists.catalogs, lists.views)
    sending = Sending(
        plan=base.plan, upstreams=base.upstreams, relay=relay, budgets=base.budgets, returned_uris=lists.returned_uris
    )
    completions, held = Completions(base.plan, base.events), HeldReadings(governed.gate, tasks, base.plan, base.events)
    skill_files = SkillFiles(lookup, sending, KnownSkills(lists.catalogs), lists.pins)
    readings = Readings(
        lookup=lookup,
        sending=sending,
        held=held,
        completions=completions,
        contents=lists.contents,
        skill_files=skill_files,
    )
    arguments = ArgumentChecks(base.plan, lists.validation, completions)
    durable = DurableCalls(
        lookup=lookup,
        arguments=arguments,
        budgets=base.budgets,
        gate=governed.gate,
        by_url=ApprovalByUrl(base.state_signer, governed.approvals, tasks, base.plan),
        tasks=tasks,
        journal=base.journal,
        contract=TaskContract(lookup, base.metrics.validation_errors.add),
    )
    tool_calls = ToolCalls(
        lookup, sending, durable, tasks, arguments=arguments, validation=lists.validation, journal=base.journal
    )
    servers = ManagingParts(
        lookup=lookup,
        upstreams=base.upstreams,
        dynamic_servers=reload.dynamic_servers,
        servers_changed=reload.dynamic_servers_changed,
        held=held,
        record=lambda entry: base.store.defer(RecordAudit(entry)),
        activity=asking.activity,
    )
    skills = Skills(readings, skill_files, SkillDiscovery(lookup, base.upstreams))
    card = CardParts(TaskParts(tasks, asking.activity), base.address)
    return Methods(
        lookup=lookup,
        upstreams=base.upstreams,
        tool_calls=tool_calls,
        durable=durable,
        own_tools=_own_tools(
            tool_calls,
            readings,
            card,
            servers,
            skills,
            scripts=ScriptToolParts(lookup, governed.gate, tasks, base.script_sources),
            denials=governed.denials,
        ),
        readings=readings,
        skills=skills,
        completing=Completing(lookup, sending, completions),
        following=Following(base.subscriptions, readings, sending, tasks),
        tasks=tasks.methods,
        dynamic_servers=reload.dynamic_servers,
    )


def _own_tools(
    tool_calls: ToolCalls,
    readings: Readings,
    card: CardParts,
    servers: ManagingParts,
    skills: Skills,
    *,
    scripts: ScriptToolParts,
    denials: Denials,
) -> OwnTools:
    """Create the own tools and resources."""
    following = card.following
    lookup, activity = readings.lookup, following.activity
    helpers = {
        **bind_tools(TASK_TOOLS, following),
        **bind_tools(WAITING_TOOLS, following),
        **bind_tools(QUESTION_TOOLS, QuestionParts(activity.inbox, following.tasks.records)),
    }
    resources = ResourceParts(readings, following)
    tools = {
        **helpers,
        **bind_tools(LISTING_TOOLS, ListingParts(lookup, servers.upstreams)),
        **bind_tools(EXECUTE_TOOLS, ExecuteParts(lookup, tool_calls, following)),
        **bind_tools(use_resources.TOOLS, resources),
        **bind_tools(MESSAGE_TOOLS, MessageParts(lookup, servers.upstreams, activity)),
        **bind_tools(TIMER_TOOLS, TimerParts(lookup, activity)),
        **bind_tools(MANAGING_TOOLS, servers),
        **bind_tools(SEARCH_TOOLS, SearchParts(lookup, tool_calls, activity, helpers)),
        **bind_tools(CARD_TOOLS, card),
        **bind_tools(SKILL_TOOLS, SkillParts(skills, activity)),
        **bind_tools(SCRIPT_TOOLS, scripts),
    }
    return OwnTools(lookup, tools, resources, denials)
