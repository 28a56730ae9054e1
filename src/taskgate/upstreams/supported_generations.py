"""The protocol generations that a server supports, as far as opened links have shown.

No request is sent only to find out: a link is tried in its caller's generation, and then in the other one. What was
learned saves later links the failed attempt, and is forgotten when the server is lost, because it may come back as
another one.
"""

from __future__ import annotations

from taskgate.core.generations.generation import Generation


class SupportedGenerations:
    def __init__(self, pinned: Generation | None) -> None:
        self._pinned = pinned
        self._known: dict[Generation, bool] = {}
        self._timed_out_before = False
        self.towards: dict[Generation, Generation] = {}
        """The generation used for callers of each generation, as far as is known."""
        self._choose()

    def _choose(self) -> None:
        self.towards = {requested: self._towards(requested) for requested in Generation}

    def _towards(self, requested: Generation) -> Generation:
        if self._pinned is not None:
            return self._pinned
        return requested.other if self._known.get(requested) is False else requested

    def settled(self, requested: Generation) -> bool:
        """Return whether a link for such a caller was opened before, so that no second attempt is needed."""
        return self._known.get(self.towards[requested]) is True

    def order(self, requested: Generation) -> tuple[Generation, ...]:
        """Return the generations to try for a new link, in order."""
        first = self.towards[requested]
        if self._pinned is not None or self._known.get(first.other) is False:
            return (first,)
        return (first, first.other)

    def learn(self, opened: Generation, refused: tuple[Generation, ...] = (), *, timed_out: bool = False) -> None:
        """Record that a link was opened in one generation after the server had rejected others.

        `timed_out`: the stateful handshake timed out. The server may only be slow, so a timeout counts as a rejection only
        the second time. For the stateless probe a timeout always counts, because many older servers do not respond to it.
        """
        certain, self._timed_out_before = self._timed_out_before or not timed_out, self._timed_out_before or timed_out
        if opened is Generation.STATEFUL:
            self._timed_out_before = False
        self._known[opened] = True
        self._known.update({one: False for one in refused if certain or one is Generation.STATELESS})
        self._choose()

    def forget(self) -> None:
        self._timed_out_before = False
        self._known.clear()
        self._choose()

    def known(self) -> tuple[Generation, ...]:
        """Return the generations in which a link was opened, oldest first."""
        return tuple(generation for generation in Generation if self._known.get(generation))
