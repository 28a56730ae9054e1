"""The lease of this gateway, renewed by the database's clock, and the notifications of other gateways.

One thread with one connection renews the lease every half second and listens in between. A gateway whose lease was not renewed for
a second and a half is dead, and its tasks may be claimed, but only by a gateway that has itself renewed without a gap for as long:
a short outage of the database expires no gateway. Every renewal reads the leases of the others. If one of them would expire before
the next renewal, they are read again right after that moment, so a dead gateway is detected `LEASE_MS + LATE_MS` after its last
renewal at the latest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg

from taskgate import clock
from taskgate.ports.replicas import Replica
from taskgate.ports.store_answers import Ownership
from taskgate.ports.topics import DEAD, MISSED, SeenRevisions
from taskgate.store.postgres.connection import Connection, connect, reason
from taskgate.store.postgres.statements import SQL
from taskgate.store.rows import record_from

RENEW_S: Final = 0.5
LEASE_MS: Final = 1_500
LATE_MS: Final = 100
"""How long after the end of another lease it is read again, so that a renewal that is being committed counts."""
CHANNEL: Final = "taskgate"
_LEASE_S: Final = LEASE_MS / 1000
_FORGOTTEN_MS: Final = 3_600_000
_STOP_WITHIN_S: Final = 10.0
_MIN_LISTEN_S: Final = 0.02
"""Used when a renewal took longer than the interval between two renewals."""


class Presence:
    """Holds the lease. `announce` is called by the thread with a topic and names."""

    def __init__(
        self,
        url: str,
        ownership: Ownership,
        about: tuple[str, str, str, str, str],
        announce: Callable[[str, list[str]], None],
        clock: Callable[[], int] | None,
    ) -> None:
        """`about`: address, version, digest of the configuration, internal address, version of the interpreter of scripts. `clock`
        replaces the database's in tests."""
        self._url = url
        self.ownership = ownership
        """The ownership of all writes. A gateway that was declared dead continues with a new fence."""
        self._about = about
        self._announce = announce
        self._clock = clock
        self._stopping = threading.Event()
        self._renewed = float("-inf")
        self.gapless_since = float("-inf")
        """Since when the lease was renewed without a gap."""
        self._offset_ms = 0.0
        self._problem: str | None = "not connected yet"
        self.replicas: tuple[Replica, ...] = ()
        self.revisions = SeenRevisions({}, float("-inf"))
        self._read_ms = 0
        """When replicas and revisions were read, by the database's clock."""
        self._thread = threading.Thread(target=self._work, name="taskgate-store-presence", daemon=True)

    def begin(self, connection: Connection) -> None:
        """Create the lease and start the thread, before anything is served."""
        self._put(connection)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why the lease is not renewed, including a database that does not respond; None if it is."""
        if self._problem is None and not self.is_fresh:
            return "the database did not answer in time to renew the lease"
        return self._problem

    @property
    def is_fresh(self) -> bool:
        """Whether the lease is certainly valid. Only then may anything be sent to a server."""
        return clock.monotonic() - self._renewed < _LEASE_S

    @property
    def may_declare_dead(self) -> bool:
        """Whether this lease was renewed without a gap for its whole length; only then may another gateway be declared dead."""
        now = clock.monotonic()
        return now - self._renewed < _LEASE_S <= now - self.gapless_since

    def is_alive(self, owner: str) -> bool:
        """Return whether another gateway's lease was valid when last read. All count as alive while `may_declare_dead` is false."""
        if not self.may_declare_dead:
            return True
        for replica in self.replicas:
            if replica.owner == owner:
                return replica.seen_ms >= self._read_ms - LEASE_MS
        return False

    def share(self) -> tuple[int, int]:
        """Return the index of this gateway among the live ones, and their number, to divide work that any of them may do."""
        alive = sorted(r.owner for r in self.replicas if r.seen_ms >= self._read_ms - LEASE_MS)
        ours = self.ownership.owner
        return (alive.index(ours), len(alive)) if ours in alive else (0, 1)

    def observed(self, database_ms: int) -> int:
        """Record the time that the database returned."""
        self._offset_ms = database_ms - clock.monotonic() * 1000
        return database_ms

    def now_ms(self) -> int:
        """Return the time by the database's clock, from the last reading."""
        if self._clock is not None:
            return self._clock()
        return int(clock.monotonic() * 1000 + self._offset_ms)

    def reconfigured(self, digest: str, interpreter: str) -> None:
        """Publish the digest of new settings, and the interpreter of scripts if they use one, with the next renewal."""
        self._about = (*self._about[:2], digest, self._about[3], interpreter)

    def stop_renewing(self) -> None:
        """Stop the thread; the lease expires."""
        self._stopping.set()
        self._thread.join(_STOP_WITHIN_S)

    def end(self) -> None:
        """Release the lease: tasks of this gateway may be taken over at once."""
        self.stop_renewing()
        try:
            with connect(self._url, "taskgate end") as connection:
                connection.execute(SQL["end_lease"], {"owner": self.ownership.owner})
        except psycopg.Error:
            return  # the lease expires

    def _put(self, connection: Connection) -> None:
        address, version, configuration, internal, interpreter = self._about
        values = {"owner": self.ownership.owner, "address": address, "version": version, "internal": internal}
        values["interpreter"] = interpreter
        now = self._database_now(connection)
        connection.execute(SQL["put_lease"], {**values, "configuration": configuration, "now_ms": now})
        # In this order: a reader between the two must not combine the old start with the new renewal.
        self.gapless_since = clock.monotonic()
        self._renewed = self.gapless_since
        self._problem = None

    def _database_now(self, connection: Connection) -> int:
        row = connection.execute(SQL["database_now"]).fetchone()
        assert row is not None
        return self._clock() if self._clock is not None else self.observed(row[0])

    def _work(self) -> None:
        """Replace a lost connection at once, because the lease is running out; wait only if connecting fails."""
        first = True
        while not self._stopping.is_set():
            connected = False
            try:
                with connect(self._url, "taskgate presence") as connection:
                    connected = True
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._announce("", [])  # announcements before LISTEN are lost: read everything
                    if not first:
                        self._announce(MISSED, [])
                    while not self._stopping.is_set():
                        self._renew(connection)
                        self._listen(connection)
            except (psycopg.Error, OSError) as error:
                self._problem = reason(error) if isinstance(error, psycopg.Error) else str(error)
                if not connected:
                    self._stopping.wait(RENEW_S)
            first = False

    def _renew(self, connection: Connection) -> None:
        before = clock.monotonic()
        now = self._database_now(connection)
        values: dict[str, Any] = {"owner": self.ownership.owner, "now_ms": now, "dead_ms": now - LEASE_MS}
        values |= {"configuration": self._about[2], "interpreter": self._about[4]}
        if connection.execute(SQL["renew_lease"], values).rowcount != 1:
            self._put(connection)
        self._rejoin(connection, now)
        if before - self._renewed > _LEASE_S:
            self.gapless_since = before
        self._renewed = before
        self._problem = None
        self._read_ms = now
        self.replicas = tuple(record_from(Replica, row) for row in connection.execute(SQL["leases"]))
        self._read_revisions(connection)
        if self.may_declare_dead:
            connection.execute(SQL["forget_replicas"], {"before_ms": now - _FORGOTTEN_MS})
            row = connection.execute(SQL["dead_seen"], values).fetchone()
            if row is not None and row[0]:
                self._announce(DEAD, [])

    def _read_revisions(self, connection: Connection) -> None:
        """Read the revisions with each renewal: this finds changes whose announcement was lost."""
        at = clock.monotonic()
        seen = self.revisions.then(dict(connection.execute(SQL["revisions"]).fetchall()), at)
        changed = [topic for topic, number in seen.numbers.items() if self.revisions.numbers.get(topic) != number]
        self.revisions = seen
        for topic in changed:
            self._announce(topic, [])

    def _rejoin(self, connection: Connection, now_ms: int) -> None:
        """Take a new fence if this gateway was paused for longer than its lease and declared dead. It has lost its tasks."""
        found = connection.execute(SQL["standing_of_owner"], {"owner": self.ownership.owner}).fetchone()
        if found is not None and found[0] == self.ownership.fence and not found[1]:
            return
        row = connection.execute(SQL["take_fence"], {"owner": self.ownership.owner, "now_ms": now_ms}).fetchone()
        assert row is not None
        self.ownership = Ownership(self.ownership.owner, row[0])
        self._announce(DEAD, [])

    def _listen(self, connection: Connection) -> None:
        """Pass on announcements until the next renewal."""
        others = (replica.seen_ms for replica in self.replicas if replica.owner != self.ownership.owner)
        until = self._renewed + listen_s(others, self._read_ms)
        while True:
            # Notifications that arrive in one packet must be read in one go; the rest of it would be lost.
            left_s = max(_MIN_LISTEN_S, until - clock.monotonic())
            for notification in connection.notifies(timeout=left_s, stop_after=1):
                sender, topic, names = json.loads(notification.payload)
                if sender != self.ownership.owner:
                    self._announce(topic, names)
            if clock.monotonic() >= until or self._stopping.is_set():
                return


def listen_s(leases: Iterable[int], read_ms: int) -> float:
    """Return how long to listen after the leases of others were read at `read_ms`: until the own lease must be renewed, or one of
    the others has expired. While all gateways renew in time, no lease is old enough to expire first."""
    left_ms = (seen_ms + LEASE_MS + LATE_MS - read_ms for seen_ms in leases if seen_ms >= read_ms - LEASE_MS)
    return min(RENEW_S, min(left_ms, default=LEASE_MS) / 1000)
