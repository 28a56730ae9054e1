from __future__ import annotations

from msgspec.structs import replace
from tests.core.tasks.task_factory import NOW, a_task, an_attempt

from taskgate.core.errors import Executed
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Outcome, OutcomeKind
from taskgate.core.tasks.task_audit import audit_entry_of


def test_audit_entries_record_creation_dispatch_and_every_transition() -> None:
    queued = a_task()
    sent = replace(queued, state=TaskState.RUNNING, last_attempt=an_attempt())
    again = replace(sent, last_attempt=an_attempt(number=2))
    done = replace(sent, state=TaskState.COMPLETED, outcome=Outcome(OutcomeKind.RESULT, b"{}"), executed=Executed.YES)
    pairs = [(None, queued), (queued, sent), (sent, again), (sent, done)]
    entries = [audit_entry_of(before, after, NOW) for before, after in pairs]
    assert [(e.event, e.executed, e.outcome) for e in entries if e is not None] == [
        ("task_created", "no", ""),
        ("task_dispatched", "maybe", ""),
        ("task_dispatched", "maybe", ""),
        ("task_completed", "yes", "ok"),
    ]


def test_an_entry_names_the_revisions_of_rules_and_tools_that_decided() -> None:
    entries = [
        audit_entry_of(None, a_task(policy_revision="p1", scope_revision="3-abc"), NOW),
        audit_entry_of(None, a_task(policy_revision="p1"), NOW),
    ]
    assert [entry.policy_revision for entry in entries if entry is not None] == ["p1/3-abc", "p1"]


def test_progress_has_no_audit_entry() -> None:
    assert audit_entry_of(a_task(), a_task(status_message="half way"), NOW) is None


def test_a_final_entry_gives_the_reason_but_never_the_arguments() -> None:
    rejected = a_task(
        state=TaskState.REJECTED,
        status_message="denied",
        executed=Executed.NO,
        approval_id="ap_1",
        outcome=Outcome(OutcomeKind.ERROR, b"{}", is_error=True),
    )
    entry = audit_entry_of(a_task(), rejected, NOW)
    assert entry is not None
    assert (entry.event, entry.reason, entry.outcome) == ("task_rejected", "denied", "error")
    assert (entry.arguments, entry.arguments_digest) == (None, "d1")
