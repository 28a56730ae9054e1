"""Two gateways on one store, both alive: changes of one are visible to the other, and neither takes the other's tasks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from tests.contracts.store_under_test import ANN, OPS, START, PostgresUnderTest, a_call, asking, until_it_listens
from tests.contracts.task_steps import RESULT, accepted, dispatched
from tests.harness.narrow import present
from tests.harness.postgres import migrated_url
from tests.harness.unchecked import just_go

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance.approval import Approval, Verdict, Voted
from taskgate.core.governance.grants import grant_from
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub
from taskgate.gateway.plan import Live
from taskgate.gateway.tasks.sends import TaskSends
from taskgate.gateway.tasks.task_changes import TaskChanges
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.store_answers import Change, Intended, Outdated, StaleOwner, StoppedByRecheck, TaskQuestion
from taskgate.ports.topics import APPROVALS, DEAD, GRANTS, LISTS, MISSED, PINS, SCOPES, SERVERS, TASKS, list_hint
from taskgate.store.operations.approvals import Decided
from taskgate.store.operations.catalogs import KeptCatalog
from taskgate.store.operations.erasure import Erased
from taskgate.store.operations.pins import FirstPin
from taskgate.store.operations.scopes import KeptScope
from taskgate.store.operations.servers import KeptServer
from taskgate.store.operations.shared_questions import TAKEN, KeptQuestion
from taskgate.store.operations.shared_sessions import KeptSession, SessionLimits

pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")


from tests.contracts.store_under_test import KeepSecret
from tests.harness.raised import raises_error

from taskgate.store.operations.approvals import ChangeHeld, HoldCall
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.catalogs import AnnounceLists, KeepCatalog, KeptCatalogs
from taskgate.store.operations.erasure import erase
from taskgate.store.operations.events import EventsAfter
from taskgate.store.operations.grants import AddGrant, FindGrants, RevokeGrant
from taskgate.store.operations.pins import PutFirstPins, PutPin
from taskgate.store.operations.revisions import FindRevisions
from taskgate.store.operations.scopes import ForgetScope, KeepScope
from taskgate.store.operations.scripts import JoinChain
from taskgate.store.operations.servers import ForgetServer, KeepServer
from taskgate.store.operations.shared_questions import AnswerQuestion, EndQuestions, FindQuestion, PutQuestions
from taskgate.store.operations.shared_sessions import OpenSession, ReleaseSession, SessionsElsewhere
from taskgate.store.operations.task_queries import FindTask, QuestionsOf
from taskgate.store.operations.tasks import Accept, Advance, Forbidden, HandOver, Intend, TakeTask
from taskgate.store.operations.upkeep import Claim, ClaimedTasks
from taskgate.store.postgres.connection import connect
from taskgate.store.postgres.engine import PostgresEngine
from taskgate.store.postgres.presence import Presence
from taskgate.store.postgres.store import PostgresStore, open_store

if TYPE_CHECKING:
    from taskgate.gateway.plan import Plan

LONG_AGO = float("-inf")
DEADLINE_S = 60
YES = Voted(ANN, Verdict.APPROVE, 0)


@pytest.fixture
def adapter() -> PostgresUnderTest:
    return PostgresUnderTest(migrated_url())


@pytest.fixture
async def a(adapter: PostgresUnderTest) -> AsyncIterator[PostgresStore]:
    store = adapter.open("a")
    await until_it_listens(store)
    yield store
    await store.close()


@pytest.fixture
async def b(adapter: PostgresUnderTest, a: PostgresStore) -> AsyncIterator[PostgresStore]:
    store = adapter.open_beside("b")
    await until_it_listens(store)
    yield store
    await store.close()


async def notified(store: PostgresStore, topic: str, name: str) -> None:
    """Wait until another gateway's announcement has come."""
    async with asyncio.timeout(DEADLINE_S):
        while name not in (await store.wakeups.wait(topic, 1.0) or ()):
            pass


async def test_many_names_in_another_script_are_announced_with_the_writes_of_the_batch(
    a: PostgresStore, b: PostgresStore
) -> None:
    """Escaped, they are six times as long as their characters."""
    names = {f"{'查询数据库记录' * 6}{number}" for number in range(300)}
    a.defer(AnnounceLists("reports", names))
    assert isinstance(await a.do(Accept(a_call())), Change)
    missing = {list_hint("reports", name) for name in names}
    async with asyncio.timeout(DEADLINE_S):
        while missing:
            missing -= await b.wakeups.wait(LISTS, 1.0) or set()


async def test_one_of_the_scripts_that_resume_another_at_both_gateways_is_the_newest(
    a: PostgresStore, b: PostgresStore
) -> None:
    for _ in range(10):
        first, at_a, at_b = [await accepted(store, script=True) for store in (a, a, b)]
        await a.do(Advance(first.id, h.Cancelled("test")))
        answers = await asyncio.gather(a.do(JoinChain(at_a.id, [first.id])), b.do(JoinChain(at_b.id, [first.id])))
        assert len(set(answers)) == 1
        assert set(answers) < {at_a.id, at_b.id}


async def test_a_name_too_long_to_announce_fails_no_write(a: PostgresStore, b: PostgresStore) -> None:
    await b.wakeups.wait(MISSED, 0)
    a.defer(AnnounceLists("查" * 2_000, ()))
    assert isinstance(await a.do(Accept(a_call())), Change)
    async with asyncio.timeout(DEADLINE_S):
        # The others are told to read everything.
        while await b.wakeups.wait(MISSED, 1.0) is None:
            pass


async def test_a_vote_on_b_moves_the_task_of_a_and_wakes_a(a: PostgresStore, b: PostgresStore) -> None:
    call = a_call()
    request = asking(call)
    assert isinstance(await a.do(Accept(call, approval=request)), Change)
    voted = await b.do(ChangeHeld(request.id, OPS, YES))
    assert isinstance(voted, Decided)
    assert voted.change is not None
    assert voted.change.task.state is TaskState.APPROVED
    assert voted.change.task.owner == "a"
    await notified(a, TASKS, call.id)
    assert isinstance(await a.do(Intend(call.id, byte_hash="b", upstream="u", recheck=just_go)), Intended)


async def test_a_held_call_of_a_is_announced_to_b(a: PostgresStore, b: PostgresStore) -> None:
    """The inbox may be read at b."""
    call = a_call()
    request = asking(call)
    assert isinstance(await a.do(Accept(call, approval=request)), Change)
    await notified(b, APPROVALS, request.id)
    await notified(b, TASKS, call.id)
    alone = asking(a_call())
    assert isinstance(await a.do(HoldCall(alone)), HeldCall)
    await notified(b, APPROVALS, alone.id)


async def test_a_cancel_on_b_ends_the_task_of_a_and_wakes_a(a: PostgresStore, b: PostgresStore) -> None:
    task = await dispatched(a)
    cancelled = await b.do(Advance(task.id, h.Cancelled("enough")))
    assert isinstance(cancelled, Change)
    assert (cancelled.task.state, cancelled.task.owner) == (TaskState.CANCELLED, "a")
    await notified(a, TASKS, task.id)
    found = await a.ask(FindTask(task.id))
    assert found is not None
    assert found.state is TaskState.CANCELLED


async def test_an_answer_on_b_is_stored_for_a_and_wakes_a(a: PostgresStore, b: PostgresStore) -> None:
    task = await dispatched(a)
    question = TaskQuestion("k", "reports", "elicitation/create", b"{}")
    await a.do(Advance(task.id, h.InputRequested(("k",)), questions=[question]))
    settled = await b.do(Advance(task.id, h.InputSettled(("k",)), answers={"k": b'{"action":"accept"}'}))
    assert isinstance(settled, Change)
    await notified(a, TASKS, task.id)
    assert [asked.answer for asked in await a.ask(QuestionsOf(task.id, answered=True))] == [b'{"action":"accept"}']


async def test_only_the_owner_sends_and_finishes(a: PostgresStore, b: PostgresStore) -> None:
    task = await accepted(a)
    assert await b.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)) == StaleOwner(b.ownership)
    assert isinstance(await a.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)), Intended)
    assert await b.do(Advance(task.id, h.ResultReceived(RESULT))) == StaleOwner(b.ownership)
    assert isinstance(await a.do(Advance(task.id, h.ResultReceived(RESULT))), Change)


async def test_a_grant_revoked_on_a_is_gone_inside_the_next_intent_on_b(
    adapter: PostgresUnderTest, a: PostgresStore, b: PostgresStore
) -> None:
    call = a_call()
    request = asking(call)
    await a.do(Accept(call, approval=request))
    voted = await a.do(ChangeHeld(request.id, OPS, YES))
    assert isinstance(voted, Decided)
    await a.do(AddGrant(grant_from(voted.held.approval, "g1", adapter.clock(), for_ms=3_600_000)))
    await notified(b, GRANTS, "g1")
    assert [grant.id for grant in await b.ask(FindGrants())] == ["g1"]
    later = await accepted(b)
    await a.do(RevokeGrant("g1", "ann"))
    seen: list[tuple[str, ...]] = []

    def look(task: Task, approval: object, now_ms: int) -> Forbidden | None:
        seen.append(tuple(grant.id for grant in b.state.known_grants))
        gone = Forbidden(h.RunRefused(b"{}", "the grant is gone"), AuditEntry(0, "call_denied"))
        return None if b.state.known_grants else gone

    assert isinstance(await b.do(Intend(later.id, byte_hash="b", upstream="u", recheck=look)), StoppedByRecheck)
    assert seen == [()]


async def test_tasks_of_a_running_gateway_cannot_be_claimed(a: PostgresStore, b: PostgresStore) -> None:
    task = await dispatched(a)
    assert await b.do(Claim()) == ()
    assert isinstance(await a.do(Advance(task.id, h.ResultReceived(RESULT))), Change)


async def test_events_of_one_caller_written_by_both_have_no_gap_and_no_duplicate(
    a: PostgresStore, b: PostgresStore
) -> None:
    await asyncio.gather(*(accepted(store) for _ in range(60) for store in (a, b)))
    page = await a.ask(EventsAfter("carol", 0))
    assert [event.number for event in page.events] == list(range(1, 121))


async def test_a_hundred_repeats_of_a_key_on_both_make_one_task(a: PostgresStore, b: PostgresStore) -> None:
    answers = await asyncio.gather(*(store.do(Accept(a_call(), key="k")) for _ in range(50) for store in (a, b)))
    assert sum(isinstance(answer, Change) for answer in answers) == 1


async def test_exactly_one_of_racing_votes_on_both_decides(a: PostgresStore, b: PostgresStore) -> None:
    call = a_call()
    request = asking(call)
    await a.do(Accept(call, approval=request))
    votes = await asyncio.gather(*(store.do(ChangeHeld(request.id, OPS, YES)) for _ in range(30) for store in (a, b)))
    assert sum(isinstance(vote, Decided) and vote.change is not None for vote in votes) == 1


def lets_send_without_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what becomes of the tasks: that they were begun is not what the lease is for there."""
    monkeypatch.setattr(PostgresEngine, "may_send", lambda _: True)


@pytest.mark.parametrize("order", [("dead", "one", "two"), ("one", "dead", "two"), ("one", "two", "dead")])
async def test_the_tasks_of_a_dead_gateway_are_claimed_by_one_other_and_its_writes_are_refused(
    monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    """Whichever of them started first."""
    lets_send_without_a_lease(monkeypatch)
    url = migrated_url()
    opened = {name: open_store(url, owner=name) for name in order}
    dead, one, two = (opened[name] for name in ("dead", "one", "two"))
    tasks = [await dispatched(dead) for _ in range(5)]
    dead.engine.presence.stop_renewing()
    claimed: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        # A wake-up is a hint: on a busy machine the lease of another gateway may have expired for a moment.
        while len(claimed) < len(tasks):
            await one.wakeups.wait(DEAD, 1.0)
            for taken in await asyncio.gather(one.do(Claim()), two.do(Claim())):
                claimed += taken
    assert sorted(claimed) == sorted(task.id for task in tasks)
    stale = StaleOwner(dead.ownership)
    assert await dead.do(Advance(tasks[0].id, h.ResultReceived(RESULT))) == stale
    assert await dead.do(Accept(a_call())) == stale
    owners = {present(await one.ask(FindTask(task.id))).owner for task in tasks}
    assert owners <= {"one", "two"}
    for store in (dead, one, two):
        await store.close()


async def test_a_gateway_that_was_paused_expires_no_other_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own lease must have been renewed without a gap for a whole lease before it may expire another's."""
    lets_send_without_a_lease(monkeypatch)
    url = migrated_url()
    one, two = open_store(url, owner="one"), open_store(url, owner="two")
    task = await dispatched(one)
    one.engine.presence.stop_renewing()
    async with asyncio.timeout(DEADLINE_S):
        await two.wakeups.wait(DEAD, DEADLINE_S)
    presence = two.engine.presence
    presence.gapless_since = presence._renewed  # as after a reconnect
    presence.stop_renewing()
    assert await two.do(Claim()) == ()
    found = await two.ask(FindTask(task.id))
    assert found is not None
    assert found.owner == "one"
    for store in (one, two):
        await store.close()


async def test_an_intent_of_a_gateway_without_a_lease_sends_nothing() -> None:
    store = open_store(migrated_url(), owner="paused")
    task = await accepted(store)
    store.engine.presence.stop_renewing()
    async with asyncio.timeout(DEADLINE_S):
        while store.engine.presence.is_fresh:
            await asyncio.sleep(0.05)
    with raises_error("store_unavailable"):
        await store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go))
    await store.close()


class LeaseEndsMeanwhile:
    """A recheck during which, the first time, the lease runs out."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self.asked = 0

    async def prepare(self, task: Task) -> None:
        return None

    def __call__(self, task: Task, approval: Approval | None, now_ms: int) -> None:
        self.asked += 1
        if self.asked == 1:
            self._presence._renewed = LONG_AGO


async def test_a_call_is_sent_when_the_lease_was_renewed_and_its_task_was_not_claimed() -> None:
    """A database outage loses no task, so no other gateway would ever run it. The intent that was written while the lease
    ran out is void, because nothing was sent."""
    store = open_store(migrated_url(), owner="away")
    task, presence = await accepted(store), store.engine.presence
    presence.stop_renewing()
    presence._renewed = clock.monotonic() + DEADLINE_S
    recheck = LeaseEndsMeanwhile(presence)
    records = TaskRecords(store, TaskChanges(EventHub()), Live(cast("Plan", None)))
    sends = TaskSends(records, recheck, task, {"name": wire.raw("x")})
    sending = asyncio.create_task(sends.sends_again())
    async with asyncio.timeout(DEADLINE_S):
        while present(await store.ask(FindTask(task.id))).revision < task.revision + 2:
            await asyncio.sleep(0.05)
    assert not sending.done()
    presence._renewed = clock.monotonic() + DEADLINE_S
    async with asyncio.timeout(DEADLINE_S):
        await sending
    assert (sends.task.state, recheck.asked) == (TaskState.RUNNING, 2)
    await store.close()


async def test_a_gateway_whose_lease_expired_continues_after_a_renewal_and_other_writes_wait_for_it() -> None:
    """A start on a busy machine may take longer than a lease: that is no reason to give up."""
    url = migrated_url()
    store = open_store(url, owner="slow")
    before = store.ownership
    with connect(url) as another:
        another.execute("UPDATE owners SET retired = true WHERE owner = 'slow'")
    assert await store.do(KeepSecret("secret", b"kept")) == b"kept"
    assert store.ownership.fence > before.fence
    await store.close()


async def test_running_gateways_are_listed_with_their_configuration() -> None:
    url = migrated_url()
    one = open_store(url, owner="one", address="10.0.0.1:8470", configuration="c1")
    two = open_store(url, owner="two", address="10.0.0.2:8470", configuration="c2")
    async with asyncio.timeout(DEADLINE_S):
        while len(one.replicas) < 2:
            await asyncio.sleep(0.05)
    assert {(seen.owner, seen.configuration) for seen in one.replicas} == {("one", "c1"), ("two", "c2")}
    for store in (one, two):
        await store.close()


async def test_an_intent_waits_until_changes_of_other_gateways_are_read(a: PostgresStore, b: PostgresStore) -> None:
    """Pins, scopes and added servers are kept in memory: an intent that would be checked against an old copy is not written."""
    b.state.now_known(PINS, (await b.ask(FindRevisions())).get(PINS, 0))
    task = await accepted(b)
    await a.do(PutPin("reports", "build", Pin.of("sha256:1", {"name": "build"})))
    assert await b.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)) == Outdated((PINS,))
    found = await b.ask(FindTask(task.id))
    assert found is not None
    assert found.attempts == 0
    b.state.now_known(PINS, (await b.ask(FindRevisions()))[PINS])
    assert isinstance(await b.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)), Intended)


async def test_every_change_of_cached_data_increments_its_revision(a: PostgresStore, b: PostgresStore) -> None:
    kept = KeptScope("tmp-1", START + 60_000, b"{}")
    for topic, change in (
        (PINS, lambda: a.do(PutPin("s", "t", Pin.of("sha256:1", {"name": "t"})))),
        (SCOPES, lambda: a.do(KeepScope(kept, AuditEntry(0, "scope_handed_over")))),
        (SCOPES, lambda: a.do(ForgetScope("tmp-1", AuditEntry(0, "scope_ended")))),
        (SERVERS, lambda: a.do(KeepServer(KeptServer("guest", "default", b"{}")))),
        (SERVERS, lambda: a.do(ForgetServer("guest"))),
    ):
        before = (await b.ask(FindRevisions())).get(topic, 0)
        await change()
        assert (await b.ask(FindRevisions()))[topic] == before + 1
        async with asyncio.timeout(DEADLINE_S):
            while b.revisions.numbers.get(topic) != before + 1:  # without any announcement, with the next renewal
                await asyncio.sleep(0.05)


async def test_the_first_of_two_concurrent_pins_is_kept(a: PostgresStore, b: PostgresStore) -> None:
    ours, theirs = Pin.of("sha256:1", {"name": "t"}), Pin.of("sha256:2", {"name": "t"})
    assert await a.do(PutFirstPins([FirstPin("s", "t", ours)])) == (ours,)
    assert await b.do(PutFirstPins([FirstPin("s", "t", theirs), FirstPin("s", "u", theirs)])) == (ours, theirs)


async def test_a_scope_that_two_gateways_end_is_recorded_once(a: PostgresStore, b: PostgresStore) -> None:
    await a.do(KeepScope(KeptScope("tmp-1", START, b"{}"), AuditEntry(0, "scope_handed_over")))
    await asyncio.gather(*(store.do(ForgetScope("tmp-1", AuditEntry(0, "scope_ended"))) for store in (a, b)))
    ended = [row for store in (a, b) for row in await store.ask(AuditRows()) if row.entry.event == "scope_ended"]
    assert len(ended) == 1


async def test_lists_are_announced_when_they_differ_or_their_server_announced_them(
    a: PostgresStore, b: PostgresStore
) -> None:
    catalog = KeptCatalog("books", "f1", 1, b"[1]")

    async def announced_to_b(write: Callable[[], None]) -> frozenset[str]:
        """Announcements of lists that B receives up to a change that certainly is announced."""
        received: set[str] = set()
        write()
        number = next(numbers)
        a.defer(KeepCatalog(KeptCatalog(f"end{number}", "f1", 1, b"[]")))
        async with asyncio.timeout(DEADLINE_S):
            while f"end{number}" not in received:
                received |= await b.wakeups.wait(LISTS, 1.0) or set()
        return frozenset(name for name in received if not name.startswith("end"))

    numbers = itertools.count(1)
    assert await announced_to_b(lambda: a.defer(KeepCatalog(catalog))) == {"books"}
    assert (
        await announced_to_b(lambda: a.defer(KeepCatalog(msgspec.structs.replace(catalog, listed_ms=2)))) == frozenset()
    )
    assert [kept.listed_ms for kept in await b.ask(KeptCatalogs()) if kept.server == "books"] == [2]
    assert await announced_to_b(lambda: a.defer(KeepCatalog(msgspec.structs.replace(catalog, body=b"[2]")))) == {
        "books"
    }
    assert await announced_to_b(lambda: a.defer(AnnounceLists("books", ["tool"]))) == {
        "books",
        list_hint("books", "tool"),
    }


async def test_shared_data_of_a_person_is_erased_too(a: PostgresStore, b: PostgresStore) -> None:
    """Questions and answers in any of their conversations, and the sessions without an owner."""
    streams = {"carol": "carol", "named": ConversationKey("carol", "s:1").stream, "other": "carole"}
    questions = [KeptQuestion(name, caller, "", START, b"{}") for name, caller in streams.items()]
    await a.do(PutQuestions(questions))
    assert await b.do(AnswerQuestion("carol", b"{}"))
    await a.do(EndQuestions(["carol"], TAKEN))
    for session_id, principal in {"held": "carol", "left": "carol", "others": "dave"}.items():
        await a.do(
            OpenSession(KeptSession(session_id, principal, "default", "", 0, b"{}"), SessionLimits(principal, 9, None))
        )
    for left in ("left", "others"):
        await a.do(ReleaseSession(left))
    erased = await erase(b, "carol", "revoked", AuditEntry(0, "data_erased", "carol", kind="data"))
    assert isinstance(erased, Erased)
    assert (erased.open_questions, erased.sessions) == (2, 1)
    assert [name for name in streams if await a.ask(FindQuestion(name)) is not None] == ["other"]
    assert await b.ask(SessionsElsewhere()) == {"held", "others"}


async def test_a_sent_task_cannot_be_taken_from_its_running_owner(a: PostgresStore, b: PostgresStore) -> None:
    """Its reply goes to the owner. A gateway that took it over would store another attempt of a call that was sent."""
    sent = await dispatched(a)
    assert await b.do(TakeTask(sent.id)) is None
    kept = await b.ask(FindTask(sent.id))
    assert kept is not None
    assert (kept.owner, kept.fence) == (sent.owner, sent.fence)
    assert isinstance(await a.do(Advance(sent.id, h.ResultReceived(RESULT))), Change)


async def test_a_task_whose_attempt_was_void_stays_with_its_owner(a: PostgresStore, b: PostgresStore) -> None:
    """It was not executed, but its owner is about to try again."""
    sent = await dispatched(a)
    assert isinstance(await a.do(Advance(sent.id, h.AttemptVoided())), Change)
    assert await b.do(TakeTask(sent.id)) is None


async def test_an_unsent_task_can_be_taken(a: PostgresStore, b: PostgresStore) -> None:
    waits = await accepted(a)
    taken = await b.do(TakeTask(waits.id))
    assert taken is not None
    assert taken.owner == b.ownership.owner


async def test_task_is_handed_over_to_a_running_gateway(a: PostgresStore, b: PostgresStore) -> None:
    task = await dispatched(a)
    assert await a.do(HandOver(task.id, "b"))
    assert [claimed.id for claimed in await b.ask(ClaimedTasks())] == [task.id]
    assert isinstance(await a.do(Advance(task.id, h.ResultReceived(RESULT))), StaleOwner)
    assert isinstance(await b.do(Advance(task.id, h.ResultReceived(RESULT))), Change)
    assert not await b.do(HandOver(task.id, "a"))
