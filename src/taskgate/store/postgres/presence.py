"""This gateway among the others: its lease, renewed by the database's clock, and the notifications of the others.

One thread with one connection renews the lease every half second and listens in between. A lease that was not renewed for a
second and a half is dead, and its owner's tasks may be claimed, but only by a gateway that has itself renewed without a gap for as
long: a database that was away for a moment expires nobody. Every renewal looks at the others' leases; where one of them would end
before the next renewal, we look right after that moment, so a death is noticed `LEASE_MS + LATE_MS` after the last sign of life
at the latest.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg

from taskgate import clock
from taskgate.ports.replicas import Replica
from taskgate.ports.store_answers import Ownership
from taskgate.ports.topics import APPROVALS, LISTS, MISSED, TASKS, TOPICS, SeenRevisions
from taskgate.store.postgres.connection import SQL, Connection, connect, reason

RENEW_S: Final = 0.5
LEASE_MS: Final = 1_500
LATE_MS: Final = 100
"""So long after the end of another one's lease we look at it: a renewal whose commit is on its way is waited for."""
CHANNEL: Final = "taskgate"
DEAD: Final = "dead"
"""The topic under which this gateway tells itself that another one has died."""
_LEASE_S: Final = LEASE_MS / 1000
_FORGOTTEN_MS: Final = 3_600_000
_STOP_WITHIN_S: Final = 10.0
_LISTEN_AT_LEAST_S: Final = 0.02
"""Where a renewal took longer than the time between two of them."""


class Presence:
    """`heard` is called by the thread with a topic and names."""

    def __init__(
        self,
        url: str,
        ownership: Ownership,
        about: tuple[str, str, str, str],
        heard: Callable[[str, list[str]], None],
        clock: Callable[[], int] | None,
    ) -> None:
        """`about`: address, version, digest of the configuration, internal address. `clock` replaces the database's in tests."""
        self._url = url
        self.ownership = ownership
        """In whose name we write. A gateway that was taken for dead goes on under a new fence."""
        self._about = about
        self._heard = heard
        self._clock = clock
        self._stopping = threading.Event()
        self._renewed = clock_of_nothing = float("-inf")
        self.gapless_since = clock_of_nothing
        """Since when our lease was renewed without a gap."""
        self._offset_ms = 0.0
        self._trouble: str | None = "not connected yet"
        self.replicas: tuple[Replica, ...] = ()
        self.revisions = SeenRevisions({}, float("-inf"))
        self._looked_ms = 0
        """When they were read, by the database's clock."""
        self._thread = threading.Thread(target=self._work, name="taskgate-store-presence", daemon=True)

    def begin(self, connection: Connection) -> None:
        """The first lease, before anything is served."""
        self._put(connection)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Also when the database says nothing at all: then the lease is not renewed."""
        if self._trouble is None and not self.is_fresh:
            return "the database did not answer in time to renew the lease"
        return self._trouble

    @property
    def is_fresh(self) -> bool:
        """Whether our lease certainly has not ended: what is sent must be sent by its owner."""
        return clock.monotonic() - self._renewed < _LEASE_S

    @property
    def may_judge(self) -> bool:
        """Whether we renewed without a gap for a whole lease: only then can another one's silence be its own."""
        now = clock.monotonic()
        return now - self._renewed < _LEASE_S <= now - self.gapless_since

    def is_alive(self, owner: str) -> bool:
        """Whether another gateway's lease held when we last looked; while we cannot judge, everybody is alive."""
        if not self.may_judge:
            return True
        for replica in self.replicas:
            if replica.owner == owner:
                return replica.seen_ms >= self._looked_ms - LEASE_MS
        return False

    def share(self) -> tuple[int, int]:
        """Which part of work that any gateway may do is ours, and of how many parts: one for each gateway that lives."""
        living = sorted(r.owner for r in self.replicas if r.seen_ms >= self._looked_ms - LEASE_MS)
        ours = self.ownership.owner
        return (living.index(ours), len(living)) if ours in living else (0, 1)

    def observed(self, database_ms: int) -> int:
        """The database said its time."""
        self._offset_ms = database_ms - clock.monotonic() * 1000
        return database_ms

    def now_ms(self) -> int:
        """The database's clock as we know it."""
        if self._clock is not None:
            return self._clock()
        return int(clock.monotonic() * 1000 + self._offset_ms)

    def reconfigured(self, digest: str) -> None:
        """Told to the others with the next renewal."""
        self._about = (*self._about[:2], digest, *self._about[3:])

    def stop_renewing(self) -> None:
        """End without saying goodbye; the lease runs out by itself."""
        self._stopping.set()
        self._thread.join(_STOP_WITHIN_S)

    def end(self) -> None:
        """Give the lease back: whatever is ours may be taken over at once."""
        self.stop_renewing()
        try:
            with connect(self._url, "taskgate goodbye") as connection:
                connection.execute(SQL["end_lease"], {"owner": self.ownership.owner})
        except psycopg.Error:
            return  # it runs out by itself

    def _put(self, connection: Connection) -> None:
        address, version, configuration, internal = self._about
        values = {"owner": self.ownership.owner, "address": address, "version": version, "internal": internal}
        now = self._database_now(connection)
        connection.execute(SQL["put_lease"], {**values, "configuration": configuration, "now_ms": now})
        # In this order: who reads between the two must not take an old stretch for the present one.
        self.gapless_since = clock.monotonic()
        self._renewed = self.gapless_since
        self._trouble = None

    def _database_now(self, connection: Connection) -> int:
        row = connection.execute(SQL["database_now"]).fetchone()
        assert row is not None
        return self._clock() if self._clock is not None else self.observed(row[0])

    def _work(self) -> None:
        """A connection that was cut is replaced at once, because the lease runs; only one that cannot be had is waited for."""
        first = True
        while not self._stopping.is_set():
            connected = False
            try:
                with connect(self._url, "taskgate presence") as connection:
                    connected = True
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._heard("", [])  # what was told while nobody listened is lost: look at everything
                    if not first:
                        self._heard(MISSED, [])
                    while not self._stopping.is_set():
                        self._renew(connection)
                        self._listen(connection)
            except (psycopg.Error, OSError) as error:
                self._trouble = reason(error) if isinstance(error, psycopg.Error) else str(error)
                if not connected:
                    self._stopping.wait(RENEW_S)
            first = False

    def _renew(self, connection: Connection) -> None:
        before = clock.monotonic()
        now = self._database_now(connection)
        values: dict[str, Any] = {"owner": self.ownership.owner, "now_ms": now, "dead_ms": now - LEASE_MS}
        values["configuration"] = self._about[2]
        if connection.execute(SQL["renew_lease"], values).rowcount != 1:
            self._put(connection)
        self._come_back(connection, now)
        if before - self._renewed > _LEASE_S:
            self.gapless_since = before
        self._renewed = before
        self._trouble = None
        self._looked_ms = now
        self.replicas = tuple(Replica(*row) for row in connection.execute(SQL["seen_replicas"]))
        self._look_at_revisions(connection)
        if self.may_judge:
            connection.execute(SQL["forget_replicas"], {"before_ms": now - _FORGOTTEN_MS})
            row = connection.execute(SQL["dead_seen"], values).fetchone()
            if row is not None and row[0]:
                self._heard(DEAD, [])

    def _look_at_revisions(self, connection: Connection) -> None:
        """Each renewal confirms which copies are current; a change whose announcement was lost is found here."""
        at = clock.monotonic()
        seen = self.revisions.then(dict(connection.execute(SQL["revisions"]).fetchall()), at)
        changed = [topic for topic, number in seen.numbers.items() if self.revisions.numbers.get(topic) != number]
        self.revisions = seen
        for topic in changed:
            self._heard(topic, [])

    def _come_back(self, connection: Connection, now_ms: int) -> None:
        """Paused for longer than the lease, we were taken for dead. What was ours is not any more; what comes next is."""
        found = connection.execute(SQL["standing_of_owner"], {"owner": self.ownership.owner}).fetchone()
        if found is not None and found[0] == self.ownership.fence and not found[1]:
            return
        row = connection.execute(SQL["take_fence"], {"owner": self.ownership.owner, "now_ms": now_ms}).fetchone()
        assert row is not None
        self.ownership = Ownership(self.ownership.owner, row[0])
        self._heard(DEAD, [])

    def _listen(self, connection: Connection) -> None:
        """Until it is time to look again."""
        others = (replica.seen_ms for replica in self.replicas if replica.owner != self.ownership.owner)
        until = self._renewed + listen_s(others, self._looked_ms)
        while True:
            # What came in one packet is given out together and must be taken together: what is left of it is lost.
            left_s = max(_LISTEN_AT_LEAST_S, until - clock.monotonic())
            for told in connection.notifies(timeout=left_s, stop_after=1):
                sender, topic, names = json.loads(told.payload)
                if sender != self.ownership.owner:
                    self._heard(topic, names)
            if clock.monotonic() >= until or self._stopping.is_set():
                return


def listen_s(leases: Iterable[int], looked_ms: int) -> float:
    """For how long after a look at `looked_ms`, which found the others' leases renewed at these times: until our own is to be
    renewed, or one of theirs has ended. While everybody renews in time no lease is old enough to end so soon."""
    left_ms = (seen_ms + LEASE_MS + LATE_MS - looked_ms for seen_ms in leases if seen_ms >= looked_ms - LEASE_MS)
    return min(RENEW_S, min(left_ms, default=LEASE_MS) / 1000)


# What other gateways announced, handed from the listening thread to whoever waits on the event loop.

MAX_NAMES: Final = 10_000
_NEVER_LOOKED_UP: Final = frozenset({LISTS, APPROVALS, TASKS})
"""Topics whose names the usual look at everything does not find out again once they are lost, or not all of them."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Wakeups:
    """Implements `ports.topics.Wakeups`. Names are only hints to read the store: when there are too many, they are replaced by one
    hint to read everything."""

    def __init__(self) -> None:
        self._loop = _running_loop()
        self._told: dict[str, set[str]] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._missed: set[str] = set()

    def heard(self, topic: str, names: list[str]) -> None:
        """Called by any thread. Announcements before the first wait are dropped: a waiter has read everything when it begins."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, topic, names)

    def _tell(self, topic: str, names: list[str]) -> None:
        if topic and topic not in TOPICS:
            return  # announced by a gateway of a newer version; nothing here waits for it
        for one in [topic] if topic else [waited for waited in self._waiting if waited != MISSED]:
            told = self._told.setdefault(one, set())
            told.update(names)
            if not topic or len(told) > MAX_NAMES:
                told.clear()
                self._missed.add(one)
                if topic in _NEVER_LOOKED_UP:
                    self._event(MISSED).set()
            self._event(one).set()

    def _event(self, topic: str) -> asyncio.Event:
        return self._waiting.setdefault(topic, asyncio.Event())

    async def wait(self, topic: str, timeout_s: float) -> frozenset[str] | None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        event = self._event(topic)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return None
        event.clear()
        names = frozenset(self._told.pop(topic, ()))
        if topic in self._missed:
            self._missed.discard(topic)
            return None
        return names
