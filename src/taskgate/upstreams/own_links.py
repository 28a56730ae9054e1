"""Separate processes for conversations of a server that may ask questions.

A server's request that names no call may belong to any conversation with an open call on the same process. So two conversations
that can be asked do not share a process, unless the server is known to ask nothing. Others share one, until a request could not be
attributed: then all new conversations get separate processes, and a call without a conversation gets a process that no other open
call uses. Conversations stay where they are while the process runs, because it may hold their state. Beyond the limit, processes
are shared again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.generations.generation import Generation
from taskgate.core.identity.addressees import has_conversation
from taskgate.ports.link import LinkKey
from taskgate.upstreams.open_link import AnyLink
from taskgate.upstreams.stateful_link import StatefulLink

IDLE_CONVERSATION_S: Final = 1800.0
"""A stateless conversation ends after this time without a call. The process of a session ends with the session."""
IDLE_CALL_S: Final = 300.0
"""The same for processes of calls without a conversation, to which no caller can return."""
_OF_CONVERSATION: Final = "conversation "
_OF_CALLS: Final = "call "
"""Prefixes that replace the session id in keys. Session ids contain no space."""


ASKS_NOTHING_AFTER: Final = 50
"""A server that has answered this many calls without a question, and that two conversations have used, is taken to ask nothing."""
_REMEMBERED: Final = 10_000


class _Placed(msgspec.Struct):
    """A conversation that was given a link."""

    apart: bool
    """Whether the link is its own."""
    asked_on: LinkKey | None
    """The shared link on which it can be asked."""
    seen: float
    """The time of its last call."""

    def called(self, now: float) -> None:
        self.seen = now


class OwnLinks:
    """Chooses keys of links. `links` are open, `opening` has the keys of those being opened."""

    def __init__(self, links: Mapping[LinkKey, AnyLink], opening: Mapping[LinkKey, object], limit: int) -> None:
        self._links = links
        self._opening = opening
        self._limit = limit
        self.separated = False
        """Whether every new conversation gets a link of its own."""
        self._placed: dict[str, _Placed] = {}
        """The conversations that were given a link."""
        self._conversations = 0
        self._asks = False
        """Whether the server has asked a question."""
        self._asks_nothing = False
        """Whether it has answered enough calls without a question, until its first one."""
        self._taken: set[LinkKey] = set()
        """Keys reserved by calls without a conversation whose link is not open yet."""
        self._seen: dict[LinkKey, tuple[int, float]] = {}
        """The number of calls on each link, and since when it is unchanged."""

    def adopt(self, limit: int) -> None:
        self._limit = limit

    def separate(self) -> None:
        self.separated = True

    def note_question(self) -> None:
        self._asks = True

    def is_placed(self, caller: LinkKey) -> bool:
        """Whether it is decided which link serves this caller's conversation, and note that it is in use."""
        name = _name_for(caller)
        placed = self._placed.get(name)
        if placed is not None:
            placed.called(clock.monotonic())
        return self.separated or not name or placed is not None

    def place(self, caller: LinkKey, shared: LinkKey, *, can_be_asked: bool) -> None:
        """Decide which link serves the conversation of this caller. `shared` is the key of the shared link."""
        name, now = _name_for(caller), clock.monotonic()
        if self.separated or not name or name in self._placed:
            return
        apart = can_be_asked and self._may_ask() and self._has_asked(shared, now)
        self._placed[name] = _Placed(apart, shared if can_be_asked and not apart else None, now)
        self._conversations += 1
        if len(self._placed) > _REMEMBERED:
            del self._placed[next(iter(self._placed))]

    def _may_ask(self) -> bool:
        if not self._asks and not self._asks_nothing and self._conversations >= 2:
            # A link may have several keys.
            links = {link for link in self._links.values() if isinstance(link, StatefulLink)}
            self._asks_nothing = sum(link.calls_over for link in links) >= ASKS_NOTHING_AFTER
        return self._asks or not self._asks_nothing

    def _has_asked(self, shared: LinkKey, now: float) -> bool:
        """Whether a conversation that can be asked uses this link. A session does until it ends, others until they are idle."""
        return any(
            placed.asked_on == shared
            and not (name.startswith(_OF_CONVERSATION) and now - placed.seen >= IDLE_CONVERSATION_S)
            for name, placed in self._placed.items()
        )

    def forget(self, session: str) -> None:
        """A session has ended."""
        self._placed.pop(session, None)

    def key(self, caller: LinkKey, shared: LinkKey) -> LinkKey:
        """Return the key of the link for this caller; `shared` is the key of the shared link."""
        name = _name_for(caller)
        if not self.separated and not (name in self._placed and self._placed[name].apart):
            return shared
        link = self._open(shared)
        if not name or (link is not None and caller.conversation in link.conversations):
            return shared
        own = shared._replace(session=name)
        return own if self._exists(own) or self._has_room() else shared

    def link_of_call(self, call: str) -> StatefulLink | None:
        """Return the link of this call without a conversation, on which its rounds and tasks continue."""
        return next((link for link in map(self._open, self._links) if link is not None and link.holder == call), None)

    def take(self, shared: LinkKey) -> LinkKey:
        """Reserve the key of a link for a call without a conversation, until `handed_over`."""
        key = next(self._free_keys(shared), shared)
        self._taken.add(key)
        return key

    def handed_over(self, key: LinkKey) -> None:
        """End the reservation: the call has its link, or opening it failed."""
        self._taken.discard(key)

    def idle(self, now: float) -> list[LinkKey]:
        """Return the keys of links whose idle time is over."""
        seen, self._seen = self._seen, {}
        for key in self._links:
            link = self._open(key) if key.session.startswith((_OF_CONVERSATION, _OF_CALLS)) else None
            if link is not None:
                calls, since = seen.get(key, (-1, now))
                self._seen[key] = (calls, since) if link.is_free and link.calls == calls else (link.calls, now)
        return [key for key, (_, since) in self._seen.items() if now - since >= _idle_limit_s(key)]

    def _free_keys(self, shared: LinkKey) -> Iterator[LinkKey]:
        """Yield usable keys. The shared link is first if no conversation uses it, so that sequential calls use one process."""
        link = self._open(shared)
        if self._is_free(shared) and (link is None or not link.conversations):
            yield shared
        for number in range(1, self._limit + 1):
            own = shared._replace(session=f"{_OF_CALLS}{number}")
            if self._is_free(own) if self._exists(own) else self._has_room():
                yield own

    def _open(self, key: LinkKey) -> StatefulLink | None:
        link = self._links.get(key)
        return link if isinstance(link, StatefulLink) and link.alive else None

    def _is_free(self, key: LinkKey) -> bool:
        link = self._open(key)
        return key not in self._taken and key not in self._opening and (link is None or link.is_free)

    def _exists(self, key: LinkKey) -> bool:
        return self._open(key) is not None or key in self._opening or key in self._taken

    def _has_room(self) -> bool:
        own = {key for key in (*self._links, *self._opening, *self._taken) if key.session and self._exists(key)}
        return len(own) < self._limit


def _name_for(caller: LinkKey) -> str:
    """Return the session part of the key of this caller's own link, or an empty string if it has none."""
    if caller.session.startswith(_OF_CALLS) or (caller.generation is Generation.STATEFUL and caller.session):
        return caller.session
    if caller.conversation and has_conversation(caller.conversation):
        return _OF_CONVERSATION + caller.conversation
    return ""


def _idle_limit_s(key: LinkKey) -> float:
    return IDLE_CALL_S if key.session.startswith(_OF_CALLS) else IDLE_CONVERSATION_S
