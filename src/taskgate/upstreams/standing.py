"""Which clients' places are alike to one server: it is started in the same way for all of them, so they can share its processes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from taskgate.core.errors import UpstreamError
from taskgate.ports.upstream import LinkKey
from taskgate.upstreams.flight import unreachable
from taskgate.upstreams.spec import ServerSpec

SpecAt = Callable[[str, str], ServerSpec]
"""How a server (first argument) is started for clients at a place (second). Raises UpstreamError where it cannot be."""
_MOST_REMEMBERED: Final = 2000


def nowhere_else(server: str, place: str) -> ServerSpec:
    """For gateways without clients who stand elsewhere."""
    raise unreachable(server, f"is not served at {place}")


class Standing:
    """Maps a place to the first place that is like it; to the empty one if it is like the gateway's own."""

    def __init__(self, spec: ServerSpec, spec_at: SpecAt) -> None:
        self._spec = spec
        self._spec_at = spec_at
        self._firsts: dict[str, ServerSpec] = {"": spec}
        self._known: dict[str, str] = {"": ""}

    def adopt(self, spec: ServerSpec) -> None:
        """A reload changed settings of our side; what runs where stays as it is."""
        self._spec = spec
        self._firsts = {first: there.with_settings_of(spec) for first, there in self._firsts.items()}

    def first_like(self, place: str) -> str:
        """The place whose processes serve this one, too. A place where the server cannot be started is like no other."""
        known = self._known.get(place)
        if known is not None:
            return known
        try:
            spec = self._spec_at(self._spec.id, place)
        except UpstreamError:
            return place
        found = next((first for first, there in self._firsts.items() if there == spec), place)
        if len(self._known) < _MOST_REMEMBERED:
            self._firsts.setdefault(found, spec)
            self._known[place] = found
        return found

    def kept_as(self, caller: LinkKey) -> LinkKey:
        """The caller's key, at the place whose processes serve it."""
        return caller._replace(place=self.first_like(caller.place))

    def check(self, place: str) -> None:
        """Raises UpstreamError where the server cannot be started: that is the place's fault, not the server's."""
        self.spec(self.first_like(place))

    def spec(self, place: str) -> ServerSpec:
        """Raises UpstreamError."""
        return self._firsts[place] if place in self._firsts else self._spec_at(self._spec.id, place)

    def keep(self, present: Collection[str]) -> frozenset[str]:
        """Forget everything about other places; those whose processes are still wanted."""
        wanted = frozenset({"", *(self.first_like(place) for place in present)})
        self._firsts = {first: spec for first, spec in self._firsts.items() if first in wanted}
        self._known = {place: first for place, first in self._known.items() if first in wanted}
        return wanted
