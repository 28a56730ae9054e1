"""Servers whose conversations are kept apart, because a question on a shared process could not be assigned to one of them.

Learned per server and kept in the store, for the next start and for other gateways on the same store. If its configuration changes
(another program or address), it counts as another server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate.gateway.plan import Live
from taskgate.ports.store import Store
from taskgate.ports.upstream import Upstream
from taskgate.store.operations.identity_records import IdentityRecord, IdentityRecords, KeepIdentityRecord
from taskgate.telemetry.logs import log

SEPARATED: Final = "separated"
"""The kind of record."""
_FOR_EVER_MS: Final = 2**53


class SeparatedServers:
    def __init__(self, store: Store, upstreams: Live[Mapping[str, Upstream]]) -> None:
        self._store = store
        self._upstreams = upstreams
        self._learned: dict[str, str] = {}
        """Fingerprints of the servers, by their names."""

    async def load(self) -> None:
        """Load the records: at the start, and when another gateway may have changed them."""
        records = await self._store.ask(IdentityRecords(SEPARATED))
        self._learned.update({record.name: record.body.decode(errors="replace") for record in records})
        self.apply()

    def apply(self) -> None:
        """Apply the records after the upstreams were replaced, to those that are the same servers as before."""
        for name, upstream in self._upstreams.value.items():
            if self._learned.get(name) == upstream.fingerprint:
                upstream.separate_conversations()

    def learn(self, server: str) -> None:
        """Record that a request of this server could not be assigned to a conversation."""
        upstream = self._upstreams.value.get(server)
        if upstream is None or not upstream.separate_conversations():
            return
        self._learned[server] = upstream.fingerprint
        record = IdentityRecord(
            kind=SEPARATED, name=server, principal="", expires_ms=_FOR_EVER_MS, body=upstream.fingerprint.encode()
        )
        self._store.defer(KeepIdentityRecord(record, announce=True))
        log.warning(
            "a question of this server names no call, and several conversations share its process: "
            "new conversations get a process of their own",
            server=server,
        )
