"""The gateways that share a store: how each is seen by the others, what they tell each other, and the sessions they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec


class Replica(msgspec.Struct, frozen=True):
    """One gateway as its lease shows it. `configuration` is a digest of its settings, `seen_ms` when it last renewed the lease."""

    owner: str
    address: str
    version: str
    configuration: str
    started_ms: int
    seen_ms: int
    internal: str = ""
    """Where other gateways reach it (`listen.internal`); empty where it cannot be reached."""


# Hints from other gateways on the same store that something changed. They only say "look": the truth is read from the
# store.
#
# A hint may be lost, so whoever waits looks by itself now and then: `wait` gives up after a while and says so.

TASKS: Final = "tasks"
GRANTS: Final = "grants"
PINS: Final = "pins"
SCOPES: Final = "scopes"
SERVERS: Final = "servers"
TOKENS: Final = "tokens"
CACHED: Final = frozenset({GRANTS, PINS, SCOPES, SERVERS, TOKENS})
"""What every gateway keeps a copy of in memory. Each change of one of them counts its revision up."""
APPROVALS: Final = "approvals"
SESSIONS: Final = "sessions"
QUESTIONS: Final = "questions"
"""A question was asked, answered, taken or withdrawn: what waits at other gateways is read again."""
LISTS: Final = "lists"
"""A server offers something else than before: one of the stateful generation tells only the conversation that it has, and one on
standard streams only the gateway that started it. Names are servers, or `list_hint`."""
DEAD: Final = "dead"
"""Another gateway has died: its tasks can be claimed."""
MISSED: Final = "missed"
"""This gateway did not hear the others for a while, because its connection to the database was lost. What can be looked up is
looked up under the other topics; what can only be asked for again, or told again, goes by this one."""
POLL_S: Final = 2.0


def list_hint(server: str, kind: str) -> str:
    """The name under LISTS for a list that its server said has changed."""
    return f"{server}\n{kind}"


def read_list_hint(name: str) -> tuple[str, str]:
    """The server, and the kind of the list; empty where only the server is named."""
    server, _, kind = name.partition("\n")
    return server, kind


_KEPT_LOOKS: Final = 16


class SeenRevisions(NamedTuple):
    """The revisions of `CACHED` as they were last read, and when, by the monotonic clock; a topic without a row is at 0."""

    numbers: Mapping[str, int]
    at: float
    earlier: tuple[SeenRevisions, ...] = ()
    """The last looks that saw something else, oldest first."""

    def then(self, numbers: Mapping[str, int], at: float) -> SeenRevisions:
        """With the next look. Of looks that saw the same the last one tells the most."""
        if numbers == self.numbers:
            return SeenRevisions(numbers, at, self.earlier)
        return SeenRevisions(numbers, at, (*self.earlier, SeenRevisions(self.numbers, self.at))[-_KEPT_LOOKS:])

    def current_at(self, loaded: Mapping[str, int]) -> float:
        """When copies with these revisions were last seen to be current. A change that is still being read leaves them as old as
        the look before it."""
        for look in (self, *reversed(self.earlier)):
            if all(look.numbers.get(topic, 0) <= number for topic, number in loaded.items()):
                return look.at
        return float("-inf")


class Wakeups(Protocol):
    async def wait(self, topic: str, timeout_s: float) -> frozenset[str] | None:
        """The names that other gateways announced under this topic since it was last asked for; None when nothing came in
        time, or too much: then look at everything. One waiter for each topic.
        """
        ...


# What one gateway holds and others on the same store must find: sessions of stateful callers, and questions that wait.
#
# The *home* of a session is the gateway that has its live side: upstream conversations, streams, requests in flight.
# Others forward to a living home. The session of a dead one is adopted, by one gateway only. What a body means is the
# gateway's business.


class KeptSession(msgspec.Struct, frozen=True):
    """`moves` counts the changes of home."""

    id: str
    principal: str
    scope: str
    home: str
    moves: int
    body: bytes
    internal: str | None = None
    """Where the home said it can be reached; None if it has no lease (any more)."""


CONVERSATION: Final = "conversation "
"""How the ids of rows begin that name the home of a stateless client's conversation, before the name of its stream."""


class SessionLimits(NamedTuple):
    """How many sessions one caller, known to limits as `limited_as`, and all callers of its tenant may have at all gateways."""

    limited_as: str
    of_caller: int
    of_tenant: int | None


class TooManySessions(StrEnum):
    """Which limit is reached."""

    OF_CALLER = "caller"
    OF_TENANT = "tenant"


class SessionStore(Protocol):
    @property
    def is_fresh(self) -> bool:
        """Whether our lease certainly has not ended, so that nobody can be adopting our sessions."""
        ...

    @property
    def unbroken_since(self) -> float:
        """Since when our lease was renewed without a gap; another number than before if it may have ended in between."""
        ...

    @property
    def owner(self) -> str:
        """Our own name, as other gateways know us."""
        ...

    def is_alive(self, owner: str) -> bool:
        """Whether another gateway's lease holds, as far as we can judge: one that we cannot judge counts as alive."""
        ...

    def address_of(self, owner: str) -> str:
        """Where a gateway that has a lease can be reached by the others; empty if it cannot be."""
        ...

    def now_ms(self) -> int:
        """The database's clock, which all gateways share."""
        ...

    async def open_session(self, session: KeptSession, limits: SessionLimits) -> TooManySessions | None:
        """Returns when every gateway can find it, or when a limit keeps it from being opened. Raises GatewayFault."""
        ...

    async def begin_conversation(self, session: KeptSession) -> None:
        """Make ourselves its home, unless it has one; it counts for no limit. Raises GatewayFault."""
        ...

    async def find_session(self, session_id: str) -> KeptSession | None: ...

    async def adopt_session(self, session_id: str, former: str) -> KeptSession | None:
        """Make ourselves its home, if `former` still is and is dead. None if not: then look again whose it is."""
        ...

    async def change_session(self, session_id: str, body: bytes) -> bool:
        """Returns when it is durable; False if it is not ours (any more)."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Forget it, if it is ours."""
        ...

    async def release_session(self, session_id: str) -> None:
        """Nobody is its home any more, if we were: whoever is asked next adopts it."""
        ...

    async def release_sessions(self) -> None:
        """The same for all that are ours."""
        ...

    async def sessions_elsewhere(self) -> frozenset[str]:
        """The ids of all sessions whose home is another gateway, living or dead."""
        ...

    async def own_sessions(self) -> frozenset[str]:
        """The ids of those whose home we are."""
        ...

    async def sessions_seen(self, forget_before_ms: int) -> None:
        """Say that ours are still held, and forget those that nobody has held since that time."""
        ...


TAKEN: Final = "taken"
GONE: Final = "gone"


class KeptQuestion(msgspec.Struct, frozen=True):
    """A question that waits at `home`. `outcome` says what its home did with the answer: TAKEN, or GONE if it came too late."""

    id: str
    caller: str
    home: str
    expires_ms: int
    body: bytes
    answer: bytes | None = None
    outcome: str = ""


class QuestionStore(Protocol):
    """Questions that can be answered at every gateway. Every change is announced under the topic QUESTIONS."""

    @property
    def owner(self) -> str: ...

    def is_alive(self, owner: str) -> bool: ...

    def now_ms(self) -> int: ...

    async def put_questions(self, questions: Sequence[KeptQuestion]) -> None:
        """Ours from now on, in place of what stood under the same id; one that a living gateway has stays its own."""
        ...

    async def end_questions(self, ids: Sequence[str], outcome: str) -> None:
        """They do not wait here any more. Whoever answered one reads the outcome; one that nobody answered is forgotten."""
        ...

    async def answer_question(self, question_id: str, answer: bytes) -> bool:
        """Leave an answer for its home; False if there is one already, or no such question."""
        ...

    async def find_question(self, question_id: str) -> KeptQuestion | None: ...

    async def questions_elsewhere(self) -> list[KeptQuestion]:
        """What waits at other gateways that live, as far as we can judge, and was not answered."""
        ...

    async def questions_answered(self) -> list[KeptQuestion]:
        """Ours that were answered at other gateways, and that we have not dealt with."""
        ...

    async def forget_questions(self, before_ms: int) -> None:
        """Those whose time was over before that."""
        ...
