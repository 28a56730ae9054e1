"""Which conversations have a process of their own, of a server whose questions could not be told apart on a shared one.

A question that names no call may be meant for any conversation with a call open on the same process. Once that has happened, new
conversations get a process of their own. Conversations that used the shared one stay on it as long as it lives, because a process
may hold their state. A call without a conversation gets a process that no other open call uses. There are only so many processes
besides the shared ones; beyond that they are shared again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from taskgate.core.generations.generation import Generation
from taskgate.core.identity.addressees import has_conversation
from taskgate.ports.upstream import LinkKey
from taskgate.upstreams.open_link import AnyLink
from taskgate.upstreams.stateful_link import StatefulLink

IDLE_CONVERSATION_S: Final = 1800.0
"""A stateless conversation counts as ended after so long without a call. The process of a session ends with the session."""
IDLE_CALL_S: Final = 300.0
"""The same for processes of calls without a conversation, which nothing can come back to."""
_OF_CONVERSATION: Final = "conversation "
_OF_CALLS: Final = "call "
"""How the names of processes begin in the place of a session's id, which holds no space."""


class OwnLinks:
    """Chooses keys of links. `links` are those that are open, `opening` has the keys of those that are being opened."""

    def __init__(self, links: Mapping[LinkKey, AnyLink], opening: Mapping[LinkKey, object], limit: int) -> None:
        self._links = links
        self._opening = opening
        self._limit = limit
        self._taken: set[LinkKey] = set()
        """Keys that calls without a conversation have chosen and do not have yet."""
        self._seen: dict[LinkKey, tuple[int, float]] = {}
        """How many calls were counted on a link, and since when no more have come."""

    def adopt(self, limit: int) -> None:
        self._limit = limit

    def key(self, caller: LinkKey, shared: LinkKey) -> LinkKey:
        """The key of the link that serves this caller; `shared` is that of the one which others use, too."""
        name = _name_for(caller)
        link = self._open(shared)
        if not name or (link is not None and caller.conversation in link.conversations):
            return shared
        own = shared._replace(session=name)
        return own if self._exists(own) or self._has_room() else shared

    def held_by(self, call: str) -> StatefulLink | None:
        """The link that was handed to this call without a conversation: rounds and tasks of it go on where it began."""
        return next((link for link in map(self._open, self._links) if link is not None and link.holder == call), None)

    def take(self, shared: LinkKey) -> LinkKey:
        """The key of a link for a call without a conversation, kept from others until `handed_over`."""
        key = next(self._free_keys(shared), shared)
        self._taken.add(key)
        return key

    def handed_over(self, key: LinkKey) -> None:
        """The call has its link, or did not get it."""
        self._taken.discard(key)

    def idle(self, now: float) -> list[LinkKey]:
        """Links that nothing has used for so long that they can end."""
        seen, self._seen = self._seen, {}
        for key in self._links:
            link = self._open(key) if key.session.startswith((_OF_CONVERSATION, _OF_CALLS)) else None
            if link is not None:
                calls, since = seen.get(key, (-1, now))
                self._seen[key] = (calls, since) if link.is_free and link.calls == calls else (link.calls, now)
        return [key for key, (_, since) in self._seen.items() if now - since >= _patience_s(key)]

    def _free_keys(self, shared: LinkKey) -> Iterator[LinkKey]:
        """The shared link first, where no conversation uses it: calls one after the other then find the same process."""
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
    """What stands in the place of the session on the key of this caller's own link; nothing if it has none."""
    if caller.session.startswith(_OF_CALLS) or (caller.generation is Generation.STATEFUL and caller.session):
        return caller.session
    if caller.conversation and has_conversation(caller.conversation):
        return _OF_CONVERSATION + caller.conversation
    return ""


def _patience_s(key: LinkKey) -> float:
    return IDLE_CALL_S if key.session.startswith(_OF_CALLS) else IDLE_CONVERSATION_S
