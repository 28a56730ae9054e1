"""Client folders that are equivalent for a server: it is started in the same way for all of them, so they share its processes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from taskgate.core.errors import UpstreamError
from taskgate.ports.link import LinkKey
from taskgate.upstreams.failures import unreachable
from taskgate.upstreams.spec import ServerSpec

SpecAt = Callable[[str, str], ServerSpec]
"""Returns how a server (first argument) is started for clients in a folder (second). Raises UpstreamError."""
_MAX_REMEMBERED: Final = 2000


def no_places(server: str, place: str) -> ServerSpec:
    """The `SpecAt` of gateways without local clients."""
    raise unreachable(server, f"is not available in {place}")


class PlaceMap:
    """Maps a place to its canonical place: the first equivalent one, or the empty one if it equals the gateway's own."""

    def __init__(self, spec: ServerSpec, spec_at: SpecAt) -> None:
        self._spec = spec
        self._spec_at = spec_at
        self._canonical_specs: dict[str, ServerSpec] = {"": spec}
        self._known: dict[str, str] = {"": ""}

    def adopt(self, spec: ServerSpec) -> None:
        """Apply changed settings after a reload. Running processes stay."""
        self._spec = spec
        self._canonical_specs = {first: there.with_settings_of(spec) for first, there in self._canonical_specs.items()}

    def canonical(self, place: str) -> str:
        """Return the place whose processes serve this one. A place where the server cannot be started is its own."""
        known = self._known.get(place)
        if known is not None:
            return known
        try:
            spec = self._spec_at(self._spec.id, place)
        except UpstreamError:
            return place
        found = next((first for first, there in self._canonical_specs.items() if there.equals(spec)), place)
        if len(self._known) < _MAX_REMEMBERED:
            self._canonical_specs.setdefault(found, spec)
            self._known[place] = found
        return found

    def canonical_key(self, caller: LinkKey) -> LinkKey:
        """Return the caller's key with its canonical place."""
        return caller._replace(place=self.canonical(caller.place))

    def check(self, place: str) -> None:
        """Raise UpstreamError if the server cannot be started in this place, which is not a failure of the server."""
        self.spec(self.canonical(place))

    def spec(self, place: str) -> ServerSpec:
        """Return how the server is started in this place. Raises UpstreamError."""
        return self._canonical_specs[place] if place in self._canonical_specs else self._spec_at(self._spec.id, place)

    def keep(self, present: Collection[str]) -> frozenset[str]:
        """Forget all other places, and return those whose processes are still needed."""
        kept = frozenset({"", *(self.canonical(place) for place in present)})
        self._canonical_specs = {first: spec for first, spec in self._canonical_specs.items() if first in kept}
        self._known = {place: first for place, first in self._known.items() if first in kept}
        return kept
