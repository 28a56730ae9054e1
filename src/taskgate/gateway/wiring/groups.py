"""Groups of parts that are created together and passed on together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.returned_uris import ReturnedUris
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.catalog.validate import Validation
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.dynamic_servers import NewServer
from taskgate.gateway.governance.annotation_report import AnnotationReport
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.ask_caller import AskCaller
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.governance.pinned_contents import PinnedContents
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.governance.unmatched_report import UnmatchedReport
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.asker import Asker
from taskgate.gateway.questions.elicitation_pages import ElicitationPages
from taskgate.gateway.questions.listed_elicitations import OwnElicitations, ServerElicitations
from taskgate.gateway.questions.model_sampling import Models
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.gateway.scope_record import ScopeRecord
from taskgate.gateway.tasks.account_questions import AccountQuestions
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_inbox import TaskInbox
from taskgate.gateway.tasks.task_polls import TaskPolls
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.gateway.tasks.task_results import TaskResults
from taskgate.ports.link import Listener
from taskgate.ports.upstream import Upstream

if TYPE_CHECKING:
    pass


class Servers(Protocol):
    """Creates upstreams. Their links pass messages outside any request to the listener."""

    def configured(self, listener: Listener) -> Mapping[str, Upstream]:
        """Return all configured servers."""
        ...

    def added(self, new: NewServer, listener: Listener) -> Upstream:
        """Return a server that a caller adds."""
        ...


class CatalogGroup(msgspec.Struct, eq=False):
    """The servers' lists, the checks on them, and the views."""

    validation: Validation
    pins: Pins
    contents: PinnedContents
    annotations: AnnotationReport
    unmatched: UnmatchedReport
    catalogs: Catalogs
    scope_record: ScopeRecord
    views: Views
    slow_tools: SlowTools
    returned_uris: ReturnedUris


class QuestionGroup(msgspec.Struct, eq=False):
    """The parts that answer servers' requests."""

    activity: Activity
    models: Models
    urls: UrlElicitations
    asker: Asker
    pages: ElicitationPages
    own_pages: OwnElicitations
    server_pages: ServerElicitations


class TaskGroup(msgspec.Struct, eq=False):
    """The runs of tasks and the parts they use."""

    records: TaskRecords
    conversations: Conversations
    followers: Followers
    questions: TaskQuestions
    account_questions: AccountQuestions
    results: TaskResults
    task_inbox: TaskInbox
    runs: Runs
    deadlines: TaskDeadlines
    polls: TaskPolls
    presence: CallerPresence


class GovernanceGroup(msgspec.Struct, eq=False):
    approvals: Approvals
    ask_caller: AskCaller
    gate: CallGate
    denials: Denials
