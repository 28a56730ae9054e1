"""Which generations of the protocol a server speaks, as far as the links opened so far have shown.

Nothing is asked only to find out: a link is tried in its caller's generation, and in the other one if the server does not speak
that. What was learned saves later links the futile try. Kept by the opener of links, and forgotten when the server was lost,
because it may come back as another.
"""

from __future__ import annotations

from taskgate.core.generations import Generation


class SpokenGenerations:
    def __init__(self, pinned: Generation | None) -> None:
        self._pinned = pinned
        self._known: dict[Generation, bool] = {}
        self.towards: dict[Generation, Generation] = {}
        """The generation in which a caller of the wished one is served, as far as is known."""
        self._choose()

    def _choose(self) -> None:
        self.towards = {wished: self._towards(wished) for wished in Generation}

    def _towards(self, wished: Generation) -> Generation:
        if self._pinned is not None:
            return self._pinned
        return wished.other if self._known.get(wished) is False else wished

    def settled(self, wished: Generation) -> bool:
        """Whether a link for such a caller has been opened before, so that the next one needs no second try."""
        return self._known.get(self.towards[wished]) is True

    def order(self, wished: Generation) -> tuple[Generation, ...]:
        """In which generations to try a new link."""
        first = self.towards[wished]
        if self._pinned is not None or self._known.get(first.other) is False:
            return (first,)
        return (first, first.other)

    def learn(self, spoken: Generation, refused: tuple[Generation, ...] = ()) -> None:
        """A link was opened in one generation after the server had refused others."""
        self._known[spoken] = True
        self._known.update(dict.fromkeys(refused, False))
        self._choose()

    def forget(self) -> None:
        self._known.clear()
        self._choose()

    def known(self) -> tuple[Generation, ...]:
        """Those in which a link was opened, oldest generation first."""
        return tuple(generation for generation in Generation if self._known.get(generation))
